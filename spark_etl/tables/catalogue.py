"""The tables of the data source `mqttd`: their columns, Spark types and meaning, in one place.

The readers follow these rows (`spark_etl.tables.reading`), and so do the tables of docs/analytics.md (`python -m
spark_etl.tables.catalogue --markdown docs/analytics.md`). Types are Spark SQL's. Nothing here needs pyspark.

A message's identity is (`host`, `number`). The same message may occur more than once: in each snapshot, in
the archive and in the log (`origin`), in the log of each worker that has sessions for it. Hosts of a cluster keep the
number of a message that comes from another one, and two of them may give the same number: between them its identity is
(`cluster`, `number`, `topic`, `payload`).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from leveldb_store.format import events

__all__ = ["TABLES", "Column", "Table", "TableError", "table_of"]


class TableError(Exception):
    """There is no such table or column: one line."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, its Spark type and its description."""

    name: str
    type: str
    about: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a row per record of a store."""

    name: str
    about: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        """The names of its columns."""
        return [column.name for column in self.columns]

    @property
    def own_names(self) -> list[str]:
        """The names of its columns without those of the snapshot, which all tables have."""
        return self.names[len(_SNAPSHOT) :]

    def chosen(self, names: list[str]) -> tuple[Column, ...]:
        """Return the columns of these names, in the table's order. TableError: there is no such column."""
        for name in names:
            if name not in self.names:
                raise TableError(f"the table {self.name} has no column {name}; it has {', '.join(self.names)}")
        return tuple(column for column in self.columns if column.name in names)


_SNAPSHOT: Final = (
    Column("snapshot", "string", "directory of the snapshot"),
    Column("taken", "timestamp", "when the snapshot was begun"),
    Column("host", "string", "its data directory: the archive's epoch, which never changes, also when restored"),
    Column("store", "int", "number of the worker in whose store the record is"),
    Column("node", "string", "name of the host in its cluster; null: it is in none, as in the following"),
    Column("cluster", "string", "name of the cluster"),
    Column(
        "cluster_snapshot", "string", "id of the snapshot of all hosts that this one is a part of; null: it is none"
    ),
)

_SEEN: Final = Column(
    "seen",
    "timestamp",
    "until when its client was connected there: `disconnected`, else `taken`. A session that moves while hosts of a "
    "cluster are copied may be in the snapshots of two: the later one counts (`once`)",
)

_IDENTITY: Final = (
    Column("worker", "int", "number of the worker that received it"),
    Column("number", "bigint", "message number: microseconds since 1970 << 8 \\| worker"),
    Column("time", "timestamp", "when it was received"),
)

_TOPIC: Final = (
    Column("topic", "string", ""),
    Column("first_level", "string", "of the topic. Conditions on it and on `topic` skip blocks"),
    Column("levels", "array<string>", "of the topic"),
)

_CONTENT: Final = (
    Column("qos", "int", "as published"),
    Column("retain", "boolean", "RETAIN as published"),
    Column("publisher", "string", "client id; null: not known here, or the broker"),
    Column("payload", "binary", ""),
    Column("payload_bytes", "int", "its size"),
    Column("payload_text", "string", "the payload if it is UTF-8, else null"),
    Column("payload_format", "int", "Payload Format Indicator; null: not given, as in the following"),
    Column("content_type", "string", "Content Type"),
    Column("response_topic", "string", "Response Topic"),
    Column("correlation_data", "binary", "Correlation Data"),
    Column("expires", "timestamp", "by its Message Expiry Interval; null: never"),
    Column("user_properties", "map<string,string>", "User Properties; for a repeated name the last one"),
    Column("properties", "binary", "all properties as published, in wire form of MQTT 5; null: none"),
)

_MESSAGES: Final = Table(
    "messages",
    "A row for each message of the archive and of the log. The log has messages that sessions wait for, and a few that "
    "they have already received: its blocks are deleted as a whole.",
    (
        *_SNAPSHOT,
        Column("origin", "string", "`archive`, or `queue`: it is in the log, or kept for one session"),
        *_IDENTITY,
        Column("position", "bigint", "in the log of its store; null: not in it"),
        Column("session", "string", "client id of the only session for which it is kept; null: any may wait for it"),
        Column("tenant", "string", "`default`"),
        Column("rule", "string", "Topic Filter of the `[[archive]]` table; null: not in the archive"),
        Column("matches", "bigint", "matching subscriptions of its publisher's worker; null: not in the archive"),
        *_TOPIC,
        *_CONTENT,
    ),
)

_RETAINED: Final = Table("retained", "A row for each retained message.", (*_SNAPSHOT, *_IDENTITY, *_TOPIC, *_CONTENT))

_SESSIONS: Final = Table(
    "sessions",
    "A row for each lasting session.",
    (
        *_SNAPSHOT,
        Column("client", "string", "client id"),
        Column("username", "string", "null: it has none"),
        Column("version", "int", "of its last connection: 3, 4 or 5"),
        Column("expiry_seconds", "bigint", "Session Expiry Interval; null: it never expires"),
        Column("connected", "boolean", "whether it was connected"),
        Column("disconnected", "timestamp", "when its connection ended; null: it was connected"),
        Column("created", "timestamp", "when it was made"),
        _SEEN,
    ),
)

_SUBSCRIPTIONS: Final = Table(
    "subscriptions",
    "A row for each subscription of these sessions.",
    (
        *_SNAPSHOT,
        Column("client", "string", "client id"),
        Column("filter", "string", "as subscribed (`$share/...` included)"),
        Column("share_group", "string", "name of its share group; null: it is not shared"),
        Column("topic_filter", "string", "without share group"),
        Column("first_level", "string", "of the Topic Filter"),
        Column("qos", "int", "granted"),
        Column("no_local", "boolean", "No Local"),
        Column("retain_as_published", "boolean", "Retain As Published"),
        Column("retain_handling", "int", "Retain Handling"),
        Column("identifier", "bigint", "Subscription Identifier; null: none"),
        Column("since", "bigint", "log position behind which it begins; null: it replays the archive"),
        Column(
            "replayed", "bigint", "number of the message up to which it has replayed the archive; null: it does not"
        ),
        _SEEN,
    ),
)

_INFLIGHT: Final = Table(
    "inflight",
    "A row for each message in flight: sent and not answered, or received at QoS 2 and not released.",
    (
        *_SNAPSHOT,
        Column("client", "string", "client id"),
        Column("direction", "string", "`out`: to the client, `in`: from it"),
        Column("packet_id", "int", "Packet Identifier"),
        Column("awaits", "string", "`PUBACK`, `PUBREC`, `PUBCOMP` or (in) `PUBREL`"),
        Column("qos", "int", "as sent"),
        Column("retain", "boolean", "as sent; null: in"),
        Column("shared", "boolean", "whether it is of a share group; null: in"),
        Column("position", "bigint", "in the log of its store, as in `messages`; null: not in it"),
        Column("number", "bigint", "`messages.number` of it, if a record of it is kept for this session; else null"),
        _SEEN,
    ),
)

_CURSORS: Final = Table(
    "cursors",
    "A row for each log that a session reads: one per Topic Filter of its subscriptions, and its own queue (`filter` "
    "null). Messages that it has not been sent are waiting.",
    (
        *_SNAPSHOT,
        Column("client", "string", "client id"),
        Column("filter", "string", "Topic Filter; null: messages kept for this session alone"),
        Column("position", "bigint", "position up to which it was sent the log; null: its own queue"),
        Column("last_position", "bigint", "of the log of its store"),
        Column("lag_messages", "bigint", "waiting messages. One that matches two of its filters counts for each"),
        Column("lag_bytes", "bigint", "their topics, properties and payloads"),
        Column("oldest_number", "bigint", "message number of the oldest waiting one; null: none waits"),
        Column("oldest", "timestamp", "when the oldest was received"),
        _SEEN,
    ),
)

_HANDOFF: Final = Table(
    "handoff",
    "A row for each batch that a worker keeps until a sibling, or a worker of another host, has it.",
    (
        *_SNAPSHOT,
        Column("peer", "int", "number of the sibling; of another host: the host's << 8 \\| the worker's"),
        Column("stream", "bigint", "number of the stream"),
        Column("sequence", "bigint", "in that stream"),
        Column("entries", "int", "messages; null: not counted"),
        Column("bytes", "bigint", "of the batch"),
        Column(
            "arrived",
            "boolean",
            "whether its store in the same snapshot, also of all hosts, has it too: then count it there",
        ),
    ),
)

_EVENT: Final = (
    Column("worker", "int", "number of the worker in which it happened"),
    Column("number", "bigint", "of the event: microseconds since 1970 << 8 \\| worker"),
    Column("time", "timestamp", "when it happened"),
)

_MINUTE: Final = Column("minute", "timestamp", "beginning of its minute")

_COUNTERS: Final = Table(
    "counters",
    "A row for each counter and sample. A minute may be sampled twice: the later one counts. Counters restart when "
    "the broker starts, and those at 0 are left out.",
    (
        *_SNAPSHOT,
        *_EVENT,
        _MINUTE,
        Column("name", "string", "of the counter"),
        Column("value", "bigint", "since the broker was started"),
    ),
)

_DROPS: Final = Table(
    "drops",
    "A row for each client, reason and minute with copies dropped. A minute may be in two parts: add them up.",
    (
        *_SNAPSHOT,
        *_EVENT,
        _MINUTE,
        Column("client", "string", "client id; null: all others"),
        Column("reason", "string", ""),
        Column("messages", "bigint", "copies dropped"),
    ),
)

_STORES: Final = Table(
    "stores",
    "A row for each store, from the snapshot's manifest. Nothing else is read.",
    (
        *_SNAPSHOT,
        Column("version", "string", "of the mqttd that took the snapshot"),
        Column("workers", "int", "of the broker"),
        Column("epoch", "string", "of the stores: positions are of this epoch"),
        Column("generation", "int", "of the stores"),
        Column("last_position", "bigint", "of the log"),
        Column("last_number", "bigint", "the last message number given out; null: none"),
        Column("messages", "bigint", "in the log"),
        Column("records", "map<string,bigint>", "by family of keys (docs/store.md)"),
        Column("counters", "map<string,bigint>", "the worker's counters at the last commit"),
    ),
)

_RULES: Final = Table(
    "rules",
    "A row for each `[[archive]]` table and store, with its archived messages. Also from the manifest.",
    (
        *_SNAPSHOT,
        Column("filter", "string", "its Topic Filter"),
        Column("place", "int", "in the configuration, from 0; null: no longer configured"),
        Column("age_seconds", "bigint", "time that messages are kept"),
        Column("bytes_max", "bigint", "and their largest size in this store"),
        Column("messages", "bigint", "number of messages"),
        Column("first", "bigint", "number of the first; null: there is none"),
        Column("last", "bigint", "number of the last"),
    ),
)

_ABOUT_EVENTS: Final = {
    "by": "`nobody`: the connection was lost; `client`, `broker`",
    "clean_start": "Clean Start",
    "session_present": "Session Present",
    "others": "whether it is for all other topics",
    "minute": _MINUTE.about,
}
_BOOLEANS: Final = {"clean_start", "session_present", "others"}


def _of_events() -> tuple[Column, ...]:
    # a column for each text and number of any kind, in the order of the kinds
    found: dict[str, tuple[str, list[str]]] = {}
    for kind in events.KINDS:
        for name in kind.texts:
            found.setdefault(name, ("string", []))[1].append(kind.name)
        for name, code in kind.numbers:
            spark_type = "int" if code in "BH" else "bigint"
            if name in _BOOLEANS:
                spark_type = "boolean"
            elif name == "by":
                spark_type = "string"
            elif name == "minute":
                spark_type = "timestamp"
            found.setdefault(name, (spark_type, []))[1].append(kind.name)
    columns = []
    for name, (spark_type, kinds) in found.items():
        which = "of " + ", ".join(f"`{each}`" for each in kinds)
        about = _ABOUT_EVENTS.get(name)
        columns.append(Column(name, spark_type, f"{about}; {which}" if about else which))
    return tuple(columns)


_EVENTS: Final = Table(
    "events",
    "A row for each event (docs/operations.md explains the kinds). A column is null where its kind does not "
    "have it.",
    (
        *_SNAPSHOT,
        *_EVENT,
        Column("kind", "string", ", ".join(f"`{kind.name}`" for kind in events.KINDS)),
        *_of_events(),
        Column("rows", "map<string,bigint>", "the table of "
               + ", ".join(f"`{kind.name}`" for kind in events.KINDS if kind.table)),
    ),
)  # fmt: skip

TABLES: Final = {
    table.name: table
    for table in (
        _MESSAGES, _SESSIONS, _SUBSCRIPTIONS, _RETAINED, _INFLIGHT, _CURSORS, _HANDOFF, _EVENTS, _COUNTERS, _DROPS,
        _STORES, _RULES,
    )
}  # fmt: skip


def table_of(name: str) -> Table:
    """Return the table of this name. Raises TableError."""
    if name not in TABLES:
        raise TableError(f"there is no table {name!r}; there are {', '.join(TABLES)}")
    return TABLES[name]


# -- the tables of docs/analytics.md

_BEGIN = "<!-- generated: python -m spark_etl.tables.catalogue --markdown docs/analytics.md -->"
_END = "<!-- end of what is generated -->"


def markdown() -> str:
    """Return the columns of all tables."""
    parts = []
    for table in TABLES.values():
        parts += [f"### {table.name}\n", f"{table.about}\n", "| column | type | |\n|---|---|---|"]
        parts += [f"| `{column.name}` | {column.type} | {column.about} |" for column in table.columns]
        parts.append("")
    return "\n".join(parts)


def with_tables(document: str) -> str:
    """Return a document with its generated part replaced. Raises ValueError when its markers are missing."""
    before, begin, rest = document.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"the document has no lines {_BEGIN!r} and {_END!r}")
    return f"{before}{begin}\n\n{markdown()}\n{end}{after}"


def _main(arguments: list[str]) -> int:
    match arguments:
        case ["--markdown"]:
            print(markdown())
        case ["--markdown", file]:
            path = Path(file)
            path.write_text(with_tables(path.read_text()))
        case _:
            print("usage: python -m spark_etl.tables.catalogue --markdown [FILE]", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(_main(sys.argv[1:]))

"""Tables of a store's state of its clients: sessions (S), subscriptions (T, O), messages in flight (V), batches for
siblings (H).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast

from leveldb_store.format import link_schema, replay_schema, schema, session_schema, windows
from leveldb_store.format.archive_schema import first_level
from leveldb_store.format.queued_messages import decode_queued, whole
from leveldb_store.format.schema import SchemaError
from leveldb_store.format.subscription_schema import decode_subscription
from leveldb_store.snapshots.snapshot import LinkFacts, Manifest, StoreFacts
from spark_etl.tables.catalogue import TABLES
from spark_etl.tables.frames import instant

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_etl.tables.opened import Reading
    from spark_etl.tables.snapshots import Snapshot

__all__ = ["handoff", "inflight", "replays", "seen", "sessions", "shared", "subscriptions", "window_of"]

_NEVER: Final = 0xFFFFFFFF
_OF_HOST: Final = 1 << 8  # workers that the number of a peer has room for (pyx.core.peer, which needs compiled code)
_SHARE: Final = "$share/"
_AWAITS: Final = {1: "PUBACK", 2: "PUBREC", 3: "PUBCOMP"}
_NAMES: Final = {name: table.own_names for name, table in TABLES.items()}


def sessions(reading: Reading, start: bytes, stop: bytes) -> Iterator[pa.RecordBatch]:
    """Yield sessions. Raises SchemaError."""
    return reading.frames.of_rows(_NAMES["sessions"], _sessions(reading, start, stop))


def _sessions(reading: Reading, start: bytes, stop: bytes) -> Iterator[tuple[Any, ...]]:
    for key, value in reading.scan(start, stop):
        found = session_schema.decode_session(value)
        yield (
            _decoded(key[1:]), found.username, found.version,
            None if found.expiry_interval == _NEVER else found.expiry_interval,
            not found.disconnected, instant(found.disconnected) if found.disconnected else None, instant(found.created),
            seen(reading, value),
        )  # fmt: skip


def seen(reading: Reading, value: bytes | None) -> datetime:
    """Return until when the client was connected, by the record of its session (None: there is none)."""
    disconnected = 0 if value is None else session_schema.decode_session(value).disconnected
    return instant(disconnected or reading.store.snapshot.manifest.taken_ms)


class _Seen:
    """Until when the client of a row was connected, if that is asked for. Records of a client follow each other."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._is_wanted = reading.frames.wants("seen")
        self._client: str | None = None
        self._at: datetime | None = None

    def of(self, client: str) -> datetime | None:
        """Return it, or None."""
        if self._is_wanted and client != self._client:
            self._client = client
            self._at = seen(self._reading, self._reading.get(schema.session_key(client)))
        return self._at


def subscriptions(reading: Reading, start: bytes, stop: bytes) -> Iterator[pa.RecordBatch]:
    """Yield subscriptions of sessions. Raises SchemaError."""
    return reading.frames.of_rows(_NAMES["subscriptions"], _subscriptions(reading, start, stop))


def _subscriptions(reading: Reading, start: bytes, stop: bytes) -> Iterator[tuple[Any, ...]]:
    seen_at = _Seen(reading)
    for key, value in reading.scan(start, stop):
        client, text = schema.split_subscription(key)
        options, identifier, since, _ = decode_subscription(value)
        yield *_subscribed(client, text, options, identifier), since, None, seen_at.of(client)


def replays(reading: Reading, start: bytes, stop: bytes) -> Iterator[pa.RecordBatch]:
    """Yield subscriptions that replay the archive. Raises SchemaError."""
    return reading.frames.of_rows(_NAMES["subscriptions"], _replays(reading, start, stop))


def _replays(reading: Reading, start: bytes, stop: bytes) -> Iterator[tuple[Any, ...]]:
    seen_at = _Seen(reading)
    for key, value in reading.scan(start, stop):
        client, text = replay_schema.split_replay(key)
        found = replay_schema.decode_replay(value)
        yield *_subscribed(client, text, found.options, found.identifier), None, found.position, seen_at.of(client)


def _subscribed(client: str, text: bytes, options: int, identifier: int) -> tuple[Any, ...]:
    # SUBSCRIBE's options byte [MQTT 5.0, 3.8.3.1]
    named = _decoded(text)
    group, topic_filter = shared(named)
    return (
        client, named, group, topic_filter, _decoded(first_level(topic_filter.encode())), options & 0x03,
        bool(options & 0x04), bool(options & 0x08), options >> 4 & 0x03, identifier or None,
    )  # fmt: skip


def shared(named: str) -> tuple[str | None, str]:
    """Split a subscribed filter into (share group or None, Topic Filter) [MQTT 5.0, 4.8.2]."""
    if not named.startswith(_SHARE):
        return None, named
    group, _, topic_filter = named.removeprefix(_SHARE).partition("/")
    return group, topic_filter


def inflight(reading: Reading, start: bytes, stop: bytes) -> Iterator[pa.RecordBatch]:
    """Yield messages in flight, from the windows of sessions. Raises SchemaError."""
    return reading.frames.of_rows(_NAMES["inflight"], _inflight(reading, start, stop))


def _inflight(reading: Reading, start: bytes, stop: bytes) -> Iterator[tuple[Any, ...]]:
    seen_at = _Seen(reading)
    for key, value in reading.scan(start, stop):
        client = _decoded(key[1:])
        at_last = seen_at.of(client)
        window = window_of(reading, client, value)
        for packet_id, flags, state, at in window.out:
            if state not in _AWAITS:
                raise SchemaError(f"a message in flight has state {state}")
            is_kept = bool(flags & schema.OWN_RECORD)
            yield (
                client, "out", packet_id, _AWAITS[state], flags & schema.QOS, bool(flags & schema.RETAIN),
                bool(flags & schema.SHARED_COPY), None if is_kept else at,
                _number(reading, client, at) if is_kept else None, at_last,
            )  # fmt: skip
        for packet_id in window.arrived:
            yield client, "in", packet_id, "PUBREL", 2, None, None, None, None, at_last


def window_of(reading: Reading, client: str, value: bytes) -> windows.Window:
    """Return the window of a session from its record of family V. Raises SchemaError."""
    pages: list[windows.Page] = []
    if windows.has_pages(value):
        prefix = windows.pages_of(client)
        pages += reading.scan(prefix, schema.prefix_end(prefix) or b"")
    return windows.decode_window(value, pages)


def _number(reading: Reading, client: str, record: int) -> int | None:
    # of the message: records of one session have their own numbering
    value = reading.db.get(schema.queued_key(client, record), verify_checksums=True)
    return None if value is None else decode_queued(whole(value, reading.get)).message.number


def handoff(reading: Reading, start: bytes, stop: bytes) -> Iterator[pa.RecordBatch]:
    """Yield batches kept for siblings. Raises SchemaError."""
    return reading.frames.of_rows(_NAMES["handoff"], _handoff(reading, start, stop))


def _handoff(reading: Reading, start: bytes, stop: bytes) -> Iterator[tuple[Any, ...]]:
    own, snapshot = reading.store.facts, reading.store.snapshot
    others = snapshot.others()
    for key, value in reading.scan(start, stop):
        peer, sequence = schema.peer_of_key(key), schema.key_position(key)
        if not sequence:
            continue  # the head of the log: the manifest has it
        entries, _, _ = link_schema.decode_handoff(value)
        stream = own.links.get(peer, LinkFacts()).stream
        taken = _taken(snapshot, others, own, peer)
        yield (
            peer, stream, sequence, None if entries < 0 else entries, len(value),
            taken.taken_stream == stream and sequence <= taken.taken,
        )  # fmt: skip


def _taken(snapshot: Snapshot, others: dict[int, Manifest], own: StoreFacts, peer: int) -> LinkFacts:
    # what a peer has of the own stream, by its store in the same snapshot
    host, worker = divmod(peer, _OF_HOST)
    manifest = others.get(host) if host else snapshot.manifest
    if manifest is None or worker >= len(manifest.stores):
        return LinkFacts()
    number = 0 if not host or snapshot.manifest.cluster is None else snapshot.manifest.cluster.number
    return manifest.stores[worker].links.get(cast("Any", number * _OF_HOST + own.worker), LinkFacts())


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SchemaError(f"a name is damaged: {error}") from None

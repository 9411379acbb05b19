"""The forms of all records in a store, on the mesh or in a snapshot, with the maximum of each field.

A `Form` is one kind of record: a sample in Python, its encoder and its decoder. Its fields are those of the sample's
class; `most` has the maximum of each that MQTT and the settings allow: the value of a number, the length of bytes, a
text or a list. `at_every_length` makes the records to try: each field at 0 (or its minimum), 1, max - 1, max and
max + 1, the others as in the sample. A field that is a record has a form of its own.

A class or an encoder without a form fails tests/contract/test_every_length.py.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

from broker.config.limits import Limits
from leveldb_store.format import (
    archive_schema,
    events,
    link_schema,
    persisted_counters,
    queued_messages,
    replay_schema,
    schema,
    session_schema,
    subscription_schema,
    windows,
)
from leveldb_store.format.archive_schema import ArchivedMessage, BlockHead, Rule
from leveldb_store.format.queued_messages import StoredQueued
from leveldb_store.format.replay_schema import StoredHost, StoredReplay
from leveldb_store.format.schema import Part, Span, StoredMessage
from leveldb_store.format.session_schema import StoredSession, StoredWill
from leveldb_store.format.windows import Window
from pyx.core.peer import sibling
from pyx.mesh.contract import EnvelopeError
from tests import mesh_messages
from tests.mesh_messages import Greeting, Head, Prefix
from zmq_mesh import envelope, interest
from zmq_mesh.envelope import Entry
from zmq_mesh.interest import Change

U8, U16, U32, U64 = 0xFF, 0xFFFF, 0xFFFFFFFF, 2**64 - 1
LIMITS = Limits()
PAYLOAD = LIMITS.packet_bytes_max
PROPERTIES = LIMITS.user_property_bytes_max + 4 * U16
IDENTIFIERS = LIMITS.filters_per_session_max * 5
WORKERS = 64
#: Length of tried lists that only the memory of the machine bounds
MANY = 1000

MODULES: Sequence[ModuleType] = (
    schema, session_schema, subscription_schema, queued_messages, link_schema, replay_schema, archive_schema, windows,
    events, persisted_counters, envelope, interest,
)  # fmt: skip


@dataclass(frozen=True)
class Most:
    """Maximum and minimum of a field. `cut`: the encoder shortens longer values, by rule."""

    value: int
    least: int = 0
    cut: bool = False


@dataclass(frozen=True)
class Form:
    """The form of one kind of record: see the top of this file."""

    name: str
    sample: Any
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    most: Mapping[str, int | Most | Form | None]
    """Maximum of each field; None: the field stays as in the sample."""
    writes: str
    """The encoder among the MODULES, as module.name; "": none."""


class Case(NamedTuple):
    """A record to encode and decode."""

    what: str
    record: Any
    beyond: bool
    """A field is above its maximum: the record may be refused."""
    cut: bool


def fields_of(record: Any) -> list[str]:
    """Return the names of the fields of a dataclass or a named tuple."""
    if dataclasses.is_dataclass(record):
        return [each.name for each in dataclasses.fields(record)]
    return list(record._fields)


def replaced(record: Any, name: str, value: Any) -> Any:
    """Return a copy of the record with another value of the field `name`."""
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return dataclasses.replace(record, **{name: value})
    return record._replace(**{name: value})


def at_every_length(form: Form) -> Iterator[Case]:
    """Yield the sample, and copies of it with each field at each of its lengths."""
    yield Case("sample", form.sample, False, False)
    for name in fields_of(form.sample):
        known = form.most[name]
        value = getattr(form.sample, name)
        if known is None or value is None:
            continue
        if isinstance(known, Form):
            for case in at_every_length(known):
                yield case._replace(what=f"{name}.{case.what}", record=replaced(form.sample, name, case.record))
            continue
        if isinstance(value, bool):
            for either in (False, True):
                yield Case(f"{name} = {either}", replaced(form.sample, name, either), False, False)
            continue
        most = known if isinstance(known, Most) else Most(known)
        for size in sorted({most.least, 1, most.value - 1, most.value, most.value + 1}):
            if size >= most.least:
                record = replaced(form.sample, name, _of_size(value, size))
                yield Case(f"{name} of {size}", record, size > most.value, most.cut)


def _of_size(value: Any, size: int) -> Any:
    if isinstance(value, int):
        return size
    if isinstance(value, bytes):
        return b"x" * size
    if isinstance(value, str):
        return "x" * size
    if isinstance(value, dict):
        if all(isinstance(key, int) for key in value):
            return {number: number + 1 for number in range(size)}
        return {f"name{number}": number for number in range(size)}
    if isinstance(value, frozenset):
        return frozenset(b"%d" % number for number in range(size))
    assert isinstance(value, list), value
    return [number + 1 if isinstance(value[0], int) else value[0] for number in range(size)]


def _without(form: Form, name: str) -> Form:
    # the form with None in an optional field of the sample
    return dataclasses.replace(form, name=f"{form.name}, no {name}", sample=replaced(form.sample, name, None))


# -------------------------------------------------------------------------------------------------- messages


def _whole(found: tuple[Any, int], data: bytes) -> Any:
    message, end = found
    assert end == len(data)
    return message


MESSAGE = Form(
    "message",
    StoredMessage(b"topic", b"payload", 7, 1, True, b"\x26\0\1k\0\1v", 9, "publisher"),
    schema.encode_message,
    lambda data: _whole(schema.decode_message(data), data),
    {
        "topic": U16, "payload": PAYLOAD, "number": U64, "qos": 2, "retain": 1, "properties": PROPERTIES,
        "expires": Most(U64, 1), "publisher": Most(U16, 1),
    },
    "schema.encode_message",
)  # fmt: skip

ARCHIVED = Form(
    "archived message",
    ArchivedMessage(MESSAGE.sample, 3),
    lambda each: archive_schema.encode_block([each], 1, 2),
    lambda data: next(archive_schema.decode_block(data)),
    {"message": MESSAGE, "matches": U32, "tenant": None},
    "archive_schema.encode_block",
)


class Block(NamedTuple):
    """A block of the log."""

    messages: list[StoredMessage]


class Reach(NamedTuple):
    """The distances and sizes that a part of an index holds."""

    behind_block: int
    behind_first: int
    size: int
    messages_before: int
    bytes_before: int
    indexes: int


class Handoff(NamedTuple):
    """A batch in a hand-off log."""

    entries: int
    part: bytes
    payloads: list[bytes]


class HandoffHead(NamedTuple):
    """The first record of a hand-off log."""

    stream: int
    reserved: int


class Peer(NamedTuple):
    """The position of a link."""

    stream: int
    number: int


class Refusals(NamedTuple):
    """Entries of a batch that were refused."""

    refused: list[tuple[int, int]]


class Spans(NamedTuple):
    """The spans of an index."""

    spans: list[Span]


class Subscription(NamedTuple):
    """A subscription, with the retained messages owed to it."""

    options: int
    identifier: int
    since: int
    formers: list[tuple[int, int, int]]
    owed: list[tuple[int, bytes]]


class Owed(NamedTuple):
    """The retained messages of one worker behind a topic, owed to a subscription."""

    worker: int
    topic: bytes


class Summary(NamedTuple):
    """The summary of a stretch of the archive."""

    first: int
    blocks: int


class Name(NamedTuple):
    """A topic level named in the head of an archived block."""

    level: bytes


def _part(reach: Reach) -> bytes:
    entries = [(_POSITION, 0), (_POSITION + reach.behind_first, reach.size)]
    before = reach.messages_before, reach.bytes_before, _POSITION - reach.behind_block
    return schema.encode_part(Part(_POSITION, *before, reach.indexes, entries))


def _reach(data: bytes) -> Reach:
    part = schema.decode_part(schema.part_key(1, _POSITION), data)
    (_, (position, size)) = part.entries
    behind = part.first - part.block, position - part.first
    return Reach(*behind, size, part.messages_before, part.bytes_before, part.indexes)


def _apart(each: StoredQueued) -> bytes:
    # the session's record, with the number of the message, and then the message's own record
    data = queued_messages.encode_queued(each)
    at = queued_messages.QUEUED_HEAD.size + len(each.identifiers)
    return bytes((data[0] | schema.OF_ITS_OWN,)) + data[1:at] + schema.U64.pack(each.message.number) + data[at:]


def _together(data: bytes) -> StoredQueued:
    at = queued_messages.QUEUED_HEAD.size + queued_messages.QUEUED_HEAD.unpack_from(data)[2] + schema.U64.size
    queued, own = data[:at], data[at:]
    message = queued_messages.decode_own(own)
    assert queued_messages.message_of(queued) == message.number
    flags, group, identifiers = queued_messages.head_of(queued)
    stored = {queued_messages.message_key(message.number): own}
    whole = queued_messages.decode_queued(queued_messages.whole(queued, stored.get))
    assert whole == StoredQueued(flags, group, identifiers, message)
    return whole


def _subscription(data: bytes) -> Subscription:
    return Subscription(*subscription_schema.decode_subscription(data), subscription_schema.decode_owed(data))


_BITS = bytes(archive_schema.SUMMARY_BITS_BYTES)
_POSITION = 2**40

STORE = [
    MESSAGE,
    _without(_without(MESSAGE, "expires"), "publisher"),
    Form("block", Block([MESSAGE.sample]), lambda each: schema.encode_block(each.messages),
         lambda data: Block(list(schema.decode_block(data))), {"messages": MANY}, "schema.encode_block"),
    Form("part of an index", Reach(1, 2, 3, 4, 5, 6), _part, _reach,
         {"behind_block": U32, "behind_first": U32, "size": U32, "messages_before": U64, "bytes_before": U64,
          "indexes": U32}, "schema.encode_part"),
    Form("spans", Spans([Span(1, 2, 3, 4, 5, 6)]), lambda each: schema.encode_spans(each.spans),
         lambda data: Spans(schema.decode_spans(data)), {"spans": MANY}, "schema.encode_spans"),
    Form("span", Span(1, 2, 3, 4, 5, 6), lambda each: schema.encode_spans([each]),
         lambda data: schema.decode_spans(data)[0], dict.fromkeys(Span._fields, U64), "schema.encode_spans"),
    Form("session", StoredSession(60, 5, "user", 7, 8), session_schema.encode_session, session_schema.decode_session,
         {"expiry_interval": U32, "version": Most(5, 3), "username": U16, "disconnected": U64, "created": U64},
         "session_schema.encode_session"),
    Form("will", StoredWill(1, 2, 3, dataclasses.replace(MESSAGE.sample, number=0)), session_schema.encode_will,
         session_schema.decode_will, {"due": U64, "delay_interval": U32, "expiry_interval": U32, "message": MESSAGE},
         "session_schema.encode_will"),
    Form("queued message", StoredQueued(0x0E, 3, b"\x0b\1", MESSAGE.sample), queued_messages.encode_queued,
         queued_messages.decode_queued, {"flags": 0x1E, "group": U32, "identifiers": IDENTIFIERS, "message": MESSAGE},
         "queued_messages.encode_queued"),
    Form("queued message that is stored once", StoredQueued(0x0E, 3, b"\x0b\1", MESSAGE.sample), _apart, _together,
         {"flags": 0x1E, "group": U32, "identifiers": IDENTIFIERS, "message": MESSAGE}, ""),
    Form("head of a hand-off log", HandoffHead(1, 2), lambda each: link_schema.encode_handoff_head(*each),
         lambda data: HandoffHead(*link_schema.decode_handoff_head(data)), {"stream": U64, "reserved": U64},
         "link_schema.encode_handoff_head"),
    Form("hand-off", Handoff(1, b"part", [b"payload"]), lambda each: link_schema.encode_handoff(*each),
         lambda data: Handoff(*link_schema.decode_handoff(data)),
         {"entries": U32 - 1, "part": PAYLOAD, "payloads": MANY}, "link_schema.encode_handoff"),
    Form("position of a link", Peer(1, 2), lambda each: link_schema.encode_peer(*each),
         lambda data: Peer(*link_schema.decode_peer(data)[:2]), {"stream": U64, "number": U64},
         "link_schema.encode_peer"),
    Form("position of a link within a batch", link_schema.PeerPosition(1, 2, 3, [(1, 2)]),
         lambda each: link_schema.encode_peer(*each[:4]), link_schema.decode_peer,
         {"stream": U64, "number": U64, "taken": Most(U32, 1), "refused": U16, "inside": None}, ""),
    Form("refusals", Refusals([(1, 2)]), lambda each: link_schema.encode_refusals(each.refused),
         lambda data: Refusals(link_schema.decode_refusals(data)), {"refused": Most(U16 + 1, 1)},
         "link_schema.encode_refusals"),
    Form("subscription", Subscription(1, 5, 7, [(1, 2, 3)], [(1, b"topic")]),
         lambda each: subscription_schema.encode_subscription(*each), _subscription,
         {"options": 0x2E, "identifier": 0xFFFFFFF, "since": U64, "formers": MANY, "owed": WORKERS},
         "subscription_schema.encode_subscription"),
    Form("what is owed", Owed(1, b"topic"),
         lambda each: subscription_schema.encode_subscription(0, 0, 0, (), [tuple(each)]),
         lambda data: Owed(*subscription_schema.decode_owed(data)[0]), {"worker": WORKERS - 1, "topic": U16},
         "subscription_schema.encode_subscription"),
    Form("replay", StoredReplay(1, 2, 3, 4, 5, {1: 2}, [6, 7]), replay_schema.encode_replay,
         replay_schema.decode_replay,
         {"options": 0x2E, "identifier": 0xFFFFFFF, "number": U32, "position": U64, "lost": U64, "floors": 256,
          "gone": replay_schema.WORKERS_MAX, "begins": None, "is_read": None, "lost_at": None, "hosts": None},
         "replay_schema.encode_replay"),
    Form("replay of hosts", StoredReplay(1, 2, 3, 4, 0, {1: 2}, [6, 7], 8, True, b"h1",
                                         [StoredHost(b"0123abcd", 1, 2, True, {3: 4}, [5])]),
         replay_schema.encode_replay, replay_schema.decode_replay,
         {"options": 0x2E, "identifier": 0xFFFFFFF, "number": U32, "position": U64, "lost": None,
          "floors": 256, "gone": replay_schema.WORKERS_MAX, "begins": U64, "is_read": 1,
          "lost_at": replay_schema.LOST_BYTES_MAX,
          "hosts": replay_schema.HOSTS_MAX},
         "replay_schema.encode_replay"),
    Form("another host of a replay", StoredHost(b"0123abcd", 1, 2, True, {3: 4}, [5]),
         lambda each: replay_schema.encode_replay(StoredReplay(1, 2, 3, 4, hosts=[each])),
         lambda data: (replay_schema.decode_replay(data).hosts or [])[0],
         {"tag": None, "host": U32, "position": U64, "waits": 1, "floors": 256, "gone": replay_schema.WORKERS_MAX},
         "replay_schema.encode_replay"),
    Form("window", Window(1, [(1, 2, 3, 4)], [1], 5, [(1, 2)], [(1, 2)]), windows.encode_window,
         windows.decode_window,
         {"next_packet_id": U16, "out": U16, "arrived": U16, "cursor": U64, "holes": U16, "absences": U16},
         "windows.encode_window"),
]  # fmt: skip

ARCHIVE = [
    ARCHIVED,
    Form("one record of the archive", ArchivedMessage(MESSAGE.sample, 3),
         lambda each: archive_schema.encode_head(1, 1, 0, 0, None) + archive_schema.encode_record(each),
         lambda data: next(archive_schema.decode_block(data)), {**ARCHIVED.most, "message": None},
         "archive_schema.encode_record"),
    Form("rule", Rule(b"filter", 1, 2, 3, 4, 5, 6),
         lambda each: archive_schema.rule_key(each.topic_filter) + b"|" + archive_schema.encode_rule(each),
         lambda data: archive_schema.decode_rule(data[: -archive_schema.RULE.size - 1],
                                                 data[-archive_schema.RULE.size :]),
         {"topic_filter": U16, "number": archive_schema.RULE_NUMBERS, "place": U16, "age_ms": U64, "bytes_max": U64,
          "since": U64, "changed": U64}, "archive_schema.encode_rule"),
    Form("summary", Summary(1, 2), lambda each: archive_schema.encode_summary(each.first, each.blocks, _BITS),
         lambda data: Summary(*archive_schema.decode_summary(data)[:2]), {"first": U64, "blocks": U32},
         "archive_schema.encode_summary"),
    Form("head of an archived block", BlockHead(1, 2, 3, 4, frozenset((b"level",)), 0),
         lambda each: archive_schema.encode_head(
             each.messages, each.first, each.messages_before, each.bytes_before, list(each.levels)
         ),
         lambda data: archive_schema.decode_head(data)._replace(size=0),
         {"messages": Most(U32, 1), "first": U64, "messages_before": U64, "bytes_before": U64,
          "levels": Most(archive_schema.LEVELS_MAX, cut=True), "size": None}, "archive_schema.encode_head"),
    Form("level in the head of a block", Name(b"level"), lambda each: archive_schema.encode_head(1, 1, 0, 0, [*each]),
         lambda data: Name(*archive_schema.decode_head(data).levels or [b""]),
         {"level": Most(archive_schema.LEVEL_BYTES_MAX, cut=True)}, "archive_schema.encode_head"),
]  # fmt: skip


# ------------------------------------------------------------------------------------------------- the mesh


MESH = [
    Form("entry", Entry(b"topic", b"payload", 7, 1, True, b"\1\1", 9, b"group/filter", True, 5), envelope.encode_entry,
         lambda data: next(envelope.decode_entries(data)),
         {"topic": U16, "payload": PAYLOAD, "number": U64, "qos": 2, "retain": 1, "properties": PROPERTIES,
          "expires": Most(U64, 1), "shared": Most(U16, 1), "insist": 1, "key": U64, "own_frame": None,
          "retained_only": 1, "control": 1}, "envelope.encode_entry"),
    Form("prefix", Prefix(sibling(1), sibling(2), 3, 4),
         lambda each: mesh_messages.pack_prefix(*each) + bytes(mesh_messages.HEAD.size), mesh_messages.unpack_prefix,
         {"sender": U32, "receiver": U32, "sender_incarnation": U64, "receiver_incarnation": U64}, ""),
    Form("head", Head(*range(1, 15)), lambda each: bytes(envelope.PREFIX_BYTES) + mesh_messages.HEAD.pack(*each),
         mesh_messages.unpack_head,
         {"kind": U8, "flags": U8, "refusals": U16, "volatile_bytes": U32, "sequenced_bytes": U32,
          "payloads_volatile": U32, "payloads_sequenced": U32, "frame": U64, "sequence": U64, "received": U64,
          "committed": U64, "acknowledged": U64, "frames_seen": U64, "taken": U64}, ""),
    Form("greeting", Greeting(1, 2, 3, 4), lambda each: mesh_messages.GREETING.pack(*each),
         lambda data: Greeting(*mesh_messages.GREETING.unpack(data)),
         {"stream": U64, "your_stream": U64, "interest": U64, "greeting": U32}, ""),
    Form("change of interest", Change(b"filter", b"group", 1, True, 2, True, 0, 0), interest.encode_change,
         lambda data: next(interest.decode_changes(data)),
         {"filter": U16, "group": Most(U16 - 1, 1), "members": U32, "durable": 1, "online": U32, "full": 1,
          "member": None, "since": None}, "interest.encode_change"),
    Form("change of a member", Change(b"filter", b"group", 1, True, 0, False, 3, 4), interest.encode_change,
         lambda data: next(interest.decode_changes(data)),
         {"filter": U16, "group": Most(U16 - 1, 1), "members": 1, "durable": 1, "online": U32, "full": 1,
          "member": Most(U64, 1), "since": U64}, "interest.encode_change"),
]  # fmt: skip


# ------------------------------------------------------------------------------------- events and counters


def _event_form(kind: events.EventKind) -> Form:
    tables = [(kind.table, dict)] if kind.table else []
    names = [*kind.texts, *(name for name, _ in kind.numbers), *(name for name, _ in tables)]
    record = NamedTuple(f"Said_{kind.name}", [(name, Any) for name in names])  # type: ignore[misc]
    largest = {"B": U8, "H": U16, "I": U32, "Q": U64}
    most: dict[str, Any] = dict.fromkeys(kind.texts, Most(events.TEXT_BYTES_MAX, cut=True))
    most |= {name: largest[code] for name, code in kind.numbers} | {name: MANY for name, _ in tables}

    def encode(each: Any) -> bytes:
        values = list(each)
        table = values.pop().items() if kind.table else ()
        said = events.encode_event(kind, values[: len(kind.texts)], values[len(kind.texts) :], table)
        return schema.U64.pack(0) + said

    def decode(data: bytes) -> Any:
        return record(**events.decode_event(events.event_key(1), data).fields)

    sample = record(*("text" for _ in kind.texts), *(1 for _ in kind.numbers), *({"name": 1} for _ in tables))
    return Form(f"event {kind.name}", sample, encode, decode, most, "events.encode_event")


def _counters_form() -> Form:
    record = NamedTuple("Counters", [(name, int) for name in persisted_counters.FIELDS])  # type: ignore[misc]
    return Form(
        "counters",
        record(*range(len(persisted_counters.FIELDS))),
        lambda each: persisted_counters.encode_counters(each._asdict()),
        lambda data: record(**persisted_counters.decode_counters(data)),
        dict.fromkeys(persisted_counters.FIELDS, U64) | {"number": 2**53 - 1},
        "persisted_counters.encode_counters",
    )


HAPPENED = [_counters_form(), *(_event_form(kind) for kind in events.KINDS if fields_of(_event_form(kind).sample))]
FORMS: Sequence[Form] = (*STORE, *ARCHIVE, *MESH, *HAPPENED)
REFUSALS = (struct.error, ValueError, OverflowError, schema.SchemaError, EnvelopeError)
"""Errors by which an encoder refuses a record that does not fit."""

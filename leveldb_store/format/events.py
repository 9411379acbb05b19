"""Records of events, family E: connections, sessions, subscriptions, drops, counters. docs/store.md has the
table.

Like `leveldb_store.format.schema`, whose family letter this is: nothing here needs the compiled code, a database or the
broker. A record is one event, written once and never changed; the oldest are deleted (`leveldb_store.event_log`).

The key is E and the event's number: a message number (microseconds since 1970 << 8 | worker) of the worker that
recorded it. The value begins with the number of bytes of events recorded before it in that store (keys and values,
deleted ones included), so that the size between two events is a subtraction. Then:

    u8 format, u8 kind, u16 length of each text (NONE: there is none), numbers, texts,
    and, where the kind has a table: u16 rows, per row u8 bytes of its name, name, u64 value

`KINDS` has the texts and numbers of each kind, in the order of their bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from leveldb_store.format.schema import EVENT, U64, SchemaError

FORMAT: Final = 1
NONE: Final = 0xFFFF
TEXT_BYTES_MAX: Final = 1024
"""Longer texts are truncated, between two characters."""
KEY_BYTES: Final = 9
ROW_NAME_BYTES_MAX: Final = 255
ROWS_MAX: Final = 0xFFFF

_HEAD: Final = struct.Struct("<QBB")
_ROWS: Final = struct.Struct("<H")
_ROW: Final = struct.Struct("<B")
_KEY: Final = struct.Struct(">cQ")


@dataclass(frozen=True, slots=True)
class EventKind:
    """A kind of events, with its fields."""

    code: int
    name: str
    texts: tuple[str, ...] = ()
    numbers: tuple[tuple[str, str], ...] = ()
    """(name, its code in `struct`)."""
    table: str = ""
    """Name of its table, if it has one."""

    @property
    def body(self) -> str:
        """Return the format for `struct` of the fields between the bytes before it and its texts."""
        return "<BB" + "H" * len(self.texts) + "".join(code for _, code in self.numbers)


_CLIENT: Final = ("client", "username", "address", "listener")
_MINUTE: Final = ("minute", "Q")

OPENED: Final = EventKind(
    1, "connection_opened", _CLIENT,
    (("version", "B"), ("keep_alive", "H"), ("clean_start", "B"), ("session_present", "B"), ("session_expiry", "I")),
)  # fmt: skip
CLOSED: Final = EventKind(
    2, "connection_closed", (*_CLIENT, "reason"),
    (
        ("version", "B"), ("code", "B"), ("by", "B"), ("milliseconds", "Q"), ("messages_in", "Q"),
        ("messages_out", "Q"), ("bytes_in", "Q"), ("bytes_out", "Q"), ("drops", "Q"),
    ),
)  # fmt: skip
REFUSED: Final = EventKind(3, "connection_refused", (*_CLIENT, "reason"), (("version", "B"), ("code", "B")))
CREATED: Final = EventKind(4, "session_created", ("client", "username"), (("version", "B"), ("session_expiry", "I")))
EXPIRED: Final = EventKind(5, "session_expired", ("client", "username"))
TAKEN_OVER: Final = EventKind(6, "session_taken_over", ("client", "address", "address_before"))
ENDED: Final = EventKind(7, "session_ended", ("client", "username", "reason"))
SUBSCRIBED: Final = EventKind(8, "subscription_made", ("client", "filter"), (("options", "B"), ("identifier", "I")))
UNSUBSCRIBED: Final = EventKind(9, "subscription_removed", ("client", "filter"))
DROPPED: Final = EventKind(10, "messages_dropped", ("client", "reason"), (_MINUTE, ("messages", "Q")))
COUNTERS: Final = EventKind(11, "counters", (), (_MINUTE,), "counters")
TOPICS: Final = EventKind(
    12, "topic_traffic", ("prefix",), (_MINUTE, ("delivered", "Q"), ("dropped", "Q"), ("others", "B"))
)
PUBLISH_TO_ACK: Final = EventKind(
    13, "publish_to_ack", (), (_MINUTE, ("samples", "Q"), ("nanoseconds", "Q")), "up_to_nanoseconds"
)
SUPPRESSED: Final = EventKind(14, "events_suppressed", ("reason",), (), "events")
STARTED: Final = EventKind(15, "worker_started", ("release",), (("incarnation", "Q"), ("workers", "H")))
STOPPED: Final = EventKind(16, "worker_stopped")

BY_NOBODY, BY_CLIENT, BY_BROKER = 0, 1, 2
"""Endings of a connection: it was lost, its client sent DISCONNECT, the broker closed it."""

KINDS: Final = (
    OPENED, CLOSED, REFUSED, CREATED, EXPIRED, TAKEN_OVER, ENDED, SUBSCRIBED, UNSUBSCRIBED, DROPPED, COUNTERS, TOPICS,
    PUBLISH_TO_ACK, SUPPRESSED, STARTED, STOPPED,
)  # fmt: skip
_BODIES: Final = {kind.code: struct.Struct(kind.body) for kind in KINDS}
_BY_CODE: Final = {kind.code: kind for kind in KINDS}


@dataclass(frozen=True, slots=True)
class Event:
    """One decoded record."""

    number: int
    before: int
    """Bytes of events recorded before it in its store."""
    kind: EventKind
    fields: dict[str, Any]
    """Texts (None: there is none), numbers, and the table as a dict, by name."""

    @property
    def microseconds(self) -> int:
        """Return the time of the event, as Unix time."""
        return self.number >> 8

    @property
    def worker(self) -> int:
        """Return the worker that recorded it."""
        return self.number & 0xFF


def event_key(number: int) -> bytes:
    """Return the key of the event with this number."""
    return _KEY.pack(EVENT, number)


def key_number(key: bytes) -> int:
    """Return the number in an event's key; SchemaError if it is invalid."""
    if len(key) != KEY_BYTES or not key.startswith(EVENT):
        raise SchemaError("the key of an event is damaged")
    return int(U64.unpack(key[:0:-1])[0])


def encode_event(
    kind: EventKind, texts: Sequence[str | bytes | None], numbers: Sequence[int], table: Iterable[tuple[str, int]] = ()
) -> bytes:
    """Encode a value without the bytes before it, which only the store knows. Texts given as bytes are UTF-8."""
    lengths, pieces = [], [b""]
    for text in texts:
        if text is None:
            lengths.append(NONE)
            continue
        data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        if len(data) > TEXT_BYTES_MAX:
            data = _cut(data)
        lengths.append(len(data))
        pieces.append(data)
    pieces[0] = _BODIES[kind.code].pack(FORMAT, kind.code, *lengths, *numbers)
    if kind.table:
        rows = [(name.encode(), value) for name, value in table]
        pieces.append(_ROWS.pack(len(rows)))
        for name, value in rows:
            pieces += (_ROW.pack(len(name)), name, U64.pack(value))
    return b"".join(pieces)


def _cut(data: bytes) -> bytes:
    at = TEXT_BYTES_MAX
    while data[at] & 0xC0 == 0x80:  # inside a character [RFC 3629, 3]
        at -= 1
    return data[:at]


def split_event(value: bytes) -> tuple[int, bytes]:
    """Split a value into (bytes of events before it, the rest); SchemaError if it is truncated."""
    if len(value) < _HEAD.size:
        raise SchemaError("an event is cut off")
    return int(U64.unpack_from(value)[0]), value[U64.size :]


def decode_event(key: bytes, value: bytes) -> Event:
    """Decode an event; SchemaError if it is damaged."""
    number = key_number(key)
    before, _ = split_event(value)
    _, form, code = _HEAD.unpack_from(value)
    kind = _BY_CODE.get(code)
    if form != FORMAT or kind is None:
        raise SchemaError(f"an event has format {form} and kind {code}, which are not known")
    body = _BODIES[code]
    at = U64.size + body.size
    if len(value) < at:
        raise SchemaError("an event is cut off")
    _, _, *rest = body.unpack_from(value, U64.size)
    fields: dict[str, Any] = {}
    for name, length in zip(kind.texts, rest, strict=False):
        fields[name] = None
        if length != NONE:
            fields[name] = _text(value, at, length)
            at += length
    for (name, _), given in zip(kind.numbers, rest[len(kind.texts) :], strict=True):
        fields[name] = given
    if kind.table:
        fields[kind.table], at = _decode_table(value, at)
    if at != len(value):
        raise SchemaError(f"an event has {len(value)} bytes instead of {at}")
    return Event(number, before, kind, fields)


def _text(value: bytes, at: int, length: int) -> str:
    data = value[at : at + length]
    if len(data) != length:
        raise SchemaError("an event is cut off")
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise SchemaError(f"a text of an event is damaged: {error}") from None


def _decode_table(value: bytes, at: int) -> tuple[dict[str, int], int]:
    table: dict[str, int] = {}
    try:
        (rows,) = _ROWS.unpack_from(value, at)
        at += _ROWS.size
        for _ in range(rows):
            (length,) = _ROW.unpack_from(value, at)
            name = _text(value, at + _ROW.size, length)
            at += _ROW.size + length
            (table[name],) = U64.unpack_from(value, at)
            at += U64.size
    except struct.error as error:
        raise SchemaError(f"an event is cut off: {error}") from None
    return table, at

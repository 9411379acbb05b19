"""Formats of a store, version 2: all keys, the values of the log and of retained messages, and a plain decoder of
each; the modules beside this one have the other values. docs/store.md has the tables.

Nothing here needs the compiled code, a database or the broker: all readers of a store (tools, tests, other programs)
use this module. On the data path `pyx.storage.entries` packs and unpacks the same bytes; tests compare both with the
same golden bytes.

The first byte of a key names its family, so a family is a range. Integers in keys are big-endian (so that they sort),
integers in values little-endian (so that they can be copied). A position counts the messages logged by one worker, from
1, without a gap; a wall clock time is in milliseconds.

Records of version 1 are read as well: a record whose form has changed shows which form it has, so nothing is converted,
and a store may have records of both. A store is marked with the present version when it is opened for writing; from
then on an older release refuses it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, cast

if TYPE_CHECKING:
    from pyx.core.peer import Peer

VERSION: Final = 2
OLDEST_VERSION: Final = 1
"""The oldest version whose records are read."""

# Keys of single records begin with NUL.
SCHEMA: Final = b"\0schema"  # u32 VERSION
STORE: Final = b"\0store"  # JSON: worker, workers, epoch
POSITION: Final = b"\0position"  # u64: the highest position when blocks were last deleted
COUNTERS: Final = b"\0counters"  # the worker's counters at the last commit: leveldb_store.format.persisted_counters
NUMBER: Final = b"\0number"  # u64: numbers of new messages are higher
EVENTS_DELETED: Final = b"\0events"  # u64: number of the last deleted event

BLOCK: Final = b"B"
NAME: Final = b"F"
PART: Final = b"I"
TRIMMED: Final = b"L"
DROPPED: Final = b"D"
GONE: Final = b"G"
WANTED: Final = b"N"
SESSION: Final = b"S"  # leveldb_store.format.session_schema
SUBSCRIPTION: Final = b"T"  # leveldb_store.format.subscription_schema
WINDOW: Final = b"V"  # leveldb_store.format.windows, as family U
RETAINED: Final = b"R"
WILL: Final = b"W"  # leveldb_store.format.session_schema
HANDOFF: Final = b"H"  # leveldb_store.format.link_schema, as family P
PEER: Final = b"P"
QUEUED: Final = b"Q"  # leveldb_store.format.queued_messages, as family J
MESSAGE: Final = b"J"
# of the archive: leveldb_store.format.archive_schema
ARCHIVED: Final = b"A"
ARCHIVE_RULE: Final = b"C"
ARCHIVE_REMOVED: Final = b"K"
ARCHIVE_SUMMARY: Final = b"M"
EVENT: Final = b"E"  # leveldb_store/format/events.py
REPLAY: Final = b"O"  # leveldb_store.format.replay_schema
SET_ASIDE: Final = b"Z"
WINDOW_PAGE: Final = b"U"

BLOCK_FORMAT: Final = 1
BLOCK_HEAD: Final = struct.Struct("<BI")
PART_HEAD: Final = struct.Struct("<IQQII")
PART_ENTRY: Final = struct.Struct("<II")
ENTRY: Final = struct.Struct("<BHIIQ")
SPAN: Final = struct.Struct("<QQQQQQ")
U16: Final = struct.Struct("<H")
U32: Final = struct.Struct("<I")
U64: Final = struct.Struct("<Q")
_KEY_U32: Final = struct.Struct(">I")
_KEY_U64: Final = struct.Struct(">Q")
_KEY_U8_U32: Final = struct.Struct(">BI")
_OTHER_HOST: Final = 0xFF
"""In keys, a sibling is the u8 of its index; a worker of another host is this and its u32 (pyx.core.peer)."""

# Flags of a stored message: those of a mesh entry that are stored.
QOS: Final = 0x03
RETAIN: Final = 0x04
EXPIRES: Final = 0x08
# Flags of a window's entry and of a queued message: QoS and RETAIN as above, and
SHARED_COPY: Final = 0x08
# of a window's entry: there is a record of family Q
OWN_RECORD: Final = 0x20
# of a queued message: its message has a record of its own, see leveldb_store.format.queued_messages
OF_ITS_OWN: Final = 0x20

FORM_2: Final = 0x80
"""Marks, in the first byte of flags or in the protocol version, a record whose form version 2 has changed."""
_NUMBERS_END: Final = 1 << 61  # microseconds << 8 | worker


class SchemaError(Exception):
    """The bytes are not a valid record of this version."""


def unread_version(version: int) -> str | None:
    """Return None if stores of this version can be read, else the error."""
    if OLDEST_VERSION <= version <= VERSION:
        return None
    return f"schema version {version}, this mqttd reads versions {OLDEST_VERSION} to {VERSION}"


# ---------------------------------------------------------------- keys


# (a partial object of a C function is called without a frame of the interpreter: each tick makes these keys)
block_key: Final[Callable[[int], bytes]] = partial(struct.Struct(">cQ").pack, BLOCK)
"""Return the key of the block whose first message has this position."""

part_key: Final[Callable[[int, int], bytes]] = partial(struct.Struct(">cIQ").pack, PART)
"""Return the key of the part of the index with this number (1st argument) that begins at this position (2nd)."""


def name_key(name: bytes) -> bytes:
    """Return the key of an index's number. `name`: a Topic Filter, or NUL and a client id."""
    return NAME + name


def trimmed_key(number: int) -> bytes:
    """Return the key of the position up to which index `number` was deleted."""
    return TRIMMED + _KEY_U32.pack(number)


def dropped_key(number: int) -> bytes:
    """Return the key of the dropped spans of index `number`."""
    return DROPPED + _KEY_U32.pack(number)


def gone_key(number: int) -> bytes:
    """Return the key that marks index `number` as not needed: the rest of it will be deleted."""
    return GONE + _KEY_U32.pack(number)


def wanted_key(position: int) -> bytes:
    """Return the key of the number of indexes that still need a block."""
    return WANTED + _KEY_U64.pack(position)


def session_key(client_id: str) -> bytes:
    """Return the key of a session."""
    return SESSION + client_id.encode()


def subscription_key(client_id: str, topic_filter: bytes) -> bytes:
    """Return the key of a subscription, `topic_filter` as it was subscribed ($share/... included)."""
    return SUBSCRIPTION + client_id.encode() + b"\0" + topic_filter


def subscriptions_of(client_id: str) -> bytes:
    """Return the prefix of the keys of a session's subscriptions."""
    return SUBSCRIPTION + client_id.encode() + b"\0"


def window_key(client_id: str) -> bytes:
    """Return the key of a session's window."""
    return WINDOW + client_id.encode()


def retained_key(topic: bytes) -> bytes:
    """Return the key of a retained message."""
    return RETAINED + topic


def will_key(client_id: str) -> bytes:
    """Return the key of a client's will."""
    return WILL + client_id.encode()


def _of_peer(peer: Peer) -> bytes:
    return bytes((peer,)) if peer < _OTHER_HOST else _KEY_U8_U32.pack(_OTHER_HOST, peer)


def peer_of_key(key: bytes) -> Peer:
    """Return the peer in a key of the families H and P. Raises SchemaError."""
    try:
        return cast("Peer", key[1] if key[1] != _OTHER_HOST else _KEY_U8_U32.unpack_from(key, 1)[1])
    except (IndexError, struct.error):
        raise SchemaError("a key is cut off within its peer") from None


def handoff_prefix(peer: Peer) -> bytes:
    """Return the prefix of the keys of the hand-off log for a peer."""
    return HANDOFF + _of_peer(peer)


def handoff_key(peer: Peer, sequence: int) -> bytes:
    """Return the key of an entry of the hand-off log for a peer."""
    return handoff_prefix(peer) + _KEY_U64.pack(sequence)


def peer_key(peer: Peer) -> bytes:
    """Return the key of the highest link sequence received from a peer."""
    return PEER + _of_peer(peer)


def refusals_key(peer: Peer, number: int) -> bytes:
    """Return the key of the refused entries of the batch with this number of a peer's stream."""
    return peer_key(peer) + _KEY_U64.pack(number)


def is_refusals(key: bytes) -> bool:
    """Whether a key of family P is that of refusals, and not of a position."""
    return len(key) > len(peer_key(peer_of_key(key)))


def queued_key(client_id: str, number: int) -> bytes:
    """Return the key of a message queued for, or in flight to, one session, which is in no index that it reads."""
    return QUEUED + client_id.encode() + b"\0" + _KEY_U64.pack(number)


def split_queued(key: bytes) -> tuple[str, int]:
    """Split the key of a queued message into (client id, number)."""
    return key[1:-9].decode(), key_position(key)


def set_aside_key(key: bytes) -> bytes:
    """Return the key under which the record `key` is kept if it is unreadable."""
    return SET_ASIDE + key


def key_position(key: bytes) -> int:
    """Return the position in the key of a block, of its count or of a part of an index."""
    return int(_KEY_U64.unpack_from(key, len(key) - 8)[0])


def key_number(key: bytes) -> int:
    """Return the number of an index in a key that has one (families I, L, D, G)."""
    return int(_KEY_U32.unpack_from(key, 1)[0])


def split_subscription(key: bytes) -> tuple[str, bytes]:
    """Split the key into (client id, Topic Filter as subscribed). No client id contains NUL [MQTT-1.5.4-2]."""
    client_id, _, topic_filter = key[1:].partition(b"\0")
    return client_id.decode(), topic_filter


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the first key behind all that begin with `prefix`; None: there is no such key."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else None


# ---------------------------------------------------------------- values


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message in blocks, retained messages and wills."""

    topic: bytes
    payload: bytes
    number: int
    qos: int = 0
    retain: bool = False
    properties: bytes = b""
    """Wire form of MQTT 5, without their length, Topic Alias and Subscription Identifiers."""
    expires: int | None = None
    publisher: str | None = None
    """Client id, for No Local; None: not known here (from a sibling)."""

    @property
    def content_bytes(self) -> int:
        """Return the size by which it counts in queues and indexes."""
        return len(self.topic) + len(self.properties) + len(self.payload)


class Part(NamedTuple):
    """A part: the entries that one tick added to an index."""

    first: int
    messages_before: int
    bytes_before: int
    block: int
    """Position of the first message of the block that has the messages."""
    indexes: int
    """Number of indexes that have a part in that block."""
    entries: list[tuple[int, int]]
    """(position, bytes) of each message."""


class Span(NamedTuple):
    """A dropped range of an index: behind position `after`, up to and including `up_to`.

    With the running counts at both ends (of all entries ever appended), because its parts are deleted.
    """

    after: int
    up_to: int
    messages_after: int
    bytes_after: int
    messages_up_to: int
    bytes_up_to: int


def encode_message(message: StoredMessage) -> bytes:
    """Encode a message: a mesh entry without OWN_FRAME and share group, then u16 length and publisher."""
    flags = message.qos & QOS
    flags |= RETAIN if message.retain else 0
    flags |= EXPIRES if message.expires is not None else 0
    publisher = b"" if message.publisher is None else message.publisher.encode("utf-8", "surrogatepass")
    return b"".join(
        (
            ENTRY.pack(flags, len(message.topic), len(message.properties), len(message.payload), message.number),
            b"" if message.expires is None else U64.pack(message.expires),
            message.topic,
            message.properties,
            message.payload,
            U16.pack(len(publisher)),
            publisher,
        )
    )


def decode_message(data: bytes, at: int = 0) -> tuple[StoredMessage, int]:
    """Decode the message at `at`; return it and the offset of the next. SchemaError if it is truncated."""
    try:
        flags, topic_bytes, property_bytes, payload_bytes, number = ENTRY.unpack_from(data, at)
        at += ENTRY.size
        expires = None
        if flags & EXPIRES:
            (expires,) = U64.unpack_from(data, at)
            at += U64.size
        ends = [at + topic_bytes, at + topic_bytes + property_bytes, at + topic_bytes + property_bytes + payload_bytes]
        (publisher_bytes,) = U16.unpack_from(data, ends[2])
    except struct.error as error:
        raise SchemaError(f"a stored message is cut off: {error}") from None
    end = ends[2] + U16.size + publisher_bytes
    if end > len(data) or flags & ~(QOS | RETAIN | EXPIRES) or flags & QOS == QOS:
        raise SchemaError("a stored message is damaged")
    try:
        publisher = data[ends[2] + U16.size : end].decode("utf-8", "surrogatepass") if publisher_bytes else None
    except UnicodeDecodeError as error:
        raise SchemaError(f"a publisher's client id is damaged: {error}") from None
    message = StoredMessage(
        data[at : ends[0]],
        data[ends[1] : ends[2]],
        number,
        flags & QOS,
        bool(flags & RETAIN),
        data[ends[0] : ends[1]],
        expires,
        publisher,
    )
    return message, end


def encode_block(messages: list[StoredMessage]) -> bytes:
    """Encode the messages of one tick."""
    return BLOCK_HEAD.pack(BLOCK_FORMAT, len(messages)) + b"".join(map(encode_message, messages))


def decode_block(data: bytes) -> Iterator[StoredMessage]:
    """Decode the messages of one tick, their positions rising by one; SchemaError if the block is damaged."""
    if len(data) < BLOCK_HEAD.size:
        raise SchemaError("a block is cut off")
    block_format, count = BLOCK_HEAD.unpack_from(data)
    if block_format != BLOCK_FORMAT:
        raise SchemaError(f"a block has format {block_format}, known is {BLOCK_FORMAT}")
    at = BLOCK_HEAD.size
    for _ in range(count):
        message, at = decode_message(data, at)
        yield message
    if at != len(data):
        raise SchemaError(f"{len(data) - at} bytes follow a block")


def encode_part(part: Part) -> bytes:
    """Encode an index's part; its `first` is in the key."""
    head = PART_HEAD.pack(
        len(part.entries), part.messages_before, part.bytes_before, part.first - part.block, part.indexes
    )
    return head + b"".join(PART_ENTRY.pack(position - part.first, size) for position, size in part.entries)


def decode_part(key: bytes, data: bytes) -> Part:
    """Decode an index's part; SchemaError if it is damaged."""
    first = key_position(key)
    if len(data) < PART_HEAD.size:
        raise SchemaError("a part of an index is cut off")
    count, messages, size, behind_block, indexes = PART_HEAD.unpack_from(data)
    if len(data) != PART_HEAD.size + count * PART_ENTRY.size or not count:
        raise SchemaError(f"a part of an index says {count} messages and has {len(data)} bytes")
    entries = [(first + behind, each) for behind, each in PART_ENTRY.iter_unpack(data[PART_HEAD.size :])]
    return Part(first, messages, size, first - behind_block, indexes, entries)


def encode_spans(spans: list[Span]) -> bytes:
    """Encode the dropped spans of an index, in order."""
    return b"".join(SPAN.pack(*span) for span in spans)


def decode_spans(data: bytes) -> list[Span]:
    """Decode the dropped spans of an index, in order; SchemaError if they are damaged."""
    if len(data) % SPAN.size:
        raise SchemaError("the dropped spans of an index are cut off")
    return [Span(*span) for span in SPAN.iter_unpack(data)]


def decode_u32(data: bytes) -> int:
    """Decode a value of one u32; SchemaError if it is invalid."""
    if len(data) != U32.size:
        raise SchemaError(f"a number has {len(data)} bytes instead of {U32.size}")
    return int(U32.unpack(data)[0])


def decode_number(data: bytes) -> int:
    """Decode a message number; SchemaError if it is invalid, or of an impossible time."""
    number = decode_u64(data)
    if number >= _NUMBERS_END:
        raise SchemaError(f"a message with number {number} is of the year 2255 or later")
    return number


def decode_u64(data: bytes) -> int:
    """Decode a value of one u64; SchemaError if it is invalid."""
    if len(data) != U64.size:
        raise SchemaError(f"a number has {len(data)} bytes instead of {U64.size}")
    return int(U64.unpack(data)[0])


def decode_name(data: bytes, errors: str = "strict") -> str:
    """Decode a name into text; SchemaError if it is damaged."""
    try:
        return data.decode(errors=errors)
    except UnicodeDecodeError as error:
        raise SchemaError(f"a name is damaged: {error}") from None

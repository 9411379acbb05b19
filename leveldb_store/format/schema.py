"""The bytes of a store, version 2: every key, every value, and a plain decoder of each. docs/store.md has the tables.

Nothing here needs the compiled code, a database or the broker: whoever reads a store (tools, tests, other programs)
reads it by this module. On the data path `pyx.storage.records` packs and unpacks the same bytes; tests hold both to the
same golden bytes.

The first byte of a key names its family, so a family is a range. Integers in keys are big-endian (they sort), integers
in values little-endian (they are copied). A position counts what one worker has logged, from 1, without gap; a wall
clock time is in milliseconds.

What version 1 wrote is read as well: a record whose form has changed tells by itself which form it has, so nothing is
converted, and a store has records of both. A store is marked with the present version when it is opened to be written;
from then on an older release refuses it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, cast

if TYPE_CHECKING:
    from pyx.core.peer import Peer

VERSION: Final = 2
OLDEST_VERSION: Final = 1
"""The oldest one whose records are read."""

# Keys that exist once begin with NUL.
SCHEMA: Final = b"\0schema"  # u32 VERSION
STORE: Final = b"\0store"  # JSON: worker, workers, epoch
POSITION: Final = b"\0position"  # u64: the highest position there was when blocks were last deleted
COUNTERS: Final = (
    b"\0counters"  # the worker's counters as they were with the last commit: leveldb_store.format.persisted_counters
)
NUMBER: Final = b"\0number"  # u64: numbers of new messages lie above it
EVENTS_DELETED: Final = b"\0events"  # u64: number of the last event that was deleted

BLOCK: Final = b"B"
NAME: Final = b"F"
PART: Final = b"I"
TRIMMED: Final = b"L"
DROPPED: Final = b"D"
GONE: Final = b"G"
WANTED: Final = b"N"
SESSION: Final = b"S"
SUBSCRIPTION: Final = b"T"
WINDOW: Final = b"V"
RETAINED: Final = b"R"
WILL: Final = b"W"
HANDOFF: Final = b"H"
PEER: Final = b"P"
QUEUED: Final = b"Q"
MESSAGE: Final = b"J"  # leveldb_store.format.queued_messages
# of the archive: leveldb_store.format.archive_schema
ARCHIVED: Final = b"A"
ARCHIVE_RULE: Final = b"C"
ARCHIVE_REMOVED: Final = b"K"
ARCHIVE_SUMMARY: Final = b"M"
EVENT: Final = b"E"  # leveldb_store/format/events.py
REPLAY: Final = b"O"  # leveldb_store.format.replay_schema
SET_ASIDE: Final = b"Z"
WINDOW_PAGE: Final = b"U"  # leveldb_store.format.windows

BLOCK_FORMAT: Final = 1
BLOCK_HEAD: Final = struct.Struct("<BI")
PART_HEAD: Final = struct.Struct("<IQQII")
PART_ENTRY: Final = struct.Struct("<II")
ENTRY: Final = struct.Struct("<BHIIQ")
SPAN: Final = struct.Struct("<QQQQQQ")
HANDOFF_HEAD: Final = struct.Struct("<QQ")
HANDOFF_ENTRY: Final = struct.Struct("<III")
PEER_FORMAT: Final = 2
PEER_HEAD: Final = struct.Struct("<QQH")  # the last is the format; of version 1: how many refusals follow
PEER_REFUSAL: Final = struct.Struct("<QIB")
REFUSED: Final = struct.Struct("<IB")
SESSION_HEAD_1: Final = struct.Struct("<IBQQH")
SESSION_HEAD: Final = struct.Struct("<IBQQI")
QUEUED_HEAD_1: Final = struct.Struct("<BIH")
QUEUED_HEAD: Final = struct.Struct("<BII")
WILL_HEAD: Final = struct.Struct("<QIBI")
U16: Final = struct.Struct("<H")
U32: Final = struct.Struct("<I")
U64: Final = struct.Struct("<Q")
_KEY_U32: Final = struct.Struct(">I")
_KEY_U64: Final = struct.Struct(">Q")
_KEY_U32_U64: Final = struct.Struct(">IQ")
_KEY_U8_U32: Final = struct.Struct(">BI")
_OTHER_HOST: Final = 0xFF
"""In keys, a sibling is the u8 of its index; a worker of another host is this and its u32 (pyx.core.peer)."""

# Flags of a stored message: those of a mesh entry that a store has.
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
"""In the first byte of flags, or in the protocol version, of a record whose form version 2 has changed."""
# "not known" in records of version 1, which so take the longest username and client id for none
_NO_USERNAME_1: Final = 0xFFFF
_NO_PUBLISHER_1: Final = 0xFFFF
_PROTOCOL_VERSIONS: Final = (3, 4, 5)
_NOT_COUNTED: Final = 0xFFFFFFFF
_NUMBERS_END: Final = 1 << 61  # microseconds << 8 | worker


class SchemaError(Exception):
    """These bytes are no record of this version."""


def unread_version(version: int) -> str | None:
    """None if stores of this version are read, else what is wrong: for an error."""
    if OLDEST_VERSION <= version <= VERSION:
        return None
    return f"schema version {version}, this mqttd reads versions {OLDEST_VERSION} to {VERSION}"


# ---------------------------------------------------------------- keys


def block_key(position: int) -> bytes:
    """Key of the block whose first message has this position."""
    return BLOCK + _KEY_U64.pack(position)


def name_key(name: bytes) -> bytes:
    """Key of an index's number. `name`: a Topic Filter, or NUL and a client id."""
    return NAME + name


def part_key(number: int, position: int) -> bytes:
    """Key of the part of index `number` that begins at this position."""
    return PART + _KEY_U32_U64.pack(number, position)


def trimmed_key(number: int) -> bytes:
    """Key of the position up to which index `number` was deleted."""
    return TRIMMED + _KEY_U32.pack(number)


def dropped_key(number: int) -> bytes:
    """Key of the spans of index `number` that nobody needs."""
    return DROPPED + _KEY_U32.pack(number)


def gone_key(number: int) -> bytes:
    """Key that says: nobody needs index `number`, what is left of it is to be deleted."""
    return GONE + _KEY_U32.pack(number)


def wanted_key(position: int) -> bytes:
    """Key of the number of indexes that still need a block."""
    return WANTED + _KEY_U64.pack(position)


def session_key(client_id: str) -> bytes:
    """Key of a session."""
    return SESSION + client_id.encode()


def subscription_key(client_id: str, topic_filter: bytes) -> bytes:
    """Key of a subscription, `topic_filter` as it was subscribed ($share/... included)."""
    return SUBSCRIPTION + client_id.encode() + b"\0" + topic_filter


def subscriptions_of(client_id: str) -> bytes:
    """What the keys of a session's subscriptions begin with."""
    return SUBSCRIPTION + client_id.encode() + b"\0"


def window_key(client_id: str) -> bytes:
    """Key of a session's window."""
    return WINDOW + client_id.encode()


def retained_key(topic: bytes) -> bytes:
    """Key of a retained message."""
    return RETAINED + topic


def will_key(client_id: str) -> bytes:
    """Key of a client's will."""
    return WILL + client_id.encode()


def _of_peer(peer: Peer) -> bytes:
    return bytes((peer,)) if peer < _OTHER_HOST else _KEY_U8_U32.pack(_OTHER_HOST, peer)


def peer_of_key(key: bytes) -> Peer:
    """Of a key of the families H and P. Raises SchemaError."""
    try:
        return cast("Peer", key[1] if key[1] != _OTHER_HOST else _KEY_U8_U32.unpack_from(key, 1)[1])
    except (IndexError, struct.error):
        raise SchemaError("a key is cut off within its peer") from None


def handoff_prefix(peer: Peer) -> bytes:
    """What the keys of the hand-off log for a peer begin with."""
    return HANDOFF + _of_peer(peer)


def handoff_key(peer: Peer, sequence: int) -> bytes:
    """Key of an entry of the hand-off log for a peer."""
    return handoff_prefix(peer) + _KEY_U64.pack(sequence)


def peer_key(peer: Peer) -> bytes:
    """Key of the highest link sequence received of a peer."""
    return PEER + _of_peer(peer)


def refusals_key(peer: Peer, number: int) -> bytes:
    """Key of the entries that were refused of the batch with this number of a peer's stream."""
    return peer_key(peer) + _KEY_U64.pack(number)


def is_refusals(key: bytes) -> bool:
    """Whether a key of family P is that of refusals, and not of a position."""
    return len(key) > len(peer_key(peer_of_key(key)))


def queued_key(client_id: str, number: int) -> bytes:
    """Key of a message that waits or is in flight for one session, and stands in no index it reads."""
    return QUEUED + client_id.encode() + b"\0" + _KEY_U64.pack(number)


def split_queued(key: bytes) -> tuple[str, int]:
    """(client id, number) of the key of a queued message."""
    return key[1:-9].decode(), key_position(key)


def set_aside_key(key: bytes) -> bytes:
    """Where the record `key` is kept when nobody can read it."""
    return SET_ASIDE + key


def key_position(key: bytes) -> int:
    """The position in the key of a block, of its count or of a part of an index."""
    return int(_KEY_U64.unpack_from(key, len(key) - 8)[0])


def key_number(key: bytes) -> int:
    """The number of an index in a key that has one (families I, L, D, G)."""
    return int(_KEY_U32.unpack_from(key, 1)[0])


def split_subscription(key: bytes) -> tuple[str, bytes]:
    """(client id, Topic Filter as subscribed). No client id contains NUL [MQTT-1.5.4-2]."""
    client_id, _, topic_filter = key[1:].partition(b"\0")
    return client_id.decode(), topic_filter


def prefix_end(prefix: bytes) -> bytes | None:
    """The first key behind all that begin with `prefix`, None = none is."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else None


# ---------------------------------------------------------------- values


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as blocks, retained messages and wills have it."""

    topic: bytes
    payload: bytes
    number: int
    qos: int = 0
    retain: bool = False
    properties: bytes = b""
    """Wire form of MQTT 5, without their length, Topic Alias and Subscription Identifiers."""
    expires: int | None = None
    publisher: str | None = None
    """Client id, for No Local; None: not known here (a sibling's)."""

    @property
    def content_bytes(self) -> int:
        """What it counts in queues and indexes."""
        return len(self.topic) + len(self.properties) + len(self.payload)


class Part(NamedTuple):
    """What one tick added to an index."""

    first: int
    messages_before: int
    bytes_before: int
    block: int
    """Position of the first message of the block that has the messages."""
    indexes: int
    """How many indexes have a part in that block."""
    entries: list[tuple[int, int]]
    """(position, bytes) of each message."""


class Span(NamedTuple):
    """A stretch of an index that nobody needs: behind position `after`, up to and with `up_to`.

    With the running counts at both ends (of all that was ever appended), because its parts are deleted.
    """

    after: int
    up_to: int
    messages_after: int
    bytes_after: int
    messages_up_to: int
    bytes_up_to: int


class StoredSession(NamedTuple):
    """A session without its subscriptions, its window and its will."""

    expiry_interval: int
    """Seconds; 0xFFFFFFFF = never."""
    version: int
    """3, 4 or 5: of the last connection."""
    username: str | None
    disconnected: int
    """Unix time in ms; 0 = it was connected."""
    created: int
    """Unix time in ms."""


class StoredWill(NamedTuple):
    """The will of a client."""

    due: int
    """Unix time in ms; 0 = its client was connected."""
    delay_interval: int
    """Seconds."""
    expiry_interval: int | None
    """Message Expiry Interval in seconds, which counts from the publication; None = none."""
    message: StoredMessage
    """`number` and `expires` are those of its publication, here 0 and None."""


class StoredQueued(NamedTuple):
    """A message of one session."""

    flags: int
    group: int
    """Number of its share group."""
    identifiers: bytes
    """Subscription Identifiers as properties."""
    message: StoredMessage


def encode_message(message: StoredMessage) -> bytes:
    """A mesh entry without OWN_FRAME and share group, then u16 length and publisher."""
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
    """The message at `at` and where the next one begins; SchemaError if it is cut off."""
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
    """The messages of one tick."""
    return BLOCK_HEAD.pack(BLOCK_FORMAT, len(messages)) + b"".join(map(encode_message, messages))


def decode_block(data: bytes) -> Iterator[StoredMessage]:
    """The messages of one tick, their positions rising by one; SchemaError if the block is damaged."""
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
    """Value of an index's part; its `first` is in the key."""
    head = PART_HEAD.pack(
        len(part.entries), part.messages_before, part.bytes_before, part.first - part.block, part.indexes
    )
    return head + b"".join(PART_ENTRY.pack(position - part.first, size) for position, size in part.entries)


def decode_part(key: bytes, data: bytes) -> Part:
    """An index's part; SchemaError if it is damaged."""
    first = key_position(key)
    if len(data) < PART_HEAD.size:
        raise SchemaError("a part of an index is cut off")
    count, messages, size, behind_block, indexes = PART_HEAD.unpack_from(data)
    if len(data) != PART_HEAD.size + count * PART_ENTRY.size or not count:
        raise SchemaError(f"a part of an index says {count} messages and has {len(data)} bytes")
    entries = [(first + behind, each) for behind, each in PART_ENTRY.iter_unpack(data[PART_HEAD.size :])]
    return Part(first, messages, size, first - behind_block, indexes, entries)


def encode_session(session: StoredSession) -> bytes:
    """Value of a session."""
    username = b"" if session.username is None else session.username.encode()
    length = 0 if session.username is None else len(username) + 1
    version = session.version | FORM_2
    return SESSION_HEAD.pack(session.expiry_interval, version, session.disconnected, session.created, length) + username


def decode_session(data: bytes) -> StoredSession:
    """A session; SchemaError if it is damaged."""
    is_new = len(data) > U32.size and bool(data[U32.size] & FORM_2)
    head = SESSION_HEAD if is_new else SESSION_HEAD_1
    if len(data) < head.size:
        raise SchemaError("a session is cut off")
    expiry, version, disconnected, created, length = head.unpack_from(data)
    if is_new:
        length = None if length == 0 else length - 1
    elif length == _NO_USERNAME_1:
        # of version 1: none, or as long as this says
        length = None if len(data) == head.size else length
    username = data[head.size :]
    if len(username) != (length or 0) or version & ~FORM_2 not in _PROTOCOL_VERSIONS:
        raise SchemaError("a session is damaged")
    return StoredSession(expiry, version & ~FORM_2, None if length is None else _text(username), disconnected, created)


def encode_will(will: StoredWill) -> bytes:
    """Value of a will."""
    expiry = will.expiry_interval
    head = WILL_HEAD.pack(will.due, will.delay_interval, expiry is not None, expiry or 0)
    return head + encode_message(will.message)


def decode_will(data: bytes) -> StoredWill:
    """A will; SchemaError if it is damaged."""
    if len(data) < WILL_HEAD.size:
        raise SchemaError("a will is cut off")
    due, delay, expires, expiry = WILL_HEAD.unpack_from(data)
    message, end = decode_message(data, WILL_HEAD.size)
    if end != len(data) or expires > 1:
        raise SchemaError("a will is damaged")
    return StoredWill(due, delay, expiry if expires else None, message)


def _text(data: bytes, errors: str = "strict") -> str:
    try:
        return data.decode(errors=errors)
    except UnicodeDecodeError as error:
        raise SchemaError(f"a name is damaged: {error}") from None


def encode_queued(queued: StoredQueued) -> bytes:
    """Value of a message of one session; SchemaError if its flags are those of a form.

    One that has its message in another record is made by `pyx.delivery.windows` alone.
    """
    if queued.flags & (FORM_2 | OF_ITS_OWN):
        raise SchemaError(f"a queued message has flags {queued.flags:#x}")
    message = queued.message
    entry = encode_message(replace(message, publisher=None))[: -U16.size]
    publisher = U32.pack(0)
    if message.publisher is not None:
        name = message.publisher.encode("utf-8", "surrogatepass")
        publisher = U32.pack(len(name) + 1) + name
    head = QUEUED_HEAD.pack(queued.flags | FORM_2, queued.group, len(queued.identifiers))
    return b"".join((head, queued.identifiers, entry, publisher))


def decode_queued(data: bytes) -> StoredQueued:
    """A message of one session; SchemaError if it is damaged."""
    is_new = bool(data[:1] and data[0] & FORM_2)
    head = QUEUED_HEAD if is_new else QUEUED_HEAD_1
    if len(data) < head.size:
        raise SchemaError("a queued message is cut off")
    flags, group, length = head.unpack_from(data)
    if is_new and flags & OF_ITS_OWN:
        raise SchemaError("a queued message has its message in another record, or is damaged")
    at = head.size + length
    # a stored message says by no publisher what has a length of its own here: not known
    end = at + _entry_bytes(data, at)
    publisher = data[end + (U32 if is_new else U16).size :]
    if len(data) < end + (U32 if is_new else U16).size:
        raise SchemaError("a queued message is cut off")
    said = int((U32 if is_new else U16).unpack_from(data, end)[0])
    if is_new:
        said = max(said - 1, 0)
    elif said == _NO_PUBLISHER_1 and not publisher:
        said = 0
    message, _ = decode_message(data[:end] + U16.pack(0), at)
    if len(publisher) != said or flags & QOS == QOS:
        raise SchemaError("a queued message is damaged")
    if publisher:
        message = replace(message, publisher=_text(publisher, "surrogatepass"))
    return StoredQueued(flags & ~FORM_2, group, data[head.size : at], message)


def _entry_bytes(data: bytes, at: int) -> int:
    try:
        flags, topic_bytes, property_bytes, payload_bytes, _ = ENTRY.unpack_from(data, at)
    except struct.error as error:
        raise SchemaError(f"a queued message is cut off: {error}") from None
    return int(ENTRY.size + (U64.size if flags & EXPIRES else 0) + topic_bytes + property_bytes + payload_bytes)


def encode_handoff_head(stream: int, reserved: int) -> bytes:
    """Value of sequence 0 of a hand-off log: the number of the stream, and where its next incarnation goes on."""
    return HANDOFF_HEAD.pack(stream, reserved)


def decode_handoff_head(data: bytes) -> tuple[int, int]:
    """(stream, reserved); SchemaError if it is damaged."""
    if len(data) != HANDOFF_HEAD.size:
        raise SchemaError(f"the head of a hand-off log has {len(data)} bytes instead of {HANDOFF_HEAD.size}")
    stream, reserved = HANDOFF_HEAD.unpack(data)
    return stream, reserved


def encode_handoff(entries: int, part: bytes, payloads: list[bytes]) -> bytes:
    """A batch for a peer: how many entries it has (-1 = not counted), packed, and the payloads that travel beside.

    SchemaError for as many entries as say that they are not counted.
    """
    if entries >= _NOT_COUNTED:
        raise SchemaError(f"a batch of {entries} entries")
    counted = _NOT_COUNTED if entries < 0 else entries
    pieces = [HANDOFF_ENTRY.pack(counted, len(part), len(payloads)), part]
    for payload in payloads:
        pieces += (U32.pack(len(payload)), payload)
    return b"".join(pieces)


def decode_handoff(data: bytes) -> tuple[int, bytes, list[bytes]]:
    """(entries, part, payloads); SchemaError if it is damaged."""
    try:
        entries, part_bytes, count = HANDOFF_ENTRY.unpack_from(data)
        at = HANDOFF_ENTRY.size + part_bytes
        part, payloads = data[HANDOFF_ENTRY.size : at], []
        for _ in range(count):
            (size,) = U32.unpack_from(data, at)
            at += U32.size + size
            payloads.append(data[at - size : at])
    except struct.error as error:
        raise SchemaError(f"an entry of a hand-off log is cut off: {error}") from None
    if at != len(data):
        raise SchemaError("an entry of a hand-off log is damaged")
    return -1 if entries == _NOT_COUNTED else entries, part, payloads


class PeerPosition(NamedTuple):
    """What was taken of a peer's stream."""

    stream: int
    number: int
    """Of the last batch that was taken in whole."""
    taken: int = 0
    """Entries of the next one that were taken, too."""
    refused: Sequence[tuple[int, int]] = ()
    """(position, reason) of those of them that were refused."""
    inside: Sequence[tuple[int, int, int]] = ()
    """As version 1 has it: (number, position, reason) of entries refused of which the peer may not know yet; since
    version 2 they are records of their own (`decode_refusals`)."""


def encode_peer(stream: int, number: int, taken: int = 0, refused: Sequence[tuple[int, int]] = ()) -> bytes:
    """See PeerPosition."""
    head = PEER_HEAD.pack(stream, number, PEER_FORMAT)
    return head + U32.pack(taken) + encode_refusals(refused) if taken else head


def decode_peer(data: bytes) -> PeerPosition:
    """SchemaError if it is damaged."""
    if len(data) < PEER_HEAD.size:
        raise SchemaError("a link's position is cut off")
    stream, number, count = PEER_HEAD.unpack_from(data)
    rest = data[PEER_HEAD.size :]
    if count == PEER_FORMAT and len(rest) != count * PEER_REFUSAL.size:  # no entries taken and refused are so long
        if not rest:
            return PeerPosition(stream, number)
        if len(rest) < U32.size:
            raise SchemaError("a link's position is cut off")
        refused = decode_refusals(rest[U32.size :]) if len(rest) > U32.size else []
        return PeerPosition(stream, number, U32.unpack_from(rest)[0], refused)
    if len(rest) != count * PEER_REFUSAL.size:
        raise SchemaError(f"a link's position says {count} refusals and has {len(data)} bytes")
    return PeerPosition(stream, number, inside=[(a, b, c) for a, b, c in PEER_REFUSAL.iter_unpack(rest)])


def encode_refusals(refused: Iterable[tuple[int, int]]) -> bytes:
    """(position, reason) of the entries refused of a batch of which the peer may not know yet."""
    return b"".join(REFUSED.pack(*each) for each in refused)


def decode_refusals(data: bytes) -> list[tuple[int, int]]:
    """[(position, reason)]; SchemaError if it is damaged."""
    if not data or len(data) % REFUSED.size:
        raise SchemaError(f"the refusals of a batch have {len(data)} bytes")
    return [(position, reason) for position, reason in REFUSED.iter_unpack(data)]


def encode_spans(spans: list[Span]) -> bytes:
    """The spans of an index that nobody needs, rising."""
    return b"".join(SPAN.pack(*span) for span in spans)


def decode_spans(data: bytes) -> list[Span]:
    """The spans of an index that nobody needs, rising; SchemaError if they are damaged."""
    if len(data) % SPAN.size:
        raise SchemaError("the dropped spans of an index are cut off")
    return [Span(*span) for span in SPAN.iter_unpack(data)]


def decode_u32(data: bytes) -> int:
    """A value that is one u32; SchemaError if it is not."""
    if len(data) != U32.size:
        raise SchemaError(f"a number has {len(data)} bytes instead of {U32.size}")
    return int(U32.unpack(data)[0])


def decode_number(data: bytes) -> int:
    """A value that is the number of a message; SchemaError if it is not, or of a time that no clock says."""
    number = decode_u64(data)
    if number >= _NUMBERS_END:
        raise SchemaError(f"a message with number {number} is of the year 2255 or later")
    return number


def decode_u64(data: bytes) -> int:
    """A value that is one u64; SchemaError if it is not."""
    if len(data) != U64.size:
        raise SchemaError(f"a number has {len(data)} bytes instead of {U64.size}")
    return int(U64.unpack(data)[0])

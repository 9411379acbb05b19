"""Wire format of the mesh, version 2: messages between peers, and the entries in them (little-endian throughout).

A message is a list of frames (one ZeroMQ multipart message):

    frame 0     prefix | head | refusals | greeting (HELLO, WELCOME) | volatile part | sequenced part
    frames 1..  a part of more than INLINE_BYTES_MAX bytes has a frame of its own (see the flags),
                then the payload frames, those of volatile entries first, each in the order of its entries

    prefix      u8 magic | u8 version | u16 your stream (its low bits) | u32 sender | u32 receiver
                | u64 sender incarnation | u64 receiver incarnation
    head        u8 kind | u8 flags | u16 refusals | u32 volatile bytes | u32 sequenced bytes
                | u32 volatile payload frames | u32 sequenced payload frames
                | u64 frame | u64 sequence | u64 received | u64 committed | u64 acknowledged
                | u64 frames seen | u64 taken
    refusal     u64 sequence | u32 position | u8 reason
    sender, receiver: peers (pyx.core.peer); within a host the index of a worker
    greeting    u64 stream | u64 your stream | u64 interest | u32 greeting

Two releases can talk to each other: a greeting (HELLO, WELCOME) is the same in all versions, and states the versions
that its sender speaks in the field `volatile bytes`, because it has no such part: u8 oldest | u8 newest. Everything
else is in the newest version that both speak. 0: a release without this field, which speaks version 2.

The prefix is the same for every message between two incarnations: a receiver compares it as a whole (magic, version,
peers, incarnations) instead of parsing it. Every message has the whole state of the opposite direction, so any one of
them acknowledges everything; zmq_mesh.links explains the numbers.

An entry is one PUBLISH for a peer; `pyx.storage.entries` packs and unpacks entries on the data path. The decoder here
is for tools and tests; tests compare both with the same golden bytes:

    entry       u8 flags | u16 topic bytes | u32 property bytes | u32 payload bytes | u64 message number
                | u64 expires, if EXPIRES (milliseconds, wall clock)
                | u8 insist | u64 key | u16 bytes | b"group/filter", if SHARED: the share group for which this worker
                  was chosen; insist = 1: no member is online anywhere, so it waits here; key: by which hash_topic and
                  hash_client choose the member, 0 for the other strategies
                | topic | properties (wire form of MQTT 5, without their length) | payload, unless OWN_FRAME

An entry with CONTROL is not a PUBLISH. One with the topic b"^" names the publisher of the next entry, which is to be
retained: the owner needs it for No Local.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

from pyx.core.peer import Peer
from pyx.mesh.contract import Buffer, EnvelopeError

MAGIC: Final = 0xB5
VERSION: Final = 2
OLDEST_VERSION: Final = 2
"""Each release also speaks the version of the one before it."""
VERSION_OF_GREETINGS: Final = 2
VERSION_AT: Final = 1
"""Its offset in a prefix."""
_NOT_SAID: Final = (2, 2)
# Up to this size a part is copied behind the head, without a frame of its own. Measured, CPU of both processes with
# all threads, inline / own frame copied / own frame by reference: 8 KB 24 / 27 / 37 us, 16 KB 29 / 31 / 48, 32 KB 52 /
# 52 / 59, 64 KB 70 / 97 / 76, 256 KB 297 / 241 / 167.
INLINE_BYTES_MAX: Final = 32 * 1024


class Kind(IntEnum):
    """The purpose of a message."""

    HELLO = 1
    WELCOME = 2
    ACK = 3  # acks, heartbeat
    BATCH = 4
    INTEREST = 5
    SKIP = 6  # fills a number of the stream whose content is obsolete


# Members of an IntEnum are slower than ints, and these are used for each batch.
HELLO: Final = int(Kind.HELLO)
WELCOME: Final = int(Kind.WELCOME)
ACK: Final = int(Kind.ACK)
BATCH: Final = int(Kind.BATCH)
INTEREST: Final = int(Kind.INTEREST)
SKIP: Final = int(Kind.SKIP)


class Refusal(IntEnum):
    """Why the peer refused one entry of a batch (or the link a whole batch)."""

    NO_MEMBER = 1
    STORE_FULL = 2
    HANDOFF_FULL = 3
    OFFLINE = 4  # the group has members here, and all of them are offline


# Flags of a message.
SEQUENCED: Final = 0x01  # `sequence` is this message's own; otherwise it is the highest one sent so far
GAP: Final = 0x02  # something before the highest sequence is missing here: send again after `received`
VOLATILE_FRAME: Final = 0x04
SEQUENCED_FRAME: Final = 0x08
SNAPSHOT: Final = 0x10  # INTEREST: (a part of) a snapshot, not a delta
LAST: Final = 0x20  # INTEREST: the last message of this number
MORE: Final = 0x40  # frames follow this one (cheaper to read than the socket's own flag)

# Flags of an entry.
QOS: Final = 0x03
RETAIN: Final = 0x04
EXPIRES: Final = 0x08
SHARED: Final = 0x10
OWN_FRAME: Final = 0x20
RETAINED_ONLY: Final = 0x40
CONTROL: Final = 0x80  # not a message: information for the broker of the peer
PUBLISHER: Final = b"^"  # topic of a CONTROL entry: its payload is the client id of the next entry's publisher

PREFIX: Final = struct.Struct("<BBHIIQQ")
HEAD: Final = struct.Struct("<BBHIIIIQQQQQQQ")
REFUSAL: Final = struct.Struct("<QIB")
GREETING: Final = struct.Struct("<QQQI")
ENTRY: Final = struct.Struct("<BHIIQ")
CHOICE: Final = struct.Struct("<BQH")
U64: Final = struct.Struct("<Q")
_U64: Final = struct.Struct("<Q")

PREFIX_BYTES: Final = PREFIX.size
HEAD_END: Final = PREFIX.size + HEAD.size


class Prefix(NamedTuple):
    """The two ends of a message; incarnation 0 of the receiver = not known to the sender."""

    sender: Peer
    receiver: Peer
    sender_incarnation: int
    receiver_incarnation: int


class Head(NamedTuple):
    """The fixed part of a message after its prefix, in wire order."""

    kind: int
    flags: int
    refusals: int
    volatile_bytes: int
    sequenced_bytes: int
    payloads_volatile: int
    payloads_sequenced: int
    frame: int
    sequence: int
    received: int
    committed: int
    acknowledged: int
    frames_seen: int
    taken: int


class Greeting(NamedTuple):
    """The additional fields of HELLO and WELCOME.

    stream: identity of the numbering of the sender's stream. your_stream: the receiver's stream to which `received` of
    the head refers, 0 = none known. interest: present number of the sender's interest table. greeting: number of a
    HELLO; a WELCOME repeats the one that it answers.
    """

    stream: int
    your_stream: int
    interest: int
    greeting: int


def pack_versions(oldest: int, newest: int) -> int:
    """Return the versions as a greeting's `volatile bytes`."""
    return oldest | newest << 8


def unpack_versions(said: int) -> tuple[int, int]:
    """Return (oldest, newest) that the sender of a greeting speaks."""
    return (said & 0xFF, said >> 8 & 0xFF) if said else _NOT_SAID


def pack_prefix(
    sender: Peer,
    receiver: Peer,
    sender_incarnation: int,
    receiver_incarnation: int,
    your_stream: int = 0,
    version: int = VERSION_OF_GREETINGS,
) -> bytes:
    """Return the first PREFIX_BYTES bytes of every message between two incarnations, or of their greetings.

    your_stream: the receiver's stream to which the acks refer: a receiver with a new numbering refuses acks of the old
    one.
    """
    return PREFIX.pack(MAGIC, version, your_stream & 0xFFFF, sender, receiver, sender_incarnation, receiver_incarnation)


def unpack_prefix(frame: Buffer) -> Prefix:
    """Return the two ends of a message of any version. Raises EnvelopeError when the frame is too short for a message
    or not ours.
    """
    if len(frame) < HEAD_END:
        raise EnvelopeError(f"{len(frame)} bytes are too few for a mesh message")
    magic, version, _, sender, receiver, sender_incarnation, receiver_incarnation = PREFIX.unpack_from(frame)
    if magic != MAGIC or version < OLDEST_VERSION:
        raise EnvelopeError(f"mesh message of magic {magic:#x}, version {version}; here {MAGIC:#x}, {VERSION}")
    return Prefix(sender, receiver, sender_incarnation, receiver_incarnation)


def unpack_head(frame: Buffer) -> Head:
    """Unpack the head; the caller has checked that the frame has HEAD_END bytes."""
    return Head._make(HEAD.unpack_from(frame, PREFIX_BYTES))


def split_parts(
    first: Buffer,
    frames: Sequence[Any],
    at: int,
    flags: int,
    volatile_bytes: int,
    sequenced_bytes: int,
    payloads: int,
) -> tuple[memoryview | None, memoryview | None, int]:
    """Return (volatile part, sequenced part, index of the first payload frame); EnvelopeError if the head disagrees."""
    index = 1
    volatile: memoryview | None = None
    sequenced: memoryview | None = None
    view = memoryview(first)
    if len(frames) != 1 + (flags & VOLATILE_FRAME != 0) + (flags & SEQUENCED_FRAME != 0) + payloads:
        raise EnvelopeError(f"{len(frames)} frames: not what the head says")
    if flags & VOLATILE_FRAME:
        volatile = memoryview(frames[1])
        index = 2
    elif volatile_bytes:
        volatile = view[at : at + volatile_bytes]
        at += volatile_bytes
    if flags & SEQUENCED_FRAME:
        sequenced = memoryview(frames[index])
        index += 1
    elif sequenced_bytes:
        sequenced = view[at : at + sequenced_bytes]
        at += sequenced_bytes
    if (
        at != len(first)
        or (volatile is not None and len(volatile) != volatile_bytes)
        or (sequenced is not None and len(sequenced) != sequenced_bytes)
    ):
        raise EnvelopeError(f"parts of {volatile_bytes} and {sequenced_bytes} bytes in a first frame of {len(first)}")
    return volatile, sequenced, index


@dataclass(frozen=True, slots=True)
class Entry:
    """One PUBLISH between peers.

    number: the message number (microseconds << 8 | worker). expires: milliseconds since the epoch, None = never.
    shared: b"group/filter" of the share group for which the receiver was chosen, or None; insist: it must queue the
    message when no member is online; key: for the strategies hash_topic and hash_client. properties: wire form without
    their length.
    """

    topic: bytes
    payload: bytes
    number: int
    qos: int = 0
    retain: bool = False
    properties: bytes = b""
    expires: int | None = None
    shared: bytes | None = None
    insist: bool = False
    key: int = 0
    own_frame: bool = False
    retained_only: bool = False
    control: bool = False
    """Not a message, but information for the broker of the peer."""


def encode_entry(entry: Entry) -> bytes:
    """Encode an entry; with own_frame the payload is left out: it is the next payload frame."""
    flags = entry.qos & QOS
    flags |= RETAIN if entry.retain else 0
    flags |= EXPIRES if entry.expires is not None else 0
    flags |= SHARED if entry.shared is not None else 0
    flags |= OWN_FRAME if entry.own_frame else 0
    flags |= RETAINED_ONLY if entry.retained_only else 0
    flags |= CONTROL if entry.control else 0
    parts = [ENTRY.pack(flags, len(entry.topic), len(entry.properties), len(entry.payload), entry.number)]
    if entry.expires is not None:
        parts.append(_U64.pack(entry.expires))
    if entry.shared is not None:
        parts += (CHOICE.pack(entry.insist, entry.key, len(entry.shared)), entry.shared)
    parts += (entry.topic, entry.properties)
    if not entry.own_frame:
        parts.append(entry.payload)
    return b"".join(parts)


def encode_entries(entries: Iterable[Entry]) -> tuple[bytes, list[bytes]]:
    """Return a part and its payload frames."""
    parts: list[bytes] = []
    frames: list[bytes] = []
    for entry in entries:
        parts.append(encode_entry(entry))
        if entry.own_frame:
            frames.append(entry.payload)
    return b"".join(parts), frames


def _walk(part: Buffer) -> Iterator[tuple[int, int, int]]:
    """Yield (start, start of the topic, end) of each entry; EnvelopeError where the bytes end early."""
    at, size = 0, len(part)
    while at < size:
        if size - at < ENTRY.size:
            raise EnvelopeError(f"entry at {at}: its head is cut off")
        flags, topic_bytes, property_bytes, payload_bytes, _ = ENTRY.unpack_from(part, at)
        body = at + ENTRY.size + (8 if flags & EXPIRES else 0)
        if flags & SHARED:
            if body + CHOICE.size > size:
                raise EnvelopeError(f"entry at {at}: its share group is cut off")
            body += CHOICE.size + CHOICE.unpack_from(part, body)[2]
        end = body + topic_bytes + property_bytes + (0 if flags & OWN_FRAME else payload_bytes)
        if end > size:
            raise EnvelopeError(f"entry at {at}: {end - size} bytes are missing")
        yield at, body, end
        at = end


def count_entries(part: Buffer | None) -> int:
    """Return the number of entries of a part (for counters on rare paths; the data path knows it)."""
    return 0 if part is None else sum(1 for _ in _walk(part))


def decode_entries(part: Buffer, frames: Sequence[Buffer] = ()) -> Iterator[Entry]:
    """Decode the entries of a part; `frames` are its payload frames, of which each entry with OWN_FRAME takes the next.

    Raises EnvelopeError for bytes that end early, for a payload frame that is missing, left over or of the wrong size.
    """
    part = memoryview(part)
    taken = 0
    for at, body, _ in _walk(part):
        flags, topic_bytes, property_bytes, payload_bytes, number = ENTRY.unpack_from(part, at)
        head = at + ENTRY.size
        expires: int | None = None
        if flags & EXPIRES:
            expires = _U64.unpack_from(part, head)[0]
            head += 8
        shared: bytes | None = None
        insist = key = 0
        if flags & SHARED:
            insist, key, _ = CHOICE.unpack_from(part, head)
            shared = bytes(part[head + CHOICE.size : body])
        topic_end = body + topic_bytes
        payload_at = topic_end + property_bytes
        if flags & OWN_FRAME:
            if taken == len(frames) or len(frames[taken]) != payload_bytes:
                raise EnvelopeError(f"entry at {at}: payload frame {taken} is missing or not of {payload_bytes} bytes")
            payload = bytes(frames[taken])
            taken += 1
        else:
            payload = bytes(part[payload_at : payload_at + payload_bytes])
        yield Entry(
            topic=bytes(part[body:topic_end]),
            payload=payload,
            number=number,
            qos=flags & QOS,
            retain=bool(flags & RETAIN),
            properties=bytes(part[topic_end:payload_at]),
            expires=expires,
            shared=shared,
            insist=bool(insist),
            key=key,
            own_frame=bool(flags & OWN_FRAME),
            retained_only=bool(flags & RETAINED_ONLY),
            control=bool(flags & CONTROL),
        )
    if taken != len(frames):
        raise EnvelopeError(f"{len(frames) - taken} payload frames belong to no entry")

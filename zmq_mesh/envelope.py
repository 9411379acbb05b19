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
them acknowledges everything; pyx.mesh.link explains the numbers.

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
from typing import Final

from pyx.mesh.contract import Buffer, EnvelopeError

VERSION: Final = 2
OLDEST_VERSION: Final = 2
"""Each release also speaks the version of the one before it."""


class Refusal(IntEnum):
    """Why the peer refused one entry of a batch (or the link a whole batch)."""

    NO_MEMBER = 1
    STORE_FULL = 2
    HANDOFF_FULL = 3
    OFFLINE = 4  # the group has members here, and all of them are offline


# Of a message, as the transports see it.
PREFIX_BYTES: Final = 28
MORE: Final = 0x40  # flag: frames follow this one (cheaper to read than the socket's own)

# Flags of an entry.
QOS: Final = 0x03
RETAIN: Final = 0x04
EXPIRES: Final = 0x08
SHARED: Final = 0x10
OWN_FRAME: Final = 0x20
RETAINED_ONLY: Final = 0x40
CONTROL: Final = 0x80  # not a message: information for the broker of the peer
PUBLISHER: Final = b"^"  # topic of a CONTROL entry: its payload is the client id of the next entry's publisher

ENTRY: Final = struct.Struct("<BHIIQ")
CHOICE: Final = struct.Struct("<BQH")
_U64: Final = struct.Struct("<Q")


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

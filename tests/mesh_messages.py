"""Messages of the mesh as `zmq_mesh.envelope` describes them, packed and unpacked in Python: tests compare this with
the compiled links, and say with it what a peer would say.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from pyx.core.peer import Peer
from pyx.mesh.contract import Buffer, EnvelopeError
from zmq_mesh.envelope import OLDEST_VERSION, PREFIX_BYTES, VERSION

MAGIC: Final = 0xB5
VERSION_OF_GREETINGS: Final = 2
VERSION_AT: Final = 1
"""Its offset in a prefix."""
_NOT_SAID: Final = (2, 2)
INLINE_BYTES_MAX: Final = 32 * 1024
"""Up to this size a part is copied behind the head, without a frame of its own."""


class Kind(IntEnum):
    """The purpose of a message."""

    HELLO = 1
    WELCOME = 2
    ACK = 3  # acks, heartbeat
    BATCH = 4
    INTEREST = 5
    SKIP = 6  # fills a number of the stream whose content is obsolete


HELLO: Final = int(Kind.HELLO)
WELCOME: Final = int(Kind.WELCOME)
ACK: Final = int(Kind.ACK)
BATCH: Final = int(Kind.BATCH)
INTEREST: Final = int(Kind.INTEREST)
SKIP: Final = int(Kind.SKIP)

# Flags of a message.
SEQUENCED: Final = 0x01  # `sequence` is this message's own; otherwise it is the highest one sent so far
GAP: Final = 0x02  # something before the highest sequence is missing here: send again after `received`
VOLATILE_FRAME: Final = 0x04
SEQUENCED_FRAME: Final = 0x08
SNAPSHOT: Final = 0x10  # INTEREST: (a part of) a snapshot, not a delta
LAST: Final = 0x20  # INTEREST: the last message of this number

PREFIX: Final = struct.Struct("<BBHIIQQ")
HEAD: Final = struct.Struct("<BBHIIIIQQQQQQQ")
REFUSAL: Final = struct.Struct("<QIB")
GREETING: Final = struct.Struct("<QQQI")
U64: Final = struct.Struct("<Q")
HEAD_END: Final = PREFIX.size + HEAD.size
assert PREFIX.size == PREFIX_BYTES


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

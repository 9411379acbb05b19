"""Values of a store's records about links, families H and P (`leveldb_store.format.schema` has the keys).

Importable without the compiled code, like that.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from leveldb_store.format.schema import U32, SchemaError

HANDOFF_HEAD: Final = struct.Struct("<QQ")
HANDOFF_ENTRY: Final = struct.Struct("<III")
PEER_FORMAT: Final = 2
PEER_HEAD: Final = struct.Struct("<QQH")  # the last is the format; in version 1 the number of refusals that follow
PEER_REFUSAL: Final = struct.Struct("<QIB")
REFUSED: Final = struct.Struct("<IB")
_NOT_COUNTED: Final = 0xFFFFFFFF


def encode_handoff_head(stream: int, reserved: int) -> bytes:
    """Encode sequence 0 of a hand-off log: the number of the stream, and the first number of its next incarnation."""
    return HANDOFF_HEAD.pack(stream, reserved)


def decode_handoff_head(data: bytes) -> tuple[int, int]:
    """Decode it into (stream, reserved); SchemaError if it is damaged."""
    if len(data) != HANDOFF_HEAD.size:
        raise SchemaError(f"the head of a hand-off log has {len(data)} bytes instead of {HANDOFF_HEAD.size}")
    stream, reserved = HANDOFF_HEAD.unpack(data)
    return stream, reserved


def encode_handoff(entries: int, part: bytes, payloads: list[bytes]) -> bytes:
    """Encode a batch for a peer: its number of entries (-1 = not counted), packed, and the payloads sent beside.

    SchemaError for the number of entries that means "not counted".
    """
    if entries >= _NOT_COUNTED:
        raise SchemaError(f"a batch of {entries} entries")
    counted = _NOT_COUNTED if entries < 0 else entries
    pieces = [HANDOFF_ENTRY.pack(counted, len(part), len(payloads)), part]
    for payload in payloads:
        pieces += (U32.pack(len(payload)), payload)
    return b"".join(pieces)


def decode_handoff(data: bytes) -> tuple[int, bytes, list[bytes]]:
    """Decode it into (entries, part, payloads); SchemaError if it is damaged."""
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
    """The position in a peer's stream up to which it was taken."""

    stream: int
    number: int
    """Number of the last batch that was taken as a whole."""
    taken: int = 0
    """Entries of the next batch that were taken, too."""
    refused: Sequence[tuple[int, int]] = ()
    """(position, reason) of those of them that were refused."""
    inside: Sequence[tuple[int, int, int]] = ()
    """In version 1: (number, position, reason) of refused entries that the peer may not know yet; since version 2 they
    are records of their own (`decode_refusals`)."""


def encode_peer(stream: int, number: int, taken: int = 0, refused: Sequence[tuple[int, int]] = ()) -> bytes:
    """Encode a PeerPosition."""
    head = PEER_HEAD.pack(stream, number, PEER_FORMAT)
    return head + U32.pack(taken) + encode_refusals(refused) if taken else head


def decode_peer(data: bytes) -> PeerPosition:
    """Decode it; SchemaError if it is damaged."""
    if len(data) < PEER_HEAD.size:
        raise SchemaError("a link's position is cut off")
    stream, number, count = PEER_HEAD.unpack_from(data)
    rest = data[PEER_HEAD.size :]
    if count == PEER_FORMAT and len(rest) != count * PEER_REFUSAL.size:  # no taken and refused entries have that length
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
    """Encode (position, reason) of the refused entries of a batch, which the peer may not know yet."""
    return b"".join(REFUSED.pack(*each) for each in refused)


def decode_refusals(data: bytes) -> list[tuple[int, int]]:
    """Decode them into [(position, reason)]; SchemaError if they are damaged."""
    if not data or len(data) % REFUSED.size:
        raise SchemaError(f"the refusals of a batch have {len(data)} bytes")
    return [(position, reason) for position, reason in REFUSED.iter_unpack(data)]

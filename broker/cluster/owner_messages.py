"""What a worker and the control process of its host say to each other about the owners of client ids.

Over a socket pair that outlives both (`shards.inherited`), SOCK_SEQPACKET, as many as fit into a packet:

    worker -> control    u64 number, u8 kind, u64 epoch, u16 length, client id
    control -> worker    u64 lease of this host (0: none), u8 whether it surely is a member, then answers:
                         u64 number, u8 status, u64 epoch, u8 length, node id

The answer is the owner; of a release that it was carried out: nobody. Numbers are the worker's, and rise. Both sides
are of the same release.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple

__all__ = [
    "PACKET_BYTES_MAX",
    "OwnerAnswer",
    "OwnerRequest",
    "RequestKind",
    "Standing",
    "decode_answers",
    "decode_requests",
    "encode_answers",
    "encode_requests",
]

PACKET_BYTES_MAX: Final = 128 << 10
"""More than the longest client id needs."""
_FULL_BYTES: Final = 32 << 10
_REQUEST: Final = struct.Struct("<QBQH")
_STANDING: Final = struct.Struct("<Q?")
_ANSWER: Final = struct.Struct("<QBQB")


class RequestKind(IntEnum):
    """What is asked for; see `broker.cluster.ownership`."""

    CLAIM = 0
    TAKE = 1
    RELEASE = 2
    LOOK = 3
    """Who it is; nothing changes."""


class Standing(NamedTuple):
    """Of this host in the cluster. lease: 0: none. is_proven: it surely is a member."""

    lease: int
    is_proven: bool


class OwnerRequest(NamedTuple):
    """epoch: that the client id has; 0 in a claim."""

    number: int
    kind: RequestKind
    epoch: int
    client_id: str


class OwnerAnswer(NamedTuple):
    """is_known: False if the coordinator could not be asked. node "": nobody owns it."""

    number: int
    is_known: bool
    epoch: int
    node: str


def _packets(head: bytes, parts: Iterable[bytes]) -> Iterator[bytes]:
    packet = bytearray(head)
    for part in parts:
        packet += part
        if len(packet) >= _FULL_BYTES:
            yield bytes(packet)
            packet = bytearray(head)
    if len(packet) > len(head) or head:
        yield bytes(packet)


def encode_requests(requests: Iterable[OwnerRequest]) -> Iterator[bytes]:
    """Yield packets of at most PACKET_BYTES_MAX bytes."""
    names = ((each, each.client_id.encode()) for each in requests)
    return _packets(b"", (_REQUEST.pack(each.number, each.kind, each.epoch, len(name)) + name for each, name in names))


def decode_requests(packet: bytes) -> Iterator[OwnerRequest]:
    """Yield the requests of a packet. Raises ValueError, struct.error."""
    at = 0
    while at < len(packet):
        number, kind, epoch, length = _REQUEST.unpack_from(packet, at)
        at += _REQUEST.size + length
        if at > len(packet):
            raise ValueError("a request is cut off")
        yield OwnerRequest(number, RequestKind(kind), epoch, packet[at - length : at].decode())


def encode_answers(standing: Standing, answers: Iterable[OwnerAnswer]) -> Iterator[bytes]:
    """Yield packets of at most PACKET_BYTES_MAX bytes, one without answers if there are none."""
    names = ((each, each.node.encode()) for each in answers)
    parts = (_ANSWER.pack(each.number, each.is_known, each.epoch, len(name)) + name for each, name in names)
    return _packets(_STANDING.pack(*standing), parts)


def decode_answers(packet: bytes) -> tuple[Standing, list[OwnerAnswer]]:
    """Return what a packet says. Raises ValueError, struct.error."""
    standing = Standing(*_STANDING.unpack_from(packet))
    answers, at = [], _STANDING.size
    while at < len(packet):
        number, known, epoch, length = _ANSWER.unpack_from(packet, at)
        at += _ANSWER.size + length
        if at > len(packet):
            raise ValueError("an answer is cut off")
        answers.append(OwnerAnswer(number, bool(known), epoch, packet[at - length : at].decode()))
    return standing, answers

"""Messages between the archives of hosts: from any worker of one host to any worker of another one.

They cross on the sender's rail to the other host, and its worker passes them on to the sibling that they are for. A
message (kind `ARCHIVE` of `broker.worker.sibling_messages`) has a head, then the content of its kind:

    u8 version (1) | u8 kind | u32 host, u8 worker: the sender | u32 host, u8 worker: the receiver
    | 8 digits of the archive that it is about | i64 the sender's Unix time in ms
    | u32 bytes of the content | content

    r R s b c o O   as between siblings (`broker.replay.sources`). `O` has one thing more: u8 1 = there is room for
                    another replay, and for each Topic Filter u8 1 = a table covers it
    i               which archive does the host have? The digits are zeros
    I               the host's archive has these digits (zeros: it has none). u16 workers

A host of an earlier release ignores them all, so it answers nothing.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from pyx.core.peer import HOSTS_MAX, Peer, host_of, peer_of, worker_of

__all__ = ["ARCHIVE", "NO_ARCHIVE", "VERSION", "HostMessage", "is_here_of", "read_is_here"]

ARCHIVE: Final = b"v"
"""Kind of these messages."""
VERSION: Final = 1
NO_ARCHIVE: Final = b"0" * 8
_HEAD: Final = struct.Struct("<BcIBIB8sqI")
_WORKERS: Final = struct.Struct("<H")
_WORKERS_MAX: Final = 256
_KINDS: Final = frozenset(b"rRsbcoOiI")
_DIGITS: Final = frozenset(b"0123456789abcdef")
_TIME_MAX: Final = 1 << 50
"""ms: further away than any clock is."""


class HostMessage(NamedTuple):
    """One message."""

    kind: bytes
    sender: Peer
    """The worker that has sent it, with the number of its host in the cluster."""
    receiver: Peer
    tag: bytes
    """Eight digits of the archive that it is about."""
    wall_ms: int
    """The sender's Unix time."""
    content: bytes

    def encode(self) -> bytes:
        """Return the message as bytes."""
        sender, receiver = self.sender, self.receiver
        places = host_of(sender), worker_of(sender), host_of(receiver), worker_of(receiver)
        return _HEAD.pack(VERSION, self.kind, *places, self.tag, self.wall_ms, len(self.content)) + self.content

    @classmethod
    def decode(cls, payload: bytes) -> HostMessage:
        """Parse a message. Raises ValueError."""
        if payload[:1] != bytes([VERSION]):
            raise ValueError(f"a message about archives has version {payload[:1].hex()}, this release reads {VERSION}")
        try:
            _, kind, host, worker, to_host, to_worker, tag, wall_ms, size = _HEAD.unpack_from(payload)
        except struct.error:
            raise ValueError("a message about archives is cut off") from None
        if size != len(payload) - _HEAD.size:
            raise ValueError("a message about archives is cut off, or something follows it")
        if kind[0] not in _KINDS or not _DIGITS.issuperset(tag) or abs(wall_ms) > _TIME_MAX:
            raise ValueError("the head of a message about archives is damaged")
        if not 0 < host < HOSTS_MAX or not 0 < to_host < HOSTS_MAX:
            raise ValueError("a message about archives is from or for no host of a cluster")
        sender, receiver = peer_of(host, worker), peer_of(to_host, to_worker)
        return cls(kind, sender, receiver, tag, wall_ms, payload[_HEAD.size :])


def is_here_of(workers: int) -> bytes:
    """Return the content of an `I`."""
    return _WORKERS.pack(workers)


def read_is_here(content: bytes) -> int:
    """Return the number of workers in an `I`. Raises ValueError."""
    if len(content) != _WORKERS.size:
        raise ValueError("a host says nothing readable about its archive")
    (workers,) = _WORKERS.unpack(content)
    if not 0 < workers <= _WORKERS_MAX:
        raise ValueError(f"a host says that it has {workers} workers")
    return int(workers)

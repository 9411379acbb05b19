"""Passes a connection from the worker that accepted it to its home: the descriptor by SCM_RIGHTS over a SOCK_SEQPACKET
unix socket, together with the bytes already read from it.

One message is one connection (little-endian):
    header   version u8, flags u8, listener u8, a byte that is 0, port u16, host length u16, unread length u32,
             deadline u64
    host     the peer's address as text
    unread   the first INLINE_BYTES_MAX of the bytes that the client sent and no worker has handled
    rights   the connection, and with flag 1 a memfd with the rest of the unread bytes
The deadline (CLOCK_MONOTONIC, ns, one clock per host) is when the client must have completed its CONNECT: the time that
a connection waits in the socket, also while its home restarts, counts. A descriptor in flight belongs to the socket: if
the home dies, its successor receives it, because the supervisor holds both ends.

Nothing here closes the sender's own descriptor: the caller does that, after True.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import time
from dataclasses import dataclass
from struct import Struct

INLINE_BYTES_MAX = 60_000

_HEADER = Struct("<BBBxHHIQ")
_VERSION = 3
_REST_IN_MEMFD = 1
_HOST_BYTES_MAX = 255
_MESSAGE_BYTES_MAX = _HEADER.size + _HOST_BYTES_MAX + INLINE_BYTES_MAX
_DESCRIPTORS_MAX = 2
_ANCILLARY_BYTES = socket.CMSG_SPACE(_DESCRIPTORS_MAX * array.array("i").itemsize)
# Not EMSGSIZE and the like: those are our mistakes. ETOOMANYREFS: too many descriptors in flight for our limit.
_FULL = (errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS, errno.ENOMEM)


_BUFFER_BYTES = 1 << 20


class HandoffLost(Exception):
    """A message arrived without its connection (no free descriptor here): the kernel has closed that connection."""


@dataclass(slots=True)
class HandedOver:
    """A connection accepted by another worker, which lives here from now on. The receiver owns `fd`."""

    fd: int
    unread: bytes
    """The bytes that the client has sent so far, from its first one."""
    remaining_seconds: float
    """Seconds until the connect timer ends; 0 or less: it has ended."""
    peer: tuple[str, int]
    """Host and port of the client."""
    listener: int
    """Number of the listener that accepted it (`shards.listening`)."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Return (send, receive), both non-blocking. The sender's buffer bounds what may wait for a worker that is down."""
    send, receive = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    send.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    send.setblocking(False)
    receive.setblocking(False)
    return send, receive


def send(
    sock: socket.socket,
    fd: int,
    unread: bytes | bytearray | memoryview,
    remaining_seconds: float,
    peer: tuple[str, int],
    listener: int = 0,
) -> bool:
    """Hand the connection `fd` over. Return False when the home's socket is full (try again later): nothing was sent.

    `listener`: the number of the one that accepted it, 0 to 255. Raises OSError for any other error.
    """
    host = peer[0].encode("utf-8", "replace")[:_HOST_BYTES_MAX]
    deadline = max(0, time.monotonic_ns() + int(remaining_seconds * 1e9))
    view = memoryview(unread)
    rest = view[INLINE_BYTES_MAX:]
    flags = _REST_IN_MEMFD if rest else 0
    header = _HEADER.pack(_VERSION, flags, listener, peer[1], len(host), len(view), deadline)
    descriptors = array.array("i", [fd])
    memfd = -1
    try:
        if rest:
            memfd = os.memfd_create("mqttd-unread", os.MFD_CLOEXEC)
            descriptors.append(memfd)
            _write_all(memfd, rest)
        sock.sendmsg(
            [header, host, view[:INLINE_BYTES_MAX]],
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)],
            socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL,
        )
        return True
    except OSError as error:
        if error.errno in _FULL:
            return False
        raise
    finally:
        if memfd >= 0:
            os.close(memfd)


def receive(sock: socket.socket) -> HandedOver | None:
    """Return the next connection for this worker, or None when none waits.

    Raises HandoffLost when one was lost on the way (call again: the next may be complete).
    """
    try:
        data, ancillary, flags, _ = sock.recvmsg(
            _MESSAGE_BYTES_MAX, _ANCILLARY_BYTES, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        )
    except BlockingIOError:
        return None
    descriptors = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[: len(payload) - len(payload) % descriptors.itemsize])
    kept = -1
    try:
        if flags & socket.MSG_CTRUNC:
            raise HandoffLost("no free file descriptor to receive a connection with")
        handed_over = _unpack(data, descriptors)
        kept = handed_over.fd
        return handed_over
    finally:
        for descriptor in descriptors:
            if descriptor != kept:
                os.close(descriptor)


def _unpack(data: bytes, descriptors: array.array[int]) -> HandedOver:
    if len(data) < _HEADER.size:
        raise HandoffLost("a hand-off without its header")
    version, flags, listener, port, host_length, unread_length, deadline = _HEADER.unpack_from(data)
    if version != _VERSION or len(descriptors) != (2 if flags & _REST_IN_MEMFD else 1):
        raise HandoffLost(f"a hand-off of version {version} with {len(descriptors)} descriptors")
    unread_at = _HEADER.size + host_length
    host = data[_HEADER.size : unread_at].decode("utf-8", "replace")
    unread = data[unread_at:]
    if flags & _REST_IN_MEMFD:
        unread += _read_all(descriptors[1], unread_length - len(unread))
    if len(unread) != unread_length:
        raise HandoffLost("a hand-off with fewer unread bytes than it names")
    remaining = (deadline - time.monotonic_ns()) / 1e9
    return HandedOver(descriptors[0], unread, remaining, (host, port), listener)


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _read_all(fd: int, length: int) -> bytes:
    parts = []
    offset = 0
    while offset < length:
        part = os.pread(fd, length - offset, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
    return b"".join(parts)

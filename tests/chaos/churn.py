"""Connections by the hundred thousand: each client writes all its packets at once, reads the answers and closes.

It has to be fast in Python: ``tests.wire`` encodes the packets once, and each client id is put into its place; one
epoll serves all connections. Sockets are closed with a reset, so that neither end is left in TIME_WAIT: otherwise a
million connections would use up all ports.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
import time
from collections.abc import Iterator

from tests import wire

_RESET = struct.pack("ii", 1, 0)
_SOURCES = [f"127.0.0.{n}" for n in range(2, 10)]
_SILENCE_SECONDS = 30.0
_MARK = "%%%%%%%%"  # where a client id of eight letters goes


def visits(first: int, count: int) -> Iterator[bytes]:
    """Yield the bytes that each client sends: CONNECT, SUBSCRIBE, PUBLISH, mostly DISCONNECT; v4 and v5, sessions that
    end at once or within a second, reused and new client ids, own and common topics, wills.
    """
    will = wire.Will("will/x", b"gone", 1)
    kinds = [
        # (bytes up to the client id, bytes behind it, reuses ids)
        _visit(4, True, "own/%%%%%%%%", 0, {}),
        _visit(5, True, "common/+", 1, {}),
        _visit(5, False, "own/%%%%%%%%/#", 1, {"session_expiry_interval": 1}),
        _visit(5, False, "common/#", 1, {"session_expiry_interval": 1}),
        _visit(4, False, "own/%%%%%%%%", 1, {}),
        _visit(5, True, "$share/g/common/+", 1, {}, will=will),
        _visit(5, False, "+/common", 2, {"session_expiry_interval": 1}, will=will, goodbye=False),
        _visit(4, True, "own/%%%%%%%%", 2, {}, will=will, goodbye=False),
    ]
    for number in range(first, first + count):
        kind = number % len(kinds)
        again = kind == 4 or number % 3 == 0  # a v3 session lasts for days: its client ids come from a small set
        name = b"r%07d" % (number % 97 * len(kinds) + kind) if again else b"u%07d" % number
        yield kinds[kind].replace(_MARK.encode(), name)


def _visit(
    version: int, clean: bool, topic_filter: str, qos: int, properties: dict[str, int],
    *, will: wire.Will | None = None, goodbye: bool = True,
) -> bytes:  # fmt: skip
    topic = "common/x" if "common" in topic_filter else _MARK + "/own"
    return b"".join((
        wire.connect(version, _MARK, clean=clean, properties=properties, will=will),
        wire.subscribe(version, 1, (topic_filter, qos)),
        wire.publish(version, topic, b"hello" * 10, qos=qos, packet_id=2),
        wire.publish(version, "own/" + _MARK, b"retained", retain=True) if qos == 0 else b"",
        wire.publish(version, "own/" + _MARK, b"", retain=True) if qos == 0 else b"",
        wire.PINGREQ,
        wire.disconnect(version) if goodbye else b"",
    ))  # fmt: skip


def churn(address: tuple[str, int], sayings: Iterator[bytes], at_once: int = 64) -> int:
    """Let each client connect, send its bytes and wait for PINGRESP or the end; return how many got a CONNACK."""
    poll = select.epoll()
    visitors: dict[int, _Visitor] = {}
    answered = begun = 0
    heard = time.monotonic()
    more = True
    while more or visitors:
        while more and len(visitors) < at_once:
            data = next(sayings, None)
            more = data is not None
            if data is not None:
                visitor = _Visitor(_dial(address, _SOURCES[begun % len(_SOURCES)]), data)
                begun += 1
                visitors[visitor.socket.fileno()] = visitor
                poll.register(visitor.socket, select.EPOLLOUT)
        for number, _ in poll.poll(1.0, 256):
            visitor = visitors[number]
            if visitor.speaks():
                poll.modify(number, select.EPOLLIN)
            elif visitor.has_heard_all():
                answered += visitor.got[:1] == b"\x20"
                poll.unregister(number)
                visitor.socket.close()
                del visitors[number]
                heard = time.monotonic()
        if time.monotonic() - heard > _SILENCE_SECONDS:
            raise TimeoutError(f"{len(visitors)} connections wait for an answer for {_SILENCE_SECONDS} s")
    poll.close()
    return answered


class _Visitor:
    """One connection: the bytes that it has still to send, and those that it has received."""

    __slots__ = ("got", "saying", "socket")

    def __init__(self, dialled: socket.socket, saying: bytes) -> None:
        self.socket = dialled
        self.saying = saying
        self.got = b""

    def speaks(self) -> bool:
        """Send the bytes, once, when the socket is writable."""
        if not self.saying:
            return False
        assert self.socket.send(self.saying) == len(self.saying), "what one client says fits into an empty socket"
        self.saying = b""
        return True

    def has_heard_all(self) -> bool:
        """Read; return whether PINGRESP or the end has arrived."""
        try:
            got = self.socket.recv(65536)
        except ConnectionResetError:
            got = b""
        self.got += got
        return not got or b"\xd0\x00" in self.got


def _dial(address: tuple[str, int], source: str) -> socket.socket:
    dialled = socket.socket()
    dialled.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    dialled.setblocking(False)
    dialled.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT: the port is chosen by connect
    dialled.bind((source, 0))
    error = dialled.connect_ex(address)
    assert error in (0, errno.EINPROGRESS), f"connect: {errno.errorcode[error]}"
    return dialled

"""Passing connections: bytes, deadlines and descriptors arrive, and none stays open after an error."""

from __future__ import annotations

import os
import resource
import socket
import struct
from collections.abc import Iterator

import pytest

from pyx.io import handing_over

Pair = tuple[socket.socket, socket.socket]


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.fixture
def pair() -> Iterator[Pair]:
    """(send end, receive end) of a home's socket, which leak no other descriptor."""
    send, receive = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    send.setblocking(False)
    receive.setblocking(False)
    before = open_descriptors()
    yield send, receive
    assert not open_descriptors() - before  # leftovers of earlier tests may be collected meanwhile
    send.close()
    receive.close()


@pytest.fixture
def connection(pair: Pair) -> Iterator[Pair]:  # noqa: ARG001 (opened after it, closed before its count)
    """Return (the broker's end, the client's end)."""
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.mark.parametrize("size", [0, 1, 59_999, 60_000, 60_001, 1_000_000])
def test_unread_bytes_of_any_size_arrive_with_the_connection(pair: Pair, connection: Pair, size: int) -> None:
    send, receive = pair
    unread = os.urandom(size)
    assert handing_over.send(send.fileno(), connection[0].fileno(), memoryview(unread), 7.5, ("2001:db8::1", 65535))
    got = handing_over.receive(receive.fileno())
    assert got is not None
    assert (got.unread, got.peer) == (unread, ("2001:db8::1", 65535))
    assert 7.0 < got.remaining_seconds <= 7.5
    with socket.socket(fileno=got.fd) as home:
        assert not home.get_inheritable()
        home.sendall(b"hello")
    assert connection[1].recv(10) == b"hello"
    assert handing_over.receive(receive.fileno()) is None


@pytest.mark.parametrize("listener", [0, 1, 15, 255])
def test_the_listener_travels_with_the_connection(pair: Pair, connection: Pair, listener: int) -> None:
    send, receive = pair
    assert handing_over.send(send.fileno(), connection[0].fileno(), b"unread", 1.0, ("h", 1), listener)
    got = handing_over.receive(receive.fileno())
    assert got is not None
    assert (got.listener, got.unread) == (listener, b"unread")
    os.close(got.fd)


@pytest.mark.parametrize("listener", [-1, 256])
def test_a_listener_of_more_than_a_byte_is_refused(pair: Pair, connection: Pair, listener: int) -> None:
    with pytest.raises(OverflowError):
        handing_over.send(pair[0].fileno(), connection[0].fileno(), b"", 1.0, ("h", 1), listener)


@pytest.mark.parametrize("host", [0, 1, 254, 255, 256])
@pytest.mark.parametrize("number", [0, 1, 65_534, 65_535, 65_536])
def test_each_field_at_each_of_its_lengths(pair: Pair, connection: Pair, number: int, host: int) -> None:
    send, receive = pair
    arguments = connection[0].fileno(), b"x", 1e9, ("h" * host, number)
    if number > 65_535:
        with pytest.raises(OverflowError):
            handing_over.send(send.fileno(), *arguments)
        return
    assert handing_over.send(send.fileno(), *arguments)
    got = handing_over.receive(receive.fileno())
    assert got is not None
    os.close(got.fd)
    assert (got.unread, got.peer) == (b"x", ("h" * min(host, 255), number))
    assert got.remaining_seconds > 9e8


def test_time_spent_waiting_counts(pair: Pair, connection: Pair) -> None:
    assert handing_over.send(pair[0].fileno(), connection[0].fileno(), b"", -0.5, ("h", 1))
    got = handing_over.receive(pair[1].fileno())
    assert got is not None
    os.close(got.fd)
    assert got.remaining_seconds <= -0.5


def test_a_full_socket_is_said_and_nothing_is_lost(pair: Pair, connection: Pair) -> None:
    sent = 0
    while handing_over.send(pair[0].fileno(), connection[0].fileno(), b"%d" % sent + bytes(70_000), 1.0, ("h", 1)):
        sent += 1
    assert sent > 1
    for number in range(sent):
        got = handing_over.receive(pair[1].fileno())
        assert got is not None
        os.close(got.fd)
        assert got.unread.rstrip(b"\0") == (b"%d" % number).rstrip(b"\0")
    assert handing_over.receive(pair[1].fileno()) is None
    assert handing_over.send(pair[0].fileno(), connection[0].fileno(), b"", 1.0, ("h", 1))
    got = handing_over.receive(pair[1].fileno())
    assert got is not None
    os.close(got.fd)


def test_small_hand_offs_wait_by_the_hundred(pair: Pair, connection: Pair) -> None:
    """The socket of a restarting worker holds that many with the default buffer."""
    sent = 0
    while handing_over.send(pair[0].fileno(), connection[0].fileno(), bytes(60), 1.0, ("127.0.0.1", 1)):
        sent += 1
    while (got := handing_over.receive(pair[1].fileno())) is not None:
        os.close(got.fd)
    assert sent >= 100


@pytest.mark.parametrize("unread", [b"few", bytes(100_000)])
def test_no_free_descriptor_loses_that_connection_only(pair: Pair, connection: Pair, unread: bytes) -> None:
    for _ in range(2):
        assert handing_over.send(pair[0].fileno(), connection[0].fileno(), unread, 1.0, ("h", 1))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        with pytest.raises(handing_over.HandoffLost):
            handing_over.receive(pair[1].fileno())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    got = handing_over.receive(pair[1].fileno())
    assert got is not None
    os.close(got.fd)
    assert got.unread == unread


def test_only_half_of_the_descriptors_is_lost_too(pair: Pair, connection: Pair) -> None:
    """There is room for the connection but not for the memfd."""
    assert handing_over.send(pair[0].fileno(), connection[0].fileno(), bytes(100_000), 1.0, ("h", 1))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 1, limits[1]))
    try:
        with pytest.raises(handing_over.HandoffLost):
            handing_over.receive(pair[1].fileno())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_strange_message_closes_what_came_with_it(pair: Pair, connection: Pair) -> None:
    for message in (b"x", bytes(100)):
        socket.send_fds(pair[0], [message], [connection[0].fileno(), connection[1].fileno()])
        with pytest.raises(handing_over.HandoffLost):
            handing_over.receive(pair[1].fileno())


@pytest.mark.parametrize("named", [0, 2, 8, 0xFFFFFFFF])
def test_a_message_that_names_another_length(pair: Pair, connection: Pair, named: int) -> None:
    """Fewer bytes than are in it, or more than are in it and in the memory that came with it."""
    header = struct.pack("<BBBBHHIQ", 3, 1, 0, 0, 1, 1, named, 1 << 62)
    with open(os.memfd_create("rest"), "r+b", buffering=0) as memory:
        memory.write(b"rest")
        socket.send_fds(pair[0], [header + b"h" + b"abc"], [connection[0].fileno(), memory.fileno()])
        with pytest.raises(handing_over.HandoffLost, match=f"names {named}"):
            handing_over.receive(pair[1].fileno())


def test_a_home_that_is_gone_is_an_error(connection: Pair) -> None:
    send, receive = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    receive.close()
    with send, pytest.raises(OSError, match=r"Broken pipe|reset"):
        handing_over.send(send.fileno(), connection[0].fileno(), bytes(100_000), 1.0, ("h", 1))

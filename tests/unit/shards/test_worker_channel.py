"""The messages between a worker and the supervisor."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator

import pytest

from shards.worker_channel import INLINE_BYTES_MAX, messages, send_message


def test_last_words_are_heard_although_the_other_side_ended_with_something_unread() -> None:
    """The kernel then reports ECONNRESET before it returns the data that was sent."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    ours.send(b'{"event": "sibling_up"}')
    theirs.send(json.dumps({"event": "failed", "reason": "x"}).encode())
    theirs.close()
    with ours:
        assert messages(ours) == [{"event": "failed", "reason": "x"}, {"event": "closed"}]


def test_nothing_said_is_no_message_and_nonsense_is_survived() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    with ours, theirs:
        assert messages(ours) == []
        theirs.send(b"{")
        theirs.send(b'{"event": "ready"}')
        assert messages(ours) == [{"event": "unintelligible"}, {"event": "ready"}]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Return both ends of a control socket, as the supervisor makes it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


AROUND = len(json.dumps({"event": "reload", "settings": ""}))


@pytest.mark.parametrize(
    "size",
    [
        AROUND, INLINE_BYTES_MAX - 1, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1, 65_535, 65_536, 65_537, 212_991, 212_992,
        212_993, 1 << 20, 20 << 20,
    ],
)  # fmt: skip
def test_a_message_of_any_length_arrives(pair: tuple[socket.socket, socket.socket], size: int) -> None:
    """A message may exceed a packet of the socket; messages stay in order, and no descriptor leaks."""
    ours, theirs = pair
    message = {"event": "reload", "settings": "x" * (size - AROUND)}
    before = len(os.listdir("/proc/self/fd"))
    for said in ({"event": "first"}, message, {"event": "last"}):
        send_message(theirs, said)
    assert messages(ours) == [{"event": "first"}, message, {"event": "last"}]
    assert len(os.listdir("/proc/self/fd")) == before


def test_many_long_messages_wait_in_the_socket(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    sent = [{"event": "reload", "number": number, "settings": "x" * 300_000} for number in range(20)]
    for message in sent:
        send_message(theirs, message)
    assert messages(ours) == sent

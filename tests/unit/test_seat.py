"""The words between a worker and the supervisor."""

from __future__ import annotations

import json
import socket

from shards.seat import messages


def test_last_words_are_heard_although_the_other_side_ended_with_something_unread() -> None:
    """The kernel then says ECONNRESET before it gives what was sent."""
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

"""The mesh's sockets and ZeroMQ's own library understand each other, in both directions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.rounds import SECONDS
from tests.unit.pyx.mesh.world import Heard, Rounds, connected
from tests.waiting import let_pass

SIZES = (0, 1, 255, 256, 8191, 8192, 32_767, 32_768, 32_769, 262_144, 300_000, 2_000_000)
"""Of frames: around the short form, what is sent by reference, what is received in place, the receive buffer."""
MESSAGES = [
    *([bytes([size % 251]) * size] for size in SIZES),
    *([b"head", bytes([size % 251]) * size, b"", b"tail" * 3000] for size in SIZES),
    [b"%d" % i for i in range(1000)],
    [bytes(50_000)] * 20,
]


class Theirs:
    """Sockets of ZeroMQ."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.opened: list[Any] = []

    def socket(self, kind: int, path: Path, **options: int) -> Any:
        """Return a socket: PULL listens, the others connect."""
        made = self.context.socket(kind)
        self.opened.append(made)
        for name, value in options.items():
            made.setsockopt(getattr(zmq, name), value)
        made.setsockopt(zmq.RCVTIMEO, int(SECONDS * 1000))
        made.setsockopt(zmq.SNDTIMEO, int(SECONDS * 1000))
        made.bind(f"ipc://{path}") if kind == zmq.PULL else made.connect(f"ipc://{path}")
        return made

    def ends(self, socket: Any) -> Any:
        """Return a socket that reports the ends of that one's connections."""
        events = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        self.opened.append(socket.get_monitor_socket(events))
        return self.opened[-1]

    def close(self) -> None:
        for each in reversed(self.opened):
            if not each.closed:
                each.disable_monitor()
            each.close(0)
        self.context.term()


@pytest.fixture
def theirs() -> Iterator[Theirs]:
    made = Theirs()
    yield made
    made.close()


def test_a_push_of_zeromq_is_heard(theirs: Theirs, rounds: Rounds, tmp_path: Path) -> None:
    heard = Heard(rounds, tmp_path / "own")
    push = theirs.socket(zmq.PUSH, tmp_path / "own", SNDHWM=0)
    for message in MESSAGES:
        push.send_multipart(message)
    rounds.until(lambda: len(heard.messages) >= len(MESSAGES), "everything was heard")
    assert heard.messages == MESSAGES
    assert (len(heard.pull), heard.pull.malformed) == (1, 0)


def test_several_pushes_of_zeromq_are_heard(theirs: Theirs, rounds: Rounds, tmp_path: Path) -> None:
    heard = Heard(rounds, tmp_path / "own")
    for number in range(5):
        push = theirs.socket(zmq.PUSH, tmp_path / "own")
        for i in range(100):
            push.send_multipart([b"%d" % number, b"%d" % i])
    rounds.until(lambda: len(heard.messages) >= 500, "everything was heard")
    for number in range(5):
        own = [int(last) for first, last in heard.messages if int(first) == number]
        assert own == list(range(100))


def test_a_pull_of_zeromq_hears(theirs: Theirs, rounds: Rounds, tmp_path: Path) -> None:
    pull = theirs.socket(zmq.PULL, tmp_path / "theirs", RCVHWM=0)
    push = connected(rounds, tmp_path / "theirs")
    for message in MESSAGES:
        rounds.until(lambda: not push.pending, "there is room")
        assert push.send(list(message))
        push.flush()
    received: list[list[bytes]] = []
    while len(received) < len(MESSAGES):
        rounds.settle()
        if pull.poll(10):
            received.append(pull.recv_multipart())
    assert received == MESSAGES


@pytest.mark.parametrize("kind", [zmq.PUSH, zmq.PULL])
def test_the_heartbeats_of_zeromq_are_answered(theirs: Theirs, rounds: Rounds, tmp_path: Path, kind: int) -> None:
    """ZeroMQ closes a connection whose PING is not answered in time, and makes it anew."""
    options = {"HEARTBEAT_IVL": 50, "HEARTBEAT_TIMEOUT": 5000, "HEARTBEAT_TTL": 60_000}
    if kind == zmq.PUSH:
        heard = Heard(rounds, tmp_path / "own")
        socket = theirs.socket(kind, tmp_path / "own", **options)
    else:
        socket = theirs.socket(kind, tmp_path / "theirs", **options)
    monitor = theirs.ends(socket)
    if kind == zmq.PULL:
        push = connected(rounds, tmp_path / "theirs")
    for _ in range(10):
        let_pass(0.05)
        rounds.settle()
    assert not monitor.poll(0)
    if kind == zmq.PUSH:
        socket.send(b"still there")
        rounds.until(lambda: bool(heard.messages), "it was heard")
        assert len(heard.pull) == 1
    else:
        push.send([b"still there"])
        push.flush()
        assert socket.recv() == b"still there"


def test_heartbeats_that_are_not_answered_end_the_connection(theirs: Theirs, rounds: Rounds, tmp_path: Path) -> None:
    """So the test above can fail."""
    heard = Heard(rounds, tmp_path / "own")
    socket = theirs.socket(zmq.PUSH, tmp_path / "own", HEARTBEAT_IVL=20, HEARTBEAT_TIMEOUT=60)
    monitor = theirs.ends(socket)
    rounds.until(lambda: len(heard.pull) == 1, "it has connected")
    rounds.settle()
    assert monitor.poll(SECONDS * 1000)


def test_zeromq_answers_our_ping(theirs: Theirs, tmp_path: Path, rounds: Rounds) -> None:
    theirs.socket(zmq.PULL, tmp_path / "theirs")
    push = connected(rounds, tmp_path / "theirs")
    push.ping()
    push.flush()
    rounds.until(lambda: push.pongs == 1, "the PONG has come")


@pytest.mark.parametrize("kind", [zmq.PUB, zmq.DEALER, zmq.PAIR])
def test_another_kind_of_socket_is_refused(theirs: Theirs, rounds: Rounds, tmp_path: Path, kind: int) -> None:
    heard = Heard(rounds, tmp_path / "own")
    monitor = theirs.ends(theirs.socket(kind, tmp_path / "own"))
    rounds.until(lambda: bool(monitor.poll(0)), "one side has refused the other")
    assert heard.messages == []


def test_a_peer_of_zeromq_that_comes_back(theirs: Theirs, rounds: Rounds, tmp_path: Path) -> None:
    pull = theirs.socket(zmq.PULL, tmp_path / "theirs")
    push = connected(rounds, tmp_path / "theirs")
    pull.close(0)
    rounds.until(lambda: not push.is_connected, "the end was noticed")
    assert not push.send([b"nobody is there"])
    pull = theirs.socket(zmq.PULL, tmp_path / "theirs")
    now = 0

    def again() -> bool:
        nonlocal now
        now += 1 << 40
        push.tick(now)
        rounds.settle()
        return push.is_connected

    rounds.until(again, "it is connected again")
    assert push.send([b"back"])
    push.flush()
    assert pull.recv() == b"back"

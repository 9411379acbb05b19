"""Two hosts without sockets, between which sessions move, and what is on its way between them."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.worker.fetching import Fetched
from broker.worker.giving import LateOutcome
from broker.worker.moves import SessionMoves
from leveldb_store.memory import MemoryStore
from tests.kept_host import lasting
from tests.kept_store import KeptStore
from tests.sansio import START_MS, Host, Peer

__all__ = ["EPOCH", "FIRST", "SECOND", "TOPICS", "Pair", "Side", "pair", "publish_some", "received", "subscribed"]

FIRST, SECOND = 1, 2
EPOCH = 7
"""Of an owner that knows that it is the owner."""


class Line:
    """A link that never has too much."""

    full = False
    outbox_bytes = 0


class Side:
    """One of the two hosts. `number`: of the other one."""

    def __init__(self, host: Host, number: int, other: int, sent: deque[tuple[int, bytes, int, str, bytes]]) -> None:
        self.number = number
        self.resolved: list[str] = []
        self.is_linked = True
        self.is_whole = True
        """Whether no third host is away."""
        self._sent = sent
        self._other = other
        self.take(host)

    def take(self, host: Host) -> None:
        """Go on with this host, after a restart."""
        self.host = host
        node = host.node
        self.moves = SessionMoves(
            node.context,
            node.sessions,
            node.state_records,
            node.endings,
            node.capacity,
            node.closing,
            node.subscribing,
            self,
            self._send,
            self.resolved.append,
        )
        node.sessions.when_begun = self.moves.begun

    def _send(self, host: int, kind: bytes, number: int, client_id: str, rest: bytes) -> bool:
        assert host == self._other
        if self.is_linked:
            self._sent.append((host, kind, number, client_id, rest))
        return self.is_linked

    def number_of(self, _node: str) -> int | None:
        raise AssertionError("not asked here")

    def node_of(self, _number: int) -> str:
        raise AssertionError("not asked here")

    def client_address_of(self, _node: str) -> str:
        raise AssertionError("not asked here")

    def tell_host(self, _number: int, _kind: bytes, _payload: bytes, *, keeps: bool) -> bool:  # noqa: ARG002
        raise AssertionError("not used here")

    def flush(self, then: Callable[[bool], None]) -> None:
        then(self.is_whole)

    def has_away(self) -> bool:
        return not self.is_whole

    def link_of(self, _number: int) -> Any:
        return Line() if self.is_linked else None


class Pair:
    """Two hosts, and what is on its way between them."""

    def __init__(self, stores: Callable[[], Any], **settings: Any) -> None:
        self.sent: deque[tuple[int, bytes, int, str, bytes]] = deque()
        self.kinds: list[bytes] = []
        self.old = Side(Host(stores=[stores()], **settings), FIRST, SECOND, self.sent)
        # an odd difference of clocks: their messages have different numbers
        self.new = Side(Host(stores=[stores()], start_ms=START_MS + 501, **settings), SECOND, FIRST, self.sent)
        self.answers: list[bool] = []
        self.errors: list[str] = []
        self.unreachable: list[None] = []

    def outcome(self, outcome: LateOutcome) -> None:
        self.answers.append(outcome is LateOutcome.DONE)

    def settle(self, until: Callable[[], bool] = lambda: False) -> None:
        """Deliver messages until there are none, or `until` is true."""
        while True:
            self.old.host.settle()
            self.new.host.settle()
            if not self.sent or until():
                return
            host, kind, number, client_id, rest = self.sent.popleft()
            self.kinds.append(kind)
            to = self.old if host == FIRST else self.new
            try:
                to.moves.heard(kind, 3 - host, number, client_id, rest)
            except (ValueError, struct.error) as error:  # as the one door of the worker
                self.errors.append(str(error))

    def fetch(self, client_id: str, epoch: int = 0) -> Peer:
        """Begin to bring a session that is owned since this epoch; return a connection that might wait for it."""
        waiting = self.new.host.open(5)
        self.new.moves.fetch(
            client_id,
            FIRST,
            epoch,
            lambda fetched: self.answers.append(fetched is not Fetched.FAILED),
            lambda: self.unreachable.append(None),
        )
        return waiting

    def hand_over(self, client_id: str, then: Callable[[LateOutcome], None]) -> None:
        """Begin to hand over what the first host has of a session that the second one owns."""
        session = self.new.host.node.sessions.get(client_id)
        if session is not None:
            session.details.epoch = EPOCH
        self.old.moves.hand_over(client_id, SECOND, then)

    def turn(self) -> None:
        """Let the two hosts change their parts: sessions move back."""
        self.old, self.new = (
            Side(self.new.host, FIRST, SECOND, self.sent),
            Side(self.old.host, SECOND, FIRST, self.sent),
        )

    def move(self, client_id: str) -> None:
        """Bring a session, and end it where it was."""
        waiting = self.fetch(client_id)
        self.settle()
        assert self.answers == [True]
        self.answers.clear()
        self.new.host.lose(waiting)
        former = self.old.host.node.sessions.get(client_id)
        if former is not None and not self.old.moves.stays_behind(client_id):
            self.old.host.node.endings.end_moved(former)
        self.settle()


@pytest.fixture(params=[MemoryStore, KeptStore], ids=["memory", "kept"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = Pair(request.param)
    yield made
    assert made.errors == [] or request.node.originalname == "test_a_message_is_lost"
    for side in (made.old, made.new):
        side.host.check_books()


TOPICS = {"a/1": 2, "b": 1, "named/x": 1, "shared": 1, "a/0": 1}


def publish_some(host: Host, topics: dict[str, int], count: int) -> None:
    publisher = host.connect("publisher", 5)
    for number in range(count):
        for topic, qos in topics.items():
            packet_id = publisher.publish(topic, b"%d" % number, qos)
            if qos == 2:
                publisher.ack("PUBREL", packet_id)
            publisher.receive()
    host.lose(publisher)


def received(peer: Peer) -> list[tuple[str, bytes, int, bool, tuple[int, ...]]]:
    return [
        (each.topic, each.payload, each.qos, each.retain, tuple(each.properties.get("subscription_identifier", ())))
        for each in peer.receive()
        if each.kind == "PUBLISH"
    ]


def subscribed(host: Host) -> Peer:
    peer = lasting(host, "c", 5)
    peer.subscribe(("a/#", 2), ("b", 1))
    peer.subscribe(("named/+", 1), identifier=9)
    peer.subscribe(("$share/g/shared", 1))
    return peer

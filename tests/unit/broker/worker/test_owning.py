"""A worker owns a client id before it serves the client, whatever order it hears things in."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.cluster.owner_messages import (
    PACKET_BYTES_MAX,
    OwnerAnswer,
    OwnerRequest,
    RequestKind,
    Standing,
    decode_requests,
    encode_answers,
)
from broker.worker.owner_wait import Fate
from broker.worker.owning import GIVEN, TAKEN, Owning
from tests.sansio import Host, Peer
from tests.wire import connect

HERE, THERE = "here", "there"
OTHER = 2
_HEAD = struct.Struct("<IQH")


class OwningHost:
    """A worker of the host HERE, its control process, and the host THERE."""

    number = 1

    def __init__(self, ends: contextlib.ExitStack) -> None:
        worker_end, self._control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ends.callback(worker_end.close)
        ends.callback(self._control.close)
        worker_end.setblocking(False)
        self._control.setblocking(False)
        self.host = Host(cluster={"etcd": ["http://127.0.0.1:1"], "node_id": HERE, "listen": "tcp://127.0.0.1:1"})
        node = self.host.node
        self.told: list[tuple[bytes, int]] = []
        others: Any = self
        self.owning = Owning(
            node.context, node.sessions, node.endings, node.capacity, node.closing, node.connecting, node.subscribing,
            node.state_records, node.recording, worker_end, others,
        )  # fmt: skip
        node.open_through(self.owning)
        self.asked: list[OwnerRequest] = []

    def number_of(self, node: str) -> int | None:
        return {HERE: 1, THERE: OTHER}.get(node)

    def flush(self, then: Callable[[bool], None]) -> None:
        then(True)

    def has_away(self) -> bool:
        return False

    def link_of(self, _number: int) -> Any:
        return object()

    def tell_host(self, _number: int, kind: bytes, payload: bytes, *, keeps: bool) -> bool:  # noqa: ARG002
        self.told.append((kind, _HEAD.unpack_from(payload)[1]))
        return True

    def connects(self, client_id: str) -> Peer:
        """Return a client that has sent CONNECT."""
        peer = self.host.open(5)
        peer.conn.fd = self._control.fileno()  # it is open; what it is sent is taken from its outbox
        peer.send(connect(5, client_id))
        self.host.settle()
        return peer

    def question(self) -> OwnerRequest:
        """Return the next question to the control process."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.asked += decode_requests(self._control.recv(PACKET_BYTES_MAX))
        return self.asked.pop(0)

    def answer(self, question: OwnerRequest, node: str, epoch: int) -> None:
        for packet in encode_answers(Standing(1, True), [OwnerAnswer(question.number, True, epoch, node)]):
            self._control.send(packet)
        self.owning.receive()
        self.host.settle()

    def taken(self, client_id: str, epoch: int, fate: Fate) -> None:
        """Hear that the other host has taken a client id."""
        name = client_id.encode()
        self.owning.heard(TAKEN, _HEAD.pack(OTHER, epoch, len(name)) + name + bytes([fate]))
        self.host.settle()


@pytest.fixture
def owning() -> Iterator[OwningHost]:
    with contextlib.ExitStack() as ends:
        yield OwningHost(ends)


def test_a_client_is_served_when_its_id_is_owned(owning: OwningHost) -> None:
    client = owning.connects("c")
    client.silent()
    question = owning.question()
    assert (question.kind, question.client_id) == (RequestKind.CLAIM, "c")
    owning.answer(question, HERE, 7)
    assert client.next("CONNACK").reason == 0


def test_an_answer_that_is_older_than_a_take_over(owning: OwningHost) -> None:
    """Another host has taken the client id before the answer to the claim has come here: that one owns it."""
    client = owning.connects("c")
    question = owning.question()
    owning.taken("c", 8, Fate.CLEAN_START)
    assert owning.told == [(GIVEN, 8)]
    owning.answer(question, HERE, 7)
    client.silent()
    again = owning.question()
    assert (again.kind, again.client_id) == (RequestKind.CLAIM, "c")
    owning.answer(again, THERE, 8)
    take = owning.question()
    assert (take.kind, take.epoch) == (RequestKind.TAKE, 8)
    owning.answer(take, HERE, 9)
    owning.owning.heard(GIVEN, _HEAD.pack(OTHER, 9, 1) + b"c")
    owning.host.settle()
    assert client.next("CONNACK").reason == 0


def test_an_answer_that_is_newer_than_a_take_over(owning: OwningHost) -> None:
    """It is owned here again."""
    client = owning.connects("c")
    question = owning.question()
    owning.taken("c", 6, Fate.CLEAN_START)
    owning.answer(question, HERE, 7)
    assert client.next("CONNACK").reason == 0


def test_epochs_that_begin_anew(owning: OwningHost) -> None:
    """Of an etcd that has lost its data: the client is served, after some questions."""
    client = owning.connects("c")
    owning.taken("c", 1000, Fate.CLEAN_START)
    for _ in range(10):
        owning.answer(owning.question(), HERE, 1)
        if client.packets or client.take():
            break
    assert client.next("CONNACK").reason == 0


def test_take_overs_are_forgotten(owning: OwningHost) -> None:
    owning.taken("c", 1000, Fate.CLEAN_START)
    owning.host.pass_time(31)
    owning.owning.tick(owning.host.now)
    client = owning.connects("c")
    owning.answer(owning.question(), HERE, 7)
    assert client.next("CONNACK").reason == 0

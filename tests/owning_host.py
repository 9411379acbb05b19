"""A worker of a host in a cluster without sockets: its control process and the other host say what the test says."""

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
    Standing,
    decode_requests,
    encode_answers,
)
from broker.worker.owner_wait import Fate
from broker.worker.owning import TAKEN, Owning
from broker.worker.session_parts import LAST, PAGE, STATE, PartHead, SessionTerms
from tests.moving_pair import Line
from tests.sansio import START_MS, Host, Peer
from tests.wire import Will, connect

__all__ = ["HERE", "OTHER", "THERE", "OwningHost", "owning"]

HERE, THERE = "here", "there"
OTHER = 2
_HEAD = struct.Struct("<IQH")


class OwningHost:
    """A worker of the host HERE, its control process, and the host THERE."""

    number = 1

    def __init__(self, ends: contextlib.ExitStack, start_ms: int = START_MS, **cluster: Any) -> None:
        worker_end, self._control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ends.callback(worker_end.close)
        ends.callback(self._control.close)
        worker_end.setblocking(False)
        self._control.setblocking(False)
        etcd = {"etcd": ["http://127.0.0.1:1"], "node_id": HERE, "listen": "tcp://127.0.0.1:1"}
        self.host = Host(cluster={**etcd, **cluster}, start_ms=start_ms)
        node = self.host.node
        self.is_whole = True
        """Whether no third host is away."""
        self.told: list[tuple[bytes, int]] = []
        """Kind and number of each message to another host."""
        self.told_hosts: list[tuple[int, bytes]] = []
        """The number of that host, and the kind."""
        others: Any = self
        self.owning = Owning(
            node.context, node.sessions, node.endings, node.capacity, node.closing, node.connecting, node.subscribing,
            node.state_records, node.recording, worker_end, others,
        )  # fmt: skip
        node.open_through(
            self.owning, self.owning.draining.report, self.owning.looks.find, self.owning.moving_clients.take
        )
        self.asked: list[OwnerRequest] = []
        self._lease = 1

    def number_of(self, node: str) -> int | None:
        return {HERE: 1, THERE: OTHER}.get(node)

    def node_of(self, number: int) -> str:
        return {1: HERE, OTHER: THERE}.get(number, "")

    def client_address_of(self, node: str) -> str:
        return f"{node}.example:1883"

    def flush(self, then: Callable[[bool], None]) -> None:
        then(self.is_whole)

    def has_away(self) -> bool:
        return not self.is_whole

    def link_of(self, _number: int) -> Any:
        return Line()

    def tell_host(self, number: int, kind: bytes, payload: bytes, *, keeps: bool) -> bool:  # noqa: ARG002
        self.told.append((kind, _HEAD.unpack_from(payload)[1]))
        self.told_hosts.append((number, kind))
        return True

    def connects(
        self, client_id: str, clean: bool = True, expiry: int = 0, version: int = 5, will: Will | None = None
    ) -> Peer:
        """Return a client that has sent CONNECT."""
        peer = self.host.open(version)
        peer.client_id = client_id
        peer.conn.fd = self._control.fileno()  # it is open; what it is sent is taken from its outbox
        properties = {"session_expiry_interval": expiry} if version == 5 else {}
        peer.send(connect(version, client_id, clean=clean, properties=properties, will=will))
        self.host.settle()
        return peer

    def serves(self, client_id: str, epoch: int = 7, **options: Any) -> Peer:
        """Return a client that has connected, after the control process has said that it is owned here."""
        peer = self.connects(client_id, **options)
        self.answer(self.question(), HERE, epoch)
        assert peer.next("CONNACK").reason == 0
        return peer

    def comes(self, client_id: str, number: int) -> None:
        """Send the session of a move, an empty one: its state, and its page."""
        state = self.host.node.router.state
        began = state.wall_ms - 1000
        head = PartHead(0, LAST, state.wall_ms, began, False, 0, 0).encode()
        self.hears(STATE, number, client_id, head + SessionTerms(5, 600, began, False, 0, None).encode())
        self.hears(PAGE, number, client_id, head)

    def question(self) -> OwnerRequest:
        """Return the next question to the control process."""
        self._receive()
        return self.asked.pop(0)

    def _receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                self.asked += decode_requests(self._control.recv(PACKET_BYTES_MAX))

    def has_asked(self) -> bool:
        """Whether there is a question that was not looked at."""
        self._receive()
        return bool(self.asked)

    def answer(
        self, question: OwnerRequest, node: str, epoch: int, is_known: bool = True, settles: bool = True
    ) -> None:
        """Let the control process answer."""
        self._say(OwnerAnswer(question.number, is_known, epoch, node))
        if settles:
            self.host.settle()

    def stands(self, lease: int) -> None:
        """Let the control process say that this host has another lease."""
        self._lease = lease
        self._say()
        self.host.settle()

    def _say(self, *answers: OwnerAnswer) -> None:
        for packet in encode_answers(Standing(self._lease, True), answers):
            self._control.send(packet)
        self.owning.receive()

    def hears(self, kind: bytes, number: int, client_id: str, rest: bytes = b"", host: int = OTHER) -> None:
        """Hear something of another host."""
        name = client_id.encode()
        self.owning.heard(kind, _HEAD.pack(host, number, len(name)) + name + rest)
        self.host.settle()

    def pass_time(self, seconds: int) -> None:
        """Let so many seconds pass, with ticks."""
        for _ in range(seconds):
            self.host.pass_time(1)
            self.owning.tick(self.host.now)
            self.host.settle()

    def taken(self, client_id: str, epoch: int, fate: Fate) -> None:
        """Hear that the other host has taken a client id."""
        self.hears(TAKEN, epoch, client_id, bytes([fate]))


@pytest.fixture
def owning() -> Iterator[OwningHost]:
    with contextlib.ExitStack() as ends:
        made = OwningHost(ends)
        yield made
        assert not [each for each in made.host.logs[0].events if each[1] == "internal_error"]

"""A client that connects to three hosts, which drain now and then, and whose workers are killed: in the end one of them
owns it and has its session, whatever the coordinator's answers that are not heard.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque

import pytest

from broker.cluster.owner_messages import OwnerRequest, RequestKind
from broker.worker.draining import Taker
from tests.owning_host import OwningHost
from tests.sansio import START_MS, Peer

NODES = ["one", "two", "three"]


class OneOfThree(OwningHost):
    """A host with two others, and what it has told them."""

    def __init__(self, ends: contextlib.ExitStack, at: int, start_ms: int = START_MS) -> None:
        self.number = at + 1
        self.sent: list[deque[tuple[bytes, bytes]]] = [deque() for _ in NODES]
        super().__init__(ends, start_ms, node_id=NODES[at])

    def number_of(self, node: str) -> int | None:
        return NODES.index(node) + 1 if node in NODES else None

    def node_of(self, number: int) -> str:
        return NODES[number - 1] if 0 < number <= len(NODES) else ""

    def tell_host(self, number: int, kind: bytes, payload: bytes, *, keeps: bool) -> bool:  # noqa: ARG002
        self.sent[number - 1].append((kind, payload))
        return True


class ThreeHosts:
    """Three hosts and their coordinator, of whose answers some are not heard (`unheard`: a share)."""

    def __init__(self, ends: contextlib.ExitStack, seed: int, unheard: float) -> None:
        self.chance = random.Random(seed)
        self.unheard = unheard
        self._ends = ends
        self.hosts = [OneOfThree(ends, at) for at in range(len(NODES))]
        self.owners: dict[str, tuple[str, int]] = {}
        self._epoch = 10

    def step(self) -> bool:
        """Deliver a message, or carry out a request of some host. Return False if there is nothing."""
        messages = [(host, at) for host in self.hosts for at, line in enumerate(host.sent) if line]
        requests = [host for host in self.hosts if host.has_asked()]
        if not messages and not requests:
            return False
        chosen = self.chance.randrange(len(messages) + len(requests))
        if chosen < len(messages):
            host, at = messages[chosen]
            self.hosts[at].owning.heard(*host.sent[at].popleft())
            self.hosts[at].host.settle()
        else:
            host = requests[chosen - len(messages)]
            self._carry_out(host, host.question())
        return True

    def _carry_out(self, host: OneOfThree, request: OwnerRequest) -> None:
        owner = self.owners.get(request.client_id)
        node = NODES[host.number - 1]
        is_free = request.kind is RequestKind.CLAIM and owner is None
        is_taken = request.kind is RequestKind.TAKE and owner is not None and owner[1] == request.epoch
        if is_free or is_taken:
            self._epoch += 1
            owner = self.owners[request.client_id] = node, self._epoch
        elif request.kind is RequestKind.RELEASE and owner == (node, request.epoch):
            del self.owners[request.client_id]
            owner = None
        is_known = self.chance.random() >= self.unheard
        host.answer(request, *((owner or ("", 0)) if is_known else ("", 0)), is_known)

    def pass_time(self, seconds: int) -> None:
        """Let so many seconds pass; not everything is delivered in each."""
        for _ in range(seconds):
            for host in self.hosts:
                host.pass_time(1)
            for _ in range(self.chance.choice([3, 10, 1000])):
                if not self.step():
                    break

    def kill(self, at: int) -> None:
        """Let the worker of a host be killed, with its sessions; what it has told others arrives or not."""
        killed = self.hosts[at]
        self.hosts[at] = OneOfThree(self._ends, at, killed.host.now_ms + 1000)
        for line, left in zip(self.hosts[at].sent, killed.sent, strict=True):
            line += list(left)[: self.chance.randrange(len(left) + 1)]

    def drain(self, draining: set[int]) -> None:
        """Let these hosts drain, if others take their clients."""
        takers = [Taker(at + 1, "") for at in range(len(NODES)) if at not in draining]
        for at, host in enumerate(self.hosts):
            host.owning.draining.set(at in draining, [each for each in takers if each.number != at + 1])


@pytest.mark.parametrize(("unheard", "killed"), [(0, 0), (0.1, 0), (0, 0.1), (0.1, 0.2)])
@pytest.mark.parametrize("seed", [*range(25), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(25, 300))])
def test_in_the_end_one_host_has_the_session_and_owns_it(seed: int, unheard: float, killed: float) -> None:
    with contextlib.ExitStack() as ends:
        three = ThreeHosts(ends, seed, unheard)
        chance, clients, draining = three.chance, list[tuple[OneOfThree, Peer]](), set[int]()
        for _ in range(60):
            action = chance.randrange(6)
            if action < 2:
                host = chance.choice(three.hosts)
                clients.append((host, host.connects("c", clean=chance.random() < 0.1, expiry=600)))
            elif action == 2 and clients:
                host, client = clients.pop()
                if not client.closed:
                    host.host.lose(client)
            elif action == 3:
                draining ^= {chance.randrange(len(NODES))}
                three.drain(draining)
            for _ in range(chance.randrange(6)):
                three.step()
            if chance.random() < killed:
                at = chance.randrange(len(NODES))
                clients = [each for each in clients if each[0] is not three.hosts[at]]
                three.kill(at)
                three.drain(draining)
            if chance.random() < 0.3:
                three.pass_time(chance.choice([1, 3, 12]))
        three.drain(set())
        three.unheard = 0
        for host, client in clients:
            if not client.closed:
                host.host.lose(client)
        three.pass_time(90)
        while three.step():
            pass
        three.pass_time(5)
        found = [(host, host.host.node.sessions.get("c")) for host in three.hosts]
        has = [(NODES[host.number - 1], session.details.epoch) for host, session in found if session is not None]
        assert len(has) <= 1
        assert not has or three.owners["c"] == has[0]

"""A directory of owners on the hosts, as it could be built in place of records in etcd (docs/adr/0051).

Each client id has a *registrar*, a host: rendezvous hashing over the hosts of the *view*, which is the membership
that etcd has, with a number. The registrar has an entry for the client id, with its owner and an epoch, (view,
count). Whoever has no session of a client that connects asks the registrar, which makes him the owner.

When the view changes, every host tells the new registrars which of its sessions have another registrar now (a host that
was no member: all of them). A registrar answers nothing in a view before all hosts of it have done so: an entry that it
lacks may be on its way. So two hosts of one view are never told that they own the same client id.

A host that does not reach the registrar serves the client unproven, as with an etcd that is away. Of two that say that
they own a client id the one with the higher epoch does.

What travels is counted in the format of `broker.cluster.owner_messages`, as links do: what is for one host within a
tick is one message.
"""

from __future__ import annotations

import gc
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Final, NamedTuple

from broker.cluster.owner_messages import (
    OwnerAnswer,
    OwnerRequest,
    RequestKind,
    Standing,
    decode_answers,
    decode_requests,
    encode_answers,
    encode_requests,
)
from tests.benchmarks.owner_simulation import ANSWER_SECONDS, LINK_SECONDS, NOBODY, World
from tests.benchmarks.run_subscriptions import pss_bytes

__all__ = ["DirectoryCosts", "DirectoryOwners", "directory_owners", "measured", "registrar_of"]

CLAIM_BYTES: Final = len(b"".join(encode_requests([OwnerRequest(1, RequestKind.CLAIM, 1 << 32, "s" * 23)])))
_ANSWERS: Final = [
    len(b"".join(encode_answers(Standing(1, True), [OwnerAnswer(1, True, 1, "host-01")] * n))) for n in (1, 2)
]
ANSWER_BYTES: Final = _ANSWERS[1] - _ANSWERS[0]
BULK_BYTES: Final = 64 << 10
"""Of a message with entries for a registrar, at most."""
VIEW_SECONDS: Final = 0.2
"""Within which all hosts hear of a change of membership."""
_DRAWS: Final = struct.Struct("<8Q")
_AT_ONCE: Final = 1000
_PERSON: Final = b"mqttd registrar"
_FIRST: Final = (1, 0)
_UNPROVEN: Final = (0, 0)


def registrar_of(client: int, hosts: Sequence[int]) -> int:
    """Return the host that draws the highest number from a client's name: as `shards.placement`, over any set of
    hosts.
    """
    key = client.to_bytes(8, "little")
    draws = b"".join(
        blake2b(key, person=_PERSON, salt=block.to_bytes(16, "little")).digest() for block in range(hosts[-1] // 8 + 1)
    )
    numbers = [number for block in _DRAWS.iter_unpack(draws) for number in block]
    return max(hosts, key=numbers.__getitem__)


class DirectoryCosts(NamedTuple):
    """Seconds of a host, all its workers together: for an entry that its registrar reads, changes and answers; for a
    session whose registrar is computed; for a byte on the network.
    """

    entry: float
    scan: float
    byte: float


class _Asked(NamedTuple):
    client: int
    host: int
    at: float
    view: int


class DirectoryOwners:
    """The registrars of all hosts."""

    def __init__(self, world: World, costs: DirectoryCosts) -> None:
        hosts = world.fleet.hosts
        self._world = world
        self._costs = costs
        self._members: dict[int, tuple[int, ...]] = {}
        self._registrars: dict[int, list[int]] = {}
        """By view: the registrar of each client."""
        self._see(1, tuple(range(hosts)))
        self._view = [1] * hosts
        self._entries: list[dict[int, tuple[int, tuple[int, int]]]] = [{} for _ in range(hosts)]
        self._epochs: dict[tuple[int, int], tuple[int, int]] = {}
        """By client and host: since when the host owns it, as it knows; not there: from the beginning."""
        self._registered: list[int] = [1] * hosts
        """By host: the last view in which it has all entries."""
        self._arrived: dict[tuple[int, int], set[int]] = {}
        """By registrar and view: the hosts that have told it everything."""
        self._held: list[list[_Asked]] = [[] for _ in range(hosts)]
        """By registrar: what it may not answer yet."""
        self._later: list[list[_Asked]] = [[] for _ in range(hosts)]
        """By host: what it asks when it has another view."""
        self._waiting: dict[tuple[int, int], float] = {}
        """By client and host: since when a client waits for the answer."""
        self._open: dict[tuple[int, int], list[Callable[[], None]]] = {}
        self._busy_until = [0.0] * hosts
        self._count = 0
        for client, host in enumerate(world.home):
            self._entries[self._registrars[1][client]][client] = host, _FIRST

    def _see(self, view: int, members: tuple[int, ...]) -> None:
        self._members[view] = members
        self._registrars[view] = [registrar_of(client, members) for client in range(self._world.fleet.simulated)]

    def owner_of(self, client: int) -> int:
        """Implements Owners."""
        entries = self._entries[self._registrars[max(self._members)][client]]
        return entries.get(client, (NOBODY, _UNPROVEN))[0]

    # ------------------------------------------------------------ what a host asks

    def ask(self, client: int, host: int) -> None:
        """Implements Owners."""
        asked = _Asked(client, host, self._world.now, self._view[host])
        self._waiting[client, host] = asked.at
        self._world.at(asked.at + ANSWER_SECONDS, lambda: self._unproven(asked))
        self._ask(asked)

    def _ask(self, asked: _Asked) -> None:
        world, host = self._world, asked.host
        asked = asked._replace(view=self._view[host])
        registrar = self._registrars[asked.view][asked.client]
        if registrar == host:
            self._handle(registrar, asked)
        elif world.reaches(host, registrar):
            self._send(host, registrar, CLAIM_BYTES, lambda: self._handle(registrar, asked))
        else:
            self._unproven(asked)

    def _unproven(self, asked: _Asked) -> None:
        """Serve the client all the same. In the next view its session is registered as all others are."""
        world, client, host = self._world, asked.client, asked.host
        if self._waiting.get((client, host)) != asked.at:
            return  # it was answered, or is served unproven already
        del self._waiting[client, host]
        world.outcome.unproven += world.fleet.group
        world.outcome.longest_wait = ANSWER_SECONDS
        had = world.home[client]
        others = world.others.setdefault(client, set())
        if had in world.live:
            others.add(had)
        others.discard(host)
        world.home[client] = host
        if not others:
            del world.others[client]
        self._epochs[client, host] = _UNPROVEN

    def _send(self, source: int, target: int, size: int, then: Callable[[], None]) -> None:
        """Send an entry for each client of a group, with others of the same tick."""
        world = self._world
        world.outcome.entries += world.fleet.group
        world.outcome.bytes += world.fleet.group * size
        waiting = self._open.get((source, target))
        if waiting is not None:
            waiting.append(then)
            return
        self._open[source, target] = [then]
        world.outcome.messages += 1

        def arrive() -> None:
            for each in self._open.pop((source, target)):
                each()

        world.at(world.now + LINK_SECONDS, arrive)

    # ------------------------------------------------------------ the registrar

    def _handle(self, registrar: int, asked: _Asked) -> None:
        world = self._world
        if registrar not in world.live or not world.reaches(asked.host, registrar):
            self._unproven(asked)
        elif asked.view < self._view[registrar]:
            self._later[asked.host].append(asked)
        elif asked.view > self._view[registrar] or self._registered[registrar] < asked.view:
            self._held[registrar].append(asked)
        else:
            self._busy_until[registrar] = max(self._busy_until[registrar], world.now) + (
                self._costs.entry * world.fleet.group
            )
            self._count += 1
            epoch = self._view[registrar], self._count
            self._entries[registrar][asked.client] = asked.host, epoch
            world.at(self._busy_until[registrar], lambda: self._answer(registrar, asked, epoch))

    def _answer(self, registrar: int, asked: _Asked, epoch: tuple[int, int]) -> None:
        def owned() -> None:
            world = self._world
            world.outcome.settled = world.now
            if self._waiting.pop((asked.client, asked.host), None) is not None:
                world.outcome.longest_wait = max(world.outcome.longest_wait, world.now - asked.at)
            if self._entries[registrar].get(asked.client) == (asked.host, epoch):
                self._epochs[asked.client, asked.host] = epoch
                world.begin(asked.client, asked.host)

        if registrar == asked.host:
            owned()
        else:
            self._send(registrar, asked.host, ANSWER_BYTES, owned)

    # ------------------------------------------------------------ another view

    def hosts_lost(self, hosts: set[int]) -> None:
        """Implements Owners."""
        last = self._members[max(self._members)]
        self._change(tuple(each for each in last if each not in hosts), set())

    def hosts_back(self, hosts: set[int]) -> None:
        """Implements Owners."""
        for host in hosts:
            self._entries[host].clear()
        self._change(tuple(sorted({*self._members[max(self._members)], *hosts})), hosts)

    def _change(self, members: tuple[int, ...], anew: set[int]) -> None:
        """Let the members hear of the next view. anew: those that tell of all their sessions."""
        world = self._world
        view = max(self._members) + 1
        self._see(view, members)
        for host in members:
            heard = world.now + world.chance.random() * VIEW_SECONDS
            world.at(heard, partial(self._view_heard, host, view, host in anew))

    def _view_heard(self, host: int, view: int, tells_all: bool) -> None:
        former, registrars = self._registrars[self._view[host]], self._registrars[view]
        self._view[host] = view
        told: dict[int, list[int]] = {registrar: [] for registrar in self._members[view]}
        sessions = self._world.sessions(host)
        for client in sessions:
            if tells_all or registrars[client] != former[client]:
                told[registrars[client]].append(client)
        self._tell(host, view, told, len(sessions))
        own = self._entries[host]
        for client in [client for client in own if registrars[client] != host]:
            del own[client]
        self._go_on(self._held, host)
        self._go_on(self._later, host)

    def _go_on(self, waiting: list[list[_Asked]], host: int) -> None:
        again, waiting[host] = waiting[host], []
        for asked in again:
            if waiting is self._held:
                self._handle(host, asked)
            else:
                self._ask(asked)

    def _tell(self, host: int, view: int, told: dict[int, list[int]], sessions: int) -> None:
        """Tell the registrars, one after the other; each of them also that this was all."""
        world, costs, group = self._world, self._costs, self._world.fleet.group
        at = world.now + sessions * group * costs.scan
        for registrar, clients in told.items():
            if registrar != host:
                size = len(clients) * group * CLAIM_BYTES
                world.outcome.entries += len(clients) * group
                world.outcome.bytes += size
                world.outcome.messages += 1 + size // BULK_BYTES
                at += size * costs.byte
            epochs = [(client, self._epochs.get((client, host), _FIRST)) for client in clients]
            world.at(at + LINK_SECONDS, partial(self._register, registrar, host, view, epochs))

    def _register(self, registrar: int, host: int, view: int, clients: list[tuple[int, tuple[int, int]]]) -> None:
        world = self._world
        work = len(clients) * world.fleet.group * self._costs.entry
        self._busy_until[registrar] = done = max(self._busy_until[registrar], world.now) + work
        world.at(done, lambda: self._registered_all(registrar, host, view, clients))

    def _registered_all(self, registrar: int, host: int, view: int, clients: list[tuple[int, tuple[int, int]]]) -> None:
        world, entries = self._world, self._entries[registrar]
        for client, epoch in clients:
            if not world.has(client, host):
                continue  # it has moved meanwhile
            owner, known = entries.get(client, (NOBODY, _UNPROVEN))
            if owner in (NOBODY, host) or owner not in self._members[view] or (known, owner) < (epoch, host):
                if owner not in (host, NOBODY):
                    world.end(client, owner)
                if epoch == _UNPROVEN:
                    self._count += 1
                    epoch = view, self._count
                entries[client] = host, epoch
                self._epochs[client, host] = epoch
            else:
                world.end(client, host)
        arrived = self._arrived.setdefault((registrar, view), set())
        arrived.add(host)
        world.outcome.settled = world.now
        if len(arrived) == len(self._members[view]):
            self._registered[registrar] = view
            self._go_on(self._held, registrar)


def directory_owners(costs: DirectoryCosts) -> Callable[[World], DirectoryOwners]:
    """Return what makes the directory of a world."""
    return lambda world: DirectoryOwners(world, costs)


def measured(count: int, hosts: int) -> dict[str, float]:
    """Measure what the directory costs a host in Python: microseconds of CPU for a request (encoded, read, entered,
    answered, the answer read), and for a session whose registrar is computed; bytes of memory of an entry. The process
    must not be used for another measurement of memory.
    """
    names = [f"sensor-{number:016x}" for number in range(count)]
    packets = [
        packet
        for first in range(0, count, _AT_ONCE)
        for packet in encode_requests(
            OwnerRequest(number, RequestKind.CLAIM, 0, names[number])
            for number in range(first, min(first + _AT_ONCE, count))
        )
    ]
    del names
    entries: dict[bytes, int] = {}
    gc.collect()
    before, began = pss_bytes(), time.process_time()
    answered = 0
    for packet in packets:
        answers = []
        for number, _, _, client_id in decode_requests(packet):
            entries[client_id.encode()] = 1 << 56 | number  # the owner and the epoch
            answers.append(OwnerAnswer(number, True, number, "host-01"))
        for answer in encode_answers(Standing(1, True), answers):
            answered += len(decode_answers(answer)[1])
    entry = time.process_time() - began
    gc.collect()
    memory = pss_bytes() - before
    assert answered == count == len(entries)
    began = time.process_time()
    scanned = count // 10
    for client in range(scanned):
        registrar_of(client, range(hosts))
    scan = time.process_time() - began
    return {
        "entries": count,
        "hosts": hosts,
        "entry_us": entry / count * 1e6,
        "scan_us": scan / scanned * 1e6,
        "memory": memory / count,
    }

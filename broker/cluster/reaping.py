"""What hosts leave behind in the coordinator, and what of it the leader takes away.

Most of it ends by itself: the record of a host, the client ids that it owns, its load and its leadership are bound to
its lease. What is left:

- **Numbers of hosts with their stores in memory.** Such a host is another installation at each start, each with a
  number (`broker.cluster.host_numbers`). It says in a key of its own that it will not come back
  (`in_memory/INSTALLATION`). When no host has had this installation for GONE_SECONDS, both records of its number go. It
  may run all the same, cut off for so long: then it writes them again when it joins. That does no harm, because a
  number is never given to another one: the record of the highest number, from which the next one is counted, stays.
- **Owners that are bound to no lease of their host.** An etcd that was copied without its leases (`etcdctl
  make-mirror`) has them. A record that is bound to another lease than the record of its host is none that this host has
  written as a member, and goes at once. One that is bound to no lease, of a host that is away, goes after GONE_SECONDS.

Nothing else is taken away. The number of a host with its store on disk stays for ever: others have stored under it what
they keep for that host, and it may be back at any time. Owners that are bound to a lease end with it, and with nothing
else.

Every transaction has the leader's condition, and those of all that it has read. One goes at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from broker.cluster.contract import (
    OPERATIONS_MAX,
    Coordination,
    Delete,
    Entry,
    KeyCondition,
    Outcome,
    Put,
)
from broker.cluster.host_numbers import keys_of_number, prefix_of_numbers
from broker.cluster.ownership import prefix_of_owners

__all__ = ["GONE_SECONDS", "PAUSE_SECONDS", "Reaped", "Reaper", "mark_in_memory"]

GONE_SECONDS: Final = 86_400.0
"""What a host that is away has left is not touched for so long, a day."""
PAUSE_SECONDS: Final = 1.0
"""After each page and each transaction."""
_OWNERS_AT_ONCE: Final = (OPERATIONS_MAX - 1) // 2
"""Each has a condition, and its host may have another one; the leader has one."""
_PAGE: Final = 1000
_FORMAT: Final = 1

Transact = Callable[[Sequence[Put | Delete], Sequence[KeyCondition]], Awaitable[Outcome]]


@dataclass(slots=True)
class Reaped:
    """How many of each were taken away."""

    owners: int = 0
    numbers: int = 0


@dataclass(slots=True)
class _Away:
    """Since when hosts are away, as this process has seen, by node id."""

    since: dict[str, float] = field(default_factory=dict)

    def look(self, nodes: set[str], present: Mapping[str, Entry], now: float) -> None:
        """Note which of the nodes are not present."""
        for node in [node for node in self.since if node in present]:
            del self.since[node]
        for node in nodes - present.keys():
            self.since.setdefault(node, now)


async def mark_in_memory(coordination: Coordination, cluster: str, installation: str) -> None:
    """Say that an installation ends with its process. Raises CoordinationError."""
    record = orjson.dumps({"format": _FORMAT})
    await coordination.transact([], [Put(_prefix(cluster, "in_memory") + installation.encode(), record)])


def _prefix(cluster: str, kind: str) -> bytes:
    return f"/mqttd/{cluster}/{kind}/".encode()


class Reaper:
    """Used by the leader. transact: with the leader's condition. installations: those of the hosts that are there.
    clock: seconds that go on; wall: seconds since 1970, in which other leaders go on counting.
    """

    def __init__(
        self,
        coordination: Coordination,
        cluster: str,
        transact: Transact,
        installations: Callable[[], set[str]],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        self._coordination = coordination
        self._cluster = cluster
        self._transact = transact
        self._installations = installations
        self._clock = clock
        self._wall = wall
        self._pause_seconds = pause_seconds
        self._hosts = _prefix(cluster, "hosts")
        self._owners = prefix_of_owners(cluster)
        self._in_memory = _prefix(cluster, "in_memory")
        self._gone = _prefix(cluster, "gone")
        self._away = _Away()
        self.reaped = Reaped()

    async def reap(self) -> None:
        """Look through everything once. Raises CoordinationError: what was not looked at is left for the next time."""
        await self._reap_numbers()
        await self._reap_owners()

    async def _pause(self) -> None:
        await asyncio.sleep(self._pause_seconds)

    # ------------------------------------------------------------ numbers

    async def _reap_numbers(self) -> None:
        marked = (await self._coordination.read_all(self._in_memory)).entries
        gone = {each.key: each for each in (await self._coordination.read_all(self._gone)).entries}
        for mark in marked:
            installation = mark.key.removeprefix(self._in_memory).decode(errors="replace")
            key = self._gone + installation.encode()
            found, is_here = gone.get(key), installation in self._installations()
            if found is None and not is_here:
                record = orjson.dumps({"format": _FORMAT, "since": int(self._wall())})
                await self._transact([Put(key, record)], [KeyCondition(key, 0)])
            elif found is not None and is_here:
                await self._transact([Delete(key)], [KeyCondition(key, found.changed)])
            elif found is not None and self._is_long_gone(found.value):
                await self._reap_number(installation, mark, found)
            else:
                continue
            await self._pause()

    def _is_long_gone(self, record: bytes) -> bool:
        """Whether it is certain; a record that cannot be read, of a later release, is not."""
        try:
            read: Any = orjson.loads(record)
            return bool(read["format"] == _FORMAT and read["since"] + GONE_SECONDS <= self._wall())
        except (KeyError, TypeError, ValueError):
            return False

    async def _reap_number(self, installation: str, mark: Entry, gone: Entry) -> None:
        conditions = [KeyCondition(mark.key, mark.changed), KeyCondition(gone.key, gone.changed)]
        operations: list[Put | Delete] = [Delete(mark.key), Delete(gone.key)]
        of_installation = keys_of_number(self._cluster, installation, 0)[1]
        found = await self._coordination.read(of_installation)
        if found is not None:
            by_number = keys_of_number(self._cluster, installation, int(found.value))[0]
            later = await self._coordination.read_page(prefix_of_numbers(self._cluster), by_number, 1)
            if not later.entries:
                return  # the highest: the next host's is counted from it
            conditions.append(KeyCondition(of_installation, found.changed))
            operations += [Delete(of_installation), Delete(by_number)]
        if (await self._transact(operations, conditions)).done:
            self.reaped.numbers += found is not None

    # ------------------------------------------------------------ owners

    async def _reap_owners(self) -> None:
        after = b""
        while True:
            page = (await self._coordination.read_page(self._owners, after, _PAGE)).entries
            if page:  # the records of hosts are read later: they are newer, or the condition on them does not hold
                await self._reap_owners_of(page)
            if len(page) < _PAGE:
                return
            after = page[-1].key
            await self._pause()

    async def _reap_owners_of(self, page: Sequence[Entry]) -> None:
        view = await self._coordination.read_all(self._hosts)
        hosts = {each.key.removeprefix(self._hosts).decode(errors="replace"): each for each in view.entries}
        named = [(each, each.value.decode(errors="replace")) for each in page]
        now = self._clock()
        self._away.look({node for owner, node in named if owner.lease == 0}, hosts, now)
        left = [(owner, node) for owner, node in named if self._is_left(owner, node, hosts.get(node), now)]
        for batch in _batches(left):
            conditions = [KeyCondition(owner.key, owner.changed) for owner, _ in batch]
            for node in sorted({node for _, node in batch}):
                host = hosts.get(node)
                conditions.append(KeyCondition(self._hosts + node.encode(), 0 if host is None else host.changed))
            if (await self._transact([Delete(owner.key) for owner, _ in batch], conditions)).done:
                self.reaped.owners += len(batch)
            await self._pause()

    def _is_left(self, owner: Entry, node: str, host: Entry | None, now: float) -> bool:
        """Whether an owner is none that its host has written as the member that it is."""
        if host is not None:
            return owner.lease != host.lease and owner.changed < host.changed
        return owner.lease == 0 and now - self._away.since[node] >= GONE_SECONDS


def _batches(owners: Sequence[tuple[Entry, str]]) -> Iterator[Sequence[tuple[Entry, str]]]:
    for begin in range(0, len(owners), _OWNERS_AT_ONCE):
        yield owners[begin : begin + _OWNERS_AT_ONCE]

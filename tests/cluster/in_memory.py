"""Coordination in memory: the same contract as etcd, one object for all hosts, with a clock and faults of its own."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence

from broker.cluster.contract import (
    OPERATIONS_MAX,
    Compacted,
    Delete,
    Entry,
    KeyChange,
    KeyChanges,
    KeyCondition,
    LeaseEnded,
    Outcome,
    Put,
    Unreachable,
    View,
)

__all__ = ["Connection", "CoordinatorInMemory"]


class CoordinatorInMemory:
    """The state that all hosts share. `clock`: seconds, for leases; whoever moves it calls `expire` afterwards."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.revision = 1
        self.transactions = 0
        self._entries: dict[bytes, Entry] = {}
        self._history: list[tuple[int, KeyChange]] = []
        self._kept_from = 0
        self._leases: dict[int, tuple[int, float]] = {}
        self._next_lease = 1
        self._woken = asyncio.Event()

    def connect(self) -> Connection:
        """Return one host's connection."""
        return Connection(self)

    def compact(self) -> None:
        """Forget the history up to now."""
        self._kept_from = self.revision
        self._history.clear()

    def expire(self) -> None:
        """End the leases whose time is over."""
        now = self.clock()
        for lease in [each for each, (_, ends) in self._leases.items() if ends <= now]:
            self.end_lease(lease)

    # ------------------------------------------------------------ for connections

    def entry(self, key: bytes) -> Entry | None:
        self.expire()
        return self._entries.get(key)

    def view(self, prefix: bytes) -> View:
        self.expire()
        found = sorted((each for each in self._entries.values() if each.key.startswith(prefix)), key=lambda e: e.key)
        return View(self.revision, found)

    def transact(self, conditions: Sequence[KeyCondition], operations: Sequence[Put | Delete]) -> Outcome:
        self.expire()
        self.transactions += 1
        found = [self._entries.get(each.key) for each in conditions]
        if any(
            each.changed != (0 if entry is None else entry.changed)
            for each, entry in zip(conditions, found, strict=True)
        ):
            return Outcome(False, self.revision, found)
        for each in operations:
            if isinstance(each, Put) and each.lease and each.lease not in self._leases:
                raise LeaseEnded(f"lease {each.lease} has ended")
        self._change(operations)
        return Outcome(True, self.revision)

    def grant(self, seconds: int) -> int:
        lease, self._next_lease = self._next_lease, self._next_lease + 1
        self._leases[lease] = seconds, self.clock() + seconds
        return lease

    def renew(self, lease: int) -> int:
        self.expire()
        if lease not in self._leases:
            raise LeaseEnded(f"lease {lease} has ended")
        seconds, _ = self._leases[lease]
        self._leases[lease] = seconds, self.clock() + seconds
        return seconds

    def end_lease(self, lease: int) -> None:
        if self._leases.pop(lease, None) is not None:
            bound = sorted(key for key, entry in self._entries.items() if entry.lease == lease)
            self._change([Delete(key) for key in bound])

    def changes_after(self, revision: int) -> tuple[int, list[KeyChange]]:
        if revision < self._kept_from:
            raise Compacted(f"nothing is kept before revision {self._kept_from}")
        begin = bisect_right(self._history, revision, key=lambda each: each[0])
        return self.revision, [change for _, change in self._history[begin:]]

    def next_change(self) -> asyncio.Event:
        """Return an event that the next change sets."""
        return self._woken

    def _change(self, operations: Sequence[Put | Delete]) -> None:
        at = self.revision + 1
        changes = []
        for each in operations:
            former = self._entries.get(each.key)
            if isinstance(each, Put):
                entry = Entry(each.key, each.value, at if former is None else former.created, at, each.lease)
                self._entries[each.key] = entry
                changes.append(KeyChange(each.key, entry))
            elif former is not None:
                del self._entries[each.key]
                changes.append(KeyChange(each.key, None))
        if changes:
            self.revision = at
            self._history += ((at, change) for change in changes)
            self._woken.set()
            self._woken = asyncio.Event()


class Connection:
    """Implements `broker.cluster.contract.Coordination` for one host. `is_cut`: nothing reaches the coordinator.
    `loses_answers`: what a transaction does is done, but nobody hears of it.
    """

    def __init__(self, shared: CoordinatorInMemory) -> None:
        self._shared = shared
        self.is_cut = False
        self.loses_answers = False

    async def _reach(self) -> CoordinatorInMemory:
        await asyncio.sleep(0)
        if self.is_cut:
            raise Unreachable("the coordinator is out of reach")
        return self._shared

    async def read(self, key: bytes) -> Entry | None:
        return (await self._reach()).entry(key)

    async def read_all(self, prefix: bytes) -> View:
        if not prefix:
            raise ValueError("a prefix has at least one byte")
        return (await self._reach()).view(prefix)

    async def read_page(self, prefix: bytes, after: bytes, limit: int) -> View:
        if not prefix or limit < 1:
            raise ValueError("a page has a prefix of at least one byte, and at least one key")
        view = (await self._reach()).view(prefix)
        return View(view.revision, [each for each in view.entries if each.key > after][:limit])

    async def transact(self, conditions: Sequence[KeyCondition], operations: Sequence[Put | Delete]) -> Outcome:
        if len(conditions) > OPERATIONS_MAX or len(operations) > OPERATIONS_MAX:
            raise ValueError(f"a transaction has at most {OPERATIONS_MAX} conditions and as many operations")
        if len({each.key for each in operations}) < len(operations):
            raise ValueError("a transaction names each key in one operation at most")
        outcome = (await self._reach()).transact(conditions, operations)
        if self.loses_answers:
            raise Unreachable("the answer was lost")
        return outcome

    async def grant(self, seconds: int) -> int:
        return (await self._reach()).grant(seconds)

    async def keep_alive(self, lease: int) -> int:
        return (await self._reach()).renew(lease)

    async def revoke(self, lease: int) -> None:
        (await self._reach()).end_lease(lease)

    async def watch(self, prefix: bytes, revision: int) -> AsyncIterator[KeyChanges]:
        while True:
            woken = self._shared.next_change()
            if not self.is_cut:
                at, changes = self._shared.changes_after(revision)
                changes = [each for each in changes if each.key.startswith(prefix)]
                if changes:
                    yield KeyChanges(at, changes)
                revision = at
            await woken.wait()

    async def close(self) -> None:
        """Nothing is open."""

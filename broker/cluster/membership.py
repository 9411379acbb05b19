"""Membership of a host: its leased record in the coordinator, and what the records of the others say.

A host joins as `joining`, and says itself when it is ready. Its record ends with its lease: when the host leaves, or
cannot renew it for LEASE_SECONDS. After a restart it goes on with the lease that it had, if that has not ended, so that
what is bound to it (the client ids that it owns) stays.

Until `proven_until` no other host can have seen this one's lease end. Etcd counts from when it hears of a renewal,
which is later than the call that asked for it; and it counts by another clock, for which DRIFT is left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Protocol

from broker.cluster.contract import Compacted, Coordination, Denied, Entry, KeyCondition, LeaseEnded, Put, Unreachable
from broker.cluster.host_record import NODE_ID, HostRecord, HostState, MalformedHostRecord

__all__ = ["DRIFT", "LEASE_SECONDS", "HostMembership", "MembershipEvents", "boot_time"]

LEASE_SECONDS: Final = 10
"""Long enough for an election of etcd's leader (1 s to 2 s), and for a host that is stopped for a moment."""
DRIFT: Final = 0.05
"""By how much two clocks may differ in speed: far more than clocks do, and half a second of a lease."""
_RENEWALS: Final = 4  # within the time of a lease
_RETRY_SECONDS: Final = 0.5
_REFUSED_SECONDS: Final = 5.0


def boot_time() -> float:
    """Return seconds since the machine started, including those in which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class MembershipEvents(Protocol):
    """What a membership tells. Called in its event loop."""

    def hosts_changed(self, hosts: Mapping[str, HostRecord]) -> None:
        """The hosts by node id, this one among them if it has joined. Also called for the first view."""

    def joined(self, incarnation: int, lease: int, kept_lease: bool) -> None:
        """The host is a member. `kept_lease`: what was bound to its former lease still is, now to this one."""

    def lost(self) -> None:
        """The host's lease has ended against its will: what was bound to it is gone. It joins again by itself."""

    def node_id_taken(self, by: HostRecord) -> None:
        """Another host has this node id. Said once per such host; it joins when that one is gone."""

    def malformed(self, error: MalformedHostRecord) -> None:
        """A record could not be read: that host is not seen. Said once per record."""

    def out_of_reach(self, reason: str) -> None:
        """The coordinator does not answer, or refuses. Said once, until `reached`."""

    def reached(self) -> None:
        """It answers again."""


class HostMembership:
    """`run` it as a task. `cluster`: the name under which all its hosts find each other."""

    def __init__(
        self,
        coordination: Coordination,
        cluster: str,
        own: HostRecord,
        events: MembershipEvents,
        *,
        lease_seconds: int = LEASE_SECONDS,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        """`own`: this host; its incarnation and state are set here. Raises ValueError for an impossible name."""
        if not NODE_ID.fullmatch(cluster):
            raise ValueError(f"{cluster!r} is no name of a cluster: letters, digits, '.', '_' and '-', at most 63")
        if not NODE_ID.fullmatch(own.node):
            raise ValueError(f"{own.node!r} is no node id: letters, digits, '.', '_' and '-', at most 63")
        HostRecord.decode(own.node, own.changed(HostState.JOINING, 1).encode())  # as others will read it
        self._coordination = coordination
        self._prefix = f"/mqttd/{cluster}/hosts/".encode()
        self._key = self._prefix + own.node.encode()
        self._own = own
        self._events = events
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._state = HostState.JOINING
        self._written: HostRecord | None = None
        self._changed = 0  # the revision of our record
        self._lease = 0
        self._granted: set[int] = set()  # leases that are ours, and no former process's
        self._is_displaced = False  # a copy of this installation has our node id
        self._seconds = lease_seconds  # of the lease that we have
        self._hosts: dict[str, HostRecord] = {}
        self._unreadable: dict[bytes, int] = {}  # by key: the revision of a record that could not be read
        self._taken_by: tuple[str, int] | None = None  # installation and incarnation of another host with our node id
        self._is_doubted = False  # our record may not be there any more
        self._failing: set[str] = set()  # which of our two tasks the coordinator does not serve
        self._work = asyncio.Event()
        self.proven_until = 0.0
        """Until this time, by `clock`, no other host can take this one for dead."""

    @property
    def hosts(self) -> Mapping[str, HostRecord]:
        """The hosts as last seen, by node id."""
        return MappingProxyType(self._hosts)

    @property
    def lease(self) -> int:
        """The lease of this host; 0: it is no member."""
        return self._lease if self._written is not None else 0

    @property
    def is_proven(self) -> bool:
        """Whether this host surely has its lease."""
        return self._clock() < self.proven_until

    def set_state(self, state: HostState) -> None:
        """Tell the others, as soon as the coordinator can be reached."""
        self._state = state
        self._work.set()

    async def leave(self) -> None:
        """End the lease, and with it the record and everything else that is bound to it. After `run` was cancelled.
        Raises CoordinationError; then the lease ends by itself.
        """
        self.proven_until = 0.0
        if self._lease:
            found = await self._coordination.read(self._key)
            if found is None or self._is_ours(found):
                await self._coordination.revoke(self._lease)
            self._lease = 0

    async def run(self) -> None:
        """Join, stay a member and watch the others, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            group.create_task(self._stay())

    # ------------------------------------------------------------ this host

    async def _stay(self) -> None:
        while True:
            pause = _RETRY_SECONDS
            self._work.clear()
            try:
                if self._written is None:
                    await self._join()
                else:
                    await self._renew()
                if self._written is not None:
                    await self._write_state()
                    pause = self._seconds / _RENEWALS
                self._reached("own")
            except LeaseEnded:
                was_member = self._written is not None
                self._lease, self._written, self.proven_until = 0, None, 0.0
                if was_member:
                    self._events.lost()
            except (Unreachable, Denied) as error:
                self._out_of_reach("own", error)
                pause = _REFUSED_SECONDS if isinstance(error, Denied) else _RETRY_SECONDS
            try:
                async with asyncio.timeout(pause):
                    await self._work.wait()
            except TimeoutError:
                continue

    async def _join(self) -> None:
        view = await self._coordination.read_all(self._key)
        found = next((each for each in view.entries if each.key == self._key), None)
        lease = self._former_lease(found)
        if lease is None:
            return
        asked = self._clock()
        try:
            seconds = await self._coordination.keep_alive(lease) if lease else self._lease_seconds
        except LeaseEnded:
            return  # so will the record
        if not lease:
            asked = self._clock()
            lease = await self._coordination.grant(self._lease_seconds)
            self._granted.add(lease)
        # each join reads a revision after the former one wrote its record, so this rises
        own = self._own.changed(self._state, view.revision)
        condition = KeyCondition(self._key, 0 if found is None else found.changed)
        self._lease = lease  # so that `leave` ends it, also if the answer is lost
        outcome = await self._coordination.transact([condition], [Put(self._key, own.encode(), lease)])
        if not outcome.done:
            return
        self._written, self._changed = own, outcome.revision
        self._prove(asked, seconds)
        self._is_displaced = False
        self._events.joined(own.incarnation, lease, lease not in self._granted)

    def _former_lease(self, found: Entry | None) -> int | None:
        """Return the lease with which to join; 0: a new one, None: another host has this node id."""
        if found is None:
            return 0
        try:
            by = HostRecord.decode(self._own.node, found.value)
        except MalformedHostRecord:
            return None  # `_watch` reports it; it is a later release's, which does not let its lease end by mistake
        if by.installation == self._own.installation and not self._is_displaced:
            return found.lease
        self._is_taken(by)
        return None

    def _is_taken(self, by: HostRecord) -> None:
        if self._taken_by != (by.installation, by.incarnation):
            self._taken_by = by.installation, by.incarnation
            self._events.node_id_taken(by)

    async def _renew(self) -> None:
        asked = self._clock()
        self._prove(asked, await self._coordination.keep_alive(self._lease))

    def _prove(self, asked: float, seconds: int) -> None:
        self._seconds = seconds
        self.proven_until = max(self.proven_until, asked + seconds * (1 - DRIFT))

    async def _write_state(self) -> None:
        """Write our record if the state has changed, and look at it if it may not be ours any more."""
        written = self._written
        assert written is not None
        if written.state is not self._state:
            own = written.changed(self._state)
            condition, operations = KeyCondition(self._key, self._changed), [Put(self._key, own.encode(), self._lease)]
            outcome = await self._coordination.transact([condition], operations)
            if outcome.done:
                self._written, self._changed = own, outcome.revision
            else:
                await self._look_at(outcome.found[0])
        elif self._is_doubted:
            self._is_doubted = False
            try:
                found = await self._coordination.read(self._key)
            except BaseException:
                self._is_doubted = True
                raise
            await self._look_at(found)

    def _is_ours(self, found: Entry) -> bool:
        """Whether a record under our node id was written by this process."""
        try:
            by = HostRecord.decode(self._own.node, found.value)
        except MalformedHostRecord:
            return False
        written = self._written
        return by.installation == self._own.installation and (written is None or by.incarnation == written.incarnation)

    async def _look_at(self, found: Entry | None) -> None:
        """Take what the coordinator has as our record. Raises LeaseEnded if it is not ours."""
        assert self._written is not None
        if found is None:
            await self._coordination.revoke(self._lease)  # so that what is bound to it ends, as `lost` says
            raise LeaseEnded("the record of this host was deleted")
        try:
            by = HostRecord.decode(self._own.node, found.value)
        except MalformedHostRecord as error:
            raise LeaseEnded("the record of this host was replaced") from error
        if not self._is_ours(found):
            self._is_displaced = by.installation == self._own.installation  # a copy of the data directory
            self._is_taken(by)
            raise LeaseEnded("the record of this host was replaced")
        self._written, self._changed = by, found.changed  # an answer was lost

    # ------------------------------------------------------------ the others

    async def _watch(self) -> None:
        while True:
            try:
                view = await self._coordination.read_all(self._prefix)
                self._hosts = {}
                for entry in view.entries:
                    self._take(entry.key, entry)
                if all(entry.key != self._key for entry in view.entries):
                    self._take(self._key, None)
                self._reached("others")
                self._events.hosts_changed(self.hosts)
                async for changes in self._coordination.watch(self._prefix, view.revision):
                    for change in changes.changes:
                        self._take(change.key, change.entry)
                    if changes.changes:
                        self._events.hosts_changed(self.hosts)
            except Compacted:
                continue
            except (Unreachable, Denied) as error:
                self._out_of_reach("others", error)
                await asyncio.sleep(_REFUSED_SECONDS if isinstance(error, Denied) else _RETRY_SECONDS)

    def _take(self, key: bytes, entry: Entry | None) -> None:
        node = key.removeprefix(self._prefix).decode(errors="replace")
        if key == self._key and (entry is None or entry.changed > self._changed):
            self._is_doubted = True
            self._work.set()
        if entry is None:
            self._hosts.pop(node, None)
            self._unreadable.pop(key, None)
            return
        try:
            self._hosts[node] = HostRecord.decode(node, entry.value)
        except MalformedHostRecord as error:
            self._hosts.pop(node, None)
            if self._unreadable.get(key) != entry.changed:
                self._unreadable[key] = entry.changed
                self._events.malformed(error)

    def _out_of_reach(self, task: str, error: Exception) -> None:
        if not self._failing:
            self._events.out_of_reach(str(error))
        self._failing.add(task)

    def _reached(self, task: str) -> None:
        if task in self._failing:
            self._failing.discard(task)
            if not self._failing:
                self._events.reached()

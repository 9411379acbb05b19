"""Which control process of the cluster leads: the one whose key in the coordinator it is.

The key ends with the lease of its host. Whoever finds it missing tries to write it, and the first one leads; nobody is
preferred. The *term* of a leader is the revision at which it has written the key, so terms rise for ever.

    leading/leader    {"format": 1, "node": NODE}
    leading/NAME      what the leader writes for all hosts; bound to its lease, so that it ends with it

What a leader writes has the condition that its key is as it has written it (`transact`). So a former leader that was
stopped, or cut off, writes nothing any more, however late its transaction comes. And it does nothing from the moment on
at which its lease is not proven (`is_leader`), which is before any other one can lead.

A host that does not know who leads, or a cluster in which nobody does, serves clients all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import orjson

from broker.cluster.contract import (
    Compacted,
    Coordination,
    CoordinationError,
    Delete,
    Denied,
    Entry,
    KeyChanges,
    KeyCondition,
    Outcome,
    Put,
)
from broker.cluster.host_record import NODE_ID

__all__ = ["Election", "ElectionEvents", "NotLeading", "prefix_of"]

_FORMAT: Final = 1
_LEADER: Final = "leader"
_LOOK_SECONDS: Final = 0.5
"""Pause after which a host without a leader tries again, and at which one looks whether it may try."""


class NotLeading(CoordinationError):
    """The host does not lead, or no longer: nothing was written, unless it led when it was."""


class ElectionEvents(Protocol):
    """What an election tells. Called in its event loop."""

    def leader_changed(self, node: str, term: int) -> None:
        """The host that leads, and since which revision. node "": nobody does, or its key cannot be read."""

    def leader_malformed(self, reason: str) -> None:
        """The leader's key cannot be read. Nobody else leads until it ends."""

    def election_refused(self, reason: str) -> None:
        """The coordinator refuses to let this host read or write the leader's keys. Said once, until it does not."""

    def written(self, name: str, entry: Entry | None) -> None:
        """What the leader has written under a name; None: it is gone."""


def prefix_of(cluster: str) -> bytes:
    """Return the prefix of the keys that belong to the leader."""
    return f"/mqttd/{cluster}/leading/".encode()


class Election:
    """`run` it as a task. lease: returns that of this host, 0: it is no member. is_proven: whether it surely has it."""

    def __init__(
        self,
        coordination: Coordination,
        cluster: str,
        node: str,
        lease: Callable[[], int],
        is_proven: Callable[[], bool],
        events: ElectionEvents,
    ) -> None:
        self._coordination = coordination
        self._prefix = prefix_of(cluster)
        self._key = self._prefix + _LEADER.encode()
        self._node = node
        self._record = orjson.dumps({"format": _FORMAT, "node": node})
        self._lease = lease
        self._is_proven = is_proven
        self._events = events
        self._entry: Entry | None = None
        """The leader's key, as last seen."""
        self._has_seen = False
        self._own_term = 0
        """The term in which this process was elected last."""
        self._names: set[str] = set()
        """What leaders have written, and is there."""
        self._work = asyncio.Event()
        self._counted = 0
        """The term that `changes` has counted last."""
        self._is_refused = False
        self.leader = ""
        """The node id of the host that leads; "": nobody, or it is not known."""
        self.term = 0
        """Its term."""
        self.changes = 0
        """How often another term has begun, as far as this process has seen; the one that it found is the first."""

    @property
    def is_leader(self) -> bool:
        """Whether this process surely leads."""
        entry = self._entry
        is_own = entry is not None and entry.changed == self._own_term and entry.lease == self._lease()
        return is_own and self._is_proven()

    async def transact(
        self, operations: Sequence[Put | Delete], conditions: Sequence[KeyCondition] = (), *, term: int = 0
    ) -> Outcome:
        """Do these operations if this process leads, in this term unless that is 0, and the conditions hold. Raises
        NotLeading, and what `Coordination.transact` raises. One condition less than that takes is allowed.
        """
        own = self._own_term
        if not self.is_leader or term not in (0, own):
            raise NotLeading("this host does not lead the cluster")
        outcome = await self._coordination.transact([KeyCondition(self._key, own), *conditions], operations)
        if outcome.done:
            return outcome
        found, *others = outcome.found
        if found is None or found.changed != own:
            self._take(found, outcome.revision)
            raise NotLeading("another host leads the cluster")
        return Outcome(False, outcome.revision, others)

    async def resign(self) -> None:
        """Let another host lead, if this one does. Raises CoordinationError."""
        if self.is_leader:
            outcome = await self.transact([Delete(self._key)])
            self._take(None, outcome.revision)

    def key_of(self, name: str) -> bytes:
        """Return the key under which the leader writes for all hosts."""
        return self._prefix + name.encode()

    async def run(self) -> None:
        """Stand for election, and follow it, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            group.create_task(self._stand())

    # ------------------------------------------------------------ standing

    async def _stand(self) -> None:
        while True:
            self._work.clear()
            try:
                await self._try()
            except CoordinationError as error:
                self._failed(error)
                await asyncio.sleep(_LOOK_SECONDS)  # it may have been done all the same: then the watch shows it
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._work.wait()
            except TimeoutError:
                continue

    async def _try(self) -> None:
        """Write the leader's key, if it is nobody's, or of this host before its process was started anew."""
        lease, entry = self._lease(), self._entry
        if not self._has_seen or not lease or not self._is_proven() or (entry is not None and not self._is_free(entry)):
            return
        condition = KeyCondition(self._key, 0 if entry is None else entry.changed)
        outcome = await self._coordination.transact([condition], [Put(self._key, self._record, lease)])
        if not outcome.done:
            self._take(outcome.found[0], outcome.revision)
            return
        self._own_term = outcome.revision
        created = outcome.revision if entry is None else entry.created
        self._take(Entry(self._key, self._record, created, outcome.revision, lease), outcome.revision)

    def _is_free(self, entry: Entry) -> bool:
        """Whether a key stands for nobody who runs: without a lease it would stay for ever (a copied etcd)."""
        if entry.lease == 0:
            return True
        return entry.value == self._record and entry.lease == self._lease() and entry.changed != self._own_term

    # ------------------------------------------------------------ following

    async def _follow(self) -> None:
        while True:
            try:
                view = await self._coordination.read_all(self._prefix)
                entries = {each.key: each for each in view.entries}
                self._has_seen, self._is_refused = True, False
                self._entry = None  # the revisions of an etcd that has lost its data are lower
                self._take(entries.pop(self._key, None), view.revision)
                gone = self._names - {self._name_of(key) for key in entries}
                for name in sorted(gone):
                    self._note(name, None)
                for key, entry in entries.items():
                    self._note(self._name_of(key), entry)
                async for changes in self._coordination.watch(self._prefix, view.revision):
                    self._watched(changes)
            except Compacted:
                continue
            except CoordinationError as error:
                self._failed(error)
                await asyncio.sleep(_LOOK_SECONDS)

    def _failed(self, error: CoordinationError) -> None:
        """Report what does not pass by itself. Whether the coordinator is there, the membership says."""
        if isinstance(error, Denied) and not self._is_refused:
            self._is_refused = True
            self._events.election_refused(str(error))

    def _watched(self, changes: KeyChanges) -> None:
        last = {change.key: change.entry for change in changes.changes}
        if self._key in last:
            self._take(last.pop(self._key), changes.revision)
        for key, entry in last.items():
            self._note(self._name_of(key), entry)

    def _name_of(self, key: bytes) -> str:
        return key.removeprefix(self._prefix).decode(errors="replace")

    def _note(self, name: str, entry: Entry | None) -> None:
        if entry is None:
            self._names.discard(name)
        else:
            self._names.add(name)
        self._events.written(name, entry)

    def _take(self, entry: Entry | None, revision: int) -> None:
        """Take what the leader's key was at a revision, unless a later one is known."""
        known = self._entry
        if known is not None and (entry.changed if entry is not None else revision) < known.changed:
            return
        self._entry = entry
        node, term = "", 0
        if entry is not None:
            term = entry.changed
            try:
                node = _node_in(entry.value)
            except ValueError as error:
                if known is None or known.changed != entry.changed:
                    self._events.leader_malformed(str(error))
        if (node, term) != (self.leader, self.term):
            if term not in (0, self._counted):
                self._counted = term
                self.changes += 1
            self.leader, self.term = node, term
            self._events.leader_changed(node, term)
        self._work.set()


def _node_in(record: bytes) -> str:
    """Return the node id in the leader's record. Raises ValueError."""
    read = orjson.loads(record)
    if not isinstance(read, dict) or read.get("format") != _FORMAT:
        raise ValueError(f"it is no object of format {_FORMAT}")
    node = read.get("node")
    if not isinstance(node, str) or not NODE_ID.fullmatch(node):
        raise ValueError(f"{node!r} is no node id")
    return node

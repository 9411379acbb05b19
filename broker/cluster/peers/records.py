"""The keys that peers agree on, and the records that change them.

Every peer applies the same records in the same order, and so has the same keys. A record has a *revision*: microseconds
of the leader's wall clock with TAG_BITS bits of its own behind them, or one more than the former revision if that is
higher. So revisions rise from record to record, over changes of the leader, and when every peer has lost its memory.

A *ballot* is the right to lead: a term and the run (of a peer's process) that has it; no two are the same. A record is
known by its *position*: the ballot of the leader that made it, and its revision.

What is bound to no lease (the numbers of hosts) is *kept*: on the disk of each host that has one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from broker.cluster.contract import Delete, Entry, KeyChange, Put

__all__ = [
    "NOWHERE",
    "TAG_BITS",
    "Ballot",
    "EndLease",
    "GrantLease",
    "KeySpace",
    "Position",
    "Record",
    "RecordOperation",
    "revision_after",
]

TAG_BITS: Final = 10
_MICROSECONDS_MAX: Final = 1 << 52  # until the year 2112; a clock beyond that counts as that
_VALUES_KEPT: Final = 256


class Ballot(NamedTuple):
    """The right to lead. The higher one counts."""

    term: int
    run: str


class Position(NamedTuple):
    """Where a log ends. Of two logs the one with the higher position is the newer one."""

    ballot: Ballot
    revision: int


NOWHERE: Final = Position(Ballot(0, ""), 0)


@dataclass(frozen=True, slots=True)
class GrantLease:
    """Makes a lease, whose number is the revision of its record."""

    seconds: int


@dataclass(frozen=True, slots=True)
class EndLease:
    """Ends a lease, and deletes the keys that are bound to it."""

    lease: int


RecordOperation = Put | Delete | GrantLease | EndLease


@dataclass(slots=True)
class Record:
    """One step of all peers. `size`: bytes of its operations, about. `changes`: what it has changed, once applied."""

    position: Position
    operations: tuple[RecordOperation, ...]
    size: int = 0
    changes: list[KeyChange] = field(default_factory=list)

    @property
    def revision(self) -> int:
        """Of its position."""
        return self.position.revision


def revision_after(revision: int, wall_seconds: float, tag: int) -> int:
    """Return the next revision of the leader with this tag."""
    now = min(max(int(wall_seconds * 1_000_000), 0), _MICROSECONDS_MAX)
    return max(revision + 1, now << TAG_BITS | tag)


class KeySpace:
    """The keys as of a position, by the records that were applied. Used by one peer."""

    def __init__(self) -> None:
        self.at = NOWHERE
        self.kept_at = NOWHERE
        """The last record that has changed what is bound to no lease."""
        self.entries: dict[bytes, Entry] = {}
        self.kept: dict[bytes, Entry] = {}
        """Those of the entries that are bound to no lease."""
        self.leases: dict[int, int] = {}
        """The seconds of each."""
        self._bound: dict[int, set[bytes]] = {}
        self._values: dict[bytes, bytes] = {}

    def apply(self, record: Record) -> None:
        """Take the next record, and note in it what it has changed."""
        for each in record.operations:
            if isinstance(each, Put):
                self._put(record, each)
            elif isinstance(each, Delete):
                self._delete(record, each.key)
            elif isinstance(each, GrantLease):
                self.leases[record.revision] = each.seconds
            else:
                self._end(record, each.lease)
        self.at = record.position

    def _put(self, record: Record, put: Put) -> None:
        if put.lease and put.lease not in self.leases:
            return  # it has ended between the question and this record: then its keys are gone
        former = self.entries.get(put.key)
        created = record.revision if former is None else former.created
        if former is not None and former.lease:
            self._bound[former.lease].discard(put.key)
        entry = Entry(put.key, self._one(put.value), created, record.revision, put.lease)
        self._insert(entry)
        if not put.lease or (former is not None and not former.lease):
            self.kept_at = record.position
        record.changes.append(KeyChange(put.key, entry))

    def _one(self, value: bytes) -> bytes:
        """Return a value equal to this one that many keys share: the names of hosts are few, and their clients many."""
        if len(value) > 64:
            return value
        if len(self._values) >= _VALUES_KEPT:
            self._values.clear()
        return self._values.setdefault(value, value)

    def _insert(self, entry: Entry) -> None:
        self.entries[entry.key] = entry
        if entry.lease:
            self._bound.setdefault(entry.lease, set()).add(entry.key)
            self.kept.pop(entry.key, None)
        else:
            self.kept[entry.key] = entry

    def _delete(self, record: Record, key: bytes) -> None:
        former = self.entries.pop(key, None)
        if former is None:
            return
        if former.lease:
            self._bound[former.lease].discard(key)
        else:
            del self.kept[key]
            self.kept_at = record.position
        record.changes.append(KeyChange(key, None))

    def _end(self, record: Record, lease: int) -> None:
        if self.leases.pop(lease, None) is None:
            return
        for key in sorted(self._bound.pop(lease, ())):
            del self.entries[key]
            record.changes.append(KeyChange(key, None))

    def found(self, position: Position) -> None:
        """Begin anew with what is kept, and no lease, at a position."""
        self.reset(position, self.kept_at, list(self.kept.values()), {})

    def reset(self, at: Position, kept_at: Position, entries: Iterable[Entry], leases: dict[int, int]) -> None:
        """Take over all keys and leases of another peer, as of a position."""
        self.at, self.kept_at = at, kept_at
        self.entries, self.kept, self._bound = {}, {}, {}
        self.leases = dict(leases)
        for each in entries:
            self._insert(each)

    def with_prefix(self, prefix: bytes) -> list[Entry]:
        """Return the entries whose keys begin with a prefix, by key."""
        found = [each for key, each in self.entries.items() if key.startswith(prefix)]
        return sorted(found, key=lambda each: each.key)

    def first_with_prefix(self, prefix: bytes, after: bytes, limit: int) -> list[Entry]:
        """Return the first ones of these whose keys come behind a key."""
        found = (each for key, each in self.entries.items() if key > after and key.startswith(prefix))
        return heapq.nsmallest(limit, found, key=lambda each: each.key)

"""One peer's copy of the keys, with the records that led to it: those that are applied, for watches and for peers that
are behind, and those that are not yet.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

from broker.cluster.contract import Compacted, Entry, KeyChange
from broker.cluster.peers.records import KeySpace, Position, Record

__all__ = ["CHANGES_KEPT", "Replica"]

CHANGES_KEPT: Final = 100_000
"""Changes that are remembered. Whoever is further behind reads everything anew."""


def _revision(record: Record) -> int:
    return record.revision


class Replica:
    """Used by one peer."""

    def __init__(self, changes_kept: int = CHANGES_KEPT) -> None:
        self.keys = KeySpace()
        self.discards = 0
        """How often what was applied was replaced by what others have."""
        self._changes_kept = changes_kept
        self._records: list[Record] = []
        self._applied = 0  # so many of them
        self._changes = 0  # of those
        self._base = self.keys.at  # before the first of them

    @property
    def last(self) -> Position:
        """The position of the last record, applied or not."""
        return self._records[-1].position if self._records else self._base

    @property
    def pending(self) -> Sequence[Record]:
        """The records that are not applied yet."""
        return self._records[self._applied :]

    def behind(self, position: Position, bytes_max: int) -> list[Record] | None:
        """Return the records behind a position, as many as have so many bytes, at least one if there is one. None: it
        is not known here.
        """
        begin = self._index_behind(position)
        if begin is None:
            return None
        found: list[Record] = []
        size = 0
        for at in range(begin, len(self._records)):
            record = self._records[at]
            size += record.size
            if found and size > bytes_max:
                break
            found.append(record)
        return found

    def _index_behind(self, position: Position) -> int | None:
        if position == self._base:
            return 0
        at = bisect_left(self._records, position.revision, key=_revision)
        if at < len(self._records) and self._records[at].position == position:
            return at + 1
        return None

    def append(self, record: Record) -> None:
        """Add a record of this peer as the leader."""
        self._records.append(record)

    def accept(self, behind: Position, records: Sequence[Record]) -> bool:
        """Add the records of a leader behind a position, in place of others that are there and not applied. Return
        whether both have the same records now.
        """
        at = self._index_behind(behind)
        if at is None:
            return False
        for record in records:
            if at < len(self._records) and self._records[at].position != record.position:
                if at < self._applied:
                    return False
                del self._records[at:]
            if at == len(self._records):
                self._records.append(record)
            at += 1
        return True

    def commit(self, revision: int) -> bool:
        """Apply the records up to a revision. Return whether there were any."""
        begun = self._applied
        while self._applied < len(self._records) and self._records[self._applied].revision <= revision:
            record = self._records[self._applied]
            self.keys.apply(record)
            self._applied += 1
            self._changes += 1 + len(record.changes)
        has_applied = self._applied > begun
        self._trim()
        return has_applied

    def _trim(self) -> None:
        if self._changes <= self._changes_kept:
            return
        count = 0
        while self._changes > self._changes_kept // 2 and count < self._applied - 1:
            self._changes -= 1 + len(self._records[count].changes)
            count += 1
        if count:
            self._base = self._records[count - 1].position
            del self._records[:count]
            self._applied -= count

    def forget_history(self) -> None:
        """Remember no changes up to now."""
        self._base, self._changes = self.keys.at, 0
        del self._records[: self._applied]
        self._applied = 0

    def found(self, position: Position) -> None:
        """Begin anew with what is kept, at a position."""
        self._begin_anew()
        self.keys.found(position)
        self._base = position

    def reset(self, at: Position, kept_at: Position, entries: Sequence[Entry], leases: dict[int, int]) -> None:
        """Take over everything of another peer."""
        self._begin_anew()
        self.keys.reset(at, kept_at, entries, leases)
        self._base = at

    def _begin_anew(self) -> None:
        if self.keys.at.revision:
            self.discards += 1
        self._records, self._applied, self._changes = [], 0, 0

    def changes_behind(self, revision: int) -> tuple[int, list[KeyChange]]:
        """Return the changes behind a revision that was applied, and the revision that they lead to. Raises Compacted
        if it is not remembered.
        """
        at = 0
        if revision != self._base.revision:
            at = bisect_right(self._records, revision, key=_revision)
            if at == 0 or at > self._applied or self._records[at - 1].revision != revision:
                raise Compacted(f"revision {revision} is not remembered")
        changes: list[KeyChange] = []
        for record in self._records[at : self._applied]:
            changes += record.changes
        return self.keys.at.revision, changes

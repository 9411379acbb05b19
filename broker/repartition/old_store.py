"""An old store of a repartition (`broker.repartition.stores`): what is known of it, and how its records are read.

What nobody can read is set aside in a new store, once, though it is met several times.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import plyvel

from broker.persistence.record_checks import CHECKS
from broker.persistence.set_aside import UNREADABLE
from broker.repartition.filter_tree import FilterTree
from broker.repartition.new_store import Moved, NewStore
from broker.repartition.position_map import Log, Wanted
from leveldb_store.engine.database import Database, told
from leveldb_store.format import schema, windows
from leveldb_store.format.queued_messages import message_of
from shards.placement import home

__all__ = ["SHARED", "Member", "OldStore", "OldStores", "RepartitionError", "Taken"]

SHARED: Final = b"$share/"
_EVERY: Final = 1000  # records between two calls of `progress`


class RepartitionError(Exception):
    """It cannot be done; the old stores are as they were. One line."""


class Member(NamedTuple):
    """A session of an old worker that is a member of a share group."""

    source: int
    client_id: str
    options: int
    identifier: int


@dataclass
class Taken:
    """What an old worker has taken of the stream of a sibling."""

    stream: int = 0
    number: int = 0
    """Of the last batch taken in whole."""
    entries: int = 0
    """Of the next one."""
    refused: set[tuple[int, int]] = field(default_factory=set)
    """(number, position) of entries that count as taken, and were refused."""

    def has(self, number: int, position: int) -> bool:
        """Whether the entry at `position` of batch `number` was taken."""
        return number <= self.number or (number == self.number + 1 and position < self.entries)


@dataclass(slots=True)
class OldStore:
    """An old store."""

    index: int
    database: Database
    log: Log = field(default_factory=Log)
    expected: int = 0
    """Messages that hand-off logs have for it, at most."""
    target_of: dict[str, int] = field(default_factory=dict)
    """By client id: the new home of its session."""
    wanted: dict[int, dict[bytes, Wanted]] = field(default_factory=dict)
    """By new worker: indexes that sessions there read, and what of them."""
    filters: FilterTree = field(default_factory=FilterTree)
    """Those that somebody wants at QoS 1 or 2; if anything is expected."""
    members: dict[bytes, list[Member]] = field(default_factory=dict)
    """By b"group/filter": likewise."""
    pages: dict[str, list[windows.Page]] = field(default_factory=dict)
    """By client id: the pages of its window."""
    unread: set[bytes] = field(default_factory=set)
    """Keys of records that nobody can read."""
    unread_sessions: set[str] = field(default_factory=set)
    """Client ids whose session nobody can read: what belongs to it is set aside with it."""
    taken: dict[int, Taken] = field(default_factory=dict)
    """By sibling."""
    listed: dict[int, list[tuple[NewStore, bytes, Wanted]]] = field(default_factory=dict)
    """By number of an index: who wants it, its name, what of it."""
    listing: dict[int, array[int]] = field(default_factory=dict)
    """By new worker: how many indexes there will list each block."""
    waiting: dict[int, set[int]] = field(default_factory=dict)
    """By number of a message that has a record of its own: the new workers where it is queued."""

    def waits_there(self, target: int, queued: bytes) -> None:
        """A queued message goes to this new worker, and so does its message."""
        number = message_of(queued)
        if number is not None:
            self.waiting.setdefault(number, set()).add(target)


class OldStores:
    """All of them, and the records of each. `new`: the stores that are made of them; `progress`: is told how many
    records were handled; `say`: is given lines about damage; `strict`: nothing is set aside.
    """

    def __init__(
        self,
        new: Sequence[NewStore],
        moved: Moved,
        progress: Callable[[int], None],
        say: Callable[[str], None],
        strict: bool,
    ) -> None:
        self.stores: list[OldStore] = []
        self.where = ""
        """The record in hand, for an error."""
        self._new = new
        self._moved = moved
        self._progress = progress
        self._say = say
        self._is_strict = strict
        self._handled = 0

    def damaged(self) -> dict[Path, str]:
        """The old stores in which LevelDB cannot read something, and what it says."""
        found = {}
        for source in self.stores:
            try:
                for _ in source.database.scan(b""):
                    pass
            except plyvel.CorruptionError as error:
                found[source.database.path] = told(error)
        return found

    def scan(self, source: OldStore, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """A family of an old store."""
        for key, value in source.database.scan(prefix):
            self.where = f"the store {source.database.path}, record {key!r}"
            if self.is_record(source, key, value):
                yield key, value
            self.count(key)

    def count(self, _key: bytes) -> None:
        """Another record is handled."""
        self._handled += 1
        if self._handled % _EVERY == 0:
            self._progress(self._handled)

    def is_record(self, source: OldStore, key: bytes, value: bytes) -> bool:
        """Whether it can be read; else it is set aside, once, though it is met several times."""
        if key in source.unread:
            return False
        check = CHECKS.get(key[:1])
        try:
            if check is not None:
                check(key, value)
        except UNREADABLE as error:
            self._set_aside(source, key, value, error)
            return False
        return True

    def _set_aside(self, source: OldStore, key: bytes, value: bytes, problem: object) -> None:
        if self._is_strict:
            raise RepartitionError(f"{self.where}: {problem}")
        self._say(f"{self.where}: cannot be read ({problem}): it is set aside")
        source.unread.add(key)
        client_id = key[1:].partition(b"\0")[0].decode(errors="replace")
        if key[:1] == schema.SESSION:
            source.unread_sessions.add(client_id)
        index = home(client_id, len(self._new))
        self._new[index].put(schema.set_aside_key(key), value)
        self._moved.set_aside += 1
        if key[:1] == schema.QUEUED:
            source.waits_there(index, value)

    def target_of(self, source: OldStore, client_id: str, key: bytes, value: bytes) -> int | None:
        """The new home of a session's record; None: there is no session, and no place for its record but beside a
        session that was set aside.
        """
        index = source.target_of.get(client_id)
        if index is None and client_id in source.unread_sessions:
            self._set_aside(source, key, value, "its session cannot be read")
        return index

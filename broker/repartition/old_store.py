"""An old store of a repartition (`broker.repartition.stores`): its surveyed contents, and the reading of its records.

An unreadable record is set aside in a new store once, even if it is met several times.
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
from broker.repartition.position_map import Needed, OldLog
from leveldb_store.engine.database import Database, error_text
from leveldb_store.format import schema, windows
from leveldb_store.format.queued_messages import message_of
from shards.placement import home

__all__ = ["SHARED", "OldMember", "OldStore", "OldStores", "RepartitionError", "TakenUpTo"]

SHARED: Final = b"$share/"
_EVERY: Final = 1000  # records between two calls of `progress`


class RepartitionError(Exception):
    """The repartition failed; the old stores are unchanged. The text is one line."""


class OldMember(NamedTuple):
    """A session of an old worker that is a member of a share group."""

    source: int
    client_id: str
    options: int
    identifier: int


@dataclass
class TakenUpTo:
    """The position of an old worker in the stream of a sibling."""

    stream: int = 0
    number: int = 0
    """Number of the last batch taken as a whole."""
    entries: int = 0
    """Number of entries taken of the next batch."""
    refused: set[tuple[int, int]] = field(default_factory=set)
    """(number, position) of entries that were refused, and count as taken."""

    def has(self, number: int, position: int) -> bool:
        """Whether the entry at `position` of batch `number` was taken."""
        return number <= self.number or (number == self.number + 1 and position < self.entries)


@dataclass(slots=True)
class OldStore:
    """The survey of an old store."""

    index: int
    database: Database
    log: OldLog = field(default_factory=OldLog)
    expected: int = 0
    """Upper bound of the messages that hand-off logs have for it."""
    target_of: dict[str, int] = field(default_factory=dict)
    """By client id: the new home of its session."""
    wanted: dict[int, dict[bytes, Needed]] = field(default_factory=dict)
    """By new worker: the indexes that sessions there read, with the positions they need."""
    filters: FilterTree = field(default_factory=FilterTree)
    """Topic Filters subscribed to at QoS 1 or 2, if hand-off logs have messages for it."""
    members: dict[bytes, list[OldMember]] = field(default_factory=dict)
    """The same for share groups, by b"group/filter"."""
    pages: dict[str, list[windows.Page]] = field(default_factory=dict)
    """By client id: the pages of its window."""
    unread: set[bytes] = field(default_factory=set)
    """Keys of unreadable records."""
    unread_sessions: set[str] = field(default_factory=set)
    """Client ids whose session is unreadable: all of its records are set aside with it."""
    taken: dict[int, TakenUpTo] = field(default_factory=dict)
    """By sibling."""
    listed: dict[int, list[tuple[NewStore, bytes, Needed]]] = field(default_factory=dict)
    """By number of an index: the new workers that need it, its name, the positions needed."""
    listing: dict[int, array[int]] = field(default_factory=dict)
    """By new worker: the number of indexes there that list each block."""
    waiting: dict[int, set[int]] = field(default_factory=dict)
    """By number of a message with a record of its own: the new workers where it is queued."""

    def waits_there(self, target: int, queued: bytes) -> None:
        """Note that a queued message, and so its record, goes to this new worker."""
        number = message_of(queued)
        if number is not None:
            self.waiting.setdefault(number, set()).add(target)


class OldStores:
    """All old stores and their records. `new`: the stores made of them; `progress`: called with the number of records
    handled; `say`: called with lines about damage; `strict`: nothing is set aside.
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
        """The current record, for error messages."""
        self._new = new
        self._moved = moved
        self._progress = progress
        self._say = say
        self._is_strict = strict
        self._handled = 0

    def damaged(self) -> dict[Path, str]:
        """Return the old stores in which LevelDB finds damage, with its message."""
        found = {}
        for source in self.stores:
            try:
                for _ in source.database.scan(b""):
                    pass
            except plyvel.CorruptionError as error:
                found[source.database.path] = error_text(error)
        return found

    def scan(self, source: OldStore, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Read a family of an old store."""
        for key, value in source.database.scan(prefix):
            self.where = f"the store {source.database.path}, record {key!r}"
            if self.is_record(source, key, value):
                yield key, value
            self.count(key)

    def count(self, _key: bytes) -> None:
        """Count another record."""
        self._handled += 1
        if self._handled % _EVERY == 0:
            self._progress(self._handled)

    def is_record(self, source: OldStore, key: bytes, value: bytes) -> bool:
        """Whether a record is readable; if not, it is set aside, once for several calls."""
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
        """Return the new home of a session's record; None: the session does not exist, or it was set aside, and the
        record with it.
        """
        index = source.target_of.get(client_id)
        if index is None and client_id in source.unread_sessions:
            self._set_aside(source, key, value, "its session cannot be read")
        return index

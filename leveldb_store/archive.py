"""The archive of one worker, as the worker's loop uses it: what it archives, and what readers get.

A message is archived by the first `[[archive]]` rule that matches its topic, by its publisher's worker alone, under its
number (microseconds << 8 | worker). `pyx.archive` gathers a tick's messages into blocks; `append` puts them into the
tick's write batch. `leveldb_store.archive_schema` has the bytes, `leveldb_store.retention` removes what is old.

A *sequence* is what one worker (the origin) has archived by one rule: its blocks follow each other by number. A store
holds those of its own worker, and since a repartition those of others. A reader gets pages: messages of all sequences
that may have what it wants, merged by number. Blocks that are not durable yet are not read.

Rules that are no longer configured keep what they have until it is old; their messages are read as before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, NamedTuple

import plyvel

from leveldb_store import archive_schema as schema
from leveldb_store.archive_blocks import Blocks, load
from leveldb_store.archive_ends import Found, Said, find
from leveldb_store.contract import FallenBehind, Page, StoreError
from leveldb_store.database import Database, told
from leveldb_store.filters import covers, overlaps
from leveldb_store.retention import Retention
from pyx.archive import Archiver
from pyx.archived import merge

__all__ = ["Archive", "FallenBehind", "Options", "Page", "Said", "Table", "find"]

PENDING_BYTES_MAX: Final = 64 << 20
_OVERLAPS_MAX: Final = 1024  # filters of which it is remembered by which rules they are archived


class Table(NamedTuple):
    """An `[[archive]]` table."""

    topic_filter: bytes
    age_ms: int
    bytes_max: int
    """Of this store."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a worker's archive is opened with."""

    epoch: str = ""
    """Of the archive: made with the data directory, kept by restart and repartition."""
    worker: int = 0
    tables: tuple[Table, ...] = ()
    """In the order of the configuration."""
    pending_bytes_max: int = PENDING_BYTES_MAX
    """Of QoS 0 beyond that, handed to the disk and not there yet, nothing is archived."""


class Archive:
    """See the contract."""

    def __init__(
        self,
        database: Database,
        options: Options,
        found: Found,
        said: Said,
    ) -> None:
        self.epoch = options.epoch
        self.last = self.highest = found.highest
        self.archiver = Archiver([table.topic_filter for table in options.tables])
        self.archiver.pending_bytes_max = options.pending_bytes_max
        self.sequences = found.sequences
        self.changes: list[tuple[bytes, bytes]] = []
        """Records of rules that are to be written before anything else."""
        self.rules = self._settle(found, options.tables)
        """Those that are configured, then others that hold something."""
        self.retention = Retention(database, options.worker, self.rules, found, said)
        self._removed = self.retention.removed
        self._configured = self.rules[: len(options.tables)]
        self._worker = options.worker
        self._database = database
        self._said = said
        self._damaged: set[bytes] = set()
        """Keys of blocks in which a message is damaged."""
        self._origins = {
            rule.number: {options.worker, *(held.origin for held in found.sequences.get(rule.number, ()))}
            for rule in self.rules
        }
        self._running = {rule.number: self._counts_of(rule.number) for rule in self._configured}
        self._lasts = {number: max(held.last for held in each) for number, each in found.sequences.items()}
        self._waiting: deque[tuple[int, int, int]] = deque()
        """(ticket, last number, bytes of records) of what is not durable."""
        self._overlapping: dict[bytes, list[int]] = {}

    def _settle(self, found: Found, tables: Sequence[Table]) -> list[schema.Rule]:
        # the rules of the configuration, and others that were; what has changed is to be recorded
        rules, known = [], found.rules
        numbers = {rule.number for rule in known.values()} | found.aside
        for place, table in enumerate(tables):
            before = known.get(table.topic_filter)
            number = before.number if before is not None else next(n for n in range(1, 0xFFFF) if n not in numbers)
            numbers.add(number)
            rules.append(schema.Rule(table.topic_filter, number, place, table.age_ms, table.bytes_max))
        named = {rule.topic_filter for rule in rules}
        rules += (
            rule._replace(place=schema.NOT_CONFIGURED) for text, rule in sorted(known.items()) if text not in named
        )
        for rule in rules:
            if known.get(rule.topic_filter) != rule:
                self.changes.append((schema.rule_key(rule.topic_filter), schema.encode_rule(rule)))
        return rules

    def _counts_of(self, number: int) -> tuple[int, int]:
        for held in self.sequences.get(number, ()):
            if held.origin == self._worker:
                return held.messages, held.bytes
        return 0, 0

    # ------------------------------------------------------------ writing

    def append(self, ticket: int, put: Callable[[bytes, bytes], None]) -> dict[int, int]:
        """Put what was gathered into the write batch that will have this ticket. Returns the running bytes of each
        sequence that has grown, by rule.
        """
        grown: dict[int, int] = {}
        last = records_bytes = 0
        for place, count, first, end, levels, records in self.archiver.take():
            number = self._configured[place].number
            messages, size = self._running[number]
            key = schema.block_key(number, self._worker, end)
            value = schema.encode_head(count, first, messages, size, levels) + records
            put(key, value)
            size += len(key) + len(value)
            self._running[number] = messages + count, size
            self._lasts[number] = end
            grown[number] = size
            last = max(last, end)
            records_bytes += len(records)
        if last:
            self._waiting.append((ticket, last, records_bytes))
        return grown

    def durable(self, ticket: int) -> None:
        """What was appended up to and with this ticket is durable."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= ticket:
            _, last, size = waiting.popleft()
            self.last = max(self.last, last)
            self.archiver.settled(size)

    @property
    def is_settled(self) -> bool:
        """Whether all that was archived is durable."""
        return not self._waiting and not self.archiver.pending_bytes

    @property
    def held_bytes(self) -> int:
        """See the contract."""
        return self.retention.held

    @property
    def removed(self) -> tuple[int, int]:
        """See the contract."""
        return self.retention.removed_messages, self.retention.removed_bytes

    # ------------------------------------------------------------ reading

    def covers(self, topic_filter: bytes) -> bool:
        """Whether every topic of the filter is archived: one rule covers it."""
        return any(covers(rule.topic_filter, topic_filter) for rule in self._configured)

    def start(self, topic_filter: bytes) -> int:
        """The highest number that retention has removed of what this filter may match; 0: nothing."""
        return self._start(self._rules_of(topic_filter))

    def read(self, topic_filters: Sequence[bytes], after: int, bytes_max: int, with_gaps: bool = False) -> Page:
        """See the contract. StoreError when the store cannot be read. It may be called in a thread of its own, while
        others append.
        """
        while True:
            known = len(self._damaged)
            try:
                return self._page(topic_filters, after, bytes_max, with_gaps)
            except plyvel.Error as error:
                raise StoreError(f"the archive of {self._database.path} cannot be read: {told(error)}") from error
            except ValueError as error:  # a message in some block is damaged, which is known now
                if len(self._damaged) == known:
                    raise StoreError(f"the archive of {self._database.path} cannot be merged: {error}") from error

    def _page(self, topic_filters: Sequence[bytes], after: int, bytes_max: int, with_gaps: bool) -> Page:
        last = self.last  # first of all: of what is durable later nothing is said
        numbers = {number for each in topic_filters for number in self._rules_of(each)}
        behind = {number for number in numbers if self._lasts.get(number, 0) > after}
        if after >= last or not behind:
            if not with_gaps:
                self._check(numbers, after)
            return Page([], max(after, last), True)
        levels: set[bytes] | None = {schema.first_level(each) for each in topic_filters}
        if levels is not None and levels & {b"#", b"+"}:
            levels = None
        with self._database.archive_lock, ExitStack() as stack:
            sequences = []
            for number in behind:
                for origin in self._origins[number]:
                    begin = max(after, self._removed.get((number, origin), 0))
                    blocks = Blocks(self._database.db, number, origin, begin, last, self._damaged, self._said)
                    stack.callback(blocks.close)
                    sequences.append(blocks)
            if not with_gaps:
                self._check(numbers, after)  # what the iterators do not see any more was said before
            for blocks in sequences:
                blocks.look()
            if not with_gaps:
                gone = max((blocks.gap for blocks in sequences if blocks.begin <= after + 1), default=0)
                if gone:
                    raise FallenBehind(gone, is_damage=True)
            up_to, is_end = load(sequences, after, last, bytes_max, levels)
        try:
            messages = merge([each.loaded for each in sequences if each.loaded], list(topic_filters), after, up_to)
        except ValueError:
            for blocks in sequences:
                blocks.check()
            raise
        return Page(messages, up_to, is_end)

    def _check(self, numbers: Iterable[int], after: int) -> None:
        earliest = self._start(numbers)
        if after < earliest:
            raise FallenBehind(earliest)

    def _start(self, numbers: Iterable[int]) -> int:
        removed = self._removed
        return max(
            (removed.get((number, origin), 0) for number in numbers for origin in self._origins[number]), default=0
        )

    def _rules_of(self, topic_filter: bytes) -> list[int]:
        known = self._overlapping.get(topic_filter)
        if known is None:
            if len(self._overlapping) >= _OVERLAPS_MAX:
                self._overlapping.clear()
            known = [rule.number for rule in self.rules if overlaps(rule.topic_filter, topic_filter)]
            self._overlapping[topic_filter] = known
        return known

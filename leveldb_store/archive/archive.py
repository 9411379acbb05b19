"""The archive of one worker: its interface for the worker's loop, to archive messages and to read pages of them.

A message is archived by the first `[[archive]]` rule that matches its topic, by its publisher's worker alone, under its
number (microseconds << 8 | worker). `pyx.storage.archive` gathers a tick's messages into blocks; `append` puts them
into the tick's write batch. `leveldb_store.format.archive_schema` has the formats, `leveldb_store.archive.retention`
removes old messages.

A *sequence* has the messages that one worker (the origin) has archived by one rule: its blocks follow each other by
number. A store holds the sequences of its own worker, and after a repartition those of others. A reader gets pages:
messages of all sequences that may match, merged by number. Blocks that are not durable yet are not read.

Rules that are no longer configured keep their messages until these are old; until then they are read as before.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import plyvel

from leveldb_store.archive.blocks import ArchivedBlocks, load
from leveldb_store.archive.ends import ArchiveSurvey, DamageReporter, find
from leveldb_store.archive.retention import Retention
from leveldb_store.archive.rules import ArchiveTable, Concerned, concerned, settle
from leveldb_store.archive.summaries import Stretch, Summaries
from leveldb_store.contract import FallenBehind, Page, StoreError
from leveldb_store.engine.database import Database, error_text
from leveldb_store.filters import covers
from leveldb_store.format import archive_schema as schema
from leveldb_store.format.schema import U64
from pyx.delivery.archived import merge, note_topics
from pyx.storage.archive import Archiver

__all__ = ["Archive", "ArchiveOptions", "ArchiveTable", "DamageReporter", "FallenBehind", "Page", "find"]

PENDING_BYTES_MAX: Final = 64 << 20
NOTED_MAX: Final = 256  # commits whose topics are noted
_FILTERS_MAX: Final = 1024  # filters whose rules are cached


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """The options with which a worker's archive is opened."""

    epoch: str = ""
    """Epoch of the archive: made with the data directory, kept by restart and repartition."""
    worker: int = 0
    tables: tuple[ArchiveTable, ...] = ()
    """Tables in the order of the configuration."""
    pending_bytes_max: int = PENDING_BYTES_MAX
    """Bytes handed to the disk and not yet written, beyond which QoS 0 messages are not archived."""
    clock: Callable[[], float] = time.time
    """Unix time: messages archived from now on have higher numbers."""


class Archive:
    """Implements `leveldb_store.contract.Archive`."""

    def __init__(
        self,
        database: Database,
        options: ArchiveOptions,
        found: ArchiveSurvey,
        reporter: DamageReporter,
    ) -> None:
        self.epoch = options.epoch
        self.last = self.highest = found.highest
        self.archiver = Archiver([table.topic_filter for table in options.tables])
        self.archiver.pending_bytes_max = options.pending_bytes_max
        self.sequences = found.sequences
        had = dict(found.removed)
        self.rules = settle(found, options.tables, _now(found, options))
        """Configured rules, then others that were configured before."""
        self.changes = _changes(found, self.rules, had)
        """(key, value) of records to write before anything else; None: delete it."""
        self.retention = Retention(database, options.worker, self.rules, found, reporter)
        self._removed = self.retention.removed
        self._forgotten = max((up_to for (number, _), up_to in found.removed.items() if number == 0), default=0)
        """The messages removed up to this number may have had any topic."""
        self._configured = self.rules[: len(options.tables)]
        self._worker = options.worker
        self._database = database
        self._reporter = reporter
        self._damaged: set[bytes] = set()
        """Keys of blocks with a damaged message."""
        self._origins = {
            rule.number: {options.worker, *(held.origin for held in found.sequences.get(rule.number, ()))}
            for rule in self.rules
        }
        self._stretches = {rule.number: Stretch(found.highest) for rule in self._configured}
        for place, rule in enumerate(self._configured):
            self.archiver.count_from(place, *self._counts_of(rule.number))
        self._lasts = {number: max(held.last for held in each) for number, each in found.sequences.items()}
        self._waiting: deque[tuple[int, int, int, bytes]] = deque()
        """(ticket, last number, bytes of records, its topics if they are noted) of commits that are not durable yet."""
        self._noted: deque[tuple[int, bytes]] = deque()
        self._noted_behind = schema.HIGHEST
        """Topics are noted for commits that became durable behind this number; HIGHEST: for none."""
        self._concerned: dict[bytes, Concerned] = {}

    def _counts_of(self, number: int) -> tuple[int, int]:
        for held in self.sequences.get(number, ()):
            if held.origin == self._worker:
                return held.messages, held.bytes
        return 0, 0

    # ------------------------------------------------------------ writing

    def append(self, ticket: int, put: Callable[[bytes, bytes], None]) -> dict[int, int]:
        """Put the gathered messages into the write batch that will have this ticket. Return the running bytes of each
        sequence that has grown, by rule.
        """
        grown: dict[int, int] = {}
        last = records_bytes = 0
        topics = bytearray(schema.SUMMARY_BITS_BYTES) if self._noted_behind != schema.HIGHEST else None
        for place, end, size, running, block in self.archiver.take():
            number = self._configured[place].number
            put(schema.block_key(number, self._worker, end), block)
            summary = self._stretches[number].add(end, block)
            if summary is not None:
                put(schema.summary_key(number, self._worker, end), summary)
            if topics is not None:
                note_topics(topics, block)
            self._lasts[number] = end
            grown[number] = running
            last = max(last, end)
            records_bytes += size
        if last:
            self._waiting.append((ticket, last, records_bytes, bytes(topics or b"")))
        return grown

    def durable(self, ticket: int) -> None:
        """Note that everything appended up to and including this ticket is durable."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= ticket:
            _, last, size, topics = waiting.popleft()
            self.last = max(self.last, last)
            self.archiver.settled(size)
            if topics:
                self._noted.append((last, topics))
                if len(self._noted) > NOTED_MAX:
                    self._noted_behind = self._noted.popleft()[0]

    def watch(self, is_watched: bool) -> None:
        """Implements Archive."""
        if is_watched != (self._noted_behind != schema.HIGHEST):
            self._noted.clear()
            behind = max(self.last, self._waiting[-1][1] if self._waiting else 0)
            self._noted_behind = behind if is_watched else schema.HIGHEST

    def noted(self, after: int) -> list[tuple[int, bytes]] | None:
        """Implements Archive."""
        if after < self._noted_behind:
            return None
        return [each for each in self._noted if each[0] > after]

    @property
    def is_settled(self) -> bool:
        """Whether all archived messages are durable."""
        return not self._waiting and not self.archiver.pending_bytes

    @property
    def held_bytes(self) -> int:
        """Implements Archive."""
        return self.retention.held

    @property
    def removed(self) -> tuple[int, int]:
        """Implements Archive."""
        return self.retention.removed_messages, self.retention.removed_bytes

    # ------------------------------------------------------------ reading

    def covers(self, topic_filter: bytes) -> bool:
        """Whether every topic of the filter is archived: one rule covers it."""
        return any(covers(rule.topic_filter, topic_filter) for rule in self._configured)

    def start(self, topic_filter: bytes) -> int:
        """Implements Archive."""
        return self._start([topic_filter])

    def read(self, topic_filters: Sequence[bytes], after: int, bytes_max: int, with_gaps: bool = False) -> Page:
        """Implements Archive. StoreError when the store cannot be read. May be called in another thread, while messages
        are appended.
        """
        while True:
            known = len(self._damaged)
            try:
                return self._page(topic_filters, after, bytes_max, with_gaps)
            except plyvel.Error as error:
                raise StoreError(f"the archive of {self._database.path} cannot be read: {error_text(error)}") from error
            except ValueError as error:  # a block has a damaged message, which is noted now
                if len(self._damaged) == known:
                    raise StoreError(f"the archive of {self._database.path} cannot be merged: {error}") from error
                with_gaps = False  # the gap may reach further than the one that the reader knows

    def _page(self, topic_filters: Sequence[bytes], after: int, bytes_max: int, with_gaps: bool) -> Page:
        last = self.last  # read first: later commits are not included in this page
        behind = {
            number
            for each in topic_filters
            for number, until in self._concerned_by(each).rules
            if after < min(until, self._lasts.get(number, 0))
        }
        if after >= last or not behind:
            if not with_gaps:
                self._check(topic_filters, after)
            return Page([], max(after, last), True)
        levels: set[bytes] | None = {schema.first_level(each) for each in topic_filters}
        if levels is not None and levels & {b"#", b"+"}:
            levels = None
        with self._database.archive_lock, ExitStack() as stack:
            sequences = []
            for number in behind:
                for origin in self._origins[number]:
                    begin = max(after, self._removed.get((number, origin), 0))
                    blocks = ArchivedBlocks(
                        self._database.db, number, origin, begin, last, self._damaged, self._reporter
                    )
                    stack.callback(blocks.close)
                    if b"#" not in topic_filters:
                        blocks.summaries = Summaries(self._database.db, number, origin, begin, topic_filters)
                    sequences.append(blocks)
            start = self._start(topic_filters)  # removals are announced here before iterators miss them
            for blocks in sequences:
                blocks.look()
            gap = max((blocks.gap for blocks in sequences if blocks.begin <= after + 1), default=0)
            if not with_gaps and (gap or after < start):
                raise FallenBehind(max(gap, start if after < start else 0), is_damage=gap > 0)
            up_to, is_end = load(sequences, after, last, bytes_max, levels)
        try:
            messages = merge([each.loaded for each in sequences if each.loaded], list(topic_filters), after, up_to)
        except ValueError:
            for blocks in sequences:
                blocks.check()
            raise
        return Page(messages, up_to, is_end)

    def _check(self, topic_filters: Sequence[bytes], after: int) -> None:
        earliest = self._start(topic_filters)
        if after < earliest:
            raise FallenBehind(earliest)

    def _start(self, topic_filters: Sequence[bytes]) -> int:
        removed = self._removed
        start = self._forgotten
        for topic_filter in topic_filters:
            concerned_by = self._concerned_by(topic_filter)
            start = max(start, concerned_by.since)
            for number, until in concerned_by.rules:
                gone = max(removed.get((number, origin), 0) for origin in self._origins[number])
                start = max(start, min(gone, until))
        return start

    def _concerned_by(self, topic_filter: bytes) -> Concerned:
        known = self._concerned.get(topic_filter)
        if known is None:
            if len(self._concerned) >= _FILTERS_MAX:
                self._concerned.clear()
            known = self._concerned[topic_filter] = concerned(topic_filter, self.rules)
        return known


def _now(found: ArchiveSurvey, options: ArchiveOptions) -> int:
    # numbers of messages published until now, which may not have been stored, are not higher; 0: there was none
    return max(found.highest, int(options.clock() * 1e6) << schema.NUMBER_WORKER_BITS) if found.highest else 0


def _changes(
    found: ArchiveSurvey, rules: Sequence[schema.Rule], had: dict[tuple[int, int], int]
) -> list[tuple[bytes, bytes | None]]:
    changes: list[tuple[bytes, bytes | None]] = [
        (schema.rule_key(rule.topic_filter), schema.encode_rule(rule))
        for rule in rules
        if found.rules.get(rule.topic_filter) != rule
    ]
    kept = {rule.topic_filter for rule in rules}
    changes += [(schema.rule_key(text), None) for text in found.rules if text not in kept]
    changes += [
        (schema.removed_key(*each), U64.pack(up_to)) for each, up_to in found.removed.items() if had.get(each) != up_to
    ]
    changes += [(schema.removed_key(*each), None) for each in had if each not in found.removed]
    return changes

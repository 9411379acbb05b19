"""The archive against a model: tables that overlap, shadow, change, vanish and return, readers that match little,
damage, retention by bytes and by age, clocks that step, restarts in between. A message that a reader does not get was
removed, never archived, or unreadable, and the reader is notified: by `start` of a position before it, by
`FallenBehind` of a gap behind it. Nothing is removed by age that is younger by every clock there was.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import plyvel
import pytest

from leveldb_store.archive import retention
from leveldb_store.archive.archive import ArchiveOptions, ArchiveTable
from leveldb_store.contract import FallenBehind
from leveldb_store.filters import covers, overlaps
from leveldb_store.format import archive_schema as schema
from leveldb_store.format.schema import ARCHIVED, NUMBER, U64
from leveldb_store.store import LevelStore
from tests.contract.test_archive import HOUR, Source, matches, table

TABLES = [b"#", b"alarms/#", b"a/#", b"a/b/#", b"a/+/c", b"+/b", b"b"]
FILTERS = [b"alarms/#", b"alarms/1", b"a/#", b"a/b/c", b"a/b/#", b"a/+/c", b"b", b"+/b", b"#", b"none/+", b"a/none"]
TOPICS = [b"alarms/1", b"alarms/2", b"a/b", b"a/b/c", b"a/x/c", b"b", b"c", b"c/b"]
SMALL = 1 << 20
AGES = [1, 24, 1_000_000]
"""In hours."""
STEPS = [0, 0, 1, 60, 1800, 3 * 3600, 30 * 3600, -1, -1800, -30 * 3600]
"""Steps of the clock, in seconds."""
BEGIN = 1_700_000_000.0
MICROSECONDS = 1_000_000


@dataclass
class Model:
    path: Path
    choose: random.Random
    tables: list[ArchiveTable] = field(default_factory=list)
    published: list[tuple[int, bytes]] = field(default_factory=list)
    always: list[bytes] = field(default_factory=lambda: list(FILTERS))
    """Filters that some table has always covered."""
    limited: set[bytes] = field(default_factory=set)
    """Tables that have ever been limited."""
    aged: dict[bytes, int] = field(default_factory=dict)
    """Tables that have ever been limited by age -> the fewest hours."""
    clock: float = BEGIN
    latest: float = BEGIN
    """The latest time that the clock has shown."""
    is_damaged: bool = False
    restarts: int = 0

    def choose_tables(self) -> list[ArchiveTable]:
        names = self.choose.sample(TABLES, self.choose.randint(1, 4))
        sizes, ages = [SMALL, 1 << 40, 1 << 40], [*AGES, AGES[-1]]
        return [table(each, self.choose.choice(ages), self.choose.choice(sizes)) for each in names]

    def step(self) -> None:
        self.clock += self.choose.choice(STEPS)
        self.latest = max(self.latest, self.clock)

    def open(self) -> Source:
        if self.restarts == 0 or self.choose.random() < 0.6:
            self.tables = self.choose_tables()
        self.restarts += 1
        names = [each.topic_filter for each in self.tables]
        self.always = [each for each in self.always if any(covers(name, each) for name in names)]
        self.limited |= {each.topic_filter for each in self.tables if each.bytes_max == SMALL}
        for each in self.tables:
            hours = each.age_ms // HOUR
            if hours < AGES[-1]:
                self.aged[each.topic_filter] = min(hours, self.aged.get(each.topic_filter, hours))
        self.step()
        options = ArchiveOptions("e", 0, tuple(self.tables), clock=lambda: self.clock)
        source = Source(LevelStore(self.path, archive=options))
        source.number = max(int(self.clock * MICROSECONDS) << 8, source.store.archive.highest)
        if self.published:
            source.number = max(source.number, self.published[-1][0])
        return source

    def publish(self, source: Source) -> None:
        self.step()
        source.number = max(int(self.clock * MICROSECONDS) << 8, source.number)
        for _ in range(self.choose.randint(5, 25)):
            for _ in range(self.choose.choice([1, 1, 5])):
                topic = self.choose.choice(TOPICS)
                source.archive(topic, self.choose.randbytes(self.choose.choice([0, 3_000, 12_000])))
                self.published.append((source.number, topic))
            source.store.put(NUMBER, U64.pack(source.number))  # as a worker does: not all of them are archived
            source.commit()

    def damage(self) -> None:
        with plyvel.DB(str(self.path)) as db:
            keys = [key for key, _ in db.iterator(prefix=ARCHIVED)]
            for key in self.choose.sample(keys, min(len(keys), self.choose.randint(1, 3))):
                value = db.get(key)
                assert value is not None
                db.put(key, self.choose.choice([b"", value[:20], value[:-1], b"\7" + value[1:]]))
                self.is_damaged = True

    def check(self, store: LevelStore) -> None:
        archive = store.archive
        for wanted in self.choose.sample(FILTERS, 4):
            after = self.choose.choice([0, *(number for number, _ in self.published)])
            got, told = followed(store, wanted, after, self.choose.choice([1, 5_000, 65_536]))
            start = archive.start(wanted)
            expected = [number for number, topic in self.published if number > after and matches(wanted, topic)]
            assert got == sorted(set(got))
            assert set(got) <= set(expected)
            is_covered = any(covers(each.topic_filter, wanted) for each in self.tables)
            if is_covered:
                missing = set(expected) - set(got)
                silent = [n for n in missing if n > start and not any(low < n <= high for low, high in told)]
                assert not silent, (wanted, after, start, told)
            if wanted in self.always and not any(overlaps(each, wanted) for each in self.limited):
                hours = min((hours for each, hours in self.aged.items() if overlaps(each, wanted)), default=None)
                young = 0 if hours is None else int((self.latest - 3600 * hours) * MICROSECONDS) << 8
                assert start <= young, wanted
                assert self.is_damaged or not [number for number in set(expected) - set(got) if number > young], wanted


def followed(store: LevelStore, wanted: bytes, after: int, size: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Return (numbers, reported gaps) of a reader that continues behind each gap."""
    got: list[int] = []
    told: list[tuple[int, int]] = []
    while True:
        try:
            page = store.archive.read([wanted], after, size, with_gaps=bool(told) and told[-1][0] == after)
        except FallenBehind as fallen:
            told.append((after, fallen.earliest))
            continue
        got += [each.number for each in page.messages]
        if page.is_end:
            return got, told
        assert page.up_to > after
        after = page.up_to


class Clock:
    """The archive's replacement for the module `time`."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self, model: Model) -> None:
        self.time = lambda: model.clock


@pytest.mark.parametrize(
    "seed", [*range(20), 112, 1211, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2000, 2300))]
)
def test_nothing_is_missing_in_silence(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    choose = random.Random(seed)
    monkeypatch.setattr(schema, "SUMMARY_BLOCKS", choose.choice([2, 7, 256]))
    model = Model(tmp_path / "0", choose)
    monkeypatch.setattr(retention, "time", Clock(model))
    for _ in range(choose.randint(2, 7)):
        source = model.open()
        model.check(source.store)
        for _ in range(choose.randint(1, 4)):
            model.publish(source)
            model.check(source.store)
        source.store.close()
        if choose.random() < 0.3:
            model.damage()

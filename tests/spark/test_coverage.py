"""The part of a snapshot that is new to an output: in a model of sequences, and in real stores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from leveldb_store.format import events, schema
from leveldb_store.format.schema import StoredMessage
from spark_etl.source.coverage import Run, Sequence, SequencePart, Sequences, runs_of
from spark_etl.tables import clones
from spark_etl.tables.snapshots import find, stores_of
from tests.made_snapshot import archive_of, number_at, snapshot_of

SEQUENCE = Sequence("host", "messages", "#", 0)
BLOCK = 3


@dataclass
class Kept:
    """A sequence in a store: blocks of numbers, and how many messages were stored before the first."""

    blocks: list[list[int]] = field(default_factory=list)
    before: int = 0

    def add(self, numbers: list[int]) -> None:
        self.blocks.append(numbers)

    def remove(self, count: int) -> None:
        gone = self.blocks[: min(count, len(self.blocks) - 1)]
        self.before += sum(map(len, gone))
        self.blocks = self.blocks[len(gone) :]

    def copy(self) -> Kept:
        return Kept(list(self.blocks), self.before)

    def lose(self) -> None:
        """Lose the last block, as in a power cut."""
        if len(self.blocks) > 1:
            self.blocks = self.blocks[:-1]

    @property
    def numbers(self) -> set[int]:
        return {number for block in self.blocks for number in block}

    def run(self) -> Run:
        counts, at = {}, self.before
        for block in self.blocks:
            at += len(block)
            counts[block[-1]] = at
        part = SequencePart(self.blocks[0][0], self.blocks[-1][-1], self.before, at)

        def begins(number: int) -> int:
            return next(block[0] for block in self.blocks if block[-1] >= number)

        return Run(SEQUENCE, part, 0, counts.get, begins, int.to_bytes)


def taken(sequences: Sequences, kept: Kept, output: set[int]) -> list[bool]:
    """Take a snapshot as the job does; return for each part whether it was doubtful."""
    run = kept.run()
    parts = sequences.missing(run)
    for part in parts:
        new = {number for number in kept.numbers if part.first <= number <= part.last}
        if not part.is_doubtful:
            assert not new & output, "a row twice"
        output |= new
    assert kept.numbers <= output, "a row is missing"
    sequences.take(run)
    return [part.is_doubtful for part in parts]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_what_is_taken_is_the_union_of_all_snapshots_and_nothing_twice(data: st.DataObject) -> None:
    stores = [Kept([[1]])]
    clock = 1
    snapshots: list[Kept] = []
    sequences, output, everything = Sequences(), set[int](), set[int]()
    for _ in range(data.draw(st.integers(1, 25))):
        kept = stores[data.draw(st.integers(0, len(stores) - 1))]
        match data.draw(st.sampled_from(["add", "add", "remove", "snapshot", "take", "copy", "lose"])):
            case "add":
                size = data.draw(st.integers(1, BLOCK))
                kept.add([clock + each for each in range(1, size + 1)])
                clock += size
            case "remove":
                kept.remove(data.draw(st.integers(1, 4)))
            case "snapshot":
                snapshots.append(kept.copy())
            case "copy":
                stores.append(kept.copy())
            case "lose":
                kept.lose()
            case "take" if snapshots:
                snapshot = snapshots[data.draw(st.integers(0, len(snapshots) - 1))]
                everything |= snapshot.numbers
                taken(sequences, snapshot, output)
                sequences = Sequences(sequences.as_dicts())
    assert output == everything


def test_of_a_store_that_goes_on_nothing_is_compared() -> None:
    kept, sequences, output = Kept([[1, 2]]), Sequences(), set[int]()
    assert taken(sequences, kept, output) == [False]
    kept.add([3, 4])
    assert taken(sequences, kept, output) == [False]
    kept.remove(1)
    assert taken(sequences, kept, output) == []
    ((_, parts),) = sequences
    assert parts == [SequencePart(1, 4, 0, 4)]


def test_where_retention_was_faster_than_snapshots_the_counts_say_how_much_is_missing() -> None:
    kept, sequences, output = Kept([[1, 2]]), Sequences(), set[int]()
    taken(sequences, kept, output)
    for block in ([3, 4, 5], [6]):
        kept.add(block)
        kept.remove(1)
    assert taken(sequences, kept, output) == [False]
    ((_, parts),) = sequences
    assert parts == [SequencePart(1, 2, 0, 2), SequencePart(6, 6, 5, 6)]


def test_an_older_snapshot_and_a_copy_that_went_its_own_way_are_compared() -> None:
    old = Kept([[1, 2], [3]])
    new, sequences, output = old.copy(), Sequences(), set[int]()
    new.add([4, 5])
    new.remove(1)
    other = old.copy()
    other.add([6, 7])
    assert taken(sequences, new, output) == [False]
    assert taken(sequences, old, output) == [True]
    assert taken(sequences, other, output) == [False]
    assert output == {1, 2, 3, 4, 5, 6, 7}


def messages(worker: int, first: int, count: int) -> Iterator[StoredMessage]:
    for index in range(count):
        yield StoredMessage(b"t/%d" % index, b"x", number_at(first + index, worker), publisher="p")


def of_events(count: int) -> Iterator[tuple[bytes, bytes]]:
    before = 0
    for index in range(count):
        value = events.encode_event(events.STOPPED, [], [])
        key, value = events.event_key(number_at(1000 + index)), schema.U64.pack(before) + value
        yield key, value
        before += len(key) + len(value)


def test_sequences_of_a_store_are_found_by_rule_and_worker(tmp_path: Path) -> None:
    def records() -> Iterator[tuple[bytes, bytes]]:
        yield from archive_of(messages(0, 1000, 25), "a/#", 1, block=10)
        yield from archive_of(messages(2, 500, 7), "a/#", 1, block=10)
        yield from archive_of(messages(0, 2000, 5), "b/#", 2, block=10)
        yield from of_events(4)

    snapshot_of(tmp_path / "snapshot", [records()])
    (store,) = stores_of(find(str(tmp_path / "snapshot")))
    with clones.cloned(store.path) as db:
        found = {run.sequence: run for run in runs_of(db, store)}
        assert set(found) == {
            Sequence("host", "messages", "a/#", 0), Sequence("host", "messages", "a/#", 2),
            Sequence("host", "messages", "b/#", 0), Sequence("host", "events", "", 0),
        }  # fmt: skip
        run = found[Sequence("host", "messages", "a/#", 0)]
        assert run.part == SequencePart(number_at(1000), number_at(1024), 0, 25)
        assert run.counted(number_at(1009)) == 10
        assert run.counted(number_at(1008)) is None
        assert run.begins(number_at(1009) + 1) == number_at(1010)
        recorded = found[Sequence("host", "events", "", 0)]
        assert (recorded.part.first, recorded.part.last) == (number_at(1000), number_at(1003))
        assert recorded.counted(number_at(1001)) == recorded.part.behind // 2
        assert recorded.begins(number_at(1001) + 1) == number_at(1002)

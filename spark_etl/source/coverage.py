"""Coverage of sequences: finds which part of a snapshot is new to an output, without reading messages.

A *sequence* consists of the messages that one worker has archived by one rule, or of the events of one store:
append-only, numbers rising, removed from the front only. Every block (and event) has the amount of its sequence ever
stored before it. So a place in a sequence is a number and that count, and the contents of a snapshot are a
`SequencePart` between two places.

It is *proved* that a snapshot's numbers up to N are those already taken if the snapshot has a block that ends with N,
and the count behind it is the same: its history up to there is then the same. Unproved parts are read and compared row
by row with the output (`is_doubtful`). They occur

- in a snapshot that is older than the last one taken, and not the same one,
- when a data directory was copied or restored, and both copies were used,
- when a power cut has removed messages of a snapshot, and the clock was set back.

So numbers make it fast, but are never relied on alone (docs/adr/0028).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveldb_store.format import archive_schema, events, schema
from leveldb_store.format.schema import U64

if TYPE_CHECKING:
    import plyvel

    from spark_etl.tables.snapshots import SnapshotStore

__all__ = ["Missing", "Run", "Sequence", "SequencePart", "Sequences", "runs_of"]

_NUMBER_MAX: Final = (1 << 64) - 1


class Sequence(NamedTuple):
    """The identity of a sequence."""

    host: str
    kind: str
    """`messages` or `events`."""
    rule: str
    """Topic Filter of its archive rule; empty for events."""
    worker: int
    """The worker that has archived it; for events the worker of the store."""


@dataclass(frozen=True, slots=True)
class SequencePart:
    """The part of a sequence between two numbers, both included."""

    first: int
    last: int
    before: int
    """Amount of the sequence ever stored before the first: messages, or bytes of events."""
    behind: int
    """Amount including the last."""


@dataclass(frozen=True, slots=True)
class Run:
    """A sequence in one store of a snapshot."""

    sequence: Sequence
    part: SequencePart
    store: int
    counted: Callable[[int], int | None]
    """Returns the amount stored up to this number; None: no block ends there. The clone must be open."""
    begins: Callable[[int], int]
    """Returns the first number of the block that has this one, or follows it."""
    key: Callable[[int], bytes]
    """Returns the key of the block of which this is the last number."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A part of a run that is not proved to be in the output."""

    sequence: Sequence
    store: int
    first: int
    last: int
    is_doubtful: bool
    """Whether some of it may be in the output."""
    share: float
    """Fraction of the run, by numbers, which are times."""


class Sequences:
    """The parts of all sequences that an output has."""

    def __init__(self, found: Iterable[dict[str, Any]] = ()) -> None:
        """`found`: a result of `told`."""
        self._parts: dict[Sequence, list[SequencePart]] = {}
        for each in found:
            sequence = Sequence(each["host"], each["kind"], each["rule"], each["worker"])
            self._parts[sequence] = [SequencePart(*numbers) for numbers in each["stretches"]]

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return them as JSON."""
        return [
            # "stretches": the name of the first release, which is on disk
            {**sequence._asdict(), "stretches": [[s.first, s.last, s.before, s.behind] for s in parts]}
            for sequence, parts in sorted(self._parts.items())
        ]

    def __iter__(self) -> Iterator[tuple[Sequence, list[SequencePart]]]:
        """Yield each with its parts."""
        return iter(sorted(self._parts.items()))

    def missing(self, run: Run) -> list[Missing]:
        """Return the parts of a run that are not proved to be there, in order of numbers."""
        known = self._parts.get(run.sequence, [])
        proved = [each for each in known if _is_proved(each, run)]
        open_parts = [(run.part.first, run.part.last)]
        for each in proved:
            open_parts = [part for first, last in open_parts for part in _without(first, last, each)]
        found = []
        for first, last in open_parts:
            first = max(first, run.begins(first))
            if first > last:
                continue
            is_doubtful = any(
                each.first <= last and first <= each.last for each in known if each not in proved
            )  # fmt: skip
            share = (last - first + 1) / (run.part.last - run.part.first + 1)
            found.append(Missing(run.sequence, run.store, first, last, is_doubtful, share))
        return found

    def take(self, run: Run) -> None:
        """Note that the output has all of it now."""
        known = self._parts.setdefault(run.sequence, [])
        merged = run.part
        rest = []
        for each in known:
            if not _is_proved(each, run):
                rest.append(each)
            elif each.first < merged.first:
                merged = replace(merged, first=each.first, before=each.before)
        self._parts[run.sequence] = [*rest, merged]


def _is_proved(known: SequencePart, run: Run) -> bool:
    return run.part.first <= known.last <= run.part.last and run.counted(known.last) == known.behind


def _without(first: int, last: int, known: SequencePart) -> Iterator[tuple[int, int]]:
    if known.last < first or last < known.first:
        yield first, last
        return
    if first < known.first:
        yield first, known.first - 1
    if known.last < last:
        yield known.last + 1, last


# ---------------------------------------------------------------- reading a store


def runs_of(db: plyvel.DB, store: SnapshotStore) -> Iterator[Run]:
    """Yield the sequences of a store, whose clone is open. Raises SchemaError and plyvel.Error."""
    host, number = store.snapshot.host, store.facts.worker
    for rule, text in sorted(store.rules.items()):
        origin = 0
        while (
            found := _next(db, archive_schema.block_key(rule, origin, 0), archive_schema.blocks_of(rule))
        ) is not None:
            _, origin, _ = archive_schema.split_block(found[0])
            yield _archived(db, number, Sequence(host, "messages", text, origin), rule)
            origin += 1
    recorded = _events(db, number, Sequence(host, "events", "", number))
    if recorded is not None:
        yield recorded


def _archived(db: plyvel.DB, store: int, sequence: Sequence, rule: int) -> Run:
    origin = sequence.worker

    def key(number: int) -> bytes:
        return archive_schema.block_key(rule, origin, number)

    head = archive_schema.decode_head(_first(db, key(0))[1])
    last_key, last_value = _last(db, key(_NUMBER_MAX))
    last = archive_schema.decode_head(last_value)
    _, _, last_number = archive_schema.split_block(last_key)

    def counted(number: int) -> int | None:
        found = db.get(key(number), verify_checksums=True)
        if found is None:
            return None
        block = archive_schema.decode_head(found)
        return block.messages_before + block.messages

    def begins(number: int) -> int:
        return archive_schema.decode_head(_first(db, key(number))[1]).first

    part = SequencePart(head.first, last_number, head.messages_before, last.messages_before + last.messages)
    return Run(sequence, part, store, counted, begins, key)


def _events(db: plyvel.DB, store: int, sequence: Sequence) -> Run | None:
    deleted = db.get(schema.EVENTS_DELETED, verify_checksums=True)
    found = _next(db, events.event_key(schema.decode_u64(deleted) + 1 if deleted else 0), schema.EVENT)
    if found is None:
        return None
    last_key, last_value = _last(db, events.event_key(_NUMBER_MAX))

    def behind(key: bytes, value: bytes) -> int:
        return int(U64.unpack_from(value)[0]) + len(key) + len(value)

    def counted(number: int) -> int | None:
        value = db.get(events.event_key(number), verify_checksums=True)
        return None if value is None else behind(events.event_key(number), value)

    def begins(number: int) -> int:
        return events.key_number(_first(db, events.event_key(number))[0])

    first_key, first_value = found
    part = SequencePart(
        events.key_number(first_key), events.key_number(last_key), int(U64.unpack_from(first_value)[0]),
        behind(last_key, last_value),
    )  # fmt: skip
    return Run(sequence, part, store, counted, begins, events.event_key)


def _next(db: plyvel.DB, key: bytes, prefix: bytes) -> tuple[bytes, bytes] | None:
    # the first record from a key on, if its key has this prefix
    with db.iterator(start=key, fill_cache=False, verify_checksums=True) as found:
        for each in found:
            return each if each[0].startswith(prefix) else None
    return None


def _first(db: plyvel.DB, key: bytes) -> tuple[bytes, bytes]:
    with db.iterator(start=key, fill_cache=False, verify_checksums=True) as records:
        found: tuple[bytes, bytes] = next(records)
    return found


def _last(db: plyvel.DB, key: bytes) -> tuple[bytes, bytes]:
    with db.iterator(stop=key, include_stop=True, reverse=True, fill_cache=False, verify_checksums=True) as records:
        found: tuple[bytes, bytes] = next(records)
    return found

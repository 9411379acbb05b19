"""Survey of the archive in a store: its rules, and both ends of their sequences. It takes a few reads for each, however
much is between: so a start does not take longer with a full archive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import plyvel

from leveldb_store.engine.database import Database, error_text
from leveldb_store.engine.readable import Readable, last_of
from leveldb_store.format import archive_schema as schema
from leveldb_store.format.archive_schema import HIGHEST
from leveldb_store.format.persisted_counters import decode_counters
from leveldb_store.format.schema import (
    ARCHIVE_REMOVED,
    ARCHIVE_RULE,
    ARCHIVED,
    COUNTERS,
    NUMBER,
    SchemaError,
    decode_number,
    decode_u64,
    prefix_end,
)

_ORIGINS: Final = 256
_DAMAGED_MAX: Final = 1000  # blocks at an end of a sequence: beyond so many its counts are estimated
_SAID_MAX: Final = 10_000
_BLOCKS_END: Final = prefix_end(ARCHIVED)


@dataclass(slots=True)
class SequenceEnds:
    """The ends of a sequence."""

    origin: int
    first: int
    """The last number of its first block."""
    first_number: int
    """The first number of its first block."""
    last: int
    messages_before: int
    """Running counts before its first block, and at its end."""
    bytes_before: int
    messages: int
    bytes: int


@dataclass(slots=True)
class ArchiveSurvey:
    """The result of the survey."""

    rules: dict[bytes, schema.Rule] = field(default_factory=dict)
    """By Topic Filter."""
    removed: dict[tuple[int, int], int] = field(default_factory=dict)
    """(rule, origin) -> the highest number that retention has removed."""
    sequences: dict[int, list[SequenceEnds]] = field(default_factory=dict)
    """By rule: sequences that are not empty."""
    aside: set[int] = field(default_factory=set)
    """Numbers of unknown rules that have blocks."""
    highest: int = 0
    """Numbers of new messages must be higher."""


class DamageReporter:
    """Reports each damaged record once."""

    def __init__(self, path: object, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self._known: set[bytes] = set()

    def __call__(self, key: bytes, what: str, error: Exception) -> None:
        """Report a record by its key, or by the key before an unreadable range. Callable from any thread."""
        if key in self._known:
            return
        if len(self._known) >= _SAID_MAX:
            self._known.clear()
        self._known.add(key)
        self._say(f"the archive of {self._path} is damaged: {what} ({key.hex()}): {error_text(error)}")


def find(database: Database, reporter: DamageReporter) -> ArchiveSurvey:
    """Read the rules and the ends of their sequences. Damaged records are reported, and set aside. Raises plyvel.Error
    when nothing can be read.
    """
    found = ArchiveSurvey()
    _find_rules(database, found, reporter)
    for key, value in readable(database, ARCHIVE_REMOVED, reporter):
        try:
            rule, origin = schema.split_removed(key)
            found.removed[rule, origin] = HIGHEST
            found.removed[rule, origin] = decode_u64(value)
        except SchemaError as error:
            reporter(key, "how far retention has come", error)
    found.highest = max(_given(database, reporter), *(each for each in found.removed.values() if each != HIGHEST), 0)
    for rule in [rule.number for rule in found.rules.values()]:
        held = list(_sequences(database.db, rule, found.removed, reporter))
        if held:
            found.sequences[rule] = held
            found.highest = max(found.highest, *(each.last for each in held))
    for each, up_to in found.removed.items():
        if up_to == HIGHEST:  # unknown: counts as everything that is missing
            held = [held for held in found.sequences.get(each[0], ()) if held.origin == each[1]]
            found.removed[each] = held[0].first_number - 1 if held else found.highest
    return found


def readable(database: Database, family: bytes, reporter: DamageReporter) -> Iterator[tuple[bytes, bytes]]:
    """Yield the readable records of a family."""
    records = Readable(database.db, family, prefix_end(family))
    try:
        before = family
        while True:
            key, value = records.next()
            if records.error is not None:
                reporter(before, "what follows cannot be read", records.error)
            if not key:
                return
            before = key
            yield key, value
    finally:
        records.close()


def _find_rules(database: Database, found: ArchiveSurvey, reporter: DamageReporter) -> None:
    numbers = set(_rule_numbers(database.db))
    damaged = []
    for key, value in readable(database, ARCHIVE_RULE, reporter):
        try:
            rule = schema.decode_rule(key, value)
            if any(rule.number == other.number for other in found.rules.values()):
                raise SchemaError(f"another rule has number {rule.number}, too")
            found.rules[rule.topic_filter] = rule
        except SchemaError as error:
            reporter(key, "a rule", error)
            damaged.append(key[1:])
    found.aside = numbers - {rule.number for rule in found.rules.values()}
    if len(damaged) == len(found.aside) == 1:  # the damaged rule is that of the blocks
        number = found.aside.pop()
        found.rules[damaged[0]] = schema.Rule(damaged[0], number, 0, HIGHEST, HIGHEST)
    for number in found.aside:
        reporter(
            schema.blocks_of(number), f"blocks of rule {number} are set aside", SchemaError("the rule is not known")
        )


def _rule_numbers(db: plyvel.DB) -> Iterator[int]:
    # numbers of rules that have blocks, from the blocks' keys
    number = 0
    while number <= schema.NOT_CONFIGURED:
        records = Readable(db, schema.blocks_of(number), _BLOCKS_END)
        key, _ = records.next()
        records.close()
        if len(key) < len(schema.blocks_of(0)):
            return
        number = schema.rule_of(key)
        yield number
        number += 1


def _given(database: Database, reporter: DamageReporter) -> int:
    # the highest number that was given out
    highest = 0
    for key in (NUMBER, COUNTERS):
        try:
            value = database.get(key)
            if value is not None:
                highest = max(
                    highest, decode_number(value) if key == NUMBER else decode_counters(value).get("number", 0) << 8
                )
        except (plyvel.CorruptionError, SchemaError, ValueError) as error:
            reporter(key, "the last number that was given", error)
    return highest


def _sequences(
    db: plyvel.DB, rule: int, removed: dict[tuple[int, int], int], reporter: DamageReporter
) -> Iterator[SequenceEnds]:
    # begins behind removed blocks: LevelDB would walk over each deleted key
    origin = 0
    while origin < _ORIGINS:
        up_to = removed.get((rule, origin), 0)
        records = Readable(
            db, schema.block_key(rule, origin, 0 if up_to == HIGHEST else up_to + 1), prefix_end(schema.blocks_of(rule))
        )
        try:
            key, value = records.next()
            if not key:
                return
            if len(key) != schema.BLOCK_KEY_BYTES:
                origin += 1
                continue
            _, found, _ = schema.split_block(key)
            if found != origin:
                origin = found
                continue
            yield _held(db, key, value, records, reporter)
            origin += 1
        finally:
            records.close()


def _held(db: plyvel.DB, key: bytes, value: bytes, records: Readable, reporter: DamageReporter) -> SequenceEnds:
    # the sequence that begins with this block
    rule, origin, first = schema.split_block(key)
    begin, passed = None, 0
    for _ in range(_DAMAGED_MAX):
        try:
            begin = schema.decode_head(value)
            break
        except SchemaError as error:
            reporter(key, "a block", error)
        passed += len(key) + len(value)
        key, value = records.next()
        if key[: len(schema.sequence(rule, origin))] != schema.sequence(rule, origin):
            break
    messages_before = 0 if begin is None else begin.messages_before
    bytes_before = 0 if begin is None else max(0, begin.bytes_before - passed)
    key, value = last_of(db, schema.sequence(rule, origin), schema.sequence_end(rule, origin))
    last = max(first, schema.split_block(key)[2] if len(key) == schema.BLOCK_KEY_BYTES else 0)
    end, behind = None, 0
    for _ in range(_DAMAGED_MAX):
        if not key:
            break
        behind += len(key) + len(value)
        try:
            end = schema.decode_head(value)
            break
        except SchemaError as error:
            reporter(key, "a block", error)
        key, value = last_of(db, schema.sequence(rule, origin), key)
    return SequenceEnds(
        origin, first, first if begin is None or passed else begin.first, last, messages_before, bytes_before,
        max(messages_before, end.messages_before + end.messages if end is not None else 0),
        max(bytes_before, end.bytes_before if end is not None else 0) + behind,
    )  # fmt: skip

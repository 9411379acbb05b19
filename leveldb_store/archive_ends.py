"""What a store has of the archive: its rules, and the ends of their sequences. A few reads for each, however much lies
between: so a start does not take longer for a full archive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import plyvel

from leveldb_store import archive_schema as schema
from leveldb_store.database import Database
from leveldb_store.moment import decode_moment
from leveldb_store.schema import ARCHIVE_REMOVED, ARCHIVE_RULE, COUNTERS, NUMBER, decode_u64

HIGHEST: Final = 2**64 - 1
_ORIGINS: Final = 256


@dataclass(slots=True)
class Held:
    """A sequence: what of it is there."""

    origin: int
    first: int
    """The last number of its first block."""
    last: int
    messages_before: int
    """Running counts before its first block, and at its end."""
    bytes_before: int
    messages: int
    bytes: int


@dataclass(slots=True)
class Found:
    """What a store has of the archive."""

    rules: dict[bytes, schema.Rule] = field(default_factory=dict)
    """By Topic Filter."""
    removed: dict[tuple[int, int], int] = field(default_factory=dict)
    """(rule, origin) -> the highest number that retention has removed."""
    sequences: dict[int, list[Held]] = field(default_factory=dict)
    """By rule; those that hold something."""
    highest: int = 0
    """Numbers of new messages must lie above it."""


def find(database: Database) -> Found:
    """Look at the rules and at the ends of their sequences. Raises plyvel.Error, SchemaError, ValueError."""
    found = Found()
    for key, value in database.scan(ARCHIVE_RULE):
        rule = schema.decode_rule(key, value)
        found.rules[rule.topic_filter] = rule
    for key, value in database.scan(ARCHIVE_REMOVED):
        found.removed[schema.split_removed(key)] = decode_u64(value)
    above, moment = database.get(NUMBER), database.get(COUNTERS)
    found.highest = max(0 if above is None else decode_u64(above), *found.removed.values(), 0)
    if moment is not None:
        found.highest = max(found.highest, decode_moment(moment).get("number", 0) << 8)
    for rule in found.rules.values():
        held = list(_sequences(database.db, rule.number, found.removed))
        if held:
            found.sequences[rule.number] = held
            found.highest = max(found.highest, *(each.last for each in held))
    return found


def _sequences(db: plyvel.DB, rule: int, removed: dict[tuple[int, int], int]) -> Iterator[Held]:
    # behind what was removed: LevelDB would walk over each key that was deleted
    origin = 0
    with db.iterator(prefix=schema.blocks_of(rule), verify_checksums=True) as blocks:
        while origin < _ORIGINS:
            blocks.seek(schema.block_key(rule, origin, removed.get((rule, origin), 0) + 1))
            key, value = next(blocks, (b"", b""))
            if not key:
                return
            _, found, first = schema.split_block(key)
            if found != origin:
                origin = found
                continue
            begin = schema.decode_head(value)
            blocks.seek(schema.block_key(rule, origin, HIGHEST))
            key, value = blocks.prev()
            end = schema.decode_head(value)
            yield Held(
                origin, first, schema.split_block(key)[2], begin.messages_before, begin.bytes_before,
                end.messages_before + end.messages, end.bytes_before + len(key) + len(value),
            )  # fmt: skip
            origin += 1

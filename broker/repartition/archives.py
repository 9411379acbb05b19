"""Carries the archives of N workers over to M: the part of `broker.repartition.stores` for archives.

The messages that one worker has archived are its *origin* and stay together: origin i goes to worker i mod M, with its
blocks byte for byte. So numbers rise in it as before, its running counts stay true, and no message is in two stores.
Only the numbers of rules are new: each store has its own, found by the rule's Topic Filter.

Every new worker numbers its messages above all numbers of the old ones, so messages archived later sort later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leveldb_store.archive.ends import ArchiveSurvey, DamageReporter, find, readable
from leveldb_store.engine.database import Database
from leveldb_store.format import archive_schema, schema

__all__ = ["carry_archives"]

_RULES_MAX = 0xFFFF


def carry_archives(
    old: Sequence[Database],
    new: Sequence[Callable[[bytes, bytes], None]],
    handled: Callable[[bytes], None],
    say: Callable[[str], None],
) -> int:
    """Copy all archives; return the number of blocks. `new`: puts a record into a new store; `handled`: called with the
    key of each. Unreadable records are reported and left out. Raises plyvel.Error, SchemaError, ValueError.
    """
    reporters = [DamageReporter(database.path, say) for database in old]
    found = [find(database, reporter) for database, reporter in zip(old, reporters, strict=True)]
    aside = 0
    numbers: dict[bytes, int] = {}
    sinces, changes = _latest(found)
    for index, each in enumerate(found):
        for rule in each.rules.values():
            if rule.topic_filter in numbers:
                continue
            number = numbers[rule.topic_filter] = len(numbers) + 1
            if number > _RULES_MAX:
                raise ValueError(f"worker {index} has too many rules of the archive")
            # the bound on bytes is per store
            bytes_max = max(1, rule.bytes_max * len(old) // len(new))
            text = rule.topic_filter
            whole = rule._replace(number=number, bytes_max=bytes_max, since=sinces[text], changed=changes[text])
            value = archive_schema.encode_rule(whole)
            for put in new:
                put(archive_schema.rule_key(rule.topic_filter), value)
    blocks = 0
    for index, each in enumerate(found):
        reporter = reporters[index]
        renumbered = {0: 0} | {rule.number: numbers[rule.topic_filter] for rule in each.rules.values()}
        for number in sorted(each.aside):  # blocks of an unknown rule keep one, under a number of its own
            aside += 1
            renumbered[number] = len(numbers) + aside
        for (rule_number, origin), up_to in each.removed.items():
            if rule_number in renumbered:
                key = archive_schema.removed_key(renumbered[rule_number], origin)
                new[origin % len(new)](key, schema.U64.pack(up_to))
        for key, value in readable(old[index], schema.ARCHIVED, reporter):
            handled(key)
            if len(key) != archive_schema.BLOCK_KEY_BYTES:
                reporter(key, "no key of a block", schema.SchemaError("it is left out"))
                continue
            rule_number, origin, last = archive_schema.split_block(key)
            new[origin % len(new)](archive_schema.block_key(renumbered[rule_number], origin, last), value)
            blocks += 1
        for key, value in readable(old[index], schema.ARCHIVE_SUMMARY, reporter):
            handled(key)
            if len(key) == archive_schema.BLOCK_KEY_BYTES:
                rule_number, origin, last = archive_schema.split_block(key)
                if rule_number in renumbered:
                    key = archive_schema.summary_key(renumbered[rule_number], origin, last)
                    new[origin % len(new)](key, value)
    highest = max(each.highest for each in found)
    if highest:
        for put in new:
            put(schema.NUMBER, schema.U64.pack(highest))
    return blocks


def _latest(found: Sequence[ArchiveSurvey]) -> tuple[dict[bytes, int], dict[bytes, int]]:
    # by Topic Filter: the time since when the rule has been the same in all stores
    sinces: dict[bytes, int] = {}
    changes: dict[bytes, int] = {}
    for each in found:
        for text, rule in each.rules.items():
            sinces[text] = max(rule.since, sinces.get(text, 0))
            changes[text] = max(rule.changed, changes.get(text, 0))
    return sinces, changes

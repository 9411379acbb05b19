"""What becomes of the archives of N workers when there are M: the part of `broker.repartition` that is about them.

What one worker has archived is its *origin*, and stays together: origin i goes to worker i mod M, with its blocks as
they are, byte for byte. So numbers rise in it as before, its running counts go on to be true, and no message stands in
two stores. Only the numbers of rules are new: each store has its own, by which a rule is found by its Topic Filter.

Every new worker numbers its messages above all that any of the old ones has given: what is archived later comes later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from leveldb_store import archive_schema, schema
from leveldb_store.archive_ends import find
from leveldb_store.database import Database

__all__ = ["carry_archives"]

_RULES_MAX = 0xFFFF


def carry_archives(
    old: Sequence[Database],
    new: Sequence[Callable[[bytes, bytes], None]],
    scan: Callable[[int, bytes], Iterator[tuple[bytes, bytes]]],
) -> int:
    """Copy all archives; returns how many blocks. `new`: puts a record into a new store; `scan`: a family of an old
    one, by its index. Raises plyvel.Error, SchemaError, ValueError.
    """
    found = [find(database) for database in old]
    numbers: dict[bytes, int] = {}
    for index, each in enumerate(found):
        for rule in each.rules.values():
            if rule.topic_filter in numbers:
                continue
            number = numbers[rule.topic_filter] = len(numbers) + 1
            if number > _RULES_MAX:
                raise ValueError(f"worker {index} has too many rules of the archive")
            # its bytes are those of one store
            bytes_max = max(1, rule.bytes_max * len(old) // len(new))
            value = archive_schema.encode_rule(rule._replace(number=number, bytes_max=bytes_max))
            for put in new:
                put(archive_schema.rule_key(rule.topic_filter), value)
    blocks = 0
    for index, each in enumerate(found):
        renumbered = {rule.number: numbers[rule.topic_filter] for rule in each.rules.values()}
        for key, value in scan(index, schema.ARCHIVE_REMOVED):
            rule_number, origin = archive_schema.split_removed(key)
            if rule_number in renumbered:
                new[origin % len(new)](archive_schema.removed_key(renumbered[rule_number], origin), value)
        for key, value in scan(index, schema.ARCHIVED):
            rule_number, origin, last = archive_schema.split_block(key)
            new[origin % len(new)](archive_schema.block_key(renumbered[rule_number], origin, last), value)
            blocks += 1
    highest = max(each.highest for each in found)
    if highest:
        for put in new:
            put(schema.NUMBER, schema.U64.pack(highest))
    return blocks

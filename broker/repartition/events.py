"""Carries events over when the stores of N workers become those of M (`broker.repartition.stores`): all are kept.

Events of old worker I go to new worker I mod M, which merges those of several workers by number. They stay as they are,
except for the count of bytes before each. Events beyond the bound (`events.bytes_max`) are deleted by the new worker
after its start.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter

from leveldb_store.format import schema
from leveldb_store.format.events import event_key, key_number, split_event

__all__ = ["carry_events"]

_ONE_MICROSECOND = 1 << 8


def carry_events(
    sources: Sequence[Iterable[tuple[bytes, bytes]]], puts: Sequence[Callable[[bytes, bytes], None]]
) -> int:
    """Pass the records of each old worker, in order, to the new workers' `puts`; return their number."""
    ends, lasts, carried = [0] * len(puts), [0] * len(puts), 0
    for number, target, event in heapq.merge(
        *(_numbered(source, index % len(puts)) for index, source in enumerate(sources)), key=itemgetter(0)
    ):
        if number <= lasts[target]:  # two workers used the number, one of them long ago under another index
            number = lasts[target] + _ONE_MICROSECOND
        key, value = event_key(number), schema.U64.pack(ends[target]) + event
        puts[target](key, value)
        ends[target] += len(key) + len(value)
        lasts[target] = number
        carried += 1
    return carried


def _numbered(source: Iterable[tuple[bytes, bytes]], target: int) -> Iterator[tuple[int, int, bytes]]:
    for key, value in source:
        yield key_number(key), target, split_event(value)[1]

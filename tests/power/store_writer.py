"""A program that uses a LevelStore as a worker does, and marks in the trace which of its ticks are durable.

    python -m tests.power.store_writer DIRECTORY TRACE TICKS SYNCED

Tick N is a function of N, and so is the expected content after it. SYNCED is 1, or 0: then some ticks with messages
only do not ask for a sync.

"""

from __future__ import annotations

import random
import select
import sys
from typing import NamedTuple

from leveldb_store.engine.database import DatabaseOptions
from leveldb_store.store import LevelStore
from pyx.protocol.message import Message
from pyx.storage.records import Block, LogKey
from tests.power.trace import mark
from tests.unit.adapters import records_adapter as adapter

NAMES = (b"a", b"b", b"c")
RECORDS = 20
UNDER_WAY = 5  # latest ticks, whose durability is not awaited yet
OPTIONS = DatabaseOptions(write_buffer_bytes=1 << 16)
"""Small, so that logs are switched, tables written and compacted every few ticks."""


class Tick(NamedTuple):
    """The writes of one tick."""

    messages: list[tuple[bytes, tuple[bytes, ...]]]
    records: dict[bytes, bytes | None]
    trimmed: list[tuple[bytes, int]]
    dropped: list[tuple[bytes, int, int]]
    synced: bool


class Script:
    """All ticks up to some number, and the content after each of them."""

    def __init__(self, ticks: int, synced: bool = True) -> None:
        rng = random.Random(7)
        self.ticks: list[Tick] = []
        self.positions: list[int] = [0]
        """Position of the last message after this many ticks."""
        position = 0
        low = dict.fromkeys(NAMES, 0)
        for number in range(1, ticks + 1):
            messages = []
            for _ in range(rng.choice((0, 1, 1, 2, 10))):
                names = tuple(name for name in NAMES if rng.random() < 0.5) or (b"a",)
                messages.append((rng.randbytes(rng.randrange(rng.choice((30, 300, 3000)))), names))
            position += len(messages)
            records: dict[bytes, bytes | None] = {b"V": b"%d" % number}
            records[b"S%d" % rng.randrange(RECORDS)] = rng.choice((None, rng.randbytes(40)))
            trimmed, dropped = [], []
            for name in NAMES:
                if rng.random() < 0.1:
                    low[name] = rng.randint(low[name], max(low[name], position - 20))
                    trimmed.append((name, low[name]))
                elif rng.random() < 0.05 and position - 10 > low[name]:
                    after = rng.randint(low[name], position - 10)
                    dropped.append((name, after, after + rng.randrange(10)))
            loose = not synced and bool(messages) and rng.random() < 0.6
            self.ticks.append(Tick(messages, {} if loose else records, trimmed, dropped, not loose))
            self.positions.append(position)

    def records(self, number: int) -> dict[bytes, bytes]:
        """Return all state records after tick `number`."""
        found: dict[bytes, bytes] = {}
        for tick in self.ticks[:number]:
            for key, value in tick.records.items():
                if value is None:
                    found.pop(key, None)
                else:
                    found[key] = value
        return found

    def rows(self, name: bytes, number: int, at_most: bool) -> dict[int, bytes]:
        """Return an index after tick `number`, by position. `at_most`: the entries that may be there, also deleted and
        unsynced ones; else those that must be there.
        """
        found: dict[int, bytes] = {}
        position = 0
        for tick in self.ticks[:number]:
            for body, names in tick.messages:
                position += 1
                if name in names and (tick.synced or at_most):
                    found[position] = body
        for tick in self.ticks[: 0 if at_most else number]:
            for each, up_to in tick.trimmed:
                if each == name:
                    found = {at: body for at, body in found.items() if at > up_to}
            for each, after, up_to in tick.dropped:
                if each == name:
                    found = {at: body for at, body in found.items() if not after < at <= up_to}
        return found


def run(directory: str, trace: str, ticks: int, synced: bool) -> None:
    """Write all ticks; mark those that are durable."""
    store = LevelStore(directory, options=OPTIONS, tail_bytes_max=1 << 16)
    script = Script(ticks, synced)
    keys = {name: LogKey(name) for name in NAMES}
    promised = 0
    for number, tick in enumerate(script.ticks, 1):
        block = Block(script.positions[number - 1] + 1)
        for body, names in tick.messages:
            record = adapter.add(block, Message.create(b"t", body, qos=1))
            for name in names:
                adapter.index(block, keys[name], record)
        if tick.messages:
            store.append(block)
        for key, value in tick.records.items():
            if value is None:
                store.delete(key)
            else:
                store.put(key, value)
        for name, up_to in tick.trimmed:
            store.trim(name, up_to)
        for name, after, up_to in tick.dropped:
            store.drop(name, after, up_to)
        store.flush(tick.synced)
        while promised < (number - UNDER_WAY if number < ticks else ticks):
            select.select([store.fileno()], [], [])
            durable = store.collect()
            if durable > promised:
                promised = durable
                mark(trace, b"%d" % promised)
    store.close()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "1")

"""The contract of stores, in memory and on LevelDB alike; promises of a store on disk only: test_level_store.py."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leveldb_store.contract import Store
from leveldb_store.format.schema import block_key
from leveldb_store.memory import MemoryStore
from leveldb_store.store import LevelStore
from pyx.protocol.message import Message
from pyx.storage.records import Block, LogKey
from tests.unit.adapters import records_adapter as adapter
from tests.waiting import wait_until

NAMES = (b"a", b"b/+", b"\0client")
Row = tuple[int, bytes]


class Writer:
    """Appends like the router: positions without a gap, one block a tick."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.next = store.last_position + 1
        self.keys: dict[bytes, LogKey] = {}

    def append(self, *records: tuple[bytes, tuple[bytes, ...]]) -> int:
        block = Block(self.next)
        for body, names in records:
            record = adapter.add(block, Message.create(b"t", body, qos=1, number=self.next, publisher="me"))
            self.next += 1
            for name in names:
                adapter.index(block, self.keys.setdefault(name, LogKey(name)), record)
        ticket = self.store.append(block)
        assert self.store.flush() == ticket
        return ticket


def rows(store: Store, name: bytes, after: int = 0, bytes_max: int = 1 << 20) -> list[Row]:
    return [(position, bytes(message.payload)) for position, message in store.read(name, after, bytes_max).items()]


def all_rows(store: Store, name: bytes, after: int = 0, bytes_max: int = 1 << 20) -> list[Row]:
    """Return all rows, read in pages like a session."""
    out: list[Row] = []
    while True:
        batch = store.read(name, after, bytes_max)
        found = batch.items()
        if not found:
            assert not batch.truncated
            return out
        assert found[0][0] > after
        out += [(position, bytes(message.payload)) for position, message in found]
        after = found[-1][0]
        if not batch.truncated:
            assert store.read(name, after, bytes_max).items() == []
            return out


@pytest.fixture(autouse=True)
def _deleting_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete unneeded records at once, not half a second later."""
    monkeypatch.setattr("leveldb_store.writer.TIDY_SECONDS", 0.0)


@pytest.fixture(params=["memory", "leveldb", "leveldb without tails"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store
    if request.param == "memory":
        made = MemoryStore()
    else:
        made = LevelStore(tmp_path / "0", tail_bytes_max=1 if "without" in request.param else 1 << 20, say=pytest.fail)
    yield made
    made.close()


def test_messages_by_their_positions(store: Store) -> None:
    """Durable messages are found by rising positions, in adjacent or distant blocks; other positions are absent."""
    writer = Writer(store)
    for first in range(1, 300, 3):
        bodies = (b"%d" % (first + at) for at in range(3))
        ticket = writer.append(*((body, (b"a",)) for body in bodies))
    wait_until(lambda: store.collect() >= ticket, 60.0, "all is durable")
    for wanted in ([], [1], [2, 3, 4], [1, 150, 151, 299, 300], [300, 301, 999], range(1, 302), range(3, 300, 7)):
        found = store.messages_at(wanted)
        assert {at: bytes(each.payload) for at, each in found.items()} == {at: b"%d" % at for at in wanted if at <= 300}


@pytest.mark.parametrize("behind", [b"Sclient", block_key(32)], ids=["session", "block"])
@pytest.mark.parametrize("before", [b"", b"\0store", b"A0123456789"], ids=["nothing", "store", "archive"])
def test_positions_whose_blocks_are_deleted_are_not_there(before: bytes, behind: bytes, tmp_path: Path) -> None:
    """A window may name messages whose blocks are gone: records before and behind the blocks are not taken for them."""
    store = LevelStore(tmp_path / "0", say=pytest.fail)
    for key in filter(None, (before, behind)):
        store.put(key, b"{}")
    ticket = store.flush()
    wait_until(lambda: store.collect() >= ticket, 60.0, "all is durable")
    assert store.messages_at([5, 9]) == {}
    store.close()


def test_what_was_appended_can_be_read_at_once(store: Store) -> None:
    writer = Writer(store)
    assert store.last_position == 0
    assert writer.append((b"1", (b"a",)), (b"2", (b"a", b"b"))) == 1
    assert writer.append((b"3", (b"b",))) == 2
    assert rows(store, b"a") == [(1, b"1"), (2, b"2")]
    assert rows(store, b"b") == [(2, b"2"), (3, b"3")]
    assert rows(store, b"b", 2) == [(3, b"3")]
    assert rows(store, b"nobody") == []
    assert store.backlog(b"a", 1) == (1, 2)
    assert store.backlog(b"nobody", 0) == (0, 0)
    assert store.position_of_last(b"a", 1, 1 << 20) == 1
    assert store.position_of_last(b"nobody", 1, 1) == 0
    assert store.last_position == 3
    assert set(store.names()) == {b"a", b"b"}
    assert store.failed is None
    assert store.flush() == 2, "nothing was gathered"


def test_a_reader_advances_while_others_append_and_trim(store: Store) -> None:
    writer = Writer(store)
    got: list[bytes] = []
    after = 0
    for i in range(300):
        writer.append(*((b"%d.%d" % (i, k), (b"a",)) for k in range(3)))
        store.collect()
        for position, body in rows(store, b"a", after, 100)[:2]:
            after = position
            got.append(body)
        store.trim(b"a", after)
    got += [body for _, body in all_rows(store, b"a", after, 1000)]
    assert got == [b"%d.%d" % (i, k) for i in range(300) for k in range(3)]


def test_drop_keeps_what_is_before_and_behind(store: Store) -> None:
    writer = Writer(store)
    writer.append(*((b"%d" % i, (b"a",)) for i in range(5)))
    store.drop(b"a", 2, 4)
    writer.append((b"later", (b"a",)))
    assert rows(store, b"a") == [(1, b"0"), (2, b"1"), (5, b"4"), (6, b"later")]
    assert store.backlog(b"a", 0) == (4, 2 + 2 + 2 + 6)
    assert store.backlog(b"a", 2) == (2, 2 + 6)
    assert store.held() == (4, 2 + 2 + 2 + 6)
    store.drop(b"a", 2, 4)
    store.drop(b"a", 3, 4)
    assert store.held() == (4, 2 + 2 + 2 + 6)
    store.trim(b"a", 2)
    assert rows(store, b"a") == [(5, b"4"), (6, b"later")]
    assert store.held() == (2, 8)
    store.forget(b"a")
    assert store.held() == (0, 0)
    assert rows(store, b"a") == []
    for name in (b"a", b"nobody"):
        store.trim(name, 10)
        store.drop(name, 0, 10)
        store.forget(name)


def test_a_forgotten_name_begins_anew(store: Store) -> None:
    writer = Writer(store)
    writer.append((b"old", (b"a",)))
    store.forget(b"a")
    writer.append((b"new", (b"a",)))
    assert rows(store, b"a") == [(2, b"new")]
    assert store.held() == (1, 4)


def test_records_are_taken(store: Store) -> None:
    store.put(b"Sme", b"1")
    store.delete(b"Syou")
    ticket = store.flush()
    assert ticket in (0, 1)


class Model:
    """A plain model of an index."""

    def __init__(self) -> None:
        self.rows: dict[bytes, list[Row]] = {name: [] for name in NAMES}
        self.low: dict[bytes, int] = {}

    def check(self, store: Store, rng: random.Random) -> None:
        held = (0, 0)
        for name, kept in self.rows.items():
            held = (held[0] + len(kept), held[1] + sum(1 + len(body) for _, body in kept))
            # a session's cursor is where it has read, and an unread part of a span never begins inside one
            after = rng.choice([0, *(position for position, _ in kept)])
            wanted = [row for row in kept if row[0] > after]
            assert all_rows(store, name, after, rng.choice([1, 200, 5000])) == wanted
            assert store.backlog(name, after) == (len(wanted), sum(1 + len(body) for _, body in wanted))
            if kept:
                many, much = rng.randrange(1, 40), rng.randrange(1, 2000)
                over = store.position_of_last(name, many, much)
                messages, size = store.backlog(name, over)
                assert messages <= many
                assert size <= much
                if over:
                    messages, size = store.backlog(name, over - 1)
                    assert messages > many or size > much
        assert store.held() == held


def steps(store: Store, model: Model, rng: random.Random, count: int, reopen: Callable[[], Store] | None) -> Store:
    writer = Writer(store)
    for _ in range(count):
        what = rng.random()
        name = rng.choice(NAMES)
        kept = model.rows[name]
        if what < 0.5:
            records = []
            for k in range(rng.choice([1, 1, 2, 5, 30])):
                names = tuple(each for each in NAMES if rng.random() < 0.5)
                body = b"%d/%d" % (writer.next, k) + b"x" * rng.choice([0, 10, 300])
                records.append((body, names))
                for each in names:
                    model.rows[each].append((writer.next + len(records) - 1, body))
            writer.append(*records)
        elif what < 0.65 and kept:
            up_to = rng.choice(kept)[0] - rng.choice([0, 1])
            store.trim(name, up_to)
            model.low[name] = up_to
            model.rows[name] = [row for row in kept if row[0] > up_to]
        elif what < 0.78 and kept:
            after, up_to = sorted((rng.choice(kept)[0], rng.choice(kept)[0]))
            store.drop(name, after, up_to)
            model.rows[name] = [row for row in kept if not after < row[0] <= up_to]
        elif what < 0.8:
            store.forget(name)
            model.rows[name] = []
            model.low.pop(name, None)
        elif what < 0.85 and reopen is not None:
            store.close()
            store = reopen()
            for each in store.names():
                store.backlog(each, 0)  # lazily read: this makes the holdings known
            for each, up_to in model.low.items():
                store.trim(each, up_to)  # the last trimmed rows may be back: cursors trim them again
            writer = Writer(store)
        else:
            store.collect()
            model.check(store, rng)
    model.check(store, rng)
    return store


@pytest.mark.parametrize("seed", range(5))
def test_any_history_reads_as_the_plain_lists_say(store: Store, seed: int) -> None:
    steps(store, Model(), random.Random(seed), 120, None)


@pytest.mark.parametrize("tail_bytes_max", [1, 5000, 1 << 20])
@pytest.mark.parametrize("seed", range(5))
def test_any_history_with_restarts_reads_as_the_plain_lists_say(tmp_path: Path, seed: int, tail_bytes_max: int) -> None:
    path = tmp_path / "0"

    def reopen() -> Store:
        return LevelStore(path, tail_bytes_max=tail_bytes_max, say=pytest.fail)

    steps(reopen(), Model(), random.Random(seed), 120, reopen).close()

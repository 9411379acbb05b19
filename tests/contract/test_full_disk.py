"""A full or refusing disk: nothing counts as durable before it is written, deletion makes room, the store recovers."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import plyvel
import pytest

from leveldb_store.contract import StoreError
from leveldb_store.engine import database
from leveldb_store.engine.database import Database, DatabaseOptions
from leveldb_store.engine.disk_reserve import RESERVE_NAMES
from leveldb_store.store import LevelStore
from tests.contract.test_level_store import until, wait_durable
from tests.contract.test_stores import Writer, all_rows
from tests.small_disk import fill, grow, mounted


class Refusing:
    """Makes `Database.write` fail while `refuses` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refuses = False
        self.write = Database.write
        self.reopened = 0
        reopen = Database.reopen

        def write(database: Database, batches: list[plyvel.WriteBatch], fsync: bool) -> None:
            if self.refuses:
                raise plyvel.IOError(b"IO error: 000003.log: No space left on device")
            self.write(database, batches, fsync)

        def counted(database: Database, why: Exception) -> None:
            self.reopened += 1
            reopen(database, why)

        monkeypatch.setattr(Database, "write", write)
        monkeypatch.setattr(Database, "reopen", counted)


def test_a_disk_that_refuses_makes_nothing_durable_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leveldb_store.writer.RETRY_SECONDS", 0.02)
    disk = Refusing(monkeypatch)
    said: list[str] = []
    store = LevelStore(tmp_path / "0", say=said.append)
    writer = Writer(store)
    wait_durable(store, writer.append((b"1", (b"a",))))
    disk.refuses = True
    writer.append((b"2", (b"a",)))
    until(lambda: "No space left" in (store.failed or ""))
    assert store.collect() == 1
    writer.append((b"3", (b"a",)))
    assert [body for _, body in all_rows(store, b"a")] == [b"1", b"2", b"3"]
    until(lambda: disk.reopened >= 2)
    assert store.collect() == 1
    disk.refuses = False
    wait_durable(store, 3)
    assert store.failed is None
    assert len(said) == 2, "once that it fails, once that it writes again"
    store.close()
    store = LevelStore(tmp_path / "0")
    assert [body for _, body in all_rows(store, b"a")] == [b"1", b"2", b"3"]
    store.close()


def test_what_waits_for_a_writer_that_fails_is_written_when_it_writes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiting batch belongs to the database before it was reopened, and still lacks the counters."""
    monkeypatch.setattr("leveldb_store.writer.RETRY_SECONDS", 0.02)
    begun, goes_on = threading.Event(), threading.Event()
    write = Database.write
    calls = itertools.count()

    def fails_once(database: Database, batches: list[plyvel.WriteBatch], fsync: bool) -> None:
        if next(calls):
            return write(database, batches, fsync)
        begun.set()
        assert goes_on.wait(30)
        raise plyvel.IOError(b"IO error: 000003.log: No space left on device")

    monkeypatch.setattr(Database, "write", fails_once)
    store = LevelStore(tmp_path / "0")
    store.carry(lambda: b"counters")
    writer = Writer(store)
    writer.append((b"1", (b"a",)))
    assert begun.wait(30)
    ticket = writer.append((b"2", (b"a",)))
    goes_on.set()
    wait_durable(store, ticket)
    assert [body for _, body in all_rows(store, b"a")] == [b"1", b"2"]
    store.close()


def test_a_batch_goes_on_although_the_database_is_opened_anew(tmp_path: Path) -> None:
    store = LevelStore(tmp_path / "0")
    database = store._database
    store.put(b"T1", b"one")
    store.put(b"T2", b"two")
    database.reopen(plyvel.IOError(b"for a test"))
    store.put(b"T3", b"three")
    store.delete(b"T2")
    wait_durable(store, store.flush(True))
    assert list(database.scan(b"T")) == [(b"T1", b"one"), (b"T3", b"three")]
    store.close()


def test_a_block_goes_on_although_the_database_is_opened_anew(tmp_path: Path) -> None:
    """Once before the parts of its indexes are put into the batch, and once while they are."""
    store = LevelStore(tmp_path / "0")
    database = store._database
    reopens = iter([database.reopen])

    class Records(list[tuple[bytes, bytes]]):
        def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
            for record in super().__iter__():
                yield record
                for reopen in reopens:
                    reopen(plyvel.IOError(b"for a test"))

    batch = database.batch()
    batch.put(b"T1", b"one")
    database.reopen(plyvel.IOError(b"for a test"))
    batch.put_all([(b"T4", b"four")])
    batch.put_all(Records([(b"T2", b"two"), (b"T3", b"three")]))
    database.write([batch.gathered], True)
    assert list(database.scan(b"T")) == [(b"T1", b"one"), (b"T2", b"two"), (b"T3", b"three"), (b"T4", b"four")]
    store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 110 MB."""
    with mounted(tmp_path / "disk", "110m") as disk:
        yield disk


def test_a_full_disk_is_waited_for(small_disk: Path) -> None:
    said: list[str] = []
    grow(small_disk, "24m")
    store = LevelStore(small_disk / "0", options=DatabaseOptions(write_buffer_bytes=1 << 20), say=said.append)
    writer = Writer(store)
    tickets = 0

    def has_failed() -> bool:
        return store.failed is not None

    def is_done() -> bool:
        return has_failed() or store.collect() == tickets

    while not has_failed():
        tickets = writer.append((os.urandom(100_000), (b"a",)))
        until(is_done)
    durable = store.collect()
    assert durable < tickets
    assert len(all_rows(store, b"a")) == tickets, "what is not durable can be read, too"
    grow(small_disk, "100m")
    wait_durable(store, tickets)
    assert store.failed is None
    assert len(said) == 2
    wait_durable(store, writer.append((b"last", (b"a",))))
    store.close()
    store = LevelStore(small_disk / "0", say=pytest.fail)
    assert [position for position, _ in all_rows(store, b"a")] == list(range(1, tickets + 2))
    store.close()


SMALL = DatabaseOptions(write_buffer_bytes=256 << 10, reserve_bytes=50 << 20)
PLAIN = DatabaseOptions(write_buffer_bytes=256 << 10)


def has_reserve(disk: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return sum((disk / "0" / name).stat().st_blocks for name in RESERVE_NAMES) * 512 >= SMALL.reserve_bytes
    return False


def test_little_room_is_said_before_the_disk_is_full_and_deletions_make_room(small_disk: Path) -> None:
    store = LevelStore(small_disk / "0", options=SMALL)
    writer = Writer(store)

    def is_full() -> bool:
        return store.full is not None

    until(lambda: has_reserve(small_disk))
    assert not is_full()
    while not is_full():
        wait_durable(store, writer.append(*[(os.urandom(50_000), (b"a",))] * 4))
    # (or a compaction had no room and has used up the reserve: the writes have continued)
    store.put(b"S", b"a state record still is")
    store.trim(b"a", store.last_position)
    wait_durable(store, store.flush())
    until(lambda: not is_full(), "compaction has made room")
    assert has_reserve(small_disk)
    wait_durable(store, writer.append((b"again", (b"a",))))
    assert [body for _, body in all_rows(store, b"a")] == [b"again"]
    store.close()


def test_the_reserve_is_given_up_when_others_have_filled_the_disk(small_disk: Path) -> None:
    said: list[str] = []
    store = LevelStore(small_disk / "0", options=SMALL, say=said.append)
    writer = Writer(store)
    until(lambda: has_reserve(small_disk))
    wait_durable(store, writer.append((os.urandom(100_000), (b"a",))))
    others = fill(small_disk)
    wait_durable(store, writer.append((os.urandom(100_000), (b"a",))))
    until(lambda: store.full is not None and store.failed is None)
    assert not has_reserve(small_disk)
    assert len(said) == 2, "that it cannot be written, and that it can"
    store.trim(b"a", 1)
    wait_durable(store, store.flush())
    others.unlink()
    until(lambda: store.full is None)
    assert has_reserve(small_disk)
    store.close()


def test_a_store_on_a_full_disk_opens_by_its_reserve(small_disk: Path) -> None:
    store = LevelStore(small_disk / "0", options=SMALL, say=pytest.fail)
    wait_durable(store, Writer(store).append((os.urandom(100_000), (b"a",))))
    until(lambda: has_reserve(small_disk))
    store.close()
    fill(small_disk)
    said: list[str] = []
    store = LevelStore(small_disk / "0", options=SMALL, say=said.append)
    assert len(all_rows(store, b"a")) == 1
    until(lambda: store.full is not None)
    store.put(b"S", b"1")
    wait_durable(store, store.flush())
    store.close()
    assert len(said) == 1
    assert "is full" in said[0]


def test_what_is_recorded_while_the_disk_refuses_does_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leveldb_store.writer.RETRY_SECONDS", 0.02)
    disk = Refusing(monkeypatch)
    store = LevelStore(tmp_path / "0")
    writer = Writer(store)
    wait_durable(store, writer.append((b"1", (b"a",)), (b"2", (b"a",))))
    disk.refuses = True
    store.put(b"S", b"first")
    store.flush()
    until(lambda: store.failed is not None)
    for number in range(10_000):
        store.put(b"S", b"%d" % number)
        store.put(b"T", b"gone in the end")
        store.flush()
        store.trim(b"a", number % 3)
    store.delete(b"T")
    last = store.flush()
    assert last == 10_003
    assert store._writer._queue.qsize() < 5
    disk.refuses = False
    wait_durable(store, last)
    assert dict(store.scan(b"S")) == {b"S": b"9999"}
    assert not dict(store.scan(b"T"))
    store.close()
    store = LevelStore(tmp_path / "0")
    assert dict(store.scan(b"S")) == {b"S": b"9999"}
    store.close()


def test_it_closes_while_the_disk_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Refusing(monkeypatch)
    store = LevelStore(tmp_path / "0")
    disk.refuses = True
    Writer(store).append((b"1", (b"a",)))
    store.close()
    disk.refuses = False
    store = LevelStore(tmp_path / "0")
    assert all_rows(store, b"a") == []
    store.close()


def test_a_store_without_a_reserve_waits_for_room_that_somebody_gives_back(small_disk: Path) -> None:
    """Another store's compaction has taken the last room."""
    store = LevelStore(small_disk / "0", options=PLAIN, say=pytest.fail)
    wait_durable(store, Writer(store).append((os.urandom(100_000), (b"a",))))
    store.close()
    others = fill(small_disk)
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        others.unlink()

    store = LevelStore(small_disk / "0", options=PLAIN, say=say)
    assert len(all_rows(store, b"a")) == 1
    store.close()
    (line,) = said
    assert "is full: it is tried again for 5 s" in line


def test_a_store_for_which_there_is_no_room_is_named(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "OPEN_SECONDS", 0.6)
    LevelStore(small_disk / "0", options=PLAIN, say=pytest.fail).close()
    fill(small_disk)
    with pytest.raises(StoreError, match=r"cannot be opened: .*No space left on device"):
        LevelStore(small_disk / "0", options=PLAIN, say=lambda _: None)

"""Promises of a store on disk only: durable records survive, room is given back, errors are reported."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import plyvel
import pytest

from leveldb_store.contract import DamagedStoreError, StoreError
from leveldb_store.engine.database import Database, DatabaseOptions
from leveldb_store.format import schema
from leveldb_store.store import LevelStore
from leveldb_store.writer import COMMIT_BYTES_MAX
from tests.contract.test_stores import Writer, all_rows, rows
from tests.waiting import wait_until


def families(store: LevelStore) -> dict[bytes, int]:
    """Return the number of keys of each family, without those that exist once."""
    counts: dict[bytes, int] = {}
    for key, _ in store.scan(b""):
        if key[:1] != b"\0":
            counts[key[:1]] = counts.get(key[:1], 0) + 1
    return counts


def until(condition: Callable[[], object], what: str = "the writer has done it") -> None:
    wait_until(condition, 30, what)


def wait_durable(store: LevelStore, ticket: int) -> None:
    until(lambda: store.collect() >= ticket, f"ticket {ticket} is durable")


# ---------------------------------------------------------------- durable


def test_tickets_become_durable_in_order_and_the_descriptor_says_so(tmp_path: Path) -> None:
    store = LevelStore(tmp_path / "0")
    writer = Writer(store)
    tickets = [writer.append((b"%d" % i, (b"a",))) for i in range(50)]
    assert tickets == list(range(1, 51))
    wait_durable(store, 50)
    assert store.collect() == 50
    with pytest.raises(BlockingIOError):
        os.eventfd_read(store.fileno())
    store.put(b"Sme", b"{}")
    assert store.flush() == 51
    wait_durable(store, 51)
    store.close()


def test_one_batch_gathers_while_another_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    sizes: list[int] = []
    write = Database.write

    def slow(self: Database, batches: list[plyvel.WriteBatch], fsync: bool) -> None:
        sizes.append(len(batches))
        begun.set()
        assert go_on.wait(30)
        write(self, batches, fsync)

    store = LevelStore(tmp_path / "0")
    monkeypatch.setattr(Database, "write", slow)
    writer = Writer(store)
    writer.append((b"first", (b"a",)))
    assert begun.wait(30)
    for i in range(20):
        writer.append((b"%d" % i, (b"a",)))
    assert store.collect() == 0, "nothing is durable before it is written"
    assert len(rows(store, b"a")) == 21, "and all of it can be read"
    go_on.set()
    wait_durable(store, 21)
    assert sizes == [1, 20]
    store.close()


@pytest.mark.parametrize("what", ["put", "delete"])
def test_what_is_written_as_one_is_bounded(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much has gathered behind a slow write, including deleted records, whose keys may be long."""
    write, goes_on = Database.write, threading.Event()
    sizes: list[int] = []

    def slow(self: Database, batches: list[plyvel.WriteBatch], fsync: bool) -> None:
        assert goes_on.wait(30)
        sizes.append(sum(batch.approximate_size() for batch in batches))
        write(self, batches, fsync)

    monkeypatch.setattr(Database, "write", slow)
    store = LevelStore(tmp_path / "0")
    for number in range(100):
        for each in range(100):
            key = schema.retained_key(b"%d/%d/" % (number, each) + b"x" * 4000)
            if what == "put":
                store.put(key, b"")
            else:
                store.delete(key)
        ticket = store.flush()
    goes_on.set()
    wait_durable(store, ticket)
    assert sum(sizes) > 2 * COMMIT_BYTES_MAX
    assert max(sizes) < COMMIT_BYTES_MAX + (1 << 20)
    store.close()


def test_what_was_stored_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "0"
    store = LevelStore(path)
    assert path.stat().st_mode & 0o777 == 0o700
    writer = Writer(store)
    writer.append((b"1", (b"a", b"b")), (b"2", (b"b",)))
    store.put(b"Sme", b"session")
    store.put(b"Syou", b"session")
    store.delete(b"Syou")
    store.delete(b"Snobody")
    store.put(b"Tme\0a", b"subscription")
    store.flush()
    store.close()

    store = LevelStore(path)
    assert store.last_position == 2
    assert set(store.names()) == {b"a", b"b"}
    assert list(store.scan(b"S")) == [(b"Sme", b"session")]
    assert list(store.scan(b"T")) == [(b"Tme\0a", b"subscription")]
    assert rows(store, b"b", 1) == [(2, b"2")]
    ((position, message),) = store.read(b"a", 0, 100).items()
    assert (position, message.topic, bytes(message.payload), message.qos, message.number) == (1, b"t", b"1", 1, 1)
    assert store.held() == (3, 6)
    Writer(store).append((b"3", (b"a",)))
    assert all_rows(store, b"a") == [(1, b"1"), (3, b"3")]
    assert store.backlog(b"a", 0) == (2, 4)
    store.close()


def test_buffered_records_carry_the_position_that_they_may_name(tmp_path: Path) -> None:
    """A power cut may keep a batch and lose earlier ones; a position is never given twice."""
    store = LevelStore(tmp_path / "0", fsync=False)
    writer = Writer(store)
    wait_durable(store, writer.append((b"1", (b"a",)), (b"2", (b"a",))))
    store.put(b"Vme", b"done: 2")
    wait_durable(store, store.flush())
    store.close()
    with plyvel.DB(str(tmp_path / "0")) as db:
        db.delete(schema.block_key(1))  # as if it had been lost
    store = LevelStore(tmp_path / "0")
    assert store.last_position == 2
    store.close()


KILLED = """
    import os, sys
    from leveldb_store.store import LevelStore
    from tests.contract.test_stores import Writer
    store = LevelStore(sys.argv[1], tail_bytes_max=100_000)
    writer = Writer(store)
    for i in range(1_000_000):
        ticket = writer.append(*((b"%d" % (i * 5 + k), (b"a", b"b") if k % 2 else (b"a",)) for k in range(5)))
        store.put(b"Vme", b"%d" % ticket)
        if i % 10 == 0:
            store.trim(b"b", max(0, writer.next - 50))
        durable = store.collect()
        os.write(1, b"%d\\n" % durable)
"""


@pytest.mark.parametrize("lines", [1, 40, 400, 3000])
def test_what_was_durable_survives_sigkill(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "0"
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(path)], stdout=subprocess.PIPE, bufsize=0
    ) as child:
        assert child.stdout is not None
        for _ in range(lines):
            durable = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split(b"\n")
        durable = max([durable, *map(int, rest[:-1])])
    store = LevelStore(path, say=pytest.fail)
    found = all_rows(store, b"a")
    assert len(found) >= durable * 5
    assert found == [(n, b"%d" % (n - 1)) for n in range(1, len(found) + 1)], "whole ticks, without a gap"
    assert len(found) % 5 == 0
    assert not found or all_rows(store, b"b")[-1][0] == len(found) - 1
    (value,) = [value for _, value in store.scan(b"V")] or [b"0"]
    assert int(value) in (len(found) // 5, len(found) // 5 - 1), "the record of the tick behind it"
    store.close()


# ---------------------------------------------------------------- room


def test_a_block_leaves_when_no_index_needs_it(tmp_path: Path) -> None:
    store = LevelStore(tmp_path / "0", tail_bytes_max=1)
    writer = Writer(store)
    for _ in range(40):
        writer.append((b"1", (b"a", b"b", b"c")), (b"2", (b"a",)))
    wait_durable(store, 40)
    assert families(store) == {b"B": 40, b"F": 3, b"I": 120}
    store.trim(b"a", 40)
    store.forget(b"b")
    until(lambda: families(store) == {b"B": 40, b"F": 2, b"I": 20 + 40, b"L": 1, b"N": 40})
    store.trim(b"c", 20)
    until(lambda: families(store) == {b"B": 30, b"F": 2, b"I": 20 + 30, b"L": 2, b"N": 30})
    assert all_rows(store, b"c") == [(n, b"1") for n in range(21, 81, 2)]
    store.close()

    # a count survives, and so does the highest position when all blocks are gone
    store = LevelStore(tmp_path / "0")
    assert all_rows(store, b"c") == [(n, b"1") for n in range(21, 81, 2)]
    store.trim(b"c", 80)
    store.trim(b"a", 80)
    until(lambda: families(store) == {b"F": 2, b"L": 2})
    store.close()
    store = LevelStore(tmp_path / "0")
    assert store.last_position == 80
    assert store.backlog(b"a", 0) == (0, 0)
    Writer(store).append((b"new", (b"a",)))
    assert all_rows(store, b"a") == [(81, b"new")]
    store.close()


def test_a_part_that_nobody_needs_for_two_reasons_counts_once(tmp_path: Path) -> None:
    store = LevelStore(tmp_path / "0", tail_bytes_max=1)
    writer = Writer(store)
    for _ in range(20):
        writer.append((b"1", (b"a", b"b", b"c")))
    wait_durable(store, 20)
    store.drop(b"a", 2, 8)
    store.drop(b"a", 6, 12)
    store.trim(b"a", 15)
    store.drop(b"b", 4, 10)
    store.forget(b"b")
    until(lambda: families(store) == {b"B": 20, b"D": 1, b"F": 2, b"I": 5 + 20, b"L": 1, b"N": 20})
    assert len(all_rows(store, b"c")) == 20
    store.close()


def test_of_very_many_parts_the_later_ones_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later parts stay until trimming makes room, or until they touch each other."""
    monkeypatch.setattr("leveldb_store.indexes.SPANS_MAX", 3)
    store = LevelStore(tmp_path, fsync=False)
    writer = Writer(store)
    for number in range(20):
        writer.append((b"%d" % number, (b"a",)))
    for after in range(1, 19, 2):
        store.drop(b"a", after, after + 1)
    dropped = {2, 4, 6}
    assert {position for position, _ in all_rows(store, b"a")} == set(range(1, 21)) - dropped
    store.drop(b"a", 2, 3)
    store.drop(b"a", 9, 10)
    dropped |= {3, 10}
    assert {position for position, _ in all_rows(store, b"a")} == set(range(1, 21)) - dropped
    store.trim(b"a", 6)
    store.drop(b"a", 11, 12)
    left = set(range(7, 21)) - {10, 12}
    assert {position for position, _ in all_rows(store, b"a")} == left
    assert store.held()[0] == len(left)
    store.close()
    store = LevelStore(tmp_path, fsync=False)
    assert {position for position, _ in all_rows(store, b"a")} == left
    store.close()


def test_dropped_parts_are_deleted_too(tmp_path: Path) -> None:
    store = LevelStore(tmp_path / "0", tail_bytes_max=1)
    writer = Writer(store)
    for _ in range(10):
        writer.append((b"1", (b"a",)), (b"2", (b"a",)))
    store.drop(b"a", 5, 12)
    store.drop(b"a", 5, 16)
    until(lambda: families(store).get(b"B") == 5)
    wanted = [n for n in range(1, 21) if not 5 < n <= 16]
    assert [position for position, _ in all_rows(store, b"a")] == wanted
    assert store.backlog(b"a", 0) == (9, 18)
    assert store.backlog(b"a", 5) == (4, 8)
    store.close()
    store = LevelStore(tmp_path / "0")
    assert [position for position, _ in all_rows(store, b"a")] == wanted
    assert store.backlog(b"a", 2) == (7, 14)
    assert store.held() == (9, 18)
    store.close()


def test_what_was_forgotten_is_deleted_after_a_restart_at_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leveldb_store.writer.TIDY_SECONDS", 1000)
    store = LevelStore(tmp_path / "0")
    writer = Writer(store)
    for _ in range(1200):
        writer.append((b"1", (b"a",)))
    store.forget(b"a")
    store.close()
    monkeypatch.undo()
    store = LevelStore(tmp_path / "0")
    assert list(store.names()) == []
    until(lambda: families(store) == {})
    assert Writer(store).append((b"1", (b"a",))) == 1
    store.close()


def test_disk_use_follows(tmp_path: Path) -> None:
    store = LevelStore(tmp_path / "0", fsync=False, tail_bytes_max=1 << 20)
    writer = Writer(store)
    body = os.urandom(20_000)
    for _ in range(8):
        for _ in range(600):
            ticket = writer.append((body, (b"a",)))
        wait_durable(store, ticket)
        store.trim(b"a", writer.next - 11)
        until(lambda: families(store)[b"B"] <= 10)

    def used() -> int:
        # LevelDB removes a table that was being read during its merge only with the next compaction
        store._database.db.compact_range(start=b"\xff", stop=b"\xff\xff")
        size = 0
        for entry in (tmp_path / "0").iterdir():
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile, which is what the test waits for
                size += entry.stat().st_size
        return size

    # 96 MB were written: the rest is the log being written (16 MB), deleted records not yet worth a compaction (16 MB),
    # and a table or two
    until(lambda: used() < 40_000_000, "the disk has its room back")
    assert len(all_rows(store, b"a", 0, 1 << 20)) == 10
    store.close()


# ---------------------------------------------------------------- reading


def test_sessions_that_come_back_together_share_what_is_read(tmp_path: Path) -> None:
    store = LevelStore(tmp_path / "0")
    Writer(store).append((b"x" * 1_000_000, (b"a", b"b")))
    store.close()
    store = LevelStore(tmp_path / "0")
    batches = [store.read(name, 0, 1000) for name in (b"a", b"b") for _ in range(1000)]
    first = batches[0].items()[0][1]
    assert all(batch.items()[0][1] is first for batch in batches)
    assert store.reads() == (1, 1998, 0)
    store.close()


def test_sessions_that_return_together_read_each_block_once(tmp_path: Path) -> None:
    names = [b"filter/%d" % i for i in range(20)]
    store = LevelStore(tmp_path / "0", fsync=False)
    writer = Writer(store)
    body = b"x" * 1000
    for i in range(1500):
        writer.append(*((body, (names[(10 * i + k) % 20],)) for k in range(10)))
    store.close()
    store = LevelStore(tmp_path / "0")
    cursors = dict.fromkeys(names, 0)
    found = 0
    while cursors:
        for name in list(cursors):
            batch = store.read(name, cursors[name], 1 << 18)
            found += batch.count
            if not batch.truncated:
                del cursors[name]
                continue
            cursors[name] = batch.last
    assert found == 15_000
    assert store.reads()[0] == 1500
    store.close()


def test_the_memory_of_tails_is_bounded(tmp_path: Path) -> None:
    store = LevelStore(tmp_path / "0", fsync=False, tail_bytes_max=1_000_000)
    writer = Writer(store)
    for _ in range(300):
        wait_durable(store, writer.append((b"x" * 10_000, (b"a",)), (b"y" * 10_000, (b"b",))))
    assert store.tail_bytes() <= 1_000_000
    log = store._indexes.get(b"a")
    assert log is not None
    assert len(log.tail) < 60
    assert [len(all_rows(store, name)) for name in (b"a", b"b")] == [300, 300]
    store.close()


# ---------------------------------------------------------------- errors of the disk


def test_an_error_of_ours_ends_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("ours")

    store = LevelStore(tmp_path / "0")
    monkeypatch.setattr(Database, "write", broken)
    Writer(store).append((b"1", (b"a",)))

    def ended() -> bool:
        try:
            store.collect()
        except StoreError:
            return True
        return False

    until(ended)
    store.close()


# ---------------------------------------------------------------- opening


def test_a_store_is_used_by_one_process(tmp_path: Path) -> None:
    store = LevelStore(tmp_path / "0")
    with pytest.raises(StoreError, match="in use"):
        LevelStore(tmp_path / "0")
    store.close()
    LevelStore(tmp_path / "0").close()


def test_another_version_is_refused(tmp_path: Path) -> None:
    LevelStore(tmp_path / "0").close()
    with plyvel.DB(str(tmp_path / "0")) as db:
        db.put(schema.SCHEMA, schema.U32.pack(99))
    with pytest.raises(StoreError, match="schema version 99, this mqttd reads versions 1 to 2"):
        LevelStore(tmp_path / "0")
    with plyvel.DB(str(tmp_path / "0")) as db:
        db.delete(schema.SCHEMA)
        db.put(b"key", b"of somebody else")
    with pytest.raises(StoreError, match="not ours"):
        LevelStore(tmp_path / "0")


def test_an_older_version_is_upgraded_first(tmp_path: Path) -> None:
    """A worker does not open it: an older release would misread its writes."""
    LevelStore(tmp_path / "0").close()
    with plyvel.DB(str(tmp_path / "0")) as db:
        db.put(schema.SCHEMA, schema.U32.pack(schema.OLDEST_VERSION))
    with pytest.raises(StoreError, match="schema version 1, and is upgraded to 2 when a broker starts"):
        LevelStore(tmp_path / "0")
    with plyvel.DB(str(tmp_path / "0")) as db:
        assert schema.decode_u32(db.get(schema.SCHEMA)) == schema.OLDEST_VERSION


def test_a_place_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be used"):
        LevelStore(tmp_path / "file" / "0")


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """Return the path of a closed store with tables and a log."""
    path = tmp_path / "0"
    for turn in range(3):
        store = LevelStore(path)
        writer = Writer(store)
        for i in range(200):
            ticket = writer.append((b"%d-%d" % (turn, i), (b"a",)))
            if i % 20 == 0:
                wait_durable(store, ticket)
        store.put(b"Sme%d" % turn, b"1")
        store.flush()
        store.close()
    return path


def newest(path: Path, pattern: str) -> Path:
    return max(path.glob(pattern), key=lambda each: (each.stat().st_mtime_ns, each.name))


def cut_log(path: Path) -> None:
    log = newest(path, "*.log")
    os.truncate(log, log.stat().st_size - 7)


def tear_log(path: Path) -> None:
    """Tear the log: its last entry has its length but lost its content."""
    store = LevelStore(path)
    Writer(store).append((b"x" * 100_000, (b"a",)))
    store.close()
    log = newest(path, "*.log")
    data = log.read_bytes()
    log.write_bytes(data[:-60_000] + bytes(40_000) + data[-20_000:])


def flip_log(path: Path) -> None:
    log = newest(path, "*.log")
    data = bytearray(log.read_bytes())
    data[30] ^= 0xFF  # in its first entry
    log.write_bytes(data)


def lose_current(path: Path) -> None:
    (path / "CURRENT").unlink()


def lose_current_and_flip_log(path: Path) -> None:
    lose_current(path)
    flip_log(path)


def lose_manifest(path: Path) -> None:
    newest(path, "MANIFEST-*").unlink()


def flip_manifest(path: Path) -> None:
    manifest = newest(path, "MANIFEST-*")
    data = bytearray(manifest.read_bytes())
    data[10] ^= 0xFF  # in its first entry
    manifest.write_bytes(data)


def tear_manifest(path: Path) -> None:
    """Append an incomplete entry to the manifest."""
    manifest = newest(path, "MANIFEST-*")
    manifest.write_bytes(manifest.read_bytes() + b"\1\2\3\4\x20\0\1" + bytes(32))


def cut_current(path: Path) -> None:
    os.truncate(path / "CURRENT", 3)


@pytest.mark.parametrize(
    ("damage", "repaired"),
    [(cut_log, False), (tear_log, False), (flip_log, True), (lose_current, True), (lose_manifest, True),
     (flip_manifest, True), (tear_manifest, False), (cut_current, True), (lose_current_and_flip_log, True)],
)  # fmt: skip
def test_a_damaged_store_starts_with_what_can_be_read(
    filled: Path, damage: Callable[[Path], None], repaired: bool
) -> None:
    damage(filled)
    said: list[str] = []
    store = LevelStore(filled, say=said.append)
    found = all_rows(store, b"a")
    whole = [b"%d-%d" % (turn, i) for turn in range(3) for i in range(200)]
    bodies = [body for _, body in found]
    assert bodies == whole[: len(bodies)], "nothing wrong, nothing twice, nothing without all before it"
    assert len(bodies) >= 400, "what lies in tables is whole"
    copies = list(filled.parent.glob("0.damaged-*"))
    if repaired:
        assert len(copies) == 1
        assert len(said) >= 2
        assert str(copies[0]) in said[0]
    else:
        assert copies == []
        assert len(said) <= 1
        assert all("torn" in line for line in said)
    Writer(store).append((b"new", (b"a",)))
    assert all_rows(store, b"a")[-1][1] == b"new"
    store.close()


def test_a_block_that_cannot_be_read_is_left_out(filled: Path) -> None:
    with plyvel.DB(str(filled)) as db:
        for key in [key for key, _ in db.iterator(prefix=schema.BLOCK)][10:20]:
            db.delete(key)
        for key in [key for key, _ in db.iterator(prefix=schema.BLOCK)][30:40]:
            db.put(key, b"\x01\x01\0\0\0damaged")
    said: list[str] = []
    store = LevelStore(filled, say=said.append)
    found = [position for position, _ in all_rows(store, b"a", 0, 100)]
    assert len(found) == 580
    assert said
    store.close()


def test_a_damaged_table_is_a_clear_refusal_or_left_out(filled: Path, tmp_path: Path) -> None:
    tables = sorted(filled.glob("*.ldb"))
    assert tables
    for at in range(10, tables[0].stat().st_size, tables[0].stat().st_size // 25):
        path = tmp_path / f"copy-{at}"
        shutil.copytree(filled, path)
        table = path / tables[0].name
        data = bytearray(table.read_bytes())
        data[at] ^= 0x40
        table.write_bytes(data)
        whole = {b"%d-%d" % (turn, i) for turn in range(3) for i in range(200)}
        try:
            store = LevelStore(path)
            try:
                assert {body for _, body in all_rows(store, b"a")} <= whole
            finally:
                store.close()
        except StoreError:
            pass


@pytest.mark.parametrize("is_strict", [False, True])
def test_a_write_that_fails_for_damage_has_it_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_strict: bool
) -> None:
    """As after a compaction that met a damaged table: LevelDB takes no more writes, even if reopened. Readable records
    stay, and writes continue; with `strict` nothing is changed.
    """
    path, options = tmp_path / "0", DatabaseOptions(write_buffer_bytes=64 << 10)
    store = LevelStore(path, options=options)
    for number in range(100):
        store.put(schema.RETAINED + b"%03d" % number, os.urandom(10_000))
        wait_durable(store, store.flush())
    store.close()
    said: list[str] = []
    store = LevelStore(path, strict=is_strict, options=options, say=said.append)
    for file in path.glob("*.ldb"):
        with file.open("r+b") as table:
            table.seek(table.seek(0, os.SEEK_END) // 2)
            byte = table.read(1)[0]
            table.seek(-1, os.SEEK_CUR)
            table.write(bytes((byte ^ 0x40,)))
    write, failures = Database.write, [plyvel.CorruptionError(b"Corruption: block checksum mismatch")]

    def damaged(self: Database, batches: list[plyvel.WriteBatch], fsync: bool) -> None:
        if failures:
            raise failures.pop()
        write(self, batches, fsync)

    monkeypatch.setattr(Database, "write", damaged)
    store.put(schema.RETAINED + b"new", b"x")
    wait_durable(store, store.flush())
    copies = list(tmp_path.glob("0.damaged-*"))
    if is_strict:
        assert not copies
        with pytest.raises(DamagedStoreError):
            list(store.scan(schema.RETAINED))
    else:
        assert len(copies) == 1
        found = dict(store.scan(schema.RETAINED))
        assert found[schema.RETAINED + b"new"] == b"x"
        assert len(found) > 50
    store.close()


def test_what_is_not_written_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathered records, those of the writer, and those that wait for a refusing disk are counted, none twice."""
    write, goes_on = Database.write, threading.Event()
    refuses = False

    def slow(self: Database, batches: list[plyvel.WriteBatch], fsync: bool) -> None:
        assert goes_on.wait(30)
        if refuses:
            raise OSError(errno.ENOSPC, "no space left on device")
        write(self, batches, fsync)

    monkeypatch.setattr(Database, "write", slow)
    store = LevelStore(tmp_path / "0")
    assert store.unwritten_bytes == 0
    store.put(b"Sa", b"x" * 100)
    store.delete(b"Sb")
    assert store.unwritten_bytes == 104
    for number in range(10):
        store.put(b"S%d" % number, b"y" * 8)
        store.flush()
    assert store.unwritten_bytes == 204
    refuses = True
    goes_on.set()
    until(lambda: store.failed is not None, "the disk refuses")
    for _ in range(2):
        for number in range(10):
            store.put(b"S%d" % number, b"z" * (8 + number))
            store.delete(b"T")
            ticket = store.flush()
    held = sum(2 + 8 + number for number in range(10)) + 1
    assert store.unwritten_bytes == 204 + held, "of each record the last value"
    refuses = False
    wait_durable(store, 10)
    wait_durable(store, ticket)
    assert store.unwritten_bytes == 0
    store.close()

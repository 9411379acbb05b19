"""Events on a disk: they cost no commit, always stay below their bound, and are read in order."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import plyvel
import pytest

from leveldb_store.engine.database import Database
from leveldb_store.engine.readable import readable
from leveldb_store.format import events, schema
from leveldb_store.format.events import KEY_BYTES, decode_event, encode_event, event_key
from leveldb_store.store import LevelStore
from tests.contract.test_full_disk import Refusing
from tests.contract.test_level_store import until, wait_durable
from tests.contract.test_stores import Writer

MAX = 64 * 1024
NUMBERS = [number << 8 for number in range(1, 100_000)]


@pytest.fixture(autouse=True)
def _deleting_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leveldb_store.writer.TIDY_SECONDS", 0.0)


def event(number: int) -> bytes:
    size = (number >> 8) % 50
    return encode_event(events.EXPIRED, (f"client-{number >> 8}", "x" * size), ())


def record(store: LevelStore, numbers: list[int]) -> None:
    for number in numbers:
        store.record(number, event(number))


def read(store: LevelStore, after: int = 0, bytes_max: int = 4000) -> list[int]:
    """Return the numbers of all events; each is whole, and begins where the previous one ends."""
    found, end, is_all = [], None, False
    while not is_all:
        page, is_all = store.events(after, bytes_max)
        assert is_all or sum(KEY_BYTES + len(value) for _, value in page) <= bytes_max
        for number, value in page:
            decode = decode_event(event_key(number), value)
            assert end in (None, decode.before)
            end = decode.before + KEY_BYTES + len(value)
            assert value[8:] == event(number)
            found.append(number)
            after = number
    return found


def held(store: LevelStore) -> int:
    with store._database.db.iterator(prefix=schema.EVENT) as records:
        return sum(len(key) + len(value) for key, value in records)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LevelStore]:
    made = LevelStore(tmp_path / "0", events_bytes_max=MAX, say=pytest.fail)
    yield made
    made.close()


def test_an_event_goes_with_the_next_batch_and_is_no_reason_for_one(
    store: LevelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[int, bool]] = []
    write = Database.write

    def noted(database: Database, batches: list[object], fsync: bool) -> None:
        written.append((len(batches), fsync))
        write(database, batches, fsync)

    monkeypatch.setattr(Database, "write", noted)
    record(store, NUMBERS[:3])
    assert store.flush() == 0, "there is no batch"
    assert store.events(0, 1 << 20) == ([], True)
    wait_durable(store, Writer(store).append((b"body", (b"a",))))
    assert read(store) == NUMBERS[:3]
    assert written == [(2, True)], "one commit for both"
    store.pass_on()
    record(store, NUMBERS[3:5])
    store.pass_on()
    until(lambda: read(store) == NUMBERS[:5])
    assert len(written) == 2
    assert store.collect() == 1, "no ticket of its own"
    assert store.last_event == NUMBERS[4]


def test_what_is_recorded_is_there_after_a_close(tmp_path: Path) -> None:
    store = LevelStore(tmp_path / "0", events_bytes_max=MAX)
    assert store.last_event == 0
    record(store, NUMBERS[:100])
    store.close()
    store = LevelStore(tmp_path / "0", events_bytes_max=MAX)
    assert read(store, bytes_max=200) == NUMBERS[:100]
    assert read(store, NUMBERS[89]) == NUMBERS[90:100]
    assert store.last_event == NUMBERS[99]
    assert store.events_bytes() == held(store)
    store.close()


def test_the_oldest_are_deleted_and_the_bound_holds_over_starts(tmp_path: Path) -> None:
    path, at = tmp_path / "0", 0
    for bound in (MAX, MAX, 4 * MAX, MAX // 2):
        store = LevelStore(path, events_bytes_max=bound, say=pytest.fail)
        for _ in range(10):
            record(store, NUMBERS[at : at + 400])
            at += 400
            store.pass_on()
            until(lambda store=store, at=at: read(store, NUMBERS[at - 3])[-1:] == [NUMBERS[at - 1]])  # type: ignore[misc]
        until(lambda store=store, bound=bound: store.events_bytes() <= bound)  # type: ignore[misc]
        until(lambda store=store, bound=bound: held(store) <= bound)  # type: ignore[misc]
        found = read(store)
        assert found == NUMBERS[at - len(found) : at], "without a gap"
        assert held(store) == store.events_bytes() > bound // 2
        store.close()
    store = LevelStore(path, events_bytes_max=1 << 30)
    assert read(store) == found
    store.close()


KILLED = """
    import sys
    from leveldb_store.store import LevelStore
    from tests.contract import test_event_log as test
    store = LevelStore(sys.argv[1], events_bytes_max=test.MAX)
    at = 0
    while True:
        test.record(store, test.NUMBERS[at : at + 100])
        at += 100
        store.put(b"Vx", b"%d" % at)
        ticket = store.flush()
        while store.collect() < ticket:
            pass
        print(at, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 7, 30, 120])
def test_the_bound_holds_over_sigkill(tmp_path: Path, lines: int) -> None:
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path / "0")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as child:
        assert child.stdout is not None
        for _ in range(lines):
            durable = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
    store = LevelStore(tmp_path / "0", events_bytes_max=MAX, say=pytest.fail)
    until(lambda: held(store) <= MAX)
    found = read(store)
    assert found[-1] >= NUMBERS[durable - 1]
    assert found == NUMBERS[(found[0] >> 8) - 1 : found[-1] >> 8], "without a gap"
    assert store.events_bytes() == held(store)
    assert found[0] == NUMBERS[0] or held(store) > MAX // 2
    record(store, [found[-1] + 256])
    store.close()


def test_the_disk_has_no_more_than_the_bound_for_long(tmp_path: Path) -> None:
    """After recording ten times the bound, deletion markers and the deleted keys leave the tables."""
    store = LevelStore(tmp_path / "0", events_bytes_max=1 << 20, fsync=False)
    text = "".join(f"{number:x}" for number in range(250))  # does not compress to nothing
    for at in range(0, 20_000, 200):
        for number in NUMBERS[at : at + 200]:
            store.record(number, encode_event(events.EXPIRED, (text[at % 300 :], str(number)), ()))
        store.pass_on()
        until(lambda at=at: store.events(NUMBERS[at + 198], 1000)[0])  # type: ignore[misc]
    until(lambda: store.events_bytes() <= 1 << 20)
    until(lambda: store._database.db.approximate_size(event_key(0), event_key(store._events.deleted)) < 1 << 19)
    store.close()


def test_a_disk_that_refuses_loses_no_event_that_was_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leveldb_store.writer.RETRY_SECONDS", 0.02)
    disk = Refusing(monkeypatch)
    store = LevelStore(tmp_path / "0", events_bytes_max=MAX)
    disk.refuses = True
    record(store, NUMBERS[:2])
    store.pass_on()
    until(lambda: store.failed)
    record(store, NUMBERS[2:4])
    store.put(b"Vx", b"1")
    store.flush()
    record(store, NUMBERS[4:6])
    store.flush()
    store.pass_on()
    disk.refuses = False
    wait_durable(store, 1)
    store.pass_on()
    until(lambda: read(store) == NUMBERS[:6])
    store.close()


def test_events_that_are_none_are_passed_over(tmp_path: Path) -> None:
    store = LevelStore(tmp_path / "0")
    record(store, NUMBERS[:3])
    store.put(schema.EVENT + b"x", b"")
    wait_durable(store, store.flush())
    store.put(event_key(NUMBERS[1]), b"")
    wait_durable(store, store.flush())
    store.close()
    store = LevelStore(tmp_path / "0")
    assert store.last_event == NUMBERS[2]
    assert [number for number, value in store.events(0, 1000)[0] if value] == [NUMBERS[0], NUMBERS[2]]
    store.close()


@pytest.mark.parametrize("how", ["records", "a table", "how far"])
def test_the_bound_holds_behind_damage(tmp_path: Path, how: str) -> None:
    path = tmp_path / "0"
    store = LevelStore(path, events_bytes_max=MAX)
    for at in range(0, 500, 50):
        record(store, NUMBERS[at : at + 50])
        store.put(b"x", b"x")
        wait_durable(store, store.flush())
    store.close()
    with plyvel.DB(str(path)) as db:
        if how == "records":
            for number in NUMBERS[:400:7]:
                db.put(event_key(number), b"?")
        elif how == "how far":
            db.put(schema.EVENTS_DELETED, b"?")
        db.compact_range()
    if how == "a table":
        (file,) = path.glob("*.ldb")
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 0xFF
        file.write_bytes(bytes(data))
    store = LevelStore(path, events_bytes_max=MAX)
    for at in range(500, 4000, 50):
        record(store, NUMBERS[at : at + 50])
        store.put(b"x", b"x")
        wait_durable(store, store.flush())
    until(lambda: store.events_bytes() <= MAX)
    database = store._database.db
    until(lambda: sum(len(key) + len(value) for key, value in readable(database, schema.EVENT, b"F")) <= MAX)
    assert store.events_bytes() > MAX // 2
    assert read(store)[-1] == NUMBERS[3999]
    store.close()

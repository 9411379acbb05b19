"""Clones of databases that are being written: a clone holds a prefix of the database, and the source is unchanged."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import plyvel
import pytest

from leveldb_store.snapshots import clone as module
from leveldb_store.snapshots.clone import (
    CloneError,
    clone,
    clone_for_reading,
    opened,
    opened_as_it_is,
    reading,
    remove,
    version_of,
)
from tests.broker_process import ROOT
from tests.waiting import wait_until

BUFFER = 1 << 16  # the minimum of LevelDB: tables and compactions appear soon
VALUE = 400
WRITTEN_TO_A_CLONE = 3000

NAIVE = """
import os, shutil, sys
from pathlib import Path
import plyvel

source, target = map(Path, sys.argv[1:])
target.mkdir()
db = plyvel.DB(str(source), create_if_missing=True, write_buffer_size=1 << 20, compression=None)
put = 0
def write(count):
    global put
    for _ in range(count):
        db.put(b"%09d" % put, os.urandom(400))
        put += 1
def take(pattern, how):
    while True:
        try:
            for file in source.glob(pattern):
                how(file, target / file.name)
            return
        except FileNotFoundError:  # it was compacted away meanwhile
            for file in target.glob(pattern):
                file.unlink()
write(6000)
for pattern in ("*.log", "MANIFEST*", "CURRENT"):
    take(pattern, shutil.copyfile)
write(6000)
take("*.ldb", os.link)
plyvel.DB(str(target), write_buffer_size=1 << 16).close()
found = sum(1 for _ in db.iterator(verify_checksums=True))
print("found", found, "of", put, flush=True)
sys.exit(0 if found == put else 3)
"""


def key_of(number: int) -> bytes:
    return b"%09d" % number


class Written:
    """A database with records in rising order, written by its caller."""

    def __init__(self, path: Path, buffer: int = BUFFER) -> None:
        self.path = path
        self.count = 0
        self.db = plyvel.DB(str(path), create_if_missing=True, write_buffer_size=buffer, compression=None)

    def write(self, count: int) -> None:
        for _ in range(count):
            self.db.put(key_of(self.count), os.urandom(VALUE))
            self.count += 1

    def delete_old(self) -> None:
        """Write every record once more, which gives compactions their work."""
        for number in range(0, self.count, 3):
            self.db.put(key_of(number), os.urandom(VALUE))

    def is_whole(self) -> bool:
        with self.db.iterator(verify_checksums=True) as records:
            return [key for key, _ in records] == [key_of(number) for number in range(self.count)]


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Written]:
    written = Written(tmp_path / "source")
    with contextlib.closing(written.db):
        yield written


def digests(path: Path, *suffixes: str) -> dict[str, str]:
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in path.iterdir()
        if file.suffix in suffixes and file.is_file()
    }


def content(path: Path) -> dict[bytes, bytes]:
    with contextlib.closing(opened(path)) as db, db.iterator(verify_checksums=True) as records:
        return dict(records)


def manifest_of(path: Path) -> bytes:
    return (path / (path / "CURRENT").read_text().strip()).read_bytes()


def test_a_manifest_names_the_tables_that_are_there(source: Written) -> None:
    for _ in range(6):
        source.write(1000)
        source.delete_old()
    source.db.close()
    plyvel.DB(str(source.path)).close()
    manifest = manifest_of(source.path)
    version = version_of(manifest)
    tables = {int(file.stem): file.stat().st_size for file in source.path.glob("*.ldb")}
    assert len(version.tables) > 3
    assert version.tables.items() <= tables.items()  # leftovers of a compaction are removed with the next one
    assert version.log_number in [int(file.stem) for file in source.path.glob("*.log")]
    assert version.next_file > max(version.tables)
    assert version.whole_bytes == len(manifest)


def test_a_manifest_that_is_cut_anywhere_says_what_is_whole(source: Written) -> None:
    source.write(3000)
    manifest = manifest_of(source.path)
    reached = 0
    for end in range(len(manifest) + 1):
        version = version_of(manifest[:end])
        assert reached <= version.whole_bytes <= end
        assert version_of(manifest[: version.whole_bytes]) == version
        reached = version.whole_bytes
    assert reached == len(manifest)


def test_a_record_of_a_manifest_that_makes_no_sense_is_an_error() -> None:
    for record in (b"\x63", b"\x06\x01\x05", b"\x07\x01", b"\x01\x7fx"):
        with pytest.raises(CloneError, match="is damaged"):
            version_of(bytes(4) + bytes((len(record), 0, 1)) + record)


def test_a_clone_has_all_and_what_is_done_to_it_does_not_touch_the_source(source: Written, tmp_path: Path) -> None:
    source.write(2000)
    there = dict(source.db)
    target = tmp_path / "target"
    made = clone(source.path, target)
    assert made.is_linked
    assert made.tables == len(list(target.glob("*.ldb")))
    assert made.tables > 3
    assert all(file.stat().st_nlink == 2 for file in target.glob("*.ldb"))
    before = digests(target, ".ldb")
    with contextlib.closing(opened(target)) as db:
        assert dict(db) == there
        for number in range(5000):
            db.put(key_of(number), b"spoilt" * 100)
        db.compact_range()
    after = digests(source.path, ".ldb")  # without those that the source has compacted meanwhile
    assert {name: after[name] for name in before if name in after} == {
        name: digest for name, digest in before.items() if name in after
    }
    assert dict(source.db) == there
    source.write(2000)
    source.db.compact_range()
    assert source.is_whole()


def test_the_naive_way_destroys_the_source(tmp_path: Path) -> None:
    """The problem that this module solves: every table linked, the copy opened, and the source loses records or
    crashes.
    """
    ended = subprocess.run(
        [sys.executable, "-c", NAIVE, str(tmp_path / "source"), str(tmp_path / "target")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    # AddressSanitizer handles the signal itself
    died = ended.returncode == -signal.SIGBUS or "DEADLYSIGNAL" in ended.stderr
    assert died or "Corruption" in ended.stderr or ended.returncode == 3, ended


def test_clones_while_it_is_written_and_compacted(tmp_path: Path) -> None:
    """Forty clones: each opens, has every record written before it began, and has no gaps."""
    source = Written(tmp_path / "source", 8 * BUFFER)
    stop = threading.Event()
    failed: list[BaseException] = []
    written_max = [0]  # else a clone that takes long has more to read the longer it takes, and so has each after it

    def write() -> None:
        try:
            while not stop.is_set():
                if source.count >= written_max[0]:
                    stop.wait(0.001)
                    continue
                source.write(500)
                if source.count % 5000 == 0:
                    source.delete_old()
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=write)
    thread.start()
    attempts = 0
    try:
        for number in range(40):
            before, target = source.count, tmp_path / f"target-{number}"
            written_max[0] = before + WRITTEN_TO_A_CLONE
            attempts += clone(source.path, target).attempts
            keys = sorted(content(target))
            assert len(keys) >= before
            assert keys == [key_of(each) for each in range(len(keys))]
            module.remove(target)
    finally:
        stop.set()
        thread.join()
    assert not failed
    assert attempts >= 40
    assert source.is_whole()
    source.db.close()


def test_it_begins_again_when_a_table_is_gone(source: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source.write(2000)
    link = os.link
    done: list[Path] = []

    def compacted(source_file: Path, target_file: Path, **options: Any) -> None:
        link(source_file, target_file, **options)
        if not done:
            done.append(source_file)
            source.delete_old()
            source.db.compact_range()

    monkeypatch.setattr(os, "link", compacted)
    assert clone(source.path, tmp_path / "target").attempts > 1
    assert content(tmp_path / "target").keys() == {key_of(number) for number in range(source.count)}
    assert source.is_whole()


def test_it_begins_again_when_a_log_has_become_a_table(
    source: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.write(50)
    copy = module._copy
    done: list[Path] = []

    def filled(source_file: Path, target_file: Path) -> int:
        if not done:
            done.append(source_file)
            source.write(2000)
            source.db.compact_range()  # returns when the content of the log is in a table
        return copy(source_file, target_file)

    monkeypatch.setattr(module, "_copy", filled)
    assert clone(source.path, tmp_path / "target").attempts > 1
    assert content(tmp_path / "target").keys() == {key_of(number) for number in range(2050)}


def test_what_always_moves_is_given_up(source: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source.write(2000)

    def gone(*_: Any, **__: Any) -> None:
        raise FileNotFoundError(errno.ENOENT, "gone")

    monkeypatch.setattr(os, "link", gone)
    with pytest.raises(CloneError, match="compacted faster than it could be cloned"):
        clone(source.path, tmp_path / "target")
    assert not list((tmp_path / "target").iterdir())


def test_on_another_file_system_tables_are_copied(source: Written, tmp_path: Path) -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other file system")
    source.write(2000)
    there = dict(source.db)
    left = tmp_path / ".clone-4194305-source"  # of a process that cannot exist any more
    left.mkdir()
    target = shm / f"mqttd-test-{os.getpid()}"
    try:
        made = clone(source.path, target)
        assert not made.is_linked
        assert {file.stat().st_nlink for file in target.iterdir()} == {1}
        assert content(target) == there
    finally:
        module.remove(target)
    assert [each.name for each in tmp_path.iterdir()] == ["source"]
    assert source.is_whole()


def test_where_nothing_can_be_linked_a_database_at_rest_is_copied(
    source: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.write(2000)

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refused)
    assert not clone(source.path, tmp_path / "target").is_linked
    assert content(tmp_path / "target") == dict(source.db)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["source", "target"]


def test_what_is_no_database_is_refused_in_one_line(source: Written, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    with pytest.raises(CloneError, match=f"^{nothing}: is not a database"):
        clone(nothing, tmp_path / "target")
    source.write(2000)
    source.db.close()
    with pytest.raises(CloneError, match="is not empty"):
        clone(source.path, source.path)
    table = source.path / f"{min(version_of(manifest_of(source.path)).tables):06}.ldb"
    os.truncate(table, table.stat().st_size - 1)
    with pytest.raises(CloneError, match=f"table {table.name} has .* bytes, MANIFEST says"):
        clone(source.path, tmp_path / "target")
    (source.path / "CURRENT").write_text("../../etc/passwd\n")
    with pytest.raises(CloneError, match="CURRENT is damaged"):
        clone(source.path, tmp_path / "target")


def test_nothing_compiled_of_ours_is_needed() -> None:
    """Other programs read snapshots on machines where nothing can be compiled."""
    modules = ("snapshots.clone", "snapshots.snapshot", "snapshots.restoring", "format.persisted_counters")
    program = "import sys; sys.modules['pyx'] = None\n" + "".join(f"import leveldb_store.{each}\n" for each in modules)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_clone_that_is_only_read_is_not_compacted(tmp_path: Path) -> None:
    """The clone and its log have four tables in level 0: an ordinary opening would compact them at once."""
    source, target = tmp_path / "source", tmp_path / "target"
    for _ in range(4):
        with contextlib.closing(plyvel.DB(str(source), create_if_missing=True, write_buffer_size=64 << 20)) as db:
            for number in range(10_000):
                db.put(key_of(number), os.urandom(1000))
    for opening, said in ((opened_as_it_is, "Compaction error"), (opened_to_be_read_and_written, "Generated table")):
        clone(source, target)
        before = set(os.listdir(target))
        with opening(target) as db:
            wait_until(partial(has_said, target, said), 30, said)
            assert sum(1 for _ in db.iterator(include_value=False)) == 10_000
            assert db.get(key_of(4711)) is not None
            tables = {path.name for path in target.glob("*.ldb") if path.is_file()} - before
        # some may have been made before the names were listed
        assert len(tables) < 5 or opening is opened_to_be_read_and_written  # all of it is five or more
        assert all(path.is_file() for path in target.iterdir())
        with contextlib.closing(opened(target)) as db:  # a later opening may write
            db.put(b"x", b"y", sync=True)
            db.compact_range()
            assert db.get(b"x") == b"y"
        remove(target)


def has_said(database: Path, what: str) -> bool:
    return what in (database / "LOG").read_text()


@contextlib.contextmanager
def opened_to_be_read_and_written(path: Path) -> Iterator[Any]:
    with contextlib.closing(opened(path)) as db:
        yield db


def test_reading_leaves_it_as_it_is(source: Written, tmp_path: Path) -> None:
    source.write(1000)
    source.db.close()
    before = digests(source.path, ".ldb", ".log", "")
    with reading(source.path) as db:
        assert sum(1 for _ in db) == 1000
        db.put(b"more", b"")
    with clone_for_reading(source.path, tmp_path) as path:
        assert path.parent.parent == tmp_path
    assert digests(source.path, ".ldb", ".log", "") == before
    assert [each.name for each in tmp_path.iterdir()] == ["source"]

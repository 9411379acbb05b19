"""Clones of a snapshot's stores: each reader makes its own, and all are removed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from leveldb_store.format.schema import StoredMessage
from spark_etl.tables import clones
from spark_etl.tables.snapshots import SnapshotStore, find, stores_of
from tests.made_snapshot import archive_of, number_at, snapshot_of
from tests.spark.test_broker import digests

ROOT = Path(__file__).resolve().parents[2]

HOLD = """
import sys
from pathlib import Path
from spark_etl.tables import clones
with clones.cloned(Path(sys.argv[1])) as db:
    print(sum(1 for _ in db), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    messages = (StoredMessage(b"t", os.urandom(2000), number_at(second)) for second in range(1, 2000))
    snapshot_of(tmp_path / "snapshot", [archive_of(messages, block=10)])
    (found,) = stores_of(find(str(tmp_path / "snapshot")))
    return found


def left(store: SnapshotStore) -> list[str]:
    return sorted(path.name for path in store.snapshot.directory.glob(".*"))


def test_what_a_killed_task_leaves_the_next_sweep_removes_and_nothing_else(store: SnapshotStore) -> None:
    before = digests(store.snapshot.directory)
    tasks = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD, str(store.path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    killed, living = tasks
    for task in tasks:
        assert task.stdout is not None
        assert int(task.stdout.readline()) > 200
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert len(left(store)) == 2
    clones.sweep(store.snapshot.directory)
    assert [name.split("-")[1] for name in left(store)] == [str(living.pid)]
    with clones.cloned(store.path) as db:
        assert sum(1 for _ in db) > 200
    living.communicate()
    assert left(store) == []
    for task in tasks:
        for pipe in (task.stdin, task.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
    assert digests(store.snapshot.directory) == before


def test_one_that_fails_leaves_nothing(store: SnapshotStore) -> None:
    with pytest.raises(RuntimeError, match="of the task"), clones.cloned(store.path):
        raise RuntimeError("of the task")
    assert left(store) == []


def test_tables_that_cannot_be_linked_are_named(
    store: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables of another user or file system are linked by symbolic links; LevelDB never writes to a table."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(1, os.strerror(1))

    before = digests(store.snapshot.directory)
    monkeypatch.setattr("leveldb_store.snapshots.clone.os.link", refused)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with clones.cloned(store.path, str(scratch)) as db:
        (clone,) = scratch.glob(".reading-*/worker-0")
        tables = list(clone.glob("*.ldb"))
        assert tables
        assert {table.resolve() for table in tables if table.is_symlink()} <= set(store.path.iterdir())
        assert any(table.is_symlink() for table in tables)
        assert sum(1 for _ in db) > 200
        db.compact_range()
    assert list(scratch.iterdir()) == []
    assert digests(store.snapshot.directory) == before


def test_a_directory_that_may_not_be_written_to_has_its_clones_elsewhere(
    store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_etl.tables.clones.os.access", lambda *_: False)
    assert clones.place_of(store.path) != store.snapshot.directory
    with clones.cloned(store.path) as db:
        assert left(store) == []
        assert sum(1 for _ in db) > 200


def test_nothing_compiled_of_ours_is_needed(store: SnapshotStore) -> None:
    """Reading imports no compiled module of the broker, not even an existing one: an analyst has no compiler."""
    program = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pyx", "broker", "shards", "zmq_mesh"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
import pyarrow as pa
import spark_etl, spark_etl.source.data_source
from spark_etl.tables.conditions import Conditions
from spark_etl.tables.frames import Counts, Frames
from spark_etl.source.plan import spans_of
from spark_etl.tables.reading import read
from spark_etl.tables.snapshots import find, stores_of
(store,) = stores_of(find(sys.argv[1]))
frames = Frames(pa.schema([("number", pa.int64())]), store, Counts())
for spans in spans_of(store, "messages", Conditions(), 1 << 20, None):
    for batch in read(store, "messages", spans, Conditions(), frames, None):
        pass
print(frames.counts.rows, frames.counts.clones)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program, str(store.snapshot.directory)], cwd=ROOT, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    rows, tasks = map(int, ran.stdout.split())
    assert (rows, tasks > 1) == (1999, True)


def test_a_copy_of_a_snapshot_is_a_snapshot(store: SnapshotStore, tmp_path: Path) -> None:
    shutil.copytree(store.snapshot.directory, tmp_path / "copy")
    (copied,) = stores_of(find(str(tmp_path / "copy")))
    assert copied.facts == store.facts
    with clones.cloned(copied.path) as db:
        assert sum(1 for _ in db) > 200

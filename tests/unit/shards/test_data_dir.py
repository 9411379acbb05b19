"""The data directory: created, locked, prepared for a number of workers."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.config.leveldb import LevelDB
from broker.repartition.supervision import Refused, Repartitioning
from shards import data_dir
from shards.child_process import ChildFailed, run_in_child
from shards.data_dir import DataDir, DataDirError, StoreChange, read_layout, store_path
from tests.sansio import KeptLog


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_dir, "LOCK_SECONDS_MAX", 0.1)


def test_it_is_made_for_its_owner_alone_and_used_again(tmp_path: Path) -> None:
    path = tmp_path / "data"
    first = DataDir(str(path), 2)
    assert path.stat().st_mode & 0o777 == 0o700
    assert {name.name for name in path.iterdir()} == {"mqttd.lock", "store.json", "worker-0", "worker-1"}
    assert all(Path(store_path(str(path), worker)).stat().st_mode & 0o777 == 0o700 for worker in range(2))
    epoch = first.epoch
    first.close()
    second = DataDir(str(path), 2)
    assert second.epoch == epoch
    second.close()


def test_another_number_of_workers_is_refused(tmp_path: Path) -> None:
    DataDir(str(tmp_path / "data"), 2).close()
    with pytest.raises(DataDirError, match="was made for 2 workers, not for 3: start with --workers 2"):
        DataDir(str(tmp_path / "data"), 3)
    DataDir(str(tmp_path / "data"), 2).close()  # the refusal holds no lock


def test_another_broker_that_has_it_is_named(tmp_path: Path) -> None:
    held = DataDir(str(tmp_path / "data"), 1)
    with pytest.raises(DataDirError, match=r"data: in use by another mqttd$"):
        DataDir(str(tmp_path / "data"), 1)
    held.close()


def test_a_child_that_lives_holds_the_lock(tmp_path: Path) -> None:
    """A worker that outlives its supervisor for a moment still has its store open."""
    code = (
        "import os, sys; from shards.data_dir import DataDir; DataDir(sys.argv[1], 1)\n"
        "if os.fork(): os._exit(0)\n"
        "print('here', flush=True); sys.stdin.read()"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path / "data")]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"here\n"
        with pytest.raises(DataDirError, match="in use"):
            DataDir(str(tmp_path / "data"), 1)
        process.stdin.close()
        assert process.stdout.read() == b""
    DataDir(str(tmp_path / "data"), 1).close()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1}'])
def test_a_damaged_store_json_is_refused(tmp_path: Path, text: str) -> None:
    DataDir(str(tmp_path / "data"), 1).close()
    (tmp_path / "data" / "store.json").write_text(text)
    with pytest.raises(DataDirError, match=r"store\.json is damaged"):
        DataDir(str(tmp_path / "data"), 1)


def test_another_format_is_refused(tmp_path: Path) -> None:
    DataDir(str(tmp_path / "data"), 1).close()
    file = tmp_path / "data" / "store.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 2}))
    with pytest.raises(DataDirError, match="has format 2"):
        DataDir(str(tmp_path / "data"), 1)


def test_stores_of_an_unknown_number_are_refused(tmp_path: Path) -> None:
    DataDir(str(tmp_path / "data"), 1).close()
    (tmp_path / "data" / "store.json").unlink()
    with pytest.raises(DataDirError, match=r"has stores, but no store\.json"):
        DataDir(str(tmp_path / "data"), 1)


def test_somebody_elses_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("mine")
    with pytest.raises(DataDirError, match="is not empty, and not a data directory of mqttd"):
        DataDir(str(tmp_path), 1)
    assert [path.name for path in tmp_path.iterdir()] == ["letter"]


def test_a_new_file_system_that_is_mounted_there_is_used(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir(0o700)
    DataDir(str(tmp_path), 1).close()
    DataDir(str(tmp_path), 1).close()
    assert names(tmp_path) == {"worker-0", "lost+found"}


def test_an_empty_directory_of_the_operator_is_used(tmp_path: Path) -> None:
    DataDir(str(tmp_path), 1).close()
    assert (tmp_path / "store.json").exists()


def test_what_cannot_be_made_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataDirError, match=r"data_dir .*/a/b: No such file or directory"):
        DataDir(str(tmp_path / "a" / "b"), 1)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirError, match="Not a directory"):
        DataDir(str(tmp_path / "file"), 1)


def test_one_that_was_killed_before_it_was_settled_is_settled(tmp_path: Path) -> None:
    (tmp_path / "mqttd.lock").touch()
    (tmp_path / "store.part").write_text('{"form')
    DataDir(str(tmp_path), 3).close()
    assert json.loads((tmp_path / "store.json").read_text())["workers"] == 3
    assert not os.path.exists(tmp_path / "store.part")


# ------------------------------------------------------------------------------------------ another number of workers


def fill(change: StoreChange) -> None:
    """A stand-in for making new stores."""
    for path in change.new:
        (path / "made of").write_text(" ".join(str(old / "file") for old in change.old))


def names(path: Path) -> set[str]:
    return {each.name for each in path.iterdir()} - {"mqttd.lock", "store.json"}


def test_new_stores_are_made_beside_the_old_ones_and_replace_them(tmp_path: Path) -> None:
    DataDir(str(tmp_path), 2).close()
    epochs = {read_layout(str(tmp_path)).epoch}
    for generation, workers in enumerate((3, 1), 1):
        opened = DataDir(str(tmp_path), workers, fill)
        epochs.add(opened.epoch)
        opened.close()
        assert names(tmp_path) == {f"worker-{worker}.{generation}" for worker in range(workers)}
        assert Path(store_path(str(tmp_path), 0), "made of").exists()
    assert len(epochs) == 3
    DataDir(str(tmp_path), 1).close()  # reopened with the new number of workers


@pytest.mark.parametrize("then", [1, 2, 3])
def test_one_that_was_killed_while_it_made_new_stores_has_the_old_ones(tmp_path: Path, then: int) -> None:
    DataDir(str(tmp_path), 2).close()
    (tmp_path / "worker-1" / "file").write_text("kept")

    def die(change: StoreChange) -> None:
        fill(change)
        os._exit(1)

    with pytest.raises(ChildFailed):
        run_in_child(lambda: DataDir(str(tmp_path), 1, die).close(), DataDirError)
    assert names(tmp_path) == {"worker-0", "worker-1", "worker-0.1"}
    DataDir(str(tmp_path), then, fill).close()
    assert names(tmp_path) == {f"worker-{worker}{'' if then == 2 else '.1'}" for worker in range(then)}
    assert (tmp_path / "worker-1" / "file").exists() == (then == 2)


def test_one_that_was_killed_behind_the_switch_has_the_new_ones(tmp_path: Path) -> None:
    DataDir(str(tmp_path), 2).close()
    DataDir(str(tmp_path), 1, fill).close()
    for leftover in ("worker-0", "worker-1", "worker-0.damaged-20261120-120000-1"):
        (tmp_path / leftover).mkdir()
    DataDir(str(tmp_path), 1).close()
    assert names(tmp_path) == {"worker-0.1", "worker-0.damaged-20261120-120000-1"}


def test_when_it_cannot_be_done_nothing_has_happened(tmp_path: Path) -> None:
    DataDir(str(tmp_path), 2).close()
    before = (tmp_path / "store.json").read_text()

    def fail(_: StoreChange) -> None:
        raise ChildFailed("no room")

    with pytest.raises(ChildFailed, match="no room"):
        DataDir(str(tmp_path), 3, fail)
    assert names(tmp_path) == {"worker-0", "worker-1"}
    assert (tmp_path / "store.json").read_text() == before
    DataDir(str(tmp_path), 2).close()


def test_new_stores_that_would_have_no_room_are_not_made(tmp_path: Path) -> None:
    """The disk reserve exceeds any disk."""
    DataDir(str(tmp_path), 2).close()
    with pytest.raises(Refused, match=r"the disk would have \d+ MB of room left, but the new stores need \d+ MB"):
        DataDir(str(tmp_path), 3, Repartitioning(KeptLog(), LevelDB(reserve_bytes=1 << 60)))
    assert names(tmp_path) == {"worker-0", "worker-1"}
    DataDir(str(tmp_path), 3, Repartitioning(KeptLog(), LevelDB(reserve_bytes=0))).close()
    assert names(tmp_path) == {f"worker-{worker}.1" for worker in range(3)}


def test_a_disk_that_cannot_take_store_json_leaves_the_old_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DataDir(str(tmp_path), 2).close()

    def fill_all(change: StoreChange) -> None:
        fill(change)
        monkeypatch.setattr(os, "fsync", no_room)

    def no_room(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(DataDirError, match="No space left on device"):
        DataDir(str(tmp_path), 3, fill_all)
    monkeypatch.undo()
    assert names(tmp_path) == {"worker-0", "worker-1"}
    assert read_layout(str(tmp_path)).workers == 2
    DataDir(str(tmp_path), 2).close()


# --------------------------------------------------------------------------------------- work in a separate process


def test_what_it_cannot_do_is_said() -> None:
    def refuse() -> None:
        raise DataDirError("so it is")

    with pytest.raises(ChildFailed, match=r"^so it is$"):
        run_in_child(refuse, DataDirError)
    run_in_child(lambda: None, DataDirError)


def test_one_that_is_killed_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ChildFailed, match="killed by SIGKILL"):
        run_in_child(lambda: os.kill(os.getpid(), 9), DataDirError)
    with pytest.raises(ChildFailed, match="internal error: ZeroDivisionError"):
        run_in_child(lambda: print(1 / 0), DataDirError)
    assert "Traceback" in capfd.readouterr().err

"""The runtime directory: private and gone afterwards, or named, kept, never shared, and cleared of leftovers."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shards.runtime_dir import RuntimeDir, RuntimeDirError


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a short temporary directory for private directories."""
    with tempfile.TemporaryDirectory(prefix="m", dir="/tmp") as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)


def test_a_private_one_is_ours_alone_and_removed(base: Path) -> None:
    runtime_dir = RuntimeDir(None)
    path = Path(runtime_dir.path)
    assert path.parent == base
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    (path / "x.sock").touch()
    runtime_dir.close()
    assert not path.exists()


def test_a_long_temporary_directory_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    runtime_dir = RuntimeDir(None)
    assert len(runtime_dir.path) < 40
    runtime_dir.close()


def test_abandoned_private_ones_are_removed_and_living_ones_are_not(base: Path) -> None:
    living = RuntimeDir(None)
    abandoned = base / "mqttd-abandoned"
    abandoned.mkdir()
    (abandoned / "mqttd.lock").touch()
    strange = base / "mqttd-without-lock"
    strange.mkdir()
    another = RuntimeDir(None)
    assert {path.name for path in base.iterdir()} == {
        strange.name,
        *(Path(each.path).name for each in (living, another)),
    }
    living.close()
    another.close()


def test_a_named_one_is_made_kept_and_cleared_of_our_leftovers_only(base: Path) -> None:
    path = base / "run" / "mqttd"
    RuntimeDir(str(path)).close()
    assert list(path.iterdir()) == []
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path / "w0.ipc"))
    (path / "worker-0.stack").touch()
    (path / "notes.txt").touch()
    runtime_dir = RuntimeDir(str(path))
    assert {entry.name for entry in path.iterdir()} == {"mqttd.lock", "notes.txt"}
    runtime_dir.close()
    assert {entry.name for entry in path.iterdir()} == {"notes.txt"}


def test_two_brokers_do_not_share_one(base: Path) -> None:
    first = RuntimeDir(str(base / "r"))
    with pytest.raises(RuntimeDirError, match="in use by another mqttd"):
        RuntimeDir(str(base / "r"))
    first.close()
    RuntimeDir(str(base / "r")).close()


def test_refusals_are_one_line(base: Path) -> None:
    with pytest.raises(RuntimeDirError, match="longer than 80 bytes"):
        RuntimeDir(str(base / ("x" * 80)))
    (base / "file").touch()
    with pytest.raises(RuntimeDirError, match=rf"^runtime_dir {base}/file: File exists$"):
        RuntimeDir(str(base / "file"))
    assert os.listdir(base) == ["file"]

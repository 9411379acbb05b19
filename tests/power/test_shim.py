"""The shim records every change that a program makes to a directory: the trace, played, gives that directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker_process import ROOT
from tests.power import program
from tests.power.conftest import Trace
from tests.power.disk import Disk, Unseen
from tests.power.trace import Traced, What

SECONDS_MAX = 60.0


def run(traced: Traced, module: str, *arguments: str | Path) -> None:
    """Run one of the test programs under the shim."""
    subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **traced.environment},
        check=True,
        timeout=SECONDS_MAX,
    )


def tree(directory: Path) -> dict[str, bytes | None]:
    """Return every file below a directory by its relative name, and every directory (None)."""
    return {
        str(path.relative_to(directory)): None if path.is_dir() else path.read_bytes()
        for path in directory.rglob("*")
        if path.name not in ("LOG", "LOG.old")
    }


@pytest.mark.parametrize("way", ["contents", "names", "children", "syncs"])
def test_what_was_recorded_is_what_was_done(trace: Trace, tmp_path: Path, way: str) -> None:
    """The trace, played from beginning to end with everything kept, gives the directory that is there."""
    traced = trace(tmp_path / "root")
    run(traced, program.__name__, traced.root, way)
    disk = Disk()
    disk.play(traced.records())
    disk.as_seen(tmp_path / "played")
    assert len(tree(traced.root)) > 3
    assert tree(tmp_path / "played") == tree(traced.root)


def test_a_trace_can_begin_with_files(trace: Trace, tmp_path: Path) -> None:
    """A second trace may begin with the directory left by the first."""
    root = tmp_path / "root"
    run(trace(root), program.__name__, root, "names")
    before = Disk.of(root)
    traced = trace(root)
    run(traced, program.__name__, root, "contents")
    before.play(traced.records())
    before.as_seen(tmp_path / "played")
    assert tree(tmp_path / "played") == tree(root)


def test_a_database_is_recorded_completely(trace: Trace, tmp_path: Path) -> None:
    """A trace of LevelDB is complete: logs, tables, manifests; only writes to its LOG are not seen."""
    traced = trace(tmp_path / "root")
    run(traced, "tests.power.writer", traced.root / "db", traced.trace, "sync", "300")
    disk = Disk()
    disk.play(traced.records())
    disk.as_seen(tmp_path / "played")
    found = tree(traced.root)
    assert len([name for name in found if name.endswith(".ldb")]) > 2
    assert tree(tmp_path / "played") == found


def test_what_is_not_followed_is_not_recorded(trace: Trace, tmp_path: Path) -> None:
    """Files in a directory whose name begins like the root's, and sockets, are not recorded."""
    traced = trace(tmp_path / "root")
    (tmp_path / "root2").mkdir()
    run(traced, program.__name__, tmp_path / "root2", "contents")
    assert traced.records() == []


def test_a_write_that_cannot_be_seen_is_an_error(trace: Trace, tmp_path: Path) -> None:
    """A file that is mapped for writing makes the trace an error when it is played."""
    traced = trace(tmp_path / "root")
    run(traced, program.__name__, traced.root, "mapped")
    with pytest.raises(Unseen, match="mmap"):
        Disk().play(traced.records())


def test_a_trace_that_cannot_be_written_ends_the_program(trace: Trace, tmp_path: Path) -> None:
    """A program whose trace cannot be written is ended: a trace with a gap would prove nothing."""
    traced = trace(tmp_path / "root")
    traced.environment["POWER_TRACE"] = str(tmp_path / "nowhere" / "trace")
    done = subprocess.run(
        [sys.executable, "-m", program.__name__, traced.root, "contents"],
        cwd=ROOT,
        env={**os.environ, **traced.environment},
        capture_output=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode < 0
    assert b"power shim: cannot write to POWER_TRACE" in done.stderr


def test_marks_are_in_order(trace: Trace, tmp_path: Path) -> None:
    """A mark is recorded after all that was done before it, and before all that is done after it."""
    traced = trace(tmp_path / "root")
    run(traced, program.__name__, traced.root, "syncs")
    traced.mark(b"between")
    run(traced, program.__name__, traced.root, "names")
    kinds = [record.what for record in traced.records()]
    at = kinds.index(What.MARK)
    assert kinds.count(What.SYNC_END) == kinds[:at].count(What.SYNC_END) == 2
    assert What.RENAME not in kinds[:at]
    assert traced.records()[at].text == b"between"

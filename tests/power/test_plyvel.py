"""LevelDB alone under power cuts: its promises, the disks on which they hold, and controls in which they do not.

These tests check the shim and the model as much as LevelDB: after cuts of a program that asks for syncs, everything
promised is there; the same cuts of one that does not find losses.

"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import plyvel
import pytest

from tests.power import writer
from tests.power.conftest import Trace
from tests.power.cuts import cut
from tests.power.disk import Disk, Order
from tests.power.test_shim import run
from tests.power.trace import Record, Traced

BATCHES = 500
CUTS = 1000

Written = Callable[[str], list[Record]]


def write(traced: Traced, how: str, batches: int) -> list[Record]:
    """Return the trace of the writer. Its database is the root itself, because the name of a root need not last."""
    run(traced, writer.__name__, traced.root, traced.trace, how, str(batches))
    return traced.records()


@pytest.fixture(scope="module")
def written(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """``written(how)``: the trace of the writer, made once. `tests.power.writer` lists the ways."""
    known: dict[str, list[Record]] = {}

    def of(how: str) -> list[Record]:
        if how not in known:
            known[how] = write(trace(tmp_path_factory.mktemp(how) / "root"), how, BATCHES)
        return known[how]

    return of


def losses(disk: Disk, records: list[Record], cuts: int, tmp_path: Path, first: int = 0) -> Iterator[str]:
    """Yield for each cut what was lost; nothing, if everything promised is there."""
    for number, _, mark, found in cut(disk, records, cuts, seed=1, into=tmp_path):
        promised = int(mark or first)
        try:
            content = writer.content(found)
        except plyvel.Error as error:
            if promised:
                yield f"cut {number}: {promised} were promised, it does not open: {error}"
            continue
        finally:
            shutil.rmtree(found)
        last = int(content.get(writer.HEAD, b"0"))
        if last not in (promised, promised + 1):
            yield f"cut {number}: {promised} were promised, {last} are there"
        elif content != writer.after(last):
            yield f"cut {number}: it is not what it was after batch {last}"


@pytest.mark.parametrize(
    "cuts", [CUTS // 5, pytest.param(CUTS, marks=pytest.mark.long), pytest.param(20_000, marks=pytest.mark.soak)]
)
def test_what_was_synced_survives(written: Written, after_cuts: Path, cuts: int) -> None:
    """With a journal, every batch whose sync has ended is there, whole, and at most the one in progress."""
    assert list(losses(Disk(), written("sync"), cuts, after_cuts)) == []


def test_what_was_not_synced_is_missed(written: Written, after_cuts: Path) -> None:
    """Negative control: without syncs, most cuts lose data that the program considered stored."""
    assert len(list(losses(Disk(), written("unsync"), 100, after_cuts))) > 50


def test_the_directory_has_to_be_synced_once(written: Written, after_cuts: Path) -> None:
    """LevelDB 1.22 renames CURRENT without a sync of the directory, and never synced the file that it named before."""
    assert any("does not open" in each for each in losses(Disk(), written("careless"), CUTS, after_cuts))


def test_a_disk_that_does_not_keep_names_with_files_is_not_enough(written: Written, after_cuts: Path) -> None:
    """By POSIX alone a synced new log may have no name: LevelDB does not sync the directory before it uses the log."""
    assert any(losses(Disk(Order.POSIX), written("sync"), 4 * CUTS, after_cuts))


def test_power_cuts_during_recovery(written: Written, trace: Trace, after_cuts: Path) -> None:
    """After a cut the database is opened, written to and cut again: before, during and after its recovery."""
    records = written("sync")
    for number, _, mark, found in cut(Disk(), records, 4, seed=2, into=after_cuts):
        if not mark:
            continue
        disk = Disk.of(found)
        again = write(trace(found), "sync", 20)
        first = min(int(record.text) for record in again if record.text.isdigit()) - 1
        assert first in (int(mark), int(mark) + 1)
        assert list(losses(disk, again, 40, after_cuts / f"again{number}", first)) == []

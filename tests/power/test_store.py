"""Power cuts under a LevelStore: every durable tick is there, whole, with all before it, and nothing else."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leveldb_store.contract import StoreError
from leveldb_store.store import LevelStore
from tests.contract.test_stores import all_rows
from tests.power import store_writer
from tests.power.conftest import Trace
from tests.power.cuts import cut
from tests.power.disk import Disk
from tests.power.store_writer import NAMES, OPTIONS, Script
from tests.power.test_shim import run
from tests.power.trace import Record

TICKS = 1500
CUTS = 60
CUTS_LONG = 300


Traced = Callable[[bool], list[Record]]


@pytest.fixture(scope="module")
def traced(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> Traced:
    """``traced(synced)``: the trace of a store; `synced`: each tick asks for a sync, else only some do."""

    @functools.cache
    def records(synced: bool) -> list[Record]:
        traced = trace(tmp_path_factory.mktemp("store") / "data")
        run(traced, store_writer.__name__, traced.root / "deep" / "0", traced.trace, str(TICKS), str(int(synced)))
        return traced.records()

    return records


def wrongs(store: LevelStore, script: Script, promised: int) -> Iterator[str]:
    """Yield the errors of a store in which this many ticks were durable."""
    there = {key: value for family in (b"S", b"V") for key, value in store.scan(family)}
    named = int(there.get(b"V", b"0"))  # the last tick with records
    behind = (number for number, tick in enumerate(script.ticks, 1) if tick.synced and number > named)
    last = next(behind, len(script.ticks) + 1) - 1
    if last < promised:
        yield f"{promised} ticks were durable, {last} are there"
        return
    if there != script.records(last):
        yield f"the records are not those after tick {last}"
    if store.last_position < script.positions[named]:
        yield f"positions begin anew behind {store.last_position}, after tick {last} it was {script.positions[last]}"
    for name in NAMES:
        found = dict(all_rows(store, name))
        needed, all_there_was = script.rows(name, last, False), script.rows(name, last, True)
        if not needed.items() <= found.items():
            yield f"index {name!r} has not what is needed after tick {last}"
        if not found.items() <= all_there_was.items():
            yield f"index {name!r} has what there was not after tick {last}"
        if all(tick.synced for tick in script.ticks) and store.backlog(name, 0)[0] != len(found):
            yield f"index {name!r} counts {store.backlog(name, 0)[0]} messages and has {len(found)}"


@pytest.mark.parametrize(
    ("cuts", "synced"),
    [
        (CUTS, True),
        (CUTS // 2, False),
        pytest.param(CUTS_LONG, True, marks=pytest.mark.long),
        pytest.param(CUTS_LONG // 3, False, marks=pytest.mark.long),
        pytest.param(10_000, True, marks=pytest.mark.soak),
        pytest.param(10_000, False, marks=pytest.mark.soak),
    ],
)
def test_what_was_durable_survives(traced: Traced, after_cuts: Path, cuts: int, synced: bool) -> None:
    """`synced`: every durable tick is there. Else unsynced ticks may be missing, without harm to others."""
    script = Script(TICKS, synced)
    records = traced(synced)
    # of two unsynced writes the later one may be on the disk, and half of the earlier one
    expected = ("torn",) if synced else ("torn", "is damaged", "is repaired")
    wrong: list[str] = []
    for number, _, mark, found in cut(Disk(), records, cuts, seed=1, into=after_cuts):
        promised = int(mark or 0)
        path = found / "deep" / "0"
        said: list[str] = []
        try:
            store = LevelStore(path, options=OPTIONS, say=said.append)
            try:
                wrong += [f"cut {number}: {each}" for each in wrongs(store, script, promised)]
            finally:
                store.close()
        except StoreError as error:
            wrong.append(f"cut {number}: {promised} ticks were durable: {error}")
        if promised:  # before that, the store itself may be half made
            wrong += [f"cut {number}: said {each}" for each in said if not any(text in each for text in expected)]
        shutil.rmtree(found)
    assert not wrong, "\n".join(wrong[:10])

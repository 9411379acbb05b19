"""Stores of an older schema are upgraded in copies, which replace them once all are whole."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import plyvel
import pytest

from broker.repartition.upgrading import UpgradeRefused, Upgrading
from leveldb_store import upgrade as upgrades
from leveldb_store.contract import StoreError
from leveldb_store.format import schema
from leveldb_store.store import LevelStore
from leveldb_store.upgrade import STEPS, Steps, UpgradeError, upgrade
from shards.child_process import ChildFailed, run_in_child
from shards.data_dir import DataDir, DataDirError, read_layout
from tests.sansio import KeptLog

RECORDS = 3000
NEXT = schema.VERSION + 1


def longer(key: bytes, value: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The next version of a retained message, in this test: another key, and a doubled value."""
    if value == b"unreadable":
        raise schema.SchemaError("it is spoilt")
    yield key + b"/next", value + value


def nothing(_key: bytes, _value: bytes) -> list[tuple[bytes, bytes]]:
    """Return no records: the family no longer exists."""
    return []


TO_NEXT: Steps = {**STEPS, schema.VERSION: {schema.RETAINED: longer, schema.WILL: nothing}}


def made(path: Path, version: int) -> dict[bytes, bytes]:
    """Make a store of that version, and return its contents."""
    with closing(plyvel.DB(str(path), create_if_missing=True)) as db:
        for number in range(RECORDS):
            db.put(b"R%05d" % number, b"%d" % number * 100)
        db.put(b"Wx", b"will")
        db.put(b"Sx", b"session")
        db.put(schema.SCHEMA, schema.U32.pack(version))
        return dict(db)


def content(path: Path) -> dict[bytes, bytes]:
    with closing(plyvel.DB(str(path))) as db:
        return dict(db)


@pytest.fixture
def places(tmp_path: Path) -> tuple[list[Path], list[Path]]:
    old, new = ([tmp_path / f"{kind}-{worker}" for worker in range(2)] for kind in ("old", "new"))
    for path in new:
        path.mkdir()
    return old, new


Places = tuple[list[Path], list[Path]]


def test_there_is_a_step_from_each_version_that_is_read() -> None:
    assert sorted(STEPS) == list(range(schema.OLDEST_VERSION, schema.VERSION))


def test_records_are_converted_in_copies(places: Places) -> None:
    """A step to a future version converts every record of a family and no other; the old stores stay unchanged."""
    old, new = places
    before = [made(old[0], schema.VERSION), made(old[1], schema.OLDEST_VERSION)]
    said: list[int] = []
    done = upgrade(old, new, said.append, version=NEXT, steps=TO_NEXT)
    assert done is not None
    assert (done.versions, done.records, done.set_aside) == ([1, 2], 2 * (RECORDS + 1), 0)
    assert said == [1000, 2000, 3000, 4000, 5000, 6000]
    for path, target, was in zip(old, new, before, strict=True):
        assert content(path) == was
        wanted = {key: value for key, value in was.items() if key[:1] not in (b"R", b"W")}
        wanted |= {key + b"/next": value + value for key, value in was.items() if key[:1] == b"R"}
        assert content(target) == {**wanted, schema.SCHEMA: schema.U32.pack(NEXT)}


def test_stores_of_this_version_are_left_alone(places: Places) -> None:
    old, new = places
    made(old[0], schema.VERSION)
    old[1].mkdir()  # its worker has never opened it
    assert upgrade(old, new) is None
    assert [list(path.iterdir()) for path in new] == [[], []]


@pytest.mark.parametrize("version", [0, NEXT])
def test_stores_of_other_versions_are_refused(places: Places, version: int) -> None:
    old, new = places
    made(old[0], schema.OLDEST_VERSION)
    was = made(old[1], version)
    with pytest.raises(UpgradeError, match=f"{old[1]} has schema version {version}, this mqttd reads versions 1 to 2"):
        upgrade(old, new)
    assert content(old[1]) == was
    assert [list(path.iterdir()) for path in new] == [[], []]


def test_a_record_that_cannot_be_read_is_set_aside(places: Places) -> None:
    old, new = places
    for path in old:
        made(path, schema.VERSION)
    with closing(plyvel.DB(str(old[1]))) as db:
        db.put(b"R00007", b"unreadable")
    said: list[str] = []
    done = upgrade(old, new, say=said.append, version=NEXT, steps=TO_NEXT)
    assert done is not None
    assert done.set_aside == 1
    assert said == ["record b'R00007' cannot be read, and is set aside: it is spoilt"]
    assert content(new[1])[b"ZR00007"] == b"unreadable"
    assert b"R00007/next" not in content(new[1])
    for path in new:
        shutil.rmtree(path)
        path.mkdir()
    with pytest.raises(UpgradeError, match="cannot be read"):
        upgrade(old, new, strict=True, version=NEXT, steps=TO_NEXT)


def test_a_damaged_table_is_repaired(places: Places) -> None:
    """The damage shows while records are converted: the records that the repair keeps are converted."""
    old, new = places
    for path in old:
        made(path, schema.VERSION)
        with closing(plyvel.DB(str(path))) as db:
            db.compact_range()
    table = max(old[0].glob("*.ldb"), key=lambda file: file.stat().st_size)
    spoilt = bytearray(table.read_bytes())
    spoilt[len(spoilt) // 3] ^= 4
    table.write_bytes(spoilt)
    said: list[str] = []
    with pytest.raises(UpgradeError):
        upgrade(old, new, strict=True, version=NEXT, steps=TO_NEXT)
    for path in new:
        shutil.rmtree(path)
        path.mkdir()
    assert upgrade(old, new, say=said.append, version=NEXT, steps=TO_NEXT) is not None
    assert any("is repaired" in line for line in said)
    converted = sum(key.endswith(b"/next") for key in content(new[0]))
    assert RECORDS // 2 < converted < RECORDS
    assert sum(key.endswith(b"/next") for key in content(new[1])) == RECORDS


# ------------------------------------------------------------------------------------------ in a data directory


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data directory of an earlier release, whose store.json names no schema."""
    path = tmp_path / "data"
    DataDir(str(path), 2).close()
    file = path / "store.json"
    file.write_text(file.read_text().replace(', "schema": 0', ""))
    for worker in range(2):
        made(path / f"worker-{worker}", schema.OLDEST_VERSION)
    return path


def opened(data: Path, workers: int = 2) -> KeptLog:
    log = KeptLog()
    DataDir(str(data), workers, None, Upgrading(log), schema.VERSION).close()
    return log


def stores(data: Path) -> set[str]:
    return {path.name for path in data.glob("worker-*")}


def versions(data: Path) -> set[int]:
    return {schema.decode_u32(content(path)[schema.SCHEMA]) for path in data.glob("worker-*")}


def test_a_data_directory_is_upgraded_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The epoch stays, since positions do; the second start does not read the stores."""
    epoch = read_layout(str(data)).epoch
    with pytest.raises(StoreError, match="has schema version 1, and is upgraded to 2 when a broker starts"):
        LevelStore(data / "worker-0")
    opened(data)
    now = read_layout(str(data))
    assert (now.epoch, now.generation, now.schema) == (epoch, 1, schema.VERSION)
    assert stores(data) == {"worker-0.1", "worker-1.1"}
    assert versions(data) == {schema.VERSION}
    for worker in range(2):
        LevelStore(now.path(str(data), worker)).close()
    monkeypatch.setattr(upgrades, "upgrade", None)
    opened(data)


def test_stores_of_this_version_become_no_new_ones(data: Path) -> None:
    for path in data.glob("worker-*"):
        made(path, schema.VERSION)
    opened(data)
    assert stores(data) == {"worker-0", "worker-1"}
    assert read_layout(str(data)).schema == schema.VERSION


@pytest.mark.parametrize("at", [1, 4000])
def test_killed_in_the_middle_it_begins_anew(data: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """After kill -9 during the conversion, an earlier release could still start, and the next start upgrades."""
    before = {path.name: content(path) for path in data.glob("worker-*")}
    seen = 0

    def die(key: bytes, value: bytes) -> list[tuple[bytes, bytes]]:
        nonlocal seen
        seen += 1
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return [(key, value)]

    with monkeypatch.context() as patched:
        patched.setattr(upgrades, "STEPS", {1: {schema.RETAINED: die}})
        with pytest.raises(ChildFailed, match="exit status 9"):
            # the supervisor dies too, as the kernel would have it: it does not tidy up
            run_in_child(lambda: os._exit(9) if killed(data) else None, DataDirError)
    assert stores(data) == {"worker-0", "worker-1", "worker-0.1", "worker-1.1"}
    assert {path.name: content(path) for path in data.glob("worker-?")} == before
    opened(data)
    assert stores(data) == {"worker-0.1", "worker-1.1"}
    assert versions(data) == {schema.VERSION}
    assert [len(content(path)) for path in sorted(data.glob("worker-*"))] == [len(was) for was in before.values()]


def killed(data: Path) -> bool:
    """Return whether the upgrade was killed, leaving the files as a killed supervisor does."""
    work = Upgrading(KeptLog())

    def upgrading(change: object) -> bool:
        try:
            return work(change)  # type: ignore[arg-type]
        except UpgradeRefused as error:
            os._exit(9 if "killed by SIGKILL" in str(error) else 8)

    DataDir(str(data), 2, None, upgrading, schema.VERSION).close()
    return False


def test_when_it_cannot_be_done_everything_is_as_it_was(data: Path) -> None:
    was = made(data / "worker-1", NEXT)
    before = (data / "store.json").read_text()
    with pytest.raises(UpgradeRefused, match=r"worker-1 has schema version 3, .*; the stores are unchanged$"):
        opened(data)
    assert stores(data) == {"worker-0", "worker-1"}
    assert content(data / "worker-1") == was
    assert (data / "store.json").read_text() == before


def test_a_directory_of_a_newer_release_is_refused_before_anything_is_opened(data: Path) -> None:
    DataDir(str(data), 2, None, lambda _: False, NEXT).close()
    assert read_layout(str(data)).schema == NEXT
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    with pytest.raises(
        DataDirError, match=f"has schema version {NEXT}, which a newer mqttd has written: this one knows"
    ):
        opened(data)
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == before

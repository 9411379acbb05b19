"""Snapshots of stores that are written between one clone and the next, and data directories made of them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import plyvel
import pytest

from leveldb_store.format import archive_schema, link_schema, schema
from leveldb_store.format.archive_schema import ArchivedMessage
from leveldb_store.format.persisted_counters import FIELDS, encode_counters
from leveldb_store.snapshots import snapshot
from leveldb_store.snapshots.clone import Clone, clone, reading
from leveldb_store.snapshots.restoring import restore
from leveldb_store.snapshots.snapshot import (
    FORMAT,
    NAME,
    ArchiveFacts,
    Manifest,
    SnapshotError,
    Taking,
    differences,
    read_manifest,
)
from pyx.core.peer import sibling
from shards import data_dir
from shards.data_dir import DataDirError

EPOCH = "0123456789abcdef"
STREAM = 77
BEGINS = 1 << 32


class Stores:
    """Stores of workers in the state in which their links leave them."""

    def __init__(self, directory: Path, workers: int) -> None:
        self.paths = [directory / f"worker-{worker}" for worker in range(workers)]
        self.dbs = [plyvel.DB(str(path), create_if_missing=True) for path in self.paths]
        for worker, db in enumerate(self.dbs):
            db.put(schema.SCHEMA, schema.U32.pack(schema.VERSION))
            identity = {"worker": worker, "workers": workers, "epoch": EPOCH}
            db.put(schema.STORE, json.dumps(identity).encode())
            db.put(schema.COUNTERS, encode_counters(dict.fromkeys(FIELDS, worker + 1)))
            for peer in range(workers):
                if peer != worker:
                    db.put(
                        schema.handoff_key(sibling(peer), 0), link_schema.encode_handoff_head(STREAM + worker, BEGINS)
                    )

    def keeps(self, worker: int, peer: int, *numbers: int) -> None:
        for number in numbers:
            value = link_schema.encode_handoff(0, b"", [b"%d" % number])
            self.dbs[worker].put(schema.handoff_key(sibling(peer), BEGINS + number), value)

    def forgets(self, worker: int, peer: int, *numbers: int) -> None:
        for number in numbers:
            self.dbs[worker].delete(schema.handoff_key(sibling(peer), BEGINS + number))

    def has_taken(self, worker: int, peer: int, number: int) -> None:
        self.dbs[worker].put(schema.peer_key(sibling(peer)), link_schema.encode_peer(STREAM + peer, BEGINS + number))

    def close(self) -> None:
        for db in self.dbs:
            db.close()


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Callable[[int], Stores]]:
    """``stores(workers)``: stores that are closed with the test."""
    made: list[Stores] = []

    def make(workers: int) -> Stores:
        made.append(Stores(tmp_path, workers))
        return made[-1]

    yield make
    for each in made:
        each.close()


def taken(sources: Stores, out: Path) -> Manifest:
    out.mkdir()
    taking = Taking(sources.paths, out)
    taking.clone()
    return taking.finish("1.2.3", EPOCH, 4, "of the archive")


def waiting(path: Path, peer: int) -> list[int]:
    """Return the numbers in the hand-off log of a store in a snapshot."""
    with reading(path) as db:
        keys = [key for key, _ in db.iterator(prefix=schema.HANDOFF + bytes((peer,)))]
    return [schema.key_position(key) - BEGINS for key in keys if schema.key_position(key)]


def test_what_is_in_it_is_counted_and_said(stores: Callable[[int], Stores], tmp_path: Path) -> None:
    sources = stores(2)
    message = schema.StoredMessage(b"t", b"body", 5, qos=1)
    sources.dbs[0].put(schema.block_key(11), schema.encode_block([message] * 3))
    sources.dbs[0].put(schema.block_key(14), schema.encode_block([message]))
    sources.dbs[1].put(schema.POSITION, schema.U64.pack(99))
    sources.dbs[1].put(schema.session_key("c"), b"")
    sources.dbs[1].put(schema.retained_key(b"t"), schema.encode_message(message))
    sources.keeps(0, 1, 1, 2)
    sources.has_taken(1, 0, 1)
    for rule, place in ((7, 1), (9, 0)):
        key = archive_schema.rule_key(b"a/%d" % rule)
        value = archive_schema.encode_rule(archive_schema.Rule(b"", rule, place, 1000, 2000))
        sources.dbs[0].put(key, value)
    block = archive_schema.encode_block([ArchivedMessage(replace(message, number=256 * n), 0) for n in (3, 4)], 0, 0)
    sources.dbs[0].put(archive_schema.block_key(7, 0, 4 * 256), block)
    manifest = taken(sources, tmp_path / "out")
    assert manifest == read_manifest(tmp_path / "out")
    assert (manifest.format, manifest.schema, manifest.version) == (FORMAT, schema.VERSION, "1.2.3")
    assert (manifest.workers, manifest.epoch, manifest.generation, manifest.archive_rules) == (
        2, EPOCH, 4,
        [{"filter": "a/9", "age_ms": 1000, "bytes_max": 2000}, {"filter": "a/7", "age_ms": 1000, "bytes_max": 2000}],
    )  # fmt: skip
    first, second = manifest.stores
    assert first.records == {"0": 3, "A": 1, "B": 2, "C": 2, "H": 3}
    assert first.archived == {
        "a/7": ArchiveFacts(7, 1, 1000, 2000, 2, 3 * 256, 4 * 256), "a/9": ArchiveFacts(9, 0, 1000, 2000),
    }  # fmt: skip
    assert second.records == {"0": 4, "H": 1, "P": 1, "R": 1, "S": 1}
    assert [(each.messages, each.last_position) for each in manifest.stores] == [(4, 14), (0, 99)]
    assert [each.counters["sessions"] for each in manifest.stores] == [1, 2]
    assert [each.last_number for each in manifest.stores] == [1 << 8, 2 << 8 | 1]
    link = first.links[sibling(1)]
    assert (link.stream, link.begins, link.waiting, link.taken_stream) == (STREAM, BEGINS, 2, 0)
    assert (second.links[sibling(0)].taken_stream, second.links[sibling(0)].taken) == (STREAM, BEGINS + 1)
    assert (manifest.total(schema.SESSION), manifest.total(schema.RETAINED)) == (1, 1)
    for store in manifest.stores:
        assert list(differences(tmp_path / "out", store)) == []
        assert not list((tmp_path / "out" / store.directory).glob("LO*"))
        assert all(not log.stat().st_size for log in (tmp_path / "out" / store.directory).glob("*.log"))


def test_what_a_worker_forgot_between_the_clones_and_its_sibling_had_not_yet_is_put_back(
    stores: Callable[[int], Stores], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker 0 is cloned before it takes 3 and 4 of worker 1, which is cloned after it has deleted them."""
    sources = stores(2)
    sources.keeps(1, 0, 1, 2, 3, 4)
    sources.has_taken(0, 1, 2)
    sources.forgets(1, 0, 1)

    def then(source: Path, target: Path) -> Clone:
        made = clone(source, target)
        if target.name == "worker-0":
            sources.has_taken(0, 1, 4)
            sources.keeps(1, 0, 5)
            sources.forgets(1, 0, 2, 3, 4)
        return made

    monkeypatch.setattr(snapshot, "clone", then)
    out = tmp_path / "out"
    manifest = taken(sources, out)
    assert waiting(out / "worker-1", 0) == [3, 4, 5]
    link = manifest.stores[1].links[sibling(0)]
    assert (link.waiting, link.put_back) == (3, 2)
    assert manifest.stores[0].links[sibling(1)].taken == BEGINS + 2
    assert manifest.stores[0].links[sibling(1)].put_back == 0
    assert sorted(each.name for each in out.iterdir()) == [NAME, "worker-0", "worker-1"]
    with reading(out / "worker-1") as db:
        assert link_schema.decode_handoff(db.get(schema.handoff_key(sibling(0), BEGINS + 3)))[2] == [b"3"]


def test_what_the_sibling_had_is_not_put_back(
    stores: Callable[[int], Stores], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = stores(3)
    sources.keeps(2, 0, 1, 2)
    sources.keeps(2, 1, 1)

    def then(source: Path, target: Path) -> Clone:
        if target.name == "worker-0":
            sources.has_taken(0, 2, 2)
            sources.forgets(2, 0, 1, 2)
        return clone(source, target)

    monkeypatch.setattr(snapshot, "clone", then)
    manifest = taken(sources, tmp_path / "out")
    assert waiting(tmp_path / "out" / "worker-2", 0) == []
    assert waiting(tmp_path / "out" / "worker-2", 1) == [1]
    assert [link.put_back for link in manifest.stores[2].links.values()] == [0, 0]


def restored(directory: Path, target: Path) -> str:
    manifest = read_manifest(directory)
    with data_dir.making(str(target), manifest.workers, manifest.archive_epoch) as (paths, epoch):
        restore(directory, manifest, paths, epoch)
    return epoch


def test_a_restored_directory_is_one_of_its_own(stores: Callable[[int], Stores], tmp_path: Path) -> None:
    sources = stores(2)
    sources.keeps(1, 0, 1)
    taken(sources, tmp_path / "out")
    target = tmp_path / "new"
    epoch = restored(tmp_path / "out", target)
    layout = data_dir.read_layout(str(target))
    assert (layout.workers, layout.epoch, layout.generation) == (2, epoch, 0)
    assert layout.archive == "of the archive"
    assert epoch != EPOCH
    for worker in range(2):
        with contextlib.closing(plyvel.DB(layout.path(str(target), worker))) as db:
            assert json.loads(db.get(schema.STORE)) == {"worker": worker, "workers": 2, "epoch": epoch}
            mine, theirs = dict(db), dict(sources.dbs[worker])
            del mine[schema.STORE], theirs[schema.STORE]
            assert mine == theirs
    opened = data_dir.DataDir(str(target), 2)
    opened.close()


def test_links_go_on_beyond_what_a_sibling_that_was_cloned_later_knows(
    stores: Callable[[int], Stores], tmp_path: Path
) -> None:
    """A worker that died between the clones has new numbers since: these must not be given again."""
    sources = stores(2)
    later = (1 << 32) + 5
    sources.has_taken(1, 0, later)
    sources.has_taken(0, 1, -1)
    taken(sources, tmp_path / "out")
    restored(tmp_path / "out", tmp_path / "new")
    heads = []
    for worker in range(2):
        with contextlib.closing(plyvel.DB(str(tmp_path / "new" / f"worker-{worker}"))) as db:
            heads.append(link_schema.decode_handoff_head(db.get(schema.handoff_key(sibling(1 - worker), 0))))
    assert heads == [(STREAM, BEGINS + later), (STREAM + 1, BEGINS)]


@pytest.mark.parametrize("change", ["cut", "flip", "remove", "add"])
def test_a_damaged_snapshot_is_refused_and_nothing_is_left(
    stores: Callable[[int], Stores], tmp_path: Path, change: str
) -> None:
    sources = stores(2)
    out, target = tmp_path / "out", tmp_path / "new"
    manifest = taken(sources, out)
    table = next((out / "worker-1").glob("*.ldb"))
    content = bytearray(table.read_bytes())
    match change:
        case "cut":
            table.write_bytes(content[:-1])
        case "flip":
            content[len(content) // 2] ^= 1
            table.write_bytes(content)
        case "remove":
            table.unlink()
        case "add":
            (out / "worker-1" / "999999.ldb").write_bytes(b"")
    assert list(differences(out, manifest.stores[0])) == []
    (said,) = differences(out, manifest.stores[1])
    assert said.startswith("999999.ldb: is none" if change == "add" else table.name)
    if change == "add":
        restored(out, target)  # files of no snapshot are ignored
        assert not (target / "worker-1" / "999999.ldb").exists()
        return
    with pytest.raises(SnapshotError, match=rf"^{table}: is (damaged|missing)"):
        restored(out, target)
    assert not target.exists()


def test_what_cannot_be_read_is_refused_in_one_line(stores: Callable[[int], Stores], tmp_path: Path) -> None:
    out = tmp_path / "out"
    taken(stores(1), out)
    whole = json.loads((out / NAME).read_text())
    for changed, said in (
        ({"format": FORMAT + 1}, f"the snapshot has format {FORMAT + 1}, this mqttd reads formats 1 to {FORMAT}"),
        ({"schema": schema.VERSION + 1}, f"schema version {schema.VERSION + 1}, this mqttd reads versions"),
        ({"stores": []}, "is damaged"),
        ({"stores": [{**whole["stores"][0], "directory": "../elsewhere"}]}, "is damaged"),
        (
            {"stores": [{**whole["stores"][0], "files": {"/etc/passwd": {"bytes": 1, "digest": "sha256:"}}}]},
            "is damaged",
        ),
        ({"stores": [{**whole["stores"][0], "files": {"CURRENT": {"bytes": 1, "digest": "md5:"}}}]}, "is damaged"),
        ({"workers": None}, "is damaged"),
    ):
        (out / NAME).write_text(json.dumps({**whole, **changed}))
        with pytest.raises(SnapshotError, match=said):
            read_manifest(out)
    (out / NAME).write_text("{")
    with pytest.raises(SnapshotError, match="is damaged"):
        read_manifest(out)
    (out / NAME).unlink()
    with pytest.raises(SnapshotError, match="is not a snapshot of mqttd, or is incomplete"):
        read_manifest(out)


def test_a_snapshot_of_the_first_format_is_verified_and_restored(
    stores: Callable[[int], Stores], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    taken(stores(1), out)
    whole = json.loads((out / NAME).read_text())
    for store in whole["stores"]:
        for name, facts in store["files"].items():
            assert facts.pop("digest").startswith("xxh3_128:")
            facts["sha256"] = hashlib.sha256((out / store["directory"] / name).read_bytes()).hexdigest()
    (out / NAME).write_text(json.dumps({**whole, "format": 1}))
    manifest = read_manifest(out)
    assert list(differences(out, manifest.stores[0])) == []
    restored(out, tmp_path / "new")
    table = next((out / "worker-0").glob("*.ldb"))
    table.write_bytes(table.read_bytes()[:-1] + b"x")
    assert list(differences(out, manifest.stores[0])) == [f"{table.name}: is damaged (its digest differs)"]


def test_a_directory_that_is_not_empty_is_no_target(stores: Callable[[int], Stores], tmp_path: Path) -> None:
    out, target = tmp_path / "out", tmp_path / "new"
    taken(stores(1), out)
    target.mkdir()
    (target / "something").touch()
    with pytest.raises(DataDirError, match="is not empty"):
        restored(out, target)
    assert [each.name for each in target.iterdir()] == ["something"]
    (target / "something").unlink()
    restored(out, target)


def test_a_store_of_another_schema_is_no_source(stores: Callable[[int], Stores], tmp_path: Path) -> None:
    sources = stores(1)
    sources.dbs[0].put(schema.SCHEMA, schema.U32.pack(schema.VERSION + 1))
    out = tmp_path / "out"
    out.mkdir()
    taking = Taking(sources.paths, out)
    taking.clone()
    with pytest.raises(SnapshotError, match="has a schema version that this mqttd cannot read"):
        taking.finish("1", EPOCH, 0, "")


def test_a_snapshot_of_stores_that_were_not_upgraded_says_so(stores: Callable[[int], Stores], tmp_path: Path) -> None:
    """The oldest store determines its version; a data directory made of it is upgraded by its first start."""
    sources = stores(2)
    sources.dbs[1].put(schema.SCHEMA, schema.U32.pack(schema.OLDEST_VERSION))
    out = tmp_path / "out"
    assert taken(sources, out).schema == read_manifest(out).schema == schema.OLDEST_VERSION
    restored(out, tmp_path / "new")
    assert data_dir.read_layout(str(tmp_path / "new")).schema == 0


def test_a_snapshot_that_was_moved_is_the_same(stores: Callable[[int], Stores], tmp_path: Path) -> None:
    taken(stores(1), tmp_path / "out")
    shutil.move(tmp_path / "out", tmp_path / "elsewhere")
    restored(tmp_path / "elsewhere", tmp_path / "new")
    assert (tmp_path / "new" / "store.json").exists()

"""One host's part of snapshots of all hosts, without other hosts: what is known of each, and for how long."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.admin.host_snapshots import KEPT, HostSnapshots
from broker.config.settings import Settings
from broker.logs import Log
from leveldb_store.snapshots.cluster_manifest import NAME, ClusterManifest, read_cluster_manifest
from leveldb_store.snapshots.snapshot import read_manifest
from shards import data_dir
from tests.made_snapshot import store_of

SECONDS = 60.0


def settings_of(tmp_path: Path) -> Settings:
    cluster = {
        "etcd": ["etcd://127.0.0.1:1"], "node_id": "a", "listen": "tcp://127.0.0.1:7400",
        "snapshot_dir": str(tmp_path / "snapshots"),
    }  # fmt: skip
    return Settings.model_validate({"workers": 1, "data_dir": str(tmp_path / "data"), "cluster": cluster})


def snapshots_of(tmp_path: Path) -> HostSnapshots:
    settings = settings_of(tmp_path)
    return HostSnapshots(lambda: settings, lambda: 7, Log(level="error"))


async def done(snapshots: HostSnapshots, id_: str) -> dict[str, object]:
    """Return the state of a snapshot when it is not running any more."""
    async with asyncio.timeout(SECONDS):
        while (state := snapshots.state(id_))["state"] == "running":
            await asyncio.sleep(0.01)
    await asyncio.sleep(0)
    return state


def test_what_is_known_of_each(tmp_path: Path) -> None:
    """One is taken at a time; KEPT are known, of one more the first is not; each id once; failures leave nothing."""

    async def run() -> None:
        snapshots = snapshots_of(tmp_path)  # there is no data directory, so all fail
        assert "not known" in snapshots.state("s0")["reason"]
        for at in range(KEPT):
            assert await snapshots.begin(f"s{at}") == {"begun": True}
            assert await snapshots.begin("other") == {"refused": f"a snapshot is being taken there: s{at}"}
            state = await done(snapshots, f"s{at}")
            assert state["state"] == "failed"
            assert "is not a data directory of mqttd" in str(state["reason"])
        assert await snapshots.begin("s0") == {"refused": "this snapshot was begun there before"}
        assert "is not a data directory" in snapshots.state("s0")["reason"]
        assert await snapshots.begin("more") == {"begun": True}
        assert "not known" in snapshots.state("s0")["reason"]
        assert "is not a data directory" in snapshots.state("s1")["reason"]
        assert await snapshots.keep("s1", "") == {"refused": "this snapshot was not taken there"}
        assert await snapshots.end("s1") == await snapshots.end("unknown") == {"ended": True}
        await snapshots.close()  # while it runs
        assert snapshots.state("more")["state"] == "failed"
        assert list((tmp_path / "snapshots").glob("*")) == []

    asyncio.run(run())


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    with data_dir.making(str(tmp_path / "data"), 1, "epoch") as (stores, _):
        store_of(stores[0], [])
    return tmp_path


def test_it_is_removed_until_there_is_a_manifest(stored: Path) -> None:
    """A part that is given up after it was taken goes; with a manifest of its own id it stays."""

    async def run() -> None:
        snapshots = snapshots_of(stored)
        folder = stored / "snapshots"
        for id_ in ("one", "two"):
            assert await snapshots.begin(id_) == {"begun": True}
            assert (await done(snapshots, id_))["state"] == "taken"
            cluster = read_manifest(folder / id_ / "host-a").cluster
            assert cluster is not None
            assert (cluster.name, cluster.node, cluster.number, cluster.id) == ("mqttd", "a", 7, id_)
        assert await snapshots.keep("two", "{}") == {"refused": "the manifest: it is damaged"}
        other = ClusterManifest("one", "mqttd", 1, ()).encode()
        assert await snapshots.keep("two", other) == {"refused": "the manifest is of another snapshot"}
        assert not (folder / "two" / NAME).exists()
        whole = ClusterManifest("two", "mqttd", 1, ())
        assert await snapshots.keep("two", whole.encode()) == {"kept": str(folder / "two")}
        for id_ in ("one", "two"):
            assert await snapshots.end(id_) == {"ended": True}
        assert [each.name for each in folder.iterdir()] == ["two"]
        assert read_cluster_manifest(folder / "two") == whole
        assert snapshots.state("one")["reason"] == "it was given up"
        await snapshots.close()

    asyncio.run(run())

"""`mqttd sessions`, `events`, `status` and `snapshot` show all hosts of a cluster, and name silent ones."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leveldb_store.snapshots.cluster_manifest import NAME, read_cluster_manifest
from leveldb_store.snapshots.snapshot import read_manifest
from tests.cluster.etcd_process import etcd_process
from tests.cluster.hosts import ClusteredHost, Hosts, hosts_of
from tests.cluster.test_owners import ask
from tests.counted import CountedBroker
from tests.mqttd_command import Said, command, mqttd
from tests.waiting import wait_until
from tests.wire import Client

SECONDS = 30.0
MISSING = 3


@pytest.fixture(params=[(1, 2), (2, 1, 1)], ids=str)
def hosts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hosts]:
    """Hosts with their stores on disk; each writes snapshots into a directory of its own."""
    with contextlib.ExitStack() as stack:
        running = Hosts()
        running.etcd = stack.enter_context(etcd_process())
        for at, workers in enumerate(request.param):
            environment = {"MQTTD_CLUSTER__SNAPSHOT_DIR": str(tmp_path / f"snapshots of n{at}")}
            running.run(ClusteredHost(f"n{at}", workers, running.etcd, "leveldb", environment), stack)
        yield from running.linked()


TWO = pytest.mark.parametrize("hosts", [(1, 2)], indirect=True, ids=str)


def stores(host: CountedBroker) -> str:
    """Return the data directory of a host."""
    return str(Path(host.runtime_dir).with_name("data"))


def run(what: str, host: CountedBroker, *arguments: str, seconds: float = SECONDS) -> Said:
    return mqttd(*what.split(), "--data-dir", stores(host), *arguments, seconds=seconds)


def rows(said: Said) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said.out.splitlines()]


def lasting(host: ClusteredHost, client_id: str) -> Client:
    return host.client(client_id, clean=False, properties={"session_expiry_interval": 600})


@contextlib.contextmanager
def stopped(*pids: int) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # the supervisor ends one that hangs for long
                os.kill(pid, signal.SIGCONT)


# ---------------------------------------------------------------- sessions


def test_sessions_of_all_hosts(hosts: Hosts) -> None:
    """Any host lists those of all, with the host of each; `--node` restricts it; one that moves is there once."""
    for host in hosts:
        for at in range(3 if host is hosts[0] else 300):  # more than a page
            lasting(host, f"{host.node}-{at}").disconnect()
    wanted = {(host.node, f"{host.node}-{at}") for host in hosts for at in range(3 if host is hosts[0] else 300)}
    for host in hosts:
        said = run("sessions list", host, "--json")
        assert (said.status, said.err) == (0, "")
        found = [(row["node"], row["client"]) for row in rows(said)]
        assert len(found) == len(wanted)
        assert set(found) == wanted
        for node in (hosts[0].node, hosts[-1].node):
            alone = run("sessions list", host, "--json", "--node", node)
            assert (alone.status, alone.err) == (0, "")
            assert {(row["node"], row["client"]) for row in rows(alone)} == {each for each in wanted if each[0] == node}
    head, *lines = run("sessions list", hosts[0]).out.splitlines()
    assert head.split()[:3] == ["client", "host", "worker"]
    assert len(lines) == len(wanted)
    moved = lasting(hosts[0], "n1-0")
    assert moved.connack.session_present
    wait_until(
        lambda: (
            [row["node"] for row in rows(run("sessions list", hosts[1], "--json")) if row["client"] == "n1-0"] == ["n0"]
        ),
        SECONDS,
        "it is at its new host alone",
    )


@TWO
def test_one_session_wherever_it_is(hosts: Hosts) -> None:
    """`show` and `delete` find it on another host, `--node` only there."""
    here, there = hosts
    client = lasting(there, "c")
    client.subscribe(("a/b", 1), ("c/#", 1))
    shown = run("sessions show", here, "c", "--json")
    assert shown.status == 0, shown
    session = json.loads(shown.out)
    assert (session["node"], sorted(session["filters"])) == ("n1", ["a/b", "c/#"])
    assert "host             n1" in run("sessions show", here, "c").out
    absent = run("sessions show", here, "c", "--node", "n0")
    assert (absent.status, absent.err) == (1, "mqttd: there is no session of 'c'\n")
    assert run("sessions delete", here, "c", "--node", "n0").status == 1
    deleted = run("sessions delete", here, "c")
    assert (deleted.status, deleted.out) == (0, "the session of 'c' on host n1 is deleted\n")
    client.expect_closed(0x98)
    assert run("sessions show", here, "c").status == 1


@TWO
def test_a_host_that_does_not_answer_is_named(hosts: Hosts) -> None:
    """Its control process is stopped: what the others have is printed, and nobody waits for long."""
    here, there = hosts
    lasting(here, "here").disconnect()
    lasting(there, "there").disconnect()
    with stopped(there.control_pid()):
        begun = time.monotonic()
        said = run("sessions list", here, "--json")
        assert time.monotonic() - begun < SECONDS / 2
        assert said.status == MISSING
        assert [row["client"] for row in rows(said)] == ["here"]
        assert said.err in ("mqttd: host n1 has not answered in 3 s\n", "mqttd: host n1 has gone\n")
        shown = run("sessions show", here, "there")
        assert shown.status == MISSING
        assert shown.err.startswith("mqttd: there is no session of 'there'\nmqttd: host n1 ")
    wait_until(lambda: len(rows(run("sessions list", here, "--json"))) == 2, SECONDS, "it is back")


@TWO
def test_a_host_dies(hosts: Hosts) -> None:
    """First it does not answer, then it is none of the cluster. Without a control process this host is asked alone."""
    here, there = hosts
    lasting(here, "here").disconnect()
    there.kill()
    said = run("sessions list", here, "--json")
    assert said.status == MISSING
    assert [row["client"] for row in rows(said)] == ["here"]
    assert "host n1" in said.err
    wait_until(lambda: run("sessions list", here).status == 0, SECONDS, "its lease has ended")
    unknown = run("sessions list", here, "--node", "n1")
    assert (unknown.status, unknown.err) == (1, "mqttd: there is no host 'n1' in the cluster\n")
    with stopped(here.control_pid()):
        alone = run("sessions list", here, "--json", "--node", "n0")
        assert (alone.status, [row["client"] for row in rows(alone)]) == (0, ["here"])
        said = run("sessions list", here)
        assert said.status == 1
        assert said.err.startswith("mqttd: the control process of this host does not answer")


@TWO
def test_without_etcd(hosts: Hosts, tmp_path: Path) -> None:
    """Hosts go on with what they know of each other: commands show all of them."""
    here, there = hosts
    lasting(there, "there").disconnect()
    hosts.etcd.freeze()
    try:
        said = run("sessions list", here, "--json")
        assert (said.status, [row["client"] for row in rows(said)]) == (0, ["there"])
        taken = run("snapshot", here, "--json")
        assert taken.status == 0, taken
        assert sorted(each.name for each in tmp_path.glob("snapshots of *")) == ["snapshots of n0", "snapshots of n1"]
    finally:
        hosts.etcd.thaw()


def test_a_host_alone_has_no_column() -> None:
    """Without a cluster nothing changes, and `--node` has no meaning."""
    with CountedBroker(1, environment={"MQTTD_STORE": "leveldb"}) as alone:
        client = Client(alone.address, 5)
        client.connect("c")
        assert "host" not in run("sessions list", alone).out.splitlines()[0].split()
        assert "node" not in rows(run("sessions list", alone, "--json"))[0]
        refused = run("sessions list", alone, "--node", "n0")
        assert (refused.status, refused.err) == (1, "mqttd: --node: this host is in no cluster\n")
        refused = run("events", alone, "--node", "n0")
        assert (refused.status, refused.err) == (1, "mqttd: --node: this host is in no cluster\n")
        refused = run("snapshot", alone)
        assert (refused.status, refused.err) == (2, "mqttd: --out is needed: this host is in no cluster\n")
        client.close()


# ---------------------------------------------------------------- status


@TWO
def test_status_has_the_clients_of_each_host(hosts: Hosts) -> None:
    """With clients and sessions of each host; of one that does not answer it says so."""
    here, there = hosts
    lasting(here, "offline").disconnect()
    clients = [there.client(f"c{number}") for number in range(3)]

    def counts() -> list[tuple[Any, ...]]:
        """What each of them says of both."""
        hosts_seen = [each for host in hosts for each in ask(host, "/api/v1/hosts")[1]["hosts"]]
        return [(each["node"], each.get("clients"), each.get("sessions")) for each in hosts_seen]

    wait_until(lambda: counts() == [("n0", 0, 1), ("n1", 3, 3)] * 2, SECONDS, "the gauges are set")
    address = ":".join(map(str, here.admin))
    said = mqttd("status", "--admin", address)
    assert (said.status, said.err) == (0, "")
    table = [line.split() for line in said.out.splitlines() if line.startswith(("host ", "n0 ", "n1 "))]
    assert table[0][:6] == ["host", "state", "linked", "workers", "clients", "sessions"]
    assert [line[-5:-2] for line in table[1:]] == [["1", "0", "1"], ["2", "3", "3"]]
    with stopped(there.control_pid()):
        status, answer = ask(here, "/api/v1/hosts")
        assert status == 503
        assert "error" in answer["hosts"][-1] or len(answer["hosts"]) == 1
    for client in clients:
        client.close()


# ---------------------------------------------------------------- events


def test_events_of_all_hosts_in_order_of_time(hosts: Hosts) -> None:
    """Merged by time, with the host of each; `--node` restricts it."""
    for number in range(60):
        host = hosts[number % len(hosts)]
        host.client(f"c{number}").disconnect()

    def opened(*arguments: str) -> list[dict[str, Any]]:
        said = run("events", hosts[-1], "--json", "--kind", "connection_opened", *arguments)
        assert (said.status, said.err) == (0, "")
        return rows(said)

    wait_until(lambda: len(opened()) == 60, SECONDS, "events are on the disk")
    found = opened()
    assert [(row["node"], row["client"]) for row in found] == [
        (hosts[number % len(hosts)].node, f"c{number}") for number in range(60)
    ]
    assert [row["number"] for row in found] == sorted(row["number"] for row in found)
    alone = opened("--node", "n0")
    assert [row["client"] for row in alone] == [row["client"] for row in found if row["node"] == "n0"]
    text = run("events", hosts[0], "--client", "c1").out
    assert "host=n1" in text


@TWO
def test_workers_of_a_host_are_stopped(hosts: Hosts) -> None:
    """What the others have is printed, and the status says that some are missing."""
    here, there = hosts
    here.client("here").disconnect()
    wait_until(lambda: "here" in run("events", here).out, SECONDS, "events are on the disk")
    with stopped(*there.worker_pids().values()):
        said = run("events", here)
        assert said.status == MISSING
        assert "client=here" in said.out
        assert said.err == "mqttd: host n1: worker 0 has not answered in 6 s\n"
        said = run("sessions list", here, "--json")
        assert said.status == MISSING
        assert said.err.startswith("mqttd: host n1: worker 0 ")  # by now the supervisor may have killed it, which hangs


# ---------------------------------------------------------------- snapshot


def manifest_in(directory: Path) -> Any:
    return json.loads((directory / NAME).read_text())


def test_a_snapshot_of_all_hosts(hosts: Hosts, tmp_path: Path) -> None:
    """Each host has its own part under one id, and the manifest of all; copied side by side they are one snapshot, of
    which the events of all hosts are read, and each part can be verified and restored.
    """
    for host in hosts:
        client = lasting(host, f"of {host.node}")
        client.subscribe(("all", 1))
        client.disconnect()
    publisher = hosts[0].client("publisher")
    publisher.publish("all", b"waits", qos=1)
    publisher.publish("kept", b"retained", qos=1, retain=True)
    said = run("snapshot", hosts[-1], "--json")
    beside_progress = [line for line in said.err.splitlines() if not line.startswith("mqttd: snapshot ")]
    assert (said.status, beside_progress) == (0, []), said
    manifest = json.loads(said.out)
    assert (manifest["format"], manifest["cluster"], manifest["missing"]) == (1, "mqttd", [])
    assert [part["node"] for part in manifest["hosts"]] == [host.node for host in hosts]
    together = tmp_path / "together"
    for host, part in zip(hosts, manifest["hosts"], strict=True):
        assert (part["workers"], part["sessions"], part["retained"]) == (host.workers, 1, 1)
        assert part["messages"] == 1
        assert manifest["asked_ms"] <= part["taken_ms"] <= part["cloned_ms"]
        folder = Path(part["path"]).parent
        assert folder == tmp_path / f"snapshots of {host.node}" / manifest["id"]
        assert manifest_in(folder) == manifest
        assert sorted(each.name for each in folder.iterdir()) == [NAME, f"host-{host.node}"]
        cluster = read_manifest(Path(part["path"])).cluster
        assert cluster is not None
        assert (cluster.name, cluster.node, cluster.id) == ("mqttd", host.node, manifest["id"])
        assert mqttd("store", "verify", part["path"]).status == 0
        shutil.copytree(folder, together, dirs_exist_ok=True)
    whole = read_cluster_manifest(together)
    assert whole is not None
    assert [part.node for part in whole.hosts] == [host.node for host in hosts]
    events = mqttd("events", "--data-dir", together, "--json", "--kind", "session_created")
    assert [(row["node"], row["client"]) for row in rows(events)] == [(host.node, f"of {host.node}") for host in hosts]
    alone = mqttd("events", "--data-dir", together, "--json", "--kind", "session_created", "--node", "n1")
    assert [row["client"] for row in rows(alone)] == ["of n1"]
    assert mqttd("events", "--data-dir", together, "--node", "n9").status == 4
    restored = mqttd("restore", "--from", together / "host-n1", "--data-dir", tmp_path / "restored")
    assert restored.status == 0, restored


@TWO
def test_a_snapshot_of_one_host(hosts: Hosts, tmp_path: Path) -> None:
    """`--node`: of that host alone, asked by way of the other one."""
    said = run("snapshot", hosts[0], "--json", "--node", "n1")
    assert said.status == 0, said
    assert [part["node"] for part in json.loads(said.out)["hosts"]] == ["n1"]
    assert not (tmp_path / "snapshots of n0").exists()
    text = run("snapshot", hosts[0], "--node", "n1")
    assert text.out.splitlines()[1].startswith(f"host n1: {tmp_path / 'snapshots of n1'}/")
    assert run("snapshot", hosts[0], "--node", "n9").status == 1
    assert mqttd("snapshot", "--node", "n1", "--out", tmp_path / "x").status == 2


@TWO
def test_a_host_is_missing_in_a_snapshot(hosts: Hosts, tmp_path: Path) -> None:
    """It has no room, or does not answer: the manifest says why, and the other one has its part."""
    here, _ = hosts
    (tmp_path / "snapshots of n1").write_text("no directory")
    said = run("snapshot", here, "--json")
    assert said.status == MISSING, said
    manifest = json.loads(said.out)
    assert [part["node"] for part in manifest["hosts"]] == ["n0"]
    assert [each["node"] for each in manifest["missing"]] == ["n1"]
    assert "Not a directory" in manifest["missing"][0]["reason"] or "File exists" in manifest["missing"][0]["reason"]
    assert f"mqttd: {manifest['missing'][0]['reason']}\n" in said.err
    assert hosts[1].logged("host_snapshot_failed")
    with stopped(hosts[1].control_pid()):
        said = run("snapshot", here, "--json")
    assert said.status == MISSING, said
    assert [part["node"] for part in json.loads(said.out)["hosts"]] == ["n0"]
    refused = run("snapshot", here, "--node", "n1")
    assert refused.status == 1
    assert refused.err.endswith("mqttd: no host has taken a snapshot\n")


def test_stores_in_memory_and_no_directory(tmp_path: Path) -> None:
    """Such a host says why it takes none."""
    with hosts_of((1, 1)) as hosts:
        said = mqttd("snapshot", "--runtime-dir", hosts[0].runtime_dir)
        assert said.status == 1
        assert said.err.splitlines() == [
            "mqttd: host n0: its store is in memory",
            "mqttd: host n1: its store is in memory",
            "mqttd: no host has taken a snapshot",
        ]
        assert mqttd("snapshot", "--runtime-dir", hosts[0].runtime_dir, "--out", tmp_path / "x").status == 2
    with hosts_of((1, 1), "leveldb") as hosts:
        said = run("snapshot", hosts[0])
        assert said.status == 1
        assert said.err.splitlines()[0] == "mqttd: host n0: cluster.snapshot_dir is not configured there"


@TWO
def test_hosts_that_share_a_directory(hosts: Hosts, tmp_path: Path) -> None:
    """On a shared file system the parts lie side by side at once."""
    shared = tmp_path / "shared"
    shared.mkdir()
    for host in hosts:
        (tmp_path / f"snapshots of {host.node}").symlink_to(shared)
    said = run("snapshot", hosts[0], "--json")
    assert said.status == 0, said
    manifest = read_cluster_manifest(shared / json.loads(said.out)["id"])
    assert manifest is not None
    assert [part.node for part in manifest.hosts] == ["n0", "n1"]


def process_of_snapshot(host: ClusteredHost) -> int:
    """Return the process in which a host takes its part of a snapshot; 0: there is none."""
    for pid in host.processes():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if b"--of-cluster" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    return 0


def stopped_process_of_snapshot(host: ClusteredHost) -> int:
    """Wait until a host takes its part, and stop it."""
    wait_until(lambda: process_of_snapshot(host), SECONDS, "it has begun")
    pid = process_of_snapshot(host)
    os.kill(pid, signal.SIGSTOP)
    return pid


@TWO
def test_an_interrupted_snapshot_leaves_nothing(hosts: Hosts, tmp_path: Path) -> None:
    """SIGINT while one host hangs and the other one is done: both remove what they have written."""
    with command("snapshot", "--data-dir", stores(hosts[0])) as running:
        stopped_process_of_snapshot(hosts[1])
        wait_until(lambda: hosts[0].logged("host_snapshot_taken"), SECONDS, "the other one is done")
        assert mqttd("snapshot", "--data-dir", stores(hosts[0])).status == MISSING  # one at a time
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=SECONDS)
    assert running.returncode == 130, err
    assert err.endswith("interrupted; hosts that answer have removed all new files\n")
    wait_until(lambda: not process_of_snapshot(hosts[1]), SECONDS, "its process has ended")
    kept = [each.name for host in hosts for each in (tmp_path / f"snapshots of {host.node}").glob("*/host-*")]
    assert kept == ["host-n0"]  # of the second command
    assert run("snapshot", hosts[0]).status == 0


@TWO
def test_a_control_process_dies_while_it_takes_one(hosts: Hosts, tmp_path: Path) -> None:
    """The process that it has started ends with it, and removes what it has written; its host is missing."""
    here, there = hosts
    with command("snapshot", "--data-dir", stores(here), "--json") as running:
        pid = stopped_process_of_snapshot(there)
        os.kill(there.control_pid(), signal.SIGKILL)
        out, err = running.communicate(timeout=SECONDS)
    assert running.returncode == MISSING, err
    manifest = json.loads(out)
    assert [each["node"] for each in manifest["missing"]] == ["n1"]
    assert [part["node"] for part in manifest["hosts"]] == ["n0"]
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not process_of_snapshot(there), SECONDS, "its process has ended")
    assert not list((tmp_path / "snapshots of n1").glob("*/host-*"))
    wait_until(lambda: run("snapshot", here).status == 0, SECONDS, "its successor takes one")

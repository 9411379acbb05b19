"""The leader of real hosts dies, stops, and comes back, and there is none; clients notice nothing of it. With etcd."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.cluster.etcd_process import EtcdProcess
from tests.cluster.hosts import ClusteredHost, hosts_of
from tests.cluster.test_owners import ask
from tests.mqttd_command import mqttd
from tests.waiting import let_pass, wait_until
from tests.wire import Client

SECONDS = 60.0
LASTING = {"session_expiry_interval": 600}
LEADER_KEY = "/mqttd/mqttd/leading/leader"
ANOTHER_SERVER = 0x9C
PINGREQ = b"\xc0\x00"
ADDRESS = "mqtt.example:1883"
SPREAD = {"MQTTD_CLUSTER__REBALANCE": "on", "MQTTD_CLUSTER__CLIENT_ADDRESS": ADDRESS}


def cluster(host: ClusteredHost) -> dict[str, Any]:
    found: dict[str, Any] = ask(host, "/health")[1]["cluster"]
    return found


def leader_of(hosts: list[ClusteredHost]) -> ClusteredHost | None:
    """Return the host that leads, if all agree about it."""
    seen = [cluster(host) for host in hosts]
    if len({each["leader"]["term"] for each in seen}) > 1:
        return None
    leaders = [host for host, each in zip(hosts, seen, strict=True) if each["leader"]["is_this_host"]]
    assert len(leaders) <= 1
    return leaders[0] if leaders and seen[0]["leader"]["node"] == leaders[0].node else None


def wait_for_leader(hosts: list[ClusteredHost]) -> ClusteredHost:
    wait_until(lambda: leader_of(hosts) is not None, SECONDS, "one leads")
    leader = leader_of(hosts)
    assert leader is not None
    return leader


def admin_of(host: ClusteredHost) -> str:
    address, port = host.admin
    return f"{address}:{port}"


def metric(host: ClusteredHost, name: str) -> float:
    status = mqttd("status", "--admin", admin_of(host), "--json", seconds=SECONDS)
    return float(next(each["value"] for each in json.loads(status.out)["metrics"] if each["name"] == name))


def say(etcd: EtcdProcess, path: str, **fields: Any) -> dict[str, Any]:
    """Ask etcd by its JSON gateway: this process must not use gRPC, because it forks."""
    request = Request(f"{etcd.url}/v3/{path}", json.dumps(fields).encode())
    with urlopen(request, timeout=10) as answer:
        said: dict[str, Any] = json.load(answer)
        return said


def as_text(value: str) -> str:
    return base64.b64encode(value.encode()).decode()


def has_another_control(host: ClusteredHost, former: int) -> bool:
    return host.control_pid() not in (0, former)


class Traffic:
    """A subscriber on each host, and a publisher on the first."""

    def __init__(self, hosts: list[ClusteredHost], topic: str = "t") -> None:
        self._topic = topic
        self._subscribers = [host.client(f"{topic}-{host.node}", clean=False, properties=LASTING) for host in hosts]
        for each in self._subscribers:
            each.subscribe((topic, 1))
        self._publisher = hosts[0].client(f"{topic}-publisher")
        self._sent = 0

    def crosses(self) -> None:
        """Assert that what is published reaches all, once and in order."""
        for _ in range(20):
            self._sent += 1
            assert self._publisher.publish(self._topic, b"%d" % self._sent, qos=1) == 0
            for each in self._subscribers:
                each.receive(self._topic, b"%d" % self._sent)


def a_client_moves(source: ClusteredHost, target: ClusteredHost, client_id: str) -> None:
    """Assert that a session is made, and comes along to the other host."""
    source.client(client_id, clean=False, properties=LASTING).disconnect()
    there = target.client(client_id, clean=False, properties=LASTING)
    assert there.connack.session_present
    there.disconnect()


@contextlib.contextmanager
def going_on(pid: int) -> Iterator[None]:
    """Stop a process, and let it go on in the end."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_the_control_process_of_the_leader_dies() -> None:
    """Its successor has the same lease: another term begins, in which one leads; messages cross meanwhile."""
    with hosts_of([1, 1]) as hosts:
        leader = wait_for_leader(hosts)
        term = cluster(leader)["leader"]["term"]
        other = next(host for host in hosts if host is not leader)
        traffic = Traffic([other, leader])
        for turn in range(3):
            control = leader.control_pid()
            os.kill(control, signal.SIGKILL)
            traffic.crosses()
            wait_until(partial(has_another_control, leader, control), SECONDS, "there is another one")
            leader = wait_for_leader(hosts)
            assert cluster(leader)["leader"]["term"] > term, turn
            term = cluster(leader)["leader"]["term"]
        assert metric(leader, "mqttd_cluster_leader") == 1
        assert metric(other, "mqttd_cluster_leader") == 0
        assert metric(other, "mqttd_cluster_leader_changes_total") >= 4
        assert len(other.logged("leader_elected")) >= 4
        said = mqttd("status", "--admin", admin_of(other), seconds=SECONDS).out
        assert f"leader: {leader.node}\n" in said
        assert "\nhosts: " in said


def test_the_host_of_the_leader_dies() -> None:
    """The other one leads when its lease has ended. Its clients go on, and so do those that connect."""
    with hosts_of([1, 1, 1]) as hosts:
        leader = wait_for_leader(hosts)
        others = [host for host in hosts if host is not leader]
        traffic = Traffic(others)
        leader.kill()
        traffic.crosses()
        a_client_moves(others[0], others[1], "moves")
        wait_until(lambda: leader_of(others) is not None, SECONDS, "another one leads")
        traffic.crosses()
        leader.start()
        wait_for_leader(hosts)


@pytest.mark.parametrize("process", ["control", "etcd"])
def test_a_leader_that_was_stopped_past_its_lease(process: str) -> None:
    """It does not lead when it goes on, and writes nothing: the key of the next leader is as that has written it. With
    etcd stopped nobody leads for that time.
    """
    with hosts_of([1, 1], worker_hang_seconds_max=120) as hosts:
        leader = wait_for_leader(hosts)
        other = next(host for host in hosts if host is not leader)
        traffic, here = Traffic([other, leader]), Traffic([other], "here")
        if process == "etcd":
            hosts.etcd.freeze()
            try:
                wait_until(lambda: not any(cluster(each)["leader"]["is_this_host"] for each in hosts), SECONDS, "none")
                traffic.crosses()
                a_client = other.client("new", clean=False, properties=LASTING)
                traffic.crosses()
                a_client.disconnect()
            finally:
                hosts.etcd.thaw()
            wait_for_leader(hosts)
            traffic.crosses()
            return
        with going_on(leader.control_pid()):
            wait_until(lambda: cluster(other)["leader"]["is_this_host"], SECONDS, "the other one leads")
            here.crosses()
            found = say(hosts.etcd, "kv/range", key=as_text(LEADER_KEY))["kvs"]
        wait_until(lambda: cluster(leader)["leader"]["node"] == other.node, SECONDS, "it knows the other one")
        assert not cluster(leader)["leader"]["is_this_host"]
        wait_until(lambda: cluster(leader)["member"], SECONDS, "it is a member again")
        assert wait_for_leader(hosts) is other
        assert say(hosts.etcd, "kv/range", key=as_text(LEADER_KEY))["kvs"] == found
        wait_until(lambda: ask(leader, "/ready")[0] == 200, SECONDS, "it is linked")
        traffic.crosses()


def test_a_cluster_without_a_leader() -> None:
    """Its key is of something that no host can read, so nobody leads: clients connect, move, and get their messages,
    for as long as a worker waits for anything (`broker.worker.owning`: 30 s at most).
    """
    with hosts_of([1, 1]) as hosts:
        first = wait_for_leader(hosts)
        lease = say(hosts.etcd, "lease/grant", TTL="3600")["ID"]
        say(hosts.etcd, "kv/put", key=as_text(LEADER_KEY), value=as_text("nobody"), lease=lease)
        wait_until(lambda: all(host.logged("leader_malformed") for host in hosts), SECONDS, "they cannot read it")
        traffic = Traffic(hosts)
        until, turn = time.monotonic() + 32, 0
        while time.monotonic() < until:
            turn += 1
            traffic.crosses()
            a_client_moves(hosts[turn % 2], hosts[1 - turn % 2], f"moves-{turn}")
            assert leader_of(hosts) is None
        assert not cluster(first)["leader"]["is_this_host"]
        first.kill_worker(0)
        wait_until(lambda: ask(first, "/ready")[0] == 200, SECONDS, "its successor serves")
        a_client_moves(hosts[0], hosts[1], "after-all")
        say(hosts.etcd, "lease/revoke", ID=lease)
        wait_for_leader(hosts)


def test_clients_are_spread_when_a_host_is_empty() -> None:
    """As many as make it even are told to go, with their sessions; afterwards nobody is, also none that came back."""
    with hosts_of([2, 2], environment=SPREAD) as hosts:
        full, empty = hosts
        clients: dict[str, Client] = {}
        for at in range(40):
            name = f"c{at}"
            clients[name] = full.client(name, clean=False, properties=LASTING)
            clients[name].subscribe((f"to/{name}", 1))
        older = [full.client(f"old-{at}", 4) for at in range(4)]
        wait_until(lambda: full.counter("clients_sent_away") > 0, SECONDS * 2, "clients are sent away")
        wait_until(lambda: full.counter("clients_sent_away") == 22, SECONDS, "all of them")
        gone = []
        for name, client in clients.items():
            client.send(PINGREQ)
            packet = client.read(SECONDS)
            if packet.kind == "DISCONNECT":
                assert packet.reason == ANOTHER_SERVER
                assert packet.properties["server_reference"] == ADDRESS
                gone.append(name)
        assert len(gone) == 22
        publisher = full.client("publisher")
        for name in gone:
            publisher.publish(f"to/{name}", name.encode(), qos=1)
            clients[name] = empty.client(name, clean=False, properties=LASTING)
            assert clients[name].connack.session_present
            clients[name].receive(f"to/{name}", name.encode())
        for each in older:
            each.expect_silence()
        wait_until(lambda: not cluster(full)["rebalance"]["moves"], SECONDS * 2, "the plan is over")
        assert full.counter("clients_sent_away") + empty.counter("clients_sent_away") == 22
        over = [line for host in hosts for line in host.logged("rebalance_over")]
        assert [line["seconds"] for line in over] == [60.0], over


@pytest.mark.long  # two minutes; the parts of it are in the tests before
def test_the_leader_dies_while_clients_are_moved() -> None:
    """The hosts stop what it had planned. The next leader plans anew what is left, and nobody is told twice."""
    with hosts_of([1, 1], environment={**SPREAD, "MQTTD_CLUSTER__DRAIN_PER_SECOND": "1"}) as hosts:
        full, empty = hosts
        clients = {f"c{at}": full.client(f"c{at}", clean=False, properties=LASTING) for at in range(60)}
        wait_until(lambda: full.counter("clients_sent_away") >= 2, SECONDS * 2, "clients are sent away")
        leader = wait_for_leader(hosts)
        control = leader.control_pid()
        os.kill(control, signal.SIGKILL)
        wait_until(partial(has_another_control, leader, control), SECONDS, "there is another one")
        wait_until(lambda: not cluster(full)["rebalance"]["moves"], SECONDS, "the plan is taken back")
        wait_until(partial(is_steady, full), SECONDS, "nobody is sent away")
        sent_away = full.counter("clients_sent_away")
        assert 2 <= sent_away < 30
        moved = 0
        while moved < 30:
            for name, client in list(clients.items()):
                client.send(PINGREQ)
                if client.read(SECONDS).kind == "DISCONNECT":
                    del clients[name]
                    assert empty.client(name, clean=False, properties=LASTING).connack.session_present
                    moved += 1
        wait_until(lambda: len([1 for host in hosts if host.logged("rebalance_over")]) == 1, SECONDS * 2, "it is over")
        assert full.counter("clients_sent_away") + empty.counter("clients_sent_away") == 30


def is_steady(host: ClusteredHost) -> bool:
    """Whether nobody is sent away in three seconds, at a pace of one in a second."""
    before = host.counter("clients_sent_away")
    let_pass(3)
    return host.counter("clients_sent_away") == before

"""Hosts that agree among themselves, without etcd: they are one broker as with it."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.cluster import test_hosts_that_fail, test_moves
from tests.cluster.hosts import ClusteredHost, Hosts, ids_on
from tests.cluster.peer_hosts import peer_hosts_of, secret_in
from tests.cluster.test_hosts_that_fail import LASTING, everything_crosses
from tests.waiting import wait_until

SECONDS = 30.0


def coordination_of(host: ClusteredHost) -> dict[str, Any]:
    """Return what a host says of its peers."""
    with urlopen(f"http://{host.admin[0]}:{host.admin[1]}/health", timeout=SECONDS) as answer:
        found: dict[str, Any] = json.load(answer)["cluster"]["coordination"]
    return found


def leader_of(hosts: Hosts) -> ClusteredHost:
    """Return the host that keeps the keys."""
    name = coordination_of(hosts[0])["leader"]
    return next(host for host in hosts if host.node == name)


def all_logged(hosts: Sequence[ClusteredHost], event: str, since: Sequence[int]) -> bool:
    """Whether each host has logged an event since a byte of its log."""
    return all(host.logged(event, size) for host, size in zip(hosts, since, strict=True))


def test_three_hosts_are_one_broker() -> None:
    """Messages cross, a client takes its session along, and every host sees the same peers."""
    with peer_hosts_of([2, 1, 1]) as hosts:
        everything_crosses(hosts, "peers")
        seen = [coordination_of(host) for host in hosts]
        assert len({each["leader"] for each in seen}) == 1
        for each in seen:
            assert {peer["node"] for peer in each["peers"] if peer["reached"]} == {"n0", "n1", "n2"}
            assert (each["quorum"], each["messages_malformed"], each["connections_refused"]) == (2, 0, 0)
        here, there = hosts[0], hosts[1]
        client_id = next(ids_on(0, 2, "roams"))
        first = here.client(client_id, clean=False, properties=LASTING)
        first.subscribe("roams", qos=1)
        first.disconnect()
        there.client_on(0, "publishes").publish("roams", b"kept", qos=1)
        second = there.client(client_id, clean=False, properties=LASTING)
        assert second.connack.session_present
        second.receive("roams", b"kept")


def test_the_host_that_keeps_the_keys_is_killed() -> None:
    """Another one goes on with them: nobody loses a lease, and a client finds its session on another host."""
    with peer_hosts_of([1, 1, 1], "leveldb") as hosts:
        former = leader_of(hosts)
        others = [host for host in hosts if host is not former]
        here, there = others
        client = here.client("stays", clean=False, properties=LASTING)
        client.subscribe("stays", qos=1)
        sizes = [host.stderr_size() for host in others]
        former.kill()
        wait_until(partial(all_logged, others, "peers_led", sizes), SECONDS, "both are led again")
        publisher = there.client_on(0, "meanwhile")
        publisher.publish("stays", b"1", qos=1)
        client.receive("stays", b"1")
        client.disconnect()

        def comes_along() -> bool:
            moved = there.client("stays", clean=False, properties=LASTING)
            return moved.connack.session_present

        wait_until(comes_along, SECONDS, "the session comes to the other host")
        assert not any(host.logged("cluster_lost", size) for host, size in zip(others, sizes, strict=True))
        former.start()
        wait_until(lambda: coordination_of(former)["leader"] is not None, SECONDS, "it follows")
        everything_crosses(hosts, "all-back")


def test_all_control_processes_are_killed() -> None:
    """What they had agreed on is gone, except the numbers of hosts: every host joins anew, and claims its sessions."""
    with peer_hosts_of([1, 1, 1], "leveldb") as hosts:
        clients = [host.client(f"kept{host.node}", clean=False, properties=LASTING) for host in hosts]
        for client in clients:
            client.subscribe("kept", qos=1)
        numbers = {host.node: host.logged("cluster_joined")[-1]["host"] for host in hosts}
        sizes = [host.stderr_size() for host in hosts]
        for host in hosts:
            os.kill(host.control_pid(), signal.SIGKILL)
        wait_until(partial(all_logged, hosts, "cluster_joined", sizes), SECONDS, "all join anew")
        assert sum(len(host.logged("peers_founded", size)) for host, size in zip(hosts, sizes, strict=True)) == 1
        assert numbers == {host.node: host.logged("cluster_joined")[-1]["host"] for host in hosts}
        hosts[0].client_on(0, "publishes").publish("kept", b"1", qos=1)
        for client in clients:
            client.receive("kept", b"1")

        def owners() -> list[str | None]:
            return [owner_of(hosts[0], f"kept{host.node}") for host in hosts]

        wait_until(lambda: owners() == ["n0", "n1", "n2"], SECONDS, "all sessions are owned again")


def owner_of(host: ClusteredHost, client_id: str) -> str | None:
    """Return the host that owns a client id."""
    address = f"http://{host.admin[0]}:{host.admin[1]}/api/v1/owner?client_id={client_id}"
    try:
        with urlopen(address, timeout=SECONDS) as answer:
            found: str = json.load(answer)["node"]
            return found
    except HTTPError:
        return None


def test_a_minority_decides_nothing_and_serves() -> None:
    """Of three hosts two are killed: the third one says why, serves its clients, and all go on when one is back."""
    with peer_hosts_of([1, 1, 1], "leveldb") as hosts:
        here, there, third = hosts
        client = here.client("alone", clean=False, properties=LASTING)
        client.subscribe("alone", qos=1)
        size = here.stderr_size()
        there.kill()
        third.kill()
        wait_until(lambda: here.logged("etcd_out_of_reach", size), SECONDS, "it says that it is alone")
        assert "2 are needed" in here.logged("etcd_out_of_reach", size)[0]["reason"]
        client.publish("alone", b"1", qos=1)
        client.receive("alone", b"1")
        size = here.stderr_size()
        there.start()
        wait_until(lambda: here.logged("etcd_reached", size), 2 * SECONDS, "two are enough")
        third.start()
        everything_crosses(hosts, "again")


def test_a_host_with_another_secret(tmp_path: Path) -> None:
    """It serves its own clients, and says who does not let it in; the others count it."""
    with peer_hosts_of([1, 1, 1]) as hosts:
        stranger = hosts[2]
        assert stranger.stop() == 0
        stranger.environment["MQTTD_CLUSTER__SECRET_FILE"] = str(secret_in(tmp_path, b"another secret of many bytes"))
        size = stranger.stderr_size()
        stranger.start()
        wait_until(lambda: stranger.logged("peer_does_not_let_in", size), SECONDS, "it says that it is not let in")
        client = stranger.client("own")
        client.subscribe("own")
        client.publish("own", b"1")
        client.receive("own", b"1")
        assert not stranger.logged("cluster_joined", size)
        wait_until(lambda: hosts[0].logged("peers_stranger_refused"), SECONDS, "the other one says so, too")
        assert coordination_of(hosts[0])["connections_refused"] > 0
        client.close()


def test_an_address_that_is_taken() -> None:
    """A host that cannot listen for its peers starts, says so, and listens when it can."""
    with peer_hosts_of([1, 1, 1]) as hosts, socket.socket() as other:
        host = hosts[2]
        assert host.stop() == 0
        size = host.stderr_size()
        name, port = host.environment["MQTTD_CLUSTER__PEERS_LISTEN"].split(":")
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((name, int(port)))
        other.listen()
        host.start()
        assert "in use" in host.logged("peers_listen_failed", size)[0]["reason"]
        other.close()
        wait_until(lambda: host.logged("cluster_ready", size), SECONDS, "it has joined")


@contextmanager
def last_leads(quorum: int, workers: Sequence[int], store: str = "memory", **limits: float) -> Iterator[Hosts]:
    """As peer_hosts_of, with the last host as the leader: the others may die without a new election, in which a client
    that they own may be served elsewhere, and closed when it is known who owns it.
    """
    with peer_hosts_of(workers, store, {}, quorum, **limits) as hosts:
        while (leader := leader_of(hosts)) is not hosts[-1]:
            size = leader.stderr_size()
            os.kill(leader.control_pid(), signal.SIGKILL)
            wait_until(partial(leader.logged, "cluster_joined", size), SECONDS, f"{leader.node} joins again")
        yield hosts


@pytest.mark.parametrize(
    ("test", "quorum"),
    [
        (test_hosts_that_fail.test_what_a_host_is_owed_waits_for_it, 0),
        (test_hosts_that_fail.test_a_stopped_host_is_away_and_comes_back, 0),
        (test_hosts_that_fail.test_clients_of_others_are_not_disturbed_by_a_dead_host, 0),
        (test_hosts_that_fail.test_a_host_that_was_no_member_is_sent_what_it_is_owed, 1),
        (test_moves.test_the_owner_was_dead, 1),
    ],
)
def test_as_with_etcd(test: Callable[[], None], quorum: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of hosts with etcd, with peers. Where one of two hosts has to decide alone the quorum is 1."""
    for module in test_hosts_that_fail, test_moves:
        monkeypatch.setattr(module, "hosts_of", partial(last_leads, quorum))
    test()

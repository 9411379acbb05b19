"""One host serves a client: who owns a client id, over real hosts and a real etcd."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from broker.cluster.contract import View
from broker.cluster.etcd import Etcd, EtcdAddress
from tests.cluster.etcd_process import EtcdProcess
from tests.cluster.hosts import ClusteredHost, Hosts, hosts_of, ids_on
from tests.waiting import wait_until
from tests.wire import PINGREQ, Client, Closed, Will, connect

SECONDS = 20.0
_TAKEN_OVER = 0x8E


@pytest.fixture(params=[((1, 1), "memory"), ((2, 3), "memory"), ((2, 2), "leveldb")], ids=str)
def hosts(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    counts, store = request.param
    with hosts_of(counts, store) as running:
        yield running


def keys(etcd: EtcdProcess) -> dict[str, tuple[str, int]]:
    """Return by client id the owner and the epoch in etcd."""
    prefix = b"/mqttd/mqttd/owners/"

    async def read() -> View:
        connection = Etcd(EtcdAddress((etcd.endpoint,)))
        try:
            return await connection.read_all(prefix)
        finally:
            await connection.close()

    found = asyncio.run(read()).entries
    return {each.key.removeprefix(prefix).decode(): (each.value.decode(), each.changed) for each in found}


def owners(etcd: EtcdProcess) -> dict[str, str]:
    return {name: node for name, (node, _) in keys(etcd).items()}


def ask(host: ClusteredHost, path: str) -> tuple[int, Any]:
    """Return the status and the JSON of an answer of the admin interface."""
    address, port = host.admin
    try:
        with urlopen(f"http://{address}:{port}{path}", timeout=SECONDS) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


def is_open(client: Client) -> bool:
    """Whether the broker still answers it."""
    try:
        client.send(PINGREQ)
        return client.read().kind == "PINGRESP"
    except (Closed, OSError):
        return False


def test_a_client_that_connects_elsewhere_is_taken_over(hosts: Hosts) -> None:
    """[MQTT-3.1.4-3] Also if its former connection is on another host: that one gets DISCONNECT 0x8E, and its will is
    published. Clients of any home move there and back.
    """
    here, there = hosts
    watcher = there.client("watcher")
    watcher.subscribe("wills/#", qos=1)
    for name in (next(ids_on(at % there.workers, there.workers, f"moves{at}-")) for at in range(6)):
        first = here.client(name, will=Will(f"wills/{name}", b"gone", 1))
        second = there.client(name)
        first.expect_closed(_TAKEN_OVER)
        watcher.receive(f"wills/{name}", b"gone")
        third = here.client(name)
        second.expect_closed(_TAKEN_OVER)
        third.subscribe("mine", qos=1)
        third.publish("mine", b"served", qos=1)
        third.receive("mine", b"served")
        third.disconnect()
    assert here.counter("owners_taken") == there.counter("owners_taken") == 6
    assert here.counter("owners_unproven") == there.counter("owners_unproven") == 0


def test_whoever_returns_to_its_host_writes_nothing(hosts: Hosts) -> None:
    """A session that stays is owned: its client comes and goes without a change in etcd. One that has ended is
    released,
    and not before its client has had the time to come back.
    """
    here, _ = hosts
    lasting = here.client("lasting", properties={"session_expiry_interval": 600})
    brief = here.client("brief")
    owned = keys(hosts.etcd)
    assert owners(hosts.etcd) == {"lasting": "n0", "brief": "n0"}
    for _ in range(3):
        lasting.disconnect()
        lasting = here.client("lasting", clean=False, properties={"session_expiry_interval": 600})
        brief.disconnect()
        brief = here.client("brief")
    assert keys(hosts.etcd) == owned
    lasting.disconnect()
    brief.disconnect()
    wait_until(lambda: owners(hosts.etcd) == {"lasting": "n0"}, 30, "what has ended is released")
    assert keys(hosts.etcd)["lasting"] == owned["lasting"]


@pytest.mark.parametrize("hosts", [((2, 3), "memory")], indirect=True, ids=str)
def test_two_hosts_that_take_a_client_from_each_other(hosts: Hosts) -> None:
    """Clients with one id connect to both hosts at the same time, again and again: in the end one of them is open."""
    for turn in range(10):
        name = f"fight{turn}"
        opened: list[list[Client]] = [[], []]

        def connect(at: int, name: str = name, opened: list[list[Client]] = opened) -> None:
            for _ in range(3):
                opened[at].append(hosts[at].client(name))

        threads = [threading.Thread(target=connect, args=(at,)) for at in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [len(each) for each in opened] == [3, 3], "each was accepted"

        def open_ones(opened: list[list[Client]] = opened) -> list[int]:
            return [sum(map(is_open, each)) for each in opened]

        wait_until(lambda: sum(open_ones()) == 1, SECONDS, "one host serves it")
        assert owners(hosts.etcd)[name] == hosts[open_ones().index(1)].node
        for client in (*opened[0], *opened[1]):
            client.close()


@pytest.mark.parametrize("hosts", [((1, 1), "memory")], indirect=True, ids=str)
def test_etcd_is_away(hosts: Hosts) -> None:
    """Clients of before come and go at once, others are accepted after a while; the owner of those is settled when etcd
    is back, and of two that were accepted on two hosts one stays.
    """
    here, there = hosts
    known = here.client("known", properties={"session_expiry_interval": 600})
    hosts.etcd.stop()
    known.disconnect()
    known = here.client("known", clean=False)
    assert here.counter("owners_unproven") == 0
    both = [host.client("both") for host in hosts]
    unknown = here.client("unknown")
    assert (here.counter("owners_unproven"), there.counter("owners_unproven")) == (2, 1)
    assert all(map(is_open, both))
    hosts.etcd.start()
    wait_until(lambda: set(owners(hosts.etcd)) == {"known", "both", "unknown"}, 60, "all are owned")
    wait_until(lambda: sum(map(is_open, both)) == 1, SECONDS, "one host serves it")
    assert is_open(known)
    assert is_open(unknown)


@pytest.mark.parametrize("hosts", [((1, 1), "memory")], indirect=True, ids=str)
def test_the_control_process_is_killed(hosts: Hosts) -> None:
    """Requests wait in the socket for its successor; what is owned stays so."""
    here, there = hosts
    here.client("stays")
    owned = keys(hosts.etcd)
    os.kill(here.control_pid(), signal.SIGKILL)
    new = [here.client("new"), there.client("new")]
    wait_until(lambda: sum(map(is_open, new)) == 1, SECONDS, "one of them is left")
    wait_until(lambda: "new" in owners(hosts.etcd), SECONDS, "it has an owner")
    wait_until(lambda: is_open(new[int(owners(hosts.etcd)["new"] == "n1")]), SECONDS, "which serves it")
    assert keys(hosts.etcd)["stays"] == owned["stays"]


@pytest.mark.parametrize("hosts", [((2, 2), "memory")], indirect=True, ids=str)
def test_a_lease_is_lost(hosts: Hosts) -> None:
    """What a host owned ends with its lease. It claims all of it anew, and closes what another one has taken."""
    here, there = hosts
    taken, stays = here.client("taken"), here.client("stays")
    pid = here.control_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: not keys(hosts.etcd), 60, "its lease has ended")
        there.client("taken")
    finally:
        os.kill(pid, signal.SIGCONT)
    taken.expect_closed(_TAKEN_OVER)
    wait_until(lambda: owners(hosts.etcd) == {"taken": "n1", "stays": "n0"}, 30, "each has its owner")
    assert is_open(stays)


def test_a_host_that_cannot_prove_that_it_is_a_member() -> None:
    """After cluster.unproven_seconds_max it refuses sessions that last, others not, and who is connected stays."""
    with hosts_of((1, 1), environment={"MQTTD_CLUSTER__UNPROVEN_SECONDS_MAX": "1"}) as hosts:
        here, _ = hosts
        stays = here.client("stays")
        hosts.etcd.stop()

        def is_refused() -> bool:
            client = Client(here.address, 5)
            client.send(connect(5, "lasting", properties={"session_expiry_interval": 60}))
            refused = client.expect("CONNACK").reason == 0x88
            client.close()
            return refused

        wait_until(is_refused, 60, "sessions that last are refused")
        assert here.counter("owners_doubtful") >= 1
        brief = here.client("brief")
        assert is_open(stays)
        assert is_open(brief)
        hosts.etcd.start()
        wait_until(lambda: not is_refused(), 60, "they are accepted again")


@pytest.mark.parametrize("hosts", [((1, 1), "memory")], indirect=True, ids=str)
def test_every_host_says_who_owns_a_client(hosts: Hosts) -> None:
    """GET /api/v1/owner, for a client id with any characters."""
    name = "a client/with #+ & é"
    hosts[1].client(name)
    (node, epoch), found = keys(hosts.etcd)[name], {"client_id": name}
    for host in hosts:
        status, answer = ask(host, f"/api/v1/owner?{urlencode(found)}")
        assert status == 200
        addresses = {"address": hosts[1].mesh_address, "client_address": None}
        assert answer == {**found, "node": node, "epoch": epoch, **addresses}
        assert ask(host, "/api/v1/owner?client_id=nobody")[0] == 404
        for wrong in ("", "?client_id=", "?client=a"):
            assert ask(host, f"/api/v1/owner{wrong}")[0] == 400
    asker = hosts[0].client("asker")
    asker.subscribe(("answers", 1))
    for asked, expected in ((name, node), ("nobody", None)):
        properties = {"response_topic": "answers", "correlation_data": b"7"}
        asker.publish("$mqttd/owner", json.dumps({"client_id": asked}).encode(), qos=1, properties=properties)
        answer = asker.await_packet("PUBLISH")
        asker.ack("PUBACK", answer.packet_id)
        assert (answer.topic, answer.properties["correlation_data"]) == ("answers", b"7")
        epoch_of_it = epoch if expected else None
        assert json.loads(answer.payload) == {
            "client_id": asked, "node": expected, "address": None, "epoch": epoch_of_it,
        }  # fmt: skip
    hosts.etcd.stop()
    assert ask(hosts[0], "/api/v1/owner?client_id=nobody")[0] == 503


def test_a_host_that_takes_a_client_from_one_that_has_just_taken_it() -> None:
    """The first of the two that take it waits for its former owner, which is stopped: it gives way as well."""
    with hosts_of((1, 1, 1)) as hosts:
        former = hosts[0].client("thrice")
        pid = hosts[0].worker_pids()[0]
        os.kill(pid, signal.SIGSTOP)
        clients = [Client(host.address, 5) for host in hosts[1:]]
        try:
            clients[0].send(connect(5, "thrice"))
            wait_until(lambda: owners(hosts.etcd).get("thrice") == "n1", SECONDS, "the second host owns it")
            clients[1].send(connect(5, "thrice"))
            clients[1].expect("CONNACK", reason=0)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert owners(hosts.etcd)["thrice"] == "n2"
        wait_until(lambda: not is_open(clients[0]), SECONDS, "the second host does not serve it")
        wait_until(lambda: not is_open(former), SECONDS, "nor does the first one")
        assert is_open(clients[1])
        for client in clients:
            client.close()


def test_a_session_made_while_its_owner_had_none() -> None:
    """While etcd is away a client leaves a session on a host whose client id another one owns without a session. It is
    kept, with what was acknowledged, when etcd is back.
    """
    with hosts_of((1, 1), "leveldb") as hosts:
        hosts[0].client("left").disconnect()
        hosts.etcd.freeze()
        try:
            client = hosts[1].client("left", properties={"session_expiry_interval": 600})
            client.subscribe(("kept", 1))
            client.disconnect()
            publisher = hosts[1].client("left-publisher")
            publisher.publish("kept", b"acknowledged", qos=1)
        finally:
            hosts.etcd.thaw()
        wait_until(lambda: owners(hosts.etcd).get("left") == "n1", 60, "the host that has the session owns it")
        client = hosts[1].client("left", clean=False)
        assert client.connack.session_present
        client.receive("kept", b"acknowledged")


def test_take_overs_between_hosts_are_bounded() -> None:
    """limits.takeovers_per_minute_max of each host: the newer client is refused, the older one stays."""
    with hosts_of((1, 1), takeovers_per_minute_max=2) as hosts:
        client = hosts[0].client("contested")
        for turn in range(1, 5):  # two of each host
            newer = hosts[turn % 2].client("contested")
            client.expect_closed(_TAKEN_OVER)
            client = newer
        refused = Client(hosts[1].address, 5)
        refused.send(connect(5, "contested"))
        refused.expect_refused(0x97)
        refused.close()
        assert is_open(client)

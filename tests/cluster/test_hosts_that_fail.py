"""Hosts, workers, control processes and etcd that end, stop or come back, while messages cross between hosts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

import pytest

from broker import __version__
from tests.broker_process import ROOT
from tests.cluster.hosts import ClusteredHost, Hosts, hosts_of, ids_on
from tests.waiting import let_pass, wait_until
from tests.wire import Client

SECONDS = 30.0
LASTING = {"session_expiry_interval": 600}
BRIEFLY_KEPT = {"MQTTD_CLUSTER__UNPROVEN_SECONDS_MAX": "1"}
"""So that a host without a disk is soon forgotten."""


def lasting(hosts: Hosts, host: int, worker: int, prefix: str) -> Client:
    """Return a client with a lasting session there."""
    return hosts[host].client(next(ids_on(worker, hosts[host].workers, prefix)), clean=False, properties=LASTING)


def linked_again(hosts: Hosts, host: int, links: int, since: int) -> None:
    """Wait until a host has logged so many links since that byte of its log."""
    wait_until(lambda: hosts[host].links(since) >= links, SECONDS, f"{hosts[host].node} is linked again")


@contextmanager
def stopped(host: ClusteredHost) -> Iterator[None]:
    """Stop all processes of a host, and let them go on in the end."""
    pids = host.processes()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def everything_crosses(hosts: Hosts, topic: str) -> None:
    """Assert that each worker of each host reaches all others."""
    clients = [host.client_on(worker, f"{topic}-{host.node}-") for host in hosts for worker in range(host.workers)]
    for client in clients:
        client.subscribe(topic, qos=1)
    for number, publisher in enumerate(clients):
        publisher.publish(topic, b"%d" % number, qos=1)
        for client in clients:
            client.receive(topic, b"%d" % number)
    for client in clients:
        client.disconnect()


@pytest.mark.parametrize("store", ["memory", "leveldb"])
def test_a_worker_that_is_killed_is_linked_again(store: str) -> None:
    """On either side: its successor takes its place, and messages cross as before."""
    with hosts_of([2, 2], store) as hosts:
        for host, other in (0, 1), (1, 0):
            for worker in range(2):
                sizes = [each.stderr_size() for each in hosts]
                hosts[host].kill_worker(worker)
                linked_again(hosts, host, 1, sizes[host])
                linked_again(hosts, other, 1, sizes[other])
        everything_crosses(hosts, "again")


def test_what_a_host_is_owed_waits_for_it() -> None:
    """[MQTT-3.1.2-5] All that was acknowledged while a host was dead reaches its sessions, in order and once."""
    with hosts_of([2, 2], "leveldb") as hosts:
        here, there = hosts
        subscriber = lasting(hosts, 1, 1, "owed")
        subscriber.subscribe("owed/#", qos=2)
        subscriber.disconnect()
        publishers = [here.client_on(worker, "owed") for worker in range(2)]
        for number in range(5):
            publishers[0].publish("owed/0", b"before %d" % number, qos=1)
        there.kill()
        for number in range(20):
            for worker, publisher in enumerate(publishers):
                publisher.publish(f"owed/{worker}", b"%d" % number, qos=1 + number % 2)
        size = here.stderr_size()
        there.start()
        linked_again(hosts, 0, 2, size)
        subscriber = lasting(hosts, 1, 1, "owed")
        assert subscriber.connack.session_present
        got: dict[tuple[str, int], list[bytes]] = {}
        while sum(map(len, got.values())) < 45:
            packet = subscriber.read(SECONDS)
            if packet.kind == "PUBREL":
                subscriber.ack("PUBCOMP", packet.packet_id)
                continue
            got.setdefault((packet.topic, packet.qos), []).append(packet.payload)
            subscriber.ack("PUBACK" if packet.qos == 1 else "PUBREC", packet.packet_id)
        even, odd = [b"%d" % number for number in range(0, 20, 2)], [b"%d" % number for number in range(1, 20, 2)]
        before = [b"before %d" % number for number in range(5)]
        assert got == {("owed/0", 1): before + even, ("owed/0", 2): odd, ("owed/1", 1): even, ("owed/1", 2): odd}
        subscriber.close()
        for publisher in publishers:
            publisher.disconnect()


def test_what_waits_for_a_host_outlives_the_worker_that_has_it() -> None:
    """The hand-off log for a host is on disk: a worker that is killed meanwhile loses nothing of it."""
    with hosts_of([1, 1], "leveldb") as hosts:
        here, there = hosts
        subscriber = lasting(hosts, 1, 0, "both")
        subscriber.subscribe("both", qos=1)
        subscriber.disconnect()
        there.kill()
        publisher = here.client_on(0, "both")
        for number in range(10):
            publisher.publish("both", b"%d" % number, qos=1)
        publisher.close()
        here.kill_worker(0)
        size = here.stderr_size()
        there.start()
        linked_again(hosts, 0, 1, size)
        subscriber = lasting(hosts, 1, 0, "both")
        for number in range(10):
            subscriber.receive("both", b"%d" % number)
        subscriber.close()


def test_clients_of_others_are_not_disturbed_by_a_dead_host() -> None:
    """While a host is dead, SUBSCRIBE and PUBLISH of the others are answered, also on topics that it wanted."""
    with hosts_of([2, 2, 2]) as hosts:
        wanted = hosts[2].client_on(0, "dead")
        wanted.subscribe("dead/#", qos=1)
        hosts[2].kill()
        subscriber, publisher = hosts[1].client_on(1, "alive"), hosts[0].client_on(0, "alive")
        for number in range(10):
            subscriber.subscribe(f"dead/{number}", qos=1)
            publisher.publish(f"dead/{number}", b"x", qos=1)
            subscriber.receive(f"dead/{number}", b"x")
        size = hosts[2].stderr_size()
        hosts[2].start()  # with a store in memory it is another host, and its name is taken until a lease has ended
        wait_until(lambda: hosts[2].logged("cluster_ready", size), SECONDS, "it has joined")
        everything_crosses(hosts, "dead-again")


def test_a_stopped_host_is_away_and_comes_back() -> None:
    """SIGSTOP of all of a host's processes: others wait for it no longer than link_silence_seconds_max."""
    with hosts_of([2, 2]) as hosts:
        here, there = hosts
        subscriber = there.client_on(1, "stopped")
        subscriber.subscribe("stopped", qos=1)
        sizes = [host.stderr_size() for host in hosts]
        with stopped(there):
            publisher = here.client_on(0, "stopped")
            other = here.client_on(1, "stopped-other")
            assert other.subscribe("other") == (0,)
            publisher.publish("stopped", b"meanwhile", qos=1)
            assert here.logged("host_away", sizes[0])
        linked_again(hosts, 0, 2, sizes[0])
        subscriber.receive("stopped", b"meanwhile")
        publisher.publish("stopped", b"later", qos=1)
        subscriber.receive("stopped", b"later")


@contextmanager
def no_member(here: ClusteredHost, there: ClusteredHost) -> Iterator[None]:
    """Stop a host until it is no member any more, and go on with it in the end."""
    size = here.stderr_size()
    with stopped(there):
        wait_until(lambda: here.logged("host_left", size), SECONDS, "its record has ended")
        yield


def test_a_host_that_was_no_member_is_sent_what_it_is_owed() -> None:
    """With its store in memory, too: it was cut off, and has its sessions yet."""
    with hosts_of([2, 2]) as hosts:
        here, there = hosts
        subscriber = there.client_on(1, "no-member")
        subscriber.subscribe("no-member", qos=1)
        size = here.stderr_size()
        with no_member(here, there):
            here.client_on(0, "no-member").publish("no-member", b"meanwhile", qos=1)
        linked_again(hosts, 0, 2, size)
        subscriber.receive("no-member", b"meanwhile")
        assert not here.logged("host_gone")


def test_a_host_without_a_disk_is_forgotten() -> None:
    """Some time after its record has ended; it comes back as any other."""
    with hosts_of([2, 1], environment=BRIEFLY_KEPT) as hosts:
        here, there = hosts
        there.client_on(0, "forgotten").subscribe("forgotten", qos=1)
        size = here.stderr_size()
        with no_member(here, there):
            wait_until(lambda: len(here.logged("host_gone", size)) == 2, SECONDS, "both workers have forgotten it")
            here.client_on(0, "forgotten").publish("forgotten", b"nobody", qos=1)
        linked_again(hosts, 0, 2, size)
        everything_crosses(hosts, "again")


def test_a_worker_that_comes_later_than_its_sibling() -> None:
    """Other hosts hear of the first one when that knows what both want: what they had kept reaches the second one, and
    what is published meanwhile.
    """
    with hosts_of([1, 2], "leveldb") as hosts:
        here, there = hosts
        subscriber = lasting(hosts, 1, 1, "later")
        subscriber.subscribe("later", qos=1)
        subscriber.disconnect()
        there.kill()
        publisher = here.client_on(0, "later")
        for number in range(10):
            publisher.publish("later", b"%d" % number, qos=1)
        starting = threading.Thread(target=there.start)
        starting.start()
        wait_until(lambda: 1 in there.worker_pids(), SECONDS, "its second worker is there")
        second = there.worker_pids()[1]
        os.kill(second, signal.SIGSTOP)
        try:
            for number in range(10, 50):  # longer than a link may be silent
                publisher.publish("later", b"%d" % number, qos=1)
                let_pass(0.1)
        finally:
            os.kill(second, signal.SIGCONT)
        starting.join(SECONDS)
        subscriber = lasting(hosts, 1, 1, "later")
        for number in range(50):
            subscriber.receive("later", b"%d" % number)


def test_operators_see_which_host_is_away() -> None:
    """In the report, the metrics and `mqttd status`."""
    with hosts_of([2, 1], "leveldb") as hosts:
        here, there = hosts
        address = f"{here.admin[0]}:{here.admin[1]}"

        def links() -> int | None:
            with urlopen(f"http://{address}/ready", timeout=SECONDS) as answer:
                seen = {each["node"]: each["links"] for each in json.load(answer)["cluster"]["hosts"]}
            assert seen["n0"] is None
            return seen.get("n1")

        def said() -> list[str]:
            command = [sys.executable, "-m", "broker", "status", "--admin", address]
            return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.splitlines()

        def metric() -> str:
            with urlopen(f"http://{address}/metrics", timeout=SECONDS) as answer:
                lines = answer.read().decode().splitlines()
            (found,) = [line for line in lines if line.startswith("mqttd_host_links{")]
            return str(found)

        wait_until(lambda: links() == 2, SECONDS, "both workers are linked")
        assert metric() == 'mqttd_host_links{host="n1"} 2.0'
        text = said()
        assert "cluster: n0, ready" in text
        rows = [line.split() for line in text]
        assert ["n0", "ready", "this", "host", "2", "0", "0", __version__, here.mesh_address] in rows
        assert ["n1", "ready", "2", "of", "2", "1", "0", "0", __version__, there.mesh_address] in rows
        there.kill()
        wait_until(lambda: not links(), SECONDS, "it is away")
        there.start()
        wait_until(lambda: links() == 2, SECONDS, "it is back")
        here.kill_worker(1)
        wait_until(lambda: links() == 2, SECONDS, "the successor is linked")


def test_messages_cross_while_etcd_and_control_are_away() -> None:
    """Nothing that serves clients needs them; when they are back, a further host is seen."""
    with hosts_of([2, 2]) as hosts:
        hosts.etcd.stop()
        everything_crosses(hosts, "no-etcd")
        former = hosts[0].control_pid()
        os.kill(former, signal.SIGKILL)
        everything_crosses(hosts, "no-control")
        wait_until(lambda: hosts[0].control_pid() not in (0, former), SECONDS, "another control process runs")
        hosts[0].kill_worker(0)
        sizes = [host.stderr_size() for host in hosts]
        hosts.etcd.start()
        wait_until(lambda: hosts[0].logged("cluster_joined", sizes[0]), SECONDS, "the control process has joined again")
        everything_crosses(hosts, "all-back")


def test_a_name_that_is_taken() -> None:
    """A second host with the same name does not join, says so, and serves its own clients."""
    with hosts_of([1, 1]) as hosts:
        double = ClusteredHost("n1", 1, hosts.etcd, "memory")
        try:
            double.start()
            wait_until(lambda: double.logged("node_id_taken"), SECONDS, "it says that its name is taken")
            client = double.client("alone")
            client.subscribe("x")
            client.publish("x", b"1")
            client.receive("x", b"1")
            client.disconnect()
            everything_crosses(hosts, "taken")
            assert not double.logged("cluster_joined")
            assert double.stop() == 0
        finally:
            double.kill()
            double.forget()


def retained_on(client: Client, topic_filter: str, count: int) -> dict[str, bytes]:
    """Return that many retained messages that a SUBSCRIBE brings, by topic."""
    client.subscribe(topic_filter, qos=0)
    got = [client.expect("PUBLISH") for _ in range(count)]
    client.unsubscribe(topic_filter)
    return {each.topic: each.payload for each in got}


@pytest.mark.parametrize("store", ["memory", "leveldb"])
def test_a_host_that_joins_gets_the_retained_messages(store: str) -> None:
    """It is ready only when it has them; those that are published and cleared meanwhile are as everywhere."""
    with hosts_of([2, 2], store) as hosts:
        publisher = hosts[0].client_on(0, "retains")
        want = {f"r/{number}": b"%d" % number * (1 + number % 50) for number in range(2000)}
        for topic, payload in want.items():
            publisher.publish(topic, payload, qos=number_of(topic) % 2, retain=True)
        third = ClusteredHost("n2", 3, hosts.etcd, store)
        try:
            third.start()
            for number in range(0, 2000, 20):
                publisher.publish(f"r/{number}", b"", qos=1, retain=True)
                del want[f"r/{number}"]
            wait_until(lambda: third.logged("cluster_ready"), SECONDS, "it has joined")
            for worker in range(3):
                assert retained_on(third.client_on(worker, "reads"), "r/#", len(want)) == want
            assert hosts[0].counter("retained_offered") > 0
            assert third.stop() == 0
            third.assert_sound()
        finally:
            third.kill()
            third.forget()


def number_of(topic: str) -> int:
    """Return the number in a topic."""
    return int(topic.rpartition("/")[2])


def test_a_worker_without_a_disk_gets_its_retained_messages_back() -> None:
    """With the store in memory a worker loses those of its topics: another host still has them."""
    with hosts_of([2, 2]) as hosts:
        publisher = hosts[1].client_on(1, "back")
        want = {f"back/{number}": b"x" for number in range(50)}
        for topic, payload in want.items():
            publisher.publish(topic, payload, qos=1, retain=True)
        for worker in range(2):
            size = hosts[0].stderr_size()
            hosts[0].kill_worker(worker)
            linked_again(hosts, 0, 1, size)
        reader = hosts[0].client_on(0, "back-reader")

        def has_all() -> bool:
            return hosts[0].counter("retained_messages") == 50

        wait_until(has_all, SECONDS, "they are back")
        assert retained_on(reader, "back/#", 50) == want


def test_a_subscribe_that_changes_nothing_is_answered() -> None:
    """Its filter is known to all from before the other host joined, and it asks for no retained messages."""
    no_retained = 0x20
    with hosts_of([2, 2]) as hosts:
        first = hosts[0].client_on(0, "same")
        first.subscribe(("same", no_retained))
        third = ClusteredHost("n2", 2, hosts.etcd, "memory")
        try:
            third.start()
            wait_until(lambda: third.logged("cluster_ready"), SECONDS, "it has joined")
            second = hosts[0].client_on(0, "same-too")
            assert second.subscribe(("same", no_retained)) == (0,)
            publisher = third.client_on(1, "same-publisher")
            publisher.publish("same", b"x")
            first.receive("same", b"x")
            second.receive("same", b"x")
            assert third.stop() == 0
        finally:
            third.kill()
            third.forget()


# ------------------------------------------------------------------------- what is acknowledged, while something fails


@pytest.mark.parametrize("store", ["memory", "leveldb"])
def test_what_a_new_worker_acknowledges_reaches_other_hosts(store: str) -> None:
    """[MQTT-4.3.2-4] It serves no client before it knows what other hosts want."""
    with hosts_of([1, 2], store) as hosts:
        subscriber = hosts[1].client_on(1, "reached")
        subscriber.subscribe("reached", qos=1)
        number = 0
        for _ in range(3):
            hosts[0].kill_worker(0)
            publisher = hosts[0].client_on(0, "reached")
            for _ in range(10):
                publisher.publish("reached", b"%d" % number, qos=1)
                subscriber.receive("reached", b"%d" % number)
                number += 1
            publisher.disconnect()


@pytest.mark.parametrize("store", ["memory", "leveldb"])
def test_a_suback_waits_for_the_successor_of_a_sibling(store: str) -> None:
    """The other host's worker learns what this one wants over the rail of the worker that has just died."""
    with hosts_of([2, 2], store) as hosts:
        here, there = hosts
        os.kill(there.worker_pids()[0], signal.SIGKILL)
        subscriber = there.client_on(1, "early")
        subscriber.subscribe("early", qos=1)
        publisher = here.client_on(0, "early")
        publisher.publish("early", b"x", qos=1)
        subscriber.receive("early", b"x")


def test_sessions_outlive_the_worker_that_links_their_host() -> None:
    """With stores in memory, too: what crosses to a session on another worker than the one that dies arrives."""
    with hosts_of([2, 2]) as hosts:
        here, there = hosts
        subscriber = there.client_on(1, "outlive")
        subscriber.subscribe("outlive", qos=1)
        publisher = here.client_on(0, "outlive")  # over worker 0 of the other host
        os.kill(there.worker_pids()[0], signal.SIGKILL)
        for number in range(50):
            publisher.publish("outlive", b"%d" % number, qos=1)
        got: list[bytes] = []
        while not got or got[-1] != b"49":
            packet = subscriber.read(SECONDS)
            subscriber.ack("PUBACK", packet.packet_id)
            if packet.payload not in got:  # one that was not acknowledged by the dead one is sent again
                got.append(packet.payload)
        assert got == [b"%d" % number for number in range(50)]


def test_a_worker_that_was_stopped_serves_nobody_by_what_it_knew() -> None:
    """A SUBACK on another host did not wait for it: it sends that host everything until it has heard from it."""
    with hosts_of([1, 1]) as hosts:
        here, there = hosts
        publisher = here.client_on(0, "paused")
        subscriber = there.client_on(0, "paused")
        for turn in range(2):
            pid = here.worker_pids()[0]
            os.kill(pid, signal.SIGSTOP)
            try:
                subscriber.subscribe(f"paused/{turn}", qos=1)
            finally:
                os.kill(pid, signal.SIGCONT)
            publisher.publish(f"paused/{turn}", b"x", qos=1)
            subscriber.receive(f"paused/{turn}", b"x")


def test_a_host_without_a_disk_that_is_gone_for_good() -> None:
    """What it wanted is forgotten in pieces; publishes that match it meanwhile harm nobody."""
    filters = 6000
    with hosts_of([1, 1], environment=BRIEFLY_KEPT) as hosts:
        here, there = hosts
        subscriber = there.client_on(0, "gone")
        for begin in range(0, filters, 1000):
            subscriber.subscribe(*[f"gone/{number}" for number in range(begin, begin + 1000)], qos=1)
        publisher = here.client_on(0, "gone")
        worker = here.worker_pids()[0]
        there.kill()
        size = here.stderr_size()
        number = 0
        while not here.logged("host_gone", size):
            publisher.publish(f"gone/{number % filters}", b"x", qos=1)
            number += 1
        for number in range(0, filters, 10):
            publisher.publish(f"gone/{number}", b"x", qos=1)
        assert here.worker_pids()[0] == worker


def test_an_address_that_cannot_be_used_harms_only_its_host() -> None:
    """It is in etcd, put there by another release, say: the other hosts go on, and say which host it is."""
    with hosts_of([1, 1]) as hosts:
        third = ClusteredHost("n2", 1, hosts.etcd, "memory")
        third.environment["MQTTD_CLUSTER__ADVERTISE"] = "tcp://a..b:7400"
        try:
            third.start()
            everything_crosses(hosts, "bad-address")
            assert third.stop() == 0
        finally:
            third.kill()
            third.forget()

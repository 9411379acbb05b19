"""`mqttd drain`: a host is emptied before it is stopped, and nothing is lost on the way."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from tests.cluster.hosts import ClusteredHost, Hosts, hosts_of
from tests.cluster.test_owners import ask
from tests.counted import CountedBroker
from tests.mqttd_command import Said, command, mqttd
from tests.waiting import wait_until
from tests.wire import Client, Closed, connect

SECONDS = 30.0
ANOTHER_SERVER = 0x9C
CLIENT_ADDRESS = "mqtt.example:1883"
KINDS = [((1, 1, 1), "memory"), ((2, 3), "memory"), ((2, 2), "leveldb")]


@pytest.fixture(params=KINDS, ids=str)
def hosts(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    counts, store = request.param
    with hosts_of(counts, store, {"MQTTD_CLUSTER__CLIENT_ADDRESS": CLIENT_ADDRESS}) as running:
        yield running


def drain(host: CountedBroker, *arguments: str) -> Said:
    return mqttd("drain", "--runtime-dir", host.runtime_dir, *arguments, seconds=SECONDS * 2)


def lasting(host: ClusteredHost, client_id: str, version: int = 5) -> Client:
    """Return a connected client with a session that lasts."""
    properties = {"session_expiry_interval": 600} if version == 5 else {}
    return host.client(client_id, version, clean=False, properties=properties)


def state_of(host: ClusteredHost) -> str:
    return str(ask(host, "/health")[1]["cluster"]["state"])


def is_refused(host: ClusteredHost) -> bool:
    """Whether a new client is told to use another server."""
    client = Client(host.address, 5)
    client.send(connect(5, ""))
    refused = client.expect("CONNACK").reason
    client.close()
    assert refused in (0, ANOTHER_SERVER)
    return refused == ANOTHER_SERVER


def test_a_host_is_emptied_and_its_clients_go_on_elsewhere(hosts: Hosts) -> None:
    """Those that are connected are told where to go and take their sessions along; the sessions of the others go
    without them, with their queues. Then the host is stopped: nothing of it is missed.
    """
    host, *others = hosts
    names = [f"offline-{at}" for at in range(20)]
    for name in names:
        client = lasting(host, name)
        client.subscribe((f"to/{name}", 1), ("to/all", 1))
        client.disconnect()
    newest, older = lasting(host, "newest"), lasting(host, "older", 4)
    for each in (newest, older):
        each.subscribe(("to/all", 1))
    publisher = others[0].client("publisher")
    for name in names:
        publisher.publish(f"to/{name}", name.encode(), qos=1)
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(command("drain", "--runtime-dir", host.runtime_dir))
        stack.callback(running.kill)
        assert newest.read().reason == ANOTHER_SERVER
        older.expect_closed()
        publisher.publish("to/all", b"while it drains", qos=1)
        for client_id, version in (("newest", 5), ("older", 4)):
            there = lasting(others[-1], client_id, version)
            assert there.connack.session_present
            there.receive("to/all", b"while it drains")
        out, err = running.communicate(timeout=SECONDS * 2)
    assert (running.returncode, err) == (0, "")
    assert out.splitlines()[-1] == "drained: the host can be stopped"
    wait_until(lambda: host.counter("sessions") == 0, SECONDS, "the gauge is set")
    assert ask(host, "/ready")[0] == 503
    assert {state_of(host)} == {"draining"}
    assert host.stop() == 0
    for at, name in enumerate(names):
        there = lasting(others[at % len(others)], name)
        assert there.connack.session_present
        got = {there.expect("PUBLISH").payload for _ in range(2)}
        assert got == {name.encode(), b"while it drains"}
        there.expect_silence()


@pytest.mark.parametrize("hosts", KINDS[1:2], indirect=True, ids=str)
def test_it_ends(hosts: Hosts) -> None:
    """The host takes clients again, and sessions come back with their clients."""
    host, other = hosts
    lasting(host, "c").disconnect()
    assert drain(host).status == 0
    assert is_refused(host)
    wait_until(lambda: other.counter("sessions") == 1, SECONDS, "the gauge is set")
    assert drain(host, "--end").out == "this host takes clients\n"
    wait_until(lambda: not is_refused(host), SECONDS, "it takes clients")
    assert ask(host, "/ready")[0] == 200
    assert lasting(host, "c").connack.session_present
    wait_until(lambda: other.counter("sessions") == 0, SECONDS, "it has come back")


@pytest.mark.parametrize("hosts", KINDS[1:2], indirect=True, ids=str)
def test_processes_die_while_it_drains(hosts: Hosts) -> None:
    """Their successors drain, too."""
    host, _ = hosts
    assert drain(host).status == 0
    control = host.control_pid()
    os.kill(control, signal.SIGKILL)
    wait_until(lambda: host.control_pid() not in (0, control), SECONDS, "there is another control process")
    host.kill_worker(0)
    wait_until(lambda: all(is_refused(host) for _ in range(8)), SECONDS, "all drain")
    wait_until(lambda: state_of(host) == "draining", SECONDS, "the control process knows it")
    assert drain(host, "--seconds", "20").status == 0


@pytest.mark.parametrize("hosts", KINDS[1:2], indirect=True, ids=str)
def test_why_not(hosts: Hosts) -> None:
    """Where no other host takes clients, or there is none, or no cluster, nobody is sent away."""
    host, other = hosts
    client = host.client("stays")
    assert drain(other).status == 0
    wait_until(lambda: "draining" in str(ask(host, "/health")[1]["cluster"]["hosts"]), SECONDS, "it knows")
    refused = drain(host)
    assert (refused.status, refused.err) == (1, "mqttd: no other host takes clients\n")
    client.expect_silence()
    with CountedBroker(1) as alone:  # without an admin interface there is no control process
        assert drain(alone).err == "mqttd: no control process answers: is this host in a cluster?\n"
    with CountedBroker(1, ["--admin", "127.0.0.1:0"]) as alone:
        refused = drain(alone)
        assert (refused.status, refused.err) == (1, "mqttd: this host is in no cluster: there is no other one\n")
    gone = drain(alone)
    assert gone.status == 1
    assert "no mqttd runs on" in gone.err
    assert mqttd("drain", "--seconds", "-1").status == 2


@pytest.mark.parametrize("hosts", KINDS[1:2], indirect=True, ids=str)
def test_not_done_in_time(hosts: Hosts) -> None:
    """The other host is stopped: what cannot go stays, and the host goes on with it."""
    host, other = hosts
    lasting(host, "c").disconnect()
    stopped = other.worker_pids().values()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        refused = drain(host, "--seconds", "1")
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert refused.status == 1
    assert refused.err.startswith("mqttd: not done in 1 s, the host goes on: 0 clients are connected, 1 sessions")
    wait_until(lambda: host.counter("sessions") == 0, SECONDS * 2, "it has gone")
    assert lasting(other, "c").connack.session_present


@pytest.mark.parametrize("hosts", [((1, 1), "memory")], indirect=True, ids=str)
def test_etcd_takes_longer_than_the_other_host_waits(hosts: Hosts) -> None:
    """What it has taken it does not know at first. In the end the session is there, its former host knows that, and one
    host serves the client.
    """
    host, other = hosts
    lasting(host, "c").disconnect()
    control = other.control_pid()
    os.kill(control, signal.SIGSTOP)
    try:
        assert drain(host, "--seconds", "5").status == 1
    finally:
        os.kill(control, signal.SIGCONT)
    assert drain(host, "--seconds", "60").status == 0
    assert drain(host, "--end").status == 0
    wait_until(lambda: not is_refused(host), SECONDS, "it takes clients")
    there = lasting(other, "c")
    assert there.connack.session_present
    assert lasting(host, "c").connack.session_present
    there.expect_closed(0x8E)


@pytest.mark.parametrize("hosts", [((1, 1), "memory")], indirect=True, ids=str)
def test_the_last_other_host_dies(hosts: Hosts) -> None:
    """It ends: clients would not be taken anywhere."""
    host, other = hosts
    stays = lasting(host, "c")
    for pid in other.worker_pids().values():
        os.kill(pid, signal.SIGSTOP)  # nothing can go there
    with command("drain", "--runtime-dir", host.runtime_dir) as running:
        stays.expect_closed(ANOTHER_SERVER)
        other.kill()
        _, err = running.communicate(timeout=SECONDS * 2)
    assert running.returncode == 1
    assert err == "mqttd: it has ended, and this host takes clients: no other one does, or somebody ended it\n"
    wait_until(lambda: not is_refused(host), SECONDS, "it takes clients")
    assert ask(host, "/ready")[0] == 200
    assert lasting(host, "c").connack.session_present


@pytest.mark.parametrize("hosts", [((1, 1), "memory")], indirect=True, ids=str)
def test_the_host_dies_itself(hosts: Hosts) -> None:
    """Nobody waits for it any more."""
    host, other = hosts
    stopped = other.worker_pids().values()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)  # nothing can go there
    lasting(host, "c").disconnect()
    try:
        with command("drain", "--runtime-dir", host.runtime_dir) as running:
            assert running.stdout is not None
            assert running.stdout.readline() == "0 clients are connected, 1 sessions are here\n"
            host.kill()
            _, err = running.communicate(timeout=5)  # less than for a process that may start again
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert running.returncode == 1
    assert "does not answer" in err


@pytest.mark.parametrize("hosts", [((1, 1), "memory")], indirect=True, ids=str)
def test_two_hosts_at_the_same_time(hosts: Hosts) -> None:
    """One of them at most is emptied; clients are taken somewhere."""
    running = [command("drain", "--runtime-dir", host.runtime_dir) for host in hosts]
    said = [each.communicate(timeout=SECONDS) for each in running]
    wait_until(lambda: any(not is_refused(host) for host in hosts), SECONDS, "one takes clients")
    assert any(each.returncode for each in running), said
    wait_until(lambda: any(ask(host, "/ready")[0] == 200 for host in hosts), SECONDS, "it says so")


class Roamer(threading.Thread):
    """A client that takes thirty messages, and goes on at the next host that takes it. `over`: nothing is published any
    more.
    """

    def __init__(self, hosts: Hosts, at: int, over: threading.Event) -> None:
        super().__init__()
        self.client_id = f"c{at}"
        self.got: list[int] = []
        """The numbers in the messages that it has had, each once: they may be sent again."""
        self.failed = True
        self._hosts = hosts
        self._at = at
        self._over = over
        client = lasting(hosts[at % len(hosts)], self.client_id)
        client.subscribe(("all", 1))
        client.disconnect()

    def run(self) -> None:
        while not (self._over.is_set() and self._has_all()):
            pass
        self.failed = False

    def _has_all(self) -> bool:
        """Visit the next host. Return whether it had nothing more."""
        self._at += 1
        client = Client(self._hosts[self._at % len(self._hosts)].address, 5)
        try:
            client.send(connect(5, self.client_id, clean=False, properties={"session_expiry_interval": 600}))
            if client.expect("CONNACK").reason != 0:
                return False
            for _ in range(30):
                packet = client.read(3.0 if self._over.is_set() else 0.5)
                if packet.kind == "DISCONNECT":
                    return False
                client.ack("PUBACK", packet.packet_id)
                number = int(packet.payload)
                if number not in self.got:
                    self.got.append(number)
        except TimeoutError:
            return True
        except Closed:
            return False
        finally:
            client.close()
        return False


@pytest.mark.parametrize("hosts", [((1, 1, 1), "memory"), ((2, 2), "leveldb")], indirect=True, ids=str)
def test_nothing_is_lost_under_load(hosts: Hosts) -> None:
    """Clients roam and one publishes while a host is emptied and takes clients again, four times: everything comes to
    each of them, in order.
    """
    over = threading.Event()
    roamers = [Roamer(hosts, at, over) for at in range(8)]
    publisher = hosts[-1].client("publisher")
    for each in roamers:
        each.start()
    last = -1
    try:
        for turn in range(4):
            with command("drain", "--runtime-dir", hosts[0].runtime_dir, "--seconds", "20") as running:
                while running.poll() is None:
                    last += 1
                    assert publisher.publish("all", b"%d" % last, qos=1) == 0  # somebody wants it all the time
                assert running.stdout is not None
                assert running.returncode == 0, (turn, running.stdout.read())
            assert drain(hosts[0], "--end").status == 0
    finally:
        over.set()
        for each in roamers:
            each.join()
    assert not [each.client_id for each in roamers if each.failed]
    drops = {name for host in hosts for row in host.rows() for name in row if name.startswith("dropped") and row[name]}
    assert drops <= {"dropped_session_ended"}  # which counts what a session that has moved had, too
    for each in roamers:
        missing = sorted(set(range(last + 1)) - set(each.got))
        assert not missing, (each.client_id, len(missing), missing[:3], missing[-3:])
        assert each.got == list(range(last + 1)), each.client_id

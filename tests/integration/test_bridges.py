"""Bridges to other brokers: what crosses, what waits, and what happens when either side ends."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker_process import KIND, BrokerProcess
from tests.cut_connections import CutConnections
from tests.integration.test_admin import ids_on, report, totals
from tests.loadtest.mosquitto import PASSWORD, PROGRAM, USER, Mosquitto
from tests.waiting import let_pass, wait_until
from tests.wire import Client, connect, packet
from tests.wire import publish as wire_publish

pytestmark = pytest.mark.skipif(KIND == "mosquitto", reason="bridges are mqttd's own")

SECONDS = 60.0
NO_LOCAL = 0x04

Start = Callable[..., BrokerProcess]
Dial = Callable[..., Client]


def tables(address: str, topics: str, name: str = "there", **settings: Any) -> str:
    """Return the configuration of a bridge. topics: inline tables."""
    lines = [f"[bridges.{name}]", f'address = "{address}"']
    lines += [f"{key} = {value if isinstance(value, int) else repr(value)}" for key, value in settings.items()]
    return "\n".join([*lines, f"topic = [{topics}]", ""]).replace("True", "true")


@pytest.fixture
def start(own_broker: Start, tmp_path: Path) -> Start:
    """``start(tables, workers, store)``: a broker with these bridges."""
    numbers = itertools.count()

    def started(text: str = "", workers: int = 1, store: str = "memory") -> BrokerProcess:
        file = tmp_path / f"mqttd{next(numbers)}.toml"
        file.write_text(text)
        flags = ["--config", str(file), "--log-format", "json", "--admin", "127.0.0.1:0"]
        return own_broker(workers, flags, store=store)

    return started


@pytest.fixture
def dial() -> Iterator[Dial]:
    """``dial(address, client_id, **options)``: return a client that is connected; closed with the test."""
    opened: list[Client] = []

    def dialled(address: tuple[str, int], client_id: str, version: int = 5, **options: Any) -> Client:
        opened.append(Client(address, version))
        opened[-1].connect(client_id, **options)
        return opened[-1]

    yield dialled
    for each in opened:
        each.close()


def url(broker: BrokerProcess) -> str:
    return f"mqtt://127.0.0.1:{broker.port}"


def states(broker: BrokerProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = report(broker, "/api/v1/bridges")["bridges"]
    return found


def wait_for_bridges(broker: BrokerProcess) -> None:
    wait_until(lambda: all(each.get("is_connected") for each in states(broker)), SECONDS, "the bridges are connected")


def received(client: Client, count: int, qos: int = 1) -> list[bytes]:
    """Take so many messages of one QoS; return their payloads."""
    payloads = []
    for _ in range(count):
        got = client.await_packet("PUBLISH")
        if qos:
            client.ack("PUBACK" if got.qos == 1 else "PUBREC", got.packet_id)
        if got.qos == 2:
            client.await_packet("PUBREL", got.packet_id)
            client.ack("PUBCOMP", got.packet_id)
        payloads.append(got.payload)
    return payloads


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_messages_cross_both_ways(start: Start, dial: Dial, version: str, workers: int) -> None:
    there = start(workers=workers)
    topics = (
        "{pattern = 'up/#', qos = 2, local_prefix = 'here/', remote_prefix = 'site/1/'},"
        "{pattern = 'down/+', direction = 'in', qos = 2, remote_prefix = 'site/1/'},"
        "{pattern = 'all/#', direction = 'both', qos = 1}"
    )
    here = start(tables(url(there), topics, version=version), workers)
    wait_for_bridges(here)
    local, remote = dial(here.address, "local"), dial(there.address, "remote")
    remote.subscribe(("site/1/up/#", 2 | NO_LOCAL), ("all/#", 2 | NO_LOCAL))
    local.subscribe(("down/+", 2 | NO_LOCAL), ("all/#", 2 | NO_LOCAL))
    for qos in (0, 1, 2):
        properties = {"content_type": "text", "user_property": [("a", "b")]}
        local.publish("here/up/x", b"out", qos=qos, properties=properties)
        got = remote.receive("site/1/up/x", b"out", qos=qos)
        assert got.properties == (properties if version == "5" else {})
        remote.publish("site/1/down/x", b"in", qos=qos)
        local.receive("down/x", b"in", qos=qos)
        for one, other in ((local, remote), (remote, local)):
            one.publish("all/x", b"all", qos=qos)
            other.receive("all/x", b"all", qos=min(qos, 1))
            if version == "3.1.1" and one is local:  # the other broker, mqttd, sends back what it gets
                local.receive("all/x", b"all", qos=min(qos, 1))
    local.publish("up/x", b"not bridged", qos=1)
    comes_back = 3 if version == "3.1.1" else 0
    for client in (local, remote):
        client.expect_silence()  # nothing else came back
    (state,) = states(here)
    assert (state["messages_out"], state["messages_in"] - comes_back, state["refused"]) == (6, 6, 0)
    wait_until(lambda: totals(here)["mqttd_bridge_messages_out_total"] == 6, SECONDS, "the metrics say so")
    assert totals(here)["mqttd_bridges_connected"] == 1


def test_retained_messages_cross_with_each_connection(start: Start, dial: Dial) -> None:
    there = start(store="leveldb")
    here = start(tables(url(there), "{pattern = '#', direction = 'both'}"))
    wait_for_bridges(here)
    local = dial(here.address, "local")
    local.publish("out", b"1", qos=1, retain=True)
    remote = dial(there.address, "remote")
    remote.publish("in", b"2", qos=1, retain=True)
    wait_until(lambda: states(here)[0]["messages_in"] == 1, SECONDS, "the message of the other broker came")
    wait_until(lambda: states(here)[0]["messages_out"] == 1, SECONDS, "the message of this broker went")
    late = dial(here.address, "late")
    late.subscribe("in", qos=1)
    late.receive("in", b"2", retain=True)
    there.kill()
    local.publish("out", b"3", qos=0, retain=True)  # nothing queues it
    there.start()
    wait_for_bridges(here)
    late = dial(there.address, "late")
    late.subscribe("out", qos=1)
    wait_until(lambda: late.await_packet("PUBLISH").payload == b"3", SECONDS, "it is there all the same")


@pytest.mark.parametrize("ends", ["there", "here"])
def test_messages_wait_while_the_other_broker_is_away(start: Start, dial: Dial, ends: str, workers: int) -> None:
    """Also over a SIGKILL of this one."""
    there = start(workers=workers, store="leveldb")
    here = start(tables(url(there), "{pattern = 'a/#', qos = 1}", reconnect_seconds_max=2), workers, "leveldb")
    wait_for_bridges(here)
    remote = dial(there.address, "remote", clean=False, properties={"session_expiry_interval": 600})
    remote.subscribe("a/#", qos=1)
    there.kill()
    local = dial(here.address, "local")
    expected = [b"%d" % number for number in range(300)]
    for payload in expected:
        assert local.publish("a/b", payload, qos=1) == 0
    if ends == "here":
        here.kill()
        here.start()
    there.start()
    remote = dial(there.address, "remote", clean=False, properties={"session_expiry_interval": 600})
    assert received(remote, 300) == expected
    wait_until(lambda: [each["waiting"] for each in states(here)] == [0], SECONDS, "nothing waits any more")


def test_messages_are_queued_from_the_beginning(start: Start, dial: Dial) -> None:
    """Also before the other broker was there for the first time."""
    there = start(store="leveldb")
    there.kill()
    here = start(tables(url(there), "{pattern = 'a'}", reconnect_seconds_max=1))
    wait_until(lambda: states(here)[0]["waiting"] == 0 and states(here)[0]["reason"], SECONDS, "it was tried once")
    local = dial(here.address, "local")
    local.publish("a", b"1", qos=1)
    wait_until(lambda: states(here)[0]["waiting"] == 1, SECONDS, "it waits")
    there.start()
    remote = dial(there.address, "remote")
    remote.subscribe("a", qos=1)
    wait_for_bridges(here)
    wait_until(lambda: states(here)[0]["messages_out"] == 1, SECONDS, "it has gone")


@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.parametrize("qos", [1, 2])
def test_connections_that_are_cut_lose_nothing(start: Start, dial: Dial, qos: int, version: str) -> None:
    """QoS 2 exactly once, both ways."""
    there = start(store="leveldb")
    chance = random.Random(qos)
    with CutConnections(there.address) as cuts:
        topics = f"{{pattern = 'out/#', qos = {qos}}}, {{pattern = 'in/#', direction = 'in', qos = {qos}}}"
        address = f"mqtt://127.0.0.1:{cuts.port}"
        here = start(tables(address, topics, reconnect_seconds_max=1, version=version), store="leveldb")
        wait_for_bridges(here)
        ways = [(here, there, "out/x"), (there, here, "in/x")]
        senders = [dial(a.address, f"s-{topic}") for a, _, topic in ways]
        takers = [dial(b.address, f"t-{topic}") for _, b, topic in ways]
        for taker, (_, _, topic) in zip(takers, ways, strict=True):
            taker.subscribe(topic, qos=2)
        expected = [b"%d" % number for number in range(150)]
        for number, payload in enumerate(expected):
            for sender, (_, _, topic) in zip(senders, ways, strict=True):
                assert sender.publish(topic, payload, qos=qos) == 0
            if number % 15 == 0:
                cuts.cut(after_bytes=chance.randrange(400))
        for taker in takers:
            got: list[bytes] = []
            while set(got) != set(expected):
                got += received(taker, 1, qos)
            if qos == 2:
                assert got == expected
                taker.expect_silence()


def test_two_brokers_that_bridge_each_other_do_not_multiply_messages(start: Start, dial: Dial) -> None:
    there = start()
    here = start(tables(url(there), "{pattern = '#', direction = 'both'}"))
    third = start(tables(url(here), "{pattern = '#', direction = 'both'}"))
    for each in (here, third):
        wait_for_bridges(each)
    clients = [dial(each.address, f"c{number}") for number, each in enumerate((there, here, third))]
    for client in clients:
        client.subscribe("t/#", qos=1)
    for number, client in enumerate(clients):
        client.publish(f"t/{number}", b"x", qos=1)
        for other in clients:
            other.kept, kept = [], other.kept
            other.kept = kept
            got = other.await_packet("PUBLISH")
            other.ack("PUBACK", got.packet_id)
            assert got.topic == f"t/{number}"
    for client in clients:
        client.expect_silence()


@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.parametrize("scheme", ["mqtt", "mqtts"])
def test_mosquitto_is_the_other_broker(start: Start, dial: Dial, tmp_path: Path, scheme: str, version: str) -> None:
    directory = tmp_path / "mosquitto"
    directory.mkdir()
    with Mosquitto(directory) as mosquitto:
        access: dict[str, Any] = {}
        address = mosquitto.url("mqtt")
        if scheme == "mqtts":
            address = mosquitto.url_with_certificate
            access = {
                "ca_file": str(directory / "ca.pem"),
                "certificate": str(directory / "client.pem"),
                "key": str(directory / "client.key"),
            }
        topics = "{pattern = 'b/#', direction = 'both', qos = 2, remote_prefix = 'm/'}"
        here = start(tables(address, topics, version=version, **access))
        wait_for_bridges(here)
        port = int(mosquitto.url("mqtt").rpartition(":")[2])
        local, remote = dial(here.address, "local"), dial(("127.0.0.1", port), "remote")
        local.subscribe(("b/#", 2 | NO_LOCAL))
        remote.subscribe(("m/b/#", 2 | NO_LOCAL))
        for qos in (0, 1, 2):
            for number in range(20):
                payload = b"%d" % number
                local.publish("b/x", payload, qos=qos)
                remote.receive("m/b/x", payload, qos=qos)
                remote.publish("m/b/y", payload, qos=qos)
                local.receive("b/y", payload, qos=qos)
        local.expect_silence()
        remote.expect_silence()
        assert states(here)[0]["refused"] == 0


def test_wrong_access_is_said_and_tried_again(start: Start, tmp_path: Path) -> None:
    directory = tmp_path / "mosquitto"
    directory.mkdir()
    password = tmp_path / "password"
    password.write_text("wrong\n")
    with Mosquitto(directory) as mosquitto:
        topics = "{pattern = 'a'}"
        text = tables(mosquitto.url_with_password, topics, username=USER, password_file=str(password))
        text += tables(mosquitto.url("mqtts"), topics, "unknown_authority")
        text += tables(mosquitto.url_with_certificate, topics, "no_certificate", ca_file=str(directory / "ca.pem"))
        text += tables("mqtt://127.0.0.1:1", topics, "nobody")
        here = start(text, 2)

        def reasons() -> dict[str, str]:
            return {each["bridge"]: each["reason"] for each in states(here)}

        wait_until(lambda: all(reasons().values()), SECONDS, "each was tried")
        assert "bad user name or password" in reasons()["there"] or "not authorized" in reasons()["there"]
        assert "certificate verify failed" in reasons()["unknown_authority"].lower()
        assert reasons()["no_certificate"]
        assert "refused" in reasons()["nobody"].lower() or "111" in reasons()["nobody"]
        password.write_text(PASSWORD + "\n")
        wait_until(
            lambda: [each["is_connected"] for each in states(here) if each["bridge"] == "there"] == [True],
            SECONDS,
            "the password is read again",
        )
    assert {line["bridge"] for line in here.logged("bridge_disconnected")} >= set(reasons())


def test_connections_share_the_tables_of_topics(start: Start, dial: Dial) -> None:
    there = start(workers=2)
    topics = ",".join(f"{{pattern = 't{number}/#'}}" for number in range(5))
    here = start(tables(url(there), topics, connections=4), 4)
    wait_for_bridges(here)
    assert sorted(each["connection"] for each in states(here)) == [0, 1, 2, 3]
    remote = dial(there.address, "remote")
    remote.subscribe("#", qos=1)
    local = dial(here.address, "local")
    for number in range(100):
        for table in range(5):
            local.publish(f"t{table}/x", b"%d" % number, qos=1)
    got: dict[str, list[bytes]] = {}
    for _ in range(500):
        packet = remote.await_packet("PUBLISH")
        remote.ack("PUBACK", packet.packet_id)
        got.setdefault(packet.topic, []).append(packet.payload)
    assert got == {f"t{table}/x": [b"%d" % number for number in range(100)] for table in range(5)}


def test_no_client_has_the_client_id_of_a_bridge(start: Start) -> None:
    here = start(tables("mqtt://127.0.0.1:1", "{pattern = 'a'}"))
    for client_id in ("$bridge/there/0", "$bridge/other"):
        client = Client(here.address, 5)
        with contextlib.closing(client):
            client.send(connect(5, client_id))
            client.expect_refused(0x85)


def test_the_session_of_a_bridge_that_is_no_more_ends(start: Start, dial: Dial, tmp_path: Path) -> None:
    there = start()
    there.kill()
    here = start(tables(url(there), "{pattern = 'a'}") + tables(url(there), "{pattern = 'b'}", "left"), store="leveldb")
    local = dial(here.address, "local")

    def waiting() -> dict[str, int]:
        return {each["bridge"]: each["waiting"] for each in states(here)}

    wait_until(lambda: all(each["reason"] for each in states(here)), SECONDS, "each was tried")
    for topic in ("a", "b"):
        local.publish(topic, b"", qos=1)
    wait_until(lambda: waiting() == {"there": 1, "left": 1}, SECONDS, "both wait")
    (tmp_path / "mqttd1.toml").write_text(tables(url(there), "{pattern = 'a'}"))
    here.restart()
    wait_until(lambda: waiting() == {"there": 1}, SECONDS, "one is configured")
    wait_until(lambda: len(here.logged("bridge_session_ended")) == 1, SECONDS, "the other one has ended")
    line = here.logged("bridge_session_ended")[0]
    assert (line["client"], line["messages"]) == ("$bridge/left/0", 1)


def test_a_table_that_is_no_more(start: Start, dial: Dial, tmp_path: Path) -> None:
    """What goes out is not queued any more, what comes in is refused and counted."""
    there = start(store="leveldb")
    both = "{pattern = 'old', direction = 'both'}, {pattern = 'new', direction = 'both'}"
    here = start(tables(url(there), both), store="leveldb")
    wait_for_bridges(here)
    (tmp_path / "mqttd1.toml").write_text(tables(url(there), "{pattern = 'new', direction = 'both'}"))
    here.restart()
    wait_for_bridges(here)
    local, remote = dial(here.address, "local"), dial(there.address, "remote")
    for client in (local, remote):
        for topic in ("old", "new"):
            client.publish(topic, b"", qos=1)
    wait_until(lambda: states(here)[0]["messages_in"] == states(here)[0]["messages_out"] == 1, SECONDS, "one crosses")
    wait_until(lambda: states(here)[0]["refused"] == 1, SECONDS, "the other one is refused")


def test_a_killed_worker_starts_its_bridges_again(start: Start, dial: Dial) -> None:
    there = start()
    here = start(tables(url(there), "{pattern = 'a/#'}", connections=1), 2, "leveldb")
    wait_for_bridges(here)
    worker = states(here)[0]["worker"]
    remote = dial(there.address, "remote")
    remote.subscribe("a/#", qos=1)
    os.kill(here.worker_pids()[worker], signal.SIGKILL)
    local = dial(here.address, ids_on(1 - worker, 2))
    local.publish("a/b", b"1", qos=1)
    assert received(remote, 1) == [b"1"]


@pytest.mark.parametrize("version", ["mqttv311", "mqttv50"])
def test_a_bridge_of_mosquitto(start: Start, dial: Dial, tmp_path: Path, version: str, workers: int) -> None:
    """With mosquitto's defaults, which say in $SYS whether it is connected."""
    here = start(workers=workers)
    with socket.create_server(("127.0.0.1", 0)) as held:
        port: int = held.getsockname()[1]
    file = tmp_path / "mosquitto.conf"
    file.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nconnection edge\naddress 127.0.0.1:{here.port}\n"
        f"bridge_protocol_version {version}\ntopic out/# out 2\ntopic in/# in 2\nrestart_timeout 1\n"
    )
    state = f"$SYS/broker/connection/{socket.gethostname()}.edge/state"
    watcher = dial(here.address, "watcher")
    watcher.subscribe("$SYS/broker/connection/#", qos=1)
    with subprocess.Popen([PROGRAM, "-c", str(file)], stderr=subprocess.DEVNULL) as mosquitto:
        watcher.receive(state, b"1")
        late = dial(here.address, "late")
        late.subscribe(state, qos=1)
        late.receive(state, b"1", retain=True)
        local, edge = dial(here.address, "local"), dial(("127.0.0.1", port), "edge")
        local.subscribe("out/#", qos=2)
        edge.subscribe("in/#", qos=2)
        for qos in (0, 1, 2):
            edge.publish("out/x", b"out", qos=qos)
            local.receive("out/x", b"out", qos=qos)
            local.publish("in/x", b"in", qos=qos)
            edge.receive("in/x", b"in", qos=qos)
        mosquitto.kill()
    watcher.receive(state, b"0")


def test_many_messages_for_nobody(start: Start, dial: Dial, workers: int) -> None:
    """What a server says of them, a client may not say [MQTT 5, 3.4.2.1]."""
    there = start(workers=workers)
    here = start(tables(url(there), "{pattern = 'out', qos = 2}, {pattern = 'in', direction = 'in', qos = 2}"), workers)
    wait_for_bridges(here)
    clients = [(dial(broker.address, "publisher"), topic) for broker, topic in ((here, "out"), (there, "in"))]

    def crossed() -> tuple[int, int]:
        (state,) = states(here)
        return state["messages_out"], state["messages_in"]

    for qos in (0, 1, 2):
        for client, topic in clients:
            for _ in range(300):
                client.publish(topic, b"x", qos=qos)
        expected = 300 * (qos + 1)
        wait_until(lambda: crossed() == (expected, expected), SECONDS, "all have crossed")  # noqa: B023
        (state,) = states(here)
        assert (state["connects"], state["refused"]) == (1, 0)
        wait_until(lambda: states(here)[0]["waiting"] == 0, SECONDS, "nothing waits")


def test_a_stalled_broker_holds_back_what_it_does_not_take(start: Start, dial: Dial) -> None:
    """Its bridge queues; clients here are served, and everything arrives when it goes on."""
    there = start(store="leveldb")
    here = start(tables(url(there), "{pattern = 'a/#', qos = 1}", keep_alive_seconds=600))
    wait_for_bridges(here)
    remote = dial(there.address, "remote")
    remote.subscribe("a/#", qos=1)
    processes = there.processes()
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    local = dial(here.address, "local")
    expected = [b"%d" % number + bytes(2000) for number in range(2000)]
    for payload in expected:
        assert local.publish("a/b", payload, qos=1) == 0
    for pid in processes:
        os.kill(pid, signal.SIGCONT)
    assert received(remote, 2000) == expected


@contextlib.contextmanager
def mosquitto_with(tmp_path: Path, port: int, *lines: str) -> Iterator[None]:
    """Run a mosquitto with its defaults, but for these lines."""
    file = tmp_path / "mosquitto.conf"
    file.write_text("\n".join([f"listener {port} 127.0.0.1", "allow_anonymous true", *lines, ""]))
    process = subprocess.Popen([PROGRAM, "-c", str(file)], stderr=subprocess.DEVNULL)
    try:

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        wait_until(listens, SECONDS, "mosquitto listens")
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port: int = held.getsockname()[1]
    return port


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_a_queue_of_qos_2_for_a_broker_that_takes_few_at_a_time(
    start: Start, dial: Dial, tmp_path: Path, free_port: int, version: str
) -> None:
    """mosquitto takes 20 by default, which before MQTT 5 it does not say."""
    here = start(tables(f"mqtt://127.0.0.1:{free_port}", "{pattern = 'a/#', qos = 2}", version=version))
    wait_until(lambda: states(here)[0]["reason"], SECONDS, "it was tried")
    local = dial(here.address, "local")
    expected = [b"%d" % number for number in range(100)]
    for payload in expected:
        local.publish("a/b", payload, qos=2)
    with mosquitto_with(tmp_path, free_port):
        remote = dial(("127.0.0.1", free_port), "remote")
        remote.subscribe("a/#", qos=2)
        assert received(remote, 100) == expected
        wait_until(lambda: states(here)[0]["waiting"] == 0, SECONDS, "nothing waits")
        assert states(here)[0]["refused"] == 0


@pytest.mark.parametrize("qos_max", [0, 1])
def test_a_queue_for_a_broker_that_takes_a_lower_qos(
    start: Start, dial: Dial, tmp_path: Path, free_port: int, qos_max: int
) -> None:
    here = start(tables(f"mqtt://127.0.0.1:{free_port}", "{pattern = 'a/#', qos = 2}", reconnect_seconds_max=1))
    wait_until(lambda: states(here)[0]["reason"], SECONDS, "it was tried")
    local = dial(here.address, "local")
    for qos in (1, 2):
        for number in range(20):
            local.publish("a/b", b"%d" % number, qos=qos)
    with mosquitto_with(tmp_path, free_port, f"max_qos {qos_max}"):
        wait_until(lambda: states(here)[0]["messages_out"] == 40, SECONDS, "all have crossed")
        wait_until(lambda: states(here)[0]["waiting"] == 0, SECONDS, "nothing waits")
        (state,) = states(here)
        assert (state["connects"], state["refused"]) == (1, 0)


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_a_message_that_the_other_broker_does_not_stand_is_given_up(
    start: Start, dial: Dial, tmp_path: Path, free_port: int, version: str
) -> None:
    """It ends the connection for each topic with a control character. All others would wait behind it for ever."""
    topics = "{pattern = 'a/#'}"
    here = start(tables(f"mqtt://127.0.0.1:{free_port}", topics, version=version, reconnect_seconds_max=1))
    wait_until(lambda: states(here)[0]["reason"], SECONDS, "it was tried")
    local = dial(here.address, "local")
    for number in range(10):
        local.publish(f"a/{number}", b"", qos=1)
        if number == 5:
            local.publish("a/\x01", b"", qos=1)
    with mosquitto_with(tmp_path, free_port):
        remote = dial(("127.0.0.1", free_port), "remote")
        remote.subscribe("a/#", qos=1)
        wait_until(lambda: states(here)[0]["refused"] == 1, SECONDS, "it was given up")
        assert len(here.logged("bridge_message_refused")) == 1
        got: set[str] = set()
        while len(got) < 10:
            packet = remote.await_packet("PUBLISH")
            remote.ack("PUBACK", packet.packet_id)
            got.add(packet.topic)
        assert got == {f"a/{number}" for number in range(10)}


def test_what_waits_for_a_bridge_neither_expires_nor_makes_room(start: Start, dial: Dial) -> None:
    limits = "[limits]\nsession_expiry_seconds_max = 1\nsession_expiry_seconds_default_v3 = 1\nsessions_max = 3\n"
    here = start(tables("mqtt://127.0.0.1:1", "{pattern = 'a'}") + limits)
    wait_until(lambda: states(here)[0]["reason"], SECONDS, "it was tried")
    local = dial(here.address, "local")
    local.publish("a", b"", qos=1)
    former = dial(here.address, "former", properties={"session_expiry_interval": 600})
    former.close()
    wait_until(lambda: totals(here)["mqttd_sessions_expired_total"] == 1, SECONDS, "another session has expired")
    dial(here.address, "other")
    assert states(here)[0]["waiting"] == 1


class Says:
    """A broker that answers each CONNECT with what a test wants it to say, and then reads nothing more."""

    def __init__(self, said: bytes) -> None:
        self._said = said
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._connections: list[socket.socket] = []

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                came, _ = self._listening.accept()
                self._connections.append(came)
                with contextlib.suppress(OSError):
                    came.recv(65536)
                    came.sendall(self._said)

    def __enter__(self) -> Says:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for each in self._connections:
            each.close()
        self._thread.join()


CONNACK = packet("CONNACK", 0, b"\0\0", b"\0")
UNMAPPED = wire_publish(5, "unmapped", b"", qos=1, packet_id=1)


BAD = {
    "refuses": (b"\x20\x03\x00\x87\x00", "the other broker refuses it: 0x87 not authorized"),
    "stalls": (b"\x20\x09\x00", "the other broker does not answer within 10 s"),
    "http": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the other broker does not answer within 10 s"),
    "huge": (CONNACK + b"\x90\xff\xff\xff\x7f", "it has sent what is not MQTT: a packet of 268435460 bytes"),
    "answers": (CONNACK + b"\xd0\x00" * 1000, "it has sent what is not MQTT"),
    "auth": (CONNACK + b"\xf0\x02\x18\x00", "it has sent what is not MQTT"),
    "ends": (CONNACK + b"\xe0\x01\x8b", "it has ended the connection: reason 0x8b"),
    "flood": (CONNACK + UNMAPPED * 400_000, "it does not take the answers to what it sends"),
}
"""What brokers say, and what their bridges say of that."""


def test_brokers_that_behave_badly(start: Start, dial: Dial) -> None:
    """Their bridges say so and try again; clients here are served."""
    with contextlib.ExitStack() as they:
        text = ""
        for name, (said, _) in BAD.items():
            there = they.enter_context(Says(said))
            topics = "{pattern = 'in', direction = 'in'}, {pattern = 'out'}"
            text += tables(f"mqtt://127.0.0.1:{there.port}", topics, name, reconnect_seconds_max=1)
        here = start(text)
        local = dial(here.address, "local")
        local.publish("out", b"", qos=1)
        local.subscribe("x", qos=1)

        def is_said() -> bool:
            local.publish("x", b"", qos=1)
            local.receive("x", b"")
            reasons = {each["bridge"]: each["reason"] for each in states(here)}
            return all(reasons[name].startswith(reason[:100]) for name, (_, reason) in BAD.items())

        wait_until(is_said, SECONDS, "each says what is bad")
        assert here.stop() == 0
    here.assert_sound()
    assert not here.logged("internal_error")


@pytest.mark.parametrize("seconds", [0, 0.01, 0.1])
def test_a_stop_at_any_moment(start: Start, seconds: float) -> None:
    there = start()
    here = start(
        tables(url(there), "{pattern = 'a'}", connections=1) + tables("mqtt://127.0.0.1:1", "{pattern = 'b'}", "b")
    )
    let_pass(seconds)
    assert here.stop() == 0
    assert not here.logged("internal_error")
    here.assert_sound()

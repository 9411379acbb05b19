"""$SYS/broker/...: the topics of mosquitto, summed over the workers, only for clients that subscribe to them."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shards.placement import home
from tests import wire
from tests.broker_process import BrokerProcess
from tests.wire import Client, Closed

pytestmark = pytest.mark.mosquitto_differs("has its own version and heap in it, and its own interval")

SECONDS_MAX = 60.0
NOT_AUTHORIZED, BAD_CREDENTIALS_V3 = 0x87, 5
RETAIN_AS_PUBLISHED, NEVER_RETAINED = 0x08, 0x20

#: topics that mosquitto 2.0.11 publishes, without its heap
LOADS = ("messages/received", "messages/sent", "publish/dropped", "publish/received", "publish/sent", "bytes/received",
         "bytes/sent", "sockets", "connections")  # fmt: skip
TOPICS = {
    "version", "uptime", "clients/total", "clients/connected", "clients/active", "clients/disconnected",
    "clients/inactive", "clients/maximum", "clients/expired", "messages/received", "messages/sent", "messages/stored",
    "store/messages/count", "store/messages/bytes", "publish/messages/received", "publish/messages/sent",
    "publish/messages/dropped", "publish/bytes/received", "publish/bytes/sent", "bytes/received", "bytes/sent",
    "retained messages/count", "subscriptions/count", "shared_subscriptions/count",
    *(f"load/{load}/{window}" for load in LOADS for window in ("1min", "5min", "15min")),
}  # fmt: skip

Own = Callable[..., BrokerProcess]
Open = Callable[..., Client]


EVERY_SECOND = {"MQTTD_SYS_INTERVAL_SECONDS": "1"}


@pytest.fixture(scope="module")
def sys_brokers() -> Iterator[dict[int, BrokerProcess]]:
    """Brokers that publish $SYS every second, by number of workers."""
    running: dict[int, BrokerProcess] = {}
    yield running
    for broker in running.values():
        assert broker.stop() == 0
        broker.forget()


@pytest.fixture
def sys_broker(sys_brokers: dict[int, BrokerProcess], workers: int) -> BrokerProcess:
    """A broker that publishes $SYS every second, with this number of workers."""
    if workers not in sys_brokers:
        sys_brokers[workers] = BrokerProcess(workers, [], EVERY_SECOND).start()
    return sys_brokers[workers]


@pytest.fixture
def opened() -> Iterator[Callable[[BrokerProcess, int, str], Client]]:
    """``opened(broker, version, client_id)``: a client with its CONNACK, closed at the end."""
    clients: list[Client] = []

    def open_one(broker: BrokerProcess, version: int, client_id: str, **options: Any) -> Client:
        clients.append(Client(broker.address, version))
        clients[-1].connect(client_id, **options)
        return clients[-1]

    yield open_one
    for client in clients:
        client.close()


def ids_of_all_workers(workers: int, prefix: str) -> list[str]:
    """Return one client id for each worker."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < workers:
        client_id = f"{prefix}{number}"
        found.setdefault(home(client_id, workers), client_id)
        number += 1
    return [found[worker] for worker in range(workers)]


def until(client: Client, done: Callable[[dict[str, str]], object]) -> dict[str, str]:
    """Read until the values are as wanted; return the newest ones by name below $SYS/broker/."""
    values: dict[str, str] = {}
    while not done(values):
        got = client.read(SECONDS_MAX)
        assert (got.kind, got.qos) == ("PUBLISH", 0), got
        assert got.topic.startswith("$SYS/broker/"), got.topic
        values[got.topic.removeprefix("$SYS/broker/")] = got.payload.decode()
    return values


@pytest.mark.mqtt("311:3.3.1-6", "311:3.3.1-8", "5:3.3.1-9")
def test_a_new_subscriber_gets_all_at_once(sys_broker: BrokerProcess, opened: Open, any_version: int) -> None:
    """A new subscriber gets all topics of mosquitto, in its formats, as retained messages, each once, and at once."""
    client = opened(sys_broker, any_version, "c")
    client.subscribe("$SYS/#", qos=2)
    values: dict[str, str] = {}
    while values.keys() != TOPICS:
        got = client.expect("PUBLISH", qos=0, dup=False)
        name = got.topic.removeprefix("$SYS/broker/")
        assert name in TOPICS
        if got.retain:
            assert name not in values, "twice"
            values[name] = got.payload.decode()
    assert re.fullmatch(r"mqttd version \d+\.\d+\.\d+", values["version"])
    assert re.fullmatch(r"\d+ seconds", values["uptime"])
    for name in TOPICS - {"version", "uptime"}:
        assert re.fullmatch(r"\d+\.\d\d" if name.startswith("load/") else r"\d+", values[name]), (name, values[name])


@pytest.mark.mqtt("311:4.7.2-1", "5:4.7.2-1")
def test_leading_wildcards_do_not_match(sys_broker: BrokerProcess, opened: Open, version: int) -> None:
    """#, +/broker/# and +/+/uptime match neither retained nor new $SYS messages: two rounds pass without any."""
    clients = []
    for client_id in ids_of_all_workers(sys_broker.workers, "w"):
        clients.append(opened(sys_broker, version, client_id))
        clients[-1].subscribe("#", "+/broker/#", "+/+/uptime")
    watcher = opened(sys_broker, version, "watcher")
    watcher.subscribe(("$SYS/broker/uptime", 0))
    for _ in range(3):
        watcher.expect("PUBLISH", topic="$SYS/broker/uptime")
    for client in clients:
        client.expect_silence()


@pytest.mark.mqtt("311:3.3.1-9", "5:3.3.1-12", "5:3.3.1-13")
def test_updates_come_once_whatever_matches(sys_broker: BrokerProcess, opened: Open, version: int) -> None:
    """Uptime arrives each second, the same on every worker; overlapping filters get one copy; RETAIN as requested."""
    flags = RETAIN_AS_PUBLISHED | NEVER_RETAINED if version == 5 else 0
    clients = []
    for client_id in ids_of_all_workers(sys_broker.workers, "u"):
        clients.append(opened(sys_broker, version, client_id))
        clients[-1].subscribe(("$SYS/broker/uptime", flags), ("$SYS/broker/+", flags), ("$SYS/+/uptime", flags))
    for client in clients:
        uptimes: list[str] = []
        while len(uptimes) < 3:
            got = client.expect("PUBLISH")
            if got.topic == "$SYS/broker/uptime" and not (got.retain and version == 4):
                assert got.retain == (version == 5)
                uptimes.append(got.payload.decode())
        first = int(uptimes[0].split()[0])
        assert uptimes == [f"{first + second} seconds" for second in range(3)]


@pytest.mark.mqtt("5:3.3.1-11")
def test_retain_handling_2(sys_broker: BrokerProcess, opened: Open) -> None:
    """With Retain Handling 2 retained $SYS messages are not sent; new ones are."""
    client = opened(sys_broker, 5, "c")
    client.subscribe(("$SYS/broker/version", NEVER_RETAINED))
    client.expect_silence()


@pytest.mark.mqtt("311:3.3.1-5", "5:3.3.1-5")
def test_sums_are_what_clients_count(own_broker: Own, opened: Open, workers: int, version: int) -> None:
    """$SYS counts clients, subscriptions, retained messages, PUBLISHes and their bytes, of clients on every worker."""
    sys_broker = own_broker(workers, [], EVERY_SECOND)
    watcher = opened(sys_broker, version, "watcher")
    clients = [opened(sys_broker, version, each) for each in ids_of_all_workers(workers, "s")]
    options: dict[str, Any] = {"clean": False}
    if version == 5:
        options["properties"] = {"session_expiry_interval": 1000}
    opened(sys_broker, version, "away", **options).disconnect()
    for client in clients:
        client.subscribe("t/#", "$share/g/u/#", qos=0)
    for number in range(10):
        for client in clients:
            client.publish(f"t/{number % 3}", b"12345", qos=number % 3, retain=True)
    for client in clients:
        for _ in range(10 * workers):
            client.await_packet("PUBLISH")
    published, copies = 10 * workers, 10 * workers * workers
    watcher.subscribe("$SYS/#")
    wanted = {
        "clients/total": workers + 2, "clients/connected": workers + 1, "clients/active": workers + 1,
        "clients/disconnected": 1, "clients/inactive": 1, "clients/expired": 0,
        "subscriptions/count": workers + 1, "shared_subscriptions/count": workers, "retained messages/count": 3,
        "messages/stored": 3, "store/messages/count": 3, "publish/messages/received": published,
        "publish/bytes/received": 5 * published, "publish/messages/dropped": 0,
    }  # fmt: skip
    values = until(watcher, lambda values: {name: int(values.get(name, -1)) for name in wanted} == wanted)
    # Messages sent to the watcher itself count as sent, on the wire as in mosquitto.
    values |= until(watcher, lambda values: {"publish/messages/sent", "load/publish/received/1min"} <= values.keys())
    assert int(values["publish/messages/sent"]) >= copies
    assert int(values["publish/bytes/sent"]) >= 5 * copies
    assert int(values["clients/maximum"]) in (workers + 1, workers + 2)
    assert float(values["load/publish/received/1min"]) > float(values["load/publish/received/15min"]) > 0


@pytest.mark.mqtt("5:4.8.2-1")
def test_a_share_group_gets_each_update_once(sys_broker: BrokerProcess, opened: Open) -> None:
    """A share group with members on all workers gets each uptime exactly once."""
    members = [opened(sys_broker, 5, each) for each in ids_of_all_workers(sys_broker.workers, "m")]
    for member in members:
        member.subscribe("$share/g/$SYS/broker/uptime")
    watcher = opened(sys_broker, 5, "watcher")
    watcher.subscribe(("$SYS/broker/uptime", NEVER_RETAINED))
    uptimes = [watcher.expect("PUBLISH").payload for _ in range(4)]
    got: Counter[bytes] = Counter()
    for member in members:
        member.send(wire.PINGREQ)
        while (packet := member.read()).kind == "PUBLISH":
            got[packet.payload] += 1
    assert set(got.values()) == {1}
    assert set(got) >= set(uptimes[:3])


@pytest.mark.mqtt("311:3.3.5-2")
def test_nobody_writes_to_it(sys_broker: BrokerProcess, opened: Open, version: int) -> None:
    """Clients cannot change $SYS, by PUBLISH (v5 gets 0x87) or by a will: the retained messages stay."""
    client = opened(sys_broker, version, "c")
    told = client.publish("$SYS/broker/version", b"mine", qos=1, retain=True)
    assert told == (NOT_AUTHORIZED if version == 5 else 0)
    other = Client(sys_broker.address, version)
    other.send(wire.connect(version, "d", will=wire.Will("$SYS/broker/version", b"mine", retain=True)))
    other.expect_refused(NOT_AUTHORIZED if version == 5 else BAD_CREDENTIALS_V3)
    other.close()
    client.subscribe("$SYS/broker/version")
    assert client.expect("PUBLISH", retain=True).payload.startswith(b"mqttd version ")


@pytest.mark.mqtt("5:3.8.4-1")
def test_an_interval_of_0_turns_it_off_and_a_reload_on(
    own_broker: Own, opened: Open, workers: int, tmp_path: Path
) -> None:
    """With interval 0, subscriptions are granted and nothing is published, until SIGHUP sets the interval to 1."""
    config = tmp_path / "mqttd.toml"
    config.write_text("sys_interval_seconds = 0\n")
    broker = own_broker(workers, ["--config", str(config)])
    client = opened(broker, 5, "c")
    assert client.subscribe("$SYS/#") == (0,)
    client.expect_silence()
    config.write_text("sys_interval_seconds = 1\n")
    os.kill(broker.pid, signal.SIGHUP)
    until(client, lambda values: values.keys() == TOPICS)
    config.write_text("sys_interval_seconds = 0\n")
    os.kill(broker.pid, signal.SIGHUP)

    def silent() -> bool:
        try:
            client.read(2.5)
        except TimeoutError:
            return True
        except Closed:
            return False
        return False

    while not silent():
        continue
    client.unsubscribe("$SYS/#")
    client.subscribe("$SYS/#")
    client.expect_silence()

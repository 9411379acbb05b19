"""MQTT.js, v3.1.1 and v5: ordinary use, and the parts of MQTT 5 that it handles by itself."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker_process import ROOT, BrokerProcess
from tests.clients.mqttjs.driver import SECONDS_MAX, JsClient, JsError, MqttJs
from tests.waiting import let_pass, wait_until

Connect = Callable[..., JsClient]
Start = Callable[..., BrokerProcess]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqttJs]:
    """A Node process with MQTT.js."""
    running = MqttJs(tmp_path_factory.mktemp("mqttjs") / "node.log")
    yield running
    running.close()


@pytest.fixture
def node(process: MqttJs) -> Iterator[MqttJs]:
    """The process, without any client."""
    yield process
    process.forget()


@pytest.fixture(params=[4, 5], ids=["v3.1.1", "v5"])
def version(request: pytest.FixtureRequest) -> int:
    """The versions 3.1.1 and 5."""
    chosen: int = request.param
    return chosen


@pytest.fixture
def connect(broker: BrokerProcess, node: MqttJs, version: int) -> Connect:
    """``connect(client_id, **options)``: return a client that has its CONNACK."""

    def connect_one(client_id: str, **options: Any) -> JsClient:
        client = JsClient(node, broker, version, client_id, **options)
        client.next("connect")
        return client

    return connect_one


only_v5 = pytest.mark.parametrize("version", [5], ids=["v5"], indirect=True)


def durable(version: int, seconds: int = 60) -> dict[str, Any]:
    """Return the options of a lasting session."""
    return {"clean": False, **({"properties": {"sessionExpiryInterval": seconds}} if version == 5 else {})}


def test_publish_and_subscribe(connect: Connect, name: str) -> None:
    """For any published and granted QoS, messages arrive in order, at the lower of the two."""
    subscriber, publisher = connect(f"{name}s"), connect(f"{name}p")
    for granted in range(3):
        assert subscriber.subscribe(f"{name}/{granted}/+", granted)["granted"] == [granted]
    for published, granted in itertools.product(range(3), repeat=2):
        for number in range(10):
            publisher.publish(f"{name}/{granted}/{published}", b"%d" % number, published)
        got = [subscriber.message() for _ in range(10)]
        assert [message.payload for message in got] == [b"%d" % number for number in range(10)]
        assert {(message.topic, message.qos) for message in got} == {
            (f"{name}/{granted}/{published}", min(published, granted))
        }


def test_the_oldest_version(broker: BrokerProcess, node: MqttJs, name: str) -> None:
    """MQTT 3.1 (MQIsdp), beside a client of MQTT 5: each gets what the other publishes."""
    old = JsClient(node, broker, 3, f"{name}old", protocolId="MQIsdp")
    new = JsClient(node, broker, 5, f"{name}new")
    for client in (old, new):
        client.next("connect")
        client.subscribe(f"{name}/#", 2)
    old.publish(f"{name}/old", b"from 1999", 2)
    new.publish(f"{name}/new", b"from 2019", 2, properties={"userProperties": {"year": "2019"}})
    for client in (old, new):
        got = [client.message() for _ in range(2)]
        assert {message.payload for message in got} == {b"from 1999", b"from 2019"}


def test_large_and_empty_payloads(connect: Connect, name: str) -> None:
    """A payload of a megabyte and an empty one arrive unchanged."""
    client = connect(name)
    client.subscribe(name, 2)
    for payload in (bytes(range(256)) * 4096, b""):
        client.publish(name, payload, 2)
        assert client.message().payload == payload


def test_retained(connect: Connect, name: str) -> None:
    """A retained message is sent to later subscribers with the flag; an empty one clears it."""
    publisher = connect(f"{name}p")
    publisher.publish(f"{name}/kept", b"kept", 1, retain=True)
    subscriber = connect(f"{name}s")
    subscriber.subscribe(f"{name}/+", 1)
    got = subscriber.message()
    assert (got.payload, got.retain) == (b"kept", True)
    publisher.publish(f"{name}/kept", b"", 1, retain=True)
    assert subscriber.message().payload == b""
    late = connect(f"{name}l")
    late.subscribe(f"{name}/+", 1)
    publisher.publish(f"{name}/marker", b"live", 1)
    got = late.message()
    assert (got.payload, got.retain) == (b"live", False)


def test_will(connect: Connect, name: str) -> None:
    """The will of a client whose socket breaks is published; that of one that disconnects is not."""
    watcher = connect(f"{name}w")
    watcher.subscribe(f"{name}/will/+", 1)
    polite, broken = (
        connect(f"{name}{each}", reconnectPeriod=0, will={"topic": f"{name}/will/{each}", "payload": each, "qos": 1})
        for each in ("polite", "broken")
    )
    polite.end()
    broken.break_down()
    got = watcher.message()
    assert (got.topic, got.payload) == (f"{name}/will/broken", b"broken")


@only_v5
def test_will_delay(connect: Connect, name: str) -> None:
    """A delayed will is not published if the client returns in time, and is if it stays away."""
    watcher = connect(f"{name}w")
    watcher.subscribe(f"{name}/will/+", 1)
    options: dict[str, Any] = {"clean": False, "properties": {"sessionExpiryInterval": 100}, "reconnectPeriod": 0}
    will = {"qos": 1, "payload": "gone", "properties": {"willDelayInterval": 1, "contentType": "text/plain"}}
    returns = connect(f"{name}r", **options, will={**will, "topic": f"{name}/will/returns"})
    stays = connect(f"{name}s", **options, will={**will, "topic": f"{name}/will/stays"})
    for client in (returns, stays):
        client.break_down()
        client.next("close")
    returns.reconnect()
    returns.next("connect")
    got = watcher.message()
    assert (got.topic, got.properties["contentType"]) == (f"{name}/will/stays", "text/plain")


@pytest.mark.parametrize("qos", [1, 2])
def test_resumption(connect: Connect, name: str, version: int, qos: int) -> None:
    """A client that was away gets the messages published meanwhile, in order, without subscribing again."""
    first = connect(name, **durable(version))
    assert first.packet("connack")["sessionPresent"] is False
    first.subscribe(name, qos)
    first.end()
    publisher = connect(f"{name}p")
    for number in range(20):
        publisher.publish(name, b"%d" % number, qos)
    first.reconnect()
    assert first.packet("connack")["sessionPresent"] is True
    assert [first.message().payload for _ in range(20)] == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_broken_connection_loses_nothing(connect: Connect, name: str, version: int, qos: int) -> None:
    """Both sides lose their sockets again and again during the exchange; QoS 2 repeats nothing, QoS 1 loses nothing."""
    subscriber = connect(f"{name}s", **durable(version))
    subscriber.subscribe(name, qos)
    publisher = connect(f"{name}p", **durable(version))
    for number in range(60):
        if number % 10 == 5:
            publisher.break_down()
        if number % 10 == 9:
            subscriber.break_down()
        publisher.publish(name, b"%d" % number, qos)
    publisher.publish(name, b"end", qos)
    got: list[bytes] = []
    while not got or got[-1] != b"end":
        got.append(subscriber.message().payload)
    wanted = [b"%d" % number for number in range(60)] + [b"end"]
    assert (got if qos == 2 else list(dict.fromkeys(got))) == wanted
    assert len([event for event, _ in subscriber.history if event == "connect"]) > 1
    assert len([event for event, _ in publisher.history if event == "connect"]) > 1


def test_shared_subscription(connect: Connect, name: str) -> None:
    """Three members get each message once between them; messages of one that leaves are given to the others."""
    members = [connect(f"{name}m{number}") for number in range(3)]
    for member in members:
        member.subscribe(f"$share/g/{name}/#", 1)
    publisher = connect(f"{name}p")

    def received(numbers: range) -> list[tuple[int, int]]:
        return [
            (int(given[1]), number)
            for number, member in enumerate(members)
            for event, given in member.history
            if event == "message" and int(given[1]) in numbers
        ]

    def shared(numbers: range) -> list[int]:
        for number in numbers:
            publisher.publish(f"{name}/x", b"%d" % number, 1)
        wait_until(lambda: len(received(numbers)) >= len(numbers), SECONDS_MAX, f"{len(numbers)} messages")
        assert sorted(number for number, _ in received(numbers)) == list(numbers)
        return [member for _, member in received(numbers)]

    assert set(shared(range(30))) == {0, 1, 2}
    members[1].unsubscribeAsync(f"$share/g/{name}/#")
    assert set(shared(range(30, 60))) == {0, 2}


def test_keep_alive(connect: Connect, name: str) -> None:
    """PINGREQ is answered and the connection stays; a client that falls silent is closed and its will published."""
    watcher = connect(f"{name}w")
    watcher.subscribe(f"{name}/will", 0)
    client = connect(name, keepalive=1, will={"topic": f"{name}/will", "payload": "silent", "qos": 0})
    for _ in range(2):
        client.packet("pingresp")
    assert client.sent("pingreq")
    assert len([event for event, _ in client.history if event == "connect"]) == 1


def test_keep_alive_of_a_frozen_client(
    connect: Connect, broker: BrokerProcess, name: str, version: int, tmp_path: Path
) -> None:
    """A stopped process loses its connection after one and a half times its Keep Alive; its will is published."""
    watcher = connect(f"{name}w")
    watcher.subscribe(f"{name}/will", 0)
    frozen = MqttJs(tmp_path / "frozen.log")
    try:
        will = {"topic": f"{name}/will", "payload": "silent", "qos": 0}
        JsClient(frozen, broker, version, name, keepalive=1, will=will).next("connect")
        os.kill(frozen.process.pid, signal.SIGSTOP)
        assert watcher.message().payload == b"silent"
    finally:
        frozen.close()


def test_end(connect: Connect, name: str) -> None:
    """end() sends DISCONNECT and closes, after open handshakes are completed."""
    watcher = connect(f"{name}w")
    watcher.subscribe(name, 2)
    client = connect(name, reconnectPeriod=0)
    client.publish(name, b"last", 2)
    client.end()
    client.next("end")
    assert client.sent("disconnect")
    assert watcher.message().payload == b"last"


def test_take_over(connect: Connect, name: str, version: int) -> None:
    """A second client with the same client id takes the first one's session; in v5 the first gets the reason."""
    first = connect(name, reconnectPeriod=0)
    second = connect(f"{name}x", reconnectPeriod=0, clientId=name)
    if version == 5:
        assert first.packet("disconnect")["reasonCode"] == 0x8E
    first.next("close")
    second.subscribe(name)


@only_v5
def test_properties(connect: Connect, name: str) -> None:
    """Every property of a PUBLISH arrives unchanged; repeated User Properties in order."""
    subscriber, publisher = connect(f"{name}s"), connect(f"{name}p")
    subscriber.subscribe(name, 1)
    properties = {
        "payloadFormatIndicator": True,
        "contentType": "text/plain",
        "responseTopic": f"{name}/answers",
        "correlationData": b"\0\1\xff",
        "userProperties": {"z": "first", "a": ["1", "2", "1"], "\u00e4": "\u20ac"},
    }
    publisher.publish(name, b"text", 1, properties=properties)
    got = subscriber.message().properties
    assert got == properties
    assert list(got["userProperties"]) == ["z", "a", "\u00e4"]


@only_v5
def test_message_expiry(connect: Connect, name: str) -> None:
    """A queued message is delivered with the time it has left; an expired one is not."""
    subscriber = connect(name, **durable(5))
    subscriber.subscribe(name, 1)
    subscriber.end()
    publisher = connect(f"{name}p")
    publisher.publish(name, b"short", 1, properties={"messageExpiryInterval": 1})
    publisher.publish(name, b"long", 1, properties={"messageExpiryInterval": 100})
    let_pass(1.2)
    subscriber.reconnect()
    got = subscriber.message()
    assert got.payload == b"long"
    assert 90 <= got.properties["messageExpiryInterval"] < 100


@only_v5
def test_subscription_identifiers_and_options(connect: Connect, name: str) -> None:
    """Overlapping filters: all identifiers in one message; No Local, Retain As Published, Retain Handling."""
    publisher = connect(f"{name}p")
    publisher.publish(f"{name}/kept", b"kept", 1, retain=True)
    client = connect(name)
    client.subscribe(f"{name}/#", 1, rh=2, rap=True, properties={"subscriptionIdentifier": 7})
    client.subscribe(f"{name}/a", 1, properties={"subscriptionIdentifier": 300000})
    client.subscribe(f"{name}/mine", 1, nl=True)
    publisher.publish(f"{name}/a", b"both", 1)
    got = client.message()
    assert (got.payload, sorted(got.properties["subscriptionIdentifier"])) == (b"both", [7, 300000])
    publisher.publish(f"{name}/kept", b"newer", 1, retain=True)
    got = client.message()
    assert (got.payload, got.retain, got.properties["subscriptionIdentifier"]) == (b"newer", True, 7)
    client.unsubscribeAsync(f"{name}/#")
    client.publish(f"{name}/mine", b"own", 1)
    publisher.publish(f"{name}/mine", b"other", 1)
    assert client.message().payload == b"other"


@only_v5
def test_topic_aliases_to_the_broker(connect: Connect, name: str) -> None:
    """MQTT.js assigns aliases by itself and reuses them after as many topics as it may name."""
    publisher, subscriber = connect(f"{name}p", autoAssignTopicAlias=True), connect(f"{name}s")
    aliases: int = publisher.packet("connack")["properties"]["topicAliasMaximum"]
    assert aliases > 0
    subscriber.subscribe(f"{name}/#", 1)
    topics = [f"{name}/{number % (aliases + 3)}" for number in range(4 * aliases)] + [f"{name}/same"] * 3
    for topic in topics:
        publisher.publish(topic, topic.encode(), 1)
    got = [subscriber.message() for _ in topics]
    assert [message.topic for message in got] == topics
    assert [message.payload.decode() for message in got] == topics
    assert [packet["topic"] for packet in publisher.sent("publish")[-2:]] == ["", ""]


@only_v5
def test_topic_aliases_from_the_broker(connect: Connect, name: str) -> None:
    """The broker uses aliases for the topics of a client that allows it; the application sees the topics."""
    subscriber, publisher = connect(f"{name}s", properties={"topicAliasMaximum": 3}), connect(f"{name}p")
    subscriber.subscribe(f"{name}/#", 1)
    topics = [f"{name}/some/topic/{number % 5}" for number in range(100)]
    for number, topic in enumerate(topics):
        publisher.publish(topic, topic.encode(), number % 2)
    got = [subscriber.message() for _ in topics]
    assert sorted(message.topic for message in got) == sorted(topics)
    assert all(message.payload.decode() == message.topic for message in got)
    packets = [given[0] for event, given in subscriber.history if event == "packetreceive"]
    nameless = [each for each in packets if each["cmd"] == "publish" and not each["topic"]]
    assert {each["properties"]["topicAlias"] for each in nameless} <= {1, 2, 3}
    assert len(nameless) > 20


@only_v5
@pytest.mark.parametrize("qos", [1, 2])
def test_receive_maximum_of_the_client(connect: Connect, name: str, qos: int) -> None:
    """There are never more unacknowledged messages than the client allowed."""
    subscriber, publisher = connect(f"{name}s", properties={"receiveMaximum": 2}), connect(f"{name}p")
    subscriber.subscribe(name, qos)
    for number in range(60):
        publisher.publish(name, b"%d" % number, qos)
    assert [subscriber.message().payload for _ in range(60)] == [b"%d" % number for number in range(60)]
    open_now = most = 0
    for event, given in subscriber.history:
        if event == "packetreceive" and given[0]["cmd"] == "publish":
            open_now += 1
        elif event == "packetsend" and given[0]["cmd"] == ("puback" if qos == 1 else "pubcomp"):
            open_now -= 1
        most = max(most, open_now)
    assert 1 <= most <= 2


@only_v5
def test_receive_maximum_of_the_broker(connect: Connect, name: str) -> None:
    """The broker sends its own maximum; three hundred messages given to MQTT.js at once all arrive."""
    publisher, subscriber = connect(f"{name}p"), connect(f"{name}s")
    allowed = publisher.packet("connack")["properties"].get("receiveMaximum", 65535)
    assert allowed < 300
    subscriber.subscribe(name, 1)
    for number in range(300):
        publisher.begin_publish(name, b"%d" % number, 1)
    assert [subscriber.message().payload for _ in range(300)] == [b"%d" % number for number in range(300)]
    assert not [given for event, given in publisher.history if event in ("close", "error")]


@only_v5
def test_maximum_packet_size_of_the_client(connect: Connect, name: str) -> None:
    """A message larger than the client accepts is not sent to it; the next one is."""
    subscriber, publisher = connect(f"{name}s", properties={"maximumPacketSize": 100}), connect(f"{name}p")
    subscriber.subscribe(name, 1)
    publisher.publish(name, b"x" * 100, 1)
    publisher.publish(name, b"small", 1)
    assert subscriber.message().payload == b"small"


@only_v5
def test_reason_codes(connect: Connect, name: str) -> None:
    """No matching subscribers, no subscription existed, not authorized: each packet has its reason code."""
    client = connect(name)
    client.publish(name, b"nobody", 1)
    assert client.packet("puback")["reasonCode"] == 0x10
    client.publish(name, b"nobody", 2)
    assert client.packet("pubrec")["reasonCode"] == 0x10
    client.unsubscribeAsync(f"{name}/never")
    assert client.packet("unsuback")["granted"] == [0x11]
    with pytest.raises(JsError):
        client.subscribe("$share/g+/wrong", 1)


def test_connack_of_a_nameless_client(broker: BrokerProcess, node: MqttJs) -> None:
    """The broker assigns a Client Identifier and names its capabilities."""
    client = JsClient(node, broker, 5, "", properties={"sessionExpiryInterval": 0xFFFFFFFF})
    connack = client.packet("connack")
    properties = connack["properties"]
    assert (connack["reasonCode"], connack["sessionPresent"]) == (0, False)
    assert properties["assignedClientIdentifier"]
    assert 0 < properties["sessionExpiryInterval"] < 0xFFFFFFFF
    assert properties["maximumPacketSize"] > 0


def test_server_keep_alive(own_broker: Start, node: MqttJs, workers: int) -> None:
    """MQTT.js pings at the broker's interval, not at its own."""
    broker = own_broker(workers, environment={"MQTTD_LIMITS__KEEP_ALIVE_SECONDS_MAX": "1"})
    client = JsClient(node, broker, 5, "client", keepalive=600)
    assert client.packet("connack")["properties"]["serverKeepAlive"] == 1
    client.packet("pingresp")


def test_the_broker_is_restarted(own_broker: Start, node: MqttJs, workers: int, version: int) -> None:
    """v5 clients are notified; MQTT.js reconnects, sends messages accepted meanwhile, and subscribes again."""
    broker = own_broker(workers)
    client = JsClient(node, broker, version, "client")
    client.next("connect")
    client.subscribe("t", 1)
    broker.stop()
    if version == 5:
        assert client.packet("disconnect")["reasonCode"] == 0x8B
    client.next("close")
    client.begin_publish("t", b"meanwhile", 1)
    broker.start()
    client.packet("puback")
    assert client.packet("suback")["granted"] == [1]
    client.publish("t", b"after", 1)
    assert client.message().payload == b"after"


def test_credentials(own_broker: Start, node: MqttJs, workers: int, version: int, tmp_path: Path) -> None:
    """A wrong password is refused with its code; the right one is accepted."""
    file = tmp_path / "users"
    command = [sys.executable, "-m", "broker", "passwd", "--password-stdin", str(file), "alice"]
    subprocess.run(command, cwd=ROOT, input=b"secret", check=True, timeout=SECONDS_MAX)
    broker = own_broker(workers, ["--password-file", str(file)])
    wrong = JsClient(node, broker, version, "wrong", username="alice", password="guess", reconnectPeriod=0)
    assert wrong.next("error")[0]["code"] == (0x86 if version == 5 else 4)
    JsClient(node, broker, version, "right", username="alice", password="secret").next("connect")

"""paho-mqtt, v3.1.1 and v5: QoS 0/1/2, retained, wills, sessions, shared subscriptions, properties, reason codes."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.broker_process import BrokerProcess
from tests.waiting import let_pass

SECONDS_MAX = 60.0
VERSIONS = {4: MQTTProtocolVersion.MQTTv311, 5: MQTTProtocolVersion.MQTTv5}


class Paho:
    """A paho client in its own thread; received messages are in ``messages``."""

    def __init__(
        self,
        broker: BrokerProcess,
        version: int,
        client_id: str,
        clean: bool = True,
        will: bytes | None = None,
        will_properties: Properties | None = None,
        **properties: Any,
    ) -> None:
        self.version = version
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.session_present = False
        self._connected, self._closed = threading.Event(), threading.Event()
        self.reasons: queue.Queue[list[int]] = queue.Queue()
        self.granted: Any = None
        options: dict[str, Any] = {} if version == 5 else {"clean_session": clean}
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=VERSIONS[version], reconnect_on_failure=False, **options
        )
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = lambda *_: self._closed.set()
        self.client.on_subscribe = lambda _c, _u, _mid, codes, _p: self.reasons.put([code.value for code in codes])
        self.client.on_unsubscribe = lambda _c, _u, _mid, codes, _p: self.reasons.put([code.value for code in codes])
        self.client.on_publish = lambda _c, _u, _mid, code, _p: self.reasons.put([code.value])
        self.client.on_message = lambda *arguments: self.messages.put(arguments[-1])
        if will is not None:
            self.client.will_set(f"{client_id}/will", will, qos=1, properties=will_properties)
        host, port = broker.address
        if version == 5:
            asked = named(PacketTypes.CONNECT, **{"SessionExpiryInterval": 0 if clean else 60, **properties})
            self.client.connect(host, port, clean_start=clean, properties=asked)
        else:
            self.client.connect(host, port)
        self.client.loop_start()
        assert self._connected.wait(SECONDS_MAX), "no CONNACK"

    def _on_connect(self, _client: paho.Client, _userdata: Any, flags: Any, reason: Any, properties: Any) -> None:
        assert not reason.is_failure, reason
        self.session_present = flags.session_present
        self.granted = properties
        self._connected.set()

    def subscribe(self, topic: str, qos: int, **options: Any) -> list[int]:
        """Subscribe; return the codes of the SUBACK. ``options`` are of SubscribeOptions, or properties."""
        properties = named(
            PacketTypes.SUBSCRIBE, **{name: options.pop(name) for name in list(options) if name[0].isupper()}
        )
        if options:
            self.client.subscribe(topic, options=SubscribeOptions(qos, **options), properties=properties)
        else:
            self.client.subscribe(topic, qos, properties=properties if self.version == 5 else None)
        return self.reasons.get(timeout=SECONDS_MAX)

    def unsubscribe(self, topic: str) -> list[int]:
        """Unsubscribe; return the codes of the UNSUBACK."""
        self.client.unsubscribe(topic)
        return self.reasons.get(timeout=SECONDS_MAX)

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool = False, **properties: Any) -> list[int]:
        """Publish and complete the handshake; return the code of its last packet."""
        asked = named(PacketTypes.PUBLISH, **properties) if properties else None
        self.client.publish(topic, payload, qos, retain, properties=asked)
        return self.reasons.get(timeout=SECONDS_MAX)

    def receive(self) -> Any:
        """Return the next message; Any, because paho's properties have names that no type checker knows."""
        return self.messages.get(timeout=SECONDS_MAX)

    def leave(self, **properties: Any) -> None:
        """Send DISCONNECT and wait for the end."""
        self.client.disconnect(properties=named(PacketTypes.DISCONNECT, **properties) if properties else None)
        assert self._closed.wait(SECONDS_MAX)
        self.client.loop_stop()

    def end(self) -> None:
        """End in any state. The thread wakes once a second, or when it has something to send."""
        self.client.disconnect()
        self.client.loop_stop()

    def break_down(self) -> None:
        """End the connection without DISCONNECT."""
        sock: Any = self.client.socket()
        sock.shutdown(socket.SHUT_RDWR)
        self.client.loop_stop()


def named(packet: int, **properties: Any) -> Properties:
    """Return properties of a packet, by paho's names."""
    made = Properties(packet)
    for name, value in properties.items():
        setattr(made, name, value)
    return made


Make = Callable[..., Paho]
only_v5 = pytest.mark.parametrize("make", [5], ids=["v5"], indirect=True)


@pytest.fixture(params=[4, 5], ids=["v3.1.1", "v5"])
def make(broker: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[Make]:
    """``make(client_id, clean=True, will=None, **properties)``: return a connected paho client."""
    made: list[Paho] = []

    def connect(client_id: str, *arguments: Any, **options: Any) -> Paho:
        made.append(Paho(broker, request.param, client_id, *arguments, **options))
        return made[-1]

    yield connect
    for each in made:
        each.end()


@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
def test_publish_and_subscribe(make: Make, name: str, published: int, granted: int) -> None:
    """Fifty messages arrive in order, at the lower QoS."""
    subscriber, publisher = make(f"{name}s"), make(f"{name}p")
    subscriber.subscribe(f"{name}/#", granted)
    for number in range(50):
        publisher.publish(f"{name}/a", b"%d" % number, published)
    got = [subscriber.receive() for _ in range(50)]
    assert [message.payload for message in got] == [b"%d" % number for number in range(50)]
    assert {message.qos for message in got} == {min(published, granted)}


def test_retained(make: Make, name: str) -> None:
    """A retained message is sent to a later subscriber with the flag."""
    make(f"{name}p").publish(name, b"kept", 1, retain=True)
    subscriber = make(f"{name}s")
    subscriber.subscribe(name, 1)
    got = subscriber.receive()
    assert (got.payload, got.retain) == (b"kept", True)


def test_will(make: Make, name: str) -> None:
    """The will of a client whose connection breaks is published; that of one that disconnects is not."""
    watcher = make(f"{name}w")
    watcher.subscribe("+/will", 1)
    make(f"{name}a", will=b"no").leave()
    make(f"{name}b", will=b"broken").break_down()
    while (got := watcher.receive()).topic not in (f"{name}a/will", f"{name}b/will"):
        pass
    assert (got.topic, got.payload) == (f"{name}b/will", b"broken")


@pytest.mark.parametrize("qos", [1, 2])
def test_resumption(make: Make, name: str, qos: int) -> None:
    """A client that resumes its session gets the messages published meanwhile, in order."""
    first = make(name, clean=False)
    assert not first.session_present
    first.subscribe(name, qos)
    first.leave()
    publisher = make(f"{name}p")
    for number in range(20):
        publisher.publish(name, b"%d" % number, qos)
    again = make(name, clean=False)
    assert again.session_present
    assert [again.receive().payload for _ in range(20)] == [b"%d" % number for number in range(20)]


def test_shared_subscription(make: Make, name: str) -> None:
    """Three members get each message once between them; after one has left, two do."""
    members = [make(f"{name}m{number}") for number in range(3)]
    for member in members:
        assert member.subscribe(f"$share/g/{name}/#", 1) == [1]
    publisher = make(f"{name}p")
    for numbers in (range(30), range(30, 60)):
        for number in numbers:
            publisher.publish(f"{name}/x", b"%d" % number, 1)
        got: list[int] = []
        deadline = time.monotonic() + SECONDS_MAX
        while len(got) < len(numbers) and time.monotonic() < deadline:
            for member in members:
                while not member.messages.empty():
                    got.append(int(member.messages.get().payload))
        assert sorted(got) == list(numbers)
        members.pop().leave()


@only_v5
def test_properties(make: Make, name: str) -> None:
    """A client gets the properties of another client's message unchanged."""
    subscriber, publisher = make(f"{name}s"), make(f"{name}p")
    subscriber.subscribe(name, 1)
    properties: dict[str, Any] = {
        "ContentType": "text/plain",
        "UserProperty": [("b", "2"), ("a", "1"), ("b", "3")],
        "CorrelationData": b"\0\1",
        "ResponseTopic": f"{name}/answers",
        "PayloadFormatIndicator": 1,
    }
    publisher.publish(name, b"x", 1, **properties)
    got = subscriber.receive()
    assert got.payload == b"x"
    assert got.properties.json() == named(PacketTypes.PUBLISH, **properties).json()


@only_v5
def test_topic_alias(make: Make, name: str) -> None:
    """A topic is sent once and then replaced by its alias; the subscriber sees the topic."""
    subscriber, publisher = make(f"{name}s"), make(f"{name}p")
    assert publisher.granted.TopicAliasMaximum > 0
    subscriber.subscribe(f"{name}/#", 1)
    for topic, alias in ((f"{name}/a", 1), ("", 1), (f"{name}/b", 1), ("", 1)):
        publisher.publish(topic, b"", 1, TopicAlias=alias)
    assert [subscriber.receive().topic for _ in range(4)] == [f"{name}/{each}" for each in "aabb"]


@only_v5
def test_message_expiry(make: Make, name: str) -> None:
    """A queued message has less time left; an expired one is not delivered."""
    subscriber = make(name, clean=False)
    subscriber.subscribe(name, 1)
    subscriber.leave()
    publisher = make(f"{name}p")
    publisher.publish(name, b"short", 1, MessageExpiryInterval=1)
    publisher.publish(name, b"long", 1, MessageExpiryInterval=100)
    let_pass(1.2)
    got = make(name, clean=False).receive()
    assert got.payload == b"long"
    assert 90 <= got.properties.MessageExpiryInterval < 100


@only_v5
def test_session_expiry(make: Make, name: str) -> None:
    """A session lasts until its expiry, or until a DISCONNECT that ends it at once."""
    make(f"{name}short", clean=False, SessionExpiryInterval=1).leave()
    make(f"{name}long", clean=False).leave()
    make(f"{name}changed", clean=False).leave(SessionExpiryInterval=0)
    let_pass(1.3)
    present = {each: make(f"{name}{each}", clean=False).session_present for each in ("short", "long", "changed")}
    assert present == {"short": False, "long": True, "changed": False}


@only_v5
def test_will_delay(make: Make, name: str) -> None:
    """A delayed will is not published if its client returns in time; otherwise it is, with its properties."""
    watcher = make(f"{name}w")
    watcher.subscribe("+/will", 1)
    asked = named(PacketTypes.WILLMESSAGE, WillDelayInterval=1, ContentType="text/x-will")
    for client_id in (f"{name}returns", f"{name}stays"):
        make(client_id, clean=False, will=b"dead", will_properties=asked).break_down()
    make(f"{name}returns", clean=False)
    topics = []
    while f"{name}stays/will" not in topics:
        got = watcher.receive()
        topics.append(got.topic)
    assert got.properties.ContentType == "text/x-will"
    assert f"{name}returns/will" not in topics


@only_v5
def test_subscription_identifiers_and_options(make: Make, name: str) -> None:
    """Overlapping filters: one message with both identifiers; No Local, Retain As Published, Retain Handling."""
    client, publisher = make(name), make(f"{name}p")
    publisher.publish(f"{name}/kept", b"kept", 1, retain=True)
    client.subscribe(f"{name}/#", 1, retainHandling=2, retainAsPublished=True, SubscriptionIdentifier=7)
    client.subscribe(f"{name}/a", 1, SubscriptionIdentifier=8)
    publisher.publish(f"{name}/a", b"both", 1)
    got = client.receive()
    assert (got.payload, sorted(got.properties.SubscriptionIdentifier)) == (b"both", [7, 8])
    publisher.publish(f"{name}/kept", b"newer", 1, retain=True)
    got = client.receive()
    assert (got.payload, got.retain) == (b"newer", True)
    assert client.unsubscribe(f"{name}/#") == [0]
    client.subscribe(f"{name}/mine", 1, noLocal=True)
    client.publish(f"{name}/mine", b"own", 1)
    publisher.publish(f"{name}/mine", b"other", 1)
    assert client.receive().payload == b"other"


@only_v5
def test_receive_maximum(make: Make, name: str) -> None:
    """A client that allows one message at a time gets all of them, one after the other."""
    subscriber, publisher = make(f"{name}s", ReceiveMaximum=1), make(f"{name}p")
    subscriber.subscribe(name, 2)
    for number in range(20):
        publisher.publish(name, b"%d" % number, 2)
    assert [subscriber.receive().payload for _ in range(20)] == [b"%d" % number for number in range(20)]


@only_v5
def test_reason_codes_and_an_assigned_name(make: Make, name: str) -> None:
    """No matching subscribers, no subscription existed; a client without an id gets the assigned one."""
    client = make("")
    assert client.granted.AssignedClientIdentifier
    assert client.publish(name, b"nobody", 1) == [0x10]
    assert client.subscribe(name, 1) == [1]
    assert client.publish(name, b"somebody", 1) == [0]
    assert client.unsubscribe(f"{name}/never") == [0x11]

"""paho-mqtt, v3.1.1 and v5: QoS 0/1/2, retained, wills, resumption."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.broker_process import BrokerProcess

SECONDS_MAX = 15.0
VERSIONS = {4: MQTTProtocolVersion.MQTTv311, 5: MQTTProtocolVersion.MQTTv5}


class Paho:
    """A paho client in its own thread; what it receives lies in ``messages``."""

    def __init__(self, broker: BrokerProcess, version: int, client_id: str, clean: bool, will: bytes | None) -> None:
        self.version = version
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.session_present = False
        self._connected, self._closed, self._subscribed = threading.Event(), threading.Event(), threading.Event()
        options: dict[str, Any] = {} if version == 5 else {"clean_session": clean}
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=VERSIONS[version], **options)
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = lambda *_: self._closed.set()
        self.client.on_subscribe = lambda *_: self._subscribed.set()
        self.client.on_message = lambda *arguments: self.messages.put(arguments[-1])
        if will is not None:
            self.client.will_set(f"{client_id}/will", will, qos=1)
        host, port = broker.address
        if version == 5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 0 if clean else 60
            self.client.connect(host, port, clean_start=clean, properties=properties)
        else:
            self.client.connect(host, port)
        self.client.loop_start()
        assert self._connected.wait(SECONDS_MAX), "no CONNACK"

    def _on_connect(self, _client: paho.Client, _userdata: Any, flags: Any, reason: Any, _properties: Any) -> None:
        assert not reason.is_failure, reason
        self.session_present = flags.session_present
        self._connected.set()

    def subscribe(self, topic: str, qos: int) -> None:
        """Subscribe and wait for the SUBACK."""
        self._subscribed.clear()
        self.client.subscribe(topic, qos)
        assert self._subscribed.wait(SECONDS_MAX), "no SUBACK"

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool = False) -> None:
        """Publish and wait for the end of the handshake."""
        self.client.publish(topic, payload, qos, retain).wait_for_publish(SECONDS_MAX)

    def receive(self) -> paho.MQTTMessage:
        """The next message."""
        return self.messages.get(timeout=SECONDS_MAX)

    def leave(self) -> None:
        """DISCONNECT."""
        self.client.disconnect()
        assert self._closed.wait(SECONDS_MAX)
        self.client.loop_stop()

    def break_down(self) -> None:
        """End the loop and close the socket without DISCONNECT."""
        self.client.loop_stop()
        sock = self.client.socket()
        if sock is not None:
            sock.close()


Make = Callable[..., Paho]


@pytest.fixture(params=[4, 5], ids=["v3.1.1", "v5"])
def make(broker: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[Make]:
    """``make(client_id, clean=True, will=None)``: a connected paho client."""
    made: list[Paho] = []

    def connect(client_id: str, clean: bool = True, will: bytes | None = None) -> Paho:
        made.append(Paho(broker, request.param, client_id, clean, will))
        return made[-1]

    yield connect
    for each in made:
        each.break_down()


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
    """A retained message comes to a later subscriber with the flag."""
    make(f"{name}p").publish(name, b"kept", 1, retain=True)
    subscriber = make(f"{name}s")
    subscriber.subscribe(name, 1)
    got = subscriber.receive()
    assert (got.payload, got.retain) == (b"kept", True)


def test_will(make: Make, name: str) -> None:
    """The will of a client that breaks down is published, that of one that leaves is not."""
    watcher = make(f"{name}w")
    watcher.subscribe("+/will", 1)
    make(f"{name}a", will=b"no").leave()
    make(f"{name}b", will=b"broken").break_down()
    while (got := watcher.receive()).topic not in (f"{name}a/will", f"{name}b/will"):
        pass
    assert (got.topic, got.payload) == (f"{name}b/will", b"broken")


@pytest.mark.parametrize("qos", [1, 2])
def test_resumption(make: Make, name: str, qos: int) -> None:
    """A client with a session that was away gets what was published meanwhile, in order."""
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


def test_properties(make: Make, name: str) -> None:
    """A v5 client gets the properties another one sent; a v3.1.1 client the payload."""
    subscriber, publisher = make(f"{name}s"), make(f"{name}p")
    subscriber.subscribe(name, 1)
    properties = None
    if publisher.version == 5:
        properties = Properties(PacketTypes.PUBLISH)
        properties.ContentType = "text/plain"
        properties.UserProperty = [("a", "1"), ("a", "2")]
        properties.CorrelationData = b"\0\1"
    publisher.client.publish(name, b"x", 1, properties=properties).wait_for_publish(SECONDS_MAX)
    got = subscriber.receive()
    assert got.payload == b"x"
    if subscriber.version == 5:
        assert got.properties is not None
        assert got.properties.json() == properties.json() if properties else None

"""MqttClient: its reactions to a broker, and the requests that it reports to locust."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import pytest

from loadtest.client import Message, MqttClient
from loadtest.reporting import MqttFailure, Reporter
from loadtest.settings import Settings
from loadtest.target import Target
from tests import wire
from tests.broker_process import BrokerProcess
from tests.loadtest.scripted import Answers, Scripted

CONNACK = b"\x20\x03\0\0\0"
Told = list[tuple[str, str, str]]


class Hook:
    """Stands for locust's EventHook for requests; keeps each request."""

    def __init__(self) -> None:
        self._handlers: list[Any] = []
        self.told: list[dict[str, Any]] = []

    def fire(self, **request: Any) -> None:
        """Keep the request."""
        self.told.append(request)


class Environment:
    """The part of locust's Environment that a Reporter uses."""

    def __init__(self) -> None:
        self.runner = None
        self.events = self
        self.request = Hook()

    def failures(self) -> Told:
        """Return (type, name, error) of each failed request."""
        return [
            (one["request_type"], one["name"], str(one["exception"])) for one in self.request.told if one["exception"]
        ]

    def counts(self) -> dict[str, int]:
        """Return the number of successful requests by type."""
        kinds = [one["request_type"] for one in self.request.told if not one["exception"]]
        return {kind: kinds.count(kind) for kind in kinds}


@contextmanager
def client(
    port: int, *, version: int = 5, client_id: str = "c", **options: Any
) -> Iterator[tuple[MqttClient, Environment]]:
    environment = Environment()
    settings = Settings(client_id, version, **options.pop("settings", {}))
    options = {"reconnect_seconds": None, "answer_seconds": 60.0, "name": "Tested", **options}
    one = MqttClient(Reporter.of(environment), Target("127.0.0.1", port), settings, **options)
    try:
        yield one, environment
    finally:
        one.disconnect()


def usual(kind: str, _: int, body: bytes) -> bytes:
    """Answer as an MQTT 5 broker that grants and acknowledges everything."""
    if kind == "PUBLISH":
        topic_end = 2 + int.from_bytes(body[:2], "big")
        return b"\x40\x02" + body[topic_end : topic_end + 2]
    answers = {"CONNECT": CONNACK, "SUBSCRIBE": b"\x90\x04" + body[:2] + b"\0\x01", "PINGREQ": b"\xd0\0"}
    return answers.get(kind, b"")


def instead(kind: str, answer: bytes | None) -> Answers:
    """Answer as `usual` does, except for one kind of packet."""
    return lambda heard, number, body: answer if heard == kind else usual(heard, number, body)


def eventually(is_so: Any) -> None:
    with gevent.Timeout(60):
        while not is_so():
            gevent.sleep(0.005)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    process = BrokerProcess(1)
    with process:
        yield process


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_published_is_delivered_and_counted(broker: BrokerProcess, version: int, qos: int) -> None:
    with client(broker.port, version=version, qos=qos, inbox_messages_max=10) as (one, environment):
        assert one.connect()
        assert one.subscribe("a/c/+", name="a")
        assert one.publish("a/c/1", content=b"mine", retain=False)
        message = one.receive(60)
        assert message is not None
        assert (message.topic, message.content, message.qos) == ("a/c/1", b"mine", qos)
        assert message.latency_ms is not None
        assert one.receive(0.01) is None
        assert one.unsubscribe("a/c/+")
    assert environment.failures() == []
    assert environment.counts() == {"CONNECT": 1, "SUBSCRIBE": 1, "PUBLISH": 1, "DELIVERY": 1, "UNSUBSCRIBE": 1}
    names = {one["request_type"]: one["name"] for one in environment.request.told}
    assert names == {
        "CONNECT": "Tested", "SUBSCRIBE": "a", "PUBLISH": "a/%c/1", "DELIVERY": "a", "UNSUBSCRIBE": "a/%c/+"
    }  # fmt: skip


def test_command_and_response(broker: BrokerProcess) -> None:
    with (
        client(broker.port, client_id="device") as (device, _),
        client(broker.port, client_id="app", inbox_messages_max=1) as (app, environment),
    ):
        assert device.connect()
        assert app.connect()

        def obey(message: Message) -> None:
            properties = {"correlation_data": message.properties["correlation_data"]}
            device.publish(message.properties["response_topic"], b"done", qos=1, properties=properties)

        device.on_message = obey
        assert device.subscribe(("do", 1))
        assert app.subscribe(("done/app", 1))
        app.publish("do", b"it", qos=1, properties={"response_topic": "done/app", "correlation_data": b"7"})
        response = app.receive(60)
        assert response is not None
        assert (response.payload, response.properties) == (b"done", {"correlation_data": b"7"})
    assert environment.failures() == []


def test_a_session_and_its_backlog_are_there_again(broker: BrokerProcess) -> None:
    session = {"clean_start": False, "session_expiry": 60}
    with client(broker.port, client_id="phone", qos=1, inbox_messages_max=9, settings=session) as (phone, environment):
        assert (phone.connect(), phone.session_present) == (True, False)
        assert phone.subscribe("inbox")
        phone.disconnect()
        assert not phone.is_connected
        with client(broker.port, client_id="friend") as (friend, _):
            assert friend.connect()
            assert all(friend.publish("inbox", qos=1) for _ in range(3))
        assert (phone.connect(), phone.session_present) == (True, True)
        assert [phone.receive(60) is not None for _ in range(3)] == [True] * 3
        assert phone.connect(clean_start=True, session_expiry=0)
    assert environment.failures() == []


def test_nobody_listens() -> None:
    with Scripted(usual) as broker:
        port = broker.port
    with client(port) as (one, environment):
        assert not one.connect()
        assert not one.publish("t")
        assert not one.subscribe("t")
    assert environment.failures() == [
        ("CONNECT", "Tested", "Connection refused"), ("PUBLISH", "t", "not connected"),
        ("SUBSCRIBE", "t", "not connected"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("version", "connack", "why", "code"),
    [
        (5, b"\x20\x03\0\x87\0", "0x87 Not authorized", 0x87),
        (4, b"\x20\x02\0\x05", "0x05 Not authorized", 5),
        (5, None, "closed by the broker", None),
        (5, b"\xd0\0", "the broker broke the protocol: packet type 13 before CONNACK (0x82)", None),
        (5, b"HTTP/1.1 400", "the broker broke the protocol: ", None),
    ],
    ids=["v5", "v4", "hangs up", "early", "no mqtt"],
)
def test_a_refused_connect(version: int, connack: bytes | None, why: str, code: int | None) -> None:
    with Scripted(instead("CONNECT", connack)) as broker, client(broker.port, version=version) as (one, environment):
        assert not one.connect()
        failure = environment.request.told[0]["exception"]
        assert isinstance(failure, MqttFailure)
        assert str(failure).startswith(why)
        assert failure.reason_code == code
        assert len(environment.failures()) == 1


def test_a_connack_that_does_not_come() -> None:
    with Scripted(instead("CONNECT", b"")) as broker, client(broker.port, answer_seconds=0.1) as (one, environment):
        assert not one.connect()
        assert environment.failures() == [("CONNECT", "Tested", "no answer within 0.1 s")]


def test_refused_requests_have_their_reason_codes() -> None:
    def answers(kind: str, number: int, body: bytes) -> bytes:
        if kind == "SUBSCRIBE":
            return b"\x90\x05" + body[:2] + b"\0\x01\x8f"
        if kind == "PUBLISH":
            return b"\x40\x03" + body[3:5] + b"\x97"
        return usual(kind, number, body)

    with Scripted(answers) as broker, client(broker.port) as (one, environment):
        assert one.connect()
        assert not one.subscribe(("a", 1), ("b", 1))
        assert not one.publish("t", qos=1)
        assert one.publish("t", qos=1, wait=False)
        eventually(lambda: len(environment.failures()) == 3)
        assert environment.failures() == [
            ("SUBSCRIBE", "a, b", "0x8F Topic filter invalid"), ("PUBLISH", "t", "0x97 Quota exceeded"),
            ("PUBLISH", "t", "0x97 Quota exceeded"),
        ]  # fmt: skip


def test_an_ack_that_does_not_come() -> None:
    with Scripted(instead("PUBLISH", b"")) as broker, client(broker.port, answer_seconds=2.0) as (one, environment):
        assert one.connect()
        assert not one.publish("t", qos=1)  # pending acks are checked once a second
        assert environment.failures() == [("PUBLISH", "t", "no acknowledgement within 2 s")]


def test_a_disconnect_by_the_broker_is_told_and_the_client_comes_back() -> None:
    with Scripted(usual) as broker, client(broker.port, reconnect_seconds=0.05) as (one, environment):
        assert one.connect()
        assert one.subscribe("t")
        broker.say(wire.disconnect(5, 0x8B))
        eventually(lambda: environment.failures())
        assert environment.failures() == [("DISCONNECT", "Tested", "0x8B Server shutting down")]
        assert one.publish("t", qos=1)  # waits for the reconnection
        eventually(lambda: broker.heard.count("SUBSCRIBE") == 2)  # the broker has lost the session
        assert len(environment.failures()) == 1


def test_what_was_under_way_is_lost_with_its_connection() -> None:
    def answers(kind: str, number: int, body: bytes) -> bytes | None:
        return None if kind == "PUBLISH" else usual(kind, number, body)

    with Scripted(answers) as broker, client(broker.port) as (one, environment):
        assert one.connect()
        assert not one.publish("t", qos=1)
        eventually(lambda: len(environment.failures()) == 2)
        assert environment.failures() == [
            ("PUBLISH", "t", "connection lost"), ("DISCONNECT", "Tested", "closed by the broker")
        ]  # fmt: skip


def test_no_more_is_under_way_than_the_broker_takes() -> None:
    acks: list[bytes] = []

    def answers(kind: str, number: int, body: bytes) -> bytes:
        if kind == "CONNECT":
            return wire.packet("CONNACK", 0, b"\0\0", wire.encode_properties({"receive_maximum": 2}))
        if kind == "PUBLISH":
            acks.append(usual(kind, number, body))
            return b""
        return usual(kind, number, body)

    with Scripted(answers) as broker, client(broker.port) as (one, environment):
        assert one.connect()
        third = gevent.spawn(lambda: [one.publish("t", qos=1, wait=False) for _ in range(3)])
        eventually(lambda: len(acks) == 2)
        assert one.inflight == 2
        assert not third.ready()
        broker.say(acks[0])
        eventually(lambda: third.ready() and len(acks) == 3)
        for ack in acks[1:]:
            broker.say(ack)
        eventually(lambda: one.inflight == 0)
        assert environment.failures() == []


def test_a_listener_that_is_slow_is_not_read_from() -> None:
    """The queue for on_message is bounded: the client stops reading the connection, and resumes later."""
    came: list[bytes] = []
    release = gevent.event.Event()

    def slow(message: Any) -> None:
        release.wait()
        came.append(message.payload)

    with Scripted(usual) as broker, client(broker.port) as (one, environment):
        one.on_message = slow
        assert one.connect()
        packets = 30_000
        teller = gevent.get_hub().threadpool.spawn(broker.say, wire.publish(5, "t", b"x" * 100) * packets)
        eventually(lambda: one.inbox_messages >= 10_000)
        gevent.sleep(0.05)
        assert one.inbox_messages < 12_000
        release.set()
        eventually(lambda: len(came) == packets)
        teller.get()
        assert environment.failures() == []


def test_keep_alive_is_kept() -> None:
    with Scripted(usual) as broker, client(broker.port, settings={"keep_alive": 3}) as (one, environment):
        assert one.connect()
        eventually(lambda: broker.heard.count("PINGREQ") >= 2)
        assert environment.failures() == []


def test_a_broker_that_does_not_answer_pings_is_lost() -> None:
    with (
        Scripted(instead("PINGREQ", b"")) as broker,
        client(broker.port, settings={"keep_alive": 1}) as (one, environment),
    ):
        assert one.connect()
        eventually(lambda: environment.failures())
        assert environment.failures() == [("DISCONNECT", "Tested", "no PINGRESP")]


def test_receive_says_what_it_needs() -> None:
    with client(1) as (one, _), pytest.raises(ValueError, match="inbox_messages_max"):
        one.receive(1)

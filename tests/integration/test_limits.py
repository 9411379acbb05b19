"""Every bound of broker/config/limits.py is reached: the documented consequence follows, its counter rises, and the
broker keeps running.

One scenario per field: see tests/unit/broker/config/test_config.py, which also lists those of disturbed hosts. Bounds
are small here; test_limits_at_their_defaults.py has the default ones.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from broker.config.limits import Limits
from shards.placement import home
from tests import wire
from tests.broker_process import KIND, STORES, BrokerProcess
from tests.counted import CountedBroker
from tests.waiting import wait_until
from tests.wire import Client, Closed

pytestmark = pytest.mark.skipif(KIND != "mqttd", reason="bounds and counters are mqttd's own")

SECONDS = 60.0

#: One broker for all bounds that do not disturb each other
TIGHT: dict[str, float] = {
    "packet_bytes_max": 20_000,
    "connect_bytes_max": 2_000,
    "topic_bytes_max": 100,
    "topic_levels_max": 5,
    "share_name_bytes_max": 50,
    "topic_alias_max": 2,
    "topic_alias_out_max": 1,
    "v31_client_id_characters_max": 23,
    "receive_maximum": 3,
    "user_properties_max": 5,
    "user_property_bytes_max": 200,
    "filters_per_packet_max": 8,
    "takeovers_per_minute_max": 3,
    "keep_alive_seconds_max": 60,
    "session_expiry_seconds_max": 3600,
    "session_expiry_seconds_default_v3": 1800,
    "filters_per_session_max": 12,
    "inflight_max": 4,
    "queue_messages_max": 20,
    "tick_connection_bytes_max": 4096,
    "tick_connection_packets_max": 10,
    "tick_filters_max": 10,
    "share_large_bytes": 500,
    "retained_messages_max": 3,
}


@dataclass
class Scene:
    """A broker, and clients that are closed at the end."""

    broker: CountedBroker
    version: int
    name: str
    opened: list[Client] = field(default_factory=list)

    def open(self, version: int = 0) -> Client:
        """Return a connection without a CONNECT."""
        self.opened.append(Client(self.broker.address, version or self.version))
        return self.opened[-1]

    def client(self, client_id: str = "", **options: Any) -> Client:
        """Return a connection with its CONNACK."""
        client = self.open()
        client.connect(client_id or f"{self.name}x{len(self.opened)}", **options)
        return client

    def lasting(self, *filters: str) -> Client:
        """Return a client with a lasting session, subscribed at QoS 1."""
        client = self.client(clean=False, properties={"session_expiry_interval": 600} if self.version == 5 else {})
        client.subscribe(*filters, qos=1)
        return client

    def offline(self, *filters: str) -> None:
        """Leave an offline session that queues messages at QoS 1."""
        self.lasting(*filters).disconnect()


@dataclass
class Scenario:
    """The way to reach a bound, and the settings for it."""

    run: Callable[[Scene], None]
    versions: tuple[int, ...]
    workers: tuple[int, ...]
    limits: dict[str, Any]
    environment: dict[str, str]


SCENARIOS: dict[str, Scenario] = {}


def reaches(
    limit: str,
    versions: tuple[int, ...] = (4, 5),
    workers: tuple[int, ...] = (1, 4),
    environment: dict[str, str] | None = None,
    **limits: float,
) -> Callable[[Callable[[Scene], None]], Callable[[Scene], None]]:
    """Register a scenario; without `limits` it runs against the broker with the TIGHT ones."""

    def register(run: Callable[[Scene], None]) -> Callable[[Scene], None]:
        SCENARIOS[limit] = Scenario(run, versions, workers, limits or TIGHT, environment or {})
        return run

    return register


def cases() -> list[Any]:
    """Return (bound, version, workers, store): each bound on every store, and the TIGHT ones in every pair of these."""
    found = []
    for limit, scenario in SCENARIOS.items():
        many = list(itertools.product(enumerate(scenario.workers), enumerate(scenario.versions)))
        for (odd, workers), (odder, version) in many:
            chosen = STORES[(odd + odder * (scenario.limits is TIGHT)) % len(STORES)]
            fixed = scenario.environment.get("MQTTD_STORE")
            for store in [fixed] if fixed else STORES if len(scenario.workers) == 1 else [chosen]:
                found.append(pytest.param(limit, version, workers, store, id=f"{limit}-v{version}-{workers}-{store}"))
    return found


# ---------------------------------------------------------------------------------------------------- packets


@reaches("packet_bytes_max")
def _packet_bytes(scene: Scene) -> None:
    client = scene.client()
    client.send(bytes((0x30,)) + wire.varint(20_001))  # its length alone is refused
    client.expect_closed(0x95)


@reaches("connect_bytes_max")
def _connect_bytes(scene: Scene) -> None:
    client = scene.open()
    will = wire.Will(scene.name, b"x" * 3000)
    client.send(wire.connect(scene.version, scene.name, will=will))
    client.expect_refused(0x95)
    client = scene.open()
    client.send(bytes((0x10,)) + wire.varint(10_000_000))
    client.expect_refused(0x95)


def _publish_refused(client: Client, topic: str) -> None:
    if client.version == 5:
        assert client.publish(topic, b"x", qos=1) == 0x90
        client.publish(topic, b"x")
        client.expect_silence()
    else:
        client.send(wire.publish(client.version, topic))
        client.expect_closed()


@reaches("topic_bytes_max")
def _topic_bytes(scene: Scene) -> None:
    client = scene.client()
    assert client.subscribe("x" * 101) == (0x8F if scene.version == 5 else 0x80,)
    assert client.subscribe("x" * 100) == (0,)
    _publish_refused(client, "x" * 101)


@reaches("topic_levels_max")
def _topic_levels(scene: Scene) -> None:
    client = scene.client()
    assert client.subscribe("a/b/c/d/e/f") == (0x8F if scene.version == 5 else 0x80,)
    assert client.subscribe("a/b/c/d/e") == (0,)
    _publish_refused(client, "a/b/c/d/e/f")


@reaches("share_name_bytes_max")
def _share_name_bytes(scene: Scene) -> None:
    client = scene.client()
    assert client.subscribe(f"$share/{'x' * 51}/t") == (0x8F if scene.version == 5 else 0x80,)
    assert client.subscribe(f"$share/{'x' * 50}/t") == (0,)
    client.unsubscribe(f"$share/{'x' * 51}/t")


@reaches("topic_alias_max", versions=(5,))
def _topic_alias(scene: Scene) -> None:
    client = scene.client()
    client.publish(scene.name, properties={"topic_alias": 2})
    client.send(wire.publish(5, scene.name, properties={"topic_alias": 3}))
    client.expect_closed(0x94)


@reaches("topic_alias_out_max", versions=(5,))
def _topic_alias_out(scene: Scene) -> None:
    topic = scene.name * 4
    subscriber, publisher = scene.client(properties={"topic_alias_maximum": 5}), scene.client()
    subscriber.subscribe(topic)
    for number in range(20):
        publisher.publish(topic, b"%d" % number)
    packets = [subscriber.expect("PUBLISH") for _ in range(20)]
    assert {packet.properties.get("topic_alias", 1) for packet in packets} == {1}


@reaches("v31_client_id_characters_max", versions=(3,))
def _v31_client_id(scene: Scene) -> None:
    client = scene.open()
    client.send(wire.connect(3, "x" * 24))
    client.expect_refused(2)
    scene.client("x" * 23)


@reaches("receive_maximum", versions=(5,))
def _receive_maximum(scene: Scene) -> None:
    client = scene.client()
    for packet_id in range(1, 5):
        client.send(wire.publish(5, scene.name, b"x", qos=2, packet_id=packet_id))
    for packet_id in range(1, 4):
        client.expect("PUBREC", packet_id=packet_id)
    client.expect_closed(0x93)


@reaches("user_properties_max", versions=(5,))
def _user_properties(scene: Scene) -> None:
    many = {"user_property": [("a", str(number)) for number in range(6)]}
    few = {"user_property": many["user_property"][:5]}
    client = scene.client(properties=few)
    client.publish(scene.name, b"x", qos=1, properties=few)
    client.send(wire.publish(5, scene.name, properties=many))
    client.expect_closed(0x97)
    for packet in (
        wire.subscribe(5, 1, (scene.name, 0), properties=many),
        wire.disconnect(5, 0, many),
        wire.ack(5, "PUBACK", 1, 0, many),
    ):
        client = scene.client()
        client.send(packet)
        client.expect_closed(0x97)
    for options in ({"properties": many}, {"will": wire.Will(scene.name, b"", properties=many)}):
        client = scene.open()
        client.send(wire.connect(5, scene.name, **options))
        client.expect_refused(0x97)


@reaches("user_property_bytes_max", versions=(5,))
def _user_property_bytes(scene: Scene) -> None:
    client = scene.client()
    client.publish(scene.name, properties={"user_property": [("a", "x" * 199)]})
    client.send(wire.publish(5, scene.name, properties={"user_property": [("a", "x" * 200)]}))
    client.expect_closed(0x97)


@reaches("filters_per_packet_max")
def _filters_per_packet(scene: Scene) -> None:
    filters = [f"{scene.name}/{number}" for number in range(9)]
    client = scene.client()
    assert client.subscribe(*filters[:8]) == (0,) * 8
    client.send(wire.unsubscribe(scene.version, 77, *filters))
    client.expect_closed(0x97)
    client = scene.client()
    client.send(wire.subscribe(scene.version, 77, *((text, 0) for text in filters)))
    client.expect_closed(0x97)


# ------------------------------------------------------------------------------------------------ connections


def _closed_at_once(clients: list[Client]) -> int:
    # how many of these were closed before they sent anything
    closed = 0
    for client in clients:
        with suppress(TimeoutError):
            try:
                client.read(0.05)
            except Closed:
                closed += 1
    return closed


def _serves_again(scene: Scene) -> None:
    def connected() -> bool:
        try:
            scene.client().close()
        except (Closed, AssertionError):
            return False
        return True

    wait_until(connected, SECONDS, "a client is served")


@reaches("connections_max", connections_max=4)
def _connections(scene: Scene) -> None:
    clients = [scene.open() for _ in range(12)]
    answers = []
    for number, client in enumerate(clients):
        client.send(wire.connect(scene.version, f"{scene.name}x{number}"))
        answers.append(client.read().reason)
    assert set(answers) == {0, 0x97 if scene.version == 5 else 3}
    assert answers.count(0) == 4
    assert scene.broker.logged("connections_max_reached")
    for client in clients:
        client.close()
    _serves_again(scene)


@reaches("connect_seconds_max", versions=(4,), connect_seconds_max=1.5)
def _connect_seconds(scene: Scene) -> None:
    silent, slow = scene.open(), scene.open()
    slow.send(wire.connect(4, scene.name)[:5])
    silent.expect_closed()
    slow.expect_closed()


@reaches("half_open_per_address_max", versions=(4,), half_open_per_address_max=2)
def _half_open(scene: Scene) -> None:
    most = 2 * scene.broker.workers
    clients = [scene.open() for _ in range(30)]
    wait_until(lambda: scene.broker.counter("half_open_refused") >= 30 - most, SECONDS, "beyond the bound: refused")
    assert _closed_at_once(clients) >= 30 - most
    for client in clients:
        client.close()
    _serves_again(scene)
    for _ in range(20):  # clients that have sent CONNECT no longer count
        scene.client()


@reaches("connections_per_address_per_second_max", versions=(4,), connections_per_address_per_second_max=8)
def _connection_rate(scene: Scene) -> None:
    clients = [scene.open() for _ in range(60)]
    wait_until(lambda: scene.broker.counter("connection_rate_refused") >= 30, SECONDS, "most came too fast")
    assert _closed_at_once(clients) >= 30
    _serves_again(scene)


@reaches("takeovers_per_minute_max")
def _takeovers(scene: Scene) -> None:
    clients = [scene.client(scene.name) for _ in range(4)]
    for _ in range(2):
        newer = scene.open()
        newer.send(wire.connect(scene.version, scene.name))
        newer.expect_refused(0x97 if scene.version == 5 else 3)
    clients[-1].expect_silence()
    [first, *_] = [line for line in scene.broker.logged("takeover_refused") if line["client"] == scene.name]
    old = "{}:{}".format(*clients[-1].socket.getsockname())
    assert first["address_connected"] == old
    assert first["address"].startswith("127.0.0.1:")
    assert first["address"] != old


@reaches("keep_alive_seconds_max", versions=(5,))
def _keep_alive(scene: Scene) -> None:
    assert scene.client(keep_alive=100).connack.properties["server_keep_alive"] == 60
    assert scene.client(keep_alive=0).connack.properties["server_keep_alive"] == 60
    assert "server_keep_alive" not in scene.client(keep_alive=59).connack.properties


def _publish_through(scene: Scene, count: int, payload: bytes) -> None:
    client = scene.client()
    client.send(*(wire.publish(scene.version, scene.name, payload, qos=1, packet_id=n + 1) for n in range(count)))
    for number in range(count):
        client.expect("PUBACK", packet_id=number + 1)
    client.expect_silence()


@reaches("publish_per_second_max", publish_per_second_max=20)
def _publish_rate(scene: Scene) -> None:
    _publish_through(scene, 40, b"x")


@reaches("publish_bytes_per_second_max", publish_bytes_per_second_max=10_000)
def _publish_bytes_rate(scene: Scene) -> None:
    _publish_through(scene, 3, b"x" * 8000)


@reaches("outbox_bytes_max", versions=(4,), outbox_bytes_max=4096)
def _outbox(scene: Scene) -> None:
    subscriber, publisher = scene.client(), scene.client()
    subscriber.subscribe(scene.name)
    publisher.send(*[wire.publish(4, scene.name, b"x" * 16_000)] * 1000)
    wait_until(lambda: scene.broker.counter("dropped_outbox_full"), SECONDS, "drops")
    publisher.expect_silence()


@reaches("share_large_bytes")
def _share_large(scene: Scene) -> None:
    subscriber, publisher = scene.client(), scene.client()
    subscriber.subscribe(scene.name)
    for size in (499, 500, 501):
        publisher.publish(scene.name, b"x" * size)
        subscriber.receive(scene.name, b"x" * size)


# --------------------------------------------------------------------------------------------------- sessions


@reaches("session_expiry_seconds_max", versions=(5,))
def _session_expiry(scene: Scene) -> None:
    client = scene.client(properties={"session_expiry_interval": 7200})
    assert client.connack.properties["session_expiry_interval"] == 3600


@reaches("session_expiry_seconds_default_v3", versions=(4,), workers=(1,), session_expiry_seconds_default_v3=1)
def _session_expiry_v3(scene: Scene) -> None:
    scene.client(scene.name, clean=False).disconnect()
    wait_until(lambda: scene.broker.counter("sessions_expired"), SECONDS, "the session has expired")
    assert not scene.client(scene.name, clean=False).connack.session_present


@reaches("filters_per_session_max")
def _filters_per_session(scene: Scene) -> None:
    client = scene.client()
    for part in (0, 6):
        client.subscribe(*(f"{scene.name}/{part + number}" for number in range(6)))
    assert client.subscribe(scene.name) == (0x97 if scene.version == 5 else 0x80,)
    client.unsubscribe(f"{scene.name}/0")
    assert client.subscribe(scene.name) == (0,)


@reaches("filters_max", workers=(1,), filters_max=5)
def _filters(scene: Scene) -> None:
    clients = [scene.client() for _ in range(6)]
    codes = [client.subscribe(scene.name)[0] for client in clients]
    assert codes == [0] * 5 + [0x97 if scene.version == 5 else 0x80]
    clients[0].disconnect()
    wait_until(lambda: scene.broker.counter("subscriptions") == 4, SECONDS, "one has left")
    assert clients[5].subscribe(scene.name) == (0,)
    for client in clients[1:]:
        client.disconnect()
    wait_until(lambda: scene.broker.counter("subscriptions") == 0, SECONDS, "all have left")


@reaches("wildcard_arrangements_max", workers=(1,), wildcard_arrangements_max=2)
def _arrangements(scene: Scene) -> None:
    codes = [scene.client().subscribe(text)[0] for text in ("a/+", "b/+", "#", "+/+", "a")]
    assert codes == [0, 0, 0, 0x97 if scene.version == 5 else 0x80, 0]


@reaches("inflight_bytes_max", inflight_bytes_max=4000, inflight_max=100)
@reaches("inflight_max")
def _inflight(scene: Scene) -> None:
    subscriber, publisher = scene.lasting(scene.name), scene.client()
    bodies = [b"%d" % number * 1000 for number in range(6)]
    for body in bodies:
        publisher.publish(scene.name, body, qos=1)
    first = [subscriber.expect("PUBLISH", payload=body) for body in bodies[:4]]
    subscriber.expect_silence()
    for packet in first:
        subscriber.ack("PUBACK", packet.packet_id)
    for body in bodies[4:]:
        subscriber.receive(scene.name, body)


@reaches("queue_bytes_max", queue_bytes_max=10_000)
@reaches("queue_messages_max")
def _queue(scene: Scene) -> None:
    scene.offline(scene.name)
    publisher = scene.client()
    for _ in range(60):
        publisher.publish(scene.name, b"x" * 1000, qos=1)


@reaches("hold_seconds_max", environment={"MQTTD_QUEUE_FULL": "hold"}, hold_seconds_max=0.5, queue_messages_max=10)
def _hold(scene: Scene) -> None:
    scene.offline(scene.name)
    publisher = scene.client()
    for number in range(40):
        publisher.publish(scene.name, b"%d" % number, qos=1)
    held = sum(scene.broker.counter(name) for name in ("queues_held", "queue_full_held"))
    assert held >= 2


@reaches("retained_walks_per_session_max", retained_walks_per_session_max=1)
def _retained_walks(scene: Scene) -> None:
    publisher = scene.client()
    for number in range(600):
        publisher.publish(f"{scene.name}/{number}", b"%d" % number, retain=True)
    publisher.publish(scene.name, qos=1)
    subscriber = scene.client()
    subscriber.subscribe(f"{scene.name}/#", f"{scene.name}/+", f"+/{0}")
    expected = {b"%d" % number: 2 for number in range(600)} | {b"0": 3}
    while expected:
        packet = subscriber.await_packet("PUBLISH")
        assert packet.retain
        expected[packet.payload] -= 1
        if not expected[packet.payload]:
            del expected[packet.payload]
    subscriber.expect_silence()
    for number in range(600):
        publisher.publish(f"{scene.name}/{number}", retain=True)
    publisher.publish(scene.name, qos=1)


@reaches("retained_messages_max")
def _retained_messages(scene: Scene) -> None:
    publisher = scene.client()
    topics = [f"{scene.name}/{number}" for number in range(10 * scene.broker.workers)]
    for topic in topics:
        publisher.publish(topic, b"x", qos=1, retain=True)
    wait_until(
        lambda: scene.broker.counter("retained_messages") <= 3 * scene.broker.workers, SECONDS, "within the bound"
    )
    assert scene.broker.logged("retained_full")
    for topic in topics:
        publisher.publish(topic, qos=1, retain=True)
    wait_until(lambda: not scene.broker.counter("retained_messages"), SECONDS, "cleared")
    assert not scene.broker.counter("retained_bytes")


@reaches("retained_bytes_max", workers=(1,), retained_bytes_max=5_000)
def _retained_bytes(scene: Scene) -> None:
    publisher = scene.client()
    for number in range(10):
        publisher.publish(f"{scene.name}/{number}", b"x" * 1000, qos=1, retain=True)
    assert scene.broker.counter("retained_bytes") <= 5_000
    for number in range(10):
        publisher.publish(f"{scene.name}/{number}", qos=1, retain=True)
    assert not scene.broker.counter("retained_bytes")


@reaches("worker_memory_bytes_max", worker_memory_bytes_max=1_000_000, hold_seconds_max=0.5)
def _memory(scene: Scene) -> None:
    wait_until(lambda: len(scene.broker.logged("memory_full")) == scene.broker.workers, SECONDS, "all have noticed")
    client = scene.open()
    client.send(wire.connect(scene.version, scene.name))
    client.expect_refused(0x97 if scene.version == 5 else 3)


#: No disk has room for this reserve: the store is full from the beginning
FULL_STORE = {"MQTTD_STORE": "leveldb", "MQTTD_LEVELDB__RESERVE_BYTES": str(1 << 60)}


@reaches("store_error_seconds_max", environment=FULL_STORE, store_error_seconds_max=0.5)
def _store_error(scene: Scene) -> None:
    subscriber, publisher = scene.client(), scene.client()
    subscriber.subscribe(scene.name)
    wait_until(lambda: len(scene.broker.logged("store_full")) == scene.broker.workers, SECONDS, "all have noticed")
    wait_until(lambda: _is_refused(publisher, scene.name), SECONDS, "siblings have heard of it")
    publisher = scene.client()
    publisher.publish(scene.name, b"at QoS 0")
    assert any(subscriber.expect("PUBLISH").payload == b"at QoS 0" for _ in range(100))


def _is_refused(publisher: Client, topic: str) -> bool:
    publisher.send(wire.publish(publisher.version, topic, b"not at QoS 1", qos=1, packet_id=1))
    if publisher.version == 5:
        return publisher.expect("PUBACK").reason == 0x97
    try:
        publisher.expect("PUBACK")
    except Closed:
        return True
    return False


# ---------------------------------------------------------------------------------------------------- fairness


@reaches("tick_connection_bytes_max", versions=(4,))
def _tick_bytes(scene: Scene) -> None:
    before = scene.broker.counter("recv_calls")
    client = scene.client()
    client.send(*[wire.publish(4, scene.name, b"x" * 1000)] * 30)
    client.expect_silence()
    assert scene.broker.counter("recv_calls") - before >= 30_000 // 4096


@reaches("tick_connection_packets_max")
@reaches("tick_filters_max")
@reaches("filters_per_second_max", filters_per_second_max=20)
def _tick_packets(scene: Scene) -> None:
    client = scene.client()
    client.send(*[wire.subscribe(client.version, 1, (scene.name, 0))] * 30)
    for _ in range(30):
        client.expect("SUBACK")


def _ids(workers: int, prefix: str) -> tuple[str, str]:
    # two client ids with different homes
    names = [f"{prefix}y{number}" for number in range(64)]
    other = next(each for each in names if home(each, workers) != home(names[0], workers))
    return names[0], other


@reaches("tick_peer_bytes_max", versions=(4,), workers=(4,), tick_peer_bytes_max=65_536)
def _tick_peer(scene: Scene) -> None:
    one, other = _ids(4, scene.name)
    subscriber, publisher = scene.client(one), scene.client(other)
    subscriber.subscribe(scene.name)
    publisher.send(*[wire.publish(4, scene.name, b"%05d" % number + b"x" * 7000) for number in range(120)])
    for number in range(120):
        assert subscriber.expect("PUBLISH").payload[:5] == b"%05d" % number


# --------------------------------------------------------------------------------------------------- hand-offs


def _connect_to_a_stopped_home(scene: Scene, counter: str) -> None:
    away = scene.broker.counter("peers_away")
    pid = scene.broker.worker_pids()[home(scene.name, 4)]
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: scene.broker.counter("peers_away") >= away + 3, SECONDS, "its siblings have noticed")
        for _ in range(16):  # some are accepted by the stopped worker
            scene.open().send(wire.connect(scene.version, scene.name))
        wait_until(lambda: scene.broker.counter(counter), SECONDS, "refused")
    finally:
        os.kill(pid, signal.SIGCONT)
    _serves_again(scene)


@reaches("handoff_seconds_max", versions=(5,), workers=(4,), handoff_seconds_max=0.5, link_silence_seconds_max=1.0)
def _handoff_seconds(scene: Scene) -> None:
    _connect_to_a_stopped_home(scene, "handoff_timeouts")


@reaches("handoff_pending_max", versions=(5,), workers=(4,), handoff_pending_max=1, link_silence_seconds_max=1.0)
def _handoff_pending(scene: Scene) -> None:
    _connect_to_a_stopped_home(scene, "handoffs_refused")


@reaches("log_lines_per_second_max", versions=(4,), workers=(1,), log_lines_per_second_max=1)
def _log_lines(scene: Scene) -> None:
    for _ in range(10):
        scene.client().disconnect()
    wait_until(lambda: scene.broker.logged("log_suppressed"), SECONDS, "it is said how many lines are missing")


# --------------------------------------------------------------------------------------------------- the tests


@pytest.fixture(scope="module")
def brokers() -> Iterator[Callable[[Scenario, int, str], CountedBroker]]:
    """Return the broker of a scenario; scenarios with the same bounds share one."""
    running: dict[Any, CountedBroker] = {}

    def find(scenario: Scenario, workers: int, store: str) -> CountedBroker:
        key = (workers, store, *sorted(scenario.limits.items()), *sorted(scenario.environment.items()))
        if key not in running:
            environment = {**scenario.environment, "MQTTD_STORE": store}
            broker = CountedBroker(workers, environment=environment, **scenario.limits)
            running[key] = broker.start()
        return running[key]

    yield find
    with ThreadPoolExecutor(8) as pool:
        ended = list(pool.map(BrokerProcess.stop, running.values()))
    for broker, status in zip(running.values(), ended, strict=True):
        said = broker.stderr()
        broker.forget()
        assert status == 0, said[-20000:]
        assert "Traceback" not in said, said[-20000:]


def counter_of(limit: str) -> str:
    """Return the bound's counter, or an empty string if it has none."""
    extra = Limits.model_fields[limit].json_schema_extra
    assert isinstance(extra, dict)
    kind, _, name = str(extra["counter"]).rpartition(" ")
    return "" if kind == "log" else name


@pytest.mark.parametrize(("limit", "version", "many", "on"), cases())
def test_a_bound_is_reached_counted_and_survived(
    limit: str, version: int, many: int, on: str, name: str, brokers: Callable[[Scenario, int, str], CountedBroker]
) -> None:
    scenario = SCENARIOS[limit]
    broker = brokers(scenario, many, on)
    counter = counter_of(limit)
    before = broker.counter(counter) if counter else 0
    scene = Scene(broker, version, name)
    try:
        scenario.run(scene)
        if counter:
            wait_until(lambda: broker.counter(counter) > before, SECONDS, f"{counter} has risen")
    finally:
        for client in scene.opened:
            # no connection of one scenario is still open in the next
            with suppress(OSError):
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
    assert broker.alive()
    assert broker.counter("internal_errors") == 0
    wait_until(lambda: broker.counter("connections") == 0, SECONDS, "all connections are gone")

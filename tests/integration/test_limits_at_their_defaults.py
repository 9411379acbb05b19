"""Every bound of broker/config/limits.py at its default: the most that it allows is accepted, one more is not.

test_limits.py makes bounds small, so that they are cheap to reach; a length field that is too narrow, a packet that
outgrows a buffer, or a walk that takes too long shows only at the defaults. `AT_DEFAULT` has a scenario for each bound,
over a socket or (where a second of the clock or a hundred thousand filters would take too long) to a worker in this
process; `OUT_OF_REACH` gives the reason for each bound without one. A test fails if a new bound is in neither.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from broker.config.limits import Limits
from tests import wire
from tests.broker_process import KIND, STORES
from tests.counted import CountedBroker
from tests.integration.test_limits import SECONDS, Scene
from tests.kept_host import NEVER, lasting, let_go, on_disk
from tests.sansio import Host, Peer
from tests.waiting import wait_until
from tests.wire import Client

pytestmark = pytest.mark.skipif(KIND != "mqttd", reason="bounds and counters are mqttd's own")

LIMITS = Limits()
KIB = 1024
QUOTA_EXCEEDED = 0x97
PACKET_FILTERS = 5000

OnWire = Callable[[Scene], None]
InProcess = Callable[[Host], None]
ON_WIRE: dict[str, tuple[OnWire, int]] = {}
IN_PROCESS: dict[str, InProcess] = {}

A_PERIOD = "a period: how long it is changes nothing but the test's duration (test_limits.py, the test of the settings)"
OFF = "0, which is off: every other scenario here passes without it"
OUT_OF_REACH = {
    "connections_max": "0: as many as there are descriptors (test_few_descriptors.py)",
    "connections_per_address_per_second_max": OFF,
    "publish_per_second_max": OFF,
    "publish_bytes_per_second_max": OFF,
    "worker_memory_bytes_max": OFF,
    "connect_seconds_max": A_PERIOD,
    "hold_seconds_max": A_PERIOD,
    "store_error_seconds_max": A_PERIOD,
    "handoff_seconds_max": A_PERIOD,
    "link_silence_seconds_max": A_PERIOD,
    "peer_stall_seconds_max": A_PERIOD,
    "worker_hang_seconds_max": A_PERIOD,
    "stop_seconds_max": A_PERIOD,
    "auth_cache_seconds_max": A_PERIOD,
    "archive_gather_milliseconds_max": A_PERIOD,
    "store_unwritten_bytes_max": "64 MiB that a slow disk does not take: test_no_room.py has 8 MiB",
    "half_open_per_address_max": "16,384 sockets of this process and as many of the broker's",
    "filters_max": "ten million subscriptions: some GB of memory",
    "sessions_max": "a million sessions: a GB of memory",
    "retained_messages_max": "a million retained messages: a minute",
    "replays_max": "a thousand readers of an archive: tests/unit/broker/replay/test_limits_of_replays.py has three",
    "replays_per_session_max": "needs an archive: tests/unit/broker/replay/test_limits_of_replays.py",
    "replays_for_hosts_max": "needs a cluster: tests/unit/broker/replay/test_replays_of_hosts.py has it small",
    "replay_page_bytes": "its default is what tests/unit/broker/replay/test_replaying.py has, and test_replay.py",
    "archive_pending_bytes_max": "64 MiB that no disk takes: tests/unit/pyx/storage/test_archiving.py has it small",
    "tick_peer_bytes_max": "a threshold; its default is what every broker of four workers has",
    "peer_outbox_bytes_max": "64 MiB that a sibling does not take: tests/unit/zmq_mesh/test_links.py has it small",
    "handoff_log_bytes_max": "256 MiB for a sibling that is away: tests/unit/zmq_mesh/test_links.py has it small",
    "handoff_pending_max": "a thousand connections for a worker that does not run, within five seconds",
    "auth_pending_max": "500 logins that wait for a hash",
    "auth_threads_max": "a threshold; its default is what tests/conformance/test_credentials.py has",
    "auth_cache_entries_max": "100,000 logins, each with a hash",
    "auth_data_bytes_max": "needs users: tests/conformance/test_credentials.py::test_a_bad_first_message",
}


def on_wire(*limits: str, version: int = 5) -> Callable[[OnWire], OnWire]:
    """Register a scenario for these bounds, of a client of this version."""

    def register(run: OnWire) -> OnWire:
        ON_WIRE.update(dict.fromkeys(limits, (run, version)))
        return run

    return register


def in_process(*limits: str) -> Callable[[InProcess], InProcess]:
    """Register a scenario for these bounds with a host in this process."""

    def register(run: InProcess) -> InProcess:
        IN_PROCESS.update(dict.fromkeys(limits, run))
        return run

    return register


# ---------------------------------------------------------------------------------------------------- packets


@on_wire("packet_bytes_max")
def _packet_bytes(scene: Scene) -> None:
    client = scene.client()
    room = LIMITS.packet_bytes_max - len(wire.publish(5, scene.name, bytes(1 << 22), qos=1, packet_id=7)) + (1 << 22)
    largest = wire.publish(5, scene.name, os.urandom(room), qos=1, packet_id=7, retain=True)
    assert len(largest) == LIMITS.packet_bytes_max
    client.send(largest)
    assert client.expect("PUBACK", packet_id=7).reason < 0x80
    client.subscribe((scene.name, 1))
    assert client.await_packet("PUBLISH").payload == largest[-room:]
    client.send(wire.publish(5, scene.name, bytes(room + 1), qos=1, packet_id=8))
    client.expect_closed(0x95)
    scene.client().publish(scene.name, qos=1, retain=True)


def _connect_of(name: str, size: int) -> bytes:
    # five fields of the greatest length, as far as they fit
    pairs = {"user_property": [("k", "v" * 65_535)]}
    will = wire.Will(name.ljust(LIMITS.topic_bytes_max, "w"), bytes(65_535), 1, False, pairs)
    options: dict[str, Any] = {"username": "u" * 65_535, "will": will, "properties": pairs, "clean": False}
    client_id = name.ljust(65_535, "c")
    rest = size - len(wire.connect(5, client_id, password=b"", **options))
    packet = wire.connect(5, client_id, password=b"p" * rest, **options)
    assert len(packet) == size
    return packet


@on_wire("connect_bytes_max")
def _connect_bytes(scene: Scene) -> None:
    client = scene.open()
    client.send(_connect_of(scene.name, LIMITS.connect_bytes_max))
    assert client.expect("CONNACK").reason == 0
    client.disconnect(4)
    other = scene.open()
    other.send(_connect_of(scene.name, LIMITS.connect_bytes_max + 1))
    other.expect_refused(0x95)


@on_wire("topic_bytes_max", "topic_levels_max")
def _topics(scene: Scene) -> None:
    deep = [f"{scene.name}/" + "/".join("a" * (LIMITS.topic_levels_max - 1 + more)) for more in (0, 1)]
    for fits, beyond in (deep, [scene.name.ljust(LIMITS.topic_bytes_max + more, "x") for more in (0, 1)]):
        client = scene.client()
        assert client.subscribe((fits, 1), (beyond, 1)) == (1, 0x8F)
        assert client.publish(fits, b"fits", qos=1, retain=True) == 0
        client.receive(fits, b"fits")
        assert client.publish(beyond, b"x", qos=1) == 0x90
        client.publish(fits, qos=1, retain=True)
        other = scene.open()
        other.send(wire.connect(5, f"{scene.name}w", will=wire.Will(beyond, b"")))
        other.expect_refused(0x90)


@on_wire("share_name_bytes_max")
def _share_name(scene: Scene) -> None:
    client = scene.client()
    fits, beyond = ("x" * (LIMITS.share_name_bytes_max + more) for more in (0, 1))
    assert client.subscribe((f"$share/{fits}/{scene.name}", 1), (f"$share/{beyond}/{scene.name}", 1)) == (1, 0x8F)
    scene.client().publish(scene.name, b"to a member", qos=1)
    client.receive(scene.name, b"to a member")


@on_wire("topic_alias_max")
def _topic_alias(scene: Scene) -> None:
    client = scene.client()
    assert client.connack.properties["topic_alias_maximum"] == LIMITS.topic_alias_max
    client.publish(scene.name, properties={"topic_alias": LIMITS.topic_alias_max})
    client.publish("", properties={"topic_alias": LIMITS.topic_alias_max})
    client.send(wire.publish(5, scene.name, properties={"topic_alias": LIMITS.topic_alias_max + 1}))
    client.expect_closed(0x94)


@on_wire("topic_alias_out_max")
def _topic_alias_out(scene: Scene) -> None:
    subscriber, publisher = scene.client(properties={"topic_alias_maximum": 65_535}), scene.client()
    subscriber.subscribe(f"{scene.name}/#")
    rounds, topics = 20, [f"{scene.name}/{'long' * 8}/{number}" for number in range(LIMITS.topic_alias_out_max + 5)]
    publisher.send(*(wire.publish(5, topic, b"x") for _ in range(rounds) for topic in topics))
    packets = [subscriber.expect("PUBLISH") for _ in range(rounds * len(topics))]
    aliases = {packet.properties["topic_alias"] for packet in packets if "topic_alias" in packet.properties}
    assert aliases
    assert max(aliases) <= LIMITS.topic_alias_out_max


@on_wire("v31_client_id_characters_max", version=3)
def _v31_client_id(scene: Scene) -> None:
    for length in (1, LIMITS.v31_client_id_characters_max):
        scene.client(scene.name[:1].ljust(length, "c")).disconnect()


@on_wire("receive_maximum")
def _receive_maximum(scene: Scene) -> None:
    client = scene.client()
    most = LIMITS.receive_maximum
    client.send(*(wire.publish(5, scene.name, b"x", qos=2, packet_id=each) for each in range(1, most + 1)))
    for packet_id in range(1, most + 1):
        client.expect("PUBREC", packet_id=packet_id)
    client.expect_silence()
    client.send(wire.publish(5, scene.name, b"x", qos=2, packet_id=most + 1))
    client.expect_closed(0x93)


@on_wire("user_properties_max", "user_property_bytes_max")
def _user_properties(scene: Scene) -> None:
    subscriber = scene.client()
    subscriber.subscribe((scene.name, 1))
    many = [("k", str(number)) for number in range(LIMITS.user_properties_max + 1)]
    long = [("k" * (1 + more), "v" * (LIMITS.user_property_bytes_max - 1)) for more in (0, 1)]
    for fits, beyond in ((many[:-1], many), (long[:1], long[1:])):
        client = scene.client()
        assert client.publish(scene.name, b"x", qos=1, properties={"user_property": fits}) == 0
        assert subscriber.receive(scene.name, b"x").properties["user_property"] == fits
        client.send(wire.publish(5, scene.name, properties={"user_property": beyond}))
        client.expect_closed(QUOTA_EXCEEDED)


@on_wire("filters_per_packet_max", "filters_per_second_max", "tick_filters_max", version=4)
def _filters_per_packet(scene: Scene) -> None:
    held = scene.broker.counter("filters_rate_held")
    client = scene.client()
    filters = [f"{scene.name}/{number}" for number in range(LIMITS.filters_per_packet_max + 1)]
    assert client.subscribe(*filters[:-1]) == (0,) * LIMITS.filters_per_packet_max
    assert scene.broker.counter("filters_rate_held") == held
    client.send(wire.unsubscribe(4, 1, *filters[: LIMITS.filters_per_second_max]))
    wait_until(lambda: scene.broker.counter("filters_rate_held") > held, SECONDS, "the next packet waits")
    other = scene.client()
    other.send(wire.subscribe(4, 77, *((text, 0) for text in filters)))
    other.expect_closed()


# ------------------------------------------------------------------------------------------------ connections


@on_wire("takeovers_per_minute_max")
def _takeovers(scene: Scene) -> None:
    client_id = f"{scene.name}x"
    for _ in range(LIMITS.takeovers_per_minute_max + 1):
        scene.client(client_id)
    other = scene.open()
    other.send(wire.connect(5, client_id))
    other.expect_refused(QUOTA_EXCEEDED)
    scene.opened[-2].expect_silence()


@on_wire("keep_alive_seconds_max")
def _keep_alive(scene: Scene) -> None:
    for asked in (0, 1, 65_535):
        assert "server_keep_alive" not in scene.client(keep_alive=asked).connack.properties


@on_wire("outbox_bytes_max")
def _outbox(scene: Scene) -> None:
    deaf, publisher = scene.client(), scene.client()
    deaf.subscribe((scene.name, 0))
    before = scene.broker.counter("dropped_outbox_full")
    publisher.send(*[wire.publish(5, scene.name, bytes(16 * KIB))] * 2000)
    publisher.expect_silence()
    wait_until(lambda: scene.broker.counter("dropped_outbox_full") > before, SECONDS, "QoS 0 is dropped")


@on_wire("share_large_bytes")
def _share_large(scene: Scene) -> None:
    subscribers, publisher = [scene.client() for _ in range(2)], scene.client()
    for each in subscribers:
        each.subscribe((scene.name, 1))
    for size in (0, 1, LIMITS.share_large_bytes - 1, LIMITS.share_large_bytes, LIMITS.share_large_bytes + 1):
        publisher.publish(scene.name, bytes(size), qos=1)
        for each in subscribers:
            each.receive(scene.name, bytes(size))


@on_wire("log_lines_per_second_max")
def _log_lines(scene: Scene) -> None:
    for _ in range(2 * LIMITS.log_lines_per_second_max):
        scene.client().close()
    wait_until(lambda: scene.broker.logged("log_suppressed"), SECONDS, "it is said how many lines are missing")


@on_wire("tick_connection_bytes_max", "tick_connection_packets_max")
def _ticks(scene: Scene) -> None:
    before = scene.broker.counter("tick_packets_carried")
    client = scene.client()
    client.subscribe(scene.name)
    count = 4 * LIMITS.tick_connection_packets_max
    client.send(*(wire.publish(5, scene.name, b"%d" % number) for number in range(count)))
    assert [client.expect("PUBLISH").payload for _ in range(count)] == [b"%d" % number for number in range(count)]
    wait_until(lambda: scene.broker.counter("tick_packets_carried") > before, SECONDS, "others had their turn")


# ---------------------------------------------------------------------------------------- sessions and memory


@on_wire("inflight_max", version=4)
def _inflight(scene: Scene) -> None:
    subscriber, publisher = scene.client(), scene.client()
    subscriber.subscribe((scene.name, 1))
    for number in range(LIMITS.inflight_max + 1):
        publisher.publish(scene.name, b"%d" % number, qos=1)
    first = [subscriber.expect("PUBLISH", payload=b"%d" % number) for number in range(LIMITS.inflight_max)]
    subscriber.expect_silence()
    subscriber.ack("PUBACK", first[0].packet_id)
    subscriber.receive(scene.name, b"%d" % LIMITS.inflight_max)


@on_wire("inflight_bytes_max")
def _inflight_bytes(scene: Scene) -> None:
    subscriber, publisher = scene.lasting(scene.name), scene.client()
    body = b"x" * (LIMITS.inflight_bytes_max // 4)
    for _ in range(6):
        publisher.publish(scene.name, body, qos=1)
    first = [subscriber.await_packet("PUBLISH") for _ in range(4)]
    subscriber.expect_silence()
    subscriber.ack("PUBACK", first[0].packet_id)
    assert subscriber.await_packet("PUBLISH").payload == body


@on_wire("retained_walks_per_session_max")
def _retained_walks(scene: Scene) -> None:
    publisher = scene.client()
    topics = [f"{scene.name}/{number}" for number in range(300)]
    publisher.send(*(wire.publish(5, topic, b"x", retain=True) for topic in topics))
    publisher.expect_silence()
    before = scene.broker.counter("retained_walks_deferred")
    subscriber = scene.client()
    several = [f"{scene.name}/+{'/#' * (number % 2)}" for number in range(2)]
    many = [*several, *(f"+/{number}" for number in range(LIMITS.retained_walks_per_session_max))]
    subscriber.subscribe(*many)
    expected = 2 * len(topics) + LIMITS.retained_walks_per_session_max
    assert all(subscriber.await_packet("PUBLISH").retain for _ in range(expected))
    subscriber.expect_silence()
    assert scene.broker.counter("retained_walks_deferred") > before
    publisher.send(*(wire.publish(5, topic, b"", retain=True) for topic in topics))
    publisher.expect_silence()


@on_wire("retained_bytes_max")
def _retained_bytes(scene: Scene) -> None:
    publisher = scene.client()
    before, refused = scene.broker.counter("retained_messages"), scene.broker.counter("retained_refused")
    body = bytes(LIMITS.packet_bytes_max - 4 * KIB)
    topics = [f"{scene.name}/{number}" for number in range(LIMITS.retained_bytes_max // len(body) + 1)]
    for topic in topics:
        publisher.publish(topic, body, qos=1, retain=True)
    assert scene.broker.counter("retained_messages") == before + len(topics) - 1
    assert scene.broker.counter("retained_refused") == refused + 1
    assert scene.broker.counter("retained_bytes") <= LIMITS.retained_bytes_max
    for topic in topics:
        publisher.publish(topic, qos=1, retain=True)
    assert scene.broker.counter("retained_messages") == before


# ------------------------------------------------------------------------------------------------- in process


def _waiting(host: Host, version: int = 4) -> None:
    client = lasting(host, "waits", version)
    client.subscribe(("t/#", 1))
    client.disconnect()


def _publish(host: Host, publisher: Peer, bodies: list[bytes]) -> None:
    for at in range(0, len(bodies), 50):
        for body in bodies[at : at + 50]:
            publisher.publish("t/x", body, qos=1)
        host.settle()
        publisher.packets.clear()


def _first_of(host: Host, sent: list[bytes], most: int) -> None:
    # drop_newest; a queue is measured each time it has grown by a 32nd of its bound
    got = [packet.payload for packet in lasting(host, "waits").receive()]
    slack = most // 32 + 1
    assert got[: most - slack] == sent[: most - slack]
    assert got == sorted(got, key=int)
    assert most - slack <= len(got) <= most + slack
    assert host.counters()["dropped_queue_full"] == len(sent) - len(got) > 0
    host.check_books()


@in_process("queue_messages_max")
def _queue_messages(host: Host) -> None:
    _waiting(host)
    publisher = host.connect("p")
    most = LIMITS.queue_messages_max
    bodies = [b"%d" % number for number in range(most + most // 16)]
    _publish(host, publisher, bodies[:most])
    assert host.counters()["dropped_queue_full"] == 0
    _publish(host, publisher, bodies[most:])
    _first_of(host, bodies, most)


@in_process("queue_bytes_max")
def _queue_bytes(host: Host) -> None:
    _waiting(host)
    publisher = host.connect("p")
    most = LIMITS.queue_bytes_max // (64 * KIB)
    bodies = [b"%d".ljust(64 * KIB - 16) % number for number in range(most + most // 16 + 1)]
    _publish(host, publisher, bodies[: most - 1])
    assert host.counters()["dropped_queue_full"] == 0
    _publish(host, publisher, bodies[most - 1 :])
    _first_of(host, bodies, most)


@in_process("wildcard_arrangements_max")
def _arrangements(host: Host) -> None:
    client = lasting(host, "c", 5)
    most = LIMITS.wildcard_arrangements_max
    filters = ["/".join(levels) for levels in itertools.product("x+", repeat=11)][1 : most + 2]
    assert client.subscribe(*((text, 1) for text in filters)) == [1] * most + [QUOTA_EXCEEDED]
    host.pass_time(5)
    assert client.subscribe((filters[0].replace("x", "y"), 1), (filters[0], 1)) == [1, 1]


@in_process("filters_per_session_max")
def _filters_per_session(host: Host) -> None:
    client = lasting(host, "c", 5)
    most = LIMITS.filters_per_session_max
    filters = [(f"f/{number}", 1) for number in range(most)]
    for at in range(0, most, PACKET_FILTERS):
        client.send(wire.subscribe(5, at // PACKET_FILTERS + 1, *filters[at : at + PACKET_FILTERS]))
        while not client.packets:  # filters_per_second_max
            host.pass_time(1)
        assert set(client.next("SUBACK").codes) == {1}
    host.pass_time(5)
    assert client.subscribe(("one/more", 1), ("f/0", 1)) == [QUOTA_EXCEEDED, 1]  # it has the second already
    host.lose(client)
    publisher = host.connect("p")
    for number in (0, most - 1):
        publisher.publish(f"f/{number}", b"%d" % number, qos=1)
    again = lasting(host, "c", 5)
    assert again.session.subscriptions == most
    assert [packet.payload for packet in again.receive()] == [b"0", b"%d" % (most - 1)]


@in_process("session_bytes_max")
def _session_bytes(host: Host) -> None:
    client = lasting(host, "c", 5)
    size = LIMITS.topic_bytes_max
    codes: list[int] = []
    for at in range(0, LIMITS.session_bytes_max // size + 1, 500):
        filters = [(f"{number}/".ljust(size, "x"), 1) for number in range(at, at + 500)]
        client.send(wire.subscribe(5, at + 1, *filters))
        while not client.packets:
            host.pass_time(1)
        codes += client.next("SUBACK").codes
    granted = codes.count(1)
    assert codes == [1] * granted + [QUOTA_EXCEEDED] * (len(codes) - granted)
    assert granted == (LIMITS.session_bytes_max - 1) // (size + 1)  # the client id, and once more for each
    host.pass_time(5)
    client.unsubscribe("0/".ljust(size, "x"))
    assert client.subscribe(("last/".ljust(size, "x"), 1)) == [1]


@in_process("session_expiry_seconds_max")
def _session_expiry(host: Host) -> None:
    most = LIMITS.session_expiry_seconds_max
    for asked in (1, most - 1, most, most + 1, NEVER):
        client = host.open(5)
        properties = {"session_expiry_interval": asked}
        client.send(wire.connect(5, f"c{asked}", clean=False, properties=properties))
        host.settle()
        told = client.next("CONNACK").properties.get("session_expiry_interval", asked)
        assert told == min(asked, most)
        host.lose(client)
    _later(host, most - 10)
    left = [session.client_id for session in host.node.sessions]
    assert left == [f"c{asked}" for asked in (most - 1, most, most + 1, NEVER)]
    _later(host, 11)
    assert not list(host.node.sessions)


@in_process("session_expiry_seconds_default_v3")
def _session_expiry_v3(host: Host) -> None:
    lasting(host, "c", 4).disconnect()
    _later(host, LIMITS.session_expiry_seconds_default_v3 - 10)
    assert host.node.sessions.get("c") is not None
    _later(host, 11)
    assert host.node.sessions.get("c") is None


def _later(host: Host, seconds: int) -> None:
    host.now_ms += seconds * 1000 - 1000
    host.pass_time(1)


# --------------------------------------------------------------------------------------------------- the tests


@pytest.fixture(scope="module")
def brokers() -> Iterator[Callable[[str], CountedBroker]]:
    """Return the broker of a store, with default limits."""
    running: dict[str, CountedBroker] = {}

    def find(store: str) -> CountedBroker:
        if store not in running:
            running[store] = CountedBroker(1, environment={"MQTTD_STORE": store}).start()
        return running[store]

    yield find
    for broker in running.values():
        status, said = broker.stop(), broker.stderr()
        broker.forget()
        assert status == 0, said[-20000:]
        assert "Traceback" not in said, said[-20000:]


def test_every_bound_is_reached_at_its_default_or_it_is_said_why_not() -> None:
    assert not OUT_OF_REACH.keys() & (ON_WIRE.keys() | IN_PROCESS.keys())
    assert OUT_OF_REACH.keys() | ON_WIRE.keys() | IN_PROCESS.keys() == Limits.model_fields.keys()


@pytest.mark.parametrize("on", STORES)
@pytest.mark.parametrize("run", dict.fromkeys(run for run, _ in ON_WIRE.values()), ids=lambda run: run.__name__[1:])
def test_over_a_socket(run: OnWire, on: str, name: str, brokers: Callable[[str], CountedBroker]) -> None:
    broker = brokers(on)
    version = next(version for other, version in ON_WIRE.values() if other is run)
    scene = Scene(broker, version, name)
    try:
        run(scene)
    finally:
        for client in scene.opened:
            _reset(client)
    assert broker.alive()
    assert broker.counter("internal_errors") == 0
    wait_until(lambda: broker.counter("connections") == 0, SECONDS, "all connections are gone")


def _reset(client: Client) -> None:
    # no connection of one scenario is still open in the next
    with suppress(OSError):
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize("on", STORES)
@pytest.mark.parametrize("run", IN_PROCESS.values(), ids=lambda run: run.__name__[1:])
def test_in_this_process(run: InProcess, on: str, tmp_path: Path) -> None:
    host = on_disk([tmp_path / "worker-0"]) if on == "leveldb" else Host()
    run(host)
    assert host.counters()["internal_errors"] == 0
    if on == "leveldb":
        let_go(host)

"""Published defects of other brokers, by their numbers: this broker must have none of them.

Most of them spend memory, time or state on behalf of a client that has not authenticated yet. Memory is that of all
processes of the broker; the bounds are far below the cost of each defect and far above what an interpreter allocates
now and then.

"""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests import wire
from tests.broker_process import KIND, BrokerProcess
from tests.conformance.conftest import Configured, OpenTo
from tests.waiting import let_pass
from tests.wire import Client, Closed, Connect, OpenConnection, Will

MIB = 1 << 20
SOON_SECONDS = 30.0
"""Time for a quick operation on a busy machine; a cost quadratic in the number of levels would take minutes."""
TOPIC_NAME_INVALID, TOPIC_FILTER_INVALID, RECEIVE_MAXIMUM_EXCEEDED = 0x90, 0x8F, 0x93
KEEP = {"session_expiry_interval": 60}

pytestmark = pytest.mark.skipif(KIND == "mosquitto", reason="about the memory and the limits of mqttd")


def end_of(client: Client) -> None:
    """Read until the broker has closed the connection."""
    try:
        while True:
            client.read()
    except Closed:
        client.close()


@pytest.mark.mqtt("5:4.13.1-1", "311:4.8.0-1")
def test_cve_2017_7651_memory_by_declared_length(
    broker: BrokerProcess, open_connection: OpenConnection, connect: Connect, version: int
) -> None:
    """Two hundred clients announce 15 MB each, as CONNECT or as PUBLISH, and send a few bytes: it costs no memory."""
    length = wire.varint(15 * MIB)
    before = broker.pss_bytes()
    for number in range(200):
        if number % 2:
            open_connection(version).send(b"\x10" + length + wire.binary("MQTT") + bytes([version, 2, 0, 0]))
        else:
            connect(version).send(b"\x30" + length + wire.binary("a") + b"payload" * 10)
    connect(version).expect_silence()
    assert broker.pss_bytes() - before < 4 * MIB


@pytest.mark.mqtt("5:3.1.0-1", "311:3.1.0-1")
def test_cve_2023_0809_first_packet_not_connect(broker: BrokerProcess, open_connection: OpenConnection) -> None:
    """Three hundred connections that begin with the header of a large PUBLISH are closed at once and leave nothing."""
    hostile = b"\x30" + wire.varint(15 * MIB) + wire.binary("a") + b"x" * 10_000
    for _ in range(20):
        first = open_connection(4)
        first.send(hostile)
        end_of(first)
    before = broker.pss_bytes()
    for _ in range(300):
        client = open_connection(4)
        client.send(hostile)
        end_of(client)
    assert broker.pss_bytes() - before < MIB


def bad_connects(name: str) -> list[bytes]:
    """CONNECTs that are malformed at every depth: flags, will properties, strings, bytes after the last field."""
    head, willing = wire.binary("MQTT"), b"\x05\x06\0\0\0" + wire.binary(name)
    long = [("k" * 1000, "v" * 1000)] * 5
    will = Will(name, b"w" * 5000, properties={"user_property": long})
    good = wire.connect(
        5, name, username="u" * 1000, password=b"p" * 1000, will=will, properties={"user_property": long}
    )
    body = good[1 + len(wire.varint(len(good) - 4)) :]
    return [
        wire.packet("CONNECT", 0, body[:-1]),  # the password is truncated
        wire.packet("CONNECT", 0, body, b"more"),
        wire.packet("CONNECT", 0, body[: len(body) // 2]),
        wire.connect(5, name, username="u" * 1000, will=Will("a/#", b"w" * 5000, properties={"user_property": long})),
        wire.connect(5, name, will=Will(name, b"w" * 5000, qos=3, properties={"user_property": long})),
        wire.packet("CONNECT", 0, head, willing, b"\x05\x11\0\0\0\1", wire.binary(name), b"\0\0"),
        wire.packet("CONNECT", 0, head, willing, b"\x02\x01\x01\x01", wire.binary(name), b"\0\0"),
        wire.connect(5, name, properties={"authentication_method": "m" * 1000, "authentication_data": b"d" * 5000}),
        wire.connect(5, name, properties={"user_property": long, "authentication_data": b"d" * 5000}),
        wire.connect(4, "", clean=False, will=Will(name, b"w" * 5000), username="u" * 1000),
        wire.connect(4, name, extra_flags=1, will=Will(name, b"w" * 5000)),
    ]  # fmt: skip


@pytest.mark.mqtt("5:3.1.4-1", "311:3.1.4-1")
def test_cve_2017_7654_and_2023_3592_leaking_connect(
    broker: BrokerProcess, open_connection: OpenConnection, name: str
) -> None:
    """Hundreds of refused CONNECTs of each kind, with many fields, leave nothing in memory."""

    def refuse(rounds: int) -> None:
        for _ in range(rounds):
            for data in bad_connects(name):
                client = open_connection(5 if data[1:].find(b"MQTT\x05") >= 0 else 4)
                client.send(data)
                end_of(client)

    refuse(20)
    before = broker.pss_bytes()
    refuse(100)
    assert broker.pss_bytes() - before < MIB


@pytest.mark.mqtt("5:4.3.3-10", "311:4.3.3-2")
def test_cve_2023_28366_repeated_identifiers(broker: BrokerProcess, connect: Connect, version: int, name: str) -> None:
    """The same QoS 2 message sent 20,000 times without PUBREL is kept once."""
    client = connect(version, name)
    data = wire.publish(version, name, b"x" * 1000, qos=2, packet_id=7, dup=True) * 100
    before = broker.pss_bytes()
    for _ in range(200):
        client.send(data)
        for _ in range(100):
            client.expect("PUBREC", packet_id=7)
    assert broker.pss_bytes() - before < 2 * MIB
    client.ack("PUBREL", 7)
    client.expect("PUBCOMP", packet_id=7, reason=0)
    client.expect_silence()


@pytest.mark.mqtt("5:3.3.4-7", "311:4.3.3-2")
def test_cve_2023_28366_identifiers_never_released(
    broker: BrokerProcess, connect: Connect, version: int, name: str
) -> None:
    """An endless series of QoS 2 messages without PUBREL is stopped: v5 at its window, v3 at its 65,535 identifiers."""
    watcher, client = connect(version), connect(version, name)
    watcher.subscribe(name)
    before = broker.pss_bytes()
    if version == 5:
        client.send(*(wire.publish(5, name, b"x", qos=2, packet_id=n) for n in range(1, 1000)))
        while (got := client.read()).kind == "PUBREC":
            pass
        assert (got.kind, got.reason) == ("DISCONNECT", RECEIVE_MAXIMUM_EXCEEDED)
        client.expect_closed()
    else:
        for start in range(1, 65536, 1000):
            numbers = range(start, min(start + 1000, 65536))
            client.send(*(wire.publish(4, name, b"", qos=2, packet_id=n) for n in numbers))
            for number in numbers:
                client.expect("PUBREC", packet_id=number)
                watcher.expect("PUBLISH", topic=name)
        assert broker.pss_bytes() - before < 4 * MIB
        client.disconnect()
    again = connect(version, name)
    again.publish(name, b"new", qos=2)
    while watcher.expect("PUBLISH").payload != b"new":
        pass


@pytest.mark.mqtt("5:4.7.3-3", "311:4.7.3-3")
@pytest.mark.parametrize(
    "what", ["/" * 65535, "+/" * 32767 + "+", "a/" * 32767 + "#"], ids=["slashes", "plus", "names"]
)
def test_cve_2019_11779_levels(
    open_connection: OpenConnection, connect: Connect, version: int, name: str, what: str
) -> None:
    """A filter or topic of up to 65,536 levels is refused as documented, and at once."""
    witness, client = connect(version), connect(version)
    began = time.monotonic()
    assert client.subscribe(what, name, qos=1) == (TOPIC_FILTER_INVALID if version == 5 else 0x80, 1)
    client.unsubscribe(what)
    client.send(wire.publish(version, what.replace("+", "p").replace("#", "h"), b"x", qos=1, packet_id=9))
    if version == 5:  # by PUBACK or by DISCONNECT
        assert client.read().reason == TOPIC_NAME_INVALID
    else:
        client.expect_closed()
    dying = open_connection(version)
    dying.send(wire.connect(version, name, will=Will(what.replace("+", "p").replace("#", "h"), b"x")))
    dying.close()
    witness.expect_silence()
    assert time.monotonic() - began < SOON_SECONDS


@pytest.mark.mqtt("5:4.7.1-2", "5:4.7.3-3", "311:4.7.1-3", "311:4.7.3-3")
def test_cve_2019_11779_levels_that_are_allowed(
    configured: Configured, open_to: OpenTo, workers: int, version: int, name: str
) -> None:
    """If the limits allow 65,535 levels, filters and topics of 32,768 levels match without deep stacks or delay."""
    broker = configured(workers, {"LIMITS__TOPIC_LEVELS_MAX": 65535, "LIMITS__TOPIC_BYTES_MAX": 65535})
    subscriber, publisher = open_to(broker, version), open_to(broker, version)
    subscriber.connect(f"{name}s")
    publisher.connect(f"{name}p")
    topic = "a/" * 32766 + "a"
    filters = ["+/" * 32766 + "+", topic, "a/" * 32765 + "#", "a/+/" * 16383 + "a"]
    assert subscriber.subscribe(*filters, qos=1) == (1, 1, 1, 1)
    began = time.monotonic()
    publisher.publish(topic, b"deep", qos=1, retain=True)
    subscriber.receive(topic, b"deep", qos=1)
    assert subscriber.subscribe(filters[0], qos=1) == (1,)
    subscriber.receive(topic, b"deep", retain=True)
    subscriber.unsubscribe(*filters)
    publisher.publish(topic, b"", qos=1, retain=True)
    subscriber.expect_silence()
    assert time.monotonic() - began < SOON_SECONDS
    subscriber.disconnect()
    publisher.disconnect()


@pytest.mark.mqtt("5:4.7.3-4", "311:4.7.3-4")
@pytest.mark.parametrize(
    "text", ["a.c", ".*", "(", "[a-z]", "^a$", "a|b", "\\", "\\d", "a{2,}", "(a*)*b", "?", "*", "%s%n", "[[:alpha:]]"]
)
def test_amqtt_regular_expressions(connect: Connect, version: int, name: str, text: str) -> None:
    """Characters with a meaning in regular expressions match only themselves."""
    subscriber, publisher = connect(version), connect(version)
    assert subscriber.subscribe(f"{name}/{text}/+") == (0,)
    for other in ("abc", "aXc", "a", "b", "", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "d", "1"):
        publisher.publish(f"{name}/{other}/x", b"no")
    publisher.publish(f"{name}/{text}/x", b"itself")
    subscriber.receive(f"{name}/{text}/x", b"itself")
    wire.expect_nothing_more(subscriber, publisher, f"marker/{name}")


@pytest.mark.mqtt("5:3.1.3-2", "311:3.1.3-2")
@pytest.mark.parametrize("client_id", ["+", "#", "/", "a/#", "+/+", "$SYS", "$share/g/#", "../..", "%c", "%u"])
def test_cve_2017_7650_wildcards_in_client_ids(connect: Connect, version: int, name: str, client_id: str) -> None:
    """A client id (and user name) of wildcards is an ordinary name: it gives no access and matches no other client."""
    others = [connect(version, other) for other in (name, f"{name}/b")]
    strange = connect(version, client_id, username=client_id, clean=True, properties=KEEP if version == 5 else {})
    strange.subscribe(f"{name}/mine")
    others[0].publish(f"{name}/theirs", b"no")
    others[0].publish(client_id if not set("+#") & set(client_id) else name, b"no")
    others[1].publish(f"{name}/mine", b"yes")
    strange.receive(f"{name}/mine", b"yes")
    strange.expect_silence()
    for other in others:
        other.expect_silence()
    again = connect(version, client_id)
    assert not again.connack.session_present
    strange.expect_closed(0x8E)
    again.disconnect()


@pytest.mark.mqtt("5:3.1.4-1", "311:3.1.4-1")
@pytest.mark.one_store
def test_cve_2020_13849_slow_connect(
    configured: Configured, open_to: OpenTo, workers: int, version: int, name: str
) -> None:
    """A CONNECT sent byte by byte has two seconds in all (as configured here), however busy the connection is."""
    broker = configured(workers, {"LIMITS__CONNECT_SECONDS_MAX": 2})
    served = open_to(broker, version)
    served.connect(name)
    data = wire.connect(version, f"{name}slow", username="u" * 100)
    began = time.monotonic()
    slow = open_to(broker, version)
    closed = False
    for byte in data:
        slow.send(bytes([byte]))
        try:
            slow.read(0.1)
        except TimeoutError:
            continue
        except Closed:
            closed = True
            break
    assert closed, "all of it has come, at ten bytes a second"
    assert time.monotonic() - began >= 1.8
    served.expect_silence()
    served.disconnect()


@pytest.mark.mqtt("5:3.1.2-22", "311:3.1.2-24")
@pytest.mark.one_store
def test_cve_2020_13849_keep_alive_without_end(
    configured: Configured, open_to: OpenTo, workers: int, version: int, name: str
) -> None:
    """SlowITe: a client that asks for a Keep Alive of 18 hours, or none, is closed after 1.5 times the bound."""
    broker = configured(workers, {"LIMITS__KEEP_ALIVE_SECONDS_MAX": 1})
    clients = [open_to(broker, version) for _ in range(2)]
    began = time.monotonic()
    for client, asked in zip(clients, (0, 65535), strict=True):
        client.connect(f"{name}{asked}", keep_alive=asked)
        if version == 5:
            assert client.connack.properties["server_keep_alive"] == 1
    for client in clients:
        client.expect_closed(0x8D)
        assert time.monotonic() - began >= 1.3


# ------------------------------------------------------------------------------- take-over, will, session expiry


@pytest.mark.mqtt("5:3.1.2-8", "5:3.1.4-3", "311:3.1.2-8", "311:3.1.4-2")
def test_take_over_and_broken_connections_at_once(
    open_connection: OpenConnection, connect: Connect, version: int, name: str
) -> None:
    """Sixty clients with wills, each taken over as its connection breaks, have their wills published once each."""
    watcher = connect(version)
    watcher.subscribe(f"{name}/#", qos=1)
    ids = [f"{name}r{number}" for number in range(60)]
    old = [connect(version, each, will=Will(f"{name}/{each}", b"old", qos=1)) for each in ids]
    new = [open_connection(version) for _ in ids]
    for number, (before, after, each) in enumerate(zip(old, new, ids, strict=True)):
        data = wire.connect(version, each)
        if number % 2:
            before.close()
            after.send(data)
        else:
            after.send(data)
            before.close()
    for after in new:
        after.expect("CONNACK", reason=0)
    wills = sorted(watcher.expect("PUBLISH", payload=b"old").topic for _ in ids)
    assert wills == sorted(f"{name}/{each}" for each in ids)
    wire.expect_nothing_more(watcher, watcher, f"marker/{name}", qos=1)
    for after in new:
        after.expect_silence()
        after.close()


@pytest.mark.mqtt("5:3.1.2-8", "5:3.1.3-9", "5:4.1.0-2")
def test_coming_back_as_the_session_expires(open_connection: OpenConnection, connect: Connect, name: str) -> None:
    """Forty clients reconnect around the second when session and will delay end: session or will, never neither."""
    watcher = connect(5)
    watcher.subscribe(f"{name}/#", qos=1)
    ids = [f"{name}e{number}" for number in range(40)]
    ends = {"session_expiry_interval": 1}
    for each in ids:
        will = Will(f"{name}/{each}", b"will", qos=1, properties={"will_delay_interval": 1})
        client = connect(5, each, properties=ends, will=will)
        client.subscribe(f"{name}-{each}", qos=1)
        client.close()
    let_pass(0.7)
    present = set()
    for each in ids:  # one each 20 ms: half of them before the end of their second, half after it
        let_pass(0.02)
        client = open_connection(5)
        client.connect(each, clean=False, properties={"session_expiry_interval": 60})
        if client.connack.session_present:
            present.add(each)
        codes = client.unsubscribe(f"{name}-{each}").codes
        assert codes == ((0,) if each in present else (0x11,))
        client.disconnect(properties={"session_expiry_interval": 0})
    wills = []
    watcher.publish(f"{name}/end", b"end", qos=1)
    while (got := watcher.await_packet("PUBLISH")).payload != b"end":
        wills.append(got.topic.partition("/")[2])
        watcher.ack("PUBACK", got.packet_id)
    assert len(wills) == len(set(wills))
    assert set(ids) - present <= set(wills)


def contend(
    open_connection: OpenConnection, version: int, client_id: str, count: int, options: dict[str, Any]
) -> list[Client]:
    """Open connections that CONNECT at once with one client id; return those that stay open."""
    clients = [open_connection(version) for _ in range(count)]
    for client in clients:
        client.send(wire.connect(version, client_id, **options))
    left = []
    for client in clients:
        client.send(wire.PINGREQ)
        try:
            while client.read().kind != "PINGRESP":
                pass
            left.append(client)
        except Closed:
            client.close()
    return left


@pytest.mark.mqtt("5:3.1.4-3", "5:4.1.0-2", "311:3.1.4-2", "311:3.1.2-6")
def test_many_take_overs_leave_one_session(
    open_connection: OpenConnection, connect: Connect, version: int, name: str
) -> None:
    """Thirty connections at once, with and without clean start, wills and a subscription, leave one session."""
    watcher = connect(version)
    watcher.subscribe(f"{name}/will", qos=1)
    rounds = 5
    for number in range(rounds):
        clean = number % 2 == 0
        will = Will(f"{name}/will", b"%d" % number, qos=1)
        options = {"clean": clean, "will": will, "properties": KEEP if version == 5 else {}}
        left = contend(open_connection, version, name, 30, options)
        survivors = []
        for client in left:
            try:
                client.expect_silence()
                survivors.append(client)
            except (Closed, AssertionError):
                client.close()
        assert len(survivors) == 1
        survivors[0].subscribe(f"{name}/in", qos=1)
        watcher.publish(f"{name}/in", b"%d" % number, qos=1)
        payload = None
        while payload != b"%d" % number:
            payload = (got := survivors[0].await_packet("PUBLISH")).payload
            # of all of them: an unacknowledged message is sent again to the next client, perhaps after its PINGRESP
            survivors[0].ack("PUBACK", got.packet_id)
        survivors[0].disconnect()
    last = connect(version, name, clean=True)
    assert not last.connack.session_present

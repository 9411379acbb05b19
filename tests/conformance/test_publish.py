"""PUBLISH at QoS 0, 1 and 2 in both directions: delivery, acknowledgement and order."""

from __future__ import annotations

import pytest

from tests import wire
from tests.wire import Connect

NOT_AUTHORIZED, NOT_FOUND = 0x87, 0x92
VERSIONS = [3, 4, 5]


@pytest.mark.mqtt(
    "5:2.2.1-2",
    "5:3.3.1-2",
    "5:3.3.4-1",
    "5:3.8.4-7",
    "5:3.8.4-8",
    "5:4.3.1-1",
    "5:4.3.2-2",
    "5:4.3.3-2",
    "311:2.3.1-5",
    "311:3.3.1-2",
    "311:3.3.4-1",
    "311:3.8.4-6",
    "311:4.3.1-1",
    "311:4.3.2-1",
    "311:4.3.3-1",
)
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
def test_effective_qos(connect: Connect, version: int, name: str, published: int, granted: int) -> None:
    """A message arrives once, at the lower of the published and the granted QoS, with DUP and RETAIN clear."""
    subscriber, publisher = connect(version), connect(version)
    assert subscriber.subscribe(name, qos=granted) == (granted,)
    publisher.publish(name, b"hello", qos=published)
    got = subscriber.receive(name, b"hello", qos=min(published, granted), dup=False, retain=False)
    assert got.packet_id == (1 if got.qos else 0)
    subscriber.expect_silence()


@pytest.mark.mqtt("5:3.3.4-1", "311:3.3.4-1")
@pytest.mark.parametrize("receiving", VERSIONS)
@pytest.mark.parametrize("sending", VERSIONS)
def test_between_versions(connect: Connect, name: str, sending: int, receiving: int) -> None:
    """A message published by any version is delivered to every version, at every QoS."""
    subscriber, publisher = connect(receiving), connect(sending)
    subscriber.subscribe(name, qos=2)
    for qos in (0, 1, 2):
        publisher.publish(name, b"%d" % qos, qos=qos)
        subscriber.receive(name, b"%d" % qos, qos=qos)


@pytest.mark.mqtt("5:4.5.0-1", "311:4.5.0-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_client_receives_its_own(connect: Connect, version: int, name: str, qos: int) -> None:
    """A client that subscribes to its own topic receives its messages; the two handshakes do not interfere."""
    client = connect(version)
    client.subscribe(name, qos=2)
    client.publish(name, b"mine", qos=qos)
    client.receive(name, b"mine", qos=qos)
    client.expect_silence()


@pytest.mark.mqtt("5:3.3.1-3", "311:3.3.1-3")
def test_dup_is_not_passed_on(connect: Connect, version: int, name: str) -> None:
    """The DUP flag of the publisher is not forwarded to the subscriber."""
    subscriber, publisher = connect(version), connect(version)
    subscriber.subscribe(name, qos=2)
    for qos in (1, 2):
        publisher.publish(name, b"again", qos=qos, dup=True)
        subscriber.receive(name, b"again", dup=False, qos=qos)


@pytest.mark.mqtt("5:4.3.3-8", "5:4.3.3-10", "311:4.3.3-2")
def test_qos_2_repeated_before_pubrel(connect: Connect, version: int, name: str) -> None:
    """A QoS 2 PUBLISH sent twice before PUBREL gets two PUBRECs and is delivered once."""
    subscriber, publisher = connect(version), connect(version)
    subscriber.subscribe(name, qos=2)
    for dup in (False, True):
        publisher.send(wire.publish(version, name, b"once", qos=2, packet_id=9, dup=dup))
        publisher.expect("PUBREC", packet_id=9)
    publisher.ack("PUBREL", 9)
    publisher.expect("PUBCOMP", packet_id=9, reason=0)
    subscriber.receive(name, b"once")
    wire.expect_nothing_more(subscriber, publisher, f"{name}/marker", qos=2)


@pytest.mark.mqtt("5:4.3.3-11", "5:4.3.3-12", "311:4.3.3-2")
def test_qos_2_identifier_is_free_after_pubcomp(connect: Connect, version: int, name: str) -> None:
    """A PUBLISH that reuses a Packet Identifier after PUBCOMP is a new message."""
    subscriber, publisher = connect(version), connect(version)
    subscriber.subscribe(name, qos=2)
    for payload in (b"first", b"second"):
        publisher.send(wire.publish(version, name, payload, qos=2, packet_id=9))
        publisher.expect("PUBREC", packet_id=9)
        publisher.ack("PUBREL", 9)
        publisher.expect("PUBCOMP", packet_id=9)
        subscriber.receive(name, payload)


@pytest.mark.mqtt("5:4.3.2-4", "5:4.3.2-5", "311:4.3.2-2")
def test_qos_1_identifier_is_free_after_puback(connect: Connect, version: int, name: str) -> None:
    """A PUBLISH that reuses a Packet Identifier after PUBACK is a new message, whatever its DUP flag."""
    subscriber, publisher = connect(version), connect(version)
    subscriber.subscribe(name, qos=1)
    for dup in (False, True):
        publisher.send(wire.publish(version, name, b"new", qos=1, packet_id=9, dup=dup))
        publisher.expect("PUBACK", packet_id=9)
        subscriber.receive(name, b"new", dup=False)


@pytest.mark.mqtt("5:3.7.2-1", "5:4.3.3-11", "311:4.3.3-2")
def test_pubrel_for_an_unknown_identifier(connect: Connect, version: int) -> None:
    """A PUBREL for an unknown Packet Identifier is answered by PUBCOMP, in v5 with 0x92."""
    client = connect(version)
    client.ack("PUBREL", 77)
    got = client.expect("PUBCOMP", packet_id=77)
    assert got.reason in (0, NOT_FOUND)
    client.expect_silence()


@pytest.mark.mqtt("5:3.6.2-1", "5:4.3.3-4", "311:4.3.3-1")
def test_acks_for_unknown_identifiers(connect: Connect, version: int) -> None:
    """PUBACK or PUBCOMP for an unknown identifier is ignored; PUBREC is answered by PUBREL: the client can finish."""
    client = connect(version)
    client.ack("PUBACK", 77)
    client.ack("PUBCOMP", 78)
    client.expect_silence()
    client.ack("PUBREC", 79)
    got = client.expect("PUBREL", packet_id=79)
    assert got.reason in (0, NOT_FOUND)


@pytest.mark.mqtt("5:4.3.3-4", "5:4.4.0-2")
def test_pubrec_with_an_error_ends_the_handshake(connect: Connect, name: str) -> None:
    """A v5 subscriber that answers QoS 2 with an error gets no PUBREL; the next message is delivered."""
    subscriber, publisher = connect(5), connect(5)
    subscriber.subscribe(name, qos=2)
    publisher.publish(name, b"unwanted", qos=2)
    refused = subscriber.expect("PUBLISH", payload=b"unwanted")
    subscriber.ack("PUBREC", refused.packet_id, reason=0x80)
    publisher.publish(name, b"wanted", qos=2)
    subscriber.receive(name, b"wanted")
    subscriber.expect_silence()


@pytest.mark.mqtt("5:4.6.0-5", "5:4.6.0-6", "311:4.6.0-5", "311:4.6.0-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_order(connect: Connect, version: int, name: str, qos: int) -> None:
    """Two hundred messages of one publisher on one topic arrive in the order in which they were sent."""
    subscriber, publisher = connect(version), connect(version)
    subscriber.subscribe(name, qos=qos)
    for number in range(200):
        publisher.send(wire.publish(version, name, b"%d" % number, qos=qos, packet_id=number % 10 + 1))
        if qos and number % 10 == 9:
            for packet_id in range(1, 11):
                publisher.await_packet("PUBACK" if qos == 1 else "PUBREC", packet_id)
                if qos == 2:
                    publisher.ack("PUBREL", packet_id)
                    publisher.await_packet("PUBCOMP", packet_id)
    for number in range(200):
        subscriber.receive(name, b"%d" % number)


@pytest.mark.mqtt("5:4.3.2-4", "5:4.3.3-8", "311:4.3.2-2", "311:4.3.3-2")
@pytest.mark.parametrize(("qos", "kind"), [(1, "PUBACK"), (2, "PUBREC")])
def test_acks_come_in_the_order_of_the_messages(connect: Connect, version: int, name: str, qos: int, kind: str) -> None:
    """Ten messages on ten topics, sent in one segment with arbitrary identifiers, are acknowledged in their order."""
    subscriber, publisher = connect(version), connect(version)
    subscriber.subscribe(f"{name}/+", qos=0)
    identifiers = [500, 1, 65535, 2, 40000, 3, 256, 255, 12, 4]
    publisher.send(
        *(wire.publish(version, f"{name}/{i}", b"x", qos=qos, packet_id=i) for i in identifiers),
    )
    assert [publisher.expect(kind).packet_id for _ in identifiers] == identifiers


@pytest.mark.mqtt("5:3.3.4-1", "5:3.4.2-1", "5:3.5.2-1", "311:3.3.4-1")
@pytest.mark.parametrize(("qos", "kind"), [(1, "PUBACK"), (2, "PUBREC")])
def test_nobody_subscribes(connect: Connect, version: int, name: str, qos: int, kind: str) -> None:
    """A message without subscribers is acknowledged; v5 may say so with 0x10."""
    publisher = connect(version)
    publisher.send(wire.publish(version, name, b"x", qos=qos, packet_id=5))
    assert publisher.expect(kind, packet_id=5).reason in (0, 0x10)


@pytest.mark.mqtt("5:2.2.1-4", "5:4.3.2-1", "5:4.3.3-1", "311:2.3.1-4", "311:4.3.2-1", "311:4.3.3-1")
def test_identifiers_count_up_from_1(connect: Connect, version: int, name: str) -> None:
    """A session is sent the identifiers 1, 2, 3, ... whatever the QoS and the publisher of the messages."""
    subscriber = connect(version)
    subscriber.subscribe(name, qos=2)
    for number in range(1, 8):
        connect(version).publish(name, b"%d" % number, qos=1 + number % 2)
        subscriber.expect("PUBLISH", packet_id=number, payload=b"%d" % number)


@pytest.mark.mqtt("5:2.2.1-4", "311:2.3.1-4")
def test_identifiers_go_on_after_an_ack(connect: Connect, version: int, name: str) -> None:
    """An acknowledged identifier is not reused at once: the next message has the next one."""
    subscriber, publisher = connect(version), connect(version)
    subscriber.subscribe(name, qos=1)
    for number in range(1, 5):
        publisher.publish(name, b"x", qos=1)
        assert subscriber.receive(name, b"x").packet_id == number


@pytest.mark.mqtt("5:2.2.1-5", "311:2.3.1-6")
def test_identifiers_of_both_directions_are_apart(connect: Connect, version: int, name: str) -> None:
    """A client sends and receives QoS 2 messages with the same identifier, in interleaved steps; both complete."""
    client, other = connect(version), connect(version)
    client.subscribe(f"{name}/in", qos=2)
    other.subscribe(f"{name}/out", qos=2)
    other.publish(f"{name}/in", b"in", qos=2)
    client.expect("PUBLISH", packet_id=1, payload=b"in")
    client.send(wire.publish(version, f"{name}/out", b"out", qos=2, packet_id=1))
    client.expect("PUBREC", packet_id=1)
    client.ack("PUBREC", 1)
    client.expect("PUBREL", packet_id=1)
    client.ack("PUBREL", 1)
    client.expect("PUBCOMP", packet_id=1)
    client.ack("PUBCOMP", 1)
    client.expect_silence()
    other.receive(f"{name}/out", b"out")


@pytest.mark.mqtt("5:1.5.5-1", "5:3.3.4-1", "311:3.3.4-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("size", [0, 1, 127, 128, 16383, 16384, 65535, 65536, 300000])
def test_payload_sizes(connect: Connect, version: int, name: str, size: int, qos: int) -> None:
    """Payloads of all sizes, around the boundaries of the length field, arrive unchanged."""
    subscriber, publisher = connect(version), connect(version)
    subscriber.subscribe(name, qos=2)
    payload = bytes(range(256)) * (size // 256) + bytes(range(size % 256))
    publisher.publish(name, payload, qos=qos)
    subscriber.receive(name, payload, qos=qos)


@pytest.mark.mqtt("5:3.3.2-4", "5:3.3.2-15", "5:3.3.2-16", "5:3.3.2-17", "5:3.3.2-18", "5:3.3.2-20")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_arrive_unaltered(connect: Connect, name: str, qos: int) -> None:
    """Every property of a message reaches the subscriber unchanged, User Properties in their order."""
    subscriber, publisher = connect(5), connect(5)
    subscriber.subscribe(name, qos=2)
    properties = {
        "payload_format_indicator": 1,
        "content_type": "text/plain; ü",
        "response_topic": f"{name}/answers",
        "correlation_data": bytes(range(256)),
        "user_property": [("b", "1"), ("a", "2"), ("b", "1"), ("", "")],
    }
    publisher.publish(name, "grüße".encode(), qos=qos, properties=properties)
    got = subscriber.receive(name, "grüße".encode(), qos=qos)
    assert got.properties == properties
    assert got.properties["user_property"] == properties["user_property"]


@pytest.mark.mqtt("311:4.5.0-1")
def test_properties_do_not_reach_v3(connect: Connect, name: str) -> None:
    """A v3.1.1 subscriber gets the payload without properties."""
    subscriber, publisher = connect(4), connect(5)
    subscriber.subscribe(name, qos=1)
    publisher.publish(name, b"body", qos=1, properties={"content_type": "x", "user_property": [("a", "b")]})
    subscriber.receive(name, b"body")


@pytest.mark.mqtt("5:2.2.2-1")
def test_v3_message_has_no_properties_in_v5(connect: Connect, name: str) -> None:
    """A message published by a v3.1.1 client reaches a v5 client with empty properties."""
    subscriber, publisher = connect(5), connect(4)
    subscriber.subscribe(name, qos=1)
    publisher.publish(name, b"body", qos=1)
    assert subscriber.receive(name, b"body").properties == {}


@pytest.mark.mqtt("5:4.5.0-1", "311:4.5.0-1")
def test_fan_out(connect: Connect, version: int, name: str) -> None:
    """Thirty subscribers with different QoS each receive each of ten messages once and in order."""
    subscribers = [connect(version) for _ in range(30)]
    for number, subscriber in enumerate(subscribers):
        subscriber.subscribe(name, qos=number % 3)
    publisher = connect(version)
    for number in range(10):
        publisher.publish(name, b"%d" % number, qos=2)
    for position, subscriber in enumerate(subscribers):
        for number in range(10):
            subscriber.receive(name, b"%d" % number, qos=position % 3)
        subscriber.expect_silence()


@pytest.mark.mqtt("5:4.5.0-1", "5:4.6.0-5", "311:4.5.0-1", "311:4.6.0-6")
def test_fan_in(connect: Connect, version: int, name: str) -> None:
    """Thirty publishers send ten messages each; the subscriber receives them all, those of each publisher in order."""
    subscriber = connect(version)
    subscriber.subscribe(f"{name}/+")
    publishers = [connect(version) for _ in range(30)]
    for number in range(10):
        for position, publisher in enumerate(publishers):
            publisher.publish(f"{name}/{position}", b"%d" % number)
    seen: dict[str, list[int]] = {}
    for _ in range(300):
        got = subscriber.expect("PUBLISH")
        seen.setdefault(got.topic, []).append(int(got.payload))
    assert seen == {f"{name}/{position}": list(range(10)) for position in range(30)}


@pytest.mark.mqtt("5:4.5.0-1", "311:4.5.0-1")
@pytest.mark.parametrize("qos", [0, 1])
def test_a_thousand_messages_in_one_segment(connect: Connect, version: int, name: str, qos: int) -> None:
    """A thousand small packets that arrive together are all processed."""
    subscriber, publisher = connect(version), connect(version)
    subscriber.subscribe(name, qos=0)
    window = min(1000, publisher.connack.properties.get("receive_maximum", 1000)) if qos else 1000
    for start in range(0, 1000, window):
        numbers = range(start, min(start + window, 1000))
        publisher.send(*(wire.publish(version, name, b"%d" % n, qos=qos, packet_id=n + 1) for n in numbers))
        for number in numbers:
            if qos:
                publisher.expect("PUBACK", packet_id=number + 1)
    for number in range(1000):
        subscriber.receive(name, b"%d" % number)


@pytest.mark.mqtt("5:3.4.2-1", "5:3.5.2-1", "311:3.3.5-2")
@pytest.mark.parametrize(("qos", "kind"), [(0, ""), (1, "PUBACK"), (2, "PUBREC")])
@pytest.mark.mosquitto_differs("delivers it")
def test_publishing_to_sys_is_refused(connect: Connect, version: int, name: str, qos: int, kind: str) -> None:
    """Clients may not publish below $SYS: v5 gets 0x87, v3 is acknowledged as if the message had been published."""
    watcher, publisher = connect(version), connect(version)
    watcher.subscribe(f"$SYS/{name}/#", qos=2)
    publisher.send(wire.publish(version, f"$SYS/{name}/x", b"no", qos=qos, packet_id=9))
    if kind:
        publisher.expect(kind, packet_id=9, reason=NOT_AUTHORIZED if version == 5 else 0)
    if qos == 2 and version != 5:
        publisher.ack("PUBREL", 9)
        publisher.expect("PUBCOMP", packet_id=9)
    wire.expect_nothing_more(watcher, publisher, f"marker/{name}", qos=qos)


@pytest.mark.mqtt("5:4.3.3-9")
@pytest.mark.mosquitto_differs("takes it")
def test_an_identifier_is_free_after_an_error(connect: Connect, name: str) -> None:
    """A PUBLISH that reuses its Packet Identifier after a PUBREC with an error is a new message."""
    subscriber, publisher = connect(5), connect(5)
    subscriber.subscribe(name, qos=2)
    publisher.send(wire.publish(5, f"$SYS/{name}", b"no", qos=2, packet_id=9))
    publisher.expect("PUBREC", packet_id=9, reason=NOT_AUTHORIZED)
    publisher.send(wire.publish(5, name, b"yes", qos=2, packet_id=9))
    publisher.expect("PUBREC", packet_id=9, reason=0)
    publisher.ack("PUBREL", 9)
    publisher.expect("PUBCOMP", packet_id=9, reason=0)
    subscriber.receive(name, b"yes")
    wire.expect_nothing_more(subscriber, publisher, f"marker/{name}", qos=2)


@pytest.mark.mqtt("5:3.1.2-29")
@pytest.mark.parametrize("wanted", [0, 1])
@pytest.mark.mosquitto_differs("has no bound for levels")
def test_problem_information(connect: Connect, name: str, wanted: int) -> None:
    """With Request Problem Information 0 only CONNACK and DISCONNECT may have a Reason String or User Property."""
    client = connect(5, properties={"request_problem_information": wanted})
    client.send(
        wire.publish(5, f"$SYS/{name}", b"no", qos=1, packet_id=1),
        wire.publish(5, f"$SYS/{name}", b"no", qos=2, packet_id=2),
        wire.ack(5, "PUBREL", 77),
        wire.ack(5, "PUBREC", 78),
        wire.subscribe(5, 3, ("/" * 200, 0), ("$share/a/" + "/" * 200, 0)),
        wire.unsubscribe(5, 4, f"{name}/never"),
    )
    kinds = ["PUBACK", "PUBREC", "PUBCOMP", "PUBREL", "SUBACK", "UNSUBACK"]
    got = {kind: client.await_packet(kind) for kind in kinds}
    if not wanted:
        assert {kind: packet.properties for kind, packet in got.items()} == {kind: {} for kind in kinds}


@pytest.mark.mqtt("5:3.1.2-24", "5:3.4.2-2", "5:3.4.2-3", "5:3.5.2-2", "5:3.5.2-3", "5:3.6.2-2", "5:3.6.2-3")
@pytest.mark.mqtt("5:3.7.2-2", "5:3.7.2-3", "5:3.9.2-1", "5:3.9.2-2", "5:3.11.2-1", "5:3.11.2-2")
@pytest.mark.mqtt("5:3.14.2-3", "5:3.14.2-4")
@pytest.mark.mosquitto_differs("has no bound for levels")
def test_no_answer_is_larger_than_the_client_takes(connect: Connect, name: str) -> None:
    """For a client with Maximum Packet Size 64 (CONNACK needs some) every refusal is small enough."""
    maximum = 64
    client = connect(5, properties={"maximum_packet_size": maximum})
    client.send(
        wire.publish(5, f"$SYS/{name}/{'x' * 500}", b"no", qos=1, packet_id=1),
        wire.publish(5, f"$SYS/{name}/{'x' * 500}", b"no", qos=2, packet_id=2),
        wire.ack(5, "PUBREL", 77),
        wire.ack(5, "PUBREC", 78),
        wire.subscribe(5, 3, ("/" * 500, 0)),
        wire.unsubscribe(5, 4, "b" * 500),
        wire.publish(5, "a/#/" + "b" * 500),
    )
    for kind in ("PUBACK", "PUBREC", "PUBCOMP", "PUBREL", "SUBACK", "UNSUBACK", "DISCONNECT"):
        assert len(client.await_packet(kind).body) <= maximum - 2

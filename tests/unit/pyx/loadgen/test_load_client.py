"""The client of load tests without its socket: acks, windows, sessions that outlive connections, and stamps."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyx.loadgen.client import STAMP_BYTES, Client, Flight, Message
from pyx.loadgen.tally import Tally
from pyx.protocol.packets import Connack, Disconnect, Suback
from pyx.protocol.reasons import MqttError, ReasonCode
from tests import wire

SENT, DELIVERY, RECEIVED = "PUBLISH", "DELIVERY", "RECEIVED"


def connack(version: int = 5, *, present: bool = False, reason: int = 0, **properties: Any) -> bytes:
    body = bytes((present, reason))
    return wire.packet("CONNACK", 0, body, *([wire.encode_properties(properties)] if version == 5 else []))


class Peer:
    """A client, and the broker's side of its connection."""

    def __init__(self, version: int = 5, is_wall: bool = False) -> None:
        self.version = version
        self.sent, self.delivery, self.received = Tally(SENT, "t"), Tally(DELIVERY, "t"), Tally(RECEIVED, "t")
        self.client = Client(version, (self.delivery, self.received), is_wall)

    def connected(self, *, session: bool = False, **connack_properties: Any) -> Peer:
        properties = {"session_expiry_interval": 60} if session and self.version == 5 else {}
        self.client.connect("c", clean_start=not session, properties=properties)
        self.client.take_output()
        self.client.feed(connack(self.version, **connack_properties))
        return self

    def publish(self, qos: int, **more: Any) -> Flight:
        return self.client.publish(b"t", b"x", self.sent, qos=qos, **more)

    def said(self) -> list[wire.Packet]:
        """Return the bytes that the client has sent since the last call."""
        reader, found = bytes(self.client.take_output()), []
        while reader:
            length, shift, at = 0, 0, 1
            while True:
                length |= (reader[at] & 0x7F) << shift
                at, shift = at + 1, shift + 7
                if reader[at - 1] < 0x80:
                    break
            body = reader[at : at + length]
            found.append(wire.decode(self.version, reader[0] & 0x0F, wire.KINDS[reader[0] >> 4], body))
            reader = reader[at + length :]
        return found

    def hears(self, data: bytes) -> list[Any]:
        return list(self.client.feed(data))

    def error(self, data: bytes) -> ReasonCode:
        """Return the Reason Code of the only event that follows a protocol violation."""
        events = self.hears(data)
        assert len(events) == 1
        assert isinstance(events[0], MqttError)
        assert self.hears(b"\xd0\0") == []  # nothing more is taken
        return ReasonCode(events[0].reason_code)


def times(tally: Tally) -> list[float | None]:
    return tally.take()[0]


@pytest.mark.parametrize("version", [3, 4, 5])
def test_an_ack_is_counted_and_given_to_who_waits(version: int) -> None:
    peer = Peer(version).connected()
    peer.publish(1)
    waited = peer.publish(2, waiter="me")
    assert [each.kind for each in peer.said()] == ["PUBLISH", "PUBLISH"]
    assert peer.hears(wire.ack(version, "PUBACK", 1)) == []
    assert len(times(peer.sent)) == 1
    assert peer.hears(wire.ack(version, "PUBREC", 2)) == []
    assert [(each.kind, each.packet_id) for each in peer.said()] == [("PUBREL", 2)]
    assert peer.hears(wire.ack(version, "PUBCOMP", 2)) == [waited]
    assert waited.waiter == "me"
    assert [each is not None and 0 <= each < 1000 for each in times(peer.sent)] == [True]
    assert peer.client.inflight == 0


def test_a_refusal_is_handed_out_and_not_counted() -> None:
    peer = Peer().connected()
    first, second = peer.publish(1), peer.publish(2)
    events = peer.hears(wire.ack(5, "PUBACK", 1, 0x97) + wire.ack(5, "PUBREC", 2, 0x87))
    assert events == [first, second]
    assert [first.reason_code, second.reason_code] == [0x97, 0x87]
    assert times(peer.sent) == []
    assert peer.client.inflight == 0


def test_qos_0_is_counted_when_it_is_written() -> None:
    peer = Peer().connected()
    peer.publish(0)
    peer.client.written()  # of earlier bytes
    assert times(peer.sent) == []
    peer.said()
    peer.client.written()
    assert len(times(peer.sent)) == 1


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_delivery_has_the_latency_of_its_stamp(version: int, qos: int) -> None:
    publisher, subscriber = Peer(version).connected(), Peer(version).connected()
    since = time.monotonic_ns() - 7_000_000
    publisher.client.publish(b"t", b"what", publisher.sent, qos=qos, stamped=True, since=since)
    subscriber.client.keeps_messages = True
    [message] = subscriber.hears(bytes(publisher.client.take_output()))
    assert isinstance(message, Message)
    assert (message.topic, message.content, message.qos) == ("t", b"what", qos)
    assert len(message.payload) == 4 + STAMP_BYTES
    assert message.latency_ms is not None
    assert 7 <= message.latency_ms < 1_000_000
    assert times(subscriber.delivery) == [message.latency_ms]
    assert [each.kind for each in subscriber.said()] == [[], ["PUBACK"], ["PUBREC"]][qos]


def test_a_wall_clock_s_stamp_is_told_from_a_monotonic_one() -> None:
    publisher, subscriber = Peer(is_wall=True).connected(), Peer().connected()
    publisher.client.publish(b"t", b"", publisher.sent, stamped=True, since=time.monotonic_ns() - 5_000_000)
    subscriber.hears(bytes(publisher.client.take_output()))
    [ms] = times(subscriber.delivery)
    assert ms is not None
    assert 5 <= ms < 1000


@pytest.mark.parametrize("payload", [b"", b"x" * 19, b"x" * 64, bytes(20)])
def test_a_payload_of_somebody_else_has_no_latency(payload: bytes) -> None:
    subscriber = Peer().connected()
    subscriber.hears(wire.publish(5, "t", payload))
    assert times(subscriber.delivery) == []
    assert subscriber.received.take() == ([None], [len(payload)])


def test_a_stamp_of_the_future_has_no_latency() -> None:
    publisher, subscriber = Peer().connected(), Peer().connected()
    publisher.client.publish(b"t", b"", publisher.sent, stamped=True, since=time.monotonic_ns() + 10**12)
    subscriber.hears(bytes(publisher.client.take_output()))
    assert times(subscriber.received) == [None]


def test_deliveries_are_counted_by_the_filter_that_they_match() -> None:
    subscriber = Peer().connected()
    cold, hot = Tally(RECEIVED, "cold"), Tally(RECEIVED, "hot")
    subscriber.client.expect(b"$share/g/cold/+", cold, cold)
    subscriber.client.expect(b"hot/#", hot, hot)
    for topic in ("cold/1", "hot/1/2", "hot/3", "warm"):
        subscriber.hears(wire.publish(5, topic, b""))
    assert [len(times(each)) for each in (cold, hot, subscriber.received)] == [1, 2, 1]
    subscriber.client.expect(b"warm", hot, hot)
    subscriber.hears(wire.publish(5, "warm", b""))
    assert len(times(hot)) == 1


@pytest.mark.mqtt("5:4.3.3-10")
def test_qos_2_is_delivered_once() -> None:
    peer = Peer().connected()
    packet = wire.publish(5, "t", b"", qos=2, packet_id=9)
    peer.hears(packet)
    peer.hears(wire.publish(5, "t", b"", qos=2, packet_id=9, dup=True))
    assert len(times(peer.received)) == 1
    assert [each.kind for each in peer.said()] == ["PUBREC", "PUBREC"]
    peer.hears(wire.ack(5, "PUBREL", 9))
    assert [each.kind for each in peer.said()] == ["PUBCOMP"]
    peer.hears(packet)
    assert len(times(peer.received)) == 1


@pytest.mark.parametrize("version", [4, 5])
def test_a_session_that_is_there_is_carried_on(version: int) -> None:
    """Unacknowledged PUBLISHes are sent again with DUP, PUBRELs unchanged [MQTT-4.4.0-1]."""
    peer = Peer(version).connected(session=True)
    peer.publish(1)
    peer.publish(2, waiter=2)
    peer.publish(2)
    peer.hears(wire.ack(version, "PUBREC", 2))
    assert peer.client.lost() == []
    peer.connected(session=True, present=True)
    again = peer.said()
    assert [(each.kind, each.packet_id) for each in again] == [("PUBLISH", 1), ("PUBREL", 2), ("PUBLISH", 3)]
    assert [each.dup for each in again if each.kind == "PUBLISH"] == [True, True]
    assert [flight.waiter for flight in peer.hears(wire.ack(version, "PUBCOMP", 2))] == [2]
    assert peer.client.inflight == 2


def test_what_cannot_be_sent_again_is_lost() -> None:
    peer = Peer().connected(session=True)
    flight = peer.publish(1)
    assert peer.client.lost() == []
    peer.client.connect("c", clean_start=False, properties={"session_expiry_interval": 60})
    events = peer.hears(connack(present=False))
    assert isinstance(events[0], Connack)
    assert events[1:] == [flight]
    assert flight.is_lost
    without = Peer().connected()
    flights = [without.publish(1), without.publish(0)]
    assert set(without.client.lost()) == set(flights)


def test_what_is_given_up_is_told_once_and_its_late_ack_ignored() -> None:
    peer = Peer().connected()
    flight = peer.publish(1, since=time.monotonic_ns() - 3_000_000_000, waiter=1)
    young = peer.publish(1)
    assert peer.client.give_up(2.0) == [flight]
    assert peer.client.give_up(2.0) == []
    assert flight.ms > 3000
    assert peer.hears(wire.ack(5, "PUBACK", 1)) == []
    assert times(peer.sent) == []
    assert not young.is_lost


def test_a_ping_that_is_not_answered_is_noticed() -> None:
    peer = Peer().connected()
    assert peer.client.ping(60)
    assert peer.client.output_bytes == 0
    assert peer.client.ping(0)
    assert peer.client.take_output() == wire.PINGREQ
    assert not peer.client.ping(0)
    peer.hears(b"\xd0\0")
    assert peer.client.ping(0)


def test_answers_are_handed_up() -> None:
    peer = Peer().connected(receive_maximum=5, maximum_packet_size=200)
    assert (peer.client.window, peer.client.packet_bytes_max) == (5, 200)
    packet_id = peer.client.subscribe([("a/#", 1), ("b", 0)])
    [suback] = peer.hears(wire.packet("SUBACK", 0, packet_id.to_bytes(2, "big"), b"\0", b"\1\x87"))
    assert isinstance(suback, Suback)
    assert suback.codes == [1, 0x87]
    [bye] = peer.hears(wire.disconnect(5, 0x8B))
    assert isinstance(bye, Disconnect)
    with pytest.raises(ValueError, match="the broker takes 200"):
        peer.client.publish(b"t", bytes(200), peer.sent)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (wire.ack(5, "PUBACK", 7), ReasonCode.PROTOCOL_ERROR),
        (wire.ack(5, "PUBACK", 2), ReasonCode.PROTOCOL_ERROR),  # of QoS 2
        (wire.ack(5, "PUBCOMP", 2), ReasonCode.PROTOCOL_ERROR),  # before PUBREC
        (wire.packet("SUBACK", 0, b"\0\1", b"\0", b"\0"), ReasonCode.PROTOCOL_ERROR),
        (connack(), ReasonCode.PROTOCOL_ERROR),
        (wire.packet("AUTH", 0), ReasonCode.PROTOCOL_ERROR),
        (wire.publish(5, "t", b"", properties={"topic_alias": 1}), ReasonCode.TOPIC_ALIAS_INVALID),
        (wire.publish(5, "a/#", b""), ReasonCode.TOPIC_NAME_INVALID),
        (b"\x36\x03\0\1t", ReasonCode.MALFORMED_PACKET),
        (b"\x30\xff\xff\xff\xff\x01", ReasonCode.MALFORMED_PACKET),
    ],
    ids=range(10),
)
def test_what_a_broker_must_not_send_ends_it(data: bytes, reason: ReasonCode) -> None:
    peer = Peer().connected()
    peer.publish(1)
    peer.publish(2)
    assert peer.error(data) == reason


def test_nothing_comes_before_connack() -> None:
    peer = Peer()
    peer.client.connect("c")
    assert peer.error(wire.publish(5, "t", b"")) == ReasonCode.PROTOCOL_ERROR


def test_more_of_qos_2_than_receive_maximum_ends_it() -> None:
    peer = Peer()
    peer.client.connect("c", properties={"receive_maximum": 2})
    peer.client.feed(connack())
    for packet_id in (1, 2):
        assert peer.hears(wire.publish(5, "t", b"", qos=2, packet_id=packet_id)) == []
    assert peer.error(wire.publish(5, "t", b"", qos=2, packet_id=3)) == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=300)), min_size=1, max_size=20), st.data())
def test_a_stream_is_the_same_however_it_is_cut(messages: list[tuple[int, bytes]], data: st.DataObject) -> None:
    publisher, subscriber = Peer().connected(), Peer().connected()
    for qos, payload in messages:
        publisher.client.publish(b"t", payload, publisher.sent, qos=qos, stamped=True)
    stream = bytes(publisher.client.take_output())
    publisher.client.written()
    subscriber.client.keeps_messages = True
    came = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        came += subscriber.hears(stream[:size])
        stream = stream[size:]
    assert [(each.qos, each.content) for each in came] == messages
    answers = bytes(subscriber.client.take_output())
    publisher.client.feed(answers)
    assert len(times(publisher.sent)) == sum(qos < 2 for qos, _ in messages)


def test_packet_identifiers_in_use_are_passed_over() -> None:
    peer = Peer().connected()
    peer.publish(1)
    for _ in range(65_534):
        packet_id = peer.publish(1).packet_id
        peer.hears(wire.ack(5, "PUBACK", packet_id))
    assert peer.publish(1).packet_id == 2

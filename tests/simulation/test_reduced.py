"""Defects found by the simulation, reduced: one node, or two links, driven step by step."""

from __future__ import annotations

from typing import Any

from broker.config.settings import Limits, Settings
from broker.worker.core import Node
from leveldb_store.memory import MemoryStore
from pyx.core.peer import sibling
from pyx.delivery.connection import Connection
from pyx.mesh.link import Link
from shards.placement import home
from tests import wire
from tests.simulation.workers import QuietLog
from zmq_mesh.contract import LinkLimits
from zmq_mesh.interest import Publisher


class Silent:
    """The node of a sibling that ignores all calls."""

    def __getattr__(self, name: str) -> Any:
        return self._nothing

    def _nothing(self, *arguments: Any) -> None:
        """Ignore the call."""


class Wire:
    """Collects the messages of a link."""

    def __init__(self) -> None:
        self.messages: list[list[bytes]] = []

    def send(self, frames: list[Any]) -> bool:
        self.messages.append([bytes(frame) for frame in frames])
        return True


class Bench:
    """A worker without siblings; the output to its clients is decoded."""

    def __init__(self, **limits: int) -> None:
        self.node = Node(0, 1, Settings(workers=1, limits=Limits(**limits)), MemoryStore(), QuietLog(None), 1000, 1000)

    def connect(self, client_id: str) -> Connection:
        conn = Connection()
        self.send(conn, wire.connect(4, client_id, clean=False))
        return conn

    def send(self, conn: Connection, *packets: bytes) -> list[wire.Packet]:
        """Feed bytes of the client; return the answers once no more output follows."""
        self.node.dispatch.feed(conn, b"".join(packets))
        self.node.router.finish_tick()
        return self.output(conn)

    def output(self, conn: Connection) -> list[wire.Packet]:
        came = b""
        while data := self.node.router.state.take_output(conn):
            came += data
            self.node.router.finish_tick()
        return list(packets(came))

    def lose(self, conn: Connection) -> None:
        """Break the connection."""
        conn.state = 3
        self.node.closing.closed(conn, 0, "connection lost")
        conn.state = 4
        self.node.router.finish_tick()


def packets(data: bytes) -> Any:
    while data:
        length = shift = 0
        at = 1
        while True:
            length |= (data[at] & 0x7F) << shift
            shift += 7
            at += 1
            if not data[at - 1] & 0x80:
                break
        yield wire.decode(4, data[0] & 15, wire.KINDS[data[0] >> 4], data[at : at + length])
        data = data[at + length :]


def test_a_higher_qos_does_not_bring_what_was_sent_at_qos_0_again() -> None:
    """A session that is behind and raises a subscription from QoS 0 does not get the copies in the log again."""
    bench = Bench(inflight_max=1)
    subscriber, other, publisher = bench.connect("subscriber"), bench.connect("other"), bench.connect("publisher")
    bench.send(subscriber, wire.subscribe(4, 1, ("a", 0), ("b", 1)))
    bench.send(other, wire.subscribe(4, 1, ("a", 1)))
    # behind with "b", because its window of one is full; "a" is logged for the other one, which is behind as well
    for number in range(3):
        bench.send(publisher, wire.publish(4, "b", b"%d" % number, qos=1, packet_id=number + 1))
        bench.send(publisher, wire.publish(4, "a", b"%d" % number, qos=1, packet_id=number + 11))
    got = [packet for packet in bench.output(subscriber) if packet.kind == "PUBLISH"]
    assert [(packet.topic, packet.payload) for packet in got] == [("b", b"0"), ("a", b"0"), ("a", b"1"), ("a", b"2")]
    bench.send(subscriber, wire.subscribe(4, 2, ("a", 1)))
    got = bench.send(subscriber, wire.ack(4, "PUBACK", 1))
    got += bench.send(subscriber, wire.ack(4, "PUBACK", 2)) + bench.send(subscriber, wire.ack(4, "PUBACK", 3))
    assert [(packet.topic, packet.payload) for packet in got] == [("b", b"1"), ("b", b"2")]


def test_a_subscription_of_a_group_leaves_the_backlog_of_the_same_filter_alone() -> None:
    """A subscription to $share/g/a leaves the messages queued for a subscription to a: they are still delivered."""
    bench = Bench(inflight_max=1)
    subscriber, publisher = bench.connect("subscriber"), bench.connect("publisher")
    bench.send(subscriber, wire.subscribe(4, 1, ("a", 1)))
    for number in range(3):
        bench.send(publisher, wire.publish(4, "a", b"%d" % number, qos=1, packet_id=number + 1))
    bench.output(subscriber)
    bench.send(subscriber, wire.subscribe(4, 2, ("$share/g/a", 1)))
    got = bench.send(subscriber, wire.ack(4, "PUBACK", 1)) + bench.send(subscriber, wire.ack(4, "PUBACK", 2))
    assert [packet.payload for packet in got] == [b"1", b"2"]


def test_redelivery_goes_on_when_the_outbox_was_too_full_for_it() -> None:
    """A resumed session gets its full window again, although that exceeds the limit of its outbox on the way."""
    bench = Bench(inflight_max=3, outbox_bytes_max=4096)
    subscriber, publisher = bench.connect("subscriber"), bench.connect("publisher")
    bench.send(subscriber, wire.subscribe(4, 1, ("a", 1)))
    bodies = [bytes([number]) * 5000 for number in range(3)]
    for number, body in enumerate(bodies):
        bench.send(publisher, wire.publish(4, "a", body, qos=1, packet_id=number + 1))
        bench.output(subscriber)
    bench.lose(subscriber)
    again = Connection()
    got = bench.send(again, wire.connect(4, "subscriber", clean=False))
    assert [packet.payload for packet in got if packet.dup] == bodies


def test_a_suback_waits_for_a_sibling_that_may_serve_by_what_it_was_told_before() -> None:
    """A sibling that starts, or wakes, is ready by the interest number of our WELCOME. The SUBACK of a later SUBSCRIBE,
    sent before the sibling is ready here, waits until the sibling has taken that interest or is away.
    """
    node = Node(0, 2, Settings(workers=2), MemoryStore(), QuietLog(None), 1000, 1000)
    assert node.interest is not None
    from_sibling = Wire()
    limits = LinkLimits()
    one, other = sibling(0), sibling(1)
    link = Link(one, other, 1, node.interest, node.peering, Wire().send, limits, 1.0)
    far = Link(other, one, 1, Publisher(), Silent(), from_sibling.send, limits, 1.0)
    node.links = {other: link}
    far.tick(1.0)
    link.receive(from_sibling.messages[0], 1.0)  # its HELLO: our WELCOME is sent
    conn = Connection()
    name = next(f"c{number}" for number in range(100) if home(f"c{number}", 2) == 0)
    node.dispatch.feed(conn, wire.connect(4, name) + wire.subscribe(4, 1, ("a", 1)))
    node.router.finish_tick()
    assert [packet.kind for packet in packets(node.router.state.take_output(conn))] == ["CONNACK"]
    link.tick(1.0 + limits.link_silence_seconds_max + 0.1)  # it sends nothing more: away
    node.router.finish_tick()
    assert [packet.kind for packet in packets(node.router.state.take_output(conn))] == ["SUBACK"]

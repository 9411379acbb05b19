"""A session that acknowledges nothing has so many bytes in flight and no more (`inflight_bytes_max`); later messages
wait in its queue. At least one message of any size is always sent.
"""

from __future__ import annotations

import pytest

from tests.kept_host import kept, lasting
from tests.sansio import Host, Peer

BYTES = 10_000
LIMITS = {"inflight_bytes_max": BYTES}
HALF = b"h" * (BYTES // 2)


@pytest.fixture(params=["memory", "kept"])
def host(request: pytest.FixtureRequest) -> Host:
    if request.param == "kept":
        return kept(limits=LIMITS)[0]
    return Host(limits=LIMITS)


def publishes(peer: Peer) -> list[tuple[int, bytes]]:
    """Return (Packet Identifier, body) of the messages that have arrived; none is acknowledged."""
    peer.host.settle()
    found = [packet for packet in peer.packets if packet.kind == "PUBLISH"]
    peer.packets.clear()
    return [(packet.packet_id, packet.payload) for packet in found]


def publish(host: Host, *messages: bytes, qos: int = 1) -> None:
    publisher = host.connect("publisher", 5)
    for message in messages:
        publisher.publish("t", message, qos=qos)
        publisher.receive()


@pytest.mark.parametrize("qos", [1, 2])
def test_the_next_ones_wait(host: Host, qos: int) -> None:
    """The message that reaches the bound is sent; each answer that frees bytes lets the next one leave."""
    peer = lasting(host, "c", 5)
    peer.subscribe(("t", 2))
    publish(host, HALF, HALF, b"1", b"2", qos=qos)
    sent = publishes(peer)
    assert [body for _, body in sent] == [HALF, HALF]
    assert host.counters()["inflight_full"] == 1
    peer.ack("PUBACK" if qos == 1 else "PUBREC", sent[0][0])
    host.settle()
    assert [body for _, body in publishes(peer)] == [b"1", b"2"]


def test_one_of_any_size_is_sent(host: Host) -> None:
    peer = lasting(host, "c", 5)
    peer.subscribe(("t", 1))
    publish(host, b"x" * 3 * BYTES, b"next")
    ((packet_id, body),) = publishes(peer)
    assert len(body) == 3 * BYTES
    peer.ack("PUBACK", packet_id)
    host.settle()
    assert [body for _, body in publishes(peer)] == [b"next"]


def test_what_is_kept_for_nobody_does_not_count(host: Host) -> None:
    """A session that ends with its connection never gets a message again."""
    peer = host.connect("c", 5)
    peer.subscribe(("t", 1))
    publish(host, *[HALF] * 5)
    assert len(publishes(peer)) == 5


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_in_flight_counts_after_a_resumption(host: Host, qos: int) -> None:
    """All messages in flight are sent again, and no others before they are answered; also after a crash."""
    peer = lasting(host, "c", 5)
    peer.subscribe(("t", 2))
    publish(host, HALF, HALF, b"1", qos=qos)
    assert len(publishes(peer)) == 2
    if host.stores[0].keeps:
        host.pass_time(1)
        host = host.crash()
    peer = lasting(host, "c", 5)
    sent = publishes(peer)
    assert [body for _, body in sent] == [HALF, HALF]
    for packet_id, _ in sent:
        peer.ack("PUBACK" if qos == 1 else "PUBREC", packet_id)
    host.settle()
    assert [body for _, body in publishes(peer)] == [b"1"]


def test_another_bound_counts_from_the_next_connect(host: Host) -> None:
    peer = lasting(host, "c", 5)
    peer.subscribe(("t", 1))
    publish(host, HALF, HALF, HALF, b"1")
    assert len(publishes(peer)) == 2
    found = host.node.sessions.get("c")
    assert found is not None
    found.bound_inflight(found.slots_max, found.inflight_max, 2 * BYTES)
    sent = publishes(peer)
    assert not sent
    publish(host, b"2")
    peer.ack("PUBACK", 1)
    host.settle()
    assert [body for _, body in publishes(peer)] == [HALF, b"1", b"2"]

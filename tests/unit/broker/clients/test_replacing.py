"""A subscription replaced by one that excludes messages already queued: nothing is lost [MQTT-3.8.4-4]."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveldb_store.format import schema
from leveldb_store.format.subscription_schema import decode_subscription
from tests import wire
from tests.kept_host import kept, lasting, let_go, on_disk
from tests.sansio import Host, Peer
from tests.unit.broker.repartition.test_repartition import go_on, paths

NO_LOCAL = 4
FILTER = "a/+"


def slow(host: Host, name: str = "s") -> Peer:
    """Return a client that takes one message at a time."""
    return lasting(host, name, 5, properties={"receive_maximum": 1})


def publish(host: Host, *bodies: bytes, qos: int = 1) -> None:
    publisher = next((p for p in host.peers if p.client_id == "p" and not p.closed), None) or host.connect("p", 5)
    for body in bodies:
        publisher.publish("a/b", body, qos)
        publisher.receive()


def got(peer: Peer) -> list[tuple[bytes, int]]:
    """Return all messages; each is acknowledged."""
    return [(packet.payload, packet.qos) for packet in peer.receive()]


def subscribe(peer: Peer, options: int, text: str = FILTER) -> None:
    """Subscribe; the SUBACK is among the packets received, of which none is acknowledged."""
    peer.send(wire.subscribe(peer.version, peer.packet_id(), (text, options)))
    peer.host.settle()
    (suback,) = [packet for packet in peer.packets if packet.kind == "SUBACK"]
    assert list(suback.codes) == [options & 3]
    peer.packets.remove(suback)


def unread(host: Host, name: str = "s") -> int:
    session = host.node.sessions.get(name)
    assert session is not None
    return host.node.router.bounding.backlog(session)[0]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("stored", [False, True])
def test_what_is_queued_keeps_its_qos(qos: int, stored: bool) -> None:
    host = kept()[0] if stored else Host()
    peer = slow(host)
    subscribe(peer, qos)
    publish(host, b"1", b"2", b"3", qos=qos)
    subscribe(peer, 0)
    assert unread(host) == 2
    host.node.router.sweeping.sweep()
    publish(host, b"4", qos=qos)
    assert [body for body, at in got(peer) if at == 0] == [b"4"]
    assert unread(host) == 0
    publish(host, b"5", qos=qos)
    assert got(peer) == [(b"5", 0)]
    host.check_books()
    assert host.waiting() == 0


def test_each_message_comes_once_and_in_order() -> None:
    host = Host()
    peer = slow(host)
    subscribe(peer, 2)
    publish(host, b"1", b"2", b"3", qos=2)
    subscribe(peer, 0)
    assert got(peer) == [(b"1", 2), (b"2", 2), (b"3", 2)]


@pytest.mark.parametrize("many", [1, 70])
@pytest.mark.parametrize("again", ["here", "restarted", "repartitioned"])
def test_to_and_fro_over_restarts(tmp_path: Path, again: str, many: int) -> None:
    """A QoS 0 period between two at QoS 1: its messages were delivered at that time. Another session holds all
    messages. A session of 70 filters has an index of its own.
    """
    host = on_disk(paths(tmp_path, 1))
    other = lasting(host, "other", 5)
    other.subscribe((FILTER, 2))
    host.lose(other)
    peer = slow(host)
    for number in range(many - 1):
        subscribe(peer, 1, f"filter/{number}")
    subscribe(peer, 1)
    publish(host, b"1", b"2", b"3")
    subscribe(peer, 0)
    publish(host, b"4")
    subscribe(peer, 1)
    publish(host, b"5", b"6")
    subscribe(peer, 0)
    publish(host, b"7")
    host.pass_time(2)
    live = [packet for packet in peer.packets if packet.kind == "PUBLISH"]
    assert [(packet.payload, packet.qos) for packet in live] == [(b"1", 1), (b"4", 0), (b"7", 0)]
    host.lose(peer)
    if again != "here":
        host = go_on(tmp_path, host, 2 if again == "repartitioned" else 1)
        host.pass_time(2)
    peer = slow(host)
    assert peer.session_present
    assert got(peer) == [(b"1", 1), (b"2", 1), (b"3", 1), (b"5", 1), (b"6", 1)]
    publish(host, b"8")
    assert got(peer) == [(b"8", 0)]
    everything = [body for body, _ in got(lasting(host, "other", 5))]
    assert everything == [b"%d" % number for number in range(1, 9)]
    host.check_books()
    let_go(host)


def test_a_subscription_that_has_its_queue_is_stored_without_it() -> None:
    host, store = kept()
    peer = slow(host)
    subscribe(peer, 1)
    publish(host, b"1", b"2", b"3")
    subscribe(peer, 0)
    record = decode_subscription(store.records[schema.subscription_key("s", FILTER.encode())])
    assert (record.since, record.formers) == (3, [(1, 0, 3)])
    assert len(got(peer)) == 3
    subscribe(peer, 0)
    assert decode_subscription(store.records[schema.subscription_key("s", FILTER.encode())]).formers == []
    host.pass_time(2)
    assert store.messages_held() == 0


def test_what_was_sent_at_qos_0_is_not_sent_again_for_a_later_subscription() -> None:
    """Another session holds all three messages, so the index that is read for the first two also has the third."""
    host = kept()[0]
    other = lasting(host, "other", 5)
    other.subscribe((FILTER, 2))
    host.lose(other)
    peer = slow(host)
    subscribe(peer, 2)
    publish(host, b"1", b"2", b"3", qos=2)
    subscribe(peer, 0)
    publish(host, b"4", qos=2)
    subscribe(peer, 2, "a/b")
    publish(host, b"5", qos=2)
    assert got(peer) == [(b"1", 2), (b"4", 0), (b"2", 2), (b"3", 2), (b"5", 2)]
    host.check_books()


def test_a_message_is_found_where_another_filter_keeps_it() -> None:
    """Two filters match it; the index of the one at QoS 0 has it only as long as another session needs it."""
    host = kept()[0]
    other = lasting(host, "other", 5)
    other.subscribe(("a/b", 1))
    peer = slow(host)
    for number in range(70):
        subscribe(peer, 1, f"filter/{number}")
    subscribe(peer, 1)
    subscribe(peer, 1, "a/b")
    publish(host, b"1", b"2")
    subscribe(peer, 0, "a/b")
    publish(host, b"3", b"4")
    # no message stays in flight: it would keep all that lie behind it
    peer.send(wire.ack(5, "PUBACK", peer.next("PUBLISH").packet_id), wire.disconnect(5))
    host.pass_time(1)
    host = host.crash()
    host.pass_time(2)  # its unread messages are searched
    assert [body for body, _ in got(lasting(host, "other", 5))] == [b"1", b"2", b"3", b"4"]
    host.pass_time(2)  # messages that no session needs are deleted
    assert got(slow(host)) == [(b"2", 1), (b"3", 1), (b"4", 1)]


@pytest.mark.parametrize("again", ["owed", "subscribed"])
def test_a_crash_between_the_subscription_and_the_window(again: str) -> None:
    """The subscription's record covers no more of its former stretches than the window says has been sent."""
    host = kept()[0]
    peer = slow(host)
    subscribe(peer, 1)
    publish(host, b"1", b"2", b"3")
    subscribe(peer, 0)
    for body in (b"1", b"2"):
        packet = peer.next("PUBLISH")
        assert packet.payload == body
        peer.ack("PUBACK", packet.packet_id)
    host.settle()
    if again == "owed":
        host.node.state_records.owes(peer.session, FILTER.encode(), [(0, b"a/c")])
    else:
        subscribe(peer, 0)
    host.settle()
    peer = slow(host.crash())
    assert [body for body, _ in got(peer)] == [b"3"]


def test_where_messages_at_qos_0_are_queued() -> None:
    """QoS 0 messages sent during the subscription are not sent again when it is raised to QoS 1."""
    host = Host(queue_qos0=True)
    lasting(host, "another", 5).subscribe((FILTER, 1))  # so the index of the filter has all messages
    peer = slow(host)
    subscribe(peer, 1, "other")
    subscribe(peer, 0)
    host.lose(peer)
    publisher = host.connect("q", 5)
    for _ in range(2):
        publisher.publish("other", b"other", 1)
        publisher.receive()
    publish(host, b"1")
    peer = slow(host)
    publish(host, b"2")
    subscribe(peer, 1)
    publish(host, b"3")
    assert got(peer) == [(b"other", 1), (b"2", 0), (b"other", 1), (b"1", 0), (b"3", 1)]
    host.check_books()


def test_the_log_is_kept_as_long_as_it_is_wanted_and_no_longer() -> None:
    host = Host()
    peer = slow(host)
    subscribe(peer, 1)
    publish(host, b"1", b"2", b"3")
    subscribe(peer, 0)
    host.lose(peer)
    other = slow(host, "other")
    subscribe(other, 1)
    for number in range(100):
        publish(host, b"%d" % number)
    assert len(got(other)) == 100
    host.node.router.sweeping.sweep()
    assert host.stores[0].messages_held() == 2
    assert [body for body, _ in got(slow(host))] == [b"1", b"2", b"3"]
    host.node.router.sweeping.sweep()
    assert host.stores[0].messages_held() == 0


@pytest.mark.parametrize("limit", ["filters_per_session_max", "filters_max"])
@pytest.mark.parametrize("text", [FILTER, "$share/group/t"])
def test_where_there_is_no_room_for_another_one(limit: str, text: str) -> None:
    """[MQTT-3.8.4-3]: replacing the same subscription still works."""
    host = Host(limits={limit: 1})
    peer = lasting(host, "s", 5)
    assert peer.subscribe((text, 1)) == [1]
    assert peer.subscribe(("another", 1), (text, 2), ("$share/other/t", 1)) == [0x97, 2, 0x97]


def test_what_waits_is_counted_when_the_subscription_ends() -> None:
    host = Host()
    peer = slow(host)
    subscribe(peer, 1)
    publish(host, b"1", b"2", b"3")
    subscribe(peer, 0)
    peer.send(wire.unsubscribe(5, 9, FILTER))
    host.settle()
    assert host.counters()["dropped_unsubscribed"] == 2
    assert [body for body, _ in got(peer)] == [b"1"]
    host.check_books()


def test_no_local_takes_nothing_back() -> None:
    """A client's own messages that were queued before are delivered; those it publishes afterwards are not."""
    host = Host()
    peer = slow(host)
    subscribe(peer, 1)
    for number in range(3):
        peer.publish("a/b", b"%d" % number, 1)
    host.settle()
    subscribe(peer, 1 | NO_LOCAL)
    peer.publish("a/b", b"mine", 1)
    publish(host, b"theirs")
    assert [body for body, _ in got(peer)] == [b"0", b"1", b"2", b"theirs"]


def test_replaced_more_often_than_is_remembered() -> None:
    host = Host()
    peer = slow(host)
    subscribe(peer, 1)
    publish(host, b"first")
    wanted = []
    for number in range(30):
        wanted.append(b"%d" % number)
        publish(host, wanted[-1])
        subscribe(peer, 0)
        subscribe(peer, 1)
    session = host.node.sessions.get("s")
    assert session is not None
    assert len(host.node.router.subscribing.since(session, FILTER.encode())[1]) == 16
    assert got(peer) == [(b"first", 1), *((body, 1) for body in wanted)]
    host.check_books()


def test_many_sessions_replace_at_a_time_and_more_than_once() -> None:
    """The former subscriptions are kept in one table, which grows while they exist and is freed in between."""
    host = Host()
    for _ in range(2):
        peers = [slow(host, f"s{number}") for number in range(60)]
        for peer in peers:
            subscribe(peer, 1)
        publish(host, b"1", b"2")
        for peer in peers:
            subscribe(peer, 0)
        for peer in peers[:40]:
            subscribe(peer, 1)
        publish(host, b"3")
        for peer in peers[20:]:
            subscribe(peer, 0)
        host.lose(peers[0])
        assert host.node.closing.delete("s0")
        for number, peer in enumerate(peers[1:], 1):
            expected = [(b"1", 1), (b"2", 1), (b"3", 1)]
            assert got(peer) == (expected if number < 40 else [(b"1", 1), (b"3", 0), (b"2", 1)]), number
            peer.disconnect()
        for peer in peers[1:]:
            lasting(host, peer.client_id, 5).send(wire.unsubscribe(5, 9, FILTER))
        host.settle()
    host.check_books()

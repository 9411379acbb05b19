"""The router without sockets: windows, handshakes, sessions that fall behind and catch up, share groups, acks."""

from __future__ import annotations

import pytest

from broker.config.protocol import Protocol
from pyx.protocol.message import Message
from shards.placement import home
from tests import wire
from tests.sansio import CLOSING, Host, Peer
from zmq_mesh import envelope


def payloads(packets: list[wire.Packet]) -> list[bytes]:
    return [packet.payload for packet in packets]


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(start, start + count)]


def client_at(worker: int, workers: int, name: str = "client") -> str:
    """Return a client id whose home is that worker."""
    return next(f"{name}{i}" for i in range(1000) if home(f"{name}{i}", workers) == worker)


def publish_many(peer: Peer, topic: str, bodies: list[bytes], qos: int = 1) -> None:
    """Publish each and complete QoS 2; the acks are discarded."""
    for body in bodies:
        peer.publish(topic, body, qos)
        peer.host.settle()
        while peer.packets:
            packet = peer.packets.popleft()
            if packet.kind == "PUBREC":
                peer.ack("PUBREL", packet.packet_id)


# ---------------------------------------------------------------------------------------------------- handshakes


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
def test_effective_qos_is_the_lower_one(version: int, published: int, granted: int) -> None:
    host = Host()
    subscriber, publisher = host.connect("subscriber", version), host.connect("publisher", version)
    subscriber.subscribe(("t", granted))
    publish_many(publisher, "t", [b"x"], published)
    got = subscriber.receive()
    assert [(p.payload, p.qos, p.dup) for p in got] == [(b"x", min(published, granted), False)]
    host.check_books()
    assert host.waiting() == 0


def test_qos_2_arrives_once_however_often_it_is_sent() -> None:
    host = Host()
    subscriber, publisher = host.connect("subscriber"), host.connect("publisher")
    subscriber.subscribe(("t", 2))
    for dup in (False, True, True):
        publisher.send(wire.publish(4, "t", b"x", qos=2, packet_id=7, dup=dup))
        assert publisher.next("PUBREC").packet_id == 7
    publisher.ack("PUBREL", 7)
    assert publisher.next("PUBCOMP").packet_id == 7
    publisher.ack("PUBREL", 7)
    assert publisher.next("PUBCOMP").packet_id == 7
    assert payloads(subscriber.receive()) == [b"x"]
    publisher.send(wire.publish(4, "t", b"y", qos=2, packet_id=7))
    assert payloads(subscriber.receive()) == [b"y"]
    host.check_books()


def test_window_never_holds_more_than_receive_maximum() -> None:
    host = Host()
    subscriber = host.connect("subscriber", 5, properties={"receive_maximum": 3})
    publisher = host.connect("publisher")
    subscriber.subscribe(("t", 2))
    publish_many(publisher, "t", numbered(10))
    assert subscriber.session.unacknowledged == 3
    first = [subscriber.next("PUBLISH") for _ in range(3)]
    subscriber.silent()
    subscriber.ack("PUBACK", first[1].packet_id)
    assert subscriber.next("PUBLISH").payload == b"3"
    subscriber.silent()
    for packet in (first[0], first[2]):
        subscriber.ack("PUBACK", packet.packet_id)
    assert payloads(subscriber.receive()) == numbered(6, 4)
    host.check_books()


def test_an_identifier_that_is_never_acknowledged_stops_nobody() -> None:
    host = Host()
    subscriber, publisher = host.connect("subscriber", 5, expiry=100), host.connect("publisher", 5)
    subscriber.subscribe(("t", 1))
    publisher.publish("t", b"stuck", 1)
    stuck = subscriber.next("PUBLISH")
    for round_ in range(70):
        publish_many(publisher, "t", numbered(1000, round_ * 1000))
        got = subscriber.receive()
        assert payloads(got) == numbered(1000, round_ * 1000)
        assert stuck.packet_id not in {packet.packet_id for packet in got}
    assert subscriber.session.unacknowledged == 1
    host.check_books()


def test_puback_for_a_qos_2_message_and_pubrec_for_an_unknown_one() -> None:
    host = Host(protocol=Protocol(lenient=True))
    subscriber, publisher = host.connect("subscriber", 5), host.connect("publisher")
    subscriber.subscribe(("t", 2))
    publish_many(publisher, "t", [b"x"], 2)
    packet = subscriber.next("PUBLISH")
    subscriber.ack("PUBACK", packet.packet_id)
    subscriber.ack("PUBCOMP", packet.packet_id)
    assert subscriber.session.unacknowledged == 1
    subscriber.ack("PUBREC", 999)
    assert subscriber.next("PUBREL").reason == 0x92
    subscriber.ack("PUBREC", packet.packet_id)
    assert subscriber.next("PUBREL").reason == 0
    subscriber.ack("PUBREC", packet.packet_id)
    assert subscriber.next("PUBREL").reason == 0
    subscriber.ack("PUBCOMP", packet.packet_id)
    assert host.counters()["delivered_qos2"] == 1
    host.check_books()


@pytest.mark.parametrize(("qos", "kind"), [(1, "PUBACK"), (2, "PUBREC")])
def test_a_refused_message_is_dropped_and_makes_room(qos: int, kind: str) -> None:
    host = Host()
    subscriber = host.connect("subscriber", 5, properties={"receive_maximum": 1})
    publisher = host.connect("publisher")
    subscriber.subscribe(("t", 2))
    publish_many(publisher, "t", [b"a", b"b"], qos)
    subscriber.ack(kind, subscriber.next("PUBLISH").packet_id, 0x80)
    assert subscriber.next("PUBLISH").payload == b"b"
    assert host.counters()["dropped_refused"] == 1
    host.check_books()


# ---------------------------------------------------------------------------------------------------- resumption


@pytest.mark.parametrize("version", [4, 5])
def test_what_was_in_flight_comes_again_first_and_in_order(version: int) -> None:
    host = Host(limits={"inflight_max": 4})
    options = {"expiry": 100} if version == 5 else {"clean": False}
    subscriber = host.connect("subscriber", version, **options)
    publisher = host.connect("publisher")
    subscriber.subscribe(("t", 2))
    publish_many(publisher, "t", [b"1", b"2"], 1)
    publish_many(publisher, "t", [b"3", b"4"], 2)
    publish_many(publisher, "t", [b"5"], 1)
    sent = [subscriber.next("PUBLISH") for _ in range(4)]
    subscriber.ack("PUBREC", sent[2].packet_id)
    subscriber.next("PUBREL")
    host.lose(subscriber)
    publish_many(publisher, "t", [b"6"], 1)
    subscriber = host.connect("subscriber", version, **options | {"clean": False})
    assert subscriber.session_present
    again = [subscriber.next(kind) for kind in ("PUBREL", "PUBLISH", "PUBLISH", "PUBLISH")]
    assert [packet.packet_id for packet in again] == [sent[n].packet_id for n in (2, 0, 1, 3)]
    assert [packet.dup for packet in again if packet.kind == "PUBLISH"] == [True, True, True]
    subscriber.silent()
    for packet in again:
        subscriber.ack(
            {"PUBREL": "PUBCOMP"}.get(packet.kind, "PUBACK" if packet.qos == 1 else "PUBREC"), packet.packet_id
        )
    assert payloads(subscriber.receive()) == [b"5", b"6"]
    host.check_books()
    assert host.waiting() == 0


def test_resumption_with_a_smaller_receive_maximum() -> None:
    host = Host()
    subscriber = host.connect("subscriber", 5, expiry=100)
    publisher = host.connect("publisher")
    subscriber.subscribe(("t", 1))
    publish_many(publisher, "t", numbered(10))
    host.lose(subscriber)
    subscriber = host.connect("subscriber", 5, clean=False, expiry=100, properties={"receive_maximum": 2})
    assert len([subscriber.next("PUBLISH") for _ in range(2)]) == 2
    subscriber.silent()
    host.lose(subscriber)
    subscriber = host.connect("subscriber", 5, clean=False, expiry=100, properties={"receive_maximum": 2})
    assert payloads(subscriber.receive()) == numbered(10)
    host.check_books()


def test_what_is_in_flight_and_too_large_for_the_new_connection_is_dropped() -> None:
    """[MQTT-3.1.2-24]: Maximum Packet Size is the connection's; the session was resumed with a smaller one."""
    host = Host()
    subscriber = host.connect("subscriber", 5, expiry=100)
    publisher = host.connect("publisher")
    subscriber.subscribe(("t", 2))
    publish_many(publisher, "t", [b"x" * 500, b"small"])
    host.lose(subscriber)
    subscriber = host.connect("subscriber", 5, clean=False, expiry=100, properties={"maximum_packet_size": 100})
    assert payloads(subscriber.receive()) == [b"small"]
    assert host.counters()["dropped_packet_too_large"] == 1
    host.check_books()
    assert host.waiting() == 0


# ---------------------------------------------------------------------------------------------------- behind


def test_order_holds_from_in_sync_to_behind_to_in_sync() -> None:
    host = Host(limits={"inflight_max": 2})
    subscriber, publisher = host.connect("subscriber"), host.connect("publisher")
    subscriber.subscribe(("t", 1), ("+", 1))
    got: list[bytes] = []
    for start in range(0, 60, 6):
        publish_many(publisher, "t", numbered(6, start))
        for _ in range(2):
            packet = subscriber.next("PUBLISH")
            got.append(packet.payload)
            subscriber.ack("PUBACK", packet.packet_id)
            host.settle()
    got += payloads(subscriber.receive())
    assert got == numbered(60)
    assert not subscriber.session.is_behind
    host.node.router.sweeping.sweep()
    assert host.stores[0].messages_held() == 0
    host.check_books()


def test_a_session_without_sockets_falls_behind_by_its_outbox_too() -> None:
    host = Host(limits={"outbox_bytes_max": 4096})
    subscriber, publisher = host.connect("subscriber"), host.connect("publisher")
    subscriber.subscribe(("t", 1))
    subscriber.stalled = True
    publish_many(publisher, "t", [b"%03d" % i + b"x" * 1000 for i in range(20)])
    publish_many(publisher, "t", [b"lost"], 0)
    assert subscriber.session.is_behind
    assert host.counters()["dropped_outbox_full"] == 1
    subscriber.stalled = False
    subscriber.take()
    assert [p.payload[:3] for p in subscriber.receive()] == [b"%03d" % i for i in range(20)]
    host.check_books()


def test_disconnect_when_full_ends_a_connection_whose_outbox_overflows() -> None:
    host = Host(limits={"outbox_bytes_max": 4096}, queue_full="disconnect")
    subscriber, publisher = host.connect("subscriber", 5), host.connect("publisher")
    subscriber.subscribe(("t", 0))
    subscriber.stalled = True
    publish_many(publisher, "t", [b"x" * 1000] * 20, 0)
    assert subscriber.closed
    host.check_books()


def test_a_take_over_of_a_connection_whose_end_was_asked_for_in_the_same_tick() -> None:
    host = Host(limits={"outbox_bytes_max": 4096}, queue_full="disconnect")
    subscriber, publisher = host.connect("subscriber", 5, expiry=100), host.connect("publisher")
    subscriber.subscribe(("t", 1))
    subscriber.stalled = True
    publisher.send(*(wire.publish(4, "t", b"x" * 1000) for _ in range(20)))
    assert subscriber.closed
    again = host.open(5)
    again.client_id = "subscriber"
    again.send(wire.connect(5, "subscriber", clean=False, properties={"session_expiry_interval": 100}))
    host.settle()
    assert again.next("CONNACK").session_present
    assert again.session.connection is again.conn
    publish_many(publisher, "t", [b"new"])
    assert payloads(again.receive()) == [b"new"]
    host.check_books()


def test_two_filters_are_one_copy_with_the_higher_qos_and_both_identifiers() -> None:
    host = Host(limits={"inflight_max": 1})
    subscriber, publisher = host.connect("subscriber", 5, expiry=100), host.connect("publisher")
    subscriber.subscribe(("a/+", 0), identifier=1)
    subscriber.subscribe(("a/b", 1), identifier=300)
    subscriber.subscribe(("#", 2))
    publish_many(publisher, "a/b", numbered(3), 2)
    got = subscriber.receive()
    assert payloads(got) == numbered(3)
    for packet in got:
        assert packet.qos == 2
        assert sorted(packet.properties["subscription_identifier"]) == [1, 300]
    host.check_books()


def test_a_filter_with_other_sessions_backlog_is_not_read_from_before_the_subscription() -> None:
    host = Host(limits={"inflight_max": 1, "queue_messages_max": 10})
    other = host.connect("other", 4, clean=False)
    other.subscribe(("b", 1))
    host.lose(other)
    subscriber, publisher = host.connect("subscriber", 4, clean=False), host.connect("publisher")
    subscriber.subscribe(("a", 1))
    publish_many(publisher, "a", [b"a1", b"a2", b"a3"])
    publish_many(publisher, "b", numbered(10))
    subscriber.send(wire.subscribe(4, 77, ("b", 1)))
    publish_many(publisher, "b", [b"new"])
    host.node.router.sweeping.sweep()
    assert host.node.router.bounding.backlog(subscriber.session)[0] == 3
    assert payloads(subscriber.receive()) == [b"a1", b"a2", b"a3", b"new"]
    host.check_books()


def test_qos_raised_while_behind_brings_nothing_twice() -> None:
    host = Host(limits={"inflight_max": 1})
    other = host.connect("other", 4, clean=False)
    other.subscribe(("b", 1))
    host.lose(other)
    subscriber, publisher = host.connect("subscriber", 4, clean=False), host.connect("publisher")
    subscriber.subscribe(("a", 1), ("b", 0))
    publish_many(publisher, "a", [b"a1", b"a2"])
    publish_many(publisher, "b", [b"b1"])
    assert payloads([p for p in subscriber.packets if p.topic == "b"]) == [b"b1"]
    subscriber.send(wire.subscribe(4, 77, ("b", 1)))
    publish_many(publisher, "b", [b"b2"])
    assert sorted(payloads(subscriber.receive())) == [b"a1", b"a2", b"b1", b"b2"]
    host.check_books()


@pytest.mark.parametrize("filters", [1, 3, 70])
def test_an_offline_session_gets_everything_in_order(filters: int) -> None:
    """Above 64 filters it has one index of its own."""
    host = Host()
    subscriber, publisher = host.connect("subscriber", 4, clean=False), host.connect("publisher")
    subscriber.subscribe(*((f"t/{i}", 1) for i in range(filters)))
    host.lose(subscriber)
    sent = []
    for i in range(200):
        publish_many(publisher, f"t/{i % filters}", [b"%d" % i])
        sent.append(b"%d" % i)
    assert host.node.router.bounding.backlog(host.node.sessions.get("subscriber"))[0] == 200  # type: ignore[arg-type]
    subscriber = host.connect("subscriber", 4, clean=False)
    assert payloads(subscriber.receive()) == sent
    assert not subscriber.session.is_behind
    host.node.router.sweeping.sweep()
    assert host.stores[0].messages_held() == 0
    host.check_books()


@pytest.mark.parametrize("filters", [1, 3, 70])
@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest"])
def test_a_backlog_is_bounded_for_each_session(policy: str, filters: int) -> None:
    host = Host(limits={"queue_messages_max": 50}, queue_full=policy)
    publisher = host.connect("publisher")
    names = ["first", "second"]
    for name in names:
        subscriber = host.connect(name, 4, clean=False)
        subscriber.subscribe(*((f"t/{i}", 1) for i in range(filters)))
        host.lose(subscriber)
    for i in range(200):
        publish_many(publisher, f"t/{i % filters}", [b"%d" % i])
    host.node.router.sweeping.sweep()
    for name in names:
        subscriber = host.connect(name, 4, clean=False)
        got = [int(body) for body in payloads(subscriber.receive())]
        assert got == sorted(got)
        assert 45 <= len(got) <= 60, (name, len(got))
        assert got[-1] == 199 if policy == "drop_oldest" else got[:45] == list(range(45))
    host.check_books()
    row = host.counters()
    assert row["matched"] == row["delivered_qos1"] + row["dropped_queue_full"] == 400


def test_the_end_of_a_session_with_an_index_of_its_own_leaves_nothing_in_the_store() -> None:
    host = Host()
    subscriber, publisher = host.connect("subscriber", 4, clean=False), host.connect("publisher")
    subscriber.subscribe(*((f"t/{i}", 1) for i in range(70)))
    host.lose(subscriber)
    publish_many(publisher, "t/1", numbered(3))
    publisher.publish("t/1", b"in the same tick", 1)
    again = host.open(4)
    again.send(wire.connect(4, "subscriber", clean=True))
    host.settle()
    host.node.router.sweeping.sweep()
    assert host.stores[0].messages_held() == 0
    assert not host.stores[0]._indexes
    host.check_books()


def test_qos_0_copies_for_an_offline_session_are_counted_as_dropped() -> None:
    host = Host()
    subscriber, publisher = host.connect("subscriber", 4, clean=False), host.connect("publisher")
    subscriber.subscribe(("t", 0))
    host.lose(subscriber)
    publish_many(publisher, "t", [b"x"], 1)
    publish_many(publisher, "t", [b"x"], 0)
    assert host.counters()["dropped_offline_qos0"] == 2
    host.check_books()


def test_queue_qos0_keeps_them_once_and_in_order() -> None:
    host = Host(queue_qos0=True, limits={"inflight_max": 1})
    subscriber, publisher = host.connect("subscriber", 4, clean=False), host.connect("publisher")
    other = host.connect("other", 4, clean=False)
    for peer in (subscriber, other):
        peer.subscribe(("t", 1), ("u", 0))
    host.lose(other)
    publish_many(publisher, "t", [b"1", b"2"], 1)
    publish_many(publisher, "t", [b"3"], 0)  # the subscriber is behind but online: at once
    publish_many(publisher, "u", [b"4"], 1)
    assert [p.payload for p in subscriber.packets] == [b"1", b"3", b"4"]
    host.lose(subscriber)
    publish_many(publisher, "u", [b"5"], 0)
    publish_many(publisher, "t", [b"6"], 1)
    publish_many(publisher, "t", [b"7"], 0)
    subscriber = host.connect("subscriber", 4, clean=False)
    assert payloads(subscriber.receive()) == [b"1", b"2", b"5", b"6", b"7"]
    other = host.connect("other", 4, clean=False)
    assert payloads(other.receive()) == numbered(7, 1)
    assert host.counters()["dropped_offline_qos0"] == 0
    host.check_books()
    host.node.router.sweeping.sweep()
    assert host.stores[0].messages_held() == 0


def test_expired_messages_are_dropped_when_they_would_leave() -> None:
    host = Host()
    subscriber, publisher = host.connect("subscriber", 5, expiry=1000), host.connect("publisher", 5)
    subscriber.subscribe(("t", 1))
    host.lose(subscriber)
    publisher.publish("t", b"short", 1, properties={"message_expiry_interval": 10})
    publisher.publish("t", b"long", 1, properties={"message_expiry_interval": 100})
    host.pass_time(11)
    subscriber = host.connect("subscriber", 5, clean=False, expiry=1000)
    (packet,) = subscriber.receive()
    assert packet.payload == b"long"
    assert packet.properties["message_expiry_interval"] == 89
    assert host.counters()["dropped_expired"] == 1
    host.check_books()


def test_unsubscribing_while_behind_drops_what_was_not_sent() -> None:
    host = Host(limits={"inflight_max": 1})
    subscriber, publisher = host.connect("subscriber"), host.connect("publisher")
    subscriber.subscribe(("t", 1))
    publish_many(publisher, "t", numbered(5))
    subscriber.next("PUBLISH")
    subscriber.unsubscribe("t")
    assert host.counters()["dropped_unsubscribed"] == 4
    subscriber.ack("PUBACK", 1)
    assert subscriber.receive() == []
    host.check_books()


@pytest.mark.parametrize("online", [True, False])
def test_what_waits_for_a_subscription_that_is_lowered_to_qos_0_comes_at_qos_1(online: bool) -> None:
    host = Host(limits={"inflight_max": 2})
    subscriber, publisher = host.connect("subscriber", clean=False), host.connect("publisher")
    subscriber.subscribe(("t", 1))
    if not online:
        host.lose(subscriber)
    publish_many(publisher, "t", numbered(6))
    if not online:
        subscriber = host.connect("subscriber", clean=False)
    subscriber.send(wire.subscribe(4, 9, ("t", 0)))
    host.settle()
    assert [(packet.payload, packet.qos) for packet in subscriber.receive()] == [(each, 1) for each in numbered(6)]
    row = host.counters()
    assert (row["matched"], row["delivered_qos1"]) == (6, 6)
    host.check_books()


def test_the_end_of_a_session_counts_what_it_had_not_got() -> None:
    host = Host(limits={"inflight_max": 2, "queue_messages_max": 50})
    subscriber, publisher = host.connect("subscriber"), host.connect("publisher")
    subscriber.subscribe(("t", 1))
    publish_many(publisher, "t", numbered(200))
    host.lose(subscriber)
    row = host.counters()
    assert row["matched"] == 200 == row["dropped_session_ended"] + row["dropped_queue_full"]
    host.check_books()
    assert host.waiting() == 0


# ---------------------------------------------------------------------------------------------------- share groups


def test_members_take_turns() -> None:
    host = Host()
    members = [host.connect(f"m{i}") for i in range(3)]
    for member in members:
        member.subscribe(("$share/g/t", 1))
    publish_many(host.connect("publisher"), "t", numbered(30))
    got = [payloads(member.receive()) for member in members]
    assert [len(part) for part in got] == [10, 10, 10]
    assert sorted(body for part in got for body in part) == sorted(numbered(30))
    host.check_books()


@pytest.mark.parametrize("spread", [(1, 1), (2, 1), (1, 3), (0, 2)])
def test_workers_take_turns_in_proportion_to_their_members(spread: tuple[int, int]) -> None:
    host = Host(2)
    members = []
    for worker, count in enumerate(spread):
        for i in range(count):
            members.append(host.connect(client_at(worker, 2, f"m{worker}{i}-")))
            members[-1].subscribe(("$share/g/t", 1))
    publish_many(host.connect(client_at(0, 2)), "t", numbered(60))
    got = [payloads(member.receive()) for member in members]
    assert [len(part) for part in got] == [60 // len(members)] * len(members)
    host.check_books()


def test_what_a_leaving_member_had_not_acknowledged_goes_to_another() -> None:
    host = Host(limits={"inflight_max": 2})
    first = host.connect("first")
    first.subscribe(("$share/g/t", 1))
    publish_many(host.connect("publisher"), "t", numbered(6))
    assert payloads([first.next("PUBLISH"), first.next("PUBLISH")]) == numbered(2)
    second = host.connect("second")
    second.subscribe(("$share/g/t", 1))
    host.lose(first)
    assert payloads(second.receive()) == numbered(6)
    host.check_books()
    assert host.waiting() == 0


def test_what_the_last_member_had_not_acknowledged_is_dropped() -> None:
    host = Host(limits={"inflight_max": 2})
    member = host.connect("member")
    member.subscribe(("$share/g/t", 1))
    publish_many(host.connect("publisher"), "t", numbered(6))
    host.lose(member)
    assert host.counters()["dropped_no_member"] == 6
    host.check_books()


def test_a_worker_whose_members_left_refuses_and_another_is_chosen() -> None:
    host = Host(2)
    gone, stays = (host.connect(client_at(1, 2, "gone")), host.connect(client_at(0, 2, "stays")))
    gone.subscribe(("$share/g/t", 1))
    stays.subscribe(("$share/g/t", 1))
    publisher = host.connect(client_at(0, 2, "publisher"))
    host.held |= {(0, 1), (1, 0)}
    for body in numbered(4):
        publisher.publish("t", body, 1)
        host.settle()
    gone.node.router.state.close(gone.conn, 0, "lost")
    host.settle()
    host.held.clear()
    host.settle()
    assert sorted(payloads(stays.receive())) == numbered(4)
    assert [publisher.next("PUBACK").packet_id for _ in range(4)] == [1, 2, 3, 4]
    host.check_books()


def test_a_group_whose_only_members_are_behind_on_another_worker() -> None:
    host = Host(2, limits={"inflight_max": 1})
    member, publisher = host.connect(client_at(1, 2, "member")), host.connect(client_at(0, 2))
    member.subscribe(("$share/g/t", 1))
    publish_many(publisher, "t", numbered(5))
    assert member.session.is_behind
    assert payloads(member.receive()) == numbered(5)
    host.check_books()


def test_more_groups_on_one_filter_than_a_mesh_entry_can_name() -> None:
    host = Host(2)
    member, publisher = host.connect(client_at(1, 2, "member")), host.connect(client_at(0, 2))
    member.subscribe(("t", 1), *((f"$share/g{i}/t", 1) for i in range(300)))
    publish_many(publisher, "t", [b"x"])
    assert len(member.receive()) == 301
    host.check_books()


# ---------------------------------------------------------------------------------------------------- siblings


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_crosses_once_and_comes_back_never(qos: int) -> None:
    host = Host(2)
    here, there = host.connect(client_at(0, 2, "here")), host.connect(client_at(1, 2, "there"))
    publisher = host.connect(client_at(0, 2))
    for peer in (here, there):
        peer.subscribe(("t", 2), ("#", 2))
    for body in (b"small", b"l" * 5000, b"x" * 50_000):
        publish_many(publisher, "t", [body], qos)
        assert payloads(here.receive()) == payloads(there.receive()) == [body]
    assert host.counters()["mesh_entries_sent"] == 3
    host.check_books()


def test_an_ack_waits_for_the_batch_that_has_its_message() -> None:
    """A batch that left in the middle of a tick must not acknowledge entries added to the next batch."""
    host = Host(2)
    subscriber, publisher = host.connect(client_at(1, 2, "subscriber")), host.connect(client_at(0, 2))
    subscriber.subscribe(("t", 1))
    publisher.publish("t", b"first", 1)
    publisher.node.forward()  # the coalescing timer
    publisher.publish("t", b"second", 1)
    line = host._under_way[0, 1]
    assert len(line) == 1
    host.held.add((0, 1))
    host.settle()
    later = [line.pop() for _ in range(len(line) - 1)][::-1]
    host.held.clear()
    host.settle()
    assert publisher.next("PUBACK").packet_id == 1
    publisher.silent()
    line.extend(later)
    host.settle()
    assert publisher.next("PUBACK").packet_id == 2
    assert payloads(subscriber.receive()) == [b"first", b"second"]


def test_acks_leave_in_the_order_of_the_packets() -> None:
    host = Host(2)
    subscriber, publisher = host.connect(client_at(1, 2, "subscriber")), host.connect(client_at(0, 2))
    subscriber.subscribe(("far", 1))
    host.held.add((1, 0))
    publisher.publish("far", b"x", 1)
    publisher.publish("near", b"x", 1)
    publisher.publish("far", b"x", 2)
    publisher.send(wire.subscribe(4, 100, ("near", 0)), wire.unsubscribe(4, 101, "near"))
    publisher.silent()
    host.held.clear()
    kinds = [publisher.next(kind).packet_id for kind in ("PUBACK", "PUBACK", "PUBREC", "SUBACK", "UNSUBACK")]
    assert kinds == [1, 2, 3, 100, 101]


def test_payload_frames_of_the_wrong_size_are_refused() -> None:
    host = Host(2)
    part, frames = envelope.encode_entries([envelope.Entry(b"t", b"x" * 9000, 1, own_frame=True)])
    router = host.node.router
    assert router.siblings.ingest(1, part, frames) == (1, None, None)
    for wrong in ([], [b"x" * 8999], [b"x" * 9001]):
        with pytest.raises(ValueError):
            router.siblings.ingest(1, part, wrong)


def test_counters_of_a_message_from_the_broker_itself() -> None:
    host = Host()
    subscriber = host.connect("subscriber")
    subscriber.subscribe(("t", 1))
    host.node.router.publish_message(Message.create(b"t", b"x", qos=1, number=5))
    assert payloads(subscriber.receive()) == [b"x"]
    host.check_books()
    assert subscriber.conn.state < CLOSING


def test_leaving_a_group_keeps_the_plain_subscription_and_the_other_groups() -> None:
    host = Host()
    member, publisher = host.connect("member", 5), host.connect("publisher")
    member.subscribe(("t", 0), ("$share/g/t", 0), ("$share/h/t", 0))
    member.unsubscribe("$share/g/t")
    publish_many(publisher, "t", [b"x"], 0)
    assert len(member.receive()) == 2
    member.unsubscribe("t", "$share/h/t")
    publish_many(publisher, "t", [b"y"], 0)
    assert member.receive() == []
    assert member.session.subscriptions == 0

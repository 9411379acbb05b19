"""Wills and retained messages across the death of a worker."""

from __future__ import annotations

import pytest

from tests import wire
from tests.kept_host import VERSIONS, WILL, commit, families, kept, lasting, sent, store_of
from tests.sansio import Host, Peer

# ------------------------------------------------------------------------------------------------------------- wills


def watcher(host: Host) -> Peer:
    client = lasting(host, "watcher")
    client.subscribe(("will", 1))
    return client


def wills(host: Host) -> list[bytes]:
    return [packet.payload for packet in lasting(host, "watcher").receive()]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("clean", [True, False])
def test_the_will_of_a_connected_client_is_published_after_a_crash(version: int, clean: bool) -> None:
    host, _ = kept()
    host.lose(watcher(host))
    host.connect("c", version, clean=clean, will=WILL)
    host = host.crash()
    assert b"W" not in families(host)
    host = host.crash()  # published only once
    assert wills(host) == [b"gone"]
    assert wills(host) == []


def test_a_will_is_stored_when_the_connack_says_so() -> None:
    host, _ = kept()
    host.lose(watcher(host))
    store_of(host).manual = True
    client = sent(host, "c", will=WILL)
    client.silent()
    assert wills(host.crash()) == []
    commit(host)
    client.next("CONNACK")
    assert wills(host.crash()) == [b"gone"]


@pytest.mark.parametrize("clean", [True, False])
def test_a_normal_disconnect_takes_the_stored_will_away(clean: bool) -> None:
    host, _ = kept()
    host.lose(watcher(host))
    host.connect("c", 4, clean=clean, will=WILL).disconnect()
    host = host.crash()
    assert wills(host) == []
    assert b"W" not in families(host)


def test_a_will_that_was_published_is_not_stored_any_more() -> None:
    host, _ = kept()
    host.lose(watcher(host))
    host.lose(host.connect("c", 4, will=WILL))
    host = host.crash()
    assert wills(host) == [b"gone"]
    assert b"W" not in families(host)


def test_a_delayed_will_of_a_connected_client_has_its_delay_from_recovery() -> None:
    host, _ = kept()
    host.lose(watcher(host))
    will = wire.Will("will", b"late", qos=1, properties={"will_delay_interval": 30})
    lasting(host, "c", 5, expiry=100, will=will)
    host.pass_time(100)
    host = host.crash(seconds=100)
    host.pass_time(29)
    assert wills(host) == []
    host.pass_time(2)
    assert wills(host) == [b"late"]
    assert b"W" not in families(host)


def test_a_delayed_will_of_one_that_had_gone_is_due_when_it_was() -> None:
    host, _ = kept()
    host.lose(watcher(host))
    will = wire.Will("will", b"late", qos=1, properties={"will_delay_interval": 30})
    host.lose(lasting(host, "c", 5, expiry=100, will=will))
    host.pass_time(10)
    host = host.crash(seconds=15)
    assert wills(host) == []
    host.lose(host.peers[-1])
    host = host.crash(seconds=6)
    assert wills(host) == [b"late"]
    assert b"W" not in families(host)


def test_a_client_that_is_back_before_its_will_has_none() -> None:
    host, _ = kept()
    host.lose(watcher(host))
    will = wire.Will("will", b"late", qos=1, properties={"will_delay_interval": 30})
    lasting(host, "c", 5, expiry=100, will=will)
    host = host.crash()
    lasting(host, "c", 5, expiry=100)
    host.pass_time(31)
    assert wills(host) == []
    assert b"W" not in families(host)


def test_a_will_is_due_when_its_session_expires_while_the_broker_is_down() -> None:
    host, _ = kept()
    host.lose(watcher(host))
    will = wire.Will("will", b"late", qos=1, properties={"will_delay_interval": 3000})
    host.lose(lasting(host, "c", 5, expiry=100, will=will))
    host = host.crash(seconds=200)
    assert wills(host) == [b"late"]
    assert host.node.sessions.get("c") is None
    assert b"W" not in families(host)


def test_a_will_keeps_all_it_has() -> None:
    host, _ = kept()
    watch = lasting(host, "watcher", 5)
    watch.subscribe(("will", 2 | wire.RETAIN_AS_PUBLISHED))
    host.lose(watch)
    properties = {"content_type": "text", "message_expiry_interval": 60, "user_property": [("a", "b")]}
    host.connect("c", 5, will=wire.Will("will", b"x", qos=2, retain=True, properties=properties))
    host = host.crash(seconds=500)  # its expiry counts from the publication
    (packet,) = lasting(host, "watcher", 5).receive()
    assert (packet.payload, packet.qos, packet.retain) == (b"x", 2, True)
    assert packet.properties["content_type"] == "text"
    assert packet.properties["message_expiry_interval"] == 60
    assert packet.properties["user_property"] == [("a", "b")]
    host = host.crash()
    reader = host.connect("reader", 5)
    reader.subscribe(("will", 1))
    assert [each.payload for each in reader.receive()] == [b"x"]


# ------------------------------------------------------------------------------------------------- retained messages


def retained(host: Host, topic: str = "#") -> list[tuple[str, bytes]]:
    reader = host.connect("reader", 5)
    reader.subscribe((topic, 2))
    got = [(packet.topic, packet.payload) for packet in reader.receive() if packet.retain]
    reader.disconnect()
    return sorted(got)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retained_messages_are_there_after_a_crash(qos: int) -> None:
    host, _ = kept()
    publisher = host.connect("p", 5)
    for topic, payload in (("a", b"1"), ("b", b"1"), ("a", b"2"), ("b", b"")):
        publisher.publish(topic, payload, qos=qos, retain=True)
        publisher.receive()
    assert retained(host) == [("a", b"2")]
    for _ in range(2):
        host = host.crash()
        assert retained(host) == [("a", b"2")]
    publisher = host.connect("p")
    publisher.publish("a", b"", qos=qos, retain=True)
    publisher.receive()
    host = host.crash()
    assert retained(host) == []
    assert not store_of(host).records


def test_what_one_tick_leaves_of_a_topic_is_one_record() -> None:
    host, store = kept()
    publisher = host.connect("p")
    publisher.send(*(wire.publish(4, "t", b"%d" % i, retain=True) for i in range(100)))
    host.settle()
    assert len(store.batches) == 1
    assert len(store.batches[0]) == 1
    assert retained(host.crash()) == [("t", b"99")]


@pytest.mark.parametrize(("qos", "ack"), [(1, "PUBACK"), (2, "PUBREC")])
def test_the_ack_of_a_retained_message_waits_for_the_disk(qos: int, ack: str) -> None:
    host, _ = kept(manual=True)
    publisher = host.connect("p")
    publisher.publish("t", b"x", qos=qos, retain=True)
    publisher.silent()
    assert retained(host.crash()) == []
    commit(host)
    publisher.next(ack)
    assert retained(host.crash()) == [("t", b"x")]


def test_a_retained_message_that_expires_is_deleted() -> None:
    host, _ = kept()
    publisher = host.connect("p", 5)
    publisher.publish("t", b"x", qos=1, retain=True, properties={"message_expiry_interval": 100})
    host.settle()
    crashed = host.crash(seconds=40)
    reader = crashed.connect("reader", 5)
    reader.subscribe(("t", 1))
    (packet,) = reader.receive()
    assert packet.properties["message_expiry_interval"] == 60
    late = host.crash(seconds=101)
    assert retained(late) == []
    assert not store_of(late).records
    crashed.pass_time(65)
    assert not families(crashed)


def test_numbers_rise_over_a_crash_though_the_clock_was_put_back() -> None:
    host, _ = kept()
    host.connect("p").publish("t", b"old", qos=1, retain=True)
    host.settle()
    host.now_ms -= 900
    host = host.crash()
    host.connect("p").publish("t", b"new", qos=1, retain=True)
    host.settle()
    assert retained(host) == [("t", b"new")]

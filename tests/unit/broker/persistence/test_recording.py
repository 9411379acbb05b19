"""Recorded client events: every kind, once, with its details; bounded per second; summed up per minute."""

from __future__ import annotations

from typing import Any

import pytest

from leveldb_store.format.events import decode_event, event_key
from tests import wire
from tests.kept_host import kept, lasting, session, store_of
from tests.kept_store import KeptStore
from tests.sansio import DROPS, Host, Peer

MINUTE_MS = 60_000


def recorded(host: Host, *kinds: str) -> list[dict[str, Any]]:
    """Return the events of these kinds, or all events, in order; their numbers rise."""
    found, last = [], 0
    for number, value in store_of(host).recorded:
        assert number > last
        last = number
        event = decode_event(event_key(number), bytes(8) + value)
        if not kinds or event.kind.name in kinds:
            found.append({"kind": event.kind.name, **event.fields})
    return found


def kinds(host: Host) -> list[str]:
    return [event["kind"] for event in recorded(host)]


def next_minute(host: Host) -> None:
    host.pass_time((MINUTE_MS - host.node.router.state.wall_ms % MINUTE_MS) / 1000 + 2)


def named(host: Host, kind: str, **fields: Any) -> list[dict[str, Any]]:
    return [each for each in recorded(host, kind) if fields.items() <= each.items()]


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_clean_connection_is_two_events(version: int) -> None:
    host, _ = kept()
    peer = host.connect("c", version, keep_alive=60)
    host.pass_time(1.5)
    peer.disconnect()
    assert kinds(host) == ["connection_opened", "connection_closed"]
    opened, closed = recorded(host)
    assert opened | {"address": "?"} == {
        "kind": "connection_opened", "client": "c", "username": None, "address": "?", "listener": None,
        "version": version, "keep_alive": 60, "clean_start": 1, "session_present": 0, "session_expiry": 0,
    }  # fmt: skip
    assert closed["reason"] == "disconnected by the client"
    assert (closed["by"], closed["code"], closed["milliseconds"]) == (1, 0, host.now_ms - peer.conn.opened)
    assert (closed["messages_in"], closed["drops"], closed["version"]) == (0, 0, version)


def test_nobody_waits_for_an_event() -> None:
    """The disk takes nothing, and events make no batch of their own."""
    host, store = kept(manual=True)
    host.pass_time(0.1)
    batches = len(store.batches)
    peer = host.connect("c", 5)
    assert peer.subscribe(("t", 1)) == [1]
    peer.unsubscribe("t")
    peer.disconnect()
    host.pass_time(3)
    assert len(recorded(host)) == 4
    assert len(store.batches) == batches


def test_why_a_connection_ends() -> None:
    host, _ = kept()
    host.lose(host.connect("lost", 5))
    host.connect("expired", 5, keep_alive=1)
    peer = host.connect("wrong", 5)
    peer.send(b"\x62\x01\x00")
    host.settle()
    host.node.keep_alive_timeout(host.peers[1].conn)
    peer = host.connect("with reason", 5)
    peer.send(wire.disconnect(5, 4))
    host.settle()
    found = {each["client"]: (each["by"], each["code"]) for each in recorded(host, "connection_closed")}
    assert found == {"lost": (0, 0), "wrong": (2, 0x81), "expired": (2, 0x8D), "with reason": (1, 4)}


def test_a_session_is_made_resumed_taken_over_ended_and_expires() -> None:
    host, _ = kept()
    first = lasting(host, "s", 5, expiry=10)
    lasting(host, "s", 5, expiry=10)
    assert first.closed
    host.lose(host.peers[-1])
    host.pass_time(11)
    assert kinds(host) == [
        "connection_opened", "session_created", "session_taken_over", "connection_closed", "connection_opened",
        "connection_closed", "session_expired",
    ]  # fmt: skip
    assert [each["session_present"] for each in recorded(host, "connection_opened")] == [0, 1]
    assert (
        recorded(host, "session_created")[0] | {"version": 5, "session_expiry": 10}
        == (recorded(host, "session_created")[0])
    )
    assert recorded(host, "connection_closed")[0]["code"] == 0x8E
    lasting(host, "s", 5)
    host.connect("s", 5)
    assert named(host, "session_ended", client="s", reason="clean start")
    lasting(host, "t", 5)
    assert host.node.closing.delete("t")
    assert named(host, "session_ended", client="t", reason="deleted by the operator")
    peer = lasting(host, "u", 5)
    peer.send(wire.disconnect(5, 0, {"session_expiry_interval": 0}))
    host.settle()
    assert named(host, "session_ended", client="u")
    assert len(recorded(host, "session_ended")) == 3


def test_a_session_that_expires_while_nobody_serves_is_recorded_at_the_start() -> None:
    host, _ = kept()
    host.lose(lasting(host, "s", 5, expiry=10))
    last = store_of(host).last_event
    host = host.crash(60)
    assert named(host, "session_expired", client="s")
    assert store_of(host).last_event > last


def test_numbers_go_on_though_the_clock_was_put_back() -> None:
    host, store = kept()
    host.connect("a")
    future = (host.node.router.state.wall_ms + 10**9) * 1000 << 8
    store.record(future, store.recorded[-1][1])
    host = host.crash()
    host.connect("b")
    assert [number > future for number, _ in store.recorded].count(True) == 1, "that of b"


def test_refused_connections_say_what_is_known_of_them() -> None:
    host, _ = kept(limits={"connections_max": 1})
    host.connect("in")
    peer = host.open(5)
    peer.send(wire.connect(5, "out"))
    host.settle()
    bad = host.open(4)
    bad.send(wire.connect(9, "x"))
    silent = host.open(5)
    host.node.connect_timeout(silent.conn)
    host.settle()
    found = [(each["client"], each["code"], each["reason"]) for each in recorded(host, "connection_refused")]
    assert ("out", 0x97, "too many connections") in found
    assert (None, 0, "no CONNECT in time") in found
    assert [each for each in found if each[1] == 0x84]
    assert len(found) == 3


def test_subscriptions_as_their_client_calls_them() -> None:
    host, _ = kept()
    peer = host.connect("c", 5)
    peer.subscribe(("a/+", 1), ("$share/g/b", 2), identifier=7)
    peer.subscribe(("a/+", 0))
    peer.unsubscribe("a/+", "nothing")
    made = [(each["filter"], each["options"] & 3, each["identifier"]) for each in recorded(host, "subscription_made")]
    assert made == [("a/+", 1, 7), ("$share/g/b", 2, 7), ("a/+", 0, 0)]
    assert [each["filter"] for each in recorded(host, "subscription_removed")] == ["a/+"]


def test_beyond_a_rate_events_are_counted_by_kind() -> None:
    host, _ = kept(events={"events_per_second_max": 5})
    for number in range(10):
        host.connect(f"c{number}").disconnect()
    assert len(recorded(host)) == 5
    host.pass_time(2)
    (suppressed,) = recorded(host, "events_suppressed")
    assert suppressed["reason"] == "events_per_second_max"
    assert suppressed["events"] == {"connection_opened": 7, "connection_closed": 8}
    host.connect("later")
    assert named(host, "connection_opened", client="later")
    row = host.counters()
    assert row["events_suppressed"] == 15
    assert row["events_recorded"] == len(recorded(host))


def test_a_full_disk_takes_no_events_and_says_later_how_many() -> None:
    host, store = kept()
    store.little_room = "little"
    before = len(store.recorded)
    peer = host.connect("c", 4)
    peer.subscribe(("x", 0))
    next_minute(host)
    assert len(store.recorded) == before
    store.little_room = None
    host.pass_time(2)
    lost = named(host, "events_suppressed", reason="the store is full or fails")[0]["events"]
    assert lost | {"connection_opened": 1, "subscription_made": 1, "counters": 1} == lost
    assert host.counters()["events_lost"] == sum(lost.values())
    host.connect("d")
    assert named(host, "connection_opened", client="d")


def test_drops_add_up_by_client_and_reason() -> None:
    """The drops reported for a minute equal those that the counters counted in it."""
    host, _ = kept(limits={"queue_messages_max": 5, "outbox_bytes_max": 4096}, queue_full="drop_oldest")
    away, offline0 = lasting(host, "away", 5), lasting(host, "offline0", 5)
    away.subscribe(("t", 1))
    offline0.subscribe(("t", 0))
    refuses, slow, ends = host.connect("refuses", 5), host.connect("slow", 4), host.connect("ends", 4)
    for peer in (refuses, slow, ends):
        peer.subscribe(("t", 1 if peer is refuses else 0))
    host.lose(away)
    host.lose(offline0)
    slow.stalled = ends.stalled = True
    publisher = host.connect("publisher", 5)
    for number in range(40):
        publisher.publish("t", b"x" * 400, qos=1)
        host.settle()
        while refuses.packets:
            packet = refuses.packets.popleft()
            refuses.ack("PUBACK", packet.packet_id, 0x97)
        if number == 20:
            host.pass_time(1.5)
    host.pass_time(1.5)
    host.lose(ends)
    next_minute(host)
    dropped: dict[str, int] = {}
    by_client: dict[str | None, dict[str, int]] = {}
    for each in recorded(host, "messages_dropped"):
        dropped[each["reason"]] = dropped.get(each["reason"], 0) + each["messages"]
        by_client.setdefault(each["client"], {})[each["reason"]] = each["messages"]
        assert each["minute"] % MINUTE_MS == 0
    row = host.counters()
    assert dropped == {name.removeprefix("dropped_"): row[name] for name in DROPS if row[name]}
    assert by_client["away"] == {"queue_full": row["dropped_queue_full"]}
    assert by_client["refuses"] == {"refused": 40}
    assert by_client["slow"]["outbox_full"] > 0
    assert by_client["ends"]["connection_closed"] > 0
    assert by_client[None] == {"offline_qos0": 40}, "nobody looks at each of those"
    count = len(recorded(host, "messages_dropped"))
    next_minute(host)
    assert len(recorded(host, "messages_dropped")) == count, "nothing was dropped in the next one"


def test_drops_of_more_clients_than_there_is_room_for_are_told_together() -> None:
    host, _ = kept(limits={"outbox_bytes_max": 4096}, events={"clients_max": 2})
    for number in range(4):
        peer = host.connect(f"c{number}")
        peer.subscribe(("t", 0))
        peer.stalled = True
    publisher = host.connect("publisher")
    for _ in range(30):
        publisher.publish("t", b"x" * 400)
    host.settle()
    next_minute(host)
    found = {each["client"]: each["messages"] for each in recorded(host, "messages_dropped")}
    assert len(found) == 3
    assert found[None] == sum(found.values()) // 2 == host.counters()["events_unlisted"]
    assert sum(found.values()) == host.counters()["dropped_outbox_full"]


def test_all_counters_of_a_minute_as_totals() -> None:
    host, _ = kept()
    peer = host.connect("c", 5)
    peer.publish("t", b"12345")
    next_minute(host)
    for _ in range(3):
        peer.publish("t", b"12345")
    next_minute(host)
    samples = recorded(host, "counters")
    assert [each["counters"]["publish_received"] for each in samples] == [1, 4]
    assert [each["minute"] for each in samples] == sorted({each["minute"] for each in samples})
    assert samples[-1]["counters"]["sessions"] == 1
    assert 0 not in samples[-1]["counters"].values()


def test_sampled_times_of_a_minute() -> None:
    host, _ = kept()
    for nanoseconds in (900, 2_000, 2_400, 3_000_000_000):
        host.node.counters.observe(0, nanoseconds)
    next_minute(host)
    host.node.counters.observe(0, 5)
    next_minute(host)
    next_minute(host)
    first, second = recorded(host, "publish_to_ack")
    assert first["up_to_nanoseconds"] == {"1000": 1, "2500": 2, "more": 1}
    assert (first["samples"], first["nanoseconds"]) == (4, 3_000_005_300)
    assert (second["samples"], second["nanoseconds"]) == (1, 5)


def traffic(host: Host) -> dict[str | None, tuple[int, int]]:
    return {each["prefix"]: (each["delivered"], each["dropped"]) for each in recorded(host, "topic_traffic")}


def test_traffic_by_the_first_levels_of_topics() -> None:
    host, _ = kept(limits={"outbox_bytes_max": 4096}, events={"topic_levels": 2})
    live, away, slow = host.connect("live", 5), lasting(host, "away", 5), host.connect("slow")
    for peer in (live, away):
        peer.subscribe(("#", 2 if peer is away else 0))
    slow.subscribe(("slow/+", 0))
    slow.stalled = True
    host.lose(away)
    publisher = host.connect("publisher", 5)
    for topic, qos in (("a/b/c", 1), ("a/b", 2), ("a", 1), ("/", 1), ("a/bb/c/d", 0), ("nobody/x", 0)):
        publisher.publish(topic, b"", qos=qos)
    publisher.receive()
    for _ in range(30):
        publisher.publish("slow/y", b"x" * 400)
    host.settle()
    live.receive()
    away = lasting(host, "away", 5)
    assert len(away.receive()) == 4
    next_minute(host)
    found = traffic(host)
    dropped = host.counters()["dropped_outbox_full"]
    slow_delivered = 60 - dropped
    assert found.pop("slow/y") == (slow_delivered, dropped + 30)  # `away` gets no QoS 0
    assert found == {"a/b": (4, 0), "a": (2, 0), "/": (2, 0), "a/bb": (1, 1), "nobody/x": (1, 1)}
    assert sum(each[0] for each in traffic(host).values()) == host.counters()["publish_sent"]


@pytest.mark.parametrize("many", [1, 2])
def test_traffic_of_more_topics_than_there_is_room_for_is_told_together(many: int) -> None:
    stores = [KeptStore() for _ in range(many)]
    host = Host(many, stores=stores, events={"topic_levels": 1, "topics_max": 50})
    subscriber = host.connect("s")
    subscriber.subscribe(("#", 0))
    publisher = elsewhere(host, subscriber)
    for number in range(400):
        publisher.publish(f"t{number % 200}/x")
    host.settle()
    next_minute(host)
    rows = [decode_event(event_key(number), bytes(8) + value) for store in stores for number, value in store.recorded]
    found = [each.fields for each in rows if each.kind.name == "topic_traffic"]
    assert len(found) == 51
    assert sum(each["delivered"] for each in found) == 400
    assert [each["delivered"] for each in found if each["others"]] == [300]
    assert host.counters()["events_unlisted"] == 300


def elsewhere(host: Host, subscriber: Peer) -> Peer:
    found = (host.connect(f"p{number}") for number in range(64))
    return next(peer for peer in found if peer.node is not subscriber.node or len(host.nodes) == 1)


def test_a_stop_tells_what_the_broken_minute_had() -> None:
    host, _ = kept()
    host.node.recording.started()
    host.connect("c")
    host.node.recording.close()
    assert kinds(host) == ["worker_started", "connection_opened", "counters", "worker_stopped"]


def test_turned_off_nothing_is_recorded_or_counted() -> None:
    host, _ = kept(events={"enabled": False}, limits={"outbox_bytes_max": 4096})
    peer = lasting(host, "c", 5)
    peer.subscribe(("t", 0))
    peer.stalled = True
    for _ in range(30):
        peer.publish("t", b"x" * 400)
    host.settle()
    next_minute(host)
    host.node.recording.close()
    assert recorded(host) == []
    assert host.node.router.state.drops.take() == []
    assert session(host, "c")
    assert host.counters()["events_recorded"] == 0

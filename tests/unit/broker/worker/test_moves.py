"""A session moves between two hosts, step by step: without sockets, hosts, or a coordinator."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Sequence

import pytest

from broker.worker import giving
from broker.worker.session_parts import CANCEL, GIVE, GO_ON, NOTHING, PAGE, PAGE_BYTES, STATE
from leveldb_store.memory import MemoryStore
from pyx.protocol.message import Message
from tests.kept_host import lasting, session
from tests.kept_store import KeptStore
from tests.moving_pair import FIRST, TOPICS, Pair, Side, pair, publish_some, received, subscribed
from tests.wire import ack, publish

__all__ = ["pair"]


@pytest.mark.parametrize("page_bytes", [1, 300, PAGE_BYTES])
def test_everything_comes(pair: Pair, page_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would have been sent on the former host is sent on the new one; there it is subscribed, here no longer."""
    monkeypatch.setattr(giving, "PAGE_BYTES", page_bytes)
    pair.old.host.lose(subscribed(pair.old.host))
    publish_some(pair.old.host, TOPICS, 7)
    pair.move("c")
    assert pair.old.host.node.sessions.get("c") is None
    assert len(pair.old.host.node.sessions) == 0
    back = lasting(pair.new.host, "c", 5)
    assert back.session_present
    expected = [
        (topic, b"%d" % number, min(qos, 2 if topic[0] == "a" else 1), False, (9,) if topic == "named/x" else ())
        for number in range(7)
        for topic, qos in TOPICS.items()
    ]
    assert sorted(received(back)) == sorted(expected)
    publish_some(pair.new.host, TOPICS, 1)
    pair.new.host.pass_time(0.1)
    assert len(received(back)) == len(TOPICS)
    publish_some(pair.old.host, TOPICS, 1)
    back.silent()


def test_what_is_in_flight_comes_with_its_identifiers(pair: Pair) -> None:
    peer = subscribed(pair.old.host)
    publish_some(pair.old.host, {"b": 1, "a/x": 2}, 2)
    pair.old.host.settle()
    before = [(each.payload, each.topic, each.packet_id) for each in peer.packets]
    released = next(each.packet_id for each in peer.packets if each.qos == 2)
    peer.packets.clear()
    peer.ack("PUBREC", released)
    peer.next("PUBREL")
    peer.send(publish(5, "from/c", b"x", qos=2, packet_id=5))
    peer.next("PUBREC")
    pair.old.host.lose(peer)
    pair.move("c")
    watcher = pair.new.host.connect("watcher", 5)
    watcher.subscribe(("from/c", 2))
    back = lasting(pair.new.host, "c", 5)
    assert back.next("PUBREL").packet_id == released
    pair.new.host.settle()
    again = [(each.payload, each.topic, each.packet_id) for each in back.packets]
    assert again == [each for each in before if each[2] != released]
    assert all(each.dup for each in back.packets)
    back.packets.clear()
    back.send(publish(5, "from/c", b"x", qos=2, packet_id=5, dup=True), ack(5, "PUBREL", 5))
    assert [each.kind for each in (back.next("PUBREC"), back.next("PUBCOMP"))] == ["PUBREC", "PUBCOMP"]
    watcher.silent()
    back.ack("PUBCOMP", released)
    for _, topic, packet_id in again:
        back.ack("PUBREC" if topic == "a/x" else "PUBACK", packet_id)
        if topic == "a/x":
            back.next("PUBREL")
            back.ack("PUBCOMP", packet_id)
    back.silent()
    assert pair.new.host.waiting() == 0


def publish_on(sides: Sequence[Side], payload: bytes) -> None:
    """Publish one message, which hosts that are linked have with one number."""
    number = max(side.host.node.router.state.next_number() for side in sides) + 1000
    for side in sides:
        side.host.node.router.publish_message(Message.create(b"b", payload, qos=1, number=number))
        side.host.settle()


def test_what_comes_twice_is_sent_once(pair: Pair) -> None:
    """A message that both hosts have for the session: logged on the new one before the last page, or after it."""
    pair.old.host.lose(subscribed(pair.old.host))
    publish_on([pair.old], b"1")
    pair.fetch("c")
    pair.settle(lambda: pair.sent[0][1] == GO_ON)
    publish_on([pair.old, pair.new], b"2")
    publish_on([pair.new], b"4")
    late = pair.old.host.node.router.state.next_number() + 5000
    pair.old.host.node.router.publish_message(Message.create(b"b", b"3", qos=1, number=late))
    pair.settle()
    assert pair.answers == [True]
    peer = lasting(pair.new.host, "c", 5)
    assert [each[1] for each in received(peer)] == [b"1", b"2", b"3", b"4"]
    pair.new.host.node.router.publish_message(Message.create(b"b", b"3", qos=1, number=late))
    publish_on([pair.new], b"5")
    pair.new.host.pass_time(0.1)
    assert [each[1] for each in received(peer)] == [b"5"]
    pair.new.host.pass_time(3)
    publish_on([pair.new], b"6")
    assert [each[1] for each in received(peer)] == [b"6"], "it is served at once again"
    pair.old.moves.keep("c")


def test_shares_of_a_group_are_not_handed_on_as_well(pair: Pair) -> None:
    """Those that come along go to nobody else; another member gets what it was chosen for."""
    both = [lasting(pair.old.host, name, 5) for name in ("c", "d")]
    for peer in both:
        peer.subscribe(("$share/g/shared", 1))
    publish_some(pair.old.host, {"shared": 1}, 20)
    for peer in both:
        pair.old.host.lose(peer)
    pair.move("c")
    got = [received(lasting(host, name, 5)) for host, name in ((pair.new.host, "c"), (pair.old.host, "d"))]
    assert sorted(each[1] for one in got for each in one) == sorted(b"%d" % number for number in range(20))
    assert all(got)


def test_a_restart_of_the_new_host_after_the_move() -> None:
    pair = Pair(KeptStore)
    pair.old.host.lose(subscribed(pair.old.host))
    publish_some(pair.old.host, TOPICS, 3)
    pair.move("c")
    pair.new.take(pair.new.host.crash())
    back = lasting(pair.new.host, "c", 5)
    assert back.session_present
    assert len(received(back)) == 3 * len(TOPICS)
    publish_some(pair.new.host, TOPICS, 1)
    assert len(received(back)) == len(TOPICS)


def test_a_restart_of_the_new_host_during_the_move() -> None:
    """What it has of the session does not count: the former owner has all of it, and gives it again."""
    for stop_at in range(1, 8):
        pair = Pair(KeptStore)
        pair.old.host.lose(subscribed(pair.old.host))
        publish_some(pair.old.host, TOPICS, 3)
        pair.fetch("c")
        steps = iter(range(stop_at))
        pair.settle(lambda steps=steps: next(steps, None) is None)  # type: ignore[misc]
        pair.sent.clear()
        pair.new.take(pair.new.host.crash())
        pair.answers.clear()
        pair.move("c")
        back = lasting(pair.new.host, "c", 5)
        assert back.session_present
        assert len(received(back)) == 3 * len(TOPICS)


@pytest.mark.parametrize("kind", [GIVE, STATE, GO_ON, PAGE])
def test_a_message_is_lost(pair: Pair, kind: bytes) -> None:
    """After a silence the session stays where it is, and nothing of it is left on the other host."""
    pair.old.host.lose(subscribed(pair.old.host))
    publish_some(pair.old.host, TOPICS, 3)
    pair.fetch("c")
    pair.settle(lambda: pair.sent[0][1] == kind)
    pair.sent.popleft()
    pair.settle()
    pair.new.host.pass_time(6)
    pair.new.moves.tick(pair.new.host.now)
    pair.settle()
    assert pair.answers == [False]
    assert CANCEL in pair.kinds
    assert len(pair.new.host.node.sessions) == 0
    back = lasting(pair.old.host, "c", 5)
    assert back.session_present
    assert len(received(back)) == 3 * len(TOPICS)


@pytest.mark.parametrize("kind", [GIVE, STATE, GO_ON, PAGE])
def test_the_owner_does_not_answer_any_more(pair: Pair, kind: bytes) -> None:
    """Before anything has come, the client is served without it; else the move has failed."""
    pair.old.host.lose(subscribed(pair.old.host))
    pair.new.is_linked = kind != GIVE
    pair.fetch("c")
    if kind != GIVE:
        pair.settle(lambda: pair.sent[0][1] == kind)
        pair.sent.clear()
        pair.new.moves.host_away(FIRST)
    pair.settle()
    assert (len(pair.unreachable), pair.answers) == ((1, []) if kind in (GIVE, STATE) else (0, [False]))
    assert len(pair.new.host.node.sessions) == 0


def test_a_question_that_is_old(pair: Pair) -> None:
    """A host that was away, and owns the client id since another epoch, keeps its session, and says so."""
    pair.old.host.lose(subscribed(pair.old.host))
    session(pair.old.host, "c").details.epoch = 7
    pair.fetch("c")
    pair.settle()
    assert pair.answers == [False]
    assert pair.kinds[:2] == [GIVE, CANCEL]
    assert not pair.old.moves.is_leaving("c")
    assert lasting(pair.old.host, "c", 5).session_present


@pytest.mark.parametrize("kind", [GIVE, STATE, GO_ON, PAGE])
def test_a_session_comes_although_its_client_has_gone(pair: Pair, kind: bytes) -> None:
    """A newer connection may wait for it, or nobody."""
    pair.old.host.lose(subscribed(pair.old.host))
    publish_some(pair.old.host, TOPICS, 2)
    earlier = pair.fetch("c")
    pair.settle(lambda: pair.sent[0][1] == kind)
    pair.new.host.lose(earlier)
    pair.settle()
    assert pair.answers == [True]
    pair.old.moves.keep("c")


def seconds_left(side: Side) -> float:
    """Return the time until the session expires."""
    deadline: int = session(side.host, "c").details.expiry_handle.deadline
    return (deadline - side.host.node.router.state.now_ms) / 1000


@pytest.mark.parametrize("ending", ["comes", "restarts", "is cancelled"])
def test_a_session_does_not_last_longer_because_it_moves(pair: Pair, ending: str) -> None:
    """[MQTT-3.1.2-23] Its Session Expiry Interval has begun when its client went, wherever it is."""
    pair.old.host.lose(pair.old.host.connect("c", 5, clean=False, expiry=600))
    for side in (pair.old, pair.new):
        side.host.pass_time(400)
    pair.fetch("c")
    if ending == "is cancelled":
        pair.settle(lambda: pair.sent[0][1] == STATE)
        pair.old.host.pass_time(5)
        pair.old.moves.keep("c")
        assert seconds_left(pair.old) == pytest.approx(195, abs=2)
        return
    pair.settle()
    assert pair.answers == [True]
    assert seconds_left(pair.new) == pytest.approx(200, abs=2)
    if ending == "restarts" and isinstance(pair.new.host.stores[0], KeptStore):
        pair.new.take(pair.new.host.crash(100))
        assert seconds_left(pair.new) == pytest.approx(100, abs=2)
    pair.old.moves.keep("c")


def test_nothing_is_heard_of_the_move(pair: Pair) -> None:
    """The former owner asks who owns the client id, again and again; meanwhile it keeps the session."""
    pair.old.host.lose(subscribed(pair.old.host))
    pair.fetch("c")
    pair.settle()
    assert pair.old.moves.is_leaving("c")
    for turn in range(1, 3):
        pair.old.host.pass_time(11)
        pair.old.moves.tick(pair.old.host.now)
        assert pair.old.resolved == ["c"] * turn
    pair.old.moves.keep("c")
    assert not pair.old.moves.is_leaving("c")
    assert lasting(pair.old.host, "c", 5).session_present


def test_the_owner_has_no_session(pair: Pair) -> None:
    """Nor does the new host keep one of a time when it was the owner, once it is that again. A session that ends with
    its connection ends.
    """
    pair.new.host.lose(subscribed(pair.new.host))
    brief = pair.old.host.connect("c", 5)
    pair.move("c")
    pair.new.moves.end_former("c")
    assert brief.closed
    assert pair.kinds == [GIVE, NOTHING]
    assert not lasting(pair.new.host, "c", 5).session_present


def test_a_session_of_before_is_replaced(pair: Pair) -> None:
    pair.new.host.lose(subscribed(pair.new.host))
    publish_some(pair.new.host, {"b": 1}, 4)
    peer = lasting(pair.old.host, "c", 5)
    peer.subscribe(("other", 1))
    pair.old.host.lose(peer)
    publish_some(pair.old.host, {"other": 1}, 2)
    pair.move("c")
    back = lasting(pair.new.host, "c", 5)
    assert [each[:2] for each in received(back)] == [("other", b"0"), ("other", b"1")]
    publish_some(pair.new.host, {"b": 1}, 1)
    back.silent()


def test_damaged_parts() -> None:
    """A page or state that is cut off or altered fails the move, or is taken; nothing else happens."""
    chance = random.Random(19)
    for _ in range(300):
        pair = Pair(MemoryStore)
        pair.old.host.lose(subscribed(pair.old.host))
        publish_some(pair.old.host, TOPICS, 2)
        pair.fetch("c")
        while pair.sent:
            pair.settle(lambda sent=pair.sent: sent[0][1] in (STATE, PAGE))  # type: ignore[misc]
            if not pair.sent:
                break
            _, kind, number, client_id, rest = pair.sent.popleft()
            damaged = bytearray(rest[: chance.randrange(len(rest) + 1)] if chance.random() < 0.5 else rest)
            for _ in range(chance.randrange(3)):
                if damaged:
                    damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            with contextlib.suppress(ValueError, struct.error):  # as the one door of the worker
                pair.new.moves.heard(kind, FIRST, number, client_id, bytes(damaged))
        pair.settle()
        other = pair.new.host.connect("other", 5)
        other.subscribe(("mine", 1))
        other.publish("mine", b"served", 1)
        assert [each.payload for each in other.receive()] == [b"served"]


@pytest.mark.parametrize("store", [MemoryStore, KeptStore])
def test_the_bounds_of_the_queue_hold_after_any_number_of_moves(store: type) -> None:
    pair = Pair(store, limits={"queue_messages_max": 20})
    pair.old.host.lose(subscribed(pair.old.host))
    for turn in range(4):
        publish_some(pair.old.host, {"b": 1}, 50)
        pair.move("c")
        moved = session(pair.new.host, "c")
        assert moved.queued <= 20, turn
        publish_some(pair.new.host, {"b": 1}, 5)
        pair.turn()
    pair.old.host.check_books()
    pair.new.host.check_books()

"""What a host has for a client that another one owns is handed over to that."""

from __future__ import annotations

import pytest

from broker.worker import giving
from broker.worker.giving import LateOutcome
from broker.worker.session_parts import DONE, GO_ON, PAGE
from pyx.protocol.message import Message
from tests.kept_host import lasting
from tests.kept_store import KeptStore
from tests.moving_pair import EPOCH, SECOND, TOPICS, Pair, pair, publish_some, received, subscribed
from tests.sansio import Peer

__all__ = ["pair"]


def of_before(pair: Pair, clean: bool = False) -> Peer:
    """A session on the former host, with messages, and a later one of the same client on the new host."""
    pair.old.host.lose(subscribed(pair.old.host))
    publish_some(pair.old.host, TOPICS, 3)
    for side in (pair.old, pair.new):
        side.host.pass_time(5)
    peer = pair.new.host.connect("c", 5, clean=clean, expiry=600)
    peer.subscribe(("b", 1))
    for side in (pair.old, pair.new):
        side.host.pass_time(5)
    return peer


def hand_over(pair: Pair) -> None:
    """Hand over what the former owner has, with both passes."""
    pair.answers.clear()
    pair.hand_over("c", pair.outcome)
    pair.settle()
    assert pair.answers == [True]


def publish_everywhere(pair: Pair, topic: str, payload: bytes) -> None:
    """Publish for both hosts, as a third one does that knows the subscriptions of both."""
    number = pair.new.host.node.router.state.next_number()
    for side in (pair.old, pair.new):
        side.host.node.router.publish_message(Message.create(topic.encode(), payload, qos=1, number=number))
        side.host.settle()


def test_what_a_former_owner_still_has_is_handed_over(pair: Pair) -> None:
    """After it, its session ends. What was published there since the later session began is missing here, too: the host
    may not have known of that one.
    """
    peer = of_before(pair)
    publish_some(pair.old.host, {"b": 1}, 2)
    hand_over(pair)
    assert pair.old.host.node.sessions.get("c") is None
    expected = [(topic, b"%d" % number) for topic in TOPICS for number in range(3)] + [("b", b"0"), ("b", b"1")]
    assert sorted(each[:2] for each in received(peer)) == sorted(expected)
    assert pair.new.host.counters()["messages_handed_over"] == 3 * len(TOPICS) + 2


@pytest.mark.parametrize("when", ["sent", "offline", "queued"])
def test_what_the_later_session_has_had_is_not_taken(pair: Pair, when: str) -> None:
    """Whether its client has been sent it, or will be."""
    peer = of_before(pair)
    if when == "offline":
        pair.new.host.lose(peer)
    for number in range(5):
        publish_everywhere(pair, "b", b"both-%d" % number)
    if when == "sent":
        assert [each[1] for each in received(peer)] == [b"both-%d" % number for number in range(5)]
    if when == "queued":
        pair.new.host.lose(peer)
    hand_over(pair)
    got = received(peer if when == "sent" else lasting(pair.new.host, "c", 5))
    assert len(got) == 3 * len(TOPICS) + (0 if when == "sent" else 5)
    assert sorted({each[:2] for each in got}) == sorted(each[:2] for each in got)


@pytest.mark.long
def test_a_host_that_was_not_there_has_published_nothing() -> None:
    """A session that has had more than it remembers takes nothing that is numbered in the time when the former owner
    did not run: other hosts have published it, and they knew the later session. What is older or newer it takes.
    """
    pair = Pair(KeptStore)
    peer = of_before(pair)
    publish_everywhere(pair, "b", b"both")
    router = pair.new.host.node.router
    for at in range(2200):
        for _ in range(20):
            router.publish_message(Message.create(b"b", b"x", qos=1, number=router.state.next_number()))
        assert len(received(peer)) == 20 + (at == 0)
    pair.old.host.pass_time(5)
    pair.old.take(pair.old.host.crash())
    publish_some(pair.old.host, {"b": 1}, 2)
    hand_over(pair)
    got = received(peer)
    assert ("b", b"both") not in [each[:2] for each in got]
    assert len(got) == 3 * len(TOPICS) + 2


@pytest.mark.parametrize("seen_by", ["both", "the former owner", "the owner"])
@pytest.mark.parametrize("moves", [False, True], ids=["handed over", "moved"])
def test_a_session_stays_for_what_hosts_that_are_away_have_for_it(pair: Pair, moves: bool, seen_by: str) -> None:
    """It is handed over when they are back, and nothing is sent twice. Then the session ends. They may be away from
    the owner alone, and not know its subscriptions.
    """

    def lose_sight() -> None:
        pair.old.is_whole = seen_by == "the owner"
        pair.new.is_whole = seen_by == "the former owner"

    if moves:
        pair.old.host.lose(subscribed(pair.old.host))
        publish_some(pair.old.host, TOPICS, 3)
        lose_sight()
        pair.move("c")
        peer = lasting(pair.new.host, "c", 5)
    else:
        peer = of_before(pair)
        lose_sight()
        hand_over(pair)
    assert len(received(peer)) == 3 * len(TOPICS)
    former = pair.old.host.node.sessions.get("c")
    assert former is not None
    publish_everywhere(pair, "b", b"both")
    assert len(received(peer)) == 1
    pair.old.host.pass_time(100)
    pair.new.host.pass_time(100)
    pair.old.moves.tick(pair.old.host.now)
    pair.new.moves.tick(pair.new.host.now)
    if seen_by == "the owner":
        assert pair.old.resolved == ["c"]
        hand_over(pair)
        assert pair.old.host.node.sessions.get("c") is former
        peer.silent()
        pair.old.resolved.clear()
    assert pair.old.resolved == []
    pair.old.is_whole = pair.new.is_whole = True
    publish_some(pair.old.host, {"b": 1}, 1)  # as what such a host has kept
    pair.old.host.pass_time(5)
    pair.old.moves.tick(pair.old.host.now)
    assert pair.old.resolved == ["c"]
    hand_over(pair)
    assert [each[:2] for each in received(peer)] == [("b", b"0")]
    assert pair.old.host.node.sessions.get("c") is None
    pair.new.host.pass_time(61)
    pair.new.moves.tick(pair.new.host.now)


def test_nothing_is_handed_over_to_a_session_that_began_clean(pair: Pair) -> None:
    peer = of_before(pair, clean=True)
    hand_over(pair)
    assert pair.old.host.node.sessions.get("c") is None
    peer.silent()


@pytest.mark.parametrize("lost", range(5))
def test_a_part_that_is_handed_over_is_lost(pair: Pair, lost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the answer is: then all of it is sent again, and what had come is not taken twice."""
    monkeypatch.setattr(giving, "PAGE_BYTES", 1)
    peer = of_before(pair)
    pair.hand_over("c", pair.outcome)
    left = iter(range(5 * lost))
    pair.settle(lambda: next(left, None) is None or pair.sent[0][1] == DONE)
    pair.sent.popleft()
    pair.settle()
    assert pair.answers == []
    pair.old.host.pass_time(11)
    pair.old.moves.tick(pair.old.host.now)
    assert pair.answers == [False]
    pair.hand_over("c", pair.outcome)
    pair.settle()
    assert pair.answers == [False, True]
    assert len(received(peer)) == 3 * len(TOPICS)


def test_a_session_that_its_owner_does_not_know_is_kept(pair: Pair) -> None:
    """Who owns a client id without a session has nothing that counts."""
    pair.old.host.lose(subscribed(pair.old.host))
    publish_some(pair.old.host, TOPICS, 2)
    outcomes: list[LateOutcome] = []
    pair.hand_over("c", outcomes.append)
    pair.settle()
    assert outcomes == [LateOutcome.NOT_WANTED]
    assert len(received(lasting(pair.old.host, "c", 5))) == 2 * len(TOPICS)


def test_a_session_in_use_does_not_end_when_it_was_handed_over(pair: Pair) -> None:
    of_before(pair)
    outcomes: list[LateOutcome] = []
    pair.hand_over("c", outcomes.append)
    pair.settle(lambda: pair.sent[0][1] == DONE)
    client = lasting(pair.old.host, "c", 5)
    pair.settle()
    assert outcomes == [LateOutcome.NOT_NOW]
    assert not client.closed


def leave_behind(pair: Pair, clean: bool = False, expiry: int = 600) -> Peer:
    """Move a session while a host is away; return its client, connected to the new host."""
    client = pair.old.host.connect("c", 5, clean=clean, expiry=expiry)
    client.subscribe(("b", 1), ("gone", 1))
    pair.old.host.lose(client)
    pair.old.is_whole = pair.new.is_whole = False
    pair.move("c")
    return pair.new.host.connect("c", 5, clean=False, expiry=expiry)


def all_are_back(pair: Pair) -> None:
    """Publish what the host that was away has kept for the former owner, and hand it over."""
    pair.old.is_whole = pair.new.is_whole = True
    publish_some(pair.old.host, {"b": 1}, 2)
    pair.old.host.pass_time(5)
    pair.old.moves.tick(pair.old.host.now)
    assert pair.old.resolved == ["c"]
    hand_over(pair)
    assert pair.old.host.node.sessions.get("c") is None


def test_a_session_that_began_clean_is_left_behind_as_others(pair: Pair) -> None:
    """Clean Start ends former sessions, not what comes for this one."""
    peer = leave_behind(pair, clean=True)
    all_are_back(pair)
    assert [each[:2] for each in received(peer)] == [("b", b"0"), ("b", b"1")]


def test_a_session_that_was_left_behind_does_not_expire_by_its_own_terms(pair: Pair) -> None:
    """Its client is connected to another host."""
    peer = leave_behind(pair, expiry=60)
    pair.old.host.pass_time(3600)
    assert pair.old.host.node.sessions.get("c") is not None
    all_are_back(pair)
    assert len(received(peer)) == 2


def test_a_session_that_its_client_has_ended_is_owed_nothing(pair: Pair) -> None:
    """[MQTT-3.1.2-4] A later session of that client gets none of its messages."""
    peer = leave_behind(pair)
    session = peer.session
    pair.new.host.lose(peer)
    pair.new.host.node.endings.end(session)
    pair.new.moves.ended(session)
    later = pair.new.host.connect("c", 5, clean=False, expiry=600)
    assert not later.session_present
    all_are_back(pair)
    later.silent()


def test_a_restart_of_the_former_owner_takes_nothing_from_what_it_was_kept() -> None:
    """It was not there when that was published, but neither did the publisher's host know the present one."""
    pair = Pair(KeptStore)
    client = lasting(pair.old.host, "c", 5)
    client.subscribe(("b", 1))
    pair.old.host.lose(client)
    publish_some(pair.old.host, {"other": 1}, 1)
    kept = pair.old.host.node.router.state.next_number() + (1 << 30)
    pair.old.host.pass_time(60)
    pair.new.host.pass_time(60)
    pair.old.take(pair.old.host.crash())
    pair.old.is_whole = False
    pair.move("c")
    peer = lasting(pair.new.host, "c", 5)
    pair.old.is_whole = True
    pair.old.host.node.router.publish_message(Message.create(b"b", b"kept", qos=1, number=kept))
    hand_over(pair)
    assert [each[:2] for each in received(peer)] == [("b", b"kept")]


@pytest.mark.parametrize("fails", [False, True])
def test_a_client_comes_back_to_the_host_that_it_has_left(pair: Pair, fails: bool) -> None:
    """What has come meanwhile for the session that was left behind is its, and subscriptions that the client has ended
    are not. If the move fails the session stays behind.
    """
    peer = leave_behind(pair)
    peer.unsubscribe("gone")
    publish_some(pair.new.host, {"b": 1}, 1)
    pair.new.host.lose(peer)
    publish_some(pair.old.host, {"b": 1, "gone": 1}, 1)
    pair.turn()
    pair.old.is_whole = pair.new.is_whole = False
    waiting = pair.fetch("c")
    if fails:
        pair.settle(lambda: pair.sent[0][1] == PAGE)
        pair.sent.clear()
        pair.new.host.pass_time(6)
        pair.new.moves.tick(pair.new.host.now)
        pair.settle()
        assert pair.answers == [False]
        assert pair.old.host.node.sessions.get("c") is not None
        session = pair.new.host.node.sessions.get("c")
        assert session is not None
        assert session.details.left_behind
        pair.new.is_whole = True
        pair.new.host.pass_time(5)
        pair.new.moves.tick(pair.new.host.now)
        assert pair.new.resolved == ["c"]
        return
    pair.settle()
    assert pair.answers == [True]
    pair.new.host.lose(waiting)
    back = lasting(pair.new.host, "c", 5)
    assert back.session_present
    assert sorted(each[:2] for each in received(back)) == [("b", b"0"), ("b", b"0")]
    publish_some(pair.new.host, {"b": 1, "gone": 1}, 1)
    assert [each[:2] for each in received(back)] == [("b", b"0")]
    assert not back.session.details.left_behind


def test_shares_and_copies_of_one_message_are_both_handed_over(pair: Pair) -> None:
    """A session that subscribes to a topic and is a member of a group for it gets both, and each once."""
    client = lasting(pair.old.host, "c", 5)
    client.subscribe(("b", 1), ("$share/g/b", 1))
    pair.old.host.lose(client)
    publish_some(pair.old.host, {"b": 1}, 2)
    peer = pair.new.host.connect("c", 5, clean=False, expiry=600)
    for _ in range(2):
        pair.answers.clear()
        pair.hand_over("c", pair.outcome)
        pair.settle(lambda: pair.sent[0][1] == DONE)
        if not pair.answers:  # all of it again
            pair.sent.clear()
            pair.old.host.pass_time(11)
            pair.old.moves.tick(pair.old.host.now)
    assert sorted(each[1] for each in received(peer)) == [b"0", b"0", b"1", b"1"]


def test_a_session_that_is_being_handed_over_is_not_kept(pair: Pair) -> None:
    """Whoever finds out that it has not moved leaves it to the hand-over, which tells its outcome."""
    of_before(pair)
    pair.hand_over("c", pair.outcome)
    assert not pair.old.moves.keep("c")
    pair.settle()
    assert pair.answers == [True]


def test_what_comes_while_a_session_is_handed_over(pair: Pair) -> None:
    """A host that had not known the owner's subscriptions has published it for the former session alone."""
    peer = of_before(pair)
    pair.hand_over("c", pair.outcome)
    pair.settle(lambda: pair.sent[0][1] == DONE)
    publish_some(pair.old.host, {"b": 1}, 2)
    pair.settle()
    assert pair.answers == [True]
    assert pair.old.host.node.sessions.get("c") is None
    assert len(received(peer)) == 3 * len(TOPICS) + 2


def shell_of_a_former_session(pair: Pair) -> Peer:
    """Hand over what the first host has while one is away, so that its session stays behind, and let a message come for
    that alone. Return the client of the owner's session, which is a later one.
    """
    peer = of_before(pair)
    pair.old.is_whole = pair.new.is_whole = False
    hand_over(pair)
    assert len(received(peer)) == 3 * len(TOPICS)
    publish_some(pair.old.host, {"b": 1}, 2)
    pair.answers.clear()
    return peer


def test_what_came_for_a_former_session_is_not_lost_when_the_client_comes_back(pair: Pair) -> None:
    """Of a host that did not know the later one: it is sent with what that has."""
    peer = shell_of_a_former_session(pair)
    pair.new.host.lose(peer)
    publish_everywhere(pair, "b", b"both")
    pair.turn()
    waiting = pair.fetch("c", EPOCH)
    pair.settle()
    assert pair.answers == [True]
    pair.new.host.lose(waiting)
    back = lasting(pair.new.host, "c", 5)
    assert back.session_present
    assert sorted(each[1] for each in received(back)) == [b"0", b"1", b"both"]


def test_a_former_session_ends_when_the_owner_turns_out_to_have_none(pair: Pair) -> None:
    """Not before this host is the owner: the session may have gone elsewhere meanwhile."""
    peer = shell_of_a_former_session(pair)
    pair.new.host.node.endings.end_moved(peer.session)
    pair.turn()
    pair.fetch("c")
    pair.settle()
    assert pair.answers == [True]
    assert pair.new.host.node.sessions.get("c") is not None
    pair.new.moves.end_former("c")
    pair.settle()
    assert pair.new.host.node.sessions.get("c") is None


def test_nothing_is_handed_over_to_a_session_that_may_go(pair: Pair) -> None:
    """It is not known to be owned there: the former owner is told so at once, and keeps what it has."""
    peer = of_before(pair)
    pair.new.host.lose(peer)
    outcomes: list[LateOutcome] = []
    pair.old.moves.hand_over("c", SECOND, outcomes.append)
    pair.settle()
    assert outcomes == [LateOutcome.NOT_NOW]
    assert not pair.old.moves.is_leaving("c")
    hand_over(pair)
    assert len(received(lasting(pair.new.host, "c", 5))) == 3 * len(TOPICS)


@pytest.mark.parametrize("given_up", [False, True])
def test_a_host_has_been_sent_a_session_until_the_move_is_given_up(pair: Pair, given_up: bool) -> None:
    """What comes after that it does not have, so that its session must not end when that host takes the client id."""
    pair.old.host.lose(subscribed(pair.old.host))
    pair.fetch("c")
    pair.settle(lambda: pair.sent[0][1] == GO_ON)
    assert not pair.old.moves.has_sent("c", SECOND)
    pair.settle()
    assert pair.answers == [True]
    assert not pair.old.moves.has_sent("c", SECOND + 1)
    if given_up:
        assert pair.old.moves.keep("c")
    assert pair.old.moves.has_sent("c", SECOND) is not given_up


def test_a_hand_over_is_no_move(pair: Pair) -> None:
    of_before(pair)
    pair.hand_over("c", pair.outcome)
    pair.settle(lambda: pair.sent[0][1] == DONE)
    assert not pair.old.moves.has_sent("c", SECOND)
    pair.settle()


def test_a_session_that_is_to_become_part_of_another_one_and_does_not(pair: Pair) -> None:
    """It keeps its subscriptions and its terms: a host that is away may have messages for those."""
    peer = of_before(pair)
    peer.unsubscribe("b")
    peer.subscribe(("other", 1))
    pair.old.is_whole = pair.new.is_whole = False
    hand_over(pair)
    received(peer)
    pair.new.host.lose(peer)
    former = pair.old.host.node.sessions.get("c")
    assert former is not None
    began, subscriptions = former.details.began, former.subscribed(0, 10)
    pair.answers.clear()
    pair.turn()
    pair.fetch("c", EPOCH)
    pair.settle(lambda: pair.sent[0][1] == PAGE)
    pair.sent.clear()
    pair.new.moves.host_away(1)
    pair.settle()
    assert pair.answers == [False]
    assert pair.new.host.node.sessions.get("c") is former
    assert former.details.left_behind
    assert former.details.began == began
    assert set(subscriptions) <= set(former.subscribed(0, 10))

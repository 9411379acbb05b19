"""What a host has for a client that another one owns is handed over to that."""

from __future__ import annotations

import pytest

from broker.worker import giving
from broker.worker.giving import LateOutcome
from broker.worker.session_parts import DONE
from tests.kept_host import lasting
from tests.moving_pair import SECOND, TOPICS, Pair, pair, publish_some, received, subscribed
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


def test_what_a_former_owner_still_has_is_handed_over(pair: Pair) -> None:
    """After it, its session ends. What was published since the later session began is that one's alone."""
    peer = of_before(pair)
    publish_some(pair.old.host, {"b": 1}, 2)
    pair.old.moves.hand_over("c", SECOND, pair.outcome)
    pair.settle()
    assert pair.answers == [True]
    assert pair.old.host.node.sessions.get("c") is None
    assert sorted(each[:2] for each in received(peer)) == sorted(
        (topic, b"%d" % number) for topic in TOPICS for number in range(3)
    )
    assert pair.new.host.counters()["messages_handed_over"] == 3 * len(TOPICS)


def test_nothing_is_handed_over_to_a_session_that_began_clean(pair: Pair) -> None:
    peer = of_before(pair, clean=True)
    pair.old.moves.hand_over("c", SECOND, pair.outcome)
    pair.settle()
    assert pair.answers == [True]
    assert pair.old.host.node.sessions.get("c") is None
    peer.silent()


@pytest.mark.parametrize("lost", range(5))
def test_a_part_that_is_handed_over_is_lost(pair: Pair, lost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the answer is: then all of it is sent again, and what had come is not taken twice."""
    monkeypatch.setattr(giving, "PAGE_BYTES", 1)
    peer = of_before(pair)
    pair.old.moves.hand_over("c", SECOND, pair.outcome)
    left = iter(range(5 * lost))
    pair.settle(lambda: next(left, None) is None or pair.sent[0][1] == DONE)
    pair.sent.popleft()
    pair.settle()
    assert pair.answers == []
    pair.old.host.pass_time(11)
    pair.old.moves.tick(pair.old.host.now)
    assert pair.answers == [False]
    pair.old.moves.hand_over("c", SECOND, pair.outcome)
    pair.settle()
    assert pair.answers == [False, True]
    assert len(received(peer)) == 3 * len(TOPICS)


def test_a_session_that_its_owner_does_not_know_is_kept(pair: Pair) -> None:
    """Who owns a client id without a session has nothing that counts."""
    pair.old.host.lose(subscribed(pair.old.host))
    publish_some(pair.old.host, TOPICS, 2)
    outcomes: list[LateOutcome] = []
    pair.old.moves.hand_over("c", SECOND, outcomes.append)
    pair.settle()
    assert outcomes == [LateOutcome.NOT_WANTED]
    assert len(received(lasting(pair.old.host, "c", 5))) == 2 * len(TOPICS)


def test_a_session_in_use_does_not_end_when_it_was_handed_over(pair: Pair) -> None:
    of_before(pair)
    outcomes: list[LateOutcome] = []
    pair.old.moves.hand_over("c", SECOND, outcomes.append)
    pair.settle(lambda: pair.sent[0][1] == DONE)
    client = lasting(pair.old.host, "c", 5)
    pair.settle()
    assert outcomes == [LateOutcome.NOT_NOW]
    assert not client.closed

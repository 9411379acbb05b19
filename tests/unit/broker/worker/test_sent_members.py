"""Clients that were sent to another host: who may be sent away again, and what is forgotten."""

from __future__ import annotations

import pytest

from broker.worker.sent_members import AGAIN_SECONDS, STAYS_SECONDS, SentMembers


def test_a_client_that_was_never_sent_may_be_sent() -> None:
    sent = SentMembers()
    assert sent.may_be_sent("c", 0.0)
    assert not sent.came_back("c")
    assert len(sent) == 0


def test_twice_at_most_in_a_day() -> None:
    sent = SentMembers()
    sent.sent("c", 100.0)
    assert not sent.may_be_sent("c", 100.0 + AGAIN_SECONDS - 0.1)
    assert sent.may_be_sent("c", 100.0 + AGAIN_SECONDS)
    sent.sent("c", 500.0)
    assert not sent.may_be_sent("c", 500.0 + AGAIN_SECONDS)
    sent.forget_old(499.0 + STAYS_SECONDS)
    assert not sent.may_be_sent("c", 499.0 + STAYS_SECONDS)
    sent.forget_old(500.0 + STAYS_SECONDS)
    assert sent.may_be_sent("c", 500.0 + STAYS_SECONDS)
    assert len(sent) == 0


def test_who_came_back_is_told_once_for_each_time() -> None:
    sent = SentMembers()
    sent.sent("c", 1.0)
    assert [sent.came_back("c"), sent.came_back("c")] == [True, False]
    sent.sent("c", 400.0)
    assert [sent.came_back("c"), sent.came_back("c")] == [True, False]


def test_who_has_followed_is_forgotten() -> None:
    sent = SentMembers()
    for times in (1, 2):
        for at in range(times):
            sent.sent("c", at * 400.0)
        assert not sent.may_be_sent("c", 401.0 if times == 2 else 1.0)
        sent.followed("c")
        assert sent.may_be_sent("c", 401.0)
        assert not sent.came_back("c")
    sent.followed("never sent")


def test_a_client_that_was_sent_once_is_forgotten_after_an_hour() -> None:
    sent = SentMembers()
    sent.sent("c", 0.0)
    sent.came_back("c")
    sent.forget_old(3599.0)
    assert len(sent) == 1
    sent.forget_old(3600.0)
    assert len(sent) == 0
    sent.sent("c", 4000.0)  # for the first time
    assert sent.came_back("c")
    assert sent.may_be_sent("c", 4000.0 + AGAIN_SECONDS)


@pytest.mark.parametrize("most", [0, 1, 10])
def test_the_first_ones_are_forgotten_beyond_the_limit(most: int) -> None:
    sent = SentMembers(most)
    for at in range(most + 1):
        sent.sent(f"c{at}", 0.0)
    assert len(sent) == most
    assert sent.may_be_sent("c0", 1.0)
    assert [at for at in range(most + 1) if not sent.may_be_sent(f"c{at}", 1.0)] == list(range(1, most + 1))
    for at in range(1, most + 1):
        sent.sent(f"c{at}", 400.0)
    assert len(sent) == most
    sent.sent("c0", 400.0)
    sent.sent("c0", 800.0)
    assert len(sent) == most


def test_old_ones_are_forgotten_a_thousand_at_once() -> None:
    sent = SentMembers()
    for at in range(1001):
        sent.sent(f"c{at}", 0.0)
    sent.forget_old(4000.0)
    assert len(sent) == 1
    sent.forget_old(4000.0)
    assert len(sent) == 0

"""Acknowledgements of interest: in order, after what was there before, and never for ever."""

from __future__ import annotations

from pyx.core.peer import sibling
from zmq_mesh.barrier import Barrier

A, B, C = (sibling(number) for number in range(3))
SECONDS = 2.0


class FakeLink:
    """A link to a peer that has received up to `received` of `sent`."""

    def __init__(self) -> None:
        self.sent = self.received = self.acknowledged = self.flushed = 0
        self.is_there = True

    def outstanding(self) -> int:
        return self.sent if self.lacks(self.sent) else 0

    def lacks(self, number: int) -> bool:
        return self.is_there and self.received < number

    def acknowledge_interest(self, number: int) -> None:
        self.acknowledged = number

    def flush(self, now: float) -> bool:  # noqa: ARG002
        self.flushed += 1
        return False


def barrier_of() -> tuple[Barrier, FakeLink, FakeLink, FakeLink]:
    links = FakeLink(), FakeLink(), FakeLink()
    return Barrier(dict(zip((A, B, C), links, strict=True)), SECONDS), *links


def test_at_the_end_of_the_tick_if_nothing_is_outstanding() -> None:
    barrier, a, _, _ = barrier_of()
    barrier.interest_arrived(A, 7, 0.0)
    barrier.check(0.0)
    assert a.acknowledged == 0, "the tick may have something that no link has yet"
    barrier.submitted(0.0)
    assert a.acknowledged == 7
    assert a.flushed == 0, "it leaves with the tick"


def test_when_all_peers_have_what_was_there_before_it() -> None:
    barrier, a, b, c = barrier_of()
    b.sent, c.sent = 5, 9
    barrier.interest_arrived(A, 7, 0.0)
    barrier.submitted(0.0)
    b.sent = c.sent = 100
    c.received = 9
    barrier.check(0.1)
    assert a.acknowledged == 0
    b.received = 5
    barrier.check(0.1)
    assert a.acknowledged == 7
    assert a.flushed == 1
    assert not barrier.waiting


def test_the_latest_of_a_tick_counts_for_all() -> None:
    barrier, a, b, _ = barrier_of()
    for number in range(1, 1001):
        barrier.interest_arrived(A, number, 0.0)
        barrier.interest_arrived(B, number, 0.0)
    assert len(barrier.waiting) == 2
    barrier.submitted(0.0)
    assert (a.acknowledged, b.acknowledged) == (1000, 1000)


def test_who_goes_away_is_not_waited_for() -> None:
    barrier, a, b, _ = barrier_of()
    b.sent = 5
    barrier.interest_arrived(A, 7, 0.0)
    barrier.submitted(0.0)
    b.is_there = False
    barrier.check(0.1)
    assert a.acknowledged == 7


def test_nobody_is_waited_for_longer() -> None:
    barrier, a, b, _ = barrier_of()
    b.sent = 5
    barrier.interest_arrived(A, 7, 0.0)
    barrier.submitted(0.0)
    barrier.check(SECONDS - 0.1)
    assert a.acknowledged == 0
    barrier.check(SECONDS)
    assert a.acknowledged == 7


def test_also_where_no_tick_comes_to_its_end() -> None:
    barrier, a, _, _ = barrier_of()
    barrier.interest_arrived(A, 7, 0.0)
    barrier.check(SECONDS)
    assert a.acknowledged == 7


def test_a_dead_incarnation_gets_no_acknowledgement() -> None:
    barrier, a, b, c = barrier_of()
    c.sent = 5
    barrier.interest_arrived(A, 7, 0.0)
    barrier.interest_arrived(B, 8, 0.0)
    barrier.submitted(0.0)
    barrier.forget(A)
    c.received = 5
    barrier.check(0.1)
    assert (a.acknowledged, b.acknowledged) == (0, 8)


def test_a_peer_that_has_died_has_nothing_to_receive() -> None:
    """Its successor begins with other numbers."""
    barrier, a, b, c = barrier_of()
    b.sent = c.sent = 5
    barrier.interest_arrived(A, 7, 0.0)
    barrier.submitted(0.0)
    barrier.interest_arrived(C, 8, 0.0)
    barrier.forget(B)
    c.received = 5
    barrier.check(0.1)
    assert (a.acknowledged, b.acknowledged, c.acknowledged) == (7, 0, 0)
    barrier.submitted(0.2)
    assert c.acknowledged == 0, "its successor does have something to receive"
    b.received = 5
    barrier.check(0.2)
    assert c.acknowledged == 8


def test_interest_of_many_peers_in_many_ticks_shares_what_it_waits_for() -> None:
    """A sibling that is slow for a second keeps thousands of ticks waiting, each of up to 63 peers."""
    barrier, a, b, c = barrier_of()
    c.sent = 5
    for tick in range(1, 4):
        barrier.interest_arrived(A, tick, 0.0)
        barrier.interest_arrived(B, tick, 0.0)
        barrier.submitted(0.0)
        c.sent += 1
    assert len(barrier.waiting) == 6
    assert len({id(each.outstanding) for each in barrier.waiting}) == 3
    for received, acknowledged in ((4, 0), (5, 1), (6, 2), (7, 3)):
        c.received = received
        barrier.check(0.1)
        assert (a.acknowledged, b.acknowledged) == (acknowledged, acknowledged)
    assert not barrier.waiting

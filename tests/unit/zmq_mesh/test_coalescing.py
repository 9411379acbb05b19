"""When batches leave: at once after a quiet time, otherwise together when the time is over."""

from __future__ import annotations

from zmq_mesh.coalescing import Coalescing

SECONDS = 0.5


def test_after_a_quiet_time_a_batch_leaves_at_once() -> None:
    coalescing = Coalescing(SECONDS)
    assert coalescing.wait(100.0) == 0
    coalescing.left(100.0)
    assert coalescing.wait(100.0 + SECONDS) == 0


def test_the_next_ones_wait_together_and_one_timer_is_asked_for() -> None:
    coalescing = Coalescing(SECONDS)
    coalescing.left(100.0)
    assert coalescing.wait(100.125) == SECONDS - 0.125
    assert coalescing.wait(100.25) is None
    assert coalescing.end_wait()
    coalescing.left(100.5)
    assert coalescing.wait(100.5) == SECONDS, "another wait begins"


def test_a_timer_that_comes_after_they_have_left_sends_nothing() -> None:
    coalescing = Coalescing(SECONDS)
    coalescing.left(100.0)
    assert coalescing.wait(100.25) == 0.25
    assert coalescing.wait(100.5) == 0, "a tick was there before the timer"
    coalescing.left(100.5)
    assert not coalescing.end_wait()


def test_without_seconds_nothing_waits_and_a_reload_counts_at_once() -> None:
    coalescing = Coalescing(0.0)
    coalescing.left(100.0)
    assert coalescing.wait(100.0) == 0
    coalescing.seconds = SECONDS
    assert coalescing.wait(100.0) == SECONDS

"""The timer wheel against a dict of deadlines, with jumps from a millisecond to years."""

from __future__ import annotations

import gc
import time
import weakref

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyx.core.timers import TimerWheel
from tests.unit.adapters.timers_adapter import Timed, cancel, expired, schedule

NEVER = 2**64 - 1
DELAYS = st.one_of(
    st.integers(0, 70), st.integers(0, 5000), st.integers(0, 300_000), st.integers(0, 2**40), st.just(2**62)
)
NAMES = st.integers(0, 19)


class Against(RuleBasedStateMachine):
    """The wheel and a dict name -> deadline."""

    @initialize(start=st.sampled_from([0, 1, 63, 64, 2**32 - 1, 2**40 + 12345]))
    def begin(self, start: int) -> None:
        self.now = start
        self.wheel = TimerWheel(start)
        self.timers = [Timed(i) for i in range(20)]
        self.model: dict[int, int] = {}

    @rule(name=NAMES, delay=DELAYS)
    def schedule(self, name: int, delay: int) -> None:
        deadline = min(self.now + delay, NEVER - 1)
        schedule(self.wheel, self.timers[name], deadline)
        self.model[name] = deadline

    @rule(name=NAMES)
    def cancel(self, name: int) -> None:
        cancel(self.wheel, self.timers[name])
        self.model.pop(name, None)

    @rule(delay=DELAYS)
    def advance(self, delay: int) -> None:
        self.now = min(self.now + delay, NEVER - 1)
        names = expired(self.wheel, self.now)
        due = {name: deadline for name, deadline in self.model.items() if deadline <= self.now}
        assert set(names) == set(due)
        assert len(names) == len(due)
        for name in due:
            del self.model[name]
        assert self.wheel.now == self.now

    @rule()
    def sleep_until_the_next(self) -> None:
        """Sleep like a worker: the wheel is advanced to next_deadline, and reaches every timer in a few steps."""
        if not self.model:
            return
        earliest = min(self.model.values())
        for _ in range(12):
            deadline = self.wheel.deadline
            assert deadline is not None
            assert deadline <= max(earliest, self.now)
            self.now = max(self.now, deadline)
            names = expired(self.wheel, self.now)
            if names:
                assert {self.model.pop(name) for name in names if isinstance(name, int)} == {earliest}
                return
        raise AssertionError("more wake-ups than levels")

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "model"):
            return
        assert self.wheel.count == len(self.model)
        deadline = self.wheel.deadline
        assert (deadline is None) == (not self.model)
        assert deadline is None or deadline <= max(self.now, min(self.model.values()))
        for name, timed in enumerate(self.timers):
            assert timed.scheduled == (name in self.model)


TestAgainst = Against.TestCase
TestAgainst.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)


def test_timers_end_in_the_order_of_their_deadlines() -> None:
    wheel = TimerWheel(7)
    timers = [Timed(n) for n in (5_000_000, 8, 300_007, 64, 65, 4096, 71)]
    for timed in timers:
        schedule(wheel, timed, timed.name)
    assert expired(wheel, 10**12) == [8, 64, 65, 71, 4096, 300_007, 5_000_000]


def test_a_hundred_thousand_timers_of_five_minutes_cost_nothing_until_they_end() -> None:
    wheel = TimerWheel()
    timers = [Timed(n) for n in range(100_000)]
    for timed in timers:
        schedule(wheel, timed, 300_000 + timed.name % 1000)
    started = time.process_time()
    for now in range(262_000):  # one tick per millisecond
        wheel.advance(now)
    assert time.process_time() - started < 1
    assert wheel.count == 100_000
    names: list[object] = []
    turns = 0
    for now in (262_144, 299_999, 300_500, 10**9):
        while (wheel.deadline or NEVER) <= now:  # more than 1,024 placed anew: another turn
            names += expired(wheel, now)
            turns += 1
        if now == 299_999:
            assert names == []
    assert sorted(names, key=str) == sorted(range(100_000), key=str)
    assert turns >= 100_000 // 1024


def test_the_longest_jump() -> None:
    wheel = TimerWheel()
    timed = Timed("end of time")
    schedule(wheel, timed, NEVER)
    assert expired(wheel, NEVER - 1) == []
    assert wheel.count == 1
    assert expired(wheel, NEVER) == ["end of time"]
    assert wheel.deadline is None


def test_calls_run_at_their_time_and_can_be_cancelled() -> None:
    wheel = TimerWheel(1000)
    seen: list[tuple[str, int]] = []
    wheel.call(1500, lambda: seen.append(("a", wheel.now)))
    b = wheel.call(1400, lambda: seen.append(("b", wheel.now)))
    c = wheel.call(900, lambda: seen.append(("late", wheel.now)))
    assert (b.scheduled, b.deadline, wheel.count) == (True, 1400, 3)
    assert b.cancel()
    assert not b.cancel()
    wheel.advance(1499)
    assert seen == [("late", 1000)]
    assert not c.cancel()
    wheel.advance(2_000_000)
    assert seen == [("late", 1000), ("a", 1500)]
    assert (wheel.deadline, wheel.now) == (None, 2_000_000)


def test_a_call_may_schedule_and_cancel() -> None:
    wheel = TimerWheel()
    seen: list[int] = []
    victim = wheel.call(60, lambda: seen.append(-1))

    def again() -> None:
        seen.append(wheel.now)
        victim.cancel()
        if len(seen) < 5:
            wheel.call(wheel.now + 50, again)

    wheel.call(10, again)
    wheel.advance(10**6)
    assert seen == [10, 60, 110, 160, 210]
    assert wheel.count == 0


def test_an_exception_of_a_call_comes_through_and_the_others_run_at_the_next_turn() -> None:
    wheel = TimerWheel()
    seen: list[int] = []

    def fails() -> None:
        raise LookupError("of the call")

    wheel.call(10, fails)
    wheel.call(11, lambda: seen.append(11))
    with pytest.raises(LookupError, match="of the call"):
        wheel.advance(20)
    assert seen == []
    wheel.advance(20)
    assert seen == [11]


def test_calls_for_the_same_moment_without_end_leave_the_turn() -> None:
    wheel = TimerWheel()
    seen: list[int] = []

    def again() -> None:
        seen.append(1)
        wheel.call(0, again)

    wheel.call(0, again)
    assert expired(wheel, 0) == []
    assert 0 < len(seen) <= 1024


def test_other_timers_are_not_lost_in_advance() -> None:
    wheel = TimerWheel()
    timed = Timed("not a call")
    schedule(wheel, timed, 5)
    with pytest.raises(RuntimeError):
        wheel.advance(10)


def test_the_wheel_holds_its_calls_and_lets_them_go() -> None:
    class Owner:
        def run(self) -> None:
            raise AssertionError

    wheel = TimerWheel()
    owner = Owner()
    gone = weakref.ref(owner)
    handle = wheel.call(10, owner.run)
    wheel.call(10_000, owner.run)
    del owner
    gc.collect()
    assert gone() is not None
    handle.cancel()
    del wheel
    gc.collect()
    assert gone() is None
    assert not handle.cancel()

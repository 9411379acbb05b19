"""Numbers rise over all workers of a host, and the broker's time advances, whatever the wall clock does."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyx.core.clock import Clock
from shards.clock import FILE, HostClock
from tests import wire
from tests.kept_store import KeptStore
from tests.sansio import Host
from tests.unit.pyx.delivery.test_router import client_at

DAY = 86400.0


# ---------------------------------------------------------------- message numbers


def test_numbers_follow_the_wall_clock_forward_and_never_back() -> None:
    host = Host()
    before = host.node.router.state.next_number()
    host.step_clock(0, 3600)
    ahead = host.node.router.state.next_number()
    host.step_clock(0, -7200)
    assert before + (3599_000_000 << 8) < ahead < host.node.router.state.next_number() < ahead + (1000 << 8)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["number", "tick", "feed", "back", "on"]))))
def test_what_follows_what_was_seen_outside_is_newer(steps: list[tuple[int, str]]) -> None:
    """Three workers number messages, end ticks and read in any order, and their clocks are set: a number given after a
    read is above all numbers given before the ticks that ended before that read.
    """
    host = Host(3)
    readers = [host.connect(client_at(worker, 3)) for worker in range(3)]
    given_by = [0, 0, 0]
    seen = 0
    heard = [0, 0, 0]
    for worker, step in steps:
        router = host.nodes[worker].router
        if step == "number":
            given_by[worker] = router.state.next_number()
            assert given_by[worker] > heard[worker]
        elif step == "tick":
            router.finish_tick()
            seen = max(seen, *given_by[worker : worker + 1])
        elif step == "feed":
            readers[worker].send(wire.PINGREQ)
            heard[worker] = seen
        else:
            host.step_clock(worker, -1.0 if step == "back" else 1.0)


def test_a_cell_is_eight_bytes() -> None:
    for size in (0, 7, 9, 16):
        with pytest.raises(ValueError, match="a cell is 8 bytes"):
            Clock(memoryview(bytearray(size)))
    with pytest.raises(ValueError, match="aligned"):
        Clock(memoryview(bytearray(16))[1:9])


def test_a_store_has_numbers_that_new_ones_lie_above() -> None:
    """All workers were killed, and the clock was put back: retained messages are older than new ones."""
    stores = [KeptStore(), KeptStore()]
    host = Host(2, stores=stores)
    publishers = [host.connect(client_at(worker, 2)) for worker in range(2)]
    for worker, publisher in enumerate(publishers):
        publisher.publish(f"r/{worker}", b"before", 1, retain=True)
    host.settle()
    after = host.crash()
    for worker in range(2):
        after.step_clock(worker, -DAY)
    publishers = [after.connect(client_at(worker, 2)) for worker in range(2)]
    for worker, publisher in enumerate(publishers):
        publisher.publish(f"r/{1 - worker}", b"after", 1, retain=True)
    after.settle()
    kept = {m.topic: bytes(m.payload) for node in after.nodes for _, m in node.retained.match(b"r/#", None, 10)}
    assert kept == {b"r/0": b"after", b"r/1": b"after"}


# ---------------------------------------------------------------- the broker's time


class Times:
    """A wall clock and a monotonic one; `sleep` advances both, everything else happens to the wall clock."""

    def __init__(self) -> None:
        self.wall = 1_800_000_000.0
        self.monotonic = 5.0
        self.said: list[dict[str, Any]] = []

    def sleep(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds

    def clock(self, directory: Path | None) -> HostClock:
        """Return the clock of a broker that starts now."""
        return HostClock(
            None if directory is None else str(directory),
            lambda level, event, **fields: self.said.append({"level": level, "event": event, **fields}),
            lambda: self.wall,
            lambda: self.monotonic,
        )

    def broker_time(self, clock: HostClock) -> float:
        """Return the broker's time in seconds."""
        return self.monotonic + clock.ahead_ms / 1000


def test_it_is_unix_time_as_long_as_nobody_sets_the_clock(tmp_path: Path) -> None:
    times = Times()
    for _ in range(3):
        clock = times.clock(tmp_path)
        assert times.broker_time(clock) == pytest.approx(times.wall, abs=0.01)
        times.sleep(1000)
        clock.look()
        clock.close()
        times.sleep(50)
    assert not times.said


@pytest.mark.parametrize("orderly", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("step", [3600.0, -3600.0, 50 * 365 * DAY])
def test_a_step_ends_nothing_and_prolongs_nothing(tmp_path: Path, step: float, orderly: bool) -> None:
    """Over a step and two restarts it advances by the time that really passed."""
    times = Times()
    clock = times.clock(tmp_path)
    begun = times.broker_time(clock)
    times.sleep(100)
    times.wall += step
    clock.look()
    assert [(each["event"], each["seconds"]) for each in times.said] == [("clock_stepped", pytest.approx(step))]
    times.sleep(100)
    clock.look()
    for _ in range(2):
        if orderly:
            clock.close()
        times.sleep(100)
        clock = times.clock(tmp_path)
    assert times.broker_time(clock) - begun == pytest.approx(400, abs=0.1)
    assert len(times.said) == 1


def test_small_steps_are_one_when_they_are_a_second(tmp_path: Path) -> None:
    times = Times()
    clock = times.clock(tmp_path)
    begun = times.broker_time(clock)
    for _ in range(10):
        times.wall += 0.3
        clock.look()
    assert [each["seconds"] for each in times.said] == pytest.approx([1.2, 1.2], abs=0.01)
    assert times.broker_time(times.clock(tmp_path)) - begun == pytest.approx(0, abs=1.0)


def test_a_clock_that_was_put_back_while_nothing_ran_is_no_time(tmp_path: Path) -> None:
    """A board without a battery begins in 1970 at each start, and gets the time a little later."""
    times = Times()
    clock = times.clock(tmp_path)
    for _ in range(3):
        before = times.broker_time(clock)
        clock.close()
        times.wall = 10.0
        clock = times.clock(tmp_path)
        assert times.broker_time(clock) == pytest.approx(before, abs=0.01)
        times.sleep(20)
        times.wall = 1_900_000_000.0
        clock.look()
        times.sleep(20)
        clock.look()
        assert times.broker_time(clock) - before == pytest.approx(40, abs=0.1)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 2, "broker_ms": 1, "wall_ms": 1}', '{"format": 1}'])
def test_a_file_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    times = Times()
    (tmp_path / FILE).write_text(text)
    assert times.broker_time(times.clock(tmp_path)) == pytest.approx(times.wall, abs=0.01)
    assert json.loads((tmp_path / FILE).read_text())["wall_ms"] == int(times.wall * 1000)


def test_without_a_directory_nothing_is_kept(tmp_path: Path) -> None:
    times = Times()
    clock = times.clock(None)
    clock.look()
    clock.close()
    assert not list(tmp_path.iterdir())


def test_a_disk_that_takes_nothing_ends_nothing(tmp_path: Path) -> None:
    times = Times()
    clock = times.clock(tmp_path / "missing")
    times.wall += 10
    clock.look()
    assert [each["event"] for each in times.said] == ["clock_save_failed", "clock_save_failed", "clock_stepped"]


def test_workers_that_are_forked_later_have_the_same_time(tmp_path: Path) -> None:
    """The values passed to them do not depend on the wall clock at their fork."""
    times = Times()
    clock = times.clock(tmp_path)
    seen = []
    for step in (0.0, 100.0, -5000.0):
        times.wall += step
        clock.look()
        seen.append(clock.ahead_ms)
    assert all(a == b for a, b in itertools.pairwise(seen))

"""A worker to which nothing comes is swept rarely, and at the usual pace as soon as something comes."""

from __future__ import annotations

import pytest

from tests.sansio import Host

USUAL_MS = 1000
REST_MS = 5000
SWEEPS_AFTER_ACTIVITY = 10


def pauses(host: Host, count: int) -> list[int]:
    """Return the milliseconds between the next sweeps."""
    node = host.nodes[0]
    found = []
    for _ in range(count):
        due = node._next_sweep.deadline
        while host.now_ms < due:
            host.pass_time(0.1)
        found.append(node._next_sweep.deadline - due)
    return found


@pytest.fixture
def host() -> Host:
    host = Host()
    host.nodes[0].may_rest = True
    return host


def test_it_rests_after_some_sweeps(host: Host) -> None:
    found = pauses(host, SWEEPS_AFTER_ACTIVITY + 3)
    assert found[-3:] == [REST_MS] * 3
    assert all(USUAL_MS <= pause < REST_MS for pause in found[: SWEEPS_AFTER_ACTIVITY - 2])


def test_what_happens_ends_the_rest(host: Host) -> None:
    pauses(host, SWEEPS_AFTER_ACTIVITY + 2)
    node = host.nodes[0]
    host.connect("a").subscribe(("t", 0))
    assert node.router.state.is_active
    node.wake()
    assert node._next_sweep.deadline <= host.now_ms + USUAL_MS
    assert all(pause < REST_MS for pause in pauses(host, SWEEPS_AFTER_ACTIVITY - 1))


def test_a_node_without_a_worker_does_not_rest() -> None:
    """Nobody would wake it."""
    assert all(pause < REST_MS for pause in pauses(Host(), SWEEPS_AFTER_ACTIVITY + 3))

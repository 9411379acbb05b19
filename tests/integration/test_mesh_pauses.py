"""A worker that was not running for a while reads no client before it knows what siblings have promised meanwhile; the
tests determine the time that passes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator

import pytest

from tests.integration.test_mesh_sockets import WATCHFUL, Node
from tests.waiting import wait_until
from zmq_mesh.mesh import GREETINGS_MAX

SILENCE = WATCHFUL.link_silence_seconds_max


class Two:
    """Two meshes, and the time."""

    def __init__(self, runtime_dir: str) -> None:
        self.now = time.monotonic()
        self.nodes = [Node(index, 2, runtime_dir, 1, WATCHFUL) for index in range(2)]

    def round(self, *nodes: Node) -> None:
        """Let these meshes, or both, hear and say what is due."""
        self.now += 0.001
        for node in nodes or self.nodes:
            node.mesh.awake(self.now)
            node.round(self.now)
            node.mesh.tick(self.now)

    def _are_ready(self) -> bool:
        self.round()
        return all(node.mesh.ready and node.mesh.awake(self.now) for node in self.nodes)

    def until_ready(self) -> None:
        wait_until(self._are_ready, 60, "both are ready, and awake")


@pytest.fixture
def two() -> Iterator[Two]:
    with tempfile.TemporaryDirectory(prefix="mesh") as runtime_dir:
        it = Two(runtime_dir)
        it.until_ready()
        yield it
        for node in it.nodes:
            node.mesh.close()


@pytest.mark.parametrize("pauses", [[0.34], [0.3, 0.3], [0.3, 0.3, 0.3], [2.0]])
def test_pauses_without_a_heartbeat_between_them_count_together(two: Two, pauses: list[float]) -> None:
    """Each of them is too short for a greeting; siblings hear nothing until the last has ended."""
    one, _ = two.nodes
    answers = []
    for pause in pauses:
        two.now += pause * SILENCE
        answers.append(one.mesh.awake(two.now))
    assert answers == [True] * (len(pauses) > 1) + [False] * (len(pauses) - (len(pauses) > 1))
    two.until_ready()
    assert ("unconfirmed", 1) not in one.log


def test_a_second_pause_before_the_answers(two: Two) -> None:
    """They are waited for again, though the sibling has given up waiting meanwhile."""
    one, other = two.nodes
    for _ in range(2):
        for _ in range(20):
            two.now += 0.1 * SILENCE
            two.round(other)
        assert not one.mesh.awake(two.now)
    assert ("away", 0) in other.log
    two.until_ready()
    assert ("unconfirmed", 1) not in one.log


def test_pauses_with_heartbeats_between_them_do_not_count(two: Two) -> None:
    one, _ = two.nodes
    for _ in range(10):
        two.now += 0.3 * SILENCE
        assert one.mesh.awake(two.now)
        two.round()


def test_ticks_that_are_all_too_long(two: Two) -> None:
    """Each greets anew, so no answer counts: after some of them clients are read all the same, and the sibling gets
    everything.
    """
    one, other = two.nodes
    answers = []
    for _ in range(GREETINGS_MAX):
        two.now += 0.8 * SILENCE
        answers.append(one.mesh.awake(two.now))
        one.mesh.tick(two.now)
    assert answers == [False] * (GREETINGS_MAX - 1) + [True]
    assert one.log.count(("unconfirmed", 1)) == 1
    assert not other.mesh.awake(two.now), "it was not running either"
    two.until_ready()
    assert one.log[-1] != ("unconfirmed", 1)

"""A worker that was not running for a while reads no client before it knows what siblings have promised meanwhile; the
tests determine the time that passes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator

import pytest

from pyx.core.peer import sibling
from tests.integration.test_mesh_sockets import WATCHFUL, Node
from tests.waiting import wait_until
from zmq_mesh.envelope import Entry, encode_entries
from zmq_mesh.mesh import GREETINGS_MAX

SILENCE = WATCHFUL.link_silence_seconds_max


class Two:
    """Two meshes, and the time."""

    def __init__(self, runtime_dir: str, kind: str) -> None:
        self.now = time.monotonic()
        self.runtime_dir = runtime_dir
        self.nodes = [Node(index, 2, runtime_dir, 1, WATCHFUL, kind) for index in range(2)]

    def round(self, *nodes: Node) -> None:
        """Let these meshes, or both, hear and say what is due."""
        self.now += 0.001
        for node in nodes or self.nodes:
            node.mesh.awake(self.now)
            node.round(self.now)
            node.mesh.tick(self.now)

    def pass_by(self, seconds: float, *nodes: Node) -> None:
        """Let time pass for these meshes, or both; the others do not run."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.05 * SILENCE
            self.round(*nodes)

    def _are_idle(self) -> bool:
        self.round()
        return all(node.mesh.is_idle for node in self.nodes)

    def until_idle(self) -> None:
        wait_until(self._are_idle, 60, "nobody waits for anybody")

    def _are_ready(self) -> bool:
        self.round()
        return all(node.mesh.ready and node.mesh.awake(self.now) for node in self.nodes)

    def until_ready(self) -> None:
        wait_until(self._are_ready, 60, "both are ready, and awake")


def two_of(kind: str) -> Iterator[Two]:
    with tempfile.TemporaryDirectory(prefix="mesh") as runtime_dir:
        it = Two(runtime_dir, kind)
        it.until_ready()
        yield it
        for node in it.nodes:
            node.mesh.close()


@pytest.fixture
def two() -> Iterator[Two]:
    """Over ZeroMQ's library: what was sent may not be there yet."""
    yield from two_of("zeromq")


@pytest.fixture
def near() -> Iterator[Two]:
    """Over sockets of the reactor: what was sent is there."""
    yield from two_of("unix")


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


def test_idle_links_say_nothing(near: Two) -> None:
    """Not for as long as siblings are waited for, and longer; then both still count as there."""
    near.until_idle()
    said = [node.mesh.links[sibling(1 - at)].out.frame for at, node in enumerate(near.nodes)]
    near.pass_by(10 * SILENCE)
    assert [node.mesh.links[sibling(1 - at)].out.frame for at, node in enumerate(near.nodes)] == said
    assert all(node.mesh.ready and node.mesh.is_idle for node in near.nodes)
    assert not [event for node in near.nodes for event in node.log if event[0] == "away"]


def test_links_over_the_library_are_never_idle(two: Two) -> None:
    """Heartbeats say that the sibling lives."""
    said = two.nodes[0].mesh.links[sibling(1)].out.frame
    two.pass_by(2 * SILENCE)
    assert two.nodes[0].mesh.links[sibling(1)].out.frame > said
    assert not any(node.mesh.is_idle for node in two.nodes)


def test_a_pause_in_which_nothing_was_said(near: Two) -> None:
    """A sleeping worker and a stopped one look alike; neither has missed anything."""
    one, other = near.nodes
    near.until_idle()
    near.pass_by(3 * SILENCE, other)
    assert one.mesh.awake(near.now)
    assert ("away", 0) not in other.log


def test_what_was_said_in_a_pause_is_heard_before_clients(near: Two) -> None:
    one, other = near.nodes
    near.until_idle()
    other.publisher.change(b"new")
    near.pass_by(0.5 * SILENCE, other)
    assert b"new" not in one.wants[1]
    assert one.mesh.awake(near.now)
    assert b"new" in one.wants[1]
    one.mesh.flush(near.now)
    near.pass_by(0.1 * SILENCE, other)
    assert ("away", 0) not in other.log
    assert other.log[-1] == ("taken", 0)


def test_a_sibling_is_silent_from_the_moment_at_which_it_is_waited_for(near: Two) -> None:
    _, other = near.nodes
    near.until_idle()
    near.pass_by(5 * SILENCE, other)
    other.publisher.change(b"new")
    near.pass_by(0.9 * SILENCE, other)
    assert ("away", 0) not in other.log
    near.pass_by(0.2 * SILENCE, other)
    assert ("away", 0) in other.log


def test_a_pause_in_which_a_sibling_gave_up_waiting(near: Two) -> None:
    """Clients are not read before the sibling has answered: it may have served by what it could not say."""
    one, other = near.nodes
    near.until_idle()
    other.publisher.change(b"new")
    near.pass_by(1.1 * SILENCE, other)
    assert ("away", 0) in other.log
    other.publisher.change(b"newer")
    near.pass_by(0.1 * SILENCE, other)
    assert not one.mesh.awake(near.now)
    near.until_ready()
    assert {b"new", b"newer"} <= one.wants[1]


@pytest.mark.parametrize("stopped_in", ["the timer", "a round"])
def test_a_pause_between_looking_at_the_clock_and_hearing(near: Two, stopped_in: str) -> None:
    """The greeting of a sibling that gave up waiting is heard by something that does not know of the pause."""
    one, other = near.nodes
    near.until_idle()
    before = near.now + 0.001
    other.publisher.change(b"new")
    near.pass_by(1.1 * SILENCE, other)
    assert ("away", 0) in other.log
    other.publisher.change(b"newer")
    near.pass_by(0.1 * SILENCE, other)
    if stopped_in == "the timer":
        one.mesh.tick(before)
    else:
        one.round(before)
    near.now += 0.001
    assert not one.mesh.awake(near.now)
    assert not one.mesh.awake(near.now + 0.001)
    near.until_ready()
    assert {b"new", b"newer"} <= one.wants[1]


def test_a_pause_in_which_a_sibling_was_restarted(near: Two) -> None:
    """It waits for the answer to its greeting as long as for any other."""
    one, other = near.nodes
    near.until_idle()
    other.mesh.close()
    near.nodes[1] = other = Node(1, 2, near.runtime_dir, 2, WATCHFUL)
    other.publisher.change(b"new")
    near.now = time.monotonic()
    near.pass_by(1.1 * SILENCE, other)
    assert not one.mesh.awake(near.now)
    near.until_ready()
    assert b"new" in one.wants[1]


def test_our_own_pause_is_not_the_silence_of_a_sibling(near: Two) -> None:
    """Not even of one from which something was awaited when it began."""
    one, _ = near.nodes
    near.until_idle()
    part, _ = encode_entries([Entry(b"v", b"", 1, own_frame=False)])
    one.mesh.links[sibling(1)].submit(part, None, [], [], 1)
    one.mesh.flush(near.now)
    assert not one.mesh.is_idle
    near.now += 1.2 * SILENCE
    assert one.mesh.awake(near.now)
    one.mesh.tick(near.now)
    assert ("away", 1) not in one.log


def test_a_worker_that_reads_nobody_is_not_idle(near: Two) -> None:
    """It has to say that it lives."""
    one, other = near.nodes
    near.until_idle()
    one.batches.full = True
    other.publisher.change(b"new")
    near.pass_by(2 * SILENCE)
    assert not one.mesh.is_idle
    assert ("away", 0) not in other.log


def test_nothing_is_outstanding_on_idle_links(near: Two) -> None:
    """Also to a sibling that was restarted: what a worker knows of its position is not older than its silence."""
    for incarnation in (2, 3):
        near.nodes[0].publisher.change(b"new/%d" % incarnation)
        near.until_idle()
        near.nodes[1].mesh.close()
        near.nodes[0].mesh.down(sibling(1), incarnation - 1)
        near.nodes[1] = Node(1, 2, near.runtime_dir, incarnation, WATCHFUL)
        near.now = time.monotonic()
        near.until_ready()
        near.until_idle()
        assert [node.mesh.links[sibling(1 - at)].outstanding() for at, node in enumerate(near.nodes)] == [0, 0]


def test_a_pause_in_which_a_socket_was_full(near: Two) -> None:
    """What a sibling has to say may wait in its own memory: so it is asked."""
    one, other = near.nodes
    near.until_idle()
    other.flows[0] = (0, 10_000, 64)
    for _ in range(200):
        other.flow()
        near.round(other)
    near.now += 0.5 * SILENCE
    assert not one.mesh.awake(near.now)
    near.until_ready()


def test_a_full_socket_that_was_read_before_the_pause_was_noticed(near: Two) -> None:
    """When the worker looks, nothing is in it: what the sibling could not say is not there yet."""
    one, other = near.nodes
    near.until_idle()
    other.flows[0] = (0, 10_000, 64)
    for _ in range(200):
        other.flow()
        near.round(other)
    one.round(near.now)
    near.now += 0.5 * SILENCE
    assert not one.mesh.awake(near.now)
    near.until_ready()


def test_ticks_without_a_round_between_them_answer(near: Two) -> None:
    """A worker whose every pause is a little too short to be noticed hears its siblings all the same."""
    one, other = near.nodes
    near.until_idle()
    other.publisher.change(b"new")
    for _ in range(10):
        near.pass_by(0.3 * SILENCE, other)
        one.mesh.tick(near.now)
        one.mesh.flush(near.now)
    assert b"new" in one.wants[1]
    assert ("away", 0) not in other.log

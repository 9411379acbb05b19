"""A worker finds out that everything that was published for its host until now has come."""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from broker.worker.flushing import FLUSH, FLUSHED, Flushing
from pyx.core.peer import Peer

OWN, SIBLING = Peer(0), Peer(1)
HERE, THERE = Peer(5), Peer(6)


class World:
    """A worker with one sibling, and the workers of other hosts that send to it."""

    def __init__(self) -> None:
        self.sent: list[tuple[Peer, bytes, bytes]] = []
        self.state = SimpleNamespace(now_ms=0, wall_ms=1_800_000_000_000)
        self.rails: set[Peer] | None = {HERE, THERE}
        self.is_away = False
        peers = SimpleNamespace(tell=lambda peer, kind, payload: self.sent.append((peer, kind, payload)))
        self.context: Any = SimpleNamespace(
            own=OWN, siblings=[SIBLING], router=SimpleNamespace(state=self.state, peers=peers), guard_client=self.guard
        )
        self.outcomes: list[bool] = []
        self.failures: list[Exception] = []
        self.start()

    def start(self) -> None:
        """Begin, or begin anew after a crash."""
        self.flushing = Flushing(self.context, lambda: self.rails, lambda: self.is_away)

    def guard(self, _client_id: str | None, call: Callable[..., object], *arguments: Any) -> None:
        try:
            call(*arguments)
        except RuntimeError as error:
            self.failures.append(error)

    def flush(self) -> None:
        self.flushing.flush(self.outcomes.append)

    def questions(self, *, of: Peer) -> list[bytes]:
        return [payload for peer, kind, payload in self.sent if (peer, kind) == (of, FLUSH)]

    def answer(self, peer: Peer, at: int = -1, whole: bool = True) -> None:
        question = self.questions(of=peer)[at]
        if peer == SIBLING:
            self.flushing.heard(FLUSHED, peer, question + bytes([whole]))
        else:
            self.flushing.heard_of_host(FLUSHED, peer, question)


def test_it_ends_when_siblings_and_hosts_have_answered() -> None:
    world = World()
    world.flush()
    for peer in (HERE, SIBLING, THERE):
        assert world.outcomes == []
        world.answer(peer)
    assert world.outcomes == [True]


def test_a_sibling_asks_its_hosts_before_it_answers() -> None:
    world = World()
    world.flushing.heard(FLUSH, SIBLING, struct.pack("<Q", 77))
    world.answer(HERE)
    assert not [kind for _, kind, _ in world.sent if kind == FLUSHED]
    world.answer(THERE)
    assert world.sent[-1] == (SIBLING, FLUSHED, struct.pack("<QB", 77, 1))


def test_another_host_is_answered_behind_what_it_is_sent() -> None:
    """The answer is a message of the same stream."""
    world = World()
    world.flushing.heard_of_host(FLUSH, THERE, b"whatever")
    assert world.sent == [(THERE, FLUSHED, b"whatever")]


def test_a_host_that_is_away_is_not_waited_for() -> None:
    """Whether it was so before, or goes away meanwhile; also if it is back before all have answered."""
    world = World()
    world.is_away, world.rails = True, {HERE}
    world.flush()
    world.answer(HERE)
    world.answer(SIBLING)
    assert world.outcomes == [False]
    world.is_away, world.rails = False, {HERE, THERE}
    world.flush()
    world.answer(SIBLING)
    world.rails = {HERE}
    world.flushing.check()
    world.rails = {HERE, THERE}
    world.flushing.check()
    world.answer(HERE)
    assert world.outcomes == [False, False]


def test_a_sibling_of_which_a_host_is_away() -> None:
    world = World()
    world.flush()
    world.answer(HERE)
    world.answer(THERE)
    world.answer(SIBLING, whole=False)
    assert world.outcomes == [False]


def test_many_at_a_time() -> None:
    """Each ends with its own answers."""
    world = World()
    for _ in range(3):
        world.flush()
    for peer in (HERE, THERE, SIBLING):
        world.answer(peer, 1)
    assert world.outcomes == [True]
    for at in (2, 0):
        for peer in (SIBLING, THERE, HERE):
            world.answer(peer, at)
    assert world.outcomes == [True] * 3


def test_what_waits_is_asked_together() -> None:
    """However many flushes there are, hosts have eight questions at a time at most; the ninth stands for the rest."""
    world = World()
    for _ in range(100):
        world.flush()
    assert len(world.questions(of=HERE)) == len(world.questions(of=THERE)) == 8
    for at in range(100):
        world.answer(SIBLING, at)
    for at in range(8):
        world.answer(HERE, at)
        world.answer(THERE, at)
    assert world.outcomes == [True] * 8
    assert len(world.questions(of=HERE)) == 9
    world.answer(HERE)
    world.answer(THERE)
    assert world.outcomes == [True] * 100


def test_what_waits_goes_on_when_a_question_is_given_up() -> None:
    world = World()
    for _ in range(9):
        world.flush()
    world.state.now_ms = 11_000
    world.flushing.tick(11.0)
    assert len(world.questions(of=HERE)) == 9


def test_an_answer_to_a_worker_that_has_died() -> None:
    """It may come to its successor behind much else: that has other numbers."""
    world = World()
    world.flush()
    former = world.questions(of=HERE)[0], world.questions(of=SIBLING)[0]
    world.state.wall_ms += 1
    world.start()
    world.flush()
    world.flushing.heard_of_host(FLUSHED, HERE, former[0])
    world.flushing.heard(FLUSHED, SIBLING, former[1] + b"\x01")
    world.answer(THERE)
    assert world.outcomes == []
    world.answer(SIBLING)
    world.answer(HERE)
    assert world.outcomes == [True]


def test_one_that_fails_holds_up_no_other() -> None:
    world = World()
    for _ in range(8):
        world.flush()
    failure = RuntimeError("a defect")

    def fails(_is_whole: bool) -> None:
        raise failure

    world.flushing.flush(fails)
    world.flush()
    for peer, many in ((HERE, 8), (THERE, 8), (SIBLING, 10)):
        for at in range(many):
            world.answer(peer, at)
    world.answer(HERE)
    world.answer(THERE)
    assert world.failures == [failure]
    assert world.outcomes == [True] * 9


def test_without_other_hosts() -> None:
    world = World()
    world.rails = set()
    world.flush()
    world.answer(SIBLING)
    assert world.outcomes == [True]


def test_nobody_is_asked_before_it_is_known_who_is_there() -> None:
    world = World()
    world.rails = None
    world.flush()
    world.answer(SIBLING)
    assert world.questions(of=HERE) == []
    world.rails = {HERE}
    world.flushing.check()
    world.answer(HERE)
    assert world.outcomes == [True]


def test_answers_that_do_not_come_are_forgotten() -> None:
    """And those that come twice, late, or of somebody who was not asked change nothing."""
    world = World()
    world.flush()
    world.answer(HERE)
    world.answer(HERE)
    world.flushing.heard_of_host(FLUSHED, Peer(9), world.questions(of=HERE)[0])
    world.state.now_ms = 11_000
    world.flushing.tick(11.0)
    world.answer(THERE)
    world.answer(SIBLING)
    assert world.outcomes == []
    world.flush()
    for peer in (HERE, THERE, SIBLING):
        world.answer(peer)
    assert world.outcomes == [True]

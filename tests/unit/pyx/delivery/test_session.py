"""A session's window, its arrived identifiers and its queue, against plain Python models."""

from __future__ import annotations

import random
import sys
from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pyx.delivery.session import Session
from pyx.protocol.message import Message
from tests.unit.adapters.session_adapter import arrive, clear, dequeue, enqueue, leave, open_slot, queue_bytes, release


def message(body: bytes = b"x") -> Message:
    return Message.create(b"t", body, qos=1)


class SessionMachine(RuleBasedStateMachine):
    """Sending, acknowledging, arriving and queueing in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.session = Session("client")
        self.window: dict[int, int] = {}
        self.arrived: set[int] = set()
        self.queue: deque[tuple[bytes, bytes | None, int]] = deque()
        self.order = -1

    @rule(count=st.integers(1, 40))
    def send(self, count: int) -> None:
        for _ in range(count):
            packet_id, order = open_slot(self.session, message())
            assert 1 <= packet_id <= 65535
            assert packet_id not in self.window
            assert order > self.order
            self.order = self.window[packet_id] = order

    @precondition(lambda self: self.window)
    @rule(data=st.data(), count=st.integers(1, 40))
    def answer(self, data: st.DataObject, count: int) -> None:
        numbers = random.Random(data.draw(st.integers(0, 1000)))
        for packet_id in numbers.sample(sorted(self.window), min(count, len(self.window))):
            assert release(self.session, packet_id)
            assert not release(self.session, packet_id)
            del self.window[packet_id]

    @rule(packet_id=st.integers(0, 65535))
    def answer_any(self, packet_id: int) -> None:
        assert release(self.session, packet_id) == (packet_id in self.window)
        self.window.pop(packet_id, None)

    @rule(packet_id=st.one_of(st.integers(1, 65535), st.integers(1, 20)), count=st.integers(1, 30))
    def arrive(self, packet_id: int, count: int) -> None:
        for number in range(packet_id, min(packet_id + count, 65536)):
            assert arrive(self.session, number) == (number not in self.arrived)
            self.arrived.add(number)

    @rule(packet_id=st.one_of(st.integers(1, 65535), st.integers(1, 40)))
    def leave(self, packet_id: int) -> None:
        assert leave(self.session, packet_id) == (packet_id in self.arrived)
        self.arrived.discard(packet_id)

    @precondition(lambda self: self.arrived)
    @rule(seed=st.integers(0, 1000), count=st.integers(1, 30))
    def leave_some(self, seed: int, count: int) -> None:
        for number in random.Random(seed).sample(sorted(self.arrived), min(count, len(self.arrived))):
            self.leave(number)

    @rule(
        body=st.binary(max_size=20), identifiers=st.one_of(st.none(), st.binary(max_size=3)), flags=st.integers(0, 31)
    )
    def enqueue(self, body: bytes, identifiers: bytes | None, flags: int) -> None:
        enqueue(self.session, message(body), identifiers, flags)
        self.queue.append((body, identifiers, flags))

    @precondition(lambda self: self.queue)
    @rule()
    def dequeue(self) -> None:
        kept, identifiers, flags = dequeue(self.session)
        assert (bytes(kept.payload), identifiers, flags) == self.queue.popleft()

    @invariant()
    def counts(self) -> None:
        assert self.session.unacknowledged == len(self.window)
        assert self.session.queued == len(self.queue)
        assert queue_bytes(self.session) == sum(1 + len(body) for body, _, _ in self.queue)

    def teardown(self) -> None:
        for number in self.arrived:
            assert leave(self.session, number)


TestSessionMachine = SessionMachine.TestCase
TestSessionMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.mqtt("5:2.2.1-4", "5:4.3.2-1", "5:4.3.3-1", "311:2.3.1-4", "311:4.3.2-1", "311:4.3.3-1")
@pytest.mark.parametrize("stuck", [1, 2, 7, 8, 9])
def test_identifiers_go_round_a_stuck_one(stuck: int) -> None:
    session = Session("client")
    for expected in range(1, stuck + 1):
        assert open_slot(session)[0] == expected
    for packet_id in range(1, stuck):
        release(session, packet_id)
    seen = []
    for _ in range(140_000):
        packet_id, _ = open_slot(session)
        assert packet_id not in (0, stuck)
        seen.append(packet_id)
        release(session, packet_id)
    assert len(set(seen)) > 50_000


def test_the_whole_window_can_be_used() -> None:
    session = Session("client")
    assert sorted(open_slot(session)[0] for _ in range(65535)) == list(range(1, 65536))
    for packet_id in (1, 40_000, 65535):
        assert release(session, packet_id)
    assert {open_slot(session)[0] for _ in range(3)} == {1, 40_000, 65535}


def test_every_identifier_may_have_arrived() -> None:
    session = Session("client")
    for packet_id in range(1, 65536):
        assert arrive(session, packet_id)
    for packet_id in range(65535, 0, -1):
        assert not arrive(session, packet_id)
        assert leave(session, packet_id)
    assert not leave(session, 1)


def test_messages_are_let_go() -> None:
    kept = message()
    identifiers = b"\x0b\x07-"[:2]
    before = sys.getrefcount(kept), sys.getrefcount(identifiers)
    for _ in range(2):
        session = Session("client")
        for _ in range(20):
            open_slot(session, kept)
            enqueue(session, kept, identifiers)
        dequeue(session)
        release(session, 3)
        assert sys.getrefcount(kept) == before[0] + 38
        clear(session)
        assert (sys.getrefcount(kept), sys.getrefcount(identifiers)) == before
        open_slot(session, kept)
        enqueue(session, kept, identifiers)
        del session
        assert (sys.getrefcount(kept), sys.getrefcount(identifiers)) == before

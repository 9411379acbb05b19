"""The outbox against plain bytes: whatever was put in comes out in order, however the kernel takes it."""

from __future__ import annotations

import sys

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.unit.outbox_adapter import OutboxAdapter


class OutboxMachine(RuleBasedStateMachine):
    """Copies, shares and partial sends in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.out = OutboxAdapter()
        self.expected = b""
        self.number = 0

    def body(self, size: int) -> bytes:
        self.number += 1
        return (self.number.to_bytes(4, "big") * (size // 4 + 1))[:size]

    @rule(size=st.one_of(st.integers(1, 40), st.integers(200, 5000)))
    def copy(self, size: int) -> None:
        data = self.body(size)
        self.out.copy(data)
        self.expected += data

    @rule(size=st.integers(0, 3000))
    def share(self, size: int) -> None:
        data = self.body(size)
        self.out.share(data)
        self.expected += data

    @rule(data=st.data(), vectors=st.integers(1, 64))
    def send(self, data: st.DataObject, vectors: int) -> None:
        pieces, total = self.out.gather(vectors)
        shown = b"".join(pieces)
        assert total == len(shown)
        assert all(pieces)
        assert self.expected.startswith(shown)
        assert bool(shown) == bool(self.expected)
        took = data.draw(st.integers(0, total))
        if took:
            self.out.sent(took)
        self.expected = self.expected[took:]

    @rule()
    def clear(self) -> None:
        self.out.clear()
        self.expected = b""

    @invariant()
    def counts(self) -> None:
        assert self.out.pending == len(self.expected)
        if not self.expected:
            assert not self.out.holds_memory


TestOutboxMachine = OutboxMachine.TestCase
TestOutboxMachine.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=20))
@settings(deadline=None)
def test_shared_payloads_are_let_go_when_they_were_sent(sizes: list[int]) -> None:
    bodies = [bytes([i]) * (size + 1) for i, size in enumerate(sizes)]
    before = [sys.getrefcount(body) for body in bodies]
    out = OutboxAdapter()
    for body in bodies:
        out.share(body)
    del body
    assert [sys.getrefcount(body) for body in bodies] == [count + 1 for count in before]
    out.sent(sum(map(len, bodies)) - 1)
    assert [sys.getrefcount(body) for body in bodies] == [*before[:-1], before[-1] + 1]
    out.sent(1)
    assert [sys.getrefcount(body) for body in bodies] == before
    out.share(bodies[0])
    del out
    assert sys.getrefcount(bodies[0]) == before[0]


def test_a_slow_but_steady_receiver_needs_no_growing_buffer() -> None:
    out = OutboxAdapter()
    out.copy(b"x" * 1000)
    for _ in range(10_000):
        out.copy(b"y" * 500)
        out.sent(500)
    assert out.capacity <= 4096


def test_the_first_buffer_follows_the_use() -> None:
    out = OutboxAdapter()
    out.copy(b"x")
    assert out.capacity == 256
    out.copy(b"x" * 10_000)
    out.sent(out.pending)
    out.copy(b"x")
    assert out.capacity >= 10_000
    for _ in range(100):
        out.sent(out.pending)
        out.copy(b"x")
    assert out.capacity <= 512

"""The outbox against plain bytes: all bytes leave it in order, however the kernel takes them."""

from __future__ import annotations

import sys

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.unit.adapters.outbox_adapter import OutboxAdapter


def packet(first: int, body: bytes) -> bytes:
    """Return a whole MQTT packet, whatever its body."""
    length, digits = len(body), b""
    while True:
        length, digit = divmod(length, 128)
        digits += bytes([digit | (0x80 if length else 0)])
        if not length:
            return bytes([first]) + digits + body


FIRST = [0x30, 0x31, 0x32, 0x35, 0x3A, 0x40, 0xD0]
"""First bytes: PUBLISH of QoS 0, with RETAIN, of QoS 1, 2, 1 with DUP; PUBACK; PINGRESP."""


class OutboxMachine(RuleBasedStateMachine):
    """Copies, shares and partial sends in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.out = OutboxAdapter()
        self.expected = b""
        self.number = 0
        self.put = 0
        self.ends: list[int] = []
        """The end of each QoS 0 PUBLISH in the stream of all bytes put in."""

    def body(self, size: int) -> bytes:
        self.number += 1
        return (self.number.to_bytes(4, "big") * (size // 4 + 1))[:size]

    def expect(self, first: int, whole: bytes) -> bool:
        self.expected += whole
        self.put += len(whole)
        if first & 0xF6 == 0x30:
            self.ends.append(self.put)
            return True
        return False

    @rule(size=st.one_of(st.integers(0, 40), st.integers(120, 5000)), first=st.sampled_from(FIRST))
    def copy(self, size: int, first: int) -> None:
        whole = packet(first, self.body(size))
        self.out.copy(whole, self.expect(first, whole))

    @rule(front=st.integers(1, 40), size=st.integers(1, 3000), first=st.sampled_from(FIRST[:5]))
    def share(self, front: int, size: int, first: int) -> None:
        body = self.body(size)
        whole = packet(first, b"t" * front + body)
        self.out.copy(whole[: len(whole) - size], self.expect(first, whole))
        self.out.share(body)

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
            taken = self.out.sent(took)
            self.expected = self.expected[took:]
            gone = self.put - len(self.expected)
            assert taken == sum(end <= gone for end in self.ends)
            self.ends = [end for end in self.ends if end > gone]

    @rule()
    def clear(self) -> None:
        self.out.clear()
        self.expected = b""
        self.ends = []

    @invariant()
    def counts(self) -> None:
        assert self.out.pending == len(self.expected)
        assert self.out.qos0 == len(self.ends)
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
        out.copy(packet(0x30, b"t" + body)[: -len(body)], True)
        out.share(body)
    del body
    assert [sys.getrefcount(body) for body in bodies] == [count + 1 for count in before]
    assert out.sent(out.pending - 1) == len(sizes) - 1
    assert [sys.getrefcount(body) for body in bodies] == [*before[:-1], before[-1] + 1]
    assert out.sent(1) == 1
    assert [sys.getrefcount(body) for body in bodies] == before
    out.share(bodies[0])
    del out
    assert sys.getrefcount(bodies[0]) == before[0]


def test_a_slow_but_steady_receiver_needs_no_growing_buffer() -> None:
    out = OutboxAdapter()
    out.copy(packet(0x32, b"x" * 1000))
    for _ in range(10_000):
        out.copy(packet(0x32, b"y" * 497))
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

"""What a session remembers of what it has had."""

from __future__ import annotations

import random

import pytest

from pyx.protocol.message import Message
from tests.unit.adapters.seen_adapter import ALL, HALF, add, has, make, mark, packed, unpack


@pytest.mark.parametrize("count", [0, 1, 8, 9, HALF, HALF + 1, 2 * HALF, 2 * HALF + 1, 5 * HALF])
def test_the_last_ones_are_known(count: int) -> None:
    """At least the last half is; what is forgotten is said to be."""
    seen = make()
    assert add(seen, 1, 1 + count) == count
    least = max(0, count - HALF)
    assert all(has(seen, each) for each in range(1 + least, 1 + count))
    assert not has(seen, 1 + count)
    assert seen.has_forgotten == (count > 2 * HALF)
    assert all(has(seen, each) for each in range(1, 1 + count)) or seen.has_forgotten
    assert add(seen, 1 + least, 1 + count) == 0


def test_all_sessions_together_are_bounded() -> None:
    """Beyond the bound each one still knows its last 8, and it knows more again when others have ended."""
    count = ALL // (4 * HALF)  # twice as many places as marks
    others = [make() for _ in range(count)]
    for each in others:
        add(each, 1, 1 + 2 * HALF)
    seen = make()
    add(seen, 1, 1001)
    assert all(has(seen, each) for each in range(1001 - 8, 1001))
    assert not has(seen, 1001 - 2 * 8 - 1)
    assert seen.has_forgotten
    del others, each
    add(seen, 1001, 2001)
    assert all(has(seen, each) for each in range(1001, 2001))


def test_marks_that_fall_on_one_place() -> None:
    seen = make()
    marks = [each << 32 | 7 for each in range(1, 500)]
    assert all(add(seen, each, each + 1) for each in marks)
    assert all(has(seen, each) for each in marks)
    assert not has(seen, 500 << 32 | 7)


@pytest.mark.parametrize("count", [0, 1, 1000, HALF + 1, 4 * HALF])
def test_what_is_packed_is_known_to_another(count: int) -> None:
    one, other = make(), make()
    add(one, 1, 1 + count)
    add(other, 1, 1 + count // 2)
    unpack(other, packed(one))
    assert all(has(other, each) for each in range(1 + max(0, count - HALF), 1 + count))


def test_a_damaged_record_adds_nothing_wrong() -> None:
    seen = make()
    unpack(seen, bytes(8) + b"\x01\x00\x00")
    assert packed(seen) == b""


def test_marks_tell_messages_apart() -> None:
    """By number, topic and payload, and where one ends and the next begins; nothing else counts."""
    chance = random.Random(1)
    parts = {
        (chance.randbytes(size), chance.randbytes(at), number)
        for size in (1, 8, 17)
        for at in (0, 1, 16)
        for number in (0, 1)
    }
    parts |= {(b"ab", b"c", 1), (b"a", b"bc", 1)}
    marks = {mark(Message.create(topic, payload, number=number)) for topic, payload, number in parts}
    assert len(marks) == len(parts)
    assert 0 not in marks
    assert mark(Message.create(b"t", b"p", number=5, qos=1)) == mark(Message.create(b"t", b"p", number=5, retain=True))

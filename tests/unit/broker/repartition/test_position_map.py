"""The map of positions from an old log to a new one, checked against plain sets."""

from __future__ import annotations

from array import array
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from broker.repartition.position_map import Needed, OldLog, Segment

POSITIONS = st.integers(0, 60)
SPANS = st.lists(st.tuples(POSITIONS, POSITIONS).map(lambda pair: (min(pair), max(pair))), max_size=5)


@given(st.lists(st.tuples(POSITIONS, SPANS), max_size=6), POSITIONS, st.integers(0, 10))
def test_what_is_wanted_is_all_that_somebody_wants(
    readers: list[tuple[int, list[tuple[int, int]]]], a: int, n: int
) -> None:
    wanted, plain = Needed(), set()
    for behind, holes in readers:
        holes.sort()
        wanted.add(behind, holes)
        everything = set(range(behind + 1, 100))
        plain |= everything - {at for hole, up_to in holes for at in range(hole + 1, up_to + 1)}
    assert wanted.overlaps(a, a + n) == bool(plain & set(range(a, a + n + 1)))
    assert wanted.overlaps(2**63, 2**63) == bool(readers)


BLOCKS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.booleans()), max_size=8)  # (gap, messages, goes)


@given(BLOCKS, st.integers(0, 50), st.integers(0, 5), st.integers(0, 3))
def test_places_rise_and_those_that_go_along_follow_each_other(
    blocks: list[tuple[int, int, bool]], behind: int, expected: int, more: int
) -> None:
    log = OldLog()
    going: list[int] = []
    end = 0
    for gap, count, goes in blocks:
        log.add(end + gap + 1, count)
        if goes:
            going += range(end + gap + 1, end + gap + 1 + count)
        end += gap + count
    log.last = end + more
    segment = Segment(log, array("I", [goes for _, _, goes in blocks]) if blocks else None, expected, behind)
    assert [segment.place(at) for at in going] == list(range(behind + 1, behind + 1 + len(going)))
    assert [segment.place_of_message(at) for at in going] == [segment.place(at) for at in going]
    others = set(range(1, log.last + 1)) - set(going)
    assert not any(segment.place_of_message(at) for at in others)
    # a cursor keeps the messages behind it
    for at in range(log.last + 1):
        assert segment.place(at) == behind + sum(each <= at for each in going)
    assert [segment.place(log.last + each) for each in range(1, expected + 1)] == list(
        accumulate([1] * expected, initial=behind + len(going))
    )[1:]
    assert segment.end == behind + len(going) + expected
    assert segment.place(2**64 - 1) == 2**64 - 1

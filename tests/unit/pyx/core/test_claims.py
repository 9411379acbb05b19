"""Bounds for all workers together (pyx.core.claims): exact, also with simultaneous claims."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import pytest

from pyx.core import claims
from pyx.core.claims import Claims
from pyx.core.counters import ROW_BYTES

WORKERS = 2
GRANTED = 5_000  # to each process: while both try, one may be granted all of them


@pytest.fixture
def rows() -> Iterator[list[memoryview]]:
    """Return counter rows that forked processes share, and bytes after them."""
    with mmap.mmap(-1, (WORKERS + 1) * ROW_BYTES) as shared:
        view = memoryview(shared)
        parts = [view[at * ROW_BYTES : (at + 1) * ROW_BYTES] for at in range(WORKERS + 1)]
        yield parts
        for part in (*parts, view):
            part.release()


@pytest.mark.parametrize("most", [1, 2, 100])
def test_the_bound_is_exact(most: int) -> None:
    shared = [bytearray(ROW_BYTES) for _ in range(WORKERS)]
    one, other = (Claims(shared, worker, claims.SESSIONS) for worker in range(WORKERS))
    assert all((one if number % 2 else other).take(most) for number in range(most))
    assert one.held == other.held == most
    assert not one.take(most)
    assert not other.take(most)
    assert one.held == most, "a refused claim leaves nothing"
    other.give_back()
    assert one.take(most)
    assert not other.take(most)


def test_zero_is_no_bound() -> None:
    claimed = Claims([bytearray(ROW_BYTES)], 0, claims.CONNECTIONS)
    assert all(claimed.take(0) for _ in range(100))
    assert claimed.held == 100


def test_a_count_is_replaced() -> None:
    shared = [bytearray(ROW_BYTES) for _ in range(WORKERS)]
    one, other = (Claims(shared, worker, claims.CONNECTIONS) for worker in range(WORKERS))
    one.set(3)
    other.set(4)
    assert one.held == 7
    one.set(0)
    assert other.held == 4


def test_kinds_are_counted_apart() -> None:
    row = bytearray(ROW_BYTES)
    Claims([row], 0, claims.CONNECTIONS).set(5)
    assert Claims([row], 0, claims.SESSIONS).held == 0


@pytest.mark.parametrize(("own", "what"), [(-1, 0), (1, 0), (0, -1), (0, 8)])
def test_what_is_not_there_is_refused(own: int, what: int) -> None:
    with pytest.raises(IndexError):
        Claims([bytearray(ROW_BYTES)], own, what)


def test_a_row_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="row"):
        Claims([bytearray(8)], 0, claims.CONNECTIONS)


def test_the_last_place_is_never_given_twice(rows: list[memoryview]) -> None:
    """Two processes claim one place: the one that has it finds no other process in it."""
    occupied = rows[WORKERS]
    children = []
    for worker in range(WORKERS):
        child = os.fork()
        if child == 0:
            os._exit(_claim_and_give_back(Claims(rows[:WORKERS], worker, claims.CONNECTIONS), occupied, worker))
        children.append(child)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert statuses == [0, 0], "the place was taken twice"
    assert Claims(rows[:WORKERS], 0, claims.CONNECTIONS).held == 0


def _claim_and_give_back(claimed: Claims, occupied: memoryview, worker: int) -> int:
    granted = 0
    while granted < GRANTED:
        if claimed.take(1):
            granted += 1
            occupied[0] = worker + 1
            for _ in range(10):
                if occupied[0] != worker + 1:
                    return 1
            claimed.give_back()
    return 0

"""Positions in the archive as text, and the start that a subscription requests."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.replay.offsets import OffsetError, RequestedStart, requested_start, tag_of
from pyx.delivery.replay import write_position

TAG = tag_of("an archive")
LAST = 1_900_000_000_000_000 << 8


@given(st.integers(1, LAST))
def test_a_position_is_read_as_it_was_written(number: int) -> None:
    text = write_position(TAG, number).decode()
    assert len(text) == 25
    assert requested_start([text], TAG, LAST) == RequestedStart(after=number, is_position=True)


def test_words() -> None:
    assert requested_start(["earliest"], TAG, LAST) == RequestedStart(0)
    assert requested_start(["latest"], TAG, LAST) == RequestedStart(is_latest=True)


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("1970-01-01T00:00:01Z", 1_000_000),
        ("1970-01-01t00:00:01z", 1_000_000),
        ("1970-01-01 00:00:01.5Z", 1_500_000),
        ("1970-01-01T01:00:01.000002+01:00", 1_000_002),
        ("2026-11-22T04:00:00.123456789Z", 1_795_320_000_123_456),
    ],
)
def test_a_time_is_behind_what_was_received_before_it(text: str, microseconds: int) -> None:
    assert requested_start([text], TAG, LAST) == RequestedStart(after=(microseconds << 8) - 1)


def test_a_time_to_come_is_the_end() -> None:
    assert requested_start(["2999-01-01T00:00:00Z"], TAG, LAST) == RequestedStart(is_latest=True)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([], "0 times"),
        (["earliest", "earliest"], "2 times"),
        (["Earliest"], "is no position"),
        ([""], "is no position"),
        (["1"], "is no position"),
        (["0" * 25], "is no position"),
        ([write_position(TAG, 5).decode().upper() + "\n"], "is no position"),
        ([write_position(TAG, 5).decode()[:-1] + "\u0663"], "is no position"),
        ([write_position(tag_of("another"), 5).decode()], "of another archive"),
        ([write_position(TAG, LAST + 1).decode()], "behind the end"),
        (["2026-02-31T00:00:00Z"], "no time of the calendar"),
        (["2026-02-03T00:00:00"], "is no position"),
        (["2026-02-03"], "is no position"),
        (["0001-01-01T00:00:00+23:00"], "no time of the calendar"),
    ],
)
def test_what_is_none(values: list[str], why: str) -> None:
    with pytest.raises(OffsetError, match=why):
        requested_start(values, TAG, LAST)


@given(st.text())
def test_any_text_is_something_or_an_error(text: str) -> None:
    with contextlib.suppress(OffsetError):
        assert requested_start([text], TAG, LAST).after <= LAST

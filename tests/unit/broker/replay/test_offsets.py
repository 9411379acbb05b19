"""Positions in the archive as text, and the start that a subscription requests."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.replay.offsets import (
    HOSTS_MAX,
    UNKNOWN,
    HostPosition,
    OffsetError,
    RequestedStart,
    requested_start,
    tag_of,
    write_positions,
)
from pyx.delivery.replay import write_position

TAG = tag_of("an archive")
LAST = 1_900_000_000_000_000 << 8


@given(st.integers(1, LAST))
def test_a_position_is_read_as_it_was_written(number: int) -> None:
    text = write_position(TAG, number).decode()
    assert len(text) == 25
    assert requested_start([text], TAG, LAST) == RequestedStart(positions=(HostPosition(TAG, 0, number),))


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


# ------------------------------------------------------------ positions over several hosts

HERE = HostPosition(TAG, 1, 0x1234)
THERE = HostPosition(tag_of("another"), 0xABCDEF, LAST - 1, waits=True)


def test_golden_position_of_hosts() -> None:
    text = write_positions([HERE, THERE])
    assert text == f"h1+000001{TAG[1:].decode()}{0x1234:016x}-abcdef{THERE.tag[1:].decode()}{LAST - 1:016x}"
    assert requested_start([text], TAG, LAST).positions == (HERE, THERE)


def test_a_position_of_a_host_is_read_where_there_is_no_archive() -> None:
    assert requested_start([write_positions([THERE])], b"", LAST).positions == (THERE,)
    with pytest.raises(OffsetError, match="of another archive"):
        requested_start([write_position(TAG, 5).decode()], b"", LAST)


@pytest.mark.parametrize("count", [1, HOSTS_MAX])
def test_as_many_hosts_as_there_may_be(count: int) -> None:
    positions = tuple(HostPosition(tag_of(str(at)), at, at) for at in range(count))
    assert requested_start([write_positions(positions)], TAG, LAST).positions == positions


def test_hosts_whose_archives_are_unknown_differ_by_number() -> None:
    positions = (HostPosition(UNKNOWN, 1, 5, True), HostPosition(UNKNOWN, 2, 5, True))
    assert requested_start([write_positions(positions)], TAG, LAST).positions == positions


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("h1", "cut off"),
        (write_positions([HERE])[:-1], "cut off"),
        (write_positions([HERE]) + "0", "cut off"),
        (write_positions([HERE]).replace("+", "*"), "damaged"),
        (write_positions([HERE]).upper().replace("H1", "h1").replace("1234", "12G4"), "damaged"),
        ("h2" + write_positions([HERE])[2:], "is no position"),
        (write_positions([HERE, HERE]), "names an archive twice"),
        (write_positions([HostPosition(tag_of(str(at)), at, at) for at in range(HOSTS_MAX + 1)]), "names 65 hosts"),
        (write_positions([HERE._replace(number=LAST + 1)]), "behind the end"),
    ],
)
def test_what_is_no_position_of_hosts(text: str, why: str) -> None:
    with pytest.raises(OffsetError, match=why):
        requested_start([text], TAG, LAST)


@given(st.text(alphabet="h12+-0123456789abcdef", max_size=70))
def test_any_text_is_a_start_or_an_error(text: str) -> None:
    for each in (text, "h1+" + text):
        with contextlib.suppress(OffsetError):
            requested_start([each], TAG, LAST)

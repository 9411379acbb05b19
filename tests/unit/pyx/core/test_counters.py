"""The counter row: its parts do not overlap, and a dead worker's counters are settled."""

from __future__ import annotations

import pytest

from pyx.core import counters
from pyx.core.counters import Row


def test_parts_of_a_row_do_not_overlap() -> None:
    """Every counter, histogram bucket and link slot has a place of its own."""
    row = Row()
    for index in range(len(counters.NAMES)):
        row.set(index, 1)
    for which in range(len(counters.HISTOGRAMS)):
        for bound in (*counters.BOUNDS_NS, counters.BOUNDS_NS[-1] + 1):
            row.observe(which, bound)
    for peer in range(64):
        row.set_link(peer, [peer * 10 + place for place in range(8)])
    assert set(row.as_dict().values()) == {1}
    for which in range(len(counters.HISTOGRAMS)):
        total, samples = row.histogram(which)
        assert total == sum(counters.BOUNDS_NS) + counters.BOUNDS_NS[-1] + 1
        assert samples == [1] * (len(counters.BOUNDS_NS) + 1)
    assert [row.link(peer) for peer in range(64)] == [[peer * 10 + place for place in range(8)] for peer in range(64)]


def test_a_bound_belongs_to_its_bucket() -> None:
    row = Row()
    row.observe(0, 0)
    row.observe(0, 1_000)
    row.observe(0, 1_001)
    assert row.histogram(0)[1][:3] == [2, 1, 0]


def test_places_that_do_not_exist() -> None:
    row = Row()
    for wrong in (
        lambda: row.get(len(counters.NAMES)),
        lambda: row.link(64),
        lambda: row.set_link(0, [1]),
        lambda: row.histogram(len(counters.HISTOGRAMS)),
        lambda: row.observe(-1, 1),
    ):
        with pytest.raises(IndexError):
            wrong()
    with pytest.raises(ValueError):
        Row(bytearray(counters.ROW_BYTES - 8))


def test_the_books_of_a_dead_worker_are_closed() -> None:
    """Gauges read 0, connections are closed, messages neither delivered nor dropped count as lost; the rest stays."""
    memory = bytearray(counters.ROW_BYTES)
    row = Row(memory)
    for name in ("connections", "sessions", "subscriptions", "retained_messages", "log_bytes"):
        row.set(counters.NAMES.index(name), 7)
    row.set(counters.HEARTBEAT, 5)
    row.set(counters.CONNECTIONS_OPENED, 9)
    row.set(counters.CONNECTIONS_CLOSED, 4)
    row.set(counters.MATCHED, 20)
    row.set(counters.DELIVERED_QOS1, 8)
    row.set(counters.DROPPED_QUEUE_FULL, 3)
    row.set(counters.BYTES_SENT, 1000)
    row.set_link(1, [1, 2, 3, 4, 5, 6, 7, 8])
    row.observe(0, 10)
    assert counters.settle_row(memory) == 9
    found = row.as_dict()
    assert not [name for index, name in enumerate(counters.NAMES) if counters.is_gauge(index) and found[name]]
    assert (found["connections_opened"], found["connections_closed"]) == (9, 9)
    assert found["dropped_worker_lost"] == 9
    assert (found["heartbeat"], found["bytes_sent"], found["matched"]) == (5, 1000, 20)
    assert row.link(1) == [1, 2, 3, 4, 5, 0, 0, 0]
    assert row.histogram(0)[0] == 10
    assert counters.settle_row(memory) == 0, "once is enough"


def test_a_worker_killed_between_two_steps_of_a_copy_owes_nothing() -> None:
    memory = bytearray(counters.ROW_BYTES)
    Row(memory).set(counters.DELIVERED_QOS0, 1)
    assert counters.settle_row(memory) == 0


def test_gauges_and_counters_are_told_apart() -> None:
    gauges = [name for index, name in enumerate(counters.NAMES) if counters.is_gauge(index)]
    assert gauges[0] == "incarnation"
    assert gauges[-1] == "bridges_connected"

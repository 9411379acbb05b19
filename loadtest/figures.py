"""Figures of a run: counter rows of its processes in shared memory, sums and differences of them, percentiles.

A row belongs to one process (`pyx.loadgen.ledger`: FIGURES, then HISTOGRAMS); durations are in nanoseconds there and in
microseconds here.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Final

from pyx.loadgen.ledger import FIGURES, HISTOGRAM_FIRST, HISTOGRAM_PLACES, HISTOGRAMS, ROW_PLACES, place_value

PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)


class Durations:
    """A histogram that was read: counts by place."""

    def __init__(self, counts: Sequence[int]) -> None:
        # only a few hundred of the 2,368 places are in use
        self._filled = [(place, count) for place, count in enumerate(counts) if count]
        self.count = sum(count for _, count in self._filled)

    def percentile(self, percent: float) -> float:
        """Return the microseconds not exceeded by `percent` percent, at most 1.6 % too high; 0 without samples."""
        wanted = self.count * percent / 100
        seen = 0
        for place, count in self._filled:
            seen += count
            if seen >= wanted:
                return float(place_value(place + 1)) / 1000
        return 0.0

    def most(self) -> float:
        """Return the longest, in microseconds, at most 1.6 % too high."""
        return self.percentile(100)

    def mean(self) -> float:
        """Return the mean in microseconds."""
        total = sum(count * (place_value(place) + place_value(place + 1)) / 2 for place, count in self._filled)
        return total / self.count / 1000 if self.count else 0.0


class Moment:
    """All rows at one moment, or the counts between two. Sums are computed on demand, so that a progress display four
    times a second does not take the broker's time.
    """

    def __init__(self, rows: Sequence[Sequence[int]], at: float, before: Sequence[Sequence[int]] = ()) -> None:
        self._rows = rows
        self._before = before
        self.at = at
        """Seconds, monotonic."""

    def __getitem__(self, figure: str) -> int:
        place = FIGURES.index(figure)
        return sum(row[place] for row in self._rows) - sum(row[place] for row in self._before)

    def durations(self, histogram: str) -> Durations:
        """Return the durations of everything since the beginning."""
        first = HISTOGRAM_FIRST + HISTOGRAMS.index(histogram) * HISTOGRAM_PLACES
        counts = _summed(self._rows, first)
        if self._before:
            counts = [now - then for now, then in zip(counts, _summed(self._before, first), strict=True)]
        return Durations(counts)

    def since(self, earlier: Moment) -> Moment:
        """Return the counts from `earlier` to this one; gauges (connected, late_now) become differences too."""
        return Moment(self._rows, self.at, earlier._rows)


def _summed(rows: Sequence[Sequence[int]], first: int) -> list[int]:
    parts = [row[first : first + HISTOGRAM_PLACES] for row in rows]
    return [sum(each) for each in zip(*parts, strict=True)] if len(parts) > 1 else list(parts[0])


class SharedFigures:
    """The shared memory of a run's processes: orders and how far each has heard, their rows, deliveries and messages
    sent.
    """

    ORDERS: Final = 8

    def __init__(self, processes: int, publishers: int) -> None:
        self.processes = processes
        self._publishers = publishers
        places = self.ORDERS + processes * (ROW_PLACES + publishers + 1) + publishers
        self._view = memoryview(mmap.mmap(-1, places * 8)).cast("Q")

    @property
    def orders(self) -> memoryview:
        """[phase, its beginning in ns]."""
        return self._view[: self.ORDERS]

    def row(self, process: int) -> memoryview:
        """ROW_PLACES numbers."""
        first = self.ORDERS + process * ROW_PLACES
        return self._view[first : first + ROW_PLACES]

    @property
    def deliveries(self) -> memoryview:
        """Deliveries per process, per publisher."""
        first = self.ORDERS + self.processes * ROW_PLACES
        return self._view[first : first + self.processes * self._publishers]

    @property
    def sent(self) -> memoryview:
        """Messages sent per publisher."""
        return self._view[len(self._view) - self._publishers :]

    @property
    def heard(self) -> memoryview:
        """Per process: the phase that it has begun."""
        first = self.ORDERS + self.processes * (ROW_PLACES + self._publishers)
        return self._view[first : first + self.processes]

    def moment(self, at: float) -> Moment:
        """Return all counts at this moment."""
        return Moment([memoryview(self.row(process).tobytes()).cast("Q") for process in range(self.processes)], at)

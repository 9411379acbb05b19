"""The time and the chance of one simulated world: both come from the seed, nothing from the machine."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

START = 1000.0
WALL_MS = 1_800_000_000_000


class Clock:
    """Events in the order of their time; between two of them nothing happens. Seconds."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = START
        self.events = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Call it then; calls of the same time in the order they were asked for."""
        self.events += 1
        heapq.heappush(self._heap, (max(when, self.now), self.events, call))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call it so much later."""
        self.at(self.now + seconds, call)

    def run_until(self, end: float, finished: Callable[[], bool] | None = None) -> bool:
        """Let time pass; True when `finished` said so before the end."""
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.now, _, call = heapq.heappop(heap)
            call()
            if finished is not None and finished():
                return True
        self.now = end
        return False

    def between(self, least: float, most: float) -> float:
        """A delay."""
        return least + (most - least) * self.random.random()

    def chance(self, probability: float) -> bool:
        """True as often as that."""
        return self.random.random() < probability

    @property
    def monotonic_ms(self) -> int:
        """What a worker's monotonic clock says."""
        return int(self.now * 1000)

    @property
    def wall_ms(self) -> int:
        """What its wall clock says."""
        return WALL_MS + int((self.now - START) * 1000)

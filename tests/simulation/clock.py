"""Time and randomness of one simulated world: both depend only on the seed, not on the machine."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

START = 1000.0
WALL_MS = 1_800_000_000_000


class Clock:
    """Runs events in the order of their time; nothing happens between two of them. Times are in seconds."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = START
        self.events = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Call it at that time; calls of the same time run in the order in which they were added."""
        self.events += 1
        heapq.heappush(self._heap, (max(when, self.now), self.events, call))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call it after that time."""
        self.at(self.now + seconds, call)

    def run_until(self, end: float, finished: Callable[[], bool] | None = None) -> bool:
        """Let time pass; return True if `finished` returned True before the end."""
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.now, _, call = heapq.heappop(heap)
            call()
            if finished is not None and finished():
                return True
        self.now = end
        return False

    def between(self, least: float, most: float) -> float:
        """Return a random delay."""
        return least + (most - least) * self.random.random()

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random.random() < probability

    @property
    def monotonic_ms(self) -> int:
        """A worker's monotonic clock."""
        return int(self.now * 1000)

    @property
    def broker_ms(self) -> int:
        """The broker's time (`shards.clock`): the same for all workers of a host."""
        return WALL_MS + int((self.now - START) * 1000)


class WallClock:
    """A wall clock with errors: it drifts, and is set now and then, forward and back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = clock.between(-0.1, 0.1)
        self._drift = clock.random.choice([0.0, 0.0, 0.01, -0.01])
        """Seconds per second."""

    @property
    def us(self) -> int:
        """Its time in microseconds."""
        passed = (self._clock.now - START) * (1 + self._drift)
        return WALL_MS * 1000 + int((passed + self._ahead) * 1_000_000)

    def step(self) -> float:
        """Set it forward or back; return by how many seconds."""
        seconds = self._clock.random.choice([0.0005, 0.01, 1.0, 60.0, 3600.0]) * self._clock.random.choice([-1, 1])
        self._ahead += seconds
        return seconds

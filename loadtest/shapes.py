"""Load shapes: the number of users over time. Selected by `--shape NAME`; without it locust's own -u and -r apply.

Each is a function of time alone: -u is the maximum number of users, -t the length of the run. All are abstract to
locust, which would otherwise use any shape that it finds in the locustfile.
"""

from __future__ import annotations

import argparse
import logging
from abc import abstractmethod
from typing import Final

from locust import LoadTestShape

_LOG: Final = logging.getLogger(__name__)

SPAWN_RATE_MAX: Final = 100.0
"""Users per second without -r: more than that in one process delays running users."""


class Shape(LoadTestShape):
    """A fraction of -u users at each moment of -t."""

    abstract = True
    use_common_options = True

    def __init__(self, options: argparse.Namespace) -> None:
        """options: locust's, read at every tick, because the web page changes them."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.options = options

    @abstractmethod
    def share(self, part: float) -> float:
        """Return the fraction of the maximum users (0 to 1) when this part (0 to 1) of the run is over."""

    def tick(self) -> tuple[int, float] | None:
        """Return (users, users started per second), or None when the run is over: at once without -t."""
        if not self.options.run_time:
            _LOG.error("a shape needs -t (on the page: Run time): how long the run is")
            return None
        seconds: float = self.get_run_time()  # type: ignore[no-untyped-call]
        part = seconds / self.options.run_time
        if part >= 1.0:
            return None
        most = self.options.num_users or 1
        rate = self.options.spawn_rate or min(SPAWN_RATE_MAX, most)
        return max(1, round(most * self.share(part))), float(rate)


class Ramp(Shape):
    """From one user to all, evenly: shows where problems begin."""

    abstract = True

    def share(self, part: float) -> float:
        """A straight line, which is at the top for the last tenth."""
        return min(1.0, part / 0.9)


class Steps(Shape):
    """Level after level, `--shape-steps` of them: each long enough to be examined by itself."""

    abstract = True

    def share(self, part: float) -> float:
        """1/n, 2/n, ... 1."""
        steps = self.options.shape_steps
        return float((int(part * steps) + 1) / steps)


class Spike(Shape):
    """A tenth of the users, all of them for the middle third, and a tenth again: shows lasting effects."""

    abstract = True

    def share(self, part: float) -> float:
        """Low, high, low."""
        return 1.0 if 1 / 3 <= part < 2 / 3 else 0.1


class Soak(Shape):
    """All users for long: up in the first twentieth of the run, then constant."""

    abstract = True

    def share(self, part: float) -> float:
        """Up, and level."""
        return min(1.0, part / 0.05)


SHAPES: Final[dict[str, type[Shape]]] = {"ramp": Ramp, "steps": Steps, "spike": Spike, "soak": Soak}

"""flood with a first process (the publisher) that sees the end of the run late, as on a busy machine.

python -m tests.loadtest.hard_of_hearing [arguments of flood]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import loadtest.generator
from loadtest.figures import SharedFigures
from loadtest.flood import main
from loadtest.generator import DRAIN, PUBLISH, Load, generate

_LATE_SECONDS = 0.5


class _Late:
    """The shared state of the processes, for a process that sees DRAIN and all later orders late."""

    def __init__(self, shared: SharedFigures) -> None:
        self._shared = shared
        self._hears_at = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shared, name)

    @property
    def orders(self) -> Sequence[int]:
        orders = list(self._shared.orders)
        if orders[0] >= DRAIN:
            self._hears_at = self._hears_at or time.monotonic() + _LATE_SECONDS
            if time.monotonic() < self._hears_at:
                orders[0] = PUBLISH
        return orders


def late(load: Load, shared: SharedFigures, process: int, answers: Connection) -> None:
    """Run one process of flood; the first one sees orders late."""
    generate(load, shared if process else _Late(shared), process, answers)  # type: ignore[arg-type]


if __name__ == "__main__":
    loadtest.generator.generate = late
    sys.exit(main())

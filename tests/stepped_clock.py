"""A wall clock that a test sets, for a broker in processes of its own: see stepped_clock.c.

clock = SteppedClock(tmp_path)
broker = BrokerProcess(4, environment=clock.environment)
clock.step(-3600)           # an hour back, for all its processes, from now on
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from tests.power.trace import compile_shim

__all__ = ["SteppedClock"]

_SOURCE = Path(__file__).with_suffix(".c")
_AHEAD = struct.Struct("q")


class SteppedClock:
    """The clock of one broker."""

    def __init__(self, directory: Path, seconds: float = 0.0) -> None:
        self._file = directory / "ahead"
        self._file.write_bytes(bytes(mmap.PAGESIZE))
        with self._file.open("r+b") as opened:
            self._page = mmap.mmap(opened.fileno(), 0)
        self.environment = {
            "LD_PRELOAD": str(compile_shim(directory, _SOURCE)),
            "STEPPED_CLOCK": str(self._file),
        }
        self.ahead = 0.0
        """Seconds by which it is ahead of the machine's clock."""
        self.step(seconds)

    def step(self, seconds: float) -> None:
        """Set the clock forward by `seconds`, or back if negative."""
        self.ahead += seconds
        _AHEAD.pack_into(self._page, 0, int(self.ahead * 1e9))

"""Time shared by the workers of a host: a cell for message numbers, and one broker's time.

The cell (`pyx.core.clock`) is eight bytes of shared memory that outlive every worker.

*The broker's time* is used to store and compare Message Expiry, Session Expiry and Will Delay: in milliseconds, the
same for all workers, also for those forked later. While the broker runs it advances with the monotonic clock, so a step
of the wall clock neither ends nor prolongs anything. From one run to the next it advances by the time that has passed
on the wall clock, and never backwards:

    DIR/clock.json      {"format": 1, "broker_ms": B, "wall_ms": W}: the broker's time was B at wall clock time W

    at a start          broker's time = B + max(0, wall clock - W); without the file: the wall clock

The file is written when the broker starts, when a step of the wall clock is seen (`look`), and when the broker stops.
So the broker's time is Unix time as long as nobody sets the clock, and differs from it by the sum of all steps after
that: something with an hour left before a step and a restart has an hour left after them. If the clock is set back
while the broker does not run (a board without a battery), that time does not count.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["FILE", "HostClock", "Kept", "keep", "kept"]

FILE = "clock.json"
FORMAT = 1
_STEP_MS = 1000
"""A smaller difference since the file was written is no step: it is the possible error over a restart."""
_CELL_BYTES = 8

Log = Callable[..., None]
Kept = tuple[int, int]
"""(B, W) of clock.json."""


def kept(data_dir: str) -> Kept | None:
    """Read clock.json; None: missing or damaged."""
    try:
        found = json.loads(Path(data_dir, FILE).read_text())
        if found["format"] == FORMAT:
            return int(found["broker_ms"]), int(found["wall_ms"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def keep(data_dir: str, times: Kept) -> None:
    """Write it, so that after a power cut the old or the new one exists. Raises OSError."""
    content = {"format": FORMAT, "broker_ms": times[0], "wall_ms": times[1]}
    part = Path(data_dir, FILE).with_suffix(".part")
    with open(part, "w", opener=lambda path, flags: os.open(path, flags | os.O_CLOEXEC, 0o600)) as written:
        written.write(json.dumps(content) + "\n")
        written.flush()
        os.fsync(written.fileno())
    part.rename(Path(data_dir, FILE))


class HostClock:
    """The clock of one broker, made before its first worker. `data_dir`: None with stores in memory."""

    def __init__(
        self,
        data_dir: str | None = None,
        log: Log = lambda *_, **__: None,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._data_dir = data_dir
        self._log = log
        self._wall = wall
        self._monotonic = monotonic
        self.cell = memoryview(mmap.mmap(-1, mmap.PAGESIZE))[:_CELL_BYTES]
        now = broker_ms = int(wall() * 1000)
        if data_dir is not None and (found := kept(data_dir)) is not None:
            broker_ms = found[0] + max(0, now - found[1])
        self.ahead_ms = broker_ms - int(monotonic() * 1000)
        """The broker's time minus the monotonic clock."""
        self._behind_ms = now - broker_ms
        """The wall clock minus the broker's time, as in the file."""
        self._keep(now)

    def look(self) -> None:
        """Check whether the wall clock was set; called every second or so."""
        now = int(self._wall() * 1000)
        step = now - self._broker_ms() - self._behind_ms
        if abs(step) >= _STEP_MS:
            self._behind_ms += step
            self._keep(now)
            self._log("warning", "clock_stepped", seconds=round(step / 1000, 3))

    def close(self) -> None:
        """Write the file when the broker stops."""
        self._keep(int(self._wall() * 1000))

    def _broker_ms(self) -> int:
        return int(self._monotonic() * 1000) + self.ahead_ms

    def _keep(self, now: int) -> None:
        if self._data_dir is None:
            return
        try:
            keep(self._data_dir, (self._broker_ms(), now))
        except OSError as error:  # the disk is full: the broker serves all the same
            self._log("warning", "clock_save_failed", data_dir=self._data_dir, reason=error.strerror or str(error))

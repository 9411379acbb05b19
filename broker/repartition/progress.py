"""Progress of work at the start: a line that is updated on a terminal, log lines otherwise."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.logs import Log

__all__ = ["StartProgress"]

_SECONDS = 1.0
_SECONDS_TERMINAL = 0.1


class StartProgress:
    """Progress of one kind of work. `text`: of the line, `event`: of the log lines."""

    def __init__(self, text: str, event: str, log: Log) -> None:
        self._began = self._said = time.monotonic()
        self._text = text
        self._event = event
        self._log = log
        self._is_terminal = sys.stderr.isatty()
        self._every = _SECONDS_TERMINAL if self._is_terminal else _SECONDS

    def __call__(self, records: int) -> None:
        """Report the number of records handled."""
        now = time.monotonic()
        if now - self._said < self._every:
            return
        self._said = now
        if self._is_terminal:
            print(f"\r{self._text}: {records} records, {self.seconds():.1f} s", end="", file=sys.stderr, flush=True)
        else:
            self._log.info(self._event, records=records, seconds=self.seconds())

    def seconds(self) -> float:
        """Return the seconds since it began."""
        return round(time.monotonic() - self._began, 3)

    def end(self) -> None:
        """Finish the line."""
        if self._is_terminal:
            print(f"\r{self._text}: done in {self.seconds():.1f} s\033[K", file=sys.stderr, flush=True)

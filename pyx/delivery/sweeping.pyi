"""Sweeping of the log: backlogs are bounded, and messages that no session needs any more are forgotten."""

from typing import final

@final
class Sweeping:
    """The sweep of one worker's log."""

    def sweep(self) -> None: ...

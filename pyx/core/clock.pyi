"""The clock of message numbers: hybrid, and one for all workers of a host."""

from typing import final

@final
class Clock:
    """The clock of one worker. `cell`: 8 writable, aligned bytes shared with its siblings; None: it has none."""

    us: int
    """Wall clock of this tick, microseconds since 1970."""
    @property
    def last(self) -> int:
        """The last time given out or heard."""

    @property
    def ms(self) -> int:
        """Milliseconds since 1970: the time of a number given out now. It never goes back."""

    def __new__(cls, cell: memoryview | None = None) -> Clock: ...
    def share(self, cell: memoryview) -> None: ...
    def behind(self, t: int) -> None: ...

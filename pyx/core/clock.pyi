"""The clock that message numbers come from: hybrid, and one for all workers of a host."""

from typing import final

@final
class Clock:
    """Of one worker. `cell`: 8 writable bytes that it shares with its siblings, aligned; None: it has none."""

    us: int
    """What the wall clock says in this tick, microseconds since 1970."""
    @property
    def last(self) -> int:
        """The last time given or heard."""

    @property
    def ms(self) -> int:
        """Milliseconds since 1970: the time that a number would have now. It never goes back."""

    def __new__(cls, cell: memoryview | None = None) -> Clock: ...
    def share(self, cell: memoryview) -> None: ...
    def behind(self, t: int) -> None: ...

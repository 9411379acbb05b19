"""A hierarchical timer wheel that is told the time. Times are ms of the caller's clock, 0 to 2^64-1."""

from collections.abc import Callable
from typing import final

@final
class TimerWheel:
    """Timers by deadline; `now_ms` is the time it starts at."""

    @property
    def now(self) -> int:
        """ms: up to where all timers have been looked at."""

    @property
    def count(self) -> int:
        """Timers scheduled."""

    @property
    def deadline(self) -> int | None:
        """ms: nothing happens before; None when there is no timer."""

    def __new__(cls, now_ms: int = 0) -> TimerWheel: ...
    def call(self, deadline_ms: int, callback: Callable[[], object]) -> TimerCall:
        """Call it when the time has come. The wheel keeps the handle alive until then."""

    def advance(self, now_ms: int) -> None:
        """Run the calls whose time has come; their exceptions come through, what is left is run by the next advance.

        Raises RuntimeError when the wheel has other timers than calls.
        """

@final
class TimerCall:
    """A call to come."""

    @property
    def scheduled(self) -> bool:
        """Whether it is still to come."""

    @property
    def deadline(self) -> int:
        """When it runs, in ms."""

    def cancel(self) -> bool:
        """False when it has been called or cancelled before."""

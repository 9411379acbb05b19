"""A hierarchical timer wheel that is given the time. Times are ms of the caller's clock, 0 to 2^64-1."""

from collections.abc import Callable
from typing import final

@final
class TimerWheel:
    """Timers by deadline; `now_ms` is the start time."""

    @property
    def now(self) -> int:
        """Time in ms up to which all timers were handled."""

    @property
    def count(self) -> int:
        """Number of timers scheduled."""

    @property
    def deadline(self) -> int | None:
        """Time in ms before which nothing happens; None when there is no timer."""

    def __new__(cls, now_ms: int = 0) -> TimerWheel: ...
    def call(self, deadline_ms: int, callback: Callable[[], object]) -> TimerCall:
        """Call `callback` at its time. The wheel keeps the handle alive until then."""

    def advance(self, now_ms: int) -> None:
        """Make the calls that are due; their exceptions propagate, remaining calls are made by the next advance.

        Raises RuntimeError when the wheel has other timers than calls.
        """

@final
class TimerCall:
    """A scheduled call."""

    @property
    def scheduled(self) -> bool:
        """Whether it is still scheduled."""

    @property
    def deadline(self) -> int:
        """Time of the call, in ms."""

    def cancel(self) -> bool:
        """Cancel the call; return False when it was made or cancelled before."""

"""Bounds that hold for all workers together."""

from collections.abc import Sequence
from typing import Any, Final, final

CONNECTIONS: Final[int]
SESSIONS: Final[int]

@final
class Claims:
    """The count of one kind. `rows`: the counter rows of all workers (writable, at least ROW_BYTES long); `own`: index
    of our own; `what`: CONNECTIONS or SESSIONS.
    """

    def __new__(cls, rows: Sequence[Any], own: int, what: int) -> Claims: ...
    def take(self, most: int) -> bool:
        """Claim one more if all workers together have less than `most` (0: any number); return if it was granted."""

    def give_back(self) -> None:
        """Give one back that we hold."""

    def set(self, count: int) -> None:
        """Set our own count."""

    @property
    def held(self) -> int:
        """The count of all workers together."""

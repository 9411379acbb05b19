"""What all workers together may have at most."""

from collections.abc import Sequence
from typing import Any, Final, final

CONNECTIONS: Final[int]
SESSIONS: Final[int]

@final
class Claims:
    """`rows`: the counter rows of all workers (writable, at least ROW_BYTES long); `own`: which is ours; `what`:
    CONNECTIONS or SESSIONS.
    """

    def __new__(cls, rows: Sequence[Any], own: int, what: int) -> Claims: ...
    def take(self, most: int) -> bool:
        """One more of ours, if all together have less than `most` (0: any number)."""

    def set(self, count: int) -> None:
        """So many are ours."""

    @property
    def held(self) -> int:
        """Those of all workers together."""

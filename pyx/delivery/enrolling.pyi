"""Members of share groups."""

from collections.abc import Callable, Iterator
from typing import final

@final
class Enrolling:
    """The members of this worker's share groups."""

    strategy_of: Callable[[bytes, bytes], int] | None
    def strategies_changed(self) -> Iterator[None]: ...
    def look_again(self) -> None: ...

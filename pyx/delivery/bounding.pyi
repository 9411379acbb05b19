"""How much waits for sessions that are behind: counted, bounded and forgotten."""

from typing import final

from pyx.delivery.session import Session

@final
class Bounding:
    """Counts, bounds and forgets."""

    def abandon(self) -> None: ...
    slice: int
    def backlog(self, s: Session) -> tuple[int, int]: ...
    def sweep(self) -> None: ...
    def set_rule(self, s: Session, number: int) -> None: ...

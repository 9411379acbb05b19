"""How much waits for sessions that are behind: counted and bounded."""

from typing import final

from pyx.delivery.session import Session

@final
class Bounding:
    """Counts and bounds."""

    def abandon(self) -> None: ...
    slice: int
    def backlog(self, s: Session) -> tuple[int, int]: ...
    def set_rule(self, s: Session, number: int) -> None: ...

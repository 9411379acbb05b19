"""Amounts queued for sessions that are behind, and their bounds."""

from typing import final

from pyx.delivery.session import Session

@final
class Bounding:
    """The amounts queued for the sessions of one worker, and their bounds."""

    def abandon(self) -> None: ...
    slice: int
    def backlog(self, s: Session) -> tuple[int, int]: ...
    def set_rule(self, s: Session, number: int) -> None: ...

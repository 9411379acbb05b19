"""Sessions that move to another host."""

from typing import final

from pyx.delivery.session import Session

@final
class Departure:
    """What a session without a connection has for its client, page by page."""

    session: Session
    messages: int
    def page(self, most: int) -> bytes | None: ...
    def gone(self) -> None: ...

@final
class Moving:
    """Packs and takes in sessions."""

    def leave(self, s: Session) -> Departure: ...
    def take(self, s: Session, page: bytes, ahead: int, seen: set[int], since: int) -> None: ...
    def take_late(self, s: Session, page: bytes, ahead: int, seen: set[int], before: int) -> None: ...
    def serve(self, s: Session) -> None: ...

"""The end of sessions: see the .pyx."""

from typing import final

from pyx.delivery.session import Session

@final
class Remains:
    """The names and shares of ended sessions or subscriptions, still to be cleared."""

    def __new__(cls) -> Remains: ...
    def __len__(self) -> int: ...

@final
class Ending:
    """The end of sessions, and its announcement to siblings."""

    def end_session(self, s: Session, remains: Remains | None = None) -> None: ...
    def clear(self, remains: Remains, most: int) -> list[bytes]: ...
    @property
    def shares_left(self) -> int: ...

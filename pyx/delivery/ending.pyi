"""How sessions end: see the .pyx."""

from typing import final

from pyx.delivery.session import Session

@final
class Remains:
    """What sessions that have ended, or subscriptions that have, are still to be cleared of."""

    def __new__(cls) -> Remains: ...
    def __len__(self) -> int: ...

@final
class Ending:
    """Ends sessions, and tells of it."""

    def end_session(self, s: Session, remains: Remains | None = None) -> None: ...
    def clear(self, remains: Remains, most: int) -> list[bytes]: ...
    @property
    def shares_left(self) -> int: ...

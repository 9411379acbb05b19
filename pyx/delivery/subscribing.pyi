"""Begin, replacement and end of subscriptions; sessions going online and offline."""

from collections.abc import Iterable
from typing import final

from pyx.delivery.connection import Connection
from pyx.delivery.ending import Remains
from pyx.delivery.session import Session

@final
class Subscribing:
    """The subscriptions of the sessions of one worker, and their connections."""

    def subscribe(
        self, s: Session, text: bytes, options: int, identifier: int = 0, group: bytes | None = None
    ) -> bool: ...
    def unsubscribe(
        self, s: Session, text: bytes, group: bytes | None = None, remains: Remains | None = None
    ) -> bool: ...
    def since(self, s: Session, text: bytes) -> tuple[int, list[tuple[int, int, int]]]: ...
    def terms(self, s: Session, text: bytes, group: bytes | None = None) -> tuple[int, int] | None: ...
    def has(self, s: Session, text: bytes, group: bytes | None = None) -> bool: ...
    def restore_subscription(
        self,
        s: Session,
        text: bytes,
        options: int,
        identifier: int,
        group: bytes | None,
        since: int,
        formers: Iterable[tuple[int, int, int]] = (),
    ) -> None: ...
    def attach(self, s: Session, conn: Connection) -> None: ...
    def detach(self, s: Session, remains: Remains | None = None) -> None: ...

"""Restoring of sessions after a start."""

from typing import final

from pyx.delivery.session import Session
from pyx.protocol.message import Message

@final
class Restoring:
    """Restores sessions from their records."""

    def restore(
        self,
        s: Session,
        window: bytes | None,
        queued: dict[int, tuple[int, int, bytes | None, Message]],
        messages: dict[int, Message],
    ) -> None: ...

def window_positions(window: bytes) -> list[int]: ...
def unpack_message(value: bytes) -> Message: ...
def unpack_queued(value: bytes) -> tuple[int, int, bytes | None, Message]: ...

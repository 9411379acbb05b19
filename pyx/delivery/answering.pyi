"""Answers: they leave in the order of the packets they answer, when what they promise is so."""

from collections.abc import Callable
from typing import final

from pyx.delivery.connection import Connection

@final
class Answering:
    """Puts answers into outboxes, or into the rings where they wait."""

    def abandon(self) -> None: ...
    def answer_packet(
        self,
        conn: Connection,
        packet: bytes,
        interest: int = 0,
        then: Callable[[], object] | None = None,
        unstored: Callable[[Connection], bytes | None] | None = None,
    ) -> None: ...

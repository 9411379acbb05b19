"""Acks and other answers: they are sent in the order of the packets they answer, when their conditions are met."""

from collections.abc import Callable
from typing import final

from pyx.delivery.connection import Connection

@final
class Answering:
    """The answers of one worker: put into outboxes, or into rings where they wait."""

    def abandon(self) -> None: ...
    def answer_packet(
        self,
        conn: Connection,
        packet: bytes,
        interest: int = 0,
        then: Callable[[], object] | None = None,
        unstored: Callable[[Connection], bytes | None] | None = None,
    ) -> None: ...
    def when_known(self, interest: int, then: Callable[[], object]) -> None: ...

"""Answers that are decided after their packet."""

from collections.abc import Callable
from typing import Any, final

from pyx.delivery.connection import Connection

@final
class LateAnswers:
    """The answers of one worker that are filled in, or refused, after their packet."""

    def awaiting_answers(self) -> list[Connection]: ...
    def refuse_unstored(self, conn: Connection, workers: int) -> None: ...
    def answer_later(self, conn: Connection) -> list[Any]: ...
    def settle_answer(
        self,
        conn: Connection,
        answer: list[Any],
        packet: bytes,
        then: Callable[[], object] | None = None,
        unstored: Callable[[Connection], bytes | None] | None = None,
    ) -> None: ...

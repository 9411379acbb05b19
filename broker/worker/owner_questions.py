"""What a worker asks the control process about owners of client ids, and is told (`broker.cluster.owner_messages`)."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from broker.cluster.owner_messages import (
    PACKET_BYTES_MAX,
    OwnerAnswer,
    OwnerRequest,
    RequestKind,
    Standing,
    decode_answers,
    encode_requests,
)
from pyx.core.work import STEP, callback, spend

if TYPE_CHECKING:
    from broker.context.context import Context

__all__ = ["OwnerQuestion", "OwnerQuestions"]

_ANSWER_SECONDS: Final = 3.0
"""Time that the control process has for an answer: more than a call of etcd."""
_PACKETS: Final = 8


class OwnerQuestion(Protocol):
    """A question about a client id. epoch: that it is taken from, 0 in a claim."""

    client_id: str
    kind: RequestKind
    epoch: int
    due: float
    """Set here."""


Question = TypeVar("Question", bound=OwnerQuestion)


class OwnerQuestions(Generic[Question]):
    """The questions of one worker. answered: called with each answer; one that does not come in time is not known."""

    def __init__(
        self,
        context: Context,
        control: socket.socket,
        answered: Callable[[Question, OwnerAnswer], None],
        stands: Callable[[Standing], None],
    ) -> None:
        self._context = context
        self._control = control
        self._answered = answered
        self._stands = stands
        self._numbers = itertools.count(1)
        self._asked: dict[int, Question] = {}
        """By number, the earliest first."""

    def ask(self, *questions: Question) -> None:
        """Ask; several travel together."""
        due, requests = self._context.router.state.now_ms / 1000 + _ANSWER_SECONDS, []
        for question in questions:
            number = next(self._numbers)
            question.due = due
            self._asked[number] = question
            requests.append(OwnerRequest(number, question.kind, question.epoch, question.client_id))
        self._send(requests)

    def _send(self, requests: list[OwnerRequest]) -> None:
        spend(len(requests) * STEP)
        for packet in encode_requests(requests):
            try:
                self._control.send(packet)
            except OSError:  # the control process is down, or behind: no answer comes in time
                return

    @callback("watched")
    def receive(self) -> None:
        """Take what the control process says."""
        for _ in range(_PACKETS):
            try:
                packet = self._control.recv(PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            if not packet:  # the supervisor has gone, and this process goes with it
                return
            try:
                standing, answers = decode_answers(packet)
            except (ValueError, struct.error) as error:
                self._context.defect(None, error)
                continue
            self._stands(standing)
            spend(len(answers) * STEP)
            for answer in answers:
                question = self._asked.pop(answer.number, None)
                if question is not None:
                    self._context.guard_client(question.client_id, self._answered, question, answer)

    def tick(self, now: float) -> None:
        """Give up what is due."""
        while self._asked:
            number, question = next(iter(self._asked.items()))
            if question.due > now:
                return
            del self._asked[number]
            self._context.guard_client(question.client_id, self._answered, question, OwnerAnswer(number, False, 0, ""))

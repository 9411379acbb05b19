"""Who owns a client id, for somebody who only wants to know (`broker.clients.client_requests`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker.clients.client_requests import KnownOwner
from broker.cluster.owner_messages import OwnerAnswer, RequestKind

if TYPE_CHECKING:
    from broker.worker.other_owners import OtherOwners

__all__ = ["UNDER_WAY_MAX", "Look", "OwnerLooks"]

UNDER_WAY_MAX: Final = 16
"""Questions that are not answered yet; others wait for them."""


class Look:
    """A question for the control process. then: called with the owner."""

    __slots__ = ("client_id", "due", "epoch", "kind", "then")

    def __init__(self, client_id: str, then: Callable[[KnownOwner | None], None]) -> None:
        self.client_id = client_id
        self.then = then
        self.kind = RequestKind.LOOK
        self.epoch = 0
        self.due = 0.0


class OwnerLooks:
    """The looks of one worker: UNDER_WAY_MAX at a time, so that they take no room from questions that decide who owns a
    client id. ask: puts a question to the control process.
    """

    def __init__(self, ask: Callable[[Look], None], others: OtherOwners) -> None:
        self._ask = ask
        self._others = others
        self._under_way = 0
        self._waiting: deque[Look] = deque()

    def find(self, client_id: str, then: Callable[[KnownOwner | None], None]) -> None:
        """Implements `broker.clients.client_requests.OwnerFinder`."""
        self._waiting.append(Look(client_id, then))
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._under_way < UNDER_WAY_MAX:
            self._under_way += 1
            self._ask(self._waiting.popleft())

    def answered(self, look: Look, answer: OwnerAnswer) -> None:
        """Take the answer of the control process. Without one, those that wait are not asked either."""
        self._under_way -= 1
        if answer.is_known:
            owner = KnownOwner(answer.node, self._others.client_address_of(answer.node), answer.epoch)
            self._go_on()
            look.then(owner)
            return
        waiting, self._waiting = self._waiting, deque()
        for each in (look, *waiting):
            each.then(None)

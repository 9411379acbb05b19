"""Who owns a client id, for somebody who only wants to know (`broker.clients.client_requests`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.clients.client_requests import KnownOwner
from broker.cluster.owner_messages import OwnerAnswer, RequestKind

if TYPE_CHECKING:
    from broker.context.context import Context
    from broker.context.sessions import Sessions
    from broker.worker.other_owners import OtherOwners

__all__ = ["Look", "OwnerLooks"]


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
    """The looks of one worker. ask: puts a question to the control process."""

    def __init__(self, context: Context, sessions: Sessions, ask: Callable[[Look], None], others: OtherOwners) -> None:
        self._context = context
        self._sessions = sessions
        self._ask = ask
        self._others = others

    def find(self, client_id: str, then: Callable[[KnownOwner | None], None]) -> None:
        """Implements `broker.clients.client_requests.OwnerFinder`."""
        session = self._sessions.get(client_id)
        if session is not None and session.details.epoch:
            then(self._known(self._context.settings.cluster.node_id, session.details.epoch))
        else:
            self._ask(Look(client_id, then))

    def answered(self, look: Look, answer: OwnerAnswer) -> None:
        """Take the answer of the control process."""
        look.then(self._known(answer.node, answer.epoch) if answer.is_known else None)

    def _known(self, node: str, epoch: int) -> KnownOwner:
        return KnownOwner(node, self._others.client_address_of(node), epoch)

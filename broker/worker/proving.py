"""Client ids of which it is not certain that this host owns them: their owner is asked for until it is known.

A host that has asked to take a client id, and has not heard the answer, may own it. Then the former owner does not know
that: it hears it as soon as this host does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.worker.owner_wait import OwnerWait, nothing_decided

if TYPE_CHECKING:
    from broker.context.context import Context
    from broker.context.sessions import Sessions

__all__ = ["Proving"]

_RETRY_SECONDS: Final = 5.0
_PAGE: Final = 200


class Proving:
    """Those of one worker. ask: asks for owners. is_decided: whether a CONNECT finds out who owns a client id anyway.
    proven(wait, epoch): called with the epoch of this host's ownership; 0: it is not known; None: the host that the
    wait names as the former one is the owner.
    """

    def __init__(
        self,
        context: Context,
        sessions: Sessions,
        ask: Callable[..., None],
        is_decided: Callable[[str], bool],
        proven: Callable[[OwnerWait, int | None], None],
    ) -> None:
        self._context = context
        self._sessions = sessions
        self._ask = ask
        self._is_decided = is_decided
        self._proven = proven
        self._waiting: dict[str, None] = {}
        """Client ids whose owner is asked for, the earliest first."""
        self._unheard: dict[str, str] = {}
        """By client id: the host from which it may have been taken."""
        self._asked = 0
        self._retry_at = 0.0
        self.is_reachable = True
        """Whether the coordinator has answered the last question."""

    def add(self, client_id: str) -> None:
        """Ask for the owner of a client id soon."""
        self._waiting[client_id] = None

    def add_later(self, client_id: str) -> None:
        """Ask for it after a while."""
        self._context.call_later(_RETRY_SECONDS, partial(self.add, client_id))

    def add_unknown(self, client_id: str) -> None:
        """Ask who owns a client id if that is not known; its session may have to be handed over."""
        session = self._sessions.get(client_id)
        if (session is not None and not session.details.epoch) or client_id in self._unheard:
            self.add(client_id)

    def add_all(self) -> None:
        """Claim the client ids of all sessions anew."""
        self._context.in_pieces(self._add_all())

    def _add_all(self) -> Iterator[None]:
        for at, client_id in enumerate(self._sessions.clients(), 1):
            session = self._sessions.get(client_id)
            if session is not None:
                session.details.epoch = 0
                self.add(client_id)
            if at % _PAGE == 0:
                yield

    def take_unheard(self, client_id: str, former: str) -> None:
        """Note that a client id may have been taken from this host, with or without a session."""
        self._unheard[client_id] = former
        self.add(client_id)

    def former_of(self, client_id: str) -> str:
        """Return, once, the host that does not know that a client id was taken from it; "": there is none."""
        return self._unheard.pop(client_id, "")

    def tick(self, now: float) -> None:
        """Ask for some that wait."""
        if not self._waiting or self._asked or not (self.is_reachable or now >= self._retry_at):
            return
        self._retry_at = now + _RETRY_SECONDS
        waits = []
        for _ in range(min(_PAGE, len(self._waiting))):
            client_id = next(iter(self._waiting))
            del self._waiting[client_id]
            session = self._sessions.get(client_id)
            is_doubtful = session is not None and not session.details.epoch
            if (is_doubtful or client_id in self._unheard) and not self._is_decided(client_id):
                wait = OwnerWait(client_id, nothing_decided)
                wait.then = partial(self._answered, wait)
                waits.append(wait)
        self._asked = len(waits)
        self._ask(*waits)

    def _answered(self, wait: OwnerWait, epoch: int | None) -> None:
        self._asked = max(0, self._asked - 1)
        if not self._is_decided(wait.client_id):  # else that finds it out
            self._proven(wait, epoch)

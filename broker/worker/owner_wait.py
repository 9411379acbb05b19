"""Somebody who waits for the owner of a client id, and what becomes of the session at the one before."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from broker.cluster.owner_messages import RequestKind

if TYPE_CHECKING:
    from broker.clients.authenticating import ConnectAttempt

__all__ = ["Fate", "OwnerWait", "nothing_decided"]


class Fate(IntEnum):
    """What becomes of a session at the former owner."""

    STAYS = 0
    CLEAN_START = 1
    """Its client starts anew: it ends."""
    MOVED = 2
    """The new owner has it."""
    NOTHING = 3
    """There was none."""


class OwnerWait:
    """Somebody who waits for the owner of a client id. then: called with the epoch of this host's ownership; 0: it is
    unproven. None: another host keeps it. attempt: the CONNECT that waits, for which it is taken from another host.
    """

    __slots__ = (
        "attempt", "authentication", "client_id", "due", "epoch", "fate", "former", "kind", "since", "then", "tries",
        "username",
    )  # fmt: skip

    def __init__(
        self,
        client_id: str,
        then: Callable[[int | None], None],
        attempt: ConnectAttempt | None = None,
        fate: Fate = Fate.STAYS,
    ) -> None:
        self.client_id = client_id
        self.then = then
        self.attempt = attempt
        self.since = 0.0
        self.username: str | None = None
        self.authentication: dict[str, Any] = {}
        self.fate = fate
        self.former = ""
        """The host from which it is taken."""
        self.kind = RequestKind.CLAIM
        self.epoch = 0
        self.tries = 0
        self.due = 0.0


def nothing_decided(_epoch: int | None) -> None:
    """Do nothing: what a wait does until it is told."""

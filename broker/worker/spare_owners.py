"""Client ids that this host owns and has no session for: kept for a while, because a client may come back; then they
are released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.cluster.owner_messages import RequestKind

if TYPE_CHECKING:
    from broker.context.context import Context

__all__ = ["Release", "SpareOwners"]

_SECONDS: Final = 10.0
_PAGE: Final = 200


class Release:
    """A question (`broker.worker.owner_questions`): release this client id."""

    __slots__ = ("client_id", "due", "epoch", "kind")

    def __init__(self, client_id: str, epoch: int) -> None:
        self.client_id = client_id
        self.epoch = epoch
        self.kind = RequestKind.RELEASE
        self.due = 0.0


class SpareOwners:
    """Those of one worker. is_needed: whether there is a session for a client id, or will be. ask: asks for
    releases.
    """

    def __init__(
        self, context: Context, is_needed: Callable[[str, int], bool], ask: Callable[[list[Release]], None]
    ) -> None:
        self._context = context
        self._is_needed = is_needed
        self._ask = ask
        self._spare: dict[str, tuple[int, float]] = {}
        """Epochs, and since when; the earliest first."""
        self._is_releasing = False

    def epoch_of(self, client_id: str) -> int:
        """Return the epoch of a client id, 0 if it is not here."""
        found = self._spare.get(client_id)
        return 0 if found is None else found[0]

    def keep(self, client_id: str, epoch: int) -> None:
        """Keep a client id for a while."""
        self._spare.pop(client_id, None)
        self._spare[client_id] = epoch, self._now()

    def forget_before(self, client_id: str, epoch: int) -> None:
        """Forget a client id that another host owns since this epoch."""
        if 0 < self.epoch_of(client_id) < epoch:
            del self._spare[client_id]

    def clear(self) -> None:
        """Forget all: they have ended with the lease."""
        self._spare.clear()

    def _now(self) -> float:
        return self._context.router.state.now_ms / 1000

    def tick(self) -> None:
        """Release what nobody needs."""
        if not self._is_releasing:
            self._context.in_pieces(self._release())

    def _release(self) -> Iterator[None]:
        self._is_releasing = True
        try:
            while releases := self._due():
                self._ask(releases)
                yield
        finally:
            self._is_releasing = False

    def _due(self) -> list[Release]:
        releases: list[Release] = []
        until = self._now() - _SECONDS
        for _ in range(_PAGE):
            client_id = next(iter(self._spare), None)
            if client_id is None or self._spare[client_id][1] > until:
                break
            epoch, _ = self._spare.pop(client_id)
            if not self._is_needed(client_id, epoch):
                releases.append(Release(client_id, epoch))
        return releases

    def answered(self, release: Release, is_known: bool) -> None:
        """Ask again for a release that may not have been carried out. Its epoch is not used any more."""
        if not is_known:
            self._context.call_later(_SECONDS, partial(self._ask, [release]))

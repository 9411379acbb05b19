"""Long work in pieces: one at the end of each tick, in turn.

What a client or a timer causes may concern thousands of things. Its first piece is done at once, and where that is not
all the rest waits here. `RouterState.divided` says to whoever turns the wheel that there is more, so that it does not
sleep.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyx.delivery.connection import Connection
    from pyx.delivery.router import Router

__all__ = ["AT_ONCE", "Piecework"]

AT_ONCE = 500
"""Subscriptions in a piece: a few milliseconds."""


class Piecework:
    """Of one worker."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._works: deque[tuple[Iterator[None], Callable[[Exception], object]]] = deque()

    def add(self, pieces: Iterator[None], failed: Callable[[Exception], object]) -> None:
        """Each step of `pieces` is one, and the first of them is for the next tick. An error is an end: `failed` is
        called with it.
        """
        self._works.append((pieces, failed))
        self._router.state.divided = True

    def begin(self, pieces: Iterator[None], failed: Callable[[Exception], object]) -> None:
        """As `add`, and the first piece is done now."""
        for _ in pieces:
            self.add(pieces, failed)
            return

    def answer(self, conn: Connection, pieces: Iterator[None]) -> None:
        """A packet of this connection: the first piece now. Until the last one no further packet of it is read; with
        the connection the rest ends as well.
        """
        session = conn.session
        for _ in pieces:
            conn.busy += 1
            conn.paused = True
            self.add(self._of_packet(conn, session, pieces), lambda error: self._router.state.fail(conn, error))
            return

    def _of_packet(self, conn: Connection, session: object, pieces: Iterator[None]) -> Iterator[None]:
        try:
            while conn.session is session:
                if next(pieces, self) is self:
                    break
                yield
        finally:
            conn.busy -= 1
            if not conn.busy:
                self._router.state.resumed.append(conn)

    def run(self) -> bool:
        """Do one piece. False: that was the last one there is."""
        if self._works:
            pieces, failed = self._works.popleft()
            try:
                for _ in pieces:
                    self._works.append((pieces, failed))
                    break
            except Exception as error:  # noqa: BLE001  the one door
                failed(error)
        return bool(self._works)

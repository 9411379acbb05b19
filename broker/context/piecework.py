"""Long work in pieces: one piece at the end of each tick, in turn.

A request or a timer may concern thousands of things. Its first piece is done at once, and the rest waits here.
`RouterState.divided` tells the loop that there is more to do, so that it does not
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
"""Subscriptions per piece: a few milliseconds."""


class Piecework:
    """The work in pieces of one worker."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._works: deque[tuple[Iterator[None], Callable[[Exception], object]]] = deque()

    def add(self, pieces: Iterator[None], failed: Callable[[Exception], object]) -> None:
        """Queue work: each step of `pieces` is one piece, the first for the next tick. An error ends it, and is passed
        to `failed`.
        """
        self._works.append((pieces, failed))
        self._router.state.divided = True

    def begin(self, pieces: Iterator[None], failed: Callable[[Exception], object]) -> None:
        """Do the first piece now, and `add` the rest."""
        for _ in pieces:
            self.add(pieces, failed)
            return

    def answer(self, conn: Connection, pieces: Iterator[None]) -> None:
        """Process a packet of this connection: the first piece now. The connection's next packet is read after the last
        piece; if the connection ends, so does the work.
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
        """Do one piece. Return False if none is left."""
        if self._works:
            pieces, failed = self._works.popleft()
            try:
                for _ in pieces:
                    self._works.append((pieces, failed))
                    break
            except Exception as error:  # noqa: BLE001  the one door
                failed(error)
        return bool(self._works)

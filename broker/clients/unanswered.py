"""SUBSCRIBEs that ask for retained messages, until they are answered: their SUBACKs may wait for siblings and the disk,
and messages are sent live meanwhile. If the connection ends before the SUBACK, a lasting session has the subscriptions
all the same: the retained messages are asked for again on its next connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyx.core.work import STEP, spend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.context.context import Context
    from broker.context.sessions import Asks, Details
    from pyx.delivery.connection import Connection
    from pyx.delivery.session import Session

__all__ = ["Unanswered"]


class Unanswered:
    """The unanswered SUBSCRIBEs of each session that has some."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._windows = context.router.windows
        self._asks: dict[Session, list[Asks]] = {}

    def begin(self, session: Session) -> Asks:
        """Note a SUBSCRIBE; return what it asks for, nothing yet."""
        asks: Asks = []
        if session not in self._asks:
            session.watch()
        self._asks.setdefault(session, []).append(asks)
        return asks

    def ask(self, session: Session, asks: Asks, filters: list[bytes]) -> None:
        """Add filters that have just been subscribed to what a SUBSCRIBE asks for. A message that is sent live from now
        on is newer than what will be found retained: no older one of its topic may follow it.
        """
        asks.append((session.ask(self._windows.position), filters))

    def answered(self, session: Session, asks: Asks) -> None:
        """Note that a SUBSCRIBE has been answered."""
        waiting = self._asks.get(session, [])
        for number, each in enumerate(waiting):
            spend(STEP)
            if each is asks:
                del waiting[number]
                break
        if not waiting and self._asks.pop(session, None) is not None:
            session.unwatch()

    def interrupt(self, session: Session) -> None:
        """Note that the connection on which they came has ended: none of them will be answered."""
        waiting = self._asks.pop(session, None)
        if waiting is not None:
            details: Details = session.details
            details.interrupted = (details.interrupted or []) + waiting
            session.unwatch()

    def resume(self, session: Session, send: Callable[[Session, Asks], None]) -> None:
        """Ask again for what interrupted SUBSCRIBEs have asked for: the session has a connection again."""
        conn = session.connection
        if session.details.interrupted is not None and conn is not None:
            self._context.piecework.answer(conn, self._ask_again(conn, session, send))

    def _ask_again(self, conn: Connection, session: Session, send: Callable[[Session, Asks], None]) -> Iterator[None]:
        details: Details = session.details
        asks = self.begin(session)
        while details.interrupted:
            interrupted = details.interrupted[-1]
            if not interrupted:
                details.interrupted.pop()
                continue
            if asks:
                yield
            _, filters = interrupted.pop()
            spend(len(filters) * STEP)
            self.ask(session, asks, filters)
        details.interrupted = None
        # as for a SUBSCRIBE: what is on its way to the owners of the topics must have arrived before they are asked
        interest = self._context.another_interest_number()
        self._context.router.answering.answer_packet(conn, b"", interest, lambda: send(session, asks))

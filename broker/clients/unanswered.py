"""SUBSCRIBEs that ask for retained messages, until they are answered: their SUBACKs may wait for siblings and the disk,
and messages are sent live meanwhile. If the connection ends before the SUBACK, a lasting session has the subscriptions
all the same: the retained messages are asked for again on its next connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.context.piecework import AT_ONCE
from pyx.core.work import STEP, spend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.context.context import Context
    from broker.context.sessions import Asks, Details
    from pyx.delivery.connection import Connection
    from pyx.delivery.session import Session

__all__ = ["Unanswered"]


class Unanswered:
    """The number of such SUBSCRIBEs of each session that has one."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._windows = context.router.windows
        self._counts: dict[Session, int] = {}

    def begin(self, session: Session) -> None:
        """Note a SUBSCRIBE."""
        before = self._counts.get(session, 0)
        if not before:
            session.watch()
        self._counts[session] = before + 1

    def ask(self, session: Session, filters: list[bytes]) -> int:
        """Return a number for filters that have just been subscribed. A message that is sent live from now on is newer
        than what will be found retained: no older one of its topic may follow it.
        """
        details: Details = session.details
        if details.unanswered is None:
            details.unanswered = {}
        details.unanswered |= dict.fromkeys(filters)
        return session.ask(self._windows.position)

    def answered(self, session: Session) -> None:
        """Note that a SUBSCRIBE has been answered."""
        before = self._counts.get(session, 0)
        if before > 1:
            self._counts[session] = before - 1
        elif before:
            self.interrupt(session)
            session.details.unanswered = None

    def interrupt(self, session: Session) -> None:
        """Note that the connection on which they came has ended: none of them will be answered."""
        if self._counts.pop(session, 0):
            session.unwatch()

    def unsubscribed(self, session: Session, topic_filter: bytes) -> None:
        """Note that nothing is asked for this filter any more."""
        details: Details = session.details
        if details.unanswered is not None:
            details.unanswered.pop(topic_filter, None)

    def resume(self, session: Session, send: Callable[[Session, Asks], None]) -> None:
        """Ask again for what interrupted SUBSCRIBEs have asked for: the session has a connection again."""
        conn = session.connection
        if session.details.unanswered and conn is not None:
            self._context.piecework.answer(conn, self._ask_again(conn, session, send))

    def _ask_again(self, conn: Connection, session: Session, send: Callable[[Session, Asks], None]) -> Iterator[None]:
        self.begin(session)
        filters = list(session.details.unanswered or ())
        asks: Asks = []
        for first in range(0, len(filters), AT_ONCE):
            if first:
                yield
            piece = filters[first : first + AT_ONCE]
            spend(len(piece) * STEP)
            asks.append((self.ask(session, piece), piece))
        # as for a SUBSCRIBE: what is on its way to the owners of the topics must have arrived before they are asked
        interest = self._context.another_interest_number()
        self._context.router.answering.answer_packet(conn, b"", interest, lambda: send(session, asks))

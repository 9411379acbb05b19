"""SUBSCRIBEs that ask for retained messages, until they are answered: their SUBACKs may wait for siblings and the disk,
and messages are sent live meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.context.context import Context
    from pyx.delivery.session import Session

__all__ = ["Unanswered"]


class Unanswered:
    """The number of such SUBSCRIBEs of each session that has one."""

    def __init__(self, context: Context) -> None:
        self._windows = context.router.windows
        self._counts: dict[Session, int] = {}

    def begin(self, session: Session) -> None:
        """Note a SUBSCRIBE."""
        before = self._counts.get(session, 0)
        if not before:
            session.watch()
        self._counts[session] = before + 1

    def ask(self, session: Session) -> int:
        """Return a number for filters that have just been subscribed. A message that is sent live from now on is newer
        than what will be found retained: no older one of its topic may follow it.
        """
        return session.ask(self._windows.position)

    def answered(self, session: Session) -> None:
        """Note that a SUBSCRIBE has been answered."""
        before = self._counts.get(session, 0)
        if before > 1:
            self._counts[session] = before - 1
        else:
            self.forget(session)

    def forget(self, session: Session) -> None:
        """Note that none will be answered any more: the connection on which they came has ended."""
        if self._counts.pop(session, 0):
            session.unwatch()

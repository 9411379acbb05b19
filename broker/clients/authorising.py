"""Authorisation: the one place that every publish, subscription, will, replay and retained message passes.

It identifies the client, and asks the rules (`broker.auth.rules`). Without rules everything is allowed and nothing is
asked. Verdicts on publishes are cached in the data path (`pyx.delivery.authorise`) until the rules
change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.auth.rules import Client
from pyx.core import counters as count
from pyx.core.work import STEP, spend

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.auth.rules import Rules
    from broker.context.context import Context
    from broker.context.sessions import Details
    from pyx.delivery.connection import Connection
    from pyx.delivery.session import Session
    from pyx.protocol.message import Message
    from pyx.protocol.packets import Will

__all__ = ["Authorising"]


class Authorising:
    """Authorisation of one worker's clients."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._rules: Rules | None = None
        self.has_rules = False

    @property
    def rules(self) -> Rules | None:
        """None: everything is allowed. Setting them voids all earlier verdicts."""
        return self._rules

    @rules.setter
    def rules(self, rules: Rules | None) -> None:
        self._rules, self.has_rules = rules, rules is not None
        self._context.dispatch.authorise.set_rules(None if rules is None else self._may_publish)

    def _client(self, session: Session) -> Client:
        details: Details = session.details
        return self._named(session.client_id, details.username, session.connection)

    def _named(self, client_id: str, username: str | None, conn: Connection | None) -> Client:
        if self._context.settings.credentials is None:
            username = None  # an unverified name proves nothing
        return Client(client_id, username, None if conn is None else self._context.listener_of(conn))

    def _asked(self, client: Client, may: Callable[..., bool], *what: object) -> bool:
        spend(STEP)
        try:
            return may(client, *what)
        except Exception as error:  # noqa: BLE001  a failed check allows nothing
            self._context.counters.add(count.INTERNAL_ERRORS)
            self._context.defect(client.client_id, error)
            return False

    def _may_publish(self, session: Session, topic: bytes, qos: int, retain: bool) -> bool:
        assert self._rules is not None
        return self._asked(self._client(session), self._rules.may_publish, topic, qos, retain)

    def wrong_with(
        self, will: Will | None, conn: Connection, client_id: str, username: str | None, session: Session | None
    ) -> str:
        """Return why a CONNECT with this will, for this session of its client id, is not authorised; "": it is. Called
        only where `has_rules`.
        """
        assert self._rules is not None
        client = self._named(client_id, username, conn)
        if will is not None and not self._asked(client, self._rules.may_publish, will.topic, will.qos, will.retain):
            return "its will is not authorised"
        if session is not None:
            former = self._named(client_id, session.details.username, None).username
            if former != client.username and not self._asked(client, self._rules.may_take, former):
                return "the session is another user's"
        return ""

    def may_leave(self, will: Will, client_id: str, username: str | None, is_known: bool) -> bool:
        """Return whether the will of a client that has gone may be published now; if not, count and log it.
        `is_known`: its user is known.
        """
        if self._rules is None:
            return True
        client = self._named(client_id, username, None)
        if is_known and self._asked(client, self._rules.may_publish, will.topic, will.qos, will.retain):
            return True
        self._context.counters.add(count.WILLS_REFUSED)
        self._context.log.info("will_refused", client=client_id, topic=will.topic)
        return False

    def may_publish(self, session: Session, topic: bytes, qos: int, retain: bool) -> bool:
        """Whether something may be published for the session."""
        return self._rules is None or self._may_publish(session, topic, qos, retain)

    def may_subscribe(self, session: Session, topic_filter: bytes, qos: int, group: bytes | None) -> bool:
        """Whether the session may have this subscription."""
        if self._rules is None:
            return True
        return self._asked(self._client(session), self._rules.may_subscribe, topic_filter, qos, group)

    def may_replay(self, session: Session, topic_filter: bytes) -> bool:
        """Whether this subscription may begin in the archive."""
        if self._rules is None:
            return True
        return self._asked(self._client(session), self._rules.may_replay, topic_filter)

    def receivable(self, session: Session, messages: list[Message]) -> list[Message]:
        """Return those of these retained messages that the session may receive."""
        if self._rules is None:
            return messages
        client, may = self._client(session), self._rules.may_receive
        return [message for message in messages if self._asked(client, may, message.topic)]

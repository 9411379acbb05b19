"""Will Messages [MQTT 5, 3.1.2.5]: published for a client whose connection ended without a normal DISCONNECT, at once
or after its Will Delay Interval.

A stored will is published again by the next worker if this one is killed before the deletion of its record is durable.
At QoS 0 that would be a duplicate: such a will is published only after its record has been deleted, and a client that
reconnects meanwhile gets its CONNACK after that. When the broker stops, the will is published without waiting, because
no worker runs later.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pyx.core.steps import Steps
from pyx.delivery.router import expiry_offset
from pyx.protocol.message import Message

if TYPE_CHECKING:
    from broker.clients.authorising import Authorising
    from broker.context.context import Context
    from broker.context.sessions import Details
    from broker.persistence.state_records import StateRecords
    from pyx.delivery.session import Session
    from pyx.protocol.packets import Will


class Wills:
    """Publishes the wills of one worker's clients."""

    def __init__(self, context: Context, state_records: StateRecords, authorising: Authorising) -> None:
        self._context = context
        self._authorising = authorising
        self._router = context.router
        self._state_records = state_records
        self._waiting: dict[int, tuple[Will, str, str | None, bool]] = {}
        """Wills of QoS 0 whose record is being deleted, in their order."""
        self._last = 0
        self._is_stopping = False

    def left(self, session: Session) -> None:
        """Publish the will of a client whose connection has ended, if it has one, now or after its delay."""
        details: Details = session.details
        will = details.will
        delay = min(will.delay_interval, details.expiry_interval) if will is not None else 0
        if will is None:
            self._state_records.will_gone(session)
        elif delay:
            self.start_delay(session, delay)
            self._state_records.will_waits(session, self._router.state.wall_ms + delay * 1000)
        else:
            self.due(session)

    def start_delay(self, session: Session, seconds: float) -> None:
        """Publish the will of an offline session after this time."""
        details: Details = session.details
        if details.will_handle is not None:
            details.will_handle.cancel()
        details.will_handle = self._context.call_later(seconds, lambda: self.due(session), session)

    def due(self, session: Session) -> None:
        """Publish the session's will now, if it has one."""
        details: Details = session.details
        will, details.will = details.will, None
        details.will_handle = None
        if will is not None:
            steps = Steps()
            steps.do(self._state_records.will_gone, session)
            steps.do(self.publish, will, session.client_id, details.username)
            steps.finish()

    def publish(self, will: Will, client_id: str, username: str | None, is_known: bool = True) -> None:
        """Publish it, if its client still may, after its record has been deleted in this tick or before. `is_known`:
        the client's user is known.
        """
        if will.qos or not self._state_records.keeps or self._is_stopping:
            self._publish(will, client_id, username, is_known)
            return
        self._last += 1
        self._waiting[self._last] = will, client_id, username, is_known
        self._router.journal.when_durable(partial(self._record_gone, self._last))
        self._state_records.unsettle(client_id)  # after the will: what a client may do then comes after it

    def stop(self) -> None:
        """Publish those that wait for the disk, and from now on each at once: the broker stops."""
        self._is_stopping = True
        for number in list(self._waiting):
            self._record_gone(number)

    def _record_gone(self, number: int) -> None:
        what = self._waiting.pop(number, None)
        if what is not None:
            self._context.guard_client(what[1], self._publish, *what)

    def _publish(self, will: Will, client_id: str, username: str | None, is_known: bool) -> None:
        """Publish it now; its Message Expiry Interval starts now."""
        if not self._authorising.may_leave(will, client_id, username, is_known):
            return
        router = self._router
        expires = router.state.wall_ms + will.expiry_interval * 1000 if will.expiry_interval is not None else 0
        router.publish_message(
            Message.create(
                will.topic, will.payload, qos=will.qos, retain=will.retain, properties=will.properties,
                number=router.state.next_number(), expires=expires,
                expiry_offset=expiry_offset(will.properties) if expires else -1, publisher=client_id,
            )
        )  # fmt: skip

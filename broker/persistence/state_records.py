"""Stored records of sessions, subscriptions, wills and retained messages, written whenever one changes.

Nothing here decides anything: connecting, subscribing, wills and the router report a change, and one record is put or
deleted for it (`leveldb_store.format.schema` has the formats). The records of a tick are stored together with the
messages of that tick, all or none: a will of QoS 1 or 2 and the message that it became, the end of a session and of
its subscriptions. `broker.worker.recovery` reads them back.

    session       put when the client of a lasting session connects, and when it disconnects; deleted, with its
                  subscriptions and its window, when the session ends
    subscription  put and deleted with SUBSCRIBE and UNSUBSCRIBE of a lasting session
    will          put when its client connects, whether or not its session lasts; put again with the time at which it
                  is due when the client has gone; deleted when it is published or discarded
    retained      put and deleted once per tick, with the last state

Answers that confirm such a change wait for the disk (MQTT 5, 4.1, and docs/store.md): the CONNACK that creates or ends
a stored session, alters its expiry or takes a will, SUBACK, UNSUBACK, and the ack of a retained message. The router
itself stores windows (Packet Identifiers, acknowledgements).

With a store in memory every method returns at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveldb_store.format import schema
from leveldb_store.format.replay_schema import replay_key
from leveldb_store.format.session_schema import StoredSession, StoredWill, encode_session, encode_will
from leveldb_store.format.subscription_schema import encode_subscription
from pyx.core.work import STEP, spend
from pyx.storage.stored import pack_stored

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.context.context import Context
    from broker.context.sessions import Details
    from pyx.delivery.session import Session
    from pyx.protocol.message import Message

__all__ = ["StateRecords"]


class StateRecords:
    """Writes the records of one worker's clients."""

    def __init__(self, context: Context) -> None:
        self._router = context.router
        self._store = context.store
        self.keeps: bool = context.store.keeps
        """Whether records outlive the worker."""
        self.sessions = 0
        """Number of sessions in the store."""
        self._store.carry(lambda: self._router.persisted_counters(self.sessions))
        self._unsettled: dict[str, object] = {}
        """Clients whose session was created, altered or ended, but is not yet so on the disk: each with a token of the
        last change.
        """

    def refuses(self, frees: bool = False) -> bool:
        """Whether nothing new can be stored at present; `frees`: the change deletes more than it adds."""
        return self.keeps and (self._store.failed if frees else self._store.full) is not None

    # ------------------------------------------------------------ sessions

    def stores(self, session: Session) -> bool:
        """Whether the store has the session, and so its subscriptions."""
        return self.keeps and session.details.stored_expiry >= 0

    def changes(self, session: Session | None, expiry: int, clean: bool, will: bool) -> bool:
        """Whether a CONNECT changes what the disk has, so that its CONNACK promises more: `session` is the existing
        one, the other arguments are from the CONNECT.
        """
        if not self.keeps:
            return False
        stored = -1 if session is None else session.details.stored_expiry
        if clean:
            return will or stored >= 0 or expiry > 0
        return will or expiry != max(stored, 0)

    def is_unsettled(self, client_id: str, session: Session | None) -> bool:
        """Whether a CONNACK to this client waits for earlier changes: of its session, or the deletion of a will of QoS
        0, also of one that a take-over publishes.
        """
        if not self.keeps:
            return False
        former = None if session is None or session.connection is None else session.details.will
        return client_id in self._unsettled or (former is not None and former.qos == 0)

    def connected(self, session: Session) -> None:
        """Store a session that a CONNECT has created or resumed, with its will."""
        if not self.keeps:
            return
        details: Details = session.details
        changed = details.will is not None or details.expiry_interval != max(details.stored_expiry, 0)
        if session.durable or details.stored_expiry >= 0:
            if details.stored_expiry < 0:
                details.created = self._router.state.clock.ms
            self._put_session(session, 0)
        if details.will is not None:
            self._put_will(session, 0)
        else:
            self.will_gone(session)
        if changed:
            self.unsettle(session.client_id)

    def unsettle(self, client_id: str) -> None:
        """Let a CONNACK to this client wait until all that was recorded or deleted until now is durable."""
        token = self._unsettled[client_id] = object()

        def settled() -> None:
            if self._unsettled.get(client_id) is token:
                del self._unsettled[client_id]

        self._router.journal.when_durable(settled)

    def disconnected(self, session: Session, ms_ago: int = 0) -> None:
        """Store that its connection has ended, now or some time ago, and the session has not."""
        if self.stores(session):
            self._put_session(session, self._router.state.wall_ms - ms_ago)

    def ends(self, session: Session) -> None:
        """Delete the records of a session that is about to end and still has its subscriptions."""
        if not self.stores(session):
            return
        router, client_id = self._router, session.client_id
        session.details.stored_expiry = -1
        self.sessions -= 1
        router.journal.delete_record(schema.session_key(client_id))
        router.journal.delete_record(schema.window_key(client_id))
        spend((session.subscriptions + len(session.replays or ())) * STEP)
        for text in session.subscribed():
            router.journal.delete_record(schema.subscription_key(client_id, text))
        for text in session.replays or ():
            router.journal.delete_record(replay_key(client_id, text))
        self.unsettle(client_id)

    def ends_slowly(self, session: Session) -> None:
        """Begin the same for a large session: its record marks it as ended until all of it is deleted (`clear`,
        `ended`). Its window is deleted at once, with all messages in flight.
        """
        details: Details = session.details
        client_id = session.client_id
        record = StoredSession(0, session.version, details.username, self._router.state.wall_ms, details.created)
        details.stored_expiry = -1
        self._router.journal.put_record(schema.session_key(client_id), encode_session(record))
        self._router.journal.delete_record(schema.window_key(client_id))
        for text in session.replays or ():
            self._router.journal.delete_record(replay_key(client_id, text))

    def clear(self, client_id: str, subscriptions: Sequence[bytes]) -> None:
        """Delete these subscriptions of an ended session."""
        spend(len(subscriptions) * STEP)
        for named in subscriptions:
            self._router.journal.delete_record(schema.subscription_key(client_id, named))

    def ended(self, client_id: str) -> None:
        """Delete the record of an ended session, whose subscriptions are deleted."""
        self.sessions -= 1
        self._router.journal.delete_record(schema.session_key(client_id))
        self.unsettle(client_id)

    def _put_session(self, session: Session, disconnected: int) -> None:
        details: Details = session.details
        if details.stored_expiry < 0:
            self.sessions += 1
        details.stored_expiry = details.expiry_interval
        record = StoredSession(
            details.expiry_interval, session.version, details.username, disconnected, details.created
        )
        self._router.journal.put_record(schema.session_key(session.client_id), encode_session(record))

    # ------------------------------------------------------------ subscriptions

    def subscribed(
        self,
        session: Session,
        text: bytes,
        group: bytes | None,
        options: int,
        identifier: int,
        named: bytes,
        owed: Sequence[tuple[int, bytes]] = (),
    ) -> None:
        """Store a subscription; `named`: its name as the client sent it, `text`: the Topic Filter in it. `owed`: the
        workers, each with a topic behind which its retained messages were not sent yet.
        """
        if not self.stores(session):
            return
        since, formers = self._router.subscribing.since(session, text) if group is None else (0, [])
        key = schema.subscription_key(session.client_id, named)
        self._router.journal.put_record(key, encode_subscription(options, identifier, since, formers, owed))

    def owes(self, session: Session, text: bytes, owed: Sequence[tuple[int, bytes]]) -> None:
        """Store which retained messages a subscription is still owed, in one batch with those just queued for it."""
        terms = self._router.subscribing.terms(session, text)
        if terms is not None and self.stores(session):
            since, formers = self._router.subscribing.since(session, text)
            key = schema.subscription_key(session.client_id, text)
            self._router.journal.put_record(key, encode_subscription(*terms, since, formers, owed), waited=False)
            self._router.windows.stored_together(
                session
            )  # the record says how many of the former ones it has been sent

    def unsubscribed(self, session: Session, named: bytes) -> None:
        """Delete a subscription."""
        if self.stores(session):
            self._router.journal.delete_record(schema.subscription_key(session.client_id, named))

    # ------------------------------------------------------------ wills

    def will_waits(self, session: Session, due: int) -> None:
        """Store that the will of a disconnected client is due at this Unix time in ms."""
        if self.keeps:
            self._put_will(session, due)

    def will_gone(self, session: Session) -> None:
        """Delete a will that was published in this tick, or never will be."""
        details: Details = session.details
        if details.will_stored:
            details.will_stored = False
            self._router.journal.delete_record(schema.will_key(session.client_id))

    def _put_will(self, session: Session, due: int) -> None:
        details: Details = session.details
        will = details.will
        assert will is not None
        details.will_stored = True
        message = schema.StoredMessage(
            will.topic, will.payload, 0, will.qos, will.retain, will.properties, publisher=session.client_id
        )
        record = StoredWill(due, will.delay_interval, will.expiry_interval, message)
        self._router.journal.put_record(schema.will_key(session.client_id), encode_will(record))

    # ------------------------------------------------------------ retained messages

    def retained_changed(self, changes: Mapping[bytes, Message | None]) -> None:
        """Store the retained messages changed in a tick, by topic; None: removed."""
        put, delete = self._store.put, self._store.delete
        for topic, message in changes.items():
            key = schema.retained_key(topic)
            if message is None:
                delete(key)
            else:
                put(key, pack_stored([message]))

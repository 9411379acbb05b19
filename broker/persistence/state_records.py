"""What the store is told of sessions, subscriptions, wills and retained messages, where and when they change.

Nothing here decides anything: connecting, subscribing, wills and the router say what has become of a thing, and one
record is put or deleted for it (`leveldb_store.format.schema` knows how it looks). The records of a tick are stored
together with the messages of that tick, all or none: a will and the message that it became, the end of a session and of
its subscriptions. `broker.worker.recovery` is the other end.

    session       put when a client connects whose session will outlive its connection, and when it disconnects;
                  deleted, with its subscriptions and its window, when the session ends
    subscription  put and deleted with SUBSCRIBE and UNSUBSCRIBE of such a session
    will          put when its client connects, whether or not its session lasts; when that has gone, with the time at
                  which the will is due; deleted when it is published, or will not be
    retained      put and deleted, as the last one of a tick left it

What a client is told of this waits for the disk (MQTT 5, 4.1, and docs/store.md): the CONNACK that makes or ends a
stored session, alters its expiry or takes a will, SUBACK, UNSUBACK, and the ack of a retained message. Windows (Packet
Identifiers, what was acknowledged) are the router's own.

With a store that keeps nothing every method returns at once.
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
    """The records of one worker's clients."""

    def __init__(self, context: Context) -> None:
        self._router = context.router
        self._store = context.store
        self.keeps: bool = context.store.keeps
        """Whether what is written outlives the worker."""
        self.sessions = 0
        """How many the store knows."""
        self._store.carry(lambda: self._router.moment(self.sessions))
        self._unsettled: dict[str, object] = {}
        """Clients whose session was made, altered or ended, and that is not on the disk yet: each with a token of the
        last change.
        """

    def refuses(self, frees: bool = False) -> bool:
        """Whether nothing new can be stored at present; `frees`: what is to be stored deletes more than it adds."""
        return self.keeps and (self._store.failed if frees else self._store.full) is not None

    # ------------------------------------------------------------ sessions

    def stores(self, session: Session) -> bool:
        """Whether the store knows the session, and so its subscriptions."""
        return self.keeps and session.details.stored_expiry >= 0

    def promises(self, client_id: str, session: Session | None, expiry: int, clean: bool, will: bool) -> bool:
        """Whether a CONNACK would promise more than what is on the disk: `session` is the one that is there, the others
        are of the CONNECT.
        """
        if not self.keeps:
            return False
        if will or client_id in self._unsettled:
            return True
        stored = -1 if session is None else session.details.stored_expiry
        if clean:
            return stored >= 0 or expiry > 0
        return expiry != max(stored, 0)

    def connected(self, session: Session) -> None:
        """The session was made or resumed by a CONNECT, and has the will of that."""
        if not self.keeps:
            return
        details: Details = session.details
        changed = details.will is not None or details.expiry_interval != details.stored_expiry
        if session.durable or details.stored_expiry >= 0:
            if details.stored_expiry < 0:
                details.created = self._router.state.clock.ms
            self._put_session(session, 0)
        if details.will is not None:
            self._put_will(session, 0)
        else:
            self.will_gone(session)
        if changed:
            self._unsettle(session.client_id)

    def _unsettle(self, client_id: str) -> None:
        token = self._unsettled[client_id] = object()

        def settled() -> None:
            if self._unsettled.get(client_id) is token:
                del self._unsettled[client_id]

        self._router.journal.when_durable(settled)

    def disconnected(self, session: Session) -> None:
        """Its connection has ended, and the session has not."""
        if self.stores(session):
            self._put_session(session, self._router.state.wall_ms)

    def ends(self, session: Session) -> None:
        """The session is about to end: it has its subscriptions still."""
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
        self._unsettle(client_id)

    def ends_slowly(self, session: Session) -> None:
        """The same of a session that has much: its record says that it has ended, until the last of that is gone
        (`clear`, `ended`). Its window goes at once, with whatever is in flight.
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
        """These of a session that has ended are gone."""
        spend(len(subscriptions) * STEP)
        for named in subscriptions:
            self._router.journal.delete_record(schema.subscription_key(client_id, named))

    def ended(self, client_id: str) -> None:
        """All of them are."""
        self.sessions -= 1
        self._router.journal.delete_record(schema.session_key(client_id))
        self._unsettle(client_id)

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
        """It has this subscription from now on; `named`: as the client calls it, `text` is the Topic Filter in it.
        `owed`: whose retained messages, and behind which topic, it has not been given.
        """
        if not self.stores(session):
            return
        since, formers = self._router.subscribing.since(session, text) if group is None else (0, [])
        key = schema.subscription_key(session.client_id, named)
        self._router.journal.put_record(key, encode_subscription(options, identifier, since, formers, owed))

    def owes(self, session: Session, text: bytes, owed: Sequence[tuple[int, bytes]]) -> None:
        """What a subscription is owed of retained messages, in one batch with those that were queued for it."""
        terms = self._router.subscribing.terms(session, text)
        if terms is not None and self.stores(session):
            since, formers = self._router.subscribing.since(session, text)
            key = schema.subscription_key(session.client_id, text)
            self._router.journal.put_record(key, encode_subscription(*terms, since, formers, owed), waited=False)
            self._router.windows.stored_together(
                session
            )  # which says how much of the former stretches it has been sent

    def unsubscribed(self, session: Session, named: bytes) -> None:
        """It has it no longer."""
        if self.stores(session):
            self._router.journal.delete_record(schema.subscription_key(session.client_id, named))

    # ------------------------------------------------------------ wills

    def will_waits(self, session: Session, due: int) -> None:
        """Its connection has ended, its will is due at this Unix time in ms."""
        if self.keeps:
            self._put_will(session, due)

    def will_gone(self, session: Session) -> None:
        """The will was published in this tick, or will never be."""
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
        """Once per tick: the retained messages that it has left behind, by topic; None: there is none any more."""
        put, delete = self._store.put, self._store.delete
        for topic, message in changes.items():
            key = schema.retained_key(topic)
            if message is None:
                delete(key)
            else:
                put(key, pack_stored([message]))

"""Recovery of a worker from its store at the start: sessions, subscriptions, windows, retained messages, wills.

`Recovery` restores them before the worker has a link, a listener or a client: siblings learn its filters with the first
word they hear, and no client is served before. `Recovered.begin` publishes the wills when siblings can be reached.

    session       one that was connected when its worker died counts its Session Expiry Interval from now, any other
                  from its disconnection; one that has expired, or was to end with its connection, is restored all the
                  same and ended when siblings can be reached: its messages of share groups go to other members
    subscription  of an existing session; others are deleted, as windows are
    replay        of an existing session: continues from its position when the client is back
    window        restored by the router: the messages in flight, and the position up to which the session has read
    will          of a client that was connected: due after its Will Delay Interval from now, or with the end of its
                  session if that is earlier; of a client that had gone: when it was due anyway. A client that returns
                  earlier has no will any more
    retained      unless expired

Records are read in the order of their keys, and messages in flight in the order of their positions, each block once. An
unreadable record is set aside (`broker.persistence.set_aside`), with all records of a session whose own record it is;
data that the disk does not return as it was written ends the recovery (`DamagedStoreError`), and the worker has the
store repaired.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from broker.context.piecework import AT_ONCE
from broker.context.sessions import NEVER, own_bytes
from broker.persistence.set_aside import UNREADABLE
from leveldb_store.contract import StoreError
from leveldb_store.format import schema, session_schema
from leveldb_store.format.persisted_counters import decode_counters
from leveldb_store.format.queued_messages import head_of, message_key, message_of
from leveldb_store.format.replay_schema import decode_replay, split_replay
from leveldb_store.format.subscription_schema import decode_owed, decode_subscription
from leveldb_store.format.windows import NEVER_SENT, check_page, decode_window, encode_window, has_pages, split_page
from pyx.core import counters as count
from pyx.delivery.restoring import unpack_message, unpack_queued, window_positions
from pyx.delivery.router import expiry_offset
from pyx.protocol.packets import Will
from pyx.protocol.topics import parse_share
from pyx.storage.stored import unpack_stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.clients.endings import Endings
    from broker.clients.retaining import Retaining
    from broker.clients.subscribing import Subscribing
    from broker.clients.wills import Wills
    from broker.context.context import Context
    from broker.context.sessions import Details, Sessions
    from broker.persistence.recording import Recording
    from broker.persistence.set_aside import SetAside
    from broker.persistence.state_records import StateRecords
    from broker.replay.replaying import Replaying
    from pyx.delivery.session import Session
    from pyx.protocol.message import Message

__all__ = ["Progress", "Recovered", "Recovery"]

_SHARED = b"$share/"
_NEVER_SENT = encode_window(NEVER_SENT)
_AT_ONCE = 100
"""Wills published, and expiries begun, per step of `Recovered.begin`."""
_ENDING = 5
"""Fixed cost of ending a session, in subscriptions."""


class Recovered:
    """Counts of the restored records, and the work left for when siblings can be reached."""

    def __init__(
        self, context: Context, state_records: StateRecords, recording: Recording, wills: Wills, endings: Endings
    ) -> None:
        self._context = context
        self._state_records = state_records
        self._recording = recording
        self._wills = wills
        self._endings = endings
        self.sessions = 0
        self.expired = 0
        """Sessions that had ended meanwhile."""
        self.subscriptions = 0
        self.windows = 0
        self.retained = 0
        self.wills = 0
        self._due: list[tuple[str, Session | None, Will, int]] = []
        self._over: list[Session] = []
        self._expire: list[tuple[Session, float]] = []

    def found(self) -> int:
        """Return the number of all records."""
        return self.sessions + self.subscriptions + self.windows + self.retained + self.wills

    def will(self, client_id: str, session: Session | None, will: Will, due: int) -> None:
        """Note a will that is due at this Unix time in ms."""
        self._due.append((client_id, session, will, due))

    def over(self, session: Session) -> None:
        """Note a session that has expired."""
        self.expired += 1
        self._over.append(session)

    def expires(self, session: Session, at: float) -> None:
        """Note a session that expires at this Unix time in ms, but not before siblings can be reached."""
        self._expire.append((session, at))

    def begin(self) -> Iterator[None]:
        """Publish the wills that are due, and schedule the others. End the expired sessions. A generator of steps:
        clients are not served before the last.
        """
        router = self._context.router
        now = router.state.wall_ms
        due, self._due = self._due, []
        for number, (client_id, session, will, at) in enumerate(due):
            if number % _AT_ONCE == 0:
                yield
            if at > now and session is not None:
                self._wills.start_delay(session, (at - now) / 1000)
                continue
            if session is not None:
                session.details.will = None
                self._state_records.will_gone(session)
            else:
                router.journal.delete_record(schema.will_key(client_id))
            username = None if session is None else session.details.username
            self._wills.publish(will, client_id, username, is_known=session is not None)
        over, self._over = self._over, []
        done = AT_ONCE
        for session in over:
            if done >= AT_ONCE:
                yield
                done = 0
            done += _ENDING + min(session.subscriptions, AT_ONCE)
            self._context.counters.add(count.SESSIONS_EXPIRED)
            self._recording.session_expired(session)
            self._endings.end(session)
        expire, self._expire = self._expire, []
        for number, (session, end) in enumerate(expire):
            if number % _AT_ONCE == 0:
                yield
            self._endings.expire_in(session, max(0.0, (end - now) / 1000))


class Progress:
    """Progress of a recovery."""

    records = 0


class Recovery:
    """The recovery of one worker, which is empty when it begins."""

    def __init__(
        self,
        context: Context,
        sessions: Sessions,
        set_aside: SetAside,
        state_records: StateRecords,
        recording: Recording,
        wills: Wills,
        endings: Endings,
        subscribing: Subscribing,
        retaining: Retaining,
        replaying: Replaying,
    ) -> None:
        self._context = context
        self._router = context.router
        self._sessions = sessions
        self._records = set_aside
        self._state_records = state_records
        self._subscribing = subscribing
        self._retaining = retaining
        self._replaying = replaying
        self._found = Recovered(context, state_records, recording, wills, endings)
        self._progress = Progress()
        self._over: set[str] = set()
        """Client ids whose session has expired."""
        self._offline: list[tuple[int, Session]] = []
        """(time of disconnection, Unix time in ms; client id)."""
        self._unread: set[bytes] = set()
        """Client ids whose session is unreadable: all of its records are kept with it."""
        self._filters: set[bytes] = set()
        """Topic Filters of subscriptions that are not shared."""

    def identify(self, epoch: str) -> None:
        """Check that the store belongs to this worker and this data directory. A store without an identity gets it now.
        Raises StoreError.
        """
        index, workers = self._context.index, self._context.workers
        own = {"worker": index, "workers": workers, "epoch": epoch}
        self._records.begin()
        for key, value in self._context.store.scan(schema.STORE):
            try:
                found = json.loads(value)
            except ValueError as error:
                self._records.take(key, value, error)
                continue
            if found != own:
                raise StoreError(f"the store of worker {index} says that it is another one: {found}, not {own}")
            return
        self._router.journal.put_record(schema.STORE, json.dumps(own).encode())

    def run(self, progress: Progress | None = None) -> Recovered:
        """Restore the worker from its store, once. `progress.records` shows the progress to another thread.

        Raises DamagedStoreError, and StoreError when a record cannot be read and `strict_store` is set.
        """
        if self._context.store.keeps:
            self._progress = progress or self._progress
            self._all()
        return self._found

    def _all(self) -> None:
        self._numbers()
        self._each(schema.SESSION, self._session)
        for _, session in sorted(self._offline, key=lambda each: each[0]):
            self._sessions.left(session)
        self._each(schema.SUBSCRIPTION, self._subscription)
        self._each(schema.REPLAY, self._replay)
        self._windows()
        self._forget_logs()  # not before the messages in flight were read from them
        self._each(schema.RETAINED, self._retained)
        self._each(schema.WILL, self._will)
        for _ in self._subscribing.set_queue_rules(self._context.settings.queue):
            pass
        self._router.commit()

    def _each(self, family: bytes, restore: Callable[[bytes, bytes], None]) -> None:
        for key, value in self._context.store.scan(family):
            self._progress.records += 1
            try:
                restore(key, value)
            except UNREADABLE as error:
                self._set_aside(key, value, error)

    def _set_aside(self, key: bytes, value: bytes, problem: object) -> None:
        self._records.take(key, value, problem)
        if key[:1] == schema.SESSION:
            self._unread.add(key[1:])
        elif key[:1] == schema.SUBSCRIPTION:
            self._filters.add(key[1:].partition(b"\0")[2])  # the messages of its index are kept with it

    def _session_of(self, client_id: str, key: bytes, value: bytes) -> Session | None:
        # None: there is no such session, and its record was deleted, or set aside if the session was
        session = self._sessions.get(client_id)
        if session is None:
            if client_id.encode() in self._unread:
                self._set_aside(key, value, "its session cannot be read")
            else:
                self._router.journal.delete_record(key)
        return session

    def _numbers(self) -> None:
        # new numbers are higher than all numbers in the store, even if the clock was set back
        for key, value, problem in self._context.store.unread:
            self._set_aside(key, value, problem)
        self._each(schema.NUMBER, lambda _, value: self._router.state.numbers_behind(schema.decode_number(value)))
        self._each(
            schema.COUNTERS, lambda _, value: self._router.state.clock.behind(decode_counters(value).get("number", 0))
        )

    def _session(self, key: bytes, value: bytes) -> None:
        now = self._router.state.wall_ms
        client_id, stored = key[1:].decode(), session_schema.decode_session(value)
        since = min(stored.disconnected, now) if stored.disconnected else now
        left: float = stored.expiry_interval
        if left != NEVER:
            left -= (now - since) / 1000
        session = self._sessions.new(client_id, stored.version)
        session.durable = True
        self._offline.append((since, session))
        details: Details = session.details
        details.own_bytes = own_bytes(client_id, stored.username, None)
        details.expiry_interval = details.stored_expiry = stored.expiry_interval
        self._state_records.sessions += 1
        details.username = stored.username
        details.created = details.began = stored.created
        if not stored.disconnected:
            self._state_records.disconnected(session)
        if left > 0:
            self._found.sessions += 1
            if left != NEVER:
                self._found.expires(session, now + 1000 * left)
        else:
            self._over.add(session.client_id)
            self._found.over(session)

    def _subscription(self, key: bytes, value: bytes) -> None:
        client_id, named = schema.split_subscription(key)
        session = self._session_of(client_id, key, value)
        if session is None:
            return
        options, identifier, since, formers = decode_subscription(value)
        owed = decode_owed(value)
        group, text = None, named
        if named.startswith(_SHARED):
            share = parse_share(named)
            if share is None:
                raise schema.SchemaError("no Topic Filter")
            group, text = share
        session.details.filter_bytes += len(named)
        self._router.subscribing.restore_subscription(session, text, options, identifier, group, since, formers)
        if group is None:
            self._filters.add(text)
            if owed:
                self._retaining.restore(session, text, owed)
        self._found.subscriptions += 1

    def _replay(self, key: bytes, value: bytes) -> None:
        client_id, text = split_replay(key)
        session = self._session_of(client_id, key, value)
        if session is not None:
            self._replaying.restore(session, text, decode_replay(value))
            self._found.subscriptions += 1

    def _forget_logs(self) -> None:
        # messages logged for sessions that ended with the worker, or before it noted that none needs them
        for name in self._context.store.names():
            if name not in self._filters:
                self._context.store.forget(name)

    def _windows(self) -> None:
        # all windows are read before the first is restored: so the blocks with messages in flight are read in order
        queued = self._queued()
        pages = self._pages()
        windows: dict[Session, bytes] = {}
        positions: set[int] = set()

        def found(key: bytes, value: bytes) -> None:
            client_id = key[1:].decode()
            session = self._session_of(client_id, key, value)
            if session is None:
                return
            if has_pages(value):
                # all in one record, until the router pages it anew
                value = encode_window(decode_window(value, pages.get(client_id, ())))
                self._router.journal.put_record(key, value)
            positions.update(window_positions(value))
            windows[session] = value
            self._found.windows += 1

        self._each(schema.WINDOW, found)
        messages = self._context.store.messages_at(sorted(positions))
        for session in self._sessions:
            self._progress.records += 1
            window = windows.get(session, _NEVER_SENT)
            self._router.restoring.restore(session, window, queued.get(session.client_id, {}), messages)

    def _pages(self) -> dict[str, list[tuple[bytes, bytes]]]:
        """Return by client id the pages of its window, which are merged into the window's own record."""
        pages: dict[str, list[tuple[bytes, bytes]]] = {}

        def found(key: bytes, value: bytes) -> None:
            client_id, _, _ = split_page(key)
            if self._session_of(client_id, key, value) is not None:
                check_page(key, value)
                pages.setdefault(client_id, []).append((key, value))
                self._router.journal.delete_record(key)

        self._each(schema.WINDOW_PAGE, found)
        return pages

    def _queued(self) -> dict[str, dict[int, tuple[int, int, bytes | None, Message]]]:
        """Return by client id its messages with records of their own, by number."""
        queued: dict[str, dict[int, tuple[int, int, bytes | None, Message]]] = {}
        messages: dict[int, Message] = {}
        waiting = {message_of(value) for _, value in self._context.store.scan(schema.SET_ASIDE + schema.QUEUED)}

        # records are named by their number: new numbers must differ from all of these, even if the clock was set
        # back
        def message(key: bytes, value: bytes) -> None:
            number = schema.key_position(key)
            messages[number] = unpack_message(value)
            self._router.state.numbers_behind(number)

        def found(key: bytes, value: bytes) -> None:
            client_id, number = schema.split_queued(key)
            shared = message_of(value)
            waiting.add(shared)
            if self._session_of(client_id, key, value) is None:
                return
            if shared is None:
                unpacked = unpack_queued(value)
            elif shared in messages:
                flags, origin, identifiers = head_of(value)
                unpacked = flags, origin, identifiers or None, messages[shared]
                self._router.windows.restore_queued(number, shared)
            else:
                raise schema.SchemaError(f"message {shared}, which is queued, is not there")
            queued.setdefault(client_id, {})[number] = unpacked
            self._router.state.numbers_behind(number)

        self._each(schema.MESSAGE, message)
        self._each(schema.QUEUED, found)
        for number in messages.keys() - waiting:
            self._router.journal.delete_record(message_key(number))
        return queued

    def _retained(self, key: bytes, value: bytes) -> None:
        messages = unpack_stored(value, expiry_offset)
        if len(messages) != 1 or messages[0].topic != key[1:]:
            raise schema.SchemaError("a retained message is damaged")
        if messages[0].expires and messages[0].expires <= self._router.state.wall_ms:
            self._router.journal.delete_record(key)
            return
        self._router.retaining.restore_retained(messages[0])
        self._found.retained += 1

    def _will(self, key: bytes, value: bytes) -> None:
        now = self._router.state.wall_ms
        client_id, stored = key[1:].decode(), session_schema.decode_will(value)
        session, message = self._sessions.get(client_id), stored.message
        if client_id in self._over:
            session = None
        will = Will(
            message.topic, message.payload, message.qos, message.retain, stored.delay_interval,
            stored.expiry_interval, message.properties,
        )  # fmt: skip
        due = stored.due
        if session is not None:
            details: Details = session.details
            details.will, details.will_stored = will, True
            details.own_bytes = own_bytes(client_id, details.username, will)
            if not due:
                due = now + 1000 * min(will.delay_interval, details.expiry_interval)
                self._state_records.will_waits(session, due)
            else:
                due = min(due, now + 1000 * will.delay_interval)  # the clock may have been set back
        self._found.will(client_id, session, will, due)
        self._found.wills += 1

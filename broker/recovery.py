"""What a worker finds in its store when it starts: sessions, subscriptions, windows, retained messages, wills.

`recover` makes them anew before the worker has a link, a listener or a client: siblings learn of the filters with the
first word they hear, and none of our clients is served before. `Recovered.begin` publishes the wills when siblings can
be reached.

    session       one that was connected when its worker died counts its Session Expiry Interval from now, any other
                  from its disconnection; one that has expired, or was to end with its connection, is made all the same
                  and ended when siblings can be reached: its shares of groups go to other members
    subscription  of a session that is there; others are deleted, as windows are
    replay        of a session that is there: goes on from its position when the client is back
    window        the router's: what is in flight, and up to where the session has read
    will          of a client that was connected: due after its Will Delay Interval from now, or with the end of its
                  session if that is earlier; of one that had gone: when it was due anyway. A client that is back before
                  has none any more
    retained      what has not expired

A record that cannot be read ends the start (`StoreError`): LevelDB checks what the disk returns, so this is a defect or
another program's doing, and nobody should be served half of it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from broker.sessions import NEVER, own_bytes
from leveldb_store import schema
from leveldb_store.contract import StoreError
from leveldb_store.moment import decode_moment
from leveldb_store.replay_schema import decode_replay, split_replay
from leveldb_store.subscription_schema import decode_owed, decode_subscription
from pyx import counters as count
from pyx.packets import Will
from pyx.router import expiry_offset
from pyx.stored import unpack_stored
from pyx.topics import parse_share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.node import Node
    from broker.sessions import Details
    from pyx.session import Session

__all__ = ["Recovered", "identify", "recover"]

_SHARED = b"$share/"
_NEVER_SENT = schema.encode_window(schema.Window(0, 1, [], [], bytes(14)))
"""Window of a session that has none: it was sent nothing of what lies behind the beginnings of its subscriptions."""
_EVERY = 1000
"""Records between two calls of `progress`."""


class Recovered:
    """What was found, in numbers, and what is to be done when siblings can be reached."""

    def __init__(self, node: Node) -> None:
        self.sessions = 0
        self.expired = 0
        """Sessions that had ended meanwhile."""
        self.subscriptions = 0
        self.windows = 0
        self.retained = 0
        self.wills = 0
        self._node = node
        self._due: list[tuple[str, Session | None, Will, int]] = []
        self._over: list[Session] = []
        self._expire: list[tuple[Session, float]] = []

    def found(self) -> int:
        """Records in all."""
        return self.sessions + self.subscriptions + self.windows + self.retained + self.wills

    def will(self, client_id: str, session: Session | None, will: Will, due: int) -> None:
        """Its client's will is due then (Unix time in ms)."""
        self._due.append((client_id, session, will, due))

    def over(self, session: Session) -> None:
        """It has expired."""
        self.expired += 1
        self._over.append(session)

    def expires(self, session: Session, at: float) -> None:
        """It will have expired then (Unix time in ms); not before siblings can be reached."""
        self._expire.append((session, at))

    def begin(self) -> None:
        """Publish the wills that are due; the others have their time from now on. End the sessions that are over."""
        node, now = self._node, self._node.router.wall_ms
        due, self._due = self._due, []
        for client_id, session, will, at in due:
            if at > now and session is not None:
                node.connecting.start_will_delay(session, (at - now) / 1000)
                continue
            if session is not None:
                session.details.will = None
                node.custody.will_gone(session)
            else:
                node.router.delete_record(schema.will_key(client_id))
            node.wills.publish(will, client_id)
        over, self._over = self._over, []
        for session in over:
            node.counters.add(count.SESSIONS_EXPIRED)
            node.recording.session_expired(session)
            node.connecting.end_session(session)
        expire, self._expire = self._expire, []
        for session, end in expire:
            node.connecting.start_expiry(session, max(0.0, (end - now) / 1000))


def identify(node: Node, epoch: str) -> None:
    """Make sure that the node has its own store and not another worker's, or one of another data directory. A store
    without a name gets it now. Raises StoreError.
    """
    own = {"worker": node.index, "workers": node.workers, "epoch": epoch}
    for _, value in node.store.scan(schema.STORE):
        try:
            found = json.loads(value)
        except ValueError:
            found = None
        if found != own:
            raise StoreError(f"the store of worker {node.index} says that it is another one: {found}, not {own}")
        return
    node.router.put_record(schema.STORE, json.dumps(own).encode())


def recover(node: Node, progress: Callable[[int], None] = lambda _: None) -> Recovered:
    """Fill an empty Node from its store. `progress` is told now and then how many records have been read.

    Raises StoreError when a record cannot be read.
    """
    recovered = Recovered(node)
    if not node.store.keeps:
        return recovered
    recovery = _Recovery(node, recovered, progress)
    try:
        recovery.run()
    except (schema.SchemaError, ValueError) as error:
        raise StoreError(f"{recovery.where}: {error}") from None
    return recovered


class _Recovery:
    def __init__(self, node: Node, recovered: Recovered, progress: Callable[[int], None]) -> None:
        self._node = node
        self._router = node.router
        self._found = recovered
        self._progress = progress
        self._read = 0
        self._over: set[str] = set()
        """Client ids whose session has expired."""
        self._filters: set[bytes] = set()
        """Those of recovered subscriptions that are no shares."""
        self._key = b""

    @property
    def where(self) -> str:
        """The record in hand, for an error."""
        return f"record {self._key!r}"

    def run(self) -> None:
        self._numbers()
        self._sessions()
        self._subscriptions()
        self._replays()
        self._windows()
        self._forget_logs()  # not before what is in flight was taken out of them
        self._retained()
        self._wills()
        self._node.subscribing.set_queue_rules(self._node.settings.queue)
        self._router.commit()

    def _records(self, family: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._node.store.scan(family):
            self._key = key
            yield key, value
            self._read += 1
            if self._read % _EVERY == 0:
                self._progress(self._read)

    def _numbers(self) -> None:
        # what is numbered from now on is newer than all that is here, should the clock have been put back
        for _, value in self._records(schema.NUMBER):
            self._router.numbers_behind(schema.decode_u64(value))
        for _, value in self._records(schema.COUNTERS):
            self._router.clock.behind(decode_moment(value).get("number", 0))

    def _sessions(self) -> None:
        now = self._router.wall_ms
        offline: list[tuple[int, Session]] = []
        for key, value in self._records(schema.SESSION):
            client_id, stored = key[1:].decode(), schema.decode_session(value)
            since = min(stored.disconnected, now) if stored.disconnected else now
            left: float = stored.expiry_interval
            if left != NEVER:
                left -= (now - since) / 1000
            session = self._node.sessions.new(client_id, stored.version)
            session.durable = True
            offline.append((since, session))
            details: Details = session.details
            details.own_bytes = own_bytes(client_id, stored.username, None)
            details.expiry_interval = details.stored_expiry = stored.expiry_interval
            self._node.custody.sessions += 1
            details.username = stored.username
            details.created = stored.created
            if not stored.disconnected:
                self._node.custody.disconnected(session)
            if left > 0:
                self._found.sessions += 1
                if left != NEVER:
                    self._found.expires(session, now + 1000 * left)
            else:
                self._over.add(session.client_id)
                self._found.over(session)
        for _, session in sorted(offline, key=lambda each: each[0]):
            self._node.sessions.left(session)

    def _subscriptions(self) -> None:
        for key, value in self._records(schema.SUBSCRIPTION):
            client_id, named = schema.split_subscription(key)
            session = self._node.sessions.get(client_id)
            if session is None:
                self._router.delete_record(key)
                continue
            options, identifier, since, formers = decode_subscription(value)
            group, text = None, named
            if named.startswith(_SHARED):
                share = parse_share(named)
                if share is None:
                    raise schema.SchemaError("no Topic Filter")
                group, text = share
            if group is None:
                self._filters.add(text)
            session.details.filter_bytes += len(named)
            self._router.restore_subscription(session, text, options, identifier, group, since, formers)
            owed = decode_owed(value)
            if owed and group is None:
                self._node.retaining.restore(session, text, owed)
            self._found.subscriptions += 1

    def _replays(self) -> None:
        for key, value in self._records(schema.REPLAY):
            client_id, text = split_replay(key)
            session = self._node.sessions.get(client_id)
            if session is None:
                self._router.delete_record(key)
                continue
            self._node.replaying.restore(session, text, decode_replay(value))
            self._found.subscriptions += 1

    def _forget_logs(self) -> None:
        # what was logged for sessions that ended with the worker, or before it could say that nobody needs it
        for name in self._node.store.names():
            if name not in self._filters:
                self._node.store.forget(name)

    def _windows(self) -> None:
        left = {session.client_id for session in self._node.sessions}
        queued = self._queued()
        for key, value in self._records(schema.WINDOW):
            session = self._node.sessions.get(key[1:].decode())
            if session is None:
                self._router.delete_record(key)
                continue
            if not value:
                raise schema.SchemaError("a window is cut off")
            left.discard(session.client_id)
            self._restore(session, value, queued)
            self._found.windows += 1
        for client_id in left:
            session = self._node.sessions.get(client_id)
            assert session is not None
            self._restore(session, _NEVER_SENT, queued)

    def _queued(self) -> set[str]:
        """Client ids of which there are messages of their own: to look for each one's costs more than all the rest."""
        found = set()
        for key, _ in self._records(schema.QUEUED):
            client_id, _ = schema.split_queued(key)
            if self._node.sessions.get(client_id) is None:
                self._router.delete_record(key)
            else:
                found.add(client_id)
        return found

    def _restore(self, session: Session, window: bytes, queued: set[str]) -> None:
        self._router.restore(session, window, session.client_id in queued)

    def _retained(self) -> None:
        now = self._router.wall_ms
        for key, value in self._records(schema.RETAINED):
            messages = unpack_stored(value, expiry_offset)
            if len(messages) != 1 or messages[0].topic != key[1:]:
                raise schema.SchemaError("a retained message is damaged")
            if messages[0].expires and messages[0].expires <= now:
                self._router.delete_record(key)
                continue
            self._found.retained += 1
            self._router.restore_retained(messages[0])

    def _wills(self) -> None:
        now = self._router.wall_ms
        for key, value in self._records(schema.WILL):
            self._found.wills += 1
            client_id, stored = key[1:].decode(), schema.decode_will(value)
            session, message = self._node.sessions.get(client_id), stored.message
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
                    self._node.custody.will_waits(session, due)
                else:
                    due = min(due, now + 1000 * will.delay_interval)  # should the clock have been put back
            self._found.will(client_id, session, will, due)

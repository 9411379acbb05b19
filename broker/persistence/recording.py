"""Recording of events about clients: family E of the store (`leveldb_store.format.events`).

Like `broker.persistence.state_records` it decides nothing: connecting, subscribing and recovery report what happened,
and one event is recorded. Nobody waits for it: it is written with the next batch of the store, or within a second. Not
every event is recorded:

    events_per_second_max   of connections, sessions and subscriptions; further ones in that second are counted by kind
    a full disk             nothing is recorded while the store takes no new message, and counted instead

Once a minute, by the wall clock, it records the totals of that minute: drops by client and reason, all counters,
traffic by topic prefix, times from publish to ack. At a stop it records the incomplete minute.

Drops without a known client (QoS 0 for offline sessions is counted without examining each; a message of a group without
members has no client) are the difference to the counters, so that for each reason the events of a minute add up to the
counter's growth in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import broker
from leveldb_store.format import events
from pyx.core import counters as count
from pyx.delivery.minute_statistics import Drops, Prefixes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.context.context import Context
    from broker.context.sessions import Details
    from leveldb_store.format.events import EventKind
    from pyx.delivery.connection import Connection
    from pyx.delivery.session import Session
    from pyx.protocol.packets import Connect

__all__ = ["Recording"]

_MINUTE_MS = 60_000
_PUBLISH_TO_ACK = count.HISTOGRAMS.index("publish_duration")
_RATE = "events_per_second_max"
_DISK = "the store is full or fails"
_REASONS = [
    (number, name.removeprefix("dropped_")) for number, name in enumerate(count.NAMES) if name.startswith("dropped_")
]


class Recording:
    """Records the events of one worker."""

    def __init__(self, context: Context) -> None:
        settings = context.settings.events
        self._context = context
        self._router = context.router
        self._store = context.store
        self._row = context.counters
        self.on: bool = settings.enabled and context.store.keeps
        """Whether events are recorded. `opened` and `closed` are called only then."""
        if not self.on:
            return
        self._router.state.numbers_behind(self._store.last_event)
        self._router.state.drops = Drops(settings.clients_max)
        self._router.state.prefixes = Prefixes(settings.topic_levels, settings.topics_max)
        self._most = self._left = settings.events_per_second_max
        self._suppressed: dict[str, int] = {}
        self._lost: dict[str, int] = {}
        self._unlisted = 0
        self._minute = self._router.state.clock.ms // _MINUTE_MS
        self._dropped = [self._row.get(number) for number, _ in _REASONS]
        self._samples = self._row.histogram(_PUBLISH_TO_ACK)
        self._workers = context.workers

    def started(self) -> None:
        """Record the worker's start: connections without a recorded end have ended before it."""
        if self.on:
            self._put(events.STARTED, (broker.__version__,), (self._row.get(count.INCARNATION), self._workers))

    # ------------------------------------------------------------ connections

    def opened(self, conn: Connection, packet: Connect, session: Session, present: bool, keep_alive: int) -> None:
        """Record a connection whose CONNACK 0 is in its outbox."""
        if not self._allows(events.OPENED):
            return
        details: Details = session.details
        self._put(
            events.OPENED,
            (session.client_id, details.username, conn.address, conn.local_address),
            (packet.version, keep_alive, packet.clean_start, present, details.expiry_interval),
        )

    def closed(self, conn: Connection, session: Session, why: str, reason: int, told: int | None) -> None:
        """Record the end of an open connection. `reason`: the broker's code; `told`: the client's code."""
        if not self._allows(events.CLOSED):
            return
        by = events.BY_CLIENT if told is not None else events.BY_BROKER if reason else events.BY_NOBODY
        self._put(
            events.CLOSED,
            (session.client_id, session.details.username, conn.address, conn.local_address, why),
            (
                conn.version, reason if told is None else told, by, self._router.state.now_ms - conn.opened,
                conn.messages_in, conn.messages_out, conn.bytes_in, conn.bytes_out, conn.drops,
            ),
        )  # fmt: skip

    def log_opened(self, conn: Connection, packet: Connect, session: Session, present: bool, keep_alive: int) -> None:
        """Log the same, where the log allows one more of it."""
        self._context.log.write(
            "info",
            "connection_opened",
            client=session.client_id,
            address=conn.address,
            listener=self._context.listener_of(conn),
            version=packet.version,
            keep_alive=keep_alive,
            clean_start=packet.clean_start,
            session_present=present,
            session_expiry=session.details.expiry_interval,
            username=session.details.username,
        )

    def log_closed(self, conn: Connection, session: Session, why: str, told: int | None) -> None:
        """Log the same, where the log allows one more of it."""
        self._context.log.write(
            "info",
            "connection_closed",
            client=session.client_id,
            address=conn.address,
            listener=self._context.listener_of(conn),
            reason=why,
            code=told,
            seconds=round((self._router.state.now_ms - conn.opened) / 1000, 3),
            messages_in=conn.messages_in,
            messages_out=conn.messages_out,
            bytes_in=conn.bytes_in,
            bytes_out=conn.bytes_out,
            drops=conn.drops,
        )

    def refused(
        self, conn: Connection, reason: int, why: str, client: str | None = None, username: str | None = None
    ) -> None:
        """Record a connection that ended before, or with, its CONNACK."""
        if self.on and self._allows(events.REFUSED):
            texts = (client, username, conn.address, conn.local_address, why)
            self._put(events.REFUSED, texts, (conn.version, reason & 0xFF))

    # ------------------------------------------------------------ sessions

    def session_created(self, session: Session) -> None:
        """Record a new session, if it outlives its connection."""
        if self.on and self._allows(events.CREATED):
            details: Details = session.details
            texts = (session.client_id, details.username)
            self._put(events.CREATED, texts, (session.version, details.expiry_interval))

    def session_expired(self, session: Session) -> None:
        """Record that its Session Expiry Interval has passed."""
        if self.on and self._allows(events.EXPIRED):
            self._put(events.EXPIRED, (session.client_id, session.details.username))

    def taken_over(self, session: Session, by: Connection, former: Connection) -> None:
        """Record that a newer connection of its client has replaced the former one."""
        if self.on and self._allows(events.TAKEN_OVER):
            self._put(events.TAKEN_OVER, (session.client_id, by.address, former.address))

    def session_ended(self, session: Session, why: str) -> None:
        """Record the end of a session that would have outlived its connection."""
        if self.on and self._allows(events.ENDED):
            self._put(events.ENDED, (session.client_id, session.details.username, why))

    def subscribed(self, session: Session, named: bytes, options: int, identifier: int) -> None:
        """Record a new or changed subscription, under the name that the client uses."""
        if self.on and self._allows(events.SUBSCRIBED):
            self._put(events.SUBSCRIBED, (session.client_id, named), (options, identifier))

    def unsubscribed(self, session: Session, named: bytes) -> None:
        """Record the end of a subscription; not recorded for those that end with their session."""
        if self.on and self._allows(events.UNSUBSCRIBED):
            self._put(events.UNSUBSCRIBED, (session.client_id, named))

    # ------------------------------------------------------------ periodic work

    def sweep(self) -> None:
        """Record what is due; called every second."""
        if not self.on:
            return
        self._left = self._most
        minute = self._router.state.clock.ms // _MINUTE_MS
        if minute != self._minute:
            self._tell_minute()
            self._minute = minute
        self._tell_suppressed()
        self._store.pass_on()
        self._row.set(count.EVENTS_BYTES, self._store.events_bytes())
        self._count_unlisted()

    def close(self) -> None:
        """Record the rest when the worker stops."""
        if self.on:
            self._tell_suppressed()
            self._tell_minute()
            self._put(events.STOPPED)

    def _tell_suppressed(self) -> None:
        if self._store.full is not None:
            return  # later, when there is room
        for why, counts in ((_RATE, self._suppressed), (_DISK, self._lost)):
            if counts:
                self._put(events.SUPPRESSED, (why,), (), counts.items())
                counts.clear()

    def _count_unlisted(self) -> None:
        unlisted = self._router.state.drops.unlisted + self._router.state.prefixes.unlisted
        self._row.add(count.EVENTS_UNLISTED, unlisted - self._unlisted)
        self._unlisted = unlisted

    def _tell_minute(self) -> None:
        minute = self._minute * _MINUTE_MS
        self._tell_drops(minute)
        self._tell_topics(minute)
        self._tell_times(minute)
        totals = ((name, value) for name, value in self._row.as_dict().items() if value)
        self._put(events.COUNTERS, (), (minute,), totals)

    def _tell_drops(self, minute: int) -> None:
        known: dict[int, int] = {}
        names = dict(_REASONS)
        for client_id, number, dropped in self._router.state.drops.take():
            known[number] = known.get(number, 0) + dropped
            self._put(events.DROPPED, (client_id, names[number]), (minute, dropped))
        totals = [self._row.get(number) for number, _ in _REASONS]
        for (number, name), total, before in zip(_REASONS, totals, self._dropped, strict=True):
            rest = total - before - known.get(number, 0)
            if rest > 0:
                self._put(events.DROPPED, (None, name), (minute, rest))
        self._dropped = totals

    def _tell_topics(self, minute: int) -> None:
        rows, others = self._router.state.prefixes.take()
        for prefix, delivered, dropped in rows:
            self._put(events.TOPICS, (prefix,), (minute, delivered, dropped, 0))
        if any(others):
            self._put(events.TOPICS, (None,), (minute, *others, 1))

    def _tell_times(self, minute: int) -> None:
        total, samples = self._row.histogram(_PUBLISH_TO_ACK)
        total_before, samples_before = self._samples
        self._samples = total, samples
        new = [now - before for now, before in zip(samples, samples_before, strict=True)]
        if any(new):
            bounds = [*map(str, count.BOUNDS_NS), "more"]
            table = [(bound, samples) for bound, samples in zip(bounds, new, strict=True) if samples]
            self._put(events.PUBLISH_TO_ACK, (), (minute, sum(new), total - total_before), table)

    # ------------------------------------------------------------ the store

    def _allows(self, kind: EventKind) -> bool:
        if self._left > 0:
            self._left -= 1
            return True
        self._suppressed[kind.name] = self._suppressed.get(kind.name, 0) + 1
        self._row.add(count.EVENTS_SUPPRESSED)
        return False

    def _put(
        self,
        kind: EventKind,
        texts: Sequence[str | bytes | None] = (),
        numbers: Sequence[int] = (),
        table: Iterable[tuple[str, int]] = (),
    ) -> None:
        if self._store.full is not None:
            self._lost[kind.name] = self._lost.get(kind.name, 0) + 1
            self._row.add(count.EVENTS_LOST)
            return
        self._store.record(self._router.state.next_number(), events.encode_event(kind, texts, numbers, table))
        self._row.add(count.EVENTS_RECORDED)

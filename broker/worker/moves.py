"""A session moves to the host to which its client has connected.

The new host asks, the present owner gives:

    new -> owner    GIVE       u64 epoch: you own it since then; end its connection, and give its session, or, if its
                               client starts anew, only hold it
    owner -> new    NOTHING    there is none, or it has ended with its connection, or it is held
                    CANCEL     not now, or not of that epoch: a host that was away hears a question that is old
                    STATE      its terms and subscriptions, in parts
    new -> owner    GO_ON      all workers and hosts that are there know the subscriptions of the new one
    owner -> new    PAGE       what it has for its client, in parts (`pyx.delivery.moving`)
    new -> owner    CANCEL     keep it

The new host has a session with these subscriptions before it says GO_ON, and the owner waits for what is on its way to
it (`broker.worker.flushing`) before the first page. So whatever is published is either in a page, or comes to the new
host, or both; what comes twice is known by its mark (`pyx.delivery.seen_messages`), and sent once. When all is stored,
the new host takes the ownership (`broker.worker.owning`), and the former owner ends its session when it hears that.
Until then the former owner has all of it: if one of the two ends on the way, its session is the one that counts. If it
does not hear how it went, it asks who owns the client id: the new one may have ended after it took it.

A host may have a session whose client another one has taken when nobody heard of it: it was dead, or etcd was away.
When it finds that out it hands over what it has:

    former -> owner   LATE      what it has for its client, in parts; then all that has come meanwhile
    owner -> former   DONE      it is queued, or not wanted: end the session
                      NOTHING   there is no session: the former owner keeps its, and takes the client id
                      CANCEL    not now: the session moves, or it is not known here who owns the client id

The owner takes what its own session has not had; a session remembers what it has had while a host is away, and for a
minute. Of a session that began with a clean start it takes nothing.

A host that is away may have messages for the former owner, which it has acknowledged and keeps, and may not know the
subscriptions of the present one. While one is away from either, the shell of a session that has moved stays behind,
with its subscriptions, and what comes for it is handed over likewise.

The will is not moved: with the connection it is due, or waits for its delay, and then the client is back. Not moved
either: replays of the archive, which has another one on each host, and what is still to be sent of the retained
messages that a SUBSCRIBE has asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.worker.fetching import Fetching, Send
from broker.worker.giving import Giving
from broker.worker.session_parts import ALL_THERE, CANCEL, DONE, GIVE, GIVE_TERMS, GO_ON, LATE, NOTHING, GiveKind

if TYPE_CHECKING:
    from broker.clients.capacity import Capacity
    from broker.clients.closing import Closing
    from broker.clients.endings import Endings
    from broker.clients.subscribing import Subscribing
    from broker.context.context import Context
    from broker.context.sessions import Sessions
    from broker.persistence.state_records import StateRecords
    from broker.worker.other_owners import OtherOwners

__all__ = ["SessionMoves"]


class SessionMoves:
    """The moves of one worker's sessions, both ways. resolve: finds out who owns a client id whose session may have
    gone.
    """

    def __init__(
        self,
        context: Context,
        sessions: Sessions,
        state_records: StateRecords,
        endings: Endings,
        capacity: Capacity,
        closing: Closing,
        subscribing: Subscribing,
        others: OtherOwners,
        send: Send,
        resolve: Callable[[str], None],
    ) -> None:
        self._send = send
        numbers = itertools.count(context.router.state.wall_ms << 16)  # of moves; they rise over restarts
        self._fetching = Fetching(
            context, sessions, state_records, endings, capacity, closing, subscribing, others, send, numbers
        )
        self._giving = Giving(context, sessions, endings, closing, others, send, resolve, numbers)
        self.is_leaving, self.left_behind = self._giving.is_leaving, self._giving.left_behind
        self.fetch = self._fetching.fetch
        self.hand_over = self._giving.hand_over
        self.stays_behind, self.keep = self._giving.stays_behind, self._giving.keep
        self.has_sent, self.gone = self._giving.has_sent, self._giving.gone
        self._fetching.stays_behind = self._giving.look_later
        self.begun, self.ended = self._fetching.begun, self._fetching.ended
        self.end_former = self._fetching.end_former

    def cancel(self, client_id: str, host: int | None) -> None:
        """Let the former owner keep a session that has come: another host has taken the client id meanwhile."""
        if host is not None:
            self._send(host, CANCEL, 0, client_id, b"")
        self._fetching.end_vain(client_id)

    def heard(self, kind: bytes, host: int, number: int, client_id: str, rest: bytes) -> None:
        """Take a message of another host about a client id whose home this worker is. Raises ValueError and
        struct.error.
        """
        if kind == GIVE:
            epoch, wanted = GIVE_TERMS.unpack(rest)
            self._giving.give(client_id, number, host, epoch, GiveKind(wanted))
        elif kind == GO_ON:
            self._giving.go_on(client_id, number, rest == ALL_THERE)
        elif kind == DONE:
            self._giving.is_done(client_id, number, rest == ALL_THERE)
        elif kind == LATE:
            if self.is_leaving(client_id) or not self._fetching.late_came(client_id, host, number, rest):
                self._send(host, CANCEL, number, client_id, b"")
        else:
            if kind == CANCEL:
                self._giving.cancelled(client_id, number, host)
            elif kind == NOTHING:
                self._giving.is_not_wanted(client_id, number)
            self._fetching.came(kind, host, number, client_id, rest)

    def host_away(self, host: int) -> None:
        """Give up what needs a host that does not answer."""
        self._fetching.host_away(host)
        self._giving.host_away(host)

    def tick(self, now: float) -> None:
        """Give up what is silent."""
        self._fetching.tick(now)
        self._giving.tick(now)

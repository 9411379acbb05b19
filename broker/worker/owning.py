"""Client ids of this worker that its host owns: one host of the cluster does, and only that one serves the client.

Before a client gets its session here, its host owns the client id (`broker.cluster.ownership`, asked through the
control process). If another host owns it, this one takes it from that, tells it so, and waits until it has closed its
connection. The epoch of the later owner is higher, so that of two hosts that take it at the same time one gives way.

    TAKEN    the sender owns it since this epoch: give way. u8: what to do with the session (`Fate`)
    GIVEN    it is not served here

Before it takes it, it brings the session, unless its client starts anew (`broker.worker.moves`). A host that drains
offers sessions, which are taken likewise, without a client (`broker.worker.draining`).

A client is served without an answer when the coordinator is out of reach: its ownership is *unproven*, and asked
for again until it is known; if another host owns it by then, the connection is closed, and the client comes back in
order. What is owned without a session (the client has ended it, or was refused) is released after
a while (`broker.worker.spare_owners`), so that a client that comes back at once costs nothing.
"""

from __future__ import annotations

import socket
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.cluster.owner_messages import OwnerAnswer, RequestKind, Standing
from broker.config.bridges import LOCAL_IDS
from broker.worker.client_messages import ClientMessages
from broker.worker.draining import OFFER, Draining
from broker.worker.fetching import Fetched
from broker.worker.giving import LateOutcome
from broker.worker.lost_owners import LostOwners
from broker.worker.moves import SessionMoves
from broker.worker.moving_clients import MovingClients
from broker.worker.owner_looks import Look, OwnerLooks
from broker.worker.owner_questions import OwnerQuestions
from broker.worker.owner_wait import Fate, OwnerWait, nothing_decided
from broker.worker.proving import Proving
from broker.worker.session_parts import CANCEL, DONE, GIVE, GO_ON, LATE, NOTHING, PAGE, STATE, GiveKind
from broker.worker.spare_owners import Release, SpareOwners
from broker.worker.spreading import Spreading
from pyx.core import counters as count

if TYPE_CHECKING:
    from broker.clients.authenticating import ConnectAttempt
    from broker.clients.capacity import Capacity
    from broker.clients.closing import Closing
    from broker.clients.connecting import Connecting
    from broker.clients.endings import Endings
    from broker.clients.subscribing import Subscribing
    from broker.context.context import Context
    from broker.context.sessions import Sessions
    from broker.persistence.recording import Recording
    from broker.persistence.state_records import StateRecords
    from broker.worker.other_owners import OtherOwners
    from pyx.delivery.session import Session

__all__ = ["KINDS", "Owning"]

TAKEN: Final = b"T"
GIVEN: Final = b"g"
KINDS: Final = (TAKEN, GIVEN, OFFER, GIVE, NOTHING, STATE, GO_ON, PAGE, CANCEL, LATE, DONE)
_GIVE_SECONDS: Final = 2.0
"""Time that another host has to close its connection."""
_OPENING_SECONDS_MAX: Final = 30.0
"""Time after which a CONNECT that waits is taken for lost by a defect: the next one of its client is decided anew."""
_TRIES_MAX: Final = 8
"""Times that an ownership is taken from another host that has taken it meanwhile, for one CONNECT."""
_DECIDING: Final = 1
_CLOSING: Final = 3


class Owning:
    """The ownership of one worker's client ids. others: the way to other hosts."""

    def __init__(
        self,
        context: Context,
        sessions: Sessions,
        endings: Endings,
        capacity: Capacity,
        closing: Closing,
        connecting: Connecting,
        subscribing: Subscribing,
        state_records: StateRecords,
        recording: Recording,
        control: socket.socket,
        others: OtherOwners,
    ) -> None:
        self._context = context
        self._router = context.router
        self._sessions = sessions
        self._endings = endings
        self._capacity = capacity
        self._closing = closing
        self._connecting = connecting
        self._recording = recording
        self._others = others
        self._questions = OwnerQuestions["OwnerWait | Release | Look"](context, control, self._answered, self._stands)
        self.receive = self._questions.receive
        self._lease = 0
        self._opening: dict[str, OwnerWait] = {}
        """By client id: the CONNECT that waits for the owner; a newer one takes its place."""
        self._giving: dict[tuple[str, int], OwnerWait] = {}
        """By client id and epoch: taken, and the former owner has not answered yet."""
        self._lost = LostOwners()
        self.looks = OwnerLooks(self._questions.ask, others)
        self._spare = SpareOwners(context, self._is_needed, lambda releases: self._questions.ask(*releases))
        self._proving = Proving(context, sessions, self._questions.ask, self._opening.__contains__, self._proven)
        self.claim_all = self._proving.add_all
        self._proven_at = self._now()
        """When this host surely was a member."""
        self._messages = ClientMessages(context, others)
        self._moves = SessionMoves(
            context, sessions, state_records, endings, capacity, closing, subscribing, others, self._messages.tell,
            self._resolve,
        )  # fmt: skip
        self.draining = Draining(
            context, sessions, closing, lambda host, epoch, name: self._messages.tell(host, OFFER, epoch, name),
            self._moves.is_leaving, self._moves.left_behind, lambda: len(self._opening),
        )  # fmt: skip
        self.spreading = Spreading(context, closing, others)
        self.moving_clients = MovingClients(context, sessions, closing, self._moves.is_leaving)
        self.host_away = self._moves.host_away
        sessions.when_removed, sessions.when_begun = self._removed, self._begun

    # ------------------------------------------------------------ CONNECT

    def _now(self) -> float:
        return self._router.state.now_ms / 1000

    def open(self, attempt: ConnectAttempt, username: str | None, authentication: dict[str, Any]) -> None:
        """Implements `ConnectionOpener`: opens the connection once this host owns its client id."""
        client_id = attempt.client_id
        if self.draining.is_on and not client_id.startswith(LOCAL_IDS):
            self.draining.refuse(attempt.conn, client_id)
            return
        if self._moves.is_leaving(client_id):
            self._closing.unavailable(attempt.conn, "its session moves to another host", client=client_id)
            return
        if self._is_doubtful(attempt):
            self._context.counters.add(count.OWNERS_DOUBTFUL)
            self._closing.unavailable(attempt.conn, "this host may be no member of its cluster", client=client_id)
            return
        session = self._sessions.get(client_id)
        epoch = session.details.epoch if session is not None else 0
        epoch = epoch or self._spare.epoch_of(client_id)
        if epoch:
            attempt.epoch = epoch
            self._connecting.open(attempt, username, authentication)
            return
        wait = self._opening.get(client_id)
        if wait is not None and self._now() - wait.since > _OPENING_SECONDS_MAX:
            wait = None
        if wait is None and not self._proving.is_reachable:
            self._open(attempt, username, authentication, 0)
            return
        attempt.conn.state = _DECIDING
        if wait is not None:
            self._replace(wait, attempt, username, authentication)
            return
        wait = self._opening[client_id] = OwnerWait(client_id, nothing_decided, attempt)
        wait.username, wait.authentication, wait.since = username, authentication, self._now()
        wait.fate = Fate.CLEAN_START if attempt.packet.clean_start else Fate.STAYS
        wait.then = partial(self._decided, wait)
        self._questions.ask(wait)

    def _replace(
        self, wait: OwnerWait, attempt: ConnectAttempt, username: str | None, authentication: dict[str, Any]
    ) -> None:
        """Let a newer connection wait in place of an older one of the same client."""
        older, wait.attempt = wait.attempt, attempt
        wait.username, wait.authentication = username, authentication
        if older is not None and older.conn.fd >= 0 and older.conn.state < _CLOSING:
            self._closing.give_up(older.conn, "a newer connection of this client id was faster")

    def _is_doubtful(self, attempt: ConnectAttempt) -> bool:
        """Whether a session that lasts may be another host's by now."""
        most = self._context.settings.cluster.unproven_seconds_max
        if not most or self._now() - self._proven_at <= most:
            return False
        lasts: int = attempt.packet.properties.get("session_expiry_interval", 0)
        return not attempt.packet.clean_start or lasts > 0

    def _decided(self, wait: OwnerWait, epoch: int | None) -> None:
        attempt = wait.attempt
        if self._opening.get(wait.client_id) is wait:
            del self._opening[wait.client_id]
        if epoch:
            self._settled(wait.client_id, epoch)
        self._proving.add_unknown(wait.client_id)
        if attempt is not None and attempt.conn.fd >= 0 and attempt.conn.state < _CLOSING:
            self._context.guard(attempt.conn, self._open, attempt, wait.username, wait.authentication, epoch)
            self._context.dispatch.resume(attempt.conn)

    def _open(
        self, attempt: ConnectAttempt, username: str | None, authentication: dict[str, Any], epoch: int | None
    ) -> None:
        if epoch is None:
            self._closing.unavailable(attempt.conn, "another host serves this client", client=attempt.client_id)
            return
        attempt.epoch = epoch
        self._connecting.open(attempt, username, authentication)
        if not epoch:
            self._proving.add(attempt.client_id)
            self._context.counters.add(count.OWNERS_UNPROVEN)

    # ------------------------------------------------------------ answers of the control process

    def _answered(self, question: OwnerWait | Release | Look, answer: OwnerAnswer) -> None:
        if isinstance(question, Look):  # its answer says nothing about claims
            self.looks.answered(question, answer)
            return
        self._proving.is_reachable = answer.is_known
        if isinstance(question, Release):
            self._spare.answered(question, answer.is_known)
        else:
            self._owner_known(question, answer)

    def _owner_known(self, wait: OwnerWait, answer: OwnerAnswer) -> None:
        if not answer.is_known:
            if wait.kind is RequestKind.TAKE:
                self._proving.take_unheard(wait.client_id, wait.former)
            wait.then(0)
        elif answer.node == self._context.settings.cluster.node_id:
            if wait.former:
                self._context.counters.add(count.OWNERS_TAKEN)
                if wait.fate is Fate.NOTHING and not self._lost.has_ended(wait.client_id, answer.epoch):
                    self._moves.end_former(wait.client_id)
                self._tell_former(wait, answer.epoch)
            else:
                self._owned(wait, answer.epoch)
        elif not answer.node:  # its owner has left meanwhile
            wait.kind, wait.epoch = RequestKind.CLAIM, 0
            self._questions.ask(wait)
        else:
            if wait.fate is Fate.MOVED:  # in vain
                self._moves.cancel(wait.client_id, self._others.number_of(wait.former))
            wait.fate = Fate.CLEAN_START if wait.fate is Fate.CLEAN_START else Fate.STAYS
            wait.tries += 1
            wait.former, wait.epoch = answer.node, answer.epoch
            if wait.attempt is None or wait.tries > _TRIES_MAX:  # without a client there is no need
                wait.then(None)
            else:
                self._take(wait)

    def _owned(self, wait: OwnerWait, epoch: int) -> None:
        """Go on with an ownership, if no other host has taken it before this one has heard of it."""
        if self._lost.has_ended(wait.client_id, epoch) and wait.tries <= _TRIES_MAX:
            wait.kind, wait.epoch, wait.tries = RequestKind.CLAIM, 0, wait.tries + 1
            wait.fate = Fate.STAYS if wait.fate is Fate.MOVED else wait.fate  # its former host has ended the session
            self._questions.ask(wait)
        else:
            wait.then(epoch)

    def _take(self, wait: OwnerWait) -> None:
        """Take a client id from another host, after its session has come."""
        wait.kind, attempt = RequestKind.TAKE, wait.attempt
        if attempt is not None and (attempt.conn.fd < 0 or attempt.conn.state >= _CLOSING):
            wait.then(None)
            return
        if attempt is not None and not self._connecting.may_take_over(attempt, wait.former):
            if self._opening.get(wait.client_id) is wait:
                del self._opening[wait.client_id]
            self._proving.add_unknown(wait.client_id)
            return
        host = self._others.number_of(wait.former)
        if host is None:
            self._questions.ask(wait)
            return

        is_clean = wait.fate is Fate.CLEAN_START

        def came(fetched: Fetched) -> None:
            if is_clean:
                self._questions.ask(wait)
                return
            if fetched is Fetched.FAILED and attempt is None and wait.attempt is not None:  # its client came meanwhile
                wait.fate = Fate.CLEAN_START if wait.attempt.packet.clean_start else Fate.STAYS
                self._take(wait)
                return
            if fetched is Fetched.FAILED or (wait.attempt is None and fetched is Fetched.NOTHING):
                wait.then(None)
                return
            if wait.attempt is None and self.draining.is_on:
                self._moves.cancel(wait.client_id, host)
                wait.then(None)
                return
            wait.fate = Fate.MOVED if fetched is Fetched.SESSION else Fate.NOTHING
            self._questions.ask(wait)

        def unreachable() -> None:
            if wait.attempt is None:
                wait.then(None)
            else:
                self._questions.ask(wait)

        def fetch(outcome: LateOutcome) -> None:
            if outcome is LateOutcome.NOT_NOW and self._others.link_of(host) is not None:
                wait.then(None)
            elif outcome is not LateOutcome.DONE:  # the session of this host goes on
                self._questions.ask(wait)
            else:
                wanted = GiveKind.OFFERED if attempt is None else GiveKind.NOTHING if is_clean else GiveKind.SESSION
                self._moves.fetch(wait.client_id, host, wait.epoch, came, unreachable, wanted)

        if not is_clean and self._others.link_of(host) is not None and self._sessions.get(wait.client_id) is not None:
            self._moves.hand_over(wait.client_id, host, fetch)  # of a time when this host was the owner: it comes back
        else:
            fetch(LateOutcome.DONE)

    def _stands(self, standing: Standing) -> None:
        """Claim everything anew if what this host owned has ended with its former lease."""
        if standing.is_proven:
            self._proven_at = self._now()
        former, self._lease = self._lease, standing.lease or self._lease
        if former and self._lease != former:
            self._spare.clear()
            self.claim_all()

    def tick(self, now: float) -> None:
        """Give up what is due, release what nobody needs, and ask again for what is unproven."""
        self._questions.tick(now)
        while self._giving and next(iter(self._giving.values())).due <= now:
            wait = self._giving.pop(next(iter(self._giving)))
            self._context.guard_client(wait.client_id, self._owned, wait, wait.epoch)
        self._lost.tick(now)
        self._moves.tick(now)
        self._spare.tick()
        self.draining.tick(now)
        self.spreading.tick()
        self.moving_clients.tick(now)
        self._proving.tick(now)

    def _proven(self, wait: OwnerWait, epoch: int | None) -> None:
        if epoch is None:
            self._proving.former_of(wait.client_id)
            self._hand_over(wait.client_id, wait.former, wait.epoch)
        else:
            self._settled(wait.client_id, epoch)

    def _settled(self, client_id: str, epoch: int) -> None:
        """Note since when this host owns a client id; 0: it is not known."""
        session = self._sessions.get(client_id)
        if not epoch:
            self._proving.add(client_id)
            return
        if session is None:
            self._spare.keep(client_id, epoch)
        else:
            session.details.epoch, session.details.left_behind = epoch, False
        host = self._others.number_of(self._proving.former_of(client_id))
        if host is not None:  # it has not heard that it was taken from it
            self._tell_taken(host, epoch, client_id, Fate.STAYS)

    def _hand_over(self, client_id: str, node: str, epoch: int) -> None:
        """Close the connection of a client that another host owns since this epoch, and hand over what its session
        has.
        """
        host, session = self._others.number_of(node), self._sessions.get(client_id)
        if session is not None:
            self._closing.taken_over_elsewhere(session)

        def over(outcome: LateOutcome) -> None:
            if outcome is LateOutcome.NOT_NOW:
                self._proving.add_later(client_id)
            elif outcome is LateOutcome.NOT_WANTED:
                self._take_back(client_id, node, epoch)

        if host is None or self._others.link_of(host) is None:
            self._proving.add_later(client_id)
        else:
            self._moves.hand_over(client_id, host, over)

    def _take_back(self, client_id: str, node: str, epoch: int) -> None:
        """Take a client id whose owner has no session for it, because this host has one."""
        if client_id in self._opening:
            return
        wait = OwnerWait(client_id, nothing_decided)
        wait.kind, wait.epoch, wait.former = RequestKind.TAKE, epoch, node
        wait.then = lambda epoch: self._settled(client_id, epoch or 0)
        self._questions.ask(wait)

    # ------------------------------------------------------------ owned without a session

    def _begun(self, session: Session) -> None:
        self._moves.begun(session)
        if self._lost.has_ended(session.client_id, session.details.epoch):  # while its CONNECT waited
            session.details.epoch = 0
        self._proving.add_unknown(session.client_id)

    def _removed(self, session: Session) -> None:
        self._moves.gone(session)
        if session.details.epoch:
            self._moves.ended(session)
            self._spare.keep(session.client_id, session.details.epoch)

    def _is_needed(self, client_id: str, epoch: int) -> bool:
        """Whether a client id has a session again, or will have."""
        session = self._sessions.get(client_id)
        if session is not None:
            session.details.epoch = max(epoch, session.details.epoch)
        elif self._endings.is_awaited(client_id) or self._capacity.waiting_for(client_id):
            self._spare.keep(client_id, epoch)
        else:
            return False
        return True

    # ------------------------------------------------------------ other hosts

    def _tell_former(self, wait: OwnerWait, epoch: int) -> None:
        host, wait.epoch = self._others.number_of(wait.former), epoch
        # a host that does not answer hears it when it is back
        if host is None or not self._tell_taken(host, epoch, wait.client_id, wait.fate):
            self._owned(wait, epoch)
            return
        wait.due = self._now() + _GIVE_SECONDS
        self._giving[wait.client_id, epoch] = wait

    def _tell_taken(self, host: int, epoch: int, client_id: str, fate: Fate) -> bool:
        return self._messages.tell(host, TAKEN, epoch, client_id, bytes([fate]), keeps=True)

    def heard(self, kind: bytes, payload: bytes) -> None:
        """Take a message of another host, which may be for a sibling. Raises ValueError, struct.error."""
        message = self._messages.take(kind, payload)
        if message is None:
            return
        host, number, client_id, rest = message
        if kind == TAKEN:
            self._give(client_id, host, number, Fate(rest[0]))
            self._messages.tell(host, GIVEN, number, client_id)
        elif kind == GIVEN:
            wait = self._giving.pop((client_id, number), None)
            if wait is not None:
                self._context.guard_client(client_id, self._owned, wait, number)
        elif kind == OFFER:
            self._offered(client_id, host, number)
        else:
            self._moves.heard(kind, host, number, client_id, rest)

    def _offered(self, client_id: str, host: int, epoch: int) -> None:
        """Take a session that another host offers, unless its client comes by itself or this host has one."""
        session, node = self._sessions.get(client_id), self._others.node_of(host)
        if session is not None and session.details.epoch > epoch:  # it has not heard that
            self._tell_taken(host, session.details.epoch, client_id, Fate.STAYS)
        is_here = session is not None and (session.details.epoch or session.connection or session.details.awaiting)
        is_busy = client_id in self._opening or self._moves.is_leaving(client_id)
        if is_here or is_busy or not node or self.draining.is_on:
            return
        wait = self._opening[client_id] = OwnerWait(client_id, nothing_decided)
        wait.since, wait.former, wait.epoch = self._now(), node, epoch
        wait.then = partial(self._decided, wait)
        self._take(wait)

    def _give(self, client_id: str, host: int, epoch: int, fate: Fate) -> None:
        """Serve a client no more, because another host owns it since this epoch."""
        self._lost.add(client_id, epoch, self._now())
        self.spreading.followed(client_id)
        self._spare.forget_before(client_id, epoch)
        wait = self._opening.get(client_id)
        if wait is not None and wait.epoch < epoch and self._giving.pop((client_id, wait.epoch), None) is not None:
            wait.then(None)  # it has been taken again, before its former owner has answered
        session = self._sessions.get(client_id)
        if session is None or session.details.epoch >= epoch:
            return
        session.details.epoch = 0
        has_moved = fate is Fate.MOVED and self._moves.has_sent(client_id, host)
        stays_behind = has_moved and self._moves.stays_behind(client_id)
        if not has_moved:
            self._moves.keep(client_id)
        self._closing.taken_over_elsewhere(session)
        session = self._sessions.get(client_id)
        if session is None or stays_behind:
            return
        if has_moved:
            self._endings.end_moved(session)
        elif fate is Fate.CLEAN_START:
            self._recording.session_ended(session, "clean start")
            self._endings.end(session)
        else:
            self._proving.add(client_id)  # what the owner has not had is handed over

    def _resolve(self, client_id: str) -> None:
        """Find out whether a session has gone of whose move nothing is heard any more."""

        def known(epoch: int | None) -> None:
            session = self._sessions.get(client_id)
            if epoch == 0:
                self._proving.add_unknown(client_id)
            elif not self._moves.keep(client_id):
                return  # it is being handed over
            elif epoch is not None:
                self._settled(client_id, epoch)
            elif session is None or session.details.epoch < wait.epoch:
                if session is not None:
                    session.details.epoch = 0
                self._hand_over(client_id, wait.former, wait.epoch)  # if it has moved, the owner has had it

        wait = OwnerWait(client_id, known)
        self._questions.ask(wait)

"""Members of share groups are spread over the hosts of a cluster: who is too many here is sent to another host.

For groups with `spread = true` (`[[shared]]`). What every host is to have, and who sends how many where, is a pure
function of how many members are online where (`broker.cluster.spread`); when a worker carries out its part is decided
in `broker.worker.group_plans`. Hosts count that are ready and say where clients reach them, as the control process has
it from etcd; while this worker has no link with one of them, nothing is begun.

A member leaves in two steps. It is withdrawn from its groups (`pyx.delivery.spread_groups`), so that it is sent nothing
more for them. When it has acknowledged what it has, it gets DISCONNECT 0x9D (Server moved) with the other host's
address as Server Reference, and is closed; before MQTT 5 it is only closed. Its session comes along to where it
connects, and one that ends with its connection has nothing in flight. If it acknowledges nothing for QUIET_SECONDS_MAX,
it goes all the same if its session lasts, else it stays: what it has in flight might be lost or be sent twice.

A client that is a member of several such groups goes only where all of them send members; so none of them is made
worse for another one, and what has been spread is not moved to and fro.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.config.bridges import LOCAL_IDS
from broker.worker.group_plans import GROUPS_MAX, GroupPlan, GroupPlans
from broker.worker.sent_members import SentMembers
from pyx.core import counters as count
from pyx.core.work import HELD, STEP, spend
from pyx.delivery.spread_groups import SpreadGroups
from pyx.protocol.reasons import ReasonCode

if TYPE_CHECKING:
    from broker.clients.closing import Closing
    from broker.config.settings import Settings
    from broker.context.context import Context
    from broker.worker.other_owners import OtherOwners
    from pyx.delivery.connection import Connection
    from pyx.delivery.session import Session

__all__ = ["LEAVING_MAX", "LOOK_SECONDS", "QUIET_SECONDS_MAX", "SUBSCRIPTIONS_MAX", "SpreadHost", "Spreading"]

LOOK_SECONDS: Final = 0.5
"""Pause between two walks over all groups."""
_STEP_SECONDS: Final = 0.1
QUIET_SECONDS_MAX: Final = 10.0
"""Time in which a member that is to leave may acknowledge what it has."""
LEAVING_MAX: Final = 1000
"""Members of a worker that are withdrawn, and have not been sent away yet."""
SUBSCRIPTIONS_MAX: Final = 1000
"""Of a client: one that has more is not sent away, because of what is looked at for each."""
_BOUND_SECONDS: Final = 5.0
"""Time for which a client is not looked at again that is held here by another group."""
_LOOKED_AT: Final = 200
"""Members that are looked at, or end, in one callback; fewer if they have many subscriptions."""
_SUBSCRIPTIONS_AS_ONE: Final = 5
"""Subscriptions that are as much work as a member."""
_GROUPS_AT_ONCE: Final = 50
_WHY: Final = "another host has fewer members of its share group"


class SpreadHost(NamedTuple):
    """A host that counts: it is ready. client_address: where clients reach it; "": it does not say, and does not
    count.
    """

    number: int
    node: str
    client_address: str


class _Leaving(NamedTuple):
    """A member that is withdrawn. node: where it goes. until: when it is not waited for any more."""

    session: Session
    connection: Connection
    node: str
    until: float
    plan: GroupPlan


class Spreading:
    """The members of one worker. others: the way to other hosts."""

    def __init__(self, context: Context, closing: Closing, others: OtherOwners) -> None:
        self._context = context
        self._closing = closing
        self._others = others
        self._groups = SpreadGroups(context.router.state, context.router.enrolling)
        self._plans = GroupPlans(context.index)
        self._sent = SentMembers()
        self.followed = self._sent.followed
        self._hosts: dict[str, SpreadHost] = {}
        """The other hosts that count, by node id, in the order of their numbers; none if this one does not count."""
        self._planned: deque[GroupPlan] = deque()
        """Plans that begin later, in order."""
        self._begun: deque[GroupPlan] = deque()
        """Plans that are carried out, in turn."""
        self._looked_through: set[GroupPlan] = set()
        """Plans that have no more to do, and whose members are on their way out."""
        self._by_number: dict[int, GroupPlan] = {}
        """All of these, by the number of their group."""
        self._leaving: dict[str, _Leaving] = {}
        """By client id, the first ones first."""
        self._bound: set[str] = set()
        """Client ids that another group holds here, found not long ago."""
        self._bound_until = 0.0
        self._room = 0.0
        """How many may be sent away now."""
        self._stepped_at = self._looked_at = 0.0
        self._is_looking = False
        self._left = 0
        """How many may be looked at yet in this callback."""
        self._timer: Any = None
        self._settings: Settings | None = None
        self._is_wanted = False
        """Whether there is a group at all whose members are to be spread, by the settings."""

    def set(self, own: int, hosts: Sequence[SpreadHost]) -> None:
        """Note which hosts are ready, this one among them if it is. own: its number."""
        counting = [each for each in hosts if each.client_address]
        is_one = any(each.number == own for each in counting)
        others = {each.node: each for each in sorted(counting) if each.number != own} if is_one else {}
        if others == self._hosts:
            return
        self._hosts = others
        self._planned.clear()
        self._begun.clear()
        self._looked_through.clear()
        self._by_number.clear()
        self._plans.forget_all()

    @property
    def _is_on(self) -> bool:
        if self._context.settings is not self._settings:
            self._settings = self._context.settings
            self._is_wanted = any(rule.spread for rule in self._settings.shared)
        return self._is_wanted and bool(self._hosts)

    def _now(self) -> float:
        return self._context.router.state.now_ms / 1000

    def tick(self) -> None:
        """Begin, if there is something to spread: from then on a timer of its own wakes the worker."""
        if self._timer is None and (self._is_on or self._leaving):
            self._stepped_at = self._now()
            self._wait()

    def _wait(self) -> None:
        state = self._context.router.state
        seconds = _STEP_SECONDS if self._by_number or self._leaving else LOOK_SECONDS
        self._timer = self._context.timers.call(state.now_ms + int(seconds * 1000), self._turn)

    def _turn(self) -> None:
        self._timer = None
        now = self._now()
        self._context.guard_client(None, self._step, now)
        if self._is_on and now - self._looked_at >= LOOK_SECONDS and not self._is_looking:
            self._context.guard_client(None, self._look, now)
        if self._is_on or self._leaving:
            self._wait()

    # ------------------------------------------------------------ which groups

    def _place_of(self, host: SpreadHost) -> int | None:
        """Return the place of the rail by which a host says what it has; None: it is not linked."""
        link = self._others.link_of(host.number)
        return None if link is None else link.peer

    def _look(self, now: float) -> None:
        self._looked_at = now
        places = {self._place_of(host): node for node, host in self._hosts.items()}
        if None in places:
            self._plans.forget_all()
            return
        self._context.in_pieces(self._walk({place: node for place, node in places.items() if place is not None}))

    def _walk(self, places: dict[int, str]) -> Iterator[None]:
        """Look at all groups. places: of the rails by which the other hosts say what they have."""
        hosts, own = self._hosts, self._context.settings.cluster.node_id
        rails = sum(1 << place for place in places)
        self._is_looking = True
        try:
            self._plans.begin_walk(own, [places[place] for place in sorted(places)])
            self._groups.begin()
            while not self._groups.is_over:
                for at, found in enumerate(self._groups.uneven(rails)):
                    self._look_at(*found)
                    if at % _GROUPS_AT_ONCE == _GROUPS_AT_ONCE - 1:
                        yield
                        if self._hosts is not hosts:
                            return
                yield
                if self._hosts is not hosts:
                    return
            self._plans.end_walk(self._now())
        finally:
            self._is_looking, self._looked_at = False, self._now()

    def _look_at(self, number: int, label: bytes, workers: tuple[int, ...], others: tuple[int, ...]) -> None:
        spend(STEP)
        if number in self._by_number or len(self._by_number) >= GROUPS_MAX:
            return
        plan = self._plans.look(number, label, workers, others, self._now())
        if plan is not None:
            spend(STEP * (len(workers) + 2 * len(others)))
            self._by_number[number] = plan
            self._planned.append(plan)

    # ------------------------------------------------------------ which members

    def _step(self, now: float) -> None:
        """Send away as many as may go now."""
        per_second = self._context.settings.cluster.drain_per_second / self._context.workers
        self._room = min(self._room + (now - self._stepped_at) * per_second, max(1.0, per_second))
        self._stepped_at = now
        self._sent.forget_old(now)
        self._left = _LOOKED_AT
        if now >= self._bound_until:
            self._bound_until = now + _BOUND_SECONDS
            self._bound.clear()
        self._end_leaving(now)
        while self._planned and self._planned[0].begins <= now:
            self._begun.append(self._planned.popleft())
        while self._left > 0 and self._begun and self._room >= 1 and len(self._leaving) < LEAVING_MAX:
            self._spend_on(None)
            plan = self._begun.popleft()
            session = self._next_member(plan)
            if session is not None:
                self._begun.append(plan)
                self._context.guard_session(session, self._consider, session, plan, now)
            elif not plan.leaving:
                self._end(plan, now)
            else:
                self._looked_through.add(plan)

    def _spend_on(self, session: Session | None) -> None:
        """Count the work for a member; None: without its subscriptions."""
        members = 1 if session is None else session.subscriptions // _SUBSCRIPTIONS_AS_ONE
        self._left -= members
        spend(members * STEP)

    def _next_member(self, plan: GroupPlan) -> Session | None:
        """Return the member of the group that is looked at next; None: the plan has been carried out."""
        if not plan.left or self._groups.online(plan.number) <= plan.keeps:
            return None
        members = self._groups.members(plan.number)
        at = members if plan.at is None else min(plan.at, members)
        if at == 0 and not plan.is_last_pass:
            plan.is_last_pass, at = True, members
        if at == 0:
            return None
        plan.at = at - 1
        return self._groups.member(plan.number, plan.at)

    def _end(self, plan: GroupPlan, now: float) -> None:
        del self._by_number[plan.number]
        self._plans.ended(plan, now)
        self._context.log.info("members_sent_away", group=plan.label, members=plan.sent, left=plan.left)

    def _consider(self, session: Session, plan: GroupPlan, now: float) -> None:
        """Withdraw a member if it may be sent away."""
        client_id, connection = session.client_id, session.connection
        has_too_many = session.subscriptions > SUBSCRIPTIONS_MAX
        if connection is None or has_too_many or client_id.startswith(LOCAL_IDS):
            return
        if self._sent.came_back(client_id):
            self._context.counters.add(count.MEMBERS_CAME_BACK)
        if not self._sent.may_be_sent(client_id, now) or (session.version < 5 and not plan.is_last_pass):
            return
        if client_id in self._bound or client_id in self._leaving:
            return
        self._spend_on(session)
        plans = self._plans_of(session, plan)
        node = next((node for node in plan.parts if all(each.parts.get(node) for each in plans)), None)
        if not plans or node is None:
            self._bound.add(client_id)
            return
        for each in plans:
            each.parts[node] -= 1
        self._room -= 1
        plan.leaving += 1
        self._leaving[client_id] = _Leaving(session, connection, node, now + QUIET_SECONDS_MAX, plan)
        self._groups.withdraw(session)

    def _plans_of(self, session: Session, plan: GroupPlan) -> list[GroupPlan]:
        """Return the plans of all groups of a member; none if it may not be sent away, because one of them has none."""
        groups = self._groups.groups_of(session, SUBSCRIPTIONS_MAX)
        plans = [plan]
        for number in groups or ():
            other = self._by_number.get(number)
            if number == plan.number or self._groups.is_alone(number):
                continue
            if other is None or self._groups.online(number) <= other.keeps:
                return []
            plans.append(other)
        return plans if groups else []

    # ------------------------------------------------------------ members that leave

    def _end_leaving(self, now: float) -> None:
        spend(len(self._leaving) * HELD)
        for client_id, leaving in list(self._leaving.items()):
            if self._left <= 0:
                return
            session, is_over = leaving.session, now >= leaving.until
            if session.connection is not leaving.connection:  # it has ended by itself
                self._gone(client_id, leaving, now)
            elif leaving.node not in self._hosts or (is_over and session.unacknowledged and not session.durable):
                self._spend_on(session)
                self._context.guard_session(session, self._groups.rejoin, session)
                self._gone(client_id, leaving, now)
            elif is_over or not session.unacknowledged:
                self._spend_on(session)
                self._context.guard_session(session, self._send_away, leaving, now)
                self._gone(client_id, leaving, now)

    def _gone(self, client_id: str, leaving: _Leaving, now: float) -> None:
        """Note that a member is not on its way out any more."""
        self._spend_on(None)
        del self._leaving[client_id]
        plan = leaving.plan
        plan.leaving -= 1
        if not plan.leaving and plan in self._looked_through:
            self._looked_through.remove(plan)
            self._end(plan, now)

    def _send_away(self, leaving: _Leaving, now: float) -> None:
        client_id, host = leaving.session.client_id, self._hosts[leaving.node]
        leaving.plan.sent += 1
        self._sent.sent(client_id, now)
        self._context.counters.add(count.MEMBERS_SENT_AWAY)
        self._closing.end_connection(leaving.connection, ReasonCode.SERVER_MOVED, _WHY, server=host.client_address)

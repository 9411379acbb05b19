"""When members of which share groups go from this worker to other hosts: decided by counts that have not changed for a
while, so that all workers of all hosts decide by the same ones.

What follows from the counts is a pure function (`broker.cluster.spread`), which every worker computes for itself. They
have the same counts unless some are on their way: so a group is looked at again and again, and its plan is made when
nothing has changed for STABLE_SECONDS. It is carried out PAUSE_SECONDS later, when all others have made theirs, because
the first member that leaves changes the counts. While members come and go all the time a plan is made after
UNSTABLE_SECONDS_MAX all the same, by counts that are nearly the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.cluster.spread import moves_of, part_of, targets_of

__all__ = ["GROUPS_MAX", "PAUSE_SECONDS", "STABLE_SECONDS", "UNSTABLE_SECONDS_MAX", "GroupPlan", "GroupPlans"]

STABLE_SECONDS: Final = 5.0
PAUSE_SECONDS: Final = 3.0
UNSTABLE_SECONDS_MAX: Final = 60.0
_LEFT_SECONDS: Final = 60.0
"""Time after which a group is looked at again of which not all could be sent away that were to go."""
GROUPS_MAX: Final = 10_000
"""Groups that are watched at a time; others wait until some of these are even."""


class GroupPlan:
    """What one worker sends away of one group."""

    __slots__ = ("at", "begins", "is_last_pass", "keeps", "label", "leaving", "number", "parts", "sent")

    def __init__(self, number: int, label: bytes, parts: dict[str, int], keeps: int, begins: float) -> None:
        self.number = number
        self.label = label
        """b"ShareName/Topic Filter"."""
        self.parts = parts
        """By node id: how many members are still to be sent there."""
        self.keeps = keeps
        """How many members this host keeps in any case."""
        self.begins = begins
        self.at: int | None = None
        """The member that was looked at last, the last one of the group first; None: none was."""
        self.is_last_pass = False
        """Whether clients before MQTT 5 are looked at, too: they cannot be told where to go."""
        self.leaving = 0
        """How many are on their way out."""
        self.sent = 0

    @property
    def left(self) -> int:
        """How many members are still to be sent away."""
        return sum(self.parts.values())


class _Watched:
    """The counts of a group that is not even."""

    __slots__ = ("counts", "first", "since", "walk")

    def __init__(self, counts: tuple[Sequence[int], Sequence[int]], now: float, walk: int) -> None:
        self.counts = counts
        self.first = self.since = now
        self.walk = walk


class GroupPlans:
    """The plans of one worker."""

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self._own = ""
        self._others: list[str] = []
        self._walk = 0
        self._watched: dict[int, _Watched] = {}
        """By the number of a group."""
        self._not_before: dict[int, float] = {}
        """When a group is planned again at the earliest."""

    def begin_walk(self, own: str, others: list[str]) -> None:
        """Begin to look at all groups, for these hosts (node ids): this one, and the others that count."""
        if (own, others) != (self._own, self._others):
            self._own, self._others = own, others
            self.forget_all()
        self._walk += 1

    def end_walk(self, now: float) -> None:
        """Forget groups that the walk has not shown."""
        for number in [number for number, each in self._watched.items() if each.walk != self._walk]:
            del self._watched[number]
        for number in [number for number, until in self._not_before.items() if until <= now]:
            del self._not_before[number]

    def forget_all(self) -> None:
        """Begin anew, because other hosts count."""
        self._watched.clear()
        self._not_before.clear()

    def look(
        self, number: int, label: bytes, workers: Sequence[int], others: Sequence[int], now: float
    ) -> GroupPlan | None:
        """Look at a group that is not even: members online by worker of this host, and on each other host that counts.
        Return a plan if it is time for one.
        """
        counts = workers, others
        watched = self._watched.get(number)
        if watched is None:
            if len(self._watched) >= GROUPS_MAX:
                return None
            watched = self._watched[number] = _Watched(counts, now, self._walk)
        elif watched.counts != counts:
            watched.counts, watched.since = counts, now
        watched.walk = self._walk
        is_due = now - watched.since >= STABLE_SECONDS or now - watched.first >= UNSTABLE_SECONDS_MAX
        if not is_due or now < self._not_before.get(number, 0.0):
            return None
        del self._watched[number]
        online = {self._own: sum(workers), **dict(zip(self._others, others, strict=True))}
        parts = part_of(moves_of(label, online), self._own, workers, self._worker)
        if not parts:
            self._not_before[number] = now + STABLE_SECONDS
            return None
        return GroupPlan(number, label, parts, targets_of(label, online)[self._own], now + PAUSE_SECONDS)

    def ended(self, plan: GroupPlan, now: float) -> None:
        """Note that a plan was carried out, as far as it could be."""
        if plan.left:
            self._not_before[plan.number] = now + _LEFT_SECONDS

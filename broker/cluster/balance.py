"""How many clients each host of a cluster sends to which other one, so that all have their share. Pure functions.

The share of a host is in proportion to its workers. Clients are moved only if some host has more or fewer than its
share by more than UNEVEN_SHARE of it, and by at least CLIENTS_LEAST; then as many as make it even, so that the counts
have to drift far again before anybody else is moved. A host that has too many gives at most what is above its share,
and one that has too few takes at most what is missing (and what its limit allows): so no move overshoots, and no client
is sent back by the next plan. Only a host whose address clients can be told takes any.

    leading/plan    {"format": 1, "moves": {FROM: {TO: COUNT, ...}, ...}}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from broker.cluster.host_record import NODE_ID

__all__ = [
    "CLIENTS_LEAST",
    "PLAN_BYTES_MAX",
    "UNEVEN_SHARE",
    "HostClients",
    "MalformedPlan",
    "Moves",
    "Trials",
    "above_share",
    "decode_moves",
    "encode_moves",
    "pace_of",
    "plan_moves",
    "seconds_of",
    "split",
]

UNEVEN_SHARE: Final = 0.2
"""A host whose clients differ from its share by no more of it is left alone."""
CLIENTS_LEAST: Final = 10
"""Fewer clients are not moved: neither where a host differs by fewer, nor where a plan would move fewer."""
PLAN_BYTES_MAX: Final = 65_536
_FORMAT: Final = 1
_CLIENTS_MAX: Final = (1 << 31) - 1

Moves = Mapping[str, Mapping[str, int]]
"""By the host that sends clients away: by the host that they are told, how many."""


class MalformedPlan(ValueError):
    """A record is not one of a plan, or one of a later format."""


@dataclass(frozen=True, slots=True)
class HostClients:
    """A host. room: how many clients more its limit allows, None: any number. can_take: clients can be told where it
    is.
    """

    clients: int
    workers: int
    room: int | None = None
    can_take: bool = True


def _shares(places: Mapping[str, HostClients]) -> dict[str, float]:
    """Return how many clients each host would have."""
    total, workers = sum(each.clients for each in places.values()), sum(each.workers for each in places.values())
    return {node: total * each.workers / workers for node, each in places.items()}


def above_share(places: Mapping[str, HostClients]) -> int:
    """Return how many clients are on hosts that have more than their share."""
    shares = _shares(places)
    return sum(max(0, each.clients - math.ceil(shares[node])) for node, each in places.items())


def plan_moves(places: Mapping[str, HostClients]) -> dict[str, dict[str, int]]:
    """Return the moves that make it even, none if it is even enough or nothing can be done about it."""
    shares = _shares(places)
    if not any(
        abs(each.clients - shares[node]) > max(UNEVEN_SHARE * shares[node], CLIENTS_LEAST - 1)
        for node, each in places.items()
    ):
        return {}
    more, fewer = dict[str, int](), dict[str, int]()
    for node, each in places.items():
        above, below = each.clients - math.ceil(shares[node]), math.floor(shares[node]) - each.clients
        if above > 0:
            more[node] = above
        elif below > 0 and each.can_take:
            fewer[node] = below if each.room is None else min(below, each.room)
    moves = dict[str, dict[str, int]]()
    for source in sorted(more, key=lambda node: (-more[node], node)):
        for target in sorted(fewer, key=lambda node: (-fewer[node], node)):
            count = min(more[source], fewer[target])
            if count > 0:
                moves.setdefault(source, {})[target] = count
                more[source] -= count
                fewer[target] -= count
    return moves if sum(sum(each.values()) for each in moves.values()) >= CLIENTS_LEAST else {}


def pace_of(moves: Moves, source: str, per_second: float) -> float:
    """Return how many clients in a second a host sends away, so that none has to take more than `per_second`."""
    senders = max((sum(target in each for each in moves.values()) for target in moves.get(source, ())), default=1)
    return per_second / senders


def seconds_of(moves: Moves, per_second: float) -> float:
    """Return how long it takes until all have been sent away."""
    times = (sum(each.values()) / pace_of(moves, source, per_second) for source, each in moves.items())
    return max(times, default=0.0)


class Trials:
    """How long to wait before the next plan. Clients need not do what they are told: where a plan has moved less than
    half of what it should, the pause doubles up to SECONDS_MAX. One that has worked, or another set of hosts, ends
    that.
    """

    SECONDS: Final = 60.0
    SECONDS_MAX: Final = 3600.0

    def __init__(self) -> None:
        self.seconds = self.SECONDS
        """The pause after the last plan."""
        self._hosts: frozenset[str] = frozenset()

    def of_hosts(self, hosts: frozenset[str]) -> bool:
        """Note which hosts there are. Return whether they are others than before."""
        if hosts == self._hosts:
            return False
        self._hosts, self.seconds = hosts, self.SECONDS
        return True

    def over(self, planned: int, before: int, after: int) -> None:
        """Note what a plan has done. planned: clients that it should move; before, after: `above_share`."""
        has_worked = before - after >= planned / 2
        self.seconds = self.SECONDS if has_worked else min(self.seconds * 2, self.SECONDS_MAX)


def encode_moves(moves: Moves) -> bytes:
    """Return the record of a plan."""
    return orjson.dumps({"format": _FORMAT, "moves": moves})


def decode_moves(record: bytes) -> dict[str, dict[str, int]]:
    """Return the moves in a record. Raises MalformedPlan."""
    try:
        if len(record) > PLAN_BYTES_MAX:
            raise ValueError(f"{len(record)} bytes; {PLAN_BYTES_MAX} are allowed")
        read = orjson.loads(record)
        if not isinstance(read, dict):
            raise TypeError("it is no object")
        if read["format"] != _FORMAT:
            raise ValueError(f"its format is {read['format']}, this release reads {_FORMAT}")
        moves = {
            _node(source): {_node(to): _clients(n) for to, n in each.items()} for source, each in read["moves"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise MalformedPlan(f"the plan of the leader is malformed: {error}") from error
    return moves


def _node(value: str) -> str:
    if not NODE_ID.fullmatch(value):
        raise ValueError(f"{value!r} is no node id")
    return value


def _clients(value: object) -> int:
    if type(value) is not int or not 1 <= value <= _CLIENTS_MAX:
        raise ValueError(f"{value!r} is no number of clients")
    return value


def split(count: int, weights: Sequence[int]) -> list[int]:
    """Return whole parts of a count in proportion to weights, together the count; all 0 if all weights are."""
    total = sum(weights)
    if not total:
        return [0] * len(weights)
    parts = [count * each // total for each in weights]
    by_rest = sorted(range(len(weights)), key=lambda at: (-(count * weights[at] % total), at))
    for at in by_rest[: count - sum(parts)]:
        parts[at] += 1
    return parts

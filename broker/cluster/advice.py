"""Whether a cluster needs a host more, or could do with one less. A pure function over what the hosts report.

A resource is looked at where every host says what it has of it: connections and sessions where all have a limit, CPU
time where all know theirs. Nothing is said of what is not measured (disk, network, memory).

    add      what the hosts use of a resource is more than USED_SHARE_MAX of what all have together; or one of them
             could not fail, because the others together have no room for its clients or sessions
    drain    the host with the fewest clients: without it none of the resources would be used by more than
             USED_SHARE_LEFT_MAX, and one more could still fail, and HOSTS_LEAST hosts are left
    fine     neither
    unknown  a host has not said what its load is, or is not ready; or no resource is known of all
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import orjson

from broker.cluster.host_load import HostLoad

__all__ = [
    "ADVICE_BYTES_MAX",
    "HOSTS_LEAST",
    "USED_SHARE_LEFT_MAX",
    "USED_SHARE_MAX",
    "Advice",
    "HostsNeeded",
    "MalformedAdvice",
    "advise",
]

USED_SHARE_MAX: Final = 0.7
"""Of what all hosts have together: beyond it there should be one more."""
USED_SHARE_LEFT_MAX: Final = 0.5
"""Of what the hosts have that are left when one is drained: so far below USED_SHARE_MAX that the advice does not turn.
"""
HOSTS_LEAST: Final = 2
"""A cluster of fewer hosts is not advised: its clients would be without a broker when one fails."""
ADVICE_BYTES_MAX: Final = 4096
_FORMAT: Final = 1


class HostsNeeded(enum.Enum):
    """What to do."""

    ADD = "add"
    DRAIN = "drain"
    FINE = "fine"
    UNKNOWN = "unknown"


class MalformedAdvice(ValueError):
    """A record is not one of an advice, or one of a later format."""


@dataclass(frozen=True, slots=True)
class Advice:
    """verdict: what to do. reason: why, with the numbers. host: which one can be drained, else ""."""

    verdict: HostsNeeded
    reason: str
    host: str = ""

    def encode(self) -> bytes:
        """Return the record."""
        return orjson.dumps(
            {"format": _FORMAT, "verdict": self.verdict.value, "reason": self.reason, "host": self.host}
        )

    @classmethod
    def decode(cls, record: bytes) -> Self:
        """Return the advice in a record. Raises MalformedAdvice."""
        try:
            if len(record) > ADVICE_BYTES_MAX:
                raise ValueError(f"{len(record)} bytes; {ADVICE_BYTES_MAX} are allowed")
            read = orjson.loads(record)
            if not isinstance(read, dict):
                raise TypeError("it is no object")
            if read["format"] != _FORMAT:
                raise ValueError(f"its format is {read['format']}, this release reads {_FORMAT}")
            return cls(HostsNeeded(read["verdict"]), _text(read["reason"]), _text(read["host"]))
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedAdvice(f"the advice of the leader is malformed: {error}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


class _Resource(NamedTuple):
    """used, most: of one host, None: not known. moves: whether another host has to take it when this one fails."""

    used: Callable[[HostLoad], float | None]
    most: Callable[[HostLoad], float | None]
    moves: bool
    show: Callable[[float, float], str]


_RESOURCES: Final = (
    _Resource(
        lambda load: load.clients,
        lambda load: load.clients_max or None,
        True,
        lambda used, most: f"{used:.0f} of {most:.0f} connections",
    ),
    _Resource(
        lambda load: load.sessions,
        lambda load: load.sessions_max or None,
        True,
        lambda used, most: f"{used:.0f} of {most:.0f} sessions",
    ),
    _Resource(
        lambda load: load.cpu,
        lambda load: None if load.cpu is None else 1.0,
        False,
        lambda used, most: f"{used / most:.0%} of the CPU time of the workers",
    ),
)


class _Use(NamedTuple):
    """What the hosts have of a resource, and use of it: by host (used, most)."""

    resource: _Resource
    hosts: Mapping[str, tuple[float, float]]

    def without(self, node: str) -> tuple[float, float]:
        """Return used and most of all, with what `node` uses and without what it has."""
        most = sum(most for name, (_, most) in self.hosts.items() if name != node)
        return sum(used for used, _ in self.hosts.values()), most

    @property
    def all(self) -> tuple[float, float]:
        """Used and most of all together."""
        return sum(used for used, _ in self.hosts.values()), sum(most for _, most in self.hosts.values())


def _uses(loads: Mapping[str, HostLoad], workers: Mapping[str, int]) -> Iterator[_Use]:
    """Yield the resources of which all hosts say what they have."""
    for resource in _RESOURCES:
        hosts = dict[str, tuple[float, float]]()
        for node, load in loads.items():
            used, most = resource.used(load), resource.most(load)
            if used is None or not most:
                break
            weight = 1.0 if resource.moves else float(workers[node])  # a share of the time of so many workers
            hosts[node] = used * weight, most * weight
        else:
            if hosts:
                yield _Use(resource, hosts)


def advise(loads: Mapping[str, HostLoad | None], workers: Mapping[str, int]) -> Advice:
    """Return what to do about the number of hosts. loads: by host, None: not known, or not ready. workers: by host."""
    unknown = sorted(node for node, load in loads.items() if load is None)
    if unknown or not loads:
        return Advice(
            HostsNeeded.UNKNOWN, f"the load of {', '.join(unknown) or 'all hosts'} is not known, or it is not ready"
        )
    uses = list(_uses({node: load for node, load in loads.items() if load is not None}, workers))
    if not uses:
        return Advice(
            HostsNeeded.UNKNOWN, "no limit of connections or sessions is set on all hosts, and no CPU time known"
        )
    for use in uses:
        used, most = use.all
        if used > USED_SHARE_MAX * most:
            shown = use.resource.show(used, most)
            return Advice(HostsNeeded.ADD, f"{shown} are used, more than {USED_SHARE_MAX:.0%}")
    if len(loads) >= HOSTS_LEAST:
        for use in uses:
            largest = max(use.hosts, key=lambda node: use.hosts[node][1])
            used, most = use.without(largest)
            if use.resource.moves and used > most:
                return Advice(HostsNeeded.ADD, f"without {largest} there would be {use.resource.show(used, most)}")
    return _may_be_drained(loads, uses)


def _may_be_drained(loads: Mapping[str, HostLoad | None], uses: list[_Use]) -> Advice:
    """Return whether the host with the fewest clients can go."""
    fullest = max(uses, key=lambda use: use.all[0] / use.all[1])
    shown = fullest.resource.show(*fullest.all)
    if len(loads) > HOSTS_LEAST:
        fewest = min(loads, key=lambda node: (load.clients if (load := loads[node]) is not None else 0, node))
        left = [(use, *use.without(fewest)) for use in uses]
        if all(used <= USED_SHARE_LEFT_MAX * most for _, used, most in left) and all(
            _one_more_may_fail(use, fewest) for use in uses
        ):
            use, used, most = max(left, key=lambda each: each[1] / each[2])
            shown = use.resource.show(used, most)
            reason = f"without it {shown} would be used, not more than {USED_SHARE_LEFT_MAX:.0%}"
            return Advice(HostsNeeded.DRAIN, reason, fewest)
    return Advice(HostsNeeded.FINE, f"{shown} are used")


def _one_more_may_fail(use: _Use, drained: str) -> bool:
    """Whether the hosts without the drained one have room for what one of them has."""
    if not use.resource.moves:
        return True
    used, most = use.without(drained)
    return used <= most - max(most_of for node, (_, most_of) in use.hosts.items() if node != drained)

"""What a host tells the leader of the cluster about its load, under a key that ends with its lease.

    loads/NODE    {"format": 1, "clients": N, "sessions": N, "clients_max": N, "sessions_max": N, "cpu": SHARE}

It is written seldom: at most once in REPORT_SECONDS, and only if it has changed by more than CHANGE_SHARE. So the
leader knows counts that are by so much, and by what has happened in that time, out of date.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

import orjson

from broker.cluster.contract import Coordination, CoordinationError, Put

__all__ = ["CHANGE_SHARE", "LOAD_BYTES_MAX", "REPORT_SECONDS", "HostLoad", "LoadReports", "MalformedLoad", "loads_of"]

REPORT_SECONDS: Final = 10.0
"""A host writes its load at most once in this time."""
CHANGE_SHARE: Final = 0.05
"""Counts that have changed by less, and a CPU share by less in absolute terms, are not written."""
LOAD_BYTES_MAX: Final = 4096
_FORMAT: Final = 1
_COUNT_MAX: Final = (1 << 63) - 1


class MalformedLoad(ValueError):
    """A record is not one of a host's load, or one of a later format."""


@dataclass(frozen=True, slots=True)
class HostLoad:
    """Of one host. clients: connected ones. sessions: of connected and offline clients. clients_max, sessions_max: its
    limits, 0: none. cpu: share of the CPU time that its workers might use, from 0 to 1; None: not known.
    """

    clients: int
    sessions: int
    clients_max: int = 0
    sessions_max: int = 0
    cpu: float | None = None

    def differs_from(self, former: Self) -> bool:
        """Whether the change is worth a write."""
        if (self.clients_max, self.sessions_max) != (former.clients_max, former.sessions_max):
            return True
        if (self.cpu is None) != (former.cpu is None) or abs((self.cpu or 0) - (former.cpu or 0)) > CHANGE_SHARE:
            return True
        pairs = ((self.clients, former.clients), (self.sessions, former.sessions))
        return any(abs(now - then) > CHANGE_SHARE * then for now, then in pairs)

    def encode(self) -> bytes:
        """Return the record."""
        return orjson.dumps(
            {
                "format": _FORMAT,
                "clients": self.clients,
                "sessions": self.sessions,
                "clients_max": self.clients_max,
                "sessions_max": self.sessions_max,
                "cpu": self.cpu,
            }
        )

    @classmethod
    def decode(cls, record: bytes) -> Self:
        """Return the load in a record. Raises MalformedLoad."""
        try:
            if len(record) > LOAD_BYTES_MAX:
                raise ValueError(f"{len(record)} bytes; {LOAD_BYTES_MAX} are allowed")
            read = orjson.loads(record)
            if not isinstance(read, dict):
                raise TypeError("it is no object")
            if read["format"] != _FORMAT:
                raise ValueError(f"its format is {read['format']}, this release reads {_FORMAT}")
            return cls(
                _count(read["clients"]),
                _count(read["sessions"]),
                _count(read["clients_max"]),
                _count(read["sessions_max"]),
                _share(read["cpu"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedLoad(f"the load of a host is malformed: {error}") from error


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _COUNT_MAX:
        raise ValueError(f"{value!r} is no count")
    return value


def _share(value: Any) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise ValueError(f"{value!r} is no share from 0 to 1")
    return float(value)


def loads_of(cluster: str) -> bytes:
    """Return the prefix of the keys with the loads of all hosts."""
    return f"/mqttd/{cluster}/loads/".encode()


class LoadReports:
    """Writes the load of this host. `run` it as a task. lease: that of this host, 0: it is no member."""

    def __init__(
        self,
        coordination: Coordination,
        cluster: str,
        node: str,
        lease: Callable[[], int],
        measure: Callable[[], HostLoad],
        *,
        seconds: float = REPORT_SECONDS,
    ) -> None:
        self._coordination = coordination
        self._key = loads_of(cluster) + node.encode()
        self._lease = lease
        self._measure = measure
        self._seconds = seconds
        self._written: tuple[HostLoad, int] | None = None
        """What was written last, and under which lease."""
        self.writes = 0
        """Transactions made."""

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            wrote = False
            try:
                wrote = await self.report()
            except CoordinationError:
                self._written = None  # it may have been written, or not
                wrote = True
            await asyncio.sleep(self._seconds if wrote or self._lease() else min(1.0, self._seconds))

    async def report(self) -> bool:
        """Write the load if it has changed. Return whether it was written. Raises CoordinationError."""
        lease = self._lease()
        if not lease:
            return False
        load = self._measure()
        if self._written is not None:
            former, bound_to = self._written
            if bound_to == lease and not load.differs_from(former):
                return False
        self.writes += 1
        await self._coordination.transact([], [Put(self._key, load.encode(), lease)])
        self._written = load, lease
        return True

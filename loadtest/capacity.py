"""Capacity of a host, from measurements on it: the arithmetic of `python -m loadtest.plan`, without a clock.

A *rate* is deliveries per second within the bound on p99 and without loss, with generator and broker on the same
machine. A message of a kind takes 1 / rate seconds of the whole host, and shares add up:

    share = clients x idle + messages/s x (1 / rate[qos] + (fanout - 1) / rate[fanout] + fanout x (size - 64) x byte)
    memory = base + clients x client

A fleet fits when both stay below 1 - margin of the host, and clients below the limit of open files. Durable QoS 1
or 2 uses rate[durable] where that is lower. The simplification errs on the safe side: several messages that arrive at
once cost less than one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

SIZE_BYTES: Final = 64
"""Size of the payloads of all rates."""
KINDS: Final = ("qos0", "qos1", "qos2", "fanout", "durable")


@dataclass(frozen=True)
class Measured:
    """A host, with the measurements on it."""

    memory_bytes: int
    """Free memory before anything was started."""
    descriptors: int
    """Open files allowed per process: two processes cannot share a client."""
    base_bytes: float
    """Memory of the broker without clients."""
    client_bytes: float
    """Memory of an idle client: the broker's, and the kernel's for both ends of the connection."""
    idle: float
    """Fraction of the whole host that an idle client takes, 0 to 1: keep-alive, and everything caused by it."""
    rates: Mapping[str, float]
    """Deliveries per second by KINDS; a missing one, or 0, was not sustained at all."""
    byte: float
    """Seconds of the whole host for each byte of a payload beyond SIZE_BYTES, per delivery."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Measured:
        """Parse JSON values. TypeError, KeyError or ValueError when they are invalid."""
        found = cls(**values)
        numbers = (found.memory_bytes, found.descriptors, found.base_bytes, found.client_bytes, found.idle, found.byte)
        if min(*numbers, *found.rates.values()) < 0 or set(found.rates) - set(KINDS):
            raise ValueError("what was measured is not negative")
        return found


@dataclass(frozen=True)
class Fleet:
    """What is to be carried."""

    clients: int
    interval_seconds: float
    """Between two messages of a client."""
    size_bytes: int = SIZE_BYTES
    qos: int = 0
    fanout: float = 1.0
    """Subscribers that each message goes to, 1 at least."""
    is_durable: bool = False
    """Whether subscribers' sessions outlast connections, on the disk."""

    @property
    def messages_per_second(self) -> float:
        """Return the messages per second of all clients."""
        return self.clients / self.interval_seconds

    @property
    def kind(self) -> str:
        """The kind, of KINDS, whose rate is used."""
        return "durable" if self.is_durable and self.qos else f"qos{self.qos}"


@dataclass(frozen=True)
class Assessment:
    """Whether a fleet fits; shares are of the whole host and of all free memory, 0 to 1 and more."""

    share: float
    memory_share: float
    clients_max: int
    """Bound on clients by memory and open files, with the margin."""
    messages_per_second_max: float
    """Messages per second that this many clients may send in all, with the margin."""
    reasons: tuple[str, ...]
    """Why it does not fit; empty: it fits."""

    @property
    def fits(self) -> bool:
        """Whether the fleet fits."""
        return not self.reasons


def message_seconds(measured: Measured, fleet: Fleet) -> float:
    """Return seconds of the whole host for one message with all its deliveries; infinite for an unsustained kind."""
    rate = measured.rates.get(fleet.kind, 0.0)
    if fleet.kind == "durable":
        rate = min(rate, measured.rates.get(f"qos{fleet.qos}", 0.0))
    more, fanout = fleet.fanout - 1, measured.rates.get("fanout", 0.0)
    if not rate or (more and not fanout):
        return float("inf")
    bytes_more = max(0, fleet.size_bytes - SIZE_BYTES)
    return 1 / rate + (more / fanout if more else 0.0) + fleet.fanout * bytes_more * measured.byte


def answer(measured: Measured, fleet: Fleet, margin: float) -> Assessment:
    """Return whether the fleet fits. margin: the fraction of the host to keep free, 0 to 1."""
    cost = message_seconds(measured, fleet)
    idle = fleet.clients * measured.idle
    share = idle + fleet.messages_per_second * cost
    memory = measured.base_bytes + fleet.clients * measured.client_bytes
    room = max(0.0, (1 - margin) * measured.memory_bytes - measured.base_bytes)
    by_memory = int(room / measured.client_bytes) if measured.client_bytes else measured.descriptors
    clients_max = min(by_memory, measured.descriptors)
    reasons = []
    if share > 1 - margin:
        reasons.append(f"it takes {100 * share:,.0f} % of the host, and {100 * (1 - margin):.0f} % are to be taken")
    if memory > (1 - margin) * measured.memory_bytes:
        reasons.append(f"it takes {memory / 2**30:,.1f} GB of {measured.memory_bytes / 2**30:,.1f}")
    if fleet.clients > measured.descriptors:
        reasons.append(f"a process may have {measured.descriptors:,} open files (ulimit -Hn)")
    return Assessment(
        share, memory / measured.memory_bytes, clients_max, max(0.0, 1 - margin - idle) / cost, tuple(reasons)
    )


def highest(carries: Callable[[float], bool], first: float, least: float, steps: int = 2) -> float:
    """Return the highest sustained rate, at most 2 ** (1 / 2 ** steps) times too low: doubled from `first` on until one
    is not sustained, or halved until one is; then bisected `steps` times. 0: not even `least` is.
    """
    low = first
    if carries(first):
        while carries(2 * low):
            low *= 2
    else:
        while not carries(low := low / 2):
            if low < least:
                return 0.0
    step = 2.0
    for _ in range(steps):
        step = step**0.5
        if carries(low * step):
            low *= step
    return low

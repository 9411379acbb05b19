"""`$SYS/broker/...`: statistics of all workers, under mosquitto's topics and formats [mosquitto(8), Broker Status].

Every worker can read the counter rows of all workers, so each publishes the same sums to its own subscribers: nothing
crosses the mesh, and a session, which lives in one worker, gets each topic once. The last values are kept beside the
retained messages and sent to new subscribers like these; they have no owner and do not count as received or retained.
All workers publish at the same moments, at multiples of `sys_interval_seconds` since the broker was started, the values
that have changed (and the uptime). QoS is 0, so no value ever waits for an offline client.

Loads are exponentially damped averages per minute, as mosquitto's: load = now + (load - now) * exp(-seconds / window).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import broker
from pyx.core import counters
from pyx.core.counters import Row
from pyx.matching.retained import Retained
from pyx.protocol.message import Message

if TYPE_CHECKING:
    from broker.context.context import Context

__all__ = ["OF_BRIDGES", "LoadAverage", "SysTopics", "is_sys"]

_ROOT = b"$SYS/broker/"
_TOPICS_MAX = 1000
Sums = dict[str, int]

_LOADS: dict[str, Callable[[Sums], int]] = {
    "messages/received": lambda sums: sums["packets_received"],
    "messages/sent": lambda sums: sums["answers_sent"] + sums["publish_sent"],
    "publish/dropped": lambda sums: sums["dropped"],
    "publish/received": lambda sums: sums["publish_received"],
    "publish/sent": lambda sums: sums["publish_sent"],
    "bytes/received": lambda sums: sums["bytes_received"],
    "bytes/sent": lambda sums: sums["bytes_sent"],
    "sockets": lambda sums: sums["connections_accepted"],
    "connections": lambda sums: sums["connections_opened"],
}
_VALUES: dict[str, Callable[[Sums], int]] = {
    "clients/total": lambda sums: sums["sessions"],
    "clients/connected": lambda sums: sums["connected"],
    "clients/active": lambda sums: sums["connected"],
    "clients/disconnected": lambda sums: max(0, sums["sessions"] - sums["connected"]),
    "clients/inactive": lambda sums: max(0, sums["sessions"] - sums["connected"]),
    "clients/maximum": lambda sums: sums["maximum"],
    "clients/expired": lambda sums: sums["sessions_expired"],
    "messages/received": _LOADS["messages/received"],
    "messages/sent": _LOADS["messages/sent"],
    "messages/stored": lambda sums: sums["retained_messages"] + sums["log_messages"],
    "store/messages/count": lambda sums: sums["retained_messages"] + sums["log_messages"],
    "store/messages/bytes": lambda sums: sums["retained_bytes"] + sums["log_bytes"],
    "publish/messages/received": _LOADS["publish/received"],
    "publish/messages/sent": _LOADS["publish/sent"],
    "publish/messages/dropped": _LOADS["publish/dropped"],
    "publish/bytes/received": lambda sums: sums["publish_bytes_received"],
    "publish/bytes/sent": lambda sums: sums["publish_bytes_sent"],
    "bytes/received": _LOADS["bytes/received"],
    "bytes/sent": _LOADS["bytes/sent"],
    "retained messages/count": lambda sums: sums["retained_messages"],
    "subscriptions/count": lambda sums: sums["subscriptions"] - sums["shared_subscriptions"],
    "shared_subscriptions/count": lambda sums: sums["shared_subscriptions"],
}


OF_BRIDGES: Final = b"$SYS/broker/connection/"
"""Topics below this are those of clients, although they are in $SYS: bridges of mosquitto say there whether they are
connected (`notifications`)."""


def is_sys(filter: bytes) -> bool:
    """Whether a Topic Filter is one of $SYS, for which no retained message of a client is looked for."""
    return (filter == b"$SYS" or filter.startswith(b"$SYS/")) and not filter.startswith(OF_BRIDGES)


class LoadAverage:
    """Three damped averages of a counter's growth per minute."""

    WINDOWS: ClassVar = {"1min": 60.0, "5min": 300.0, "15min": 900.0}

    def __init__(self, count: int) -> None:
        self._count = count
        self._averages = dict.fromkeys(self.WINDOWS, 0.0)

    def update(self, count: int, seconds: float) -> None:
        """Take in the counter's value, `seconds` after the last update."""
        per_minute = (count - self._count) * 60.0 / seconds
        self._count = count
        for window, length in self.WINDOWS.items():
            self._averages[window] = per_minute + (self._averages[window] - per_minute) * math.exp(-seconds / length)

    def texts(self) -> dict[str, str]:
        """Return the averages by window, with two decimals."""
        return {window: f"{average:.2f}" for window, average in self._averages.items()}


class SysTopics:
    """One worker's publisher of $SYS, with the last published values."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._router = context.router
        self._rows: Sequence[Row] = [context.counters]
        self._began_ms = self._updated_ms = context.router.state.now_ms
        self._interval_seconds = 0
        self._loads: dict[str, LoadAverage] = {}
        self._said: dict[str, str] = {}
        self._kept = Retained()
        self._handle: Any = None
        self.reload()

    def over(self, rows: Sequence[Row], began_ms: int) -> None:
        """Set the rows of all workers, and the start time of the broker (monotonic ms)."""
        self._rows = rows
        self._began_ms = began_ms
        self._interval_seconds = 0
        self.reload()

    def reload(self) -> None:
        """Apply a changed sys_interval_seconds."""
        seconds = self._context.settings.sys_interval_seconds
        if seconds == self._interval_seconds:
            return
        self._interval_seconds = seconds
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._said.clear()
        self._kept = Retained()
        if seconds:
            sums = self._sums()
            self._loads = {name: LoadAverage(count(sums)) for name, count in _LOADS.items()}
            self._updated_ms = self._router.state.now_ms
            self._publish(sums)
            self._schedule()

    def said(self, filter: bytes) -> list[Message]:
        """Return the last published values that match, for a new subscription."""
        return [message for _, message in self._kept.match(filter, None, _TOPICS_MAX)]

    def _schedule(self) -> None:
        interval = self._interval_seconds * 1000
        passed = (self._router.state.now_ms - self._began_ms) % interval
        self._handle = self._context.timers.call(self._router.state.now_ms + interval - passed, self._update)

    def _update(self) -> None:
        now = self._router.state.now_ms
        sums = self._sums()
        if now > self._updated_ms:
            for name, load in self._loads.items():
                load.update(_LOADS[name](sums), (now - self._updated_ms) / 1000)
            self._updated_ms = now
        self._publish(sums)
        self._schedule()

    def _sums(self) -> Sums:
        rows = [row.as_dict() for row in self._rows]
        sums = {name: sum(row[name] for row in rows) for name in counters.NAMES}
        # a retained copy that a newer one has overtaken is not missed by anybody
        dropped = (value for name, value in sums.items() if name.startswith("dropped_"))
        sums["dropped"] = sum(dropped) - sums["dropped_overtaken"]
        sums["connected"] = max(0, sums["connections_opened"] - sums["connections_closed"])
        # Every worker records the maximum that it sees, so it is still known when one of them has died.
        sums["maximum"] = max(sums["connected"], *(row["clients_maximum"] for row in rows))
        self._context.counters.set(counters.CLIENTS_MAXIMUM, sums["maximum"])
        return sums

    def _publish(self, sums: Sums) -> None:
        uptime = (self._router.state.now_ms - self._began_ms) // 1000
        self._say("version", f"mqttd version {broker.__version__}")
        self._say("uptime", f"{uptime} seconds")
        for name, value in _VALUES.items():
            self._say(name, str(value(sums)))
        for name, load in self._loads.items():
            for window, text in load.texts().items():
                self._say(f"load/{name}/{window}", text)

    def _say(self, name: str, text: str) -> None:
        if self._said.get(name) == text:
            return
        self._said[name] = text
        router = self._router
        message = Message.create(_ROOT + name.encode(), text.encode(), retain=True, number=router.state.next_number())
        self._kept.set(message.topic, message.number, message)
        router.publish_here(message)


def markdown() -> str:
    """Return the list of topics, for the documentation."""
    lines = [f"    $SYS/broker/{name}" for name in ("version", "uptime", *_VALUES)]
    lines += [f"    $SYS/broker/load/{name}/+" for name in _LOADS]
    return "\n".join(lines)

"""Reporting of load tests to locust: successful requests in bulk, failures one by one.

A Tally gathers successful requests (`pyx.loadgen.tally`), and five times a second all are entered into
`environment.stats` at once, as `RequestStats.log_request` would do. Other listeners to `environment.events.request`
than locust's runner still get every single request, a fifth of a second late at most.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Protocol
from weakref import WeakKeyDictionary

import gevent

from pyx.loadgen.tally import Tally
from pyx.protocol.reasons import ReasonCode

REPORT_SECONDS: Final = 0.2
_RETURN_CODES: Final = {
    1: "Unacceptable protocol version",
    2: "Identifier rejected",
    3: "Server unavailable",
    4: "Bad user name or password",
    5: "Not authorized",
}


class MqttFailure(Exception):
    """A request that failed. `reason_code`: the broker's, None where it gave none; "0x87 Not authorized"."""

    def __init__(self, why: str, reason_code: int | None = None) -> None:
        super().__init__(why)
        self.reason_code = reason_code

    @classmethod
    def of(cls, reason_code: int, is_return_code: bool = False) -> MqttFailure:
        """Make one from a Reason Code of MQTT 5, or a Connect Return Code of earlier versions."""
        if is_return_code:
            name = _RETURN_CODES.get(reason_code, "Unknown")
        else:
            try:
                name = ReasonCode(reason_code).name.replace("_", " ").capitalize()
            except ValueError:
                name = "Unknown"
        return cls(f"0x{reason_code:02X} {name}", reason_code)


class Beating(Protocol):
    """The interface of a client for the pulse."""

    def beat(self) -> None:
        """Handle everything due and overdue; called once a second."""


class Reporter:
    """The tallies of an environment, and the pulse of its clients."""

    _all: ClassVar[WeakKeyDictionary[Any, Reporter]] = WeakKeyDictionary()

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._tallies: dict[tuple[str, str], Tally] = {}
        self._clients: set[Beating] = set()
        self._pulse: gevent.Greenlet[..., Any] | None = None

    @classmethod
    def of(cls, environment: Any) -> Reporter:
        """Return the reporter of this environment."""
        if environment not in cls._all:
            cls._all[environment] = cls(environment)
        return cls._all[environment]

    def tally(self, request_type: str, name: str) -> Tally:
        """Return the tally of successful requests of this type and name."""
        found = self._tallies.get((request_type, name))
        if found is None:
            found = self._tallies[request_type, name] = Tally(request_type, name)
        return found

    def failed(self, request_type: str, name: str, failure: Exception, ms: float = 0.0, length: int = 0) -> None:
        """Report a failure at once."""
        self._fire(request_type, name, ms, length, failure)

    def enter(self, client: Beating) -> None:
        """Call its `beat` from now on."""
        self._clients.add(client)
        if self._pulse is None:
            self._pulse = gevent.spawn(self._beat)

    def leave(self, client: Beating) -> None:
        """Stop calling its `beat`; report its counts so far."""
        self._clients.discard(client)
        self.report()

    def report(self) -> None:
        """Report all counts to locust."""
        events = self._environment.events.request
        others = [each for each in events._handlers if each.__module__ != "locust.runners"]
        for tally in self._tallies.values():
            times, lengths = tally.take()
            if not times:
                continue
            if others or self._environment.runner is None:
                for ms, length in zip(times, lengths, strict=True):
                    self._fire(tally.request_type, tally.name, ms, length, None)
            else:
                log_requests(self._environment.stats, tally.request_type, tally.name, times, sum(lengths))

    def _fire(self, request_type: str, name: str, ms: float | None, length: int, exception: Exception | None) -> None:
        self._environment.events.request.fire(
            request_type=request_type,
            name=name,
            response_time=ms,
            response_length=length,
            exception=exception,
            context={},
        )

    def _beat(self) -> None:
        second = time.monotonic()
        try:
            while self._clients:
                gevent.sleep(REPORT_SECONDS)
                self.report()
                if time.monotonic() - second >= 1:
                    second = time.monotonic()
                    for client in list(self._clients):
                        client.beat()
        finally:
            self._pulse = None


def log_requests(stats: Any, request_type: str, name: str, times: Sequence[float | None], length: int) -> None:
    """Do `stats.log_request` for each of these milliseconds. stats: locust's RequestStats. length: bytes in all."""
    from locust import stats as locust_stats

    known = [ms for ms in times if ms is not None]
    bucket: Callable[[float], int] = locust_stats.bucket_response_time
    rounded: dict[int, int] = {}
    for ms in known:
        place = bucket(ms)
        rounded[place] = rounded.get(place, 0) + 1
    now = time.time()
    for entry in (stats.total, stats.entries[name, request_type]):
        before = entry.last_request_timestamp
        if entry.use_response_times_cache and before and int(now) > int(before):
            entry._cache_response_times(int(now) - 1)
        entry.num_requests += len(times)
        entry.num_none_requests += len(times) - len(known)
        entry.num_reqs_per_sec[int(now)] += len(times)
        entry.last_request_timestamp = now
        entry.total_content_length += length
        if known:
            entry.total_response_time += math.fsum(known)
            entry.min_response_time = min(
                known if entry.min_response_time is None else [entry.min_response_time, *known]
            )
            entry.max_response_time = max(entry.max_response_time, *known)
        for place, count in rounded.items():
            entry.response_times[place] += count

"""Pass or fail of a locust run: the figures of its statistics, under the names of flood's conditions."""

from __future__ import annotations

from typing import Final

from locust.stats import RequestStats, StatsEntry

_PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
#: flood's names for locust's request types.
_AS_IN_FLOOD: Final = {"PUBLISH": "acknowledgement"}
_PER_SECOND: Final = {"PUBLISH": "sent_per_s", "DELIVERY": "received_per_s"}


class Lost(Exception):
    """A message that is missing."""


class Duplicate(Exception):
    """A message that arrived more often than allowed."""


def figures(stats: RequestStats) -> dict[str, float]:
    """Return figures over all names of a request type: `delivery_p99_us`, `command_failures`, `connect_max_us`, ...

    Locust rounds response times to whole milliseconds, beyond 100 ms to two digits, and so are the percentiles.
    """
    found = {
        "requests": float(stats.total.num_requests),
        "failures": float(stats.total.num_failures),
        "lost": float(_errors(stats, Lost)),
        "duplicates": float(_errors(stats, Duplicate)),
    }
    for kind, entry in _by_type(stats).items():
        name = _AS_IN_FLOOD.get(kind, kind.lower())
        found[f"{name}_requests"] = float(entry.num_requests)
        found[f"{name}_failures"] = float(entry.num_failures)
        found[_PER_SECOND.get(kind, f"{name}_per_s")] = float(entry.total_rps)
        if entry.num_requests > entry.num_none_requests:
            for percentile, part in _PERCENTILES.items():
                found[f"{name}_{percentile}_us"] = entry.get_response_time_percentile(part) * 1e3
            found[f"{name}_max_us"] = entry.max_response_time * 1e3
    return found


def _by_type(stats: RequestStats) -> dict[str, StatsEntry]:
    together: dict[str, StatsEntry] = {}
    for (_, kind), entry in stats.entries.items():
        if kind not in together:
            together[kind] = StatsEntry(stats, "all", kind)
        together[kind].extend(entry)
    return together


def _errors(stats: RequestStats, kind: type[Exception]) -> int:
    return sum(each.occurrences for each in stats.errors.values() if str(each.error).startswith(kind.__name__))

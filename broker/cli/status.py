"""`mqttd status`: prints the state of a running broker, from its admin interface, as text or JSON."""

from __future__ import annotations

import argparse
import http.client
import os
import sys
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import orjson
from prometheus_client.parser import text_string_to_metric_families

from broker.config.addresses import split_address
from broker.config.loading import ENVIRONMENT_CONFIG, load
from broker.config.settings import ConfigError

__all__ = ["main"]

_SECONDS_MAX = 5.0
_BAD_USAGE = 2
_COLUMNS = (
    ("connections", "mqtt_connections_current"),
    ("sessions", "mqtt_sessions_active"),
    ("subscriptions", "mqtt_subscriptions_active"),
    ("retained", "mqtt_retained_messages"),
    ("received", "mqtt_messages_received_total"),
    ("sent", "mqtt_messages_sent_total"),
    ("dropped", "mqtt_messages_dropped_total"),
)
_ADVICE = {
    "add": "one more is needed",
    "drain": "one can be drained,",
    "fine": "as many as needed",
    "unknown": "not known",
}
Samples = dict[str, list[tuple[dict[str, str], float]]]


class _Unreachable(Exception):
    pass


def main(arguments: Sequence[str]) -> int:
    """Print the state. Exit status: 0 ready, 1 not ready or not reachable, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="mqttd status", description="Ask the admin interface of a running broker.")
    parser.add_argument("--admin", metavar="HOST:PORT", help="admin interface of the broker (default: as configured)")
    parser.add_argument("--config", metavar="FILE", help="configuration file of the broker; also MQTTD_CONFIG")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    try:
        address = _address(given.admin, given.config or os.environ.get(ENVIRONMENT_CONFIG))
    except ValueError as error:
        print(f"mqttd: {error}", file=sys.stderr)
        return _BAD_USAGE
    except ConfigError as error:
        for line in error.lines:
            print(f"mqttd: {line}", file=sys.stderr)
        return _BAD_USAGE
    try:
        ready, report = _ask(address, "/ready")
        _, text = _ask(address, "/metrics")
        said = orjson.loads(report)
        samples = _samples(text.decode())
        if "cluster" in said:
            _add_states(said["cluster"], address)
    except (_Unreachable, ValueError) as error:
        print(f"mqttd: no answer from {address[0]}:{address[1]}: {error}", file=sys.stderr)
        return 1
    print(_as_json(said, samples) if given.json else _as_text(said, samples))
    for each in said.get("cluster", {}).get("hosts", ()):
        if "error" in each:
            print(f"mqttd: {each['error']}", file=sys.stderr)
    return 0 if ready == 200 else 1


def _address(admin: str | None, file: str | None) -> tuple[str, int]:
    admin = admin or load(file, os.environ).admin
    if admin == "none":
        raise ValueError("the configuration says admin = none: name the admin interface with --admin")
    try:
        return split_address(admin)
    except ValueError:
        raise ValueError(f"--admin: {admin!r} is not HOST:PORT") from None


def _ask(address: tuple[str, int], path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*address, timeout=_SECONDS_MAX)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise _Unreachable(getattr(error, "strerror", None) or str(error) or type(error).__name__) from None
    finally:
        connection.close()


def _add_states(cluster: dict[str, Any], address: tuple[str, int]) -> None:
    """Add to each host its clients and sessions, or why it does not say them. A broker of another release says none."""
    status, text = _ask(address, "/api/v1/hosts")
    if status in (HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE):
        states = {each["node"]: each for each in orjson.loads(text)["hosts"]}
        for host in cluster["hosts"]:
            state = states.get(host["node"], {})
            host |= {name: state[name] for name in ("clients", "sessions", "error") if name in state}


def _samples(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def _sum(samples: Samples, name: str, worker: str | None = None) -> int:
    return int(sum(value for labels, value in samples.get(name, ()) if worker in (None, labels.get("worker"))))


def _as_json(said: dict[str, Any], samples: Samples) -> str:
    metrics = [
        {"name": name, "labels": labels, "value": value} for name, values in samples.items() for labels, value in values
    ]
    return orjson.dumps({**said, "metrics": metrics}, option=orjson.OPT_INDENT_2).decode()


def _as_text(said: dict[str, Any], samples: Samples) -> str:
    head = ("worker", "state", "pid", "restarts", *(title for title, _ in _COLUMNS))
    rows: list[tuple[str, ...]] = [head]
    for worker in said["workers"]:
        index = str(worker["worker"])
        own = [str(_sum(samples, name, index)) for _, name in _COLUMNS]
        rows.append((index, worker["state"], str(worker["pid"] or "-"), str(worker["restarts"]), *own))
    restarts = sum(worker["restarts"] for worker in said["workers"])
    rows.append(("all", "", "", str(restarts), *(str(_sum(samples, name)) for _, name in _COLUMNS)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [f"mqttd {said['version']}: {said['status']}, {said['broker']}, up {_span(said['uptime_seconds'])}"]
    for row in rows:
        cells = [text.ljust(widths[n]) if n < 2 else text.rjust(widths[n]) for n, text in enumerate(row)]
        lines.append("  ".join(cells).rstrip())
    if "cluster" in said:
        lines += _hosts(said["cluster"], len(said["workers"]))
    reasons: dict[str, int] = {}
    for labels, value in samples.get("mqtt_messages_dropped_total", ()):
        reasons[labels["reason"]] = reasons.get(labels["reason"], 0) + int(value)
    dropped = [f"{reason} {count}" for reason, count in reasons.items() if count]
    if dropped:
        lines.append(f"dropped: {', '.join(dropped)}")
    return "\n".join(lines)


def _hosts(cluster: dict[str, Any], workers: int) -> list[str]:
    """Return the lines about the hosts of the cluster."""
    member = "" if cluster["member"] else ", it may be no member at present"
    rows = [("host", "state", "linked", "workers", "clients", "sessions", "release", "address")]
    for each in cluster["hosts"]:
        linked = "this host" if each["links"] is None else f"{each['links']} of {workers}"
        counts = [str(each.get(name, "-")) for name in ("workers", "clients", "sessions")]
        rows.append((each["node"], each["state"], linked, *counts, each["release"], each["address"]))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    cells = ["  ".join(text.ljust(widths[n]) for n, text in enumerate(row)).rstrip() for row in rows]
    return [f"cluster: {cluster['node']}, {cluster['state']}{member}", *cells, *_leadership(cluster)]


def _leadership(cluster: dict[str, Any]) -> list[str]:
    """Return the lines about who leads the cluster, and what it says."""
    leader, advice = cluster.get("leader"), cluster.get("advice")
    if leader is None:  # a control process of an earlier release
        return []
    lines = [f"leader: {leader['node'] or 'none'}"]
    if advice is not None:
        host = f" {advice['host']}" if advice["host"] else ""
        lines.append(f"hosts: {_ADVICE.get(advice['verdict'], advice['verdict'])}{host}: {advice['reason']}")
    moving = sum(sum(each.values()) for each in cluster["rebalance"]["moves"].values())
    if moving:
        lines.append(f"spreading clients: {moving} are to be moved")
    return lines


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next((n for n, (count, _) in enumerate(parts) if count), len(parts) - 1)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2])

"""`mqttd events`: prints the recorded events of connections, sessions, subscriptions and drops, of all workers, in a
cluster of all hosts, together, in order of time.

A running broker is asked over its control socket and answers from its disk, so the last second may be missing; other
hosts are asked by way of it (`broker.cli.cluster_client`). Otherwise the stores are opened, as a start does it, or
clones of the stores of a snapshot, of one host or of all; nothing is changed.
"""

from __future__ import annotations

import argparse
import base64
import heapq
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import plyvel

from broker.admin.requests import ListEvents, NoAnswer
from broker.cli.cluster_client import SOME_MISSING, ClusterClient, HostMissing
from broker.cli.console_client import ConsoleClient, NoBroker
from broker.cli.store_command import Place, Unusable, stores_of
from broker.config.loading import ENVIRONMENT_CONFIG, load
from broker.config.settings import ConfigError
from broker.logs import shown
from leveldb_store.engine.database import error_text
from leveldb_store.format import schema
from leveldb_store.format.events import KINDS, TEXT_BYTES_MAX, Event, decode_event, event_key
from leveldb_store.snapshots import snapshot
from leveldb_store.snapshots.clone import CloneError
from leveldb_store.snapshots.cluster_manifest import read_cluster_manifest
from leveldb_store.snapshots.snapshot import SnapshotError
from shards import data_dir

__all__ = ["main"]

_CANNOT_READ = 1
_BAD_USAGE = 2
_CANNOT_USE_DATA = 4
_NUMBER_MAX = (1 << 64) - 1
_BEHIND = schema.prefix_end(schema.EVENT)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_BY = ("nobody", "client", "broker")


class _Record(NamedTuple):
    key: bytes
    value: bytes
    node: str | None
    """The host that has recorded it; None: it is in no cluster."""


def main(arguments: Sequence[str]) -> int:
    """Print the events. Exit status: 0 done, 1 the broker or a store does not answer, 2 wrong usage, 3 done, but some
    hosts have not answered, 4 the directory cannot be used.
    """
    given = _parser().parse_args(arguments)
    missing: dict[str, str] = {}
    try:
        file = given.config or os.environ.get(ENVIRONMENT_CONFIG)
        directory = given.data_dir or load(file, os.environ).data_dir
        with ExitStack() as stack:
            for record in heapq.merge(*_sources(directory, given, missing, stack), key=itemgetter(0)):
                event = decode_event(record.key, record.value)
                if event.microseconds >= given.until:
                    break
                if _is_wanted(event, given):
                    print(_as_json(event, record.node) if given.json else _as_text(event, record.node))
        for _, reason in sorted(missing.items()):
            print(f"mqttd: {reason}", file=sys.stderr)
    except ConfigError as error:
        for line in error.lines:
            print(f"mqttd: {line}", file=sys.stderr)
        return _BAD_USAGE
    except NoAnswer as error:
        print(f"mqttd: {error}", file=sys.stderr)
        return _CANNOT_READ
    except (Unusable, data_dir.DataDirError, SnapshotError) as error:
        print(f"mqttd: {error}", file=sys.stderr)
        return _CANNOT_USE_DATA
    except CloneError as error:
        print(f"mqttd: {error} (mqttd store verify says more)", file=sys.stderr)
        return _CANNOT_READ
    except (plyvel.Error, schema.SchemaError) as error:
        print(
            f"mqttd: {directory}: cannot be read: {error_text(error)} (mqttd store verify says more)", file=sys.stderr
        )
        return _CANNOT_READ
    return SOME_MISSING if missing else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mqttd events", description="Print the events that a broker has recorded.")
    add = parser.add_argument
    add("--data-dir", metavar="DIR", help="data directory, or a snapshot (default: as configured)")
    add("--config", metavar="FILE", help="configuration file of the broker; also MQTTD_CONFIG")
    time = "an RFC 3339 time (2026-01-31T12:00:00Z), or how long ago (30s, 15m, 12h, 7d)"
    add("--since", type=_given_time, default=0, metavar="TIME", help=f"leave out earlier events: {time}")
    add("--until", type=_given_time, default=1 << 56, metavar="TIME", help="leave out events of that time and later")
    kinds = [kind.name for kind in KINDS]
    add(
        "--kind", action="append", choices=kinds, metavar="KIND", help=f"only this kind; repeatable: {', '.join(kinds)}"
    )
    add("--client", type=_cut, metavar="CLIENT_ID", help="only events of this client")
    add("--node", metavar="NODE", help="only those of this host of the cluster")
    add("--json", action="store_true", help="print one JSON object per line")
    return parser


def _given_time(text: str) -> int:
    """Parse a time into Unix time in microseconds."""
    ago = re.fullmatch(r"(\d{1,9})([smhd])", text)
    now = datetime.now(UTC)
    try:
        at = now - timedelta(**{_UNITS[ago[2]]: int(ago[1])}) if ago is not None else datetime.fromisoformat(text)
        if at.tzinfo is None:
            raise ValueError
        return max(0, round(at.timestamp() * 1_000_000))
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time: 2026-01-31T12:00:00Z or 15m is (a time needs its zone)"
        ) from None


def _cut(text: str) -> str:
    """Return a client id as events record it."""
    return text.encode("utf-8", "surrogatepass")[:TEXT_BYTES_MAX].decode("utf-8", "ignore")


# ---------------------------------------------------------------- sources


def _sources(
    directory: str, given: argparse.Namespace, missing: dict[str, str], stack: ExitStack
) -> list[Iterable[_Record]]:
    """Return the records of each worker in order, from a moment on. Hosts that do not answer come to `missing`."""
    first = min(given.since << 8, _NUMBER_MAX)  # no clock gets so far
    if (parts := _parts_of(directory, given.node)) is not None:
        return [_stored(place, first, node) for node, part in parts for place in stores_of(part, stack)]
    try:
        client = stack.enter_context(ConsoleClient(directory))
    except NoBroker:
        if given.node is not None:
            raise
        return [_stored(place, first, None) for place in stores_of(directory, stack)]
    if client.node is None and given.node is not None:
        raise NoAnswer("--node: this host is in no cluster")
    if client.node is None or client.node == given.node:
        return [_asked(client, worker, first) for worker in range(client.workers)]
    cluster = ClusterClient(client, missing)
    return [
        _asked_host(cluster, host.node, worker, first)
        for host in cluster.hosts(given.node)
        for worker in range(host.workers)
    ]


def _parts_of(directory: str, only: str | None) -> list[tuple[str | None, str]] | None:
    """Return the hosts of a snapshot, and where each has its part. None: it is no snapshot."""
    parts: list[tuple[str | None, str]]
    if Path(directory, snapshot.NAME).exists():
        facts = snapshot.read_manifest(Path(directory)).cluster
        parts = [(None if facts is None else facts.node, directory)]
    elif (manifest := read_cluster_manifest(Path(directory))) is not None:
        parts = [(each.node, str(Path(directory, each.directory))) for each in manifest.hosts]
    else:
        return None
    parts = [each for each in parts if only is None or each[0] == only]
    if not parts:
        raise SnapshotError(f"{directory}: has no snapshot of a host {only!r}")
    return parts


def _asked(client: ConsoleClient, worker: int, first: int) -> Iterator[_Record]:
    for page in client.pages(worker, ListEvents(max(first - 1, 0))):
        for number, value in page["events"]:
            yield _Record(event_key(number), base64.b64decode(value), client.node)


def _asked_host(cluster: ClusterClient, node: str, worker: int, first: int) -> Iterator[_Record]:
    try:
        if node in cluster.missing:  # another worker of it has not answered
            return
        for page in cluster.pages(node, worker, ListEvents(max(first - 1, 0))):
            for number, value in page["events"]:
                yield _Record(event_key(number), base64.b64decode(value), node)
            if node in cluster.missing:
                return
    except HostMissing as error:
        cluster.missing[node] = str(error)


def _stored(place: Place, first: int, node: str | None) -> Iterator[_Record]:
    with place.to_open() as path:
        if not path.is_dir() or not any(path.iterdir()):
            return  # a start was killed before it made the store
        with plyvel.DB(str(path), create_if_missing=False, paranoid_checks=True) as db:
            deleted = db.get(schema.EVENTS_DELETED, verify_checksums=True)
            first = max(first, 0 if deleted is None else schema.decode_u64(deleted) + 1)
            with db.iterator(start=event_key(first), stop=_BEHIND, verify_checksums=True) as records:
                for key, value in records:
                    yield _Record(key, value, node)


# ---------------------------------------------------------------- output


def _is_wanted(event: Event, given: argparse.Namespace) -> bool:
    if given.kind is not None and event.kind.name not in given.kind:
        return False
    return given.client is None or event.fields.get("client") == given.client


def _time(microseconds: int) -> str:
    seconds, rest = divmod(microseconds, 1_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:06d}Z"


def _fields(event: Event) -> dict[str, object]:
    """Return the fields, with names for numeric codes."""
    found: dict[str, object] = dict(event.fields)
    if "by" in found:
        by = event.fields["by"]
        found["by"] = _BY[by] if by < len(_BY) else by
    if "minute" in found:
        found["minute"] = _time(1000 * event.fields["minute"])
    for name in ("clean_start", "session_present", "others"):
        if name in found:
            found[name] = bool(found[name])
    return found


def _as_json(event: Event, node: str | None) -> str:
    head: dict[str, object] = {"time": _time(event.microseconds)}
    if node is not None:
        head["node"] = node
    head |= {"worker": event.worker, "kind": event.kind.name, "number": event.number}
    return json.dumps({**head, **_fields(event)})


def _as_text(event: Event, node: str | None) -> str:
    parts = [_time(event.microseconds), event.kind.name, f"worker={event.worker}"]
    if node is not None:
        parts.insert(2, f"host={node}")
    for name, value in _fields(event).items():
        if isinstance(value, dict):
            parts += (f"{shown(key)}={each}" for key, each in value.items())
        elif value is not None:
            parts.append(f"{name}={shown(value)}")
    return " ".join(parts)

"""`mqttd events`: prints the recorded events of connections, sessions, subscriptions and drops, of all workers
together, in order of time.

A running broker is asked over its control socket and answers from its disk, so the last second may be missing.
Otherwise the stores are opened, as a start does it, or clones of the stores of a snapshot; nothing is changed.
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

import plyvel

from broker.admin.requests import ListEvents, NoAnswer
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

_Record = tuple[bytes, bytes]


def main(arguments: Sequence[str]) -> int:
    """Print the events. Exit status: 0 done, 1 the broker or a store does not answer, 2 wrong usage, 4 the directory
    cannot be used.
    """
    given = _parser().parse_args(arguments)
    try:
        file = given.config or os.environ.get(ENVIRONMENT_CONFIG)
        directory = given.data_dir or load(file, os.environ).data_dir
        with ExitStack() as stack:
            for record in heapq.merge(*_sources(directory, given.since, stack), key=itemgetter(0)):
                event = decode_event(*record)
                if event.microseconds >= given.until:
                    break
                if _is_wanted(event, given):
                    print(_as_json(event) if given.json else _as_text(event))
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
    return 0


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


def _sources(directory: str, since: int, stack: ExitStack) -> list[Iterable[_Record]]:
    """Return the records of each worker in order, from a moment on."""
    first = min(since << 8, _NUMBER_MAX)  # no clock gets so far
    if Path(directory, snapshot.NAME).exists():
        return [_stored(place, first) for place in stores_of(directory, stack)]
    try:
        client = stack.enter_context(ConsoleClient(directory))
    except NoBroker:
        return [_stored(place, first) for place in stores_of(directory, stack)]
    return [_asked(client, worker, first) for worker in range(client.workers)]


def _asked(client: ConsoleClient, worker: int, first: int) -> Iterator[_Record]:
    for page in client.pages(worker, ListEvents(max(first - 1, 0))):
        for number, value in page["events"]:
            yield event_key(number), base64.b64decode(value)


def _stored(place: Place, first: int) -> Iterator[_Record]:
    with place.to_open() as path:
        if not path.is_dir() or not any(path.iterdir()):
            return  # a start was killed before it made the store
        with plyvel.DB(str(path), create_if_missing=False, paranoid_checks=True) as db:
            deleted = db.get(schema.EVENTS_DELETED, verify_checksums=True)
            first = max(first, 0 if deleted is None else schema.decode_u64(deleted) + 1)
            with db.iterator(start=event_key(first), stop=_BEHIND, verify_checksums=True) as records:
                yield from records


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


def _as_json(event: Event) -> str:
    head = {"time": _time(event.microseconds), "worker": event.worker, "kind": event.kind.name, "number": event.number}
    return json.dumps({**head, **_fields(event)})


def _as_text(event: Event) -> str:
    parts = [_time(event.microseconds), event.kind.name, f"worker={event.worker}"]
    for name, value in _fields(event).items():
        if isinstance(value, dict):
            parts += (f"{shown(key)}={each}" for key, each in value.items())
        elif value is not None:
            parts.append(f"{name}={shown(value)}")
    return " ".join(parts)

"""`mqttd sessions list|show|delete`: the sessions of a running broker.

Requests go over the supervisor's control socket, which `broker.json` names: in the broker's data directory, and in its
runtime directory.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from broker.admin.requests import DeleteSession, ListSessions, NoAnswer, ShowSession
from broker.cli.console_client import ConsoleClient, configured_directory
from broker.config.settings import ConfigError
from broker.logs import shown as printable
from shards.placement import home

__all__ = ["main"]

_NONE = 1
_BAD_USAGE = 2
_NO_BROKER = 1
_NEVER = 0xFFFFFFFF
_COLUMNS = ("client", "worker", "connected", "version", "expiry", "subscriptions", "inflight", "queued")


def main(arguments: Sequence[str]) -> int:
    """Print the result. Exit status: 0 done, 1 no such session, or no broker that answers, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="mqttd sessions", description="The sessions of a running broker.")
    parser.add_argument("what", choices=["list", "show", "delete"], help="delete closes its connection, too")
    parser.add_argument("client", nargs="?", metavar="CLIENT_ID", help="for show and delete")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--data-dir", metavar="DIR", help="data directory of the broker (default: as configured)")
    where.add_argument("--runtime-dir", metavar="DIR", help="runtime directory of a broker with its store in memory")
    parser.add_argument("--config", metavar="FILE", help="configuration file of the broker; also MQTTD_CONFIG")
    parser.add_argument("--json", action="store_true", help="print JSON; list: an object per line")
    given = parser.parse_intermixed_args(arguments)
    if (given.client is None) != (given.what == "list"):
        parser.error(f"{given.what}: {'a client id is needed' if given.client is None else 'takes no client id'}")
    try:
        directory = given.data_dir or given.runtime_dir or configured_directory(given.config)
        with ConsoleClient(directory) as broker:
            if given.what == "list":
                _list(broker, given.json)
                return 0
            if given.what == "show":
                return _show(broker, given.client, given.json)
            return _delete(broker, given.client)
    except ConfigError as error:
        for line in error.lines:
            print(f"mqttd: {line}", file=sys.stderr)
        return _BAD_USAGE
    except NoAnswer as error:
        print(f"mqttd: {error}", file=sys.stderr)
        return _NO_BROKER


def _list(broker: ConsoleClient, as_json: bool) -> None:
    if not as_json:
        print(_line(_COLUMNS))
    for worker in range(broker.workers):
        for page in broker.pages(worker, ListSessions()):
            for row in page["sessions"]:
                print(json.dumps(row) if as_json else _line(_cells(row)))


def _show(broker: ConsoleClient, client_id: str, as_json: bool) -> int:
    worker = home(client_id, broker.workers)
    pages = list(broker.pages(worker, ShowSession(client_id)))
    shown = pages[0]["session"]
    if shown is None:
        print(f"mqttd: there is no session of {client_id!r}", file=sys.stderr)
        return _NONE
    shown["filters"] = [each for page in pages for each in page["subscriptions"]]
    if as_json:
        print(json.dumps(shown, indent=2))
        return 0
    for name, value in shown.items():
        texts = value if isinstance(value, list) else [_expiry(value) if name == "expiry_seconds" else value]
        print(f"{name:16} {', '.join(_printable(each) for each in texts)}")
    return 0


def _delete(broker: ConsoleClient, client_id: str) -> int:
    answer = broker.ask(home(client_id, broker.workers), DeleteSession(client_id))
    if not answer["deleted"]:
        print(f"mqttd: there is no session of {client_id!r}", file=sys.stderr)
        return _NONE
    print(f"the session of {client_id!r} is deleted")
    return 0


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    known = {**row, "connected": "yes" if row["connected"] else "no", "expiry": _expiry(row["expiry_seconds"])}
    return tuple(_printable(known[name]) for name in _COLUMNS)


def _printable(value: object) -> str:
    """Escape control sequences, because the text comes from a client."""
    text = str(value)
    return text if text.isprintable() else printable(text)


def _expiry(seconds: int) -> str:
    return "never" if seconds == _NEVER else f"{seconds} s"


def _line(cells: Sequence[str]) -> str:
    first, *rest = cells
    return "  ".join(
        [first.ljust(24), *(cell.rjust(max(6, len(name))) for cell, name in zip(rest, _COLUMNS[1:], strict=True))]
    )

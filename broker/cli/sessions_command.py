"""`mqttd sessions list|show|delete`: the sessions of a running broker, in a cluster of all its hosts.

Requests go over the supervisor's control socket, which `broker.json` names: in the broker's data directory, and in its
runtime directory. Other hosts are asked by way of the control process (`broker.cli.cluster_client`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from broker.admin.requests import DeleteSession, ListSessions, NoAnswer, Paged, ShowSession
from broker.cli.cluster_client import SOME_MISSING, ClusterClient, HostMissing
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


@dataclass(frozen=True, slots=True)
class _Source:
    """A host whose sessions are asked for. node: its name; None: it is in no cluster."""

    node: str | None
    workers: int
    pages: Callable[[int, Paged], Iterator[dict[str, Any]]]
    ask: Callable[[int, DeleteSession], dict[str, Any]]

    def naming(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row of it with its name."""
        return row if self.node is None else {"node": self.node, **row}


def main(arguments: Sequence[str]) -> int:
    """Print the result. Exit status: 0 done, 1 no such session, or no broker that answers, 2 wrong usage, 3 done, but
    some hosts have not answered.
    """
    parser = argparse.ArgumentParser(
        prog="mqttd sessions", description="The sessions of a running broker, in a cluster those of all its hosts."
    )
    parser.add_argument("what", choices=["list", "show", "delete"], help="delete closes its connection, too")
    parser.add_argument("client", nargs="?", metavar="CLIENT_ID", help="for show and delete")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--data-dir", metavar="DIR", help="data directory of the broker (default: as configured)")
    where.add_argument("--runtime-dir", metavar="DIR", help="runtime directory of a broker with its store in memory")
    parser.add_argument("--config", metavar="FILE", help="configuration file of the broker; also MQTTD_CONFIG")
    parser.add_argument("--node", metavar="NODE", help="only this host of the cluster")
    parser.add_argument("--json", action="store_true", help="print JSON; list: an object per line")
    given = parser.parse_intermixed_args(arguments)
    if (given.client is None) != (given.what == "list"):
        parser.error(f"{given.what}: {'a client id is needed' if given.client is None else 'takes no client id'}")
    try:
        directory = given.data_dir or given.runtime_dir or configured_directory(given.config)
        with ConsoleClient(directory) as broker:
            cluster = ClusterClient(broker)
            status = _done(given, cluster, _sources(cluster, given.node))
            for line in cluster.report():
                print(f"mqttd: {line}", file=sys.stderr)
            return SOME_MISSING if cluster.missing and status in (0, _NONE) else status
    except ConfigError as error:
        for line in error.lines:
            print(f"mqttd: {line}", file=sys.stderr)
        return _BAD_USAGE
    except NoAnswer as error:
        print(f"mqttd: {error}", file=sys.stderr)
        return _NO_BROKER


def _sources(cluster: ClusterClient, node: str | None) -> list[_Source]:
    """Return the hosts to ask: this one without its control process, because that need not run."""
    broker = cluster.broker
    if broker.node is None and node is not None:
        raise NoAnswer("--node: this host is in no cluster")
    if broker.node is None or broker.node == node:
        return [_Source(broker.node, broker.workers, broker.pages, broker.ask)]

    def pages_of(name: str) -> Callable[[int, Paged], Iterator[dict[str, Any]]]:
        return lambda worker, request: cluster.pages(name, worker, request)

    def deleting_on(name: str) -> Callable[[int, DeleteSession], dict[str, Any]]:
        return lambda worker, request: cluster.ask(name, worker, request)

    return [
        _Source(each.node, each.workers, pages_of(each.node), deleting_on(each.node)) for each in cluster.hosts(node)
    ]


def _done(given: argparse.Namespace, cluster: ClusterClient, sources: list[_Source]) -> int:
    if given.what == "list":
        _list(cluster, sources, given.json)
        return 0
    if given.what == "show":
        return _show(cluster, sources, given.client, given.json)
    return _delete(cluster, sources, given.client)


def _list(cluster: ClusterClient, sources: list[_Source], as_json: bool) -> None:
    columns = _COLUMNS if cluster.broker.node is None else ("client", "host", *_COLUMNS[1:])
    if not as_json:
        print(_line(columns, columns))
    for source in sources:
        try:
            for worker in range(source.workers):
                for page in source.pages(worker, ListSessions()):
                    for row in map(source.naming, page["sessions"]):
                        print(json.dumps(row) if as_json else _line(_cells(row, columns), columns))
        except HostMissing as error:
            cluster.missing[str(source.node)] = str(error)


def _show(cluster: ClusterClient, sources: list[_Source], client_id: str, as_json: bool) -> int:
    found = 0
    for source in sources:
        try:
            pages = list(source.pages(home(client_id, source.workers), ShowSession(client_id)))
        except HostMissing as error:
            cluster.missing[str(source.node)] = str(error)
            continue
        shown = pages[0]["session"]
        if shown is not None:
            shown["filters"] = [each for page in pages for each in page["subscriptions"]]
            if found and not as_json:
                print()
            _print_session(source.naming(shown), as_json)
            found += 1
    if not found:
        print(f"mqttd: there is no session of {client_id!r}", file=sys.stderr)
        return _NONE
    return 0


def _print_session(shown: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(shown, indent=2))
        return
    for name, value in shown.items():
        texts = value if isinstance(value, list) else [_expiry(value) if name == "expiry_seconds" else value]
        print(f"{'host' if name == 'node' else name:16} {', '.join(_printable(each) for each in texts)}")


def _delete(cluster: ClusterClient, sources: list[_Source], client_id: str) -> int:
    deleted = 0
    for source in sources:
        try:
            answer = source.ask(home(client_id, source.workers), DeleteSession(client_id))
        except HostMissing as error:
            cluster.missing[str(source.node)] = str(error)
            continue
        if answer["deleted"]:
            deleted += 1
            where = "" if source.node is None else f" on host {source.node}"
            print(f"the session of {client_id!r}{where} is deleted")
    if not deleted:
        print(f"mqttd: there is no session of {client_id!r}", file=sys.stderr)
        return _NONE
    return 0


def _cells(row: dict[str, Any], columns: Sequence[str]) -> tuple[str, ...]:
    known = {**row, "connected": "yes" if row["connected"] else "no", "expiry": _expiry(row["expiry_seconds"])}
    known["host"] = row.get("node")
    return tuple(_printable(known[name]) for name in columns)


def _printable(value: object) -> str:
    """Escape control sequences, because the text comes from a client."""
    text = str(value)
    return text if text.isprintable() else printable(text)


def _expiry(seconds: int) -> str:
    return "never" if seconds == _NEVER else f"{seconds} s"


def _line(cells: Sequence[str], columns: Sequence[str]) -> str:
    first, *rest = cells
    return "  ".join(
        [first.ljust(24), *(cell.rjust(max(6, len(name))) for cell, name in zip(rest, columns[1:], strict=True))]
    )

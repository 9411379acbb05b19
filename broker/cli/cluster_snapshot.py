"""`mqttd snapshot` without `--out`: a snapshot of all hosts of a cluster, under one id (docs/adr/0049).

Each host takes its own (`broker.admin.host_snapshots`) and is asked how far it is; one that does not answer, or cannot,
is missing, and the others go on. When all are done a manifest of what there is goes to every host that took part.
Interrupted, nothing is left of it.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
import time
from datetime import UTC, datetime

from broker.admin.host_requests import EndSnapshot, KeepManifest, SnapshotState, TakeSnapshot
from broker.admin.requests import NoAnswer
from broker.cli.cluster_client import SOME_MISSING, ClusterClient, HostMissing
from broker.cli.console_client import ConsoleClient, NoBroker, configured_directory
from broker.config.settings import ConfigError
from leveldb_store.snapshots.cluster_manifest import ClusterManifest, HostPart, MissingHost

__all__ = ["take"]

_CANNOT_TAKE = 1
_BAD_USAGE = 2
_INTERRUPTED = 130
_LOOK_SECONDS = 0.25
_PROGRESS_SECONDS = 2.0


def take(given: argparse.Namespace) -> int:
    """Take it. Exit status: 0 done, 1 no host has taken it, 2 wrong usage, 3 done, but some hosts are missing."""
    directory = ""
    taking: _ClusterTaking | None = None
    former = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        directory = given.data_dir or given.runtime_dir or configured_directory(given.config)
        with ConsoleClient(directory) as broker:
            if broker.node is None:
                print("mqttd: --out is needed: this host is in no cluster", file=sys.stderr)
                return _BAD_USAGE
            taking = _ClusterTaking(ClusterClient(broker))
            return taking.take(given.node, given.json)
    except ConfigError as error:
        for line in error.lines:
            print(f"mqttd: {line}", file=sys.stderr)
        return _BAD_USAGE
    except NoBroker as error:
        print(f"mqttd: {error}: all hosts are asked by way of it (--out: this one's stores alone)", file=sys.stderr)
        return _CANNOT_TAKE
    except NoAnswer as error:
        print(f"mqttd: {error}", file=sys.stderr)
        return _CANNOT_TAKE
    except KeyboardInterrupt:
        if taking is not None:
            _give_up(directory, taking)
        print("mqttd: interrupted; hosts that answer have removed all new files", file=sys.stderr)
        return _INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, former)


def _give_up(directory: str, taking: _ClusterTaking) -> None:
    # over a connection of its own: on the other one an answer may be on its way
    try:
        with ConsoleClient(directory) as broker:
            cluster = ClusterClient(broker)
            for node in taking.begun:
                try:
                    cluster.ask(node, None, EndSnapshot(taking.id))
                except HostMissing as error:
                    print(f"mqttd: {error}", file=sys.stderr)
    except NoAnswer as error:
        print(f"mqttd: {error}", file=sys.stderr)


class _ClusterTaking:
    """One snapshot of all hosts."""

    def __init__(self, cluster: ClusterClient) -> None:
        now = time.time_ns()
        self.id = f"{datetime.fromtimestamp(now // 1_000_000_000, UTC):%Y-%m-%dT%H%M%SZ}-{secrets.token_hex(4)}"
        self.begun: list[str] = []
        """Hosts that have begun."""
        self._asked_ms = now // 1_000_000
        self._cluster = cluster
        self._parts: dict[str, HostPart] = {}
        self._said_at = time.monotonic()

    def take(self, node: str | None, as_json: bool) -> int:
        """Return the exit status."""
        cluster = self._cluster
        for host in cluster.hosts(node):
            self._begin(host.node)
        running = list(self.begun)
        while running:
            running = self._look(running)
            if running:
                time.sleep(_LOOK_SECONDS)
        if not self._parts:
            self._report()
            print("mqttd: no host has taken a snapshot", file=sys.stderr)
            return _CANNOT_TAKE
        manifest = ClusterManifest(
            self.id, cluster.broker.cluster, self._asked_ms,
            tuple(self._parts[each] for each in sorted(self._parts)),
            tuple(MissingHost(each, reason) for each, reason in sorted(cluster.missing.items())),
        )  # fmt: skip
        self._keep(manifest.encode())
        print(manifest.encode() if as_json else self._summary(), end="")
        self._report()
        return SOME_MISSING if cluster.missing else 0

    def _begin(self, node: str) -> None:
        try:
            said = self._cluster.ask(node, None, TakeSnapshot(self.id))
        except HostMissing as error:
            self.begun.append(node)  # it may have been heard there
            self._cluster.missing[node] = str(error)
            return
        if "refused" in said:
            self._cluster.missing[node] = f"host {node}: {said['refused']}"
        else:
            self.begun.append(node)

    def _look(self, nodes: list[str]) -> list[str]:
        """Ask hosts how far they are. Return those that are not done."""
        running, progress = [], []
        for node in nodes:
            if node in self._cluster.missing:
                continue
            try:
                said = self._cluster.ask(node, None, SnapshotState(self.id))
                if said["state"] == "running":
                    running.append(node)
                    progress.append(f"host {node}: {said['progress']}" if said["progress"] else f"host {node}")
                elif said["state"] == "taken":
                    self._parts[node] = HostPart(node=node, **said["facts"])
                else:
                    self._cluster.missing[node] = f"host {node}: {said['reason']}"
            except HostMissing as error:
                self._cluster.missing[node] = str(error)
            except (KeyError, TypeError):
                self._cluster.missing[node] = f"host {node}: its answer is none: it is of another release"
        if running and time.monotonic() - self._said_at >= _PROGRESS_SECONDS:
            self._said_at = time.monotonic()
            print(f"mqttd: snapshot {self.id}: {'; '.join(progress)}", file=sys.stderr, flush=True)
        return running

    def _keep(self, manifest: str) -> None:
        for node in self._parts:
            try:
                said = self._cluster.ask(node, None, KeepManifest(self.id, manifest))
                reason = said.get("refused", "")
            except HostMissing as error:
                reason = str(error)
            if reason:
                self._cluster.missing[node] = f"host {node}: has its part of the snapshot, but no manifest: {reason}"

    def _summary(self) -> str:
        lines = [f"snapshot {self.id}"]
        for node, part in sorted(self._parts.items()):
            lines.append(
                f"host {node}: {part.path}: {part.workers} workers, {part.sessions} sessions, {part.messages} logged "
                f"and {part.retained} retained messages, {part.bytes} bytes"
            )
        return "\n".join(lines) + "\n"

    def _report(self) -> None:
        for line in self._cluster.report():
            print(f"mqttd: {line}", file=sys.stderr)

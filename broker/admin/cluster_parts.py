"""What the control process of a clustered host has besides: its membership, its answers to other hosts, its figures for
the leader.

Only that process imports this: it loads gRPC, and a process that has used gRPC must not fork.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from broker.admin.host_answers import HostAnswers
from broker.admin.host_figures import HostFigures
from broker.admin.host_snapshots import HostSnapshots
from broker.cluster.etcd import Etcd, EtcdAddress
from broker.cluster.host import ClusterHost

if TYPE_CHECKING:
    from broker.admin.workers import Workers
    from broker.cluster.contract import Coordination
    from broker.config.cluster import Cluster
    from broker.logs import Log
    from pyx.core.counters import Row
    from shards.worker_channel import ControlChannel

__all__ = ["ClusterParts", "cluster_parts"]


class ClusterParts(NamedTuple):
    """host: the membership. answers: to what other hosts ask."""

    host: ClusterHost
    answers: HostAnswers


def cluster_parts(
    channel: ControlChannel, asking: Workers, rows: Sequence[Row], pids: Callable[[], Sequence[int]], log: Log
) -> ClusterParts:
    """Return the parts. rows, pids: of the workers, a process id of 0 for one that does not run. Raises OSError for a
    file of the settings that cannot be read.
    """
    taking = HostSnapshots(lambda: channel.settings, lambda: host.number, log)
    answers = HostAnswers(asking, rows, taking)
    figures = HostFigures(rows, lambda: channel.settings.limits, pids, asking, log)
    settings = channel.settings.cluster
    host = answers.cluster = ClusterHost(
        _coordination(settings),
        settings,
        channel.identity,
        channel.workers,
        channel.settings.store != "memory",
        log,
        channel.tell,
        channel.owner_sockets,
        answers.answer,
        figures.measure,
        figures.send_away,
        drains=bool(channel.hosts.get("drains")),
    )
    return ClusterParts(host, answers)


def _coordination(settings: Cluster) -> Coordination:
    paths = (settings.etcd_ca, settings.etcd_certificate, settings.etcd_key)
    password = ""
    if settings.etcd_password_file is not None:
        password = Path(settings.etcd_password_file).read_text("utf-8").rstrip("\n")
    ca, certificate, key = (None if path is None else Path(path) for path in paths)
    return Etcd(EtcdAddress(settings.endpoints, settings.etcd_user, password, ca, certificate, key))

"""What the control process of a clustered host has besides: its membership, its answers to other hosts, its figures for
the leader.

Only that process imports this: it loads gRPC, and a process that has used gRPC must not fork.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.admin.host_answers import HostAnswers
from broker.admin.host_figures import HostFigures
from broker.admin.host_snapshots import HostSnapshots
from broker.cluster.connecting import coordination_of
from broker.cluster.host import ClusterHost

if TYPE_CHECKING:
    from broker.admin.workers import Workers
    from broker.logs import Log
    from pyx.core.counters import Row
    from shards.worker_channel import ControlChannel

__all__ = ["ClusterParts", "cluster_parts"]


class ClusterParts(NamedTuple):
    """host: the membership. answers: to what other hosts ask. report_on_peers: None with etcd."""

    host: ClusterHost
    answers: HostAnswers
    report_on_peers: Callable[[], dict[str, Any]] | None


def cluster_parts(
    channel: ControlChannel, asking: Workers, rows: Sequence[Row], pids: Callable[[], Sequence[int]], log: Log
) -> ClusterParts:
    """Return the parts. rows, pids: of the workers, a process id of 0 for one that does not run. Raises OSError and
    ValueError for files of the settings that are wrong.
    """
    taking = HostSnapshots(lambda: channel.settings, lambda: host.number, log)
    answers = HostAnswers(asking, rows, taking)
    figures = HostFigures(rows, lambda: channel.settings.limits, pids, asking, log)
    settings, keeps = channel.settings.cluster, channel.settings.store != "memory"
    data_dir = Path(channel.settings.data_dir) if keeps else None
    coordination, report_on_peers = coordination_of(settings, data_dir, not channel.hosts, log)
    host = answers.cluster = ClusterHost(
        coordination,
        settings,
        channel.identity,
        channel.workers,
        keeps,
        log,
        channel.tell,
        channel.owner_sockets,
        answers.answer,
        figures.measure,
        figures.send_away,
        drains=bool(channel.hosts.get("drains")),
    )
    return ClusterParts(host, answers, report_on_peers)

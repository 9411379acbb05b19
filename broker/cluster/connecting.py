"""The coordination that the settings name: etcd, or the hosts themselves.

Only the control process calls this: a process that has used gRPC must not fork.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.config.addresses import split_address
from broker.config.cluster import read_secret

if TYPE_CHECKING:
    from broker.cluster.contract import Coordination
    from broker.config.cluster import Cluster
    from broker.logs import Log

__all__ = ["coordination_of"]


def coordination_of(
    settings: Cluster, data_dir: Path | None, is_fresh: bool, log: Log
) -> tuple[Coordination, Callable[[], dict[str, Any]] | None]:
    """Return the coordination, and what reports on the peers, None with etcd. data_dir: None, with stores in memory.
    is_fresh: the host has not been a member since its start. Raises OSError and ValueError for files that are wrong.
    """
    return _peers(settings, data_dir, is_fresh, log) if settings.has_peers else (_etcd(settings), None)


def _etcd(settings: Cluster) -> Coordination:
    etcd = importlib.import_module("broker.cluster.etcd")
    paths = (settings.etcd_ca, settings.etcd_certificate, settings.etcd_key)
    password = ""
    if settings.etcd_password_file is not None:
        password = Path(settings.etcd_password_file).read_text("utf-8").rstrip("\n")
    ca, certificate, key = (None if path is None else Path(path) for path in paths)
    coordination: Coordination = etcd.Etcd(
        etcd.EtcdAddress(settings.endpoints, settings.etcd_user, password, ca, certificate, key)
    )
    return coordination


def _peers(
    settings: Cluster, data_dir: Path | None, is_fresh: bool, log: Log
) -> tuple[Coordination, Callable[[], dict[str, Any]]]:
    from broker.cluster.membership import boot_time
    from broker.cluster.peers.addresses import DnsPeers, ListedPeers, PeerAddresses
    from broker.cluster.peers.coordination import PeerCoordination
    from broker.cluster.peers.kept_file import KeptFile
    from broker.cluster.peers.leading import GroupRules
    from broker.cluster.peers.messages import MESSAGE_BYTES_MAX
    from broker.cluster.peers.transport import PeerSockets, keys_of_secret

    assert settings.secret_file is not None
    keys = keys_of_secret(read_secret(settings.secret_file), settings.name)
    addresses: PeerAddresses = ListedPeers(settings.peers)
    if settings.dns:
        addresses = DnsPeers(*split_address(settings.dns))
    quorum = settings.needed_peers
    peers = PeerCoordination(
        settings.node_id,
        is_fresh,
        GroupRules(quorum, waits_for_all=not settings.peers or 2 * quorum <= len(settings.peers)),
        PeerSockets(settings.peers_address, keys, MESSAGE_BYTES_MAX),
        addresses,
        None if data_dir is None else KeptFile(data_dir, settings.name),
        log,
        clock=boot_time,
    )
    return peers, peers.report

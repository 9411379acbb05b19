"""Hosts of a cluster on loopback that agree among themselves, without etcd."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

from tests.cluster.hosts import ClusteredHost, Hosts
from tests.cluster.peer_groups import SECRET, free_addresses

__all__ = ["PeerList", "peer_hosts_of", "secret_in", "start_together"]


def secret_in(folder: Path, secret: bytes = SECRET) -> Path:
    """Return a file with a secret that others may not read."""
    file = folder / "secret"
    file.touch(0o600)
    file.write_bytes(secret + b"\n")
    return file


class PeerList:
    """Implements `tests.cluster.hosts.Coordinator`: the addresses of so many hosts, and the secret that they have."""

    def __init__(self, count: int, secret: Path, quorum: int = 0) -> None:
        self.addresses = free_addresses(count)
        self.cluster = "peers://" + ",".join(self.addresses)
        self._secret = secret
        self._quorum = quorum

    def environment(self, at: int) -> dict[str, str]:
        """Return the settings of one of the hosts."""
        return {
            "MQTTD_CLUSTER__PEERS_LISTEN": self.addresses[at],
            "MQTTD_CLUSTER__SECRET_FILE": str(self._secret),
            "MQTTD_CLUSTER__QUORUM": str(self._quorum),
        }


def start_together(hosts: Sequence[ClusteredHost]) -> None:
    """Start hosts at the same time: each waits for the others before it serves."""
    with ThreadPoolExecutor(len(hosts)) as pool:
        for done in [pool.submit(host.start) for host in hosts]:
            done.result()


@contextlib.contextmanager
def peer_hosts_of(
    workers: Sequence[int],
    store: str = "memory",
    environment: Mapping[str, str] = MappingProxyType({}),
    quorum: int = 0,
    **limits: float,
) -> Iterator[Hosts]:
    """Run a host for each number of workers, linked with each other. At the end none may have failed within."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mqttd-peers-")))
        peers = PeerList(len(workers), secret_in(folder), quorum)
        hosts = Hosts()
        for at, count in enumerate(workers):
            settings = {**peers.environment(at), **environment}
            hosts.add(ClusteredHost(f"n{at}", count, peers, store, settings, "127.0.0.1", **limits), stack)
        start_together(hosts)
        yield from hosts.linked()

"""Hosts of a cluster on loopback, with a real etcd."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, Self

from shards.placement import home
from tests.cluster.etcd_process import EtcdProcess, etcd_process
from tests.counted import CountedBroker
from tests.waiting import wait_until
from tests.wire import Client

__all__ = ["LINK_SECONDS", "ClusteredHost", "Coordinator", "Hosts", "hosts_of", "ids_on"]

LINK_SECONDS = 30.0
"""Longest time that hosts take to link."""


def _consecutive_ports(count: int) -> int:
    """Return the first of so many free ports, below those that the kernel gives to outgoing connections: one of these
    might have the port by the time the host listens on it.
    """
    chance = random.SystemRandom()
    for _ in range(100):
        port = chance.randrange(20_000, 32_000)
        with contextlib.ExitStack() as stack:
            try:
                for at in range(count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port + at))
            except OSError:
                continue
            return port
    raise AssertionError(f"no {count} consecutive free ports")


def ids_on(worker: int, workers: int, prefix: str) -> Iterator[str]:
    """Yield client ids whose home is that worker."""
    return (name for name in (f"{prefix}{at}" for at in itertools.count()) if home(name, workers) == worker)


class Coordinator(Protocol):
    """What hosts are told to find each other by: an etcd, or the peers that they are. cluster: as for --cluster."""

    cluster: str


class ClusteredHost(CountedBroker):
    """A host. `node`: its name. mesh_host: the address at which other hosts, and its operator, reach it."""

    def __init__(
        self,
        node: str,
        workers: int,
        etcd: Coordinator,
        store: str,
        environment: Mapping[str, str] = MappingProxyType({}),
        mesh_host: str = "127.0.0.1",
        **limits: float,
    ) -> None:
        self.node = node
        self.mesh_address = f"tcp://{mesh_host}:{_consecutive_ports(workers + 1)}"
        self._clients: list[Client] = []
        super().__init__(
            workers,
            [
                *("--cluster", etcd.cluster, "--node-id", node),
                *("--mesh-listen", self.mesh_address, "--admin", "127.0.0.1:0"),
            ],
            {"MQTTD_STORE": store, **environment},
            **limits,
        )

    def links(self, since: int = 0) -> int:
        """Return how often a worker has linked with another host, since a byte of the log."""
        return len(self.logged("host_linked", since))

    def forget(self) -> None:
        """Close the clients, too."""
        for client in self._clients:
            client.close()
        super().forget()

    def client(self, client_id: str, version: int = 5, **options: object) -> Client:
        """Return a connected client."""
        client = Client(self.address, version)
        self._clients.append(client)
        client.connect(client_id, **options)
        return client

    def client_on(self, worker: int, prefix: str, version: int = 5, **options: object) -> Client:
        """Return a connected client whose home is that worker. Its id is another one on each host."""
        return self.client(next(ids_on(worker, self.workers, f"{prefix}{self.node}-")), version, **options)


class Hosts(list[ClusteredHost]):
    """The hosts of a cluster. `etcd`: theirs."""

    etcd: EtcdProcess

    def wait_until_linked(self) -> None:
        """Wait until every host knows what the others want."""

        def all_ready() -> bool:
            return all(host.logged("cluster_ready") for host in self)

        wait_until(all_ready, LINK_SECONDS, "all hosts are ready")
        peers = len(self) - 1

        def all_linked() -> bool:
            return all(host.links() >= host.workers * peers for host in self)

        wait_until(all_linked, LINK_SECONDS, "all workers are linked")

    def run(self, host: ClusteredHost, stack: contextlib.ExitStack) -> None:
        """Start a host, which ends with the stack."""
        self.add(host, stack)
        host.start()

    def add(self, host: ClusteredHost, stack: contextlib.ExitStack) -> None:
        """Take up a host that is started later, and ends with the stack."""
        stack.callback(host.forget)
        stack.callback(host.kill)
        self.append(host)

    def linked(self) -> Iterator[Self]:
        """Yield them once they are linked. In the end they are stopped, and none may have failed within."""
        self.wait_until_linked()
        yield self
        for host in self:
            if host.alive():
                assert host.stop() == 0
            host.assert_sound()


@contextlib.contextmanager
def hosts_of(
    workers: Sequence[int],
    store: str = "memory",
    environment: Mapping[str, str] = MappingProxyType({}),
    **limits: float,
) -> Iterator[Hosts]:
    """Run a host for each number of workers, linked with each other. At the end none may have failed within."""
    with contextlib.ExitStack() as stack:
        hosts = Hosts()
        hosts.etcd = stack.enter_context(etcd_process())
        for at, count in enumerate(workers):
            hosts.run(ClusteredHost(f"n{at}", count, hosts.etcd, store, environment, "127.0.0.1", **limits), stack)
        yield from hosts.linked()

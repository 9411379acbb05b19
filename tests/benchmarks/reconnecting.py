"""How fast the clients of a cluster come back, and how often that asks etcd.

python -m tests.benchmarks.reconnecting [--clients 100000] [--at-once 500] [--store memory] [--workers 2]

Two hosts on loopback with a real etcd. All clients, each with a session that lasts, connect to the first host as new
ones, then again to the same host, then to the other one, which takes their sessions over. Each disconnects when it has
its CONNACK. Prints connections a second, the CPU time of both hosts for a connection, and the transactions of etcd, all
and those of the busiest second.
"""

from __future__ import annotations

import argparse
import os
import selectors
import socket
import time
from collections.abc import Iterator

from tests.cluster.etcd_process import EtcdProcess
from tests.cluster.hosts import Hosts, hosts_of
from tests.wire import connect, disconnect

_LASTING = {"session_expiry_interval": 3600}
_SECONDS = 60.0
_CONNACK_ACCEPTED = 0


def cpu_seconds(hosts: Hosts) -> float:
    """Return the CPU time that the workers and control processes of hosts have used."""
    ticks = 0
    for host in hosts:
        for pid in (*host.worker_pids().values(), host.control_pid()):
            with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                ticks += sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


class _Transactions:
    """The transactions of etcd, second by second."""

    def __init__(self, etcd: EtcdProcess) -> None:
        self._etcd = etcd
        self._first = self._last = etcd.transactions()
        self._looked = time.perf_counter()
        self.busiest = 0.0

    @property
    def sum(self) -> int:
        return self._last - self._first

    def look(self) -> None:
        """Look, at most once a second."""
        seconds = time.perf_counter() - self._looked
        if seconds >= 1:
            now = self._etcd.transactions()
            self.busiest = max(self.busiest, (now - self._last) / seconds)
            self._last, self._looked = now, self._looked + seconds


def _connect_all(address: tuple[str, int], client_ids: Iterator[str], at_once: int, seen: _Transactions) -> None:
    with selectors.DefaultSelector() as selector:

        def begin() -> bool:
            client_id = next(client_ids, None)
            if client_id is None:
                return False
            connection = socket.create_connection(address, timeout=_SECONDS)
            connection.sendall(connect(5, client_id, clean=False, properties=_LASTING))
            selector.register(connection, selectors.EVENT_READ)
            return True

        while len(selector.get_map()) < at_once and begin():
            pass
        while selector.get_map():
            ready = selector.select(_SECONDS)
            assert ready, "a CONNACK does not come"
            for key, _ in ready:
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                answer = connection.recv(4096)
                assert answer[3:4] == bytes([_CONNACK_ACCEPTED]), f"refused: {answer!r}"
                selector.unregister(connection)
                connection.sendall(disconnect(5))
                connection.close()
                begin()
            seen.look()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("clients", 100_000), ("at-once", 500), ("workers", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--store", choices=("memory", "leveldb"), default="memory")
    options = parser.parse_args()
    with hosts_of([options.workers] * 2, options.store, takeovers_per_minute_max=0) as hosts:
        for what, at in (("new", 0), ("known", 0), ("to the other host", 1)):
            seen = _Transactions(hosts.etcd)
            cpu, began = cpu_seconds(hosts), time.perf_counter()
            client_ids = (f"client-{number}" for number in range(options.clients))
            _connect_all(hosts[at].address, client_ids, options.at_once, seen)
            took, cpu = time.perf_counter() - began, cpu_seconds(hosts) - cpu
            rate, each = options.clients / took, cpu / options.clients * 1e6
            print(f"{what}: {rate:,.0f} connections/s, {each:.0f} us of CPU each")
            print(f"  {seen.sum} transactions, {seen.busiest:.0f} in the busiest second", flush=True)


if __name__ == "__main__":
    main()

"""How long a host takes to join a cluster that has much, and what its clients notice meanwhile.

python -m tests.benchmarks.joining [--retained 1000000] [--sessions 100000] [--bytes 500] [--store memory] [--workers 2]

One host gets that many retained messages and sessions, each with a subscription of its own; then a second host starts.
Prints the seconds from its start until it is ready, the time in which it answers a SUBSCRIBE to 10 retained messages,
and how long a message between two clients of the first host takes, median and 99th percentile, before and while the
second one joins. Checks that the second host has all retained messages, and knows all subscriptions.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time

from tests.cluster.etcd_process import etcd_process
from tests.cluster.hosts import ClusteredHost, Hosts
from tests.waiting import let_pass
from tests.wire import Client, connect, disconnect, publish, subscribe

_AT_ONCE = 100
_SUBSCRIBES = 50
_OF_A_SUBSCRIBE = 10
_JOIN_SECONDS = 600.0
_PAUSE_SECONDS = 0.005


def _fill(host: ClusteredHost, retained: int, sessions: int, size: int) -> None:
    publisher = host.client("publisher")
    for first in range(0, retained, _AT_ONCE):
        numbers = range(first, min(first + _AT_ONCE, retained))
        publisher.send(
            *(
                publish(5, f"kept/{number // 1000}/{number}", bytes(size), qos=1, packet_id=at + 1, retain=True)
                for at, number in enumerate(numbers)
            )
        )
        for _ in numbers:
            publisher.expect("PUBACK")
    lasting = {"session_expiry_interval": 3600}
    for first in range(0, sessions, _AT_ONCE):
        clients = [Client(host.address, 5) for _ in range(first, min(first + _AT_ONCE, sessions))]
        for at, client in enumerate(clients):
            number = first + at
            connecting = connect(5, f"session-{number}", properties=lasting)
            client.send(connecting, subscribe(5, 1, (f"of/{number}", 1)))
        for client in clients:
            client.expect("CONNACK", reason=0)
            client.expect("SUBACK")
            client.send(disconnect(5))
            client.close()


class _Pair:
    """A publisher and a subscriber on two workers of a host."""

    def __init__(self, host: ClusteredHost) -> None:
        self._publisher, self._subscriber = host.client_on(0, "probe-"), host.client_on(host.workers - 1, "heard-")
        self._subscriber.subscribe("probe", qos=0)

    def once(self) -> float:
        """Return the ms that a message takes."""
        begun = time.perf_counter()
        self._publisher.publish("probe", b"x")
        self._subscriber.receive("probe", b"x")
        took = time.perf_counter() - begun
        let_pass(_PAUSE_SECONDS)
        return took * 1e3


def _shown(times: list[float]) -> str:
    ordered = sorted(times)
    return f"median {statistics.median(ordered):.2f} ms, p99 {ordered[int(len(ordered) * 0.99)]:.2f} ms"


def _subscribe_ms(host: ClusteredHost, retained: int) -> list[float]:
    times = []
    for turn in range(_SUBSCRIBES):
        client = host.client(f"reader-{turn}")
        numbers = [(turn * 7919 + at * 104_729) % retained for at in range(_OF_A_SUBSCRIBE)]
        begun = time.perf_counter()
        client.send(subscribe(5, 1, *((f"kept/{number // 1000}/{number}", 0) for number in numbers)))
        got = 0
        while got < len(set(numbers)):
            got += client.read().kind == "PUBLISH"
        times.append((time.perf_counter() - begun) * 1e3)
        client.disconnect()
    return times


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("retained", 1_000_000), ("sessions", 100_000), ("bytes", 500), ("workers", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--store", choices=("memory", "leveldb"), default="memory")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        hosts = Hosts()
        hosts.etcd = stack.enter_context(etcd_process())
        first, second = (ClusteredHost(f"n{at}", options.workers, hosts.etcd, options.store) for at in range(2))
        hosts.run(first, stack)
        hosts.wait_until_linked()
        _fill(first, options.retained, options.sessions, options.bytes)
        pair = _Pair(first)
        before = [pair.once() for _ in range(1000)]
        begun = time.perf_counter()
        hosts.run(second, stack)
        during = []
        while not second.logged("cluster_ready"):
            during.append(pair.once())
            assert time.perf_counter() - begun < _JOIN_SECONDS, "the second host is not ready"
        took = time.perf_counter() - begun
        print(f"ready {took:.1f} s after its start")
        print(f"a message of the first host before: {_shown(before)}")
        print(f"and while the second one joined:    {_shown(during)}")
        if options.retained:
            print(
                f"SUBSCRIBE to {_OF_A_SUBSCRIBE} retained messages: {_shown(_subscribe_ms(second, options.retained))}"
            )
        if options.sessions:
            publisher, crossed = second.client("across"), second.counter("mesh_entries_sent")
            for number in range(0, options.sessions, max(1, options.sessions // 100)):
                assert publisher.publish(f"of/{number}", qos=1) == 0
                crossed += 1
            assert second.counter("mesh_entries_sent") == crossed, "each subscription is known"


if __name__ == "__main__":
    main()

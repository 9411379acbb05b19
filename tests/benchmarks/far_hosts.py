"""How many messages of QoS 1 a second go to a host from which an answer takes 80 ms, and what that costs.

python -m tests.benchmarks.far_hosts [--messages 200000] [--bytes 100] [--publishers 32] [--round-trip 80] [--workers 2]

Two hosts in network namespaces (needs root) with a real etcd. Publishers of the one keep `receive_maximum` messages
(default of the broker) unacknowledged; the only subscriber is a session on the other one, whose client is not
connected, so that each message is acknowledged when it stands in its queue. Prints messages a second, and the CPU time
of both hosts for a message, for stores in memory and on disk; checks that each has crossed once and none was dropped.
"""

from __future__ import annotations

import argparse
import selectors
import time
from dataclasses import dataclass

from broker.config.limits import Limits
from tests.benchmarks.reconnecting import cpu_seconds
from tests.cluster.namespaces import namespaced_hosts_of
from tests.wire import Client, publish

_WINDOW = Limits().receive_maximum
_PUBACK_BYTES = 4
_SECONDS = 300.0


@dataclass
class Publisher:
    """A client with as many messages unacknowledged as it may have. left: messages to be sent."""

    client: Client
    left: int
    size: int
    waiting: int = 0
    last: int = 0
    cut: int = 0
    """Bytes of an answer that has not come whole."""

    def send(self) -> None:
        """Send what the window allows."""
        packets = []
        while self.left and self.waiting < _WINDOW:
            self.last = self.last % 65_535 + 1
            packets.append(publish(5, "far/m", bytes(self.size), qos=1, packet_id=self.last))
            self.left, self.waiting = self.left - 1, self.waiting + 1
        if packets:
            self.client.send(*packets)

    def take(self) -> None:
        """Count answers. All are PUBACKs without a reason: the broker accepts everything."""
        self.cut += len(self.client.socket.recv(1 << 20))
        answered, self.cut = divmod(self.cut, _PUBACK_BYTES)
        self.waiting -= answered


def _measure(store: str, options: argparse.Namespace) -> tuple[float, float]:
    """Return messages a second, and us of CPU for a message."""
    running = namespaced_hosts_of(
        [options.workers] * 2,
        store,
        delays_ms={1: options.round_trip // 2},
        queue_messages_max=2 * options.messages,
        queue_bytes_max=1 << 30,
    )
    with running as hosts:
        here, there = hosts
        subscriber = there.client("far", properties={"session_expiry_interval": 600})
        subscriber.subscribe("far/#", qos=1)
        subscriber.disconnect()
        each = options.messages // options.publishers
        publishers = [
            Publisher(here.client_on(at % options.workers, f"near{at}-"), each, options.bytes)
            for at in range(options.publishers)
        ]
        cpu, began = cpu_seconds(hosts), time.perf_counter()
        with selectors.DefaultSelector() as selector:
            for publisher in publishers:
                selector.register(publisher.client.socket, selectors.EVENT_READ, publisher)
                publisher.send()
            while any(publisher.left or publisher.waiting for publisher in publishers):
                ready = selector.select(_SECONDS)
                assert ready, "nothing is acknowledged any more"
                for key, _ in ready:
                    key.data.take()
                    key.data.send()
        took, cpu = time.perf_counter() - began, cpu_seconds(hosts) - cpu
        sent = each * options.publishers
        assert here.counter("mesh_entries_sent") == sent, "each message has crossed once"
        assert there.counter("dropped_queue_full") == 0
    return sent / took, cpu / sent * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = (("messages", 200_000), ("bytes", 100), ("publishers", 32), ("round-trip", 80), ("workers", 2))
    for name, default in defaults:
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    for store in ("memory", "leveldb"):
        rate, cpu = _measure(store, options)
        print(f"store {store}: {rate:,.0f} messages/s, {cpu:.1f} us of CPU of both hosts for a message", flush=True)


if __name__ == "__main__":
    main()

"""How long a client waits for its CONNACK when its session moves to another host with its queue.

python -m tests.benchmarks.moving_sessions [--messages 10000] [--bytes 200] [--moves 12] [--workers 2]

Two hosts on loopback with a real etcd; the session moves from one to the other and back. Prints the times in ms for
stores in memory and on disk, and checks in the end that each message has come once, in order.
"""

from __future__ import annotations

import argparse
import statistics
import time

from tests.cluster.hosts import hosts_of
from tests.waiting import let_pass
from tests.wire import Client, connect, publish

_LASTING = {"session_expiry_interval": 600}
_AT_ONCE = 50
_NUMBER_BYTES = 8


def _fill(publisher: Client, messages: int, size: int) -> None:
    for first in range(0, messages, _AT_ONCE):
        numbers = range(first, min(first + _AT_ONCE, messages))
        payloads = [b"%0*d" % (_NUMBER_BYTES, number) + bytes(size - _NUMBER_BYTES) for number in numbers]
        packet_ids = [publisher.next_packet_id() for _ in numbers]
        publisher.send(
            *(
                publish(5, "moving", payload, qos=1, packet_id=packet_id)
                for payload, packet_id in zip(payloads, packet_ids, strict=True)
            )
        )
        for packet_id in packet_ids:
            publisher.await_packet("PUBACK", packet_id)


def _measure(store: str, messages: int, size: int, moves: int, workers: int) -> list[float]:
    """Return the times of all moves in ms."""
    running = hosts_of(
        (workers, workers),
        store,
        queue_messages_max=2 * messages,
        queue_bytes_max=1 << 30,
        takeovers_per_minute_max=0,
    )
    with running as hosts:
        client = hosts[0].client("moving", clean=False, properties=_LASTING)
        client.subscribe(("moving", 1))
        client.disconnect()
        _fill(hosts[0].client("publisher"), messages, size)
        times = []
        for move in range(1, moves + 1):
            client = Client(hosts[move % 2].address, 5)
            packet = connect(5, "moving", clean=False, properties=_LASTING)
            begun = time.perf_counter()
            client.send(packet)
            connack = client.expect("CONNACK", reason=0)
            times.append((time.perf_counter() - begun) * 1e3)
            assert connack.session_present
            client.close()
            let_pass(0.5)
        client = hosts[moves % 2].client("moving", clean=False, properties=_LASTING)
        got: list[int] = []
        while len(got) < messages:
            message = client.expect("PUBLISH")
            client.ack("PUBACK", message.packet_id)
            got.append(int(message.payload[:_NUMBER_BYTES]))
        client.expect_silence()
        assert got == list(range(messages)), "each message once, in order"
    return times


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("messages", 10_000), ("bytes", 200), ("moves", 12), ("workers", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    for store in ("memory", "leveldb"):
        times = _measure(store, options.messages, options.bytes, options.moves, options.workers)
        print(f"{store:8} CONNACK after {statistics.median(times):.0f} ms (median), {max(times):.0f} ms (longest)")


if __name__ == "__main__":
    main()

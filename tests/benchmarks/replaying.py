"""Speed of a replay of the archive to one subscriber, and its cost for other clients.

    python -m tests.benchmarks.replaying [--messages N] [--workers N]

One client archives messages of 64 bytes; another one requests all of them, at QoS 0. Meanwhile a third process sends a
message of QoS 0 to itself every two milliseconds, on a topic that is not archived, before and during the replay: p50 of
both, in turn, several times, because the machine may be busy.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import statistics
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from broker.testing import Mqttd
from shards.placement import home
from tests import wire
from tests.benchmarks.durable import directory
from tests.broker_process import BrokerProcess
from tests.waiting import let_pass

if TYPE_CHECKING:
    from tests.benchmarks.ruler import Figures, Ruler

__all__ = ["by_one_worker", "by_two_workers", "cpu_seconds", "main", "ping", "replay"]

TOPIC = "archived/building-07/room-1024"
PAYLOAD_BYTES = 64
_AT_ONCE = 500
_PING_SECONDS = 0.002
_BASE_SECONDS = 3.0
_MESSAGES = 1_000_000
_TURNS = 3


def _fill(address: tuple[str, int], messages: int, client_id: str) -> None:
    """Publish all messages; the ack of the last one, at QoS 1, shows that all are archived."""
    client = wire.Client(address, 5)
    client.connect(client_id)
    one = wire.publish(5, TOPIC, bytes(PAYLOAD_BYTES))
    left = messages - 1
    while left:
        count = min(left, _AT_ONCE)
        client.send(one * count)
        left -= count
    client.publish(TOPIC, bytes(PAYLOAD_BYTES), qos=1)
    client.disconnect()


def ping(address: tuple[str, int], orders: Connection) -> None:
    """Measure until an order of None arrives; answer other orders with the times since the last one."""
    client = wire.Client(address, 4)
    client.connect("ping")
    client.subscribe("ping")
    seconds: list[float] = []
    while True:
        if orders.poll():
            if orders.recv() is None:
                client.disconnect()
                return
            orders.send(seconds)
            seconds = []
        began = time.perf_counter()
        client.publish("ping", b"x")
        client.expect("PUBLISH", topic="ping")
        took = time.perf_counter() - began
        seconds.append(took)
        let_pass(max(0.0, _PING_SECONDS - took))


def _read(address: tuple[str, int], messages: int, told: Connection) -> None:
    """Request all messages; send the seconds from the SUBACK to the last message."""
    client = wire.Client(address, 5)
    client.connect("reader")
    asked = {"user_property": [("mqttd-offset", "earliest")]}
    client.subscribe((TOPIC, 0), properties=asked)
    began = time.perf_counter()
    first = client.expect("PUBLISH", topic=TOPIC)
    size = len(wire.publish(5, TOPIC, first.payload, properties=first.properties))
    wanted = (messages - 1) * size - len(client.received)
    sock: socket.socket = client.socket
    buffer = bytearray(1 << 20)
    while wanted > 0:
        came = sock.recv_into(buffer)
        assert came, "the broker has closed"
        wanted -= came
    took = time.perf_counter() - began
    assert wanted == 0, f"{-wanted} bytes too much"
    told.send(took)
    client.close()


def cpu_seconds(broker: Mqttd) -> float:
    """Return the CPU seconds of all its processes."""
    total = 0.0
    for pid in broker.processes():
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / 100
    return total


def replay(messages: int, workers: int, turns: int, base_seconds: float = _BASE_SECONDS) -> Figures:
    """Return the figures of a replay."""
    rates, before, during, cpu = [], [], [], []
    with directory() as path:
        config = path / "mqttd.toml"
        config.write_text('[[archive]]\nfilter = "archived/#"\nhours = 24\nbytes = "10GB"\n')
        arguments = ["--store", "leveldb", "--data-dir", str(path / "data"), "--config", str(config)]
        with BrokerProcess(workers, arguments) as broker:
            for worker in range(workers):
                names = (f"filler {number}" for number in range(1000))
                _fill(broker.address, messages // workers, next(n for n in names if home(n, workers) == worker))
            orders, ping_end = multiprocessing.Pipe()
            pinging = multiprocessing.Process(target=ping, args=(broker.address, ping_end))
            pinging.start()
            for _ in range(turns):
                orders.send(0)
                orders.recv()
                let_pass(base_seconds)
                orders.send(0)
                before.append(statistics.median(orders.recv()))
                done, told = multiprocessing.Pipe()
                used = cpu_seconds(broker)
                reader = multiprocessing.Process(target=_read, args=(broker.address, messages, told))
                reader.start()
                took = done.recv()
                orders.send(0)
                during.append(statistics.median(orders.recv()))
                reader.join()
                rates.append(messages / took)
                cpu.append((cpu_seconds(broker) - used) / messages)
            orders.send(None)
            pinging.join()
    ratios = [late / early for early, late in zip(before, during, strict=True)]
    return {
        "ok": True,
        "replay_per_s": statistics.median(rates),
        "replay_us": 1e6 * statistics.median(cpu),
        "ping_p50_us": 1e6 * statistics.median(during),
        "ping_alone_p50_us": 1e6 * statistics.median(before),
        "ping_ratio": statistics.median(ratios),
        "all": [
            (round(rate), round(1e6 * early, 1), round(1e6 * late, 1))
            for rate, early, late in zip(rates, before, during, strict=True)
        ],
    }


def by_one_worker(_: Ruler) -> Figures:
    """Replay 1,000,000 messages."""
    return replay(_MESSAGES, 1, _TURNS)


def by_two_workers(_: Ruler) -> Figures:
    """Replay 1,000,000 messages, half of them archived by a sibling."""
    return replay(_MESSAGES, 2, _TURNS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.replaying", description=__doc__)
    parser.add_argument("--messages", type=int, default=_MESSAGES)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--turns", type=int, default=_TURNS)
    given = parser.parse_args(arguments)
    print(json.dumps(replay(given.messages, given.workers, given.turns), indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

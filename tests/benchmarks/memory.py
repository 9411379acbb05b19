"""Figures that mqload does not measure: memory while a large body is sent, subscribers that do not read, a million
filters, and the kernel's memory for a connection.
"""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

from tests import wire
from tests.benchmarks.crowd import Crowd, Publisher
from tests.benchmarks.ruler import Figures
from tests.benchmarks.run_subscriptions import SHAPES, measured
from tests.waiting import let_pass

if TYPE_CHECKING:
    from tests.benchmarks.ruler import Ruler

_LARGE_BYTES = 1024 * 1024
_LARGE_SUBSCRIBERS = 10_000
_LARGE_WORKERS = 4
_LARGE_MESSAGES = 2
LARGE_GROWTH_BYTES_MAX = 2 * _LARGE_BYTES * _LARGE_WORKERS + 1024 * _LARGE_SUBSCRIBERS

_FAN_OUT = 1000
_FAN_OUT_RATE = 40
_TOPIC = "bench/out"  # the topic of mqload's fan-out

_CLIENTS = 1000
_FILTERS_EACH = 1000
_SETTLE_SECONDS = 0.3


def large_body(ruler: Ruler) -> Figures:
    """Send 1 MB to 10,000 subscribers that all read: the largest growth of PSS in samples of 50 ms."""
    with ruler.started(f"mqttd/{_LARGE_WORKERS}") as broker:
        with (
            Crowd(broker.port, _LARGE_SUBSCRIBERS, "large", lambda _: [("large", 0)]) as crowd,
            Publisher(broker.port, "large-publisher") as publisher,
        ):
            let_pass(_SETTLE_SECONDS)
            before, sockets_before = broker.pss_bytes(), _socket_buffer_bytes()
            largest = [before, sockets_before]

            def sample() -> None:
                largest[0] = max(largest[0], broker.pss_bytes())
                largest[1] = max(largest[1], _socket_buffer_bytes())

            packet_bytes = len(wire.publish(4, "large", bytes(_LARGE_BYTES)))
            began = time.monotonic()
            for _ in range(_LARGE_MESSAGES):
                publisher.publish("large", bytes(_LARGE_BYTES))
                crowd.read(packet_bytes, sample)
            seconds = (time.monotonic() - began) / _LARGE_MESSAGES
    growth, sockets = largest[0] - before, largest[1] - sockets_before
    return {"ok": True, "growth_bytes": growth, "socket_bytes": sockets, "seconds": seconds}


def everybody_reads(ruler: Ruler) -> Figures:
    """p50 of a fan-out to 1,000 subscribers."""
    with ruler.started("mqttd/1") as broker:
        return ruler.generate(broker, _fan_out(_FAN_OUT))


def one_does_not_read(ruler: Ruler) -> Figures:
    """The same with 999, and one more whose outbox is full before the start."""
    with ruler.started("mqttd/1") as broker, Crowd(broker.port, 1, "stalled", lambda _: [(_TOPIC, 0)], 4096):
        with Publisher(broker.port, "stalled-publisher") as publisher:
            for _ in range(200):
                publisher.publish(_TOPIC, bytes(64 * 1024))
            publisher.handled()
        return ruler.generate(broker, _fan_out(_FAN_OUT - 1))


def _fan_out(subscribers: int) -> str:
    return f"fanout --subs {subscribers} --qos 0 --rate {_FAN_OUT_RATE} --seconds 4 --warmup 0.5"


def exact_filters(ruler: Ruler) -> Figures:
    """Figures of a million exact filters."""
    return _filters(ruler, ("exact",), ("exact",))


def wildcard_filters(ruler: Ruler) -> Figures:
    """Figures of a million filters with + or #."""
    return _filters(ruler, ("+", "#"), ("+", "+ first", "+ shared", "#"))


def _filters(ruler: Ruler, held: tuple[str, ...], matched: tuple[str, ...]) -> Figures:
    """Return the growth of the broker's PSS by 1,000 clients with 1,000 filters each, of these shapes in turn; and the
    ns per match of the slowest shape among a million filters of its kind, in a separate process.
    """

    def filters(client: int) -> list[tuple[str, int]]:
        numbers = range(client * _FILTERS_EACH, (client + 1) * _FILTERS_EACH)
        return [(SHAPES[held[number % len(held)]][0](number).decode(), 0) for number in numbers]

    with ruler.started("mqttd/1") as broker:
        before = broker.pss_bytes()
        began = time.monotonic()
        with Crowd(broker.port, _CLIENTS, "filters", filters):
            seconds = time.monotonic() - began
            let_pass(_SETTLE_SECONDS)
            each = (broker.pss_bytes() - before) / (_CLIENTS * _FILTERS_EACH)
    spawn = multiprocessing.get_context("spawn")
    slowest = 0.0
    for shape in matched:
        with ProcessPoolExecutor(1, spawn) as process:
            slowest = max(slowest, process.submit(measured, shape, _CLIENTS * _FILTERS_EACH).result().match_ns)
    return {"ok": True, "bytes_per_filter": each, "match_ns": slowest, "subscribe_s": seconds}


def idle_sockets(ruler: Ruler) -> Figures:
    """Memory of 5,000 idle connections."""
    return _sockets(ruler, 5000, 0, 0)


def stalled_sockets(ruler: Ruler) -> Figures:
    """Memory of 50 connections, each sent more than all buffers hold, in messages of 1 KB."""
    return _sockets(ruler, 50, 16_000, 1024)


def _sockets(ruler: Ruler, count: int, messages: int, payload_bytes: int) -> Figures:
    with ruler.started("mqttd/1") as broker, Publisher(broker.port, "sockets-publisher") as publisher:
        let_pass(_SETTLE_SECONDS)
        before = (broker.pss_bytes(), _slab_bytes(), _socket_buffer_bytes())
        with Crowd(broker.port, count, "sockets", lambda _: [("sockets", 0)]):
            for _ in range(messages):
                publisher.publish("sockets", bytes(payload_bytes))
            publisher.handled()
            let_pass(_SETTLE_SECONDS)
            after = (broker.pss_bytes(), _slab_bytes(), _socket_buffer_bytes())
    names = ("pss_bytes", "slab_bytes", "socket_bytes")
    each = {name: (new - old) / count for name, new, old in zip(names, after, before, strict=True)}
    return {"ok": True, **each}


def _socket_buffer_bytes() -> int:
    """Return the bytes in TCP buffers of all processes on this machine."""
    with open("/proc/net/sockstat", encoding="ascii") as lines:
        words = next(line for line in lines if line.startswith("TCP:")).split()
    return int(words[words.index("mem") + 1]) * 4096


def _slab_bytes() -> int:
    """Return the bytes of the kernel's small objects: sockets, files, epoll items and all others."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Slab:"))

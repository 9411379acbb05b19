"""Memory does not grow with past work: after ten times as many connections, or messages, it is the same.

The long versions (``soak``) run to a million connections and ten million messages; the short ones show in seconds any
leak per connection or message.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests import wire
from tests.broker_process import BrokerProcess
from tests.chaos.churn import churn, visits
from tests.chaos.conftest import Record, StartBroker
from tests.waiting import wait_until

WORKERS = 2
MB = 1 << 20
GROWTH_RATIO_MAX = 1.02
GROWTH_BYTES_MAX = MB * WORKERS
DEADLINE_SECONDS = 30.0


def bound(baseline: int) -> int:
    """Return the memory allowed after ten times as many."""
    return int(baseline * GROWTH_RATIO_MAX) + GROWTH_BYTES_MAX


def lowest(broker: BrokerProcess, seconds: float) -> int:
    """Return the least PSS during this time: sessions expire within it, and freed memory is given back every 10 s."""
    least = broker.pss_bytes()
    end = time.monotonic() + seconds

    def look() -> bool:
        nonlocal least
        least = min(least, broker.pss_bytes())
        return time.monotonic() > end

    wait_until(look, seconds + DEADLINE_SECONDS, "it has been looked at for long enough")
    return least


def check_growth(broker: BrokerProcess, step: Callable[[int], object], plan: tuple[int, int], record: Record) -> None:
    """Run the first part, then all: memory after all is bounded by memory after the first part."""
    few, many = plan
    settle_seconds = 12.0 if many >= 1_000_000 else 2.0
    began = time.monotonic()
    step(few)
    baseline = lowest(broker, settle_seconds)
    step(many - few)
    seconds = time.monotonic() - began
    after = lowest(broker, settle_seconds)
    told = f"PSS after {few:,}: {baseline / MB:.2f} MB, after {many:,}: {after / MB:.2f} MB, {seconds:.0f} s"
    record("memory", told)
    print(told)
    assert after <= bound(baseline), told


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param((10_000, 20_000), marks=pytest.mark.long),
        pytest.param((100_000, 1_000_000), marks=pytest.mark.soak),
    ],
    ids=["20k", "1M"],
)
def test_connections_that_come_and_go(
    start_broker: StartBroker, plan: tuple[int, int], record_property: Record
) -> None:
    """Memory stays the same over CONNECT, SUBSCRIBE, PUBLISH, DISCONNECT: clean and expiring sessions, wills, reused
    ids.
    """
    # Sessions whose ids are reused within their second never take their queued messages: their queues are full, and
    # have to be so from the beginning
    broker = start_broker(WORKERS, log_lines_per_second_max=1, queue_messages_max=200)
    done = 0

    def more(count: int) -> None:
        nonlocal done
        answered = churn(broker.address, visits(done, count))
        assert answered == count
        done += count

    check_growth(broker, more, plan, record_property)
    assert len(broker.worker_pids()) == WORKERS


class Stream:
    """A connection whose packets are written and counted by the thousand; with version 4, packets have one size."""

    def __init__(self, address: tuple[str, int], client_id: str, *, clean: bool = True) -> None:
        client = wire.Client(address, 4)
        client.connect(client_id, clean=clean)
        self.client = client
        self.socket: socket.socket = client.socket
        self.socket.settimeout(DEADLINE_SECONDS)

    def read(self, size: int) -> bytes:
        """Return exactly so many bytes."""
        kept = self.client.received[:size]  # bytes behind the last packet that the client read
        del self.client.received[:size]
        got = kept + bytearray(size - len(kept))
        view = memoryview(got)[len(kept) :]
        while view:
            count = self.socket.recv_into(view)
            assert count, "closed by the broker"
            view = view[count:]
        return bytes(got)

    def leave(self) -> None:
        """Close without DISCONNECT."""
        self.socket.close()


def acks(first_byte: int, packets: bytes, size: int, id_at: int) -> bytes:
    """Return the answers to consecutive packets of one size."""
    count = len(packets) // size
    out = bytearray(4 * count)
    out[0::4] = bytes([first_byte]) * count
    out[1::4] = b"\x02" * count
    out[2::4] = packets[id_at::size]
    out[3::4] = packets[id_at + 1 :: size]
    return bytes(out)


class Traffic:
    """Rounds of messages of every kind; each round is over when every client has everything."""

    ROUND = 10_000
    WINDOW = 100  # inflight_max
    RETAINED_TOPICS = 500

    def __init__(self, broker: BrokerProcess, stack: ExitStack) -> None:
        self.address = broker.address
        self.publisher = self._open(stack, "publisher")
        self.readers = {qos: self._open(stack, f"reader{qos}") for qos in (0, 1, 2)}
        for qos, reader in self.readers.items():
            assert reader.client.subscribe((f"live{qos}/+/#", qos)) == (qos,)
        later = self._open(stack, "later", clean=False)
        assert later.client.subscribe(("later/#", 1)) == (1,)
        later.leave()

    def _open(self, stack: ExitStack, name: str, *, clean: bool = True) -> Stream:
        stream = Stream(self.address, name, clean=clean)
        stack.callback(stream.leave)
        return stream

    def run(self, count: int) -> None:
        """Publish so many messages."""
        for _ in range(count // self.ROUND):
            self.at_most_once(6_000, 64)
            self.at_most_once(100, 4_000)
            self.at_least_once("live1/a/b", 2_000, self.readers[1])
            self.exactly_once(500)
            self.retained(400)
            self.while_away(1_000)

    def at_most_once(self, count: int, payload_bytes: int) -> None:
        packet = wire.publish(4, "live0/a/b", bytes(payload_bytes))
        chunk = max(1, 65536 // len(packet))
        while count:
            now = min(chunk, count)
            self.publisher.socket.sendall(packet * now)
            self.readers[0].read(len(packet) * now)
            count -= now

    def _window(self, topic: str, qos: int) -> bytes:
        return b"".join(wire.publish(4, topic, b"x" * 64, qos=qos, packet_id=n) for n in range(1, self.WINDOW + 1))

    def at_least_once(self, topic: str, count: int, reader: Stream | None) -> None:
        window = self._window(topic, 1)
        size = len(window) // self.WINDOW
        for _ in range(count // self.WINDOW):
            self.publisher.socket.sendall(window)
            if reader is not None:
                came = reader.read(len(window))
                reader.socket.sendall(acks(0x40, came, size, 4 + len(topic)))
            assert self.publisher.read(4 * self.WINDOW)[:1] == b"\x40"

    def exactly_once(self, count: int) -> None:
        topic, reader = "live2/a/b", self.readers[2]
        window = self._window(topic, 2)
        size = len(window) // self.WINDOW
        for _ in range(count // self.WINDOW):
            self.publisher.socket.sendall(window)
            received = self.publisher.read(4 * self.WINDOW)
            assert received[:1] == b"\x50"
            self.publisher.socket.sendall(acks(0x62, received, 4, 2))
            assert self.publisher.read(4 * self.WINDOW)[:1] == b"\x70"
            came = reader.read(len(window))
            reader.socket.sendall(acks(0x50, came, size, 4 + len(topic)))
            released = reader.read(4 * self.WINDOW)
            assert released[:1] == b"\x62"
            reader.socket.sendall(acks(0x70, released, 4, 2))

    def retained(self, count: int) -> None:
        for first in range(0, count, self.WINDOW):
            self.publisher.socket.sendall(b"".join(
                wire.publish(
                    4, f"kept/{n % self.RETAINED_TOPICS}", b"" if n % 3 == 0 else b"r" * 40, retain=True,
                    qos=1, packet_id=1 + n - first,
                )
                for n in range(first, first + self.WINDOW)
            ))  # fmt: skip
            self.publisher.read(4 * self.WINDOW)

    def while_away(self, count: int) -> None:
        """Queue messages for a session whose client is away; then the client connects and takes them."""
        topic = "later/x"
        self.at_least_once(topic, count, None)
        later = Stream(self.address, "later", clean=False)
        assert later.client.connack.session_present
        size = len(self._window(topic, 1)) // self.WINDOW
        for _ in range(count // self.WINDOW):
            came = later.read(size * self.WINDOW)
            later.socket.sendall(acks(0x40, came, size, 4 + len(topic)))
        later.client.disconnect()


@contextmanager
def traffic_of(broker: BrokerProcess) -> Iterator[Traffic]:
    """Traffic whose clients are closed at the end."""
    with ExitStack() as stack:
        yield Traffic(broker, stack)


@pytest.mark.parametrize(
    "plan", [(50_000, 200_000), pytest.param((1_000_000, 10_000_000), marks=pytest.mark.soak)], ids=["200k", "10M"]
)
def test_messages_that_pass(start_broker: StartBroker, plan: tuple[int, int], record_property: Record) -> None:
    """Memory stays the same over QoS 0, 1 and 2, small and large, to wildcards, retained, cleared and queued ones."""
    broker = start_broker(WORKERS)
    with traffic_of(broker) as traffic:
        check_growth(broker, traffic.run, plan, record_property)

"""The costs of an archive of 24 hours: readers of a rare Topic Filter, of nothing, of everything; retention, the start.

    python -m tests.benchmarks.archive_day [--blocks N] [--per-second N] [--workers N] [--seconds N] [--keep DIRECTORY]

The archive is written through the store's own code, with the content of a day of 50 messages a second, each message in
a block of its own: 4,320,000 blocks, 3,000 topics, the oldest 24 hours old. First the store alone removes the oldest
ten minutes of it. Then a broker continues to archive 50 messages a second, while another process sends a message of
QoS 0 to itself every two milliseconds. The cases are measured in turn: the seconds until the message arrives, the CPU
seconds of all the broker's processes, and the p50 of the other process.

    quiet       no reader: only new messages, and retention
    rare        one message, the last of the day
    nothing     no archived message; the first one that is published after the SUBACK ends the case
    rare16      16 readers at the same time, each of its own Topic Filter
    nothing16   likewise, by one session
    sparse      one topic, 1,000 of the 1,440 messages that it has over the day, by one reader
    dense       everything, as many messages as --dense says
    cancelled   16 that find nothing and close after a second: the cost of the seconds after that, beyond `quiet`
    waiting     16 at the end of the archive that match no new message, then the maximum number for a worker
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leveldb_store.archive.archive import ArchiveOptions, ArchiveTable
from leveldb_store.format.archive_schema import unix_ms
from leveldb_store.store import LevelStore
from pyx.protocol.message import Message
from shards.data_dir import DataDir, archive_epoch_of, store_path
from tests import wire
from tests.benchmarks.durable import directory
from tests.benchmarks.replaying import cpu_seconds, ping
from tests.broker_process import BrokerProcess
from tests.waiting import let_pass, wait_until

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from tests.benchmarks.ruler import Figures

__all__ = ["BLOCKS", "PER_SECOND", "fill", "main", "measured"]

BLOCKS = 4_320_000
PER_SECOND = 50
READERS = 16
SPARSE = 1000
"""Fewer than the 1,440 of a topic: retention may have removed some from a day that was kept."""
REPLAYS_MAX = 1000
"""Default maximum of a worker."""
_SITES = 16
_DEVICES = 1000
_KINDS = ("temperature", "humidity", "power")
_PAYLOAD_BYTES = 64
_WAIT_SECONDS = 900.0
_COMMIT_BLOCKS = 1000
_FILTER = "site/#"
_HOUR_MS = 3_600_000
_CONFIG = f'[[archive]]\nfilter = "{_FILTER}"\nhours = 24\nbytes = "20GB"\n'
_EARLIEST = {"user_property": [("mqttd-offset", "earliest")]}


def _topic(number: int) -> str:
    device = number * 7919 % _DEVICES
    return f"site/{device % _SITES:02}/device/{device:04}/{_KINDS[number % len(_KINDS)]}"


def _rare(number: int) -> str:
    return f"site/{number % _SITES:02}/device/{number:04}/fault"


def _absent(number: int) -> str:
    return f"site/{number % _SITES:02}/device/{number:04}/silence"


# ---------------------------------------------------------------- the day


def fill(path: Path, blocks: int, per_second: float, workers: int = 1) -> None:
    """Make a data directory with an archive that ends now: one message in each block, and the workers in turn."""
    DataDir(str(path), workers).close()
    with ExitStack() as stack:
        stores = []
        for worker in range(workers):
            table = ArchiveTable(_FILTER.encode(), 24_000 * _HOUR_MS, 1 << 50)  # nothing is removed meanwhile
            options = ArchiveOptions(archive_epoch_of(str(path)), worker, (table,), pending_bytes_max=1 << 50)
            stores.append(LevelStore(store_path(str(path), worker), archive=options))
            stack.callback(stores[-1].close)
        begin = time.time() - blocks / per_second
        for number in range(blocks):
            store = stores[number % workers]
            topic = _topic(number) if number < blocks - READERS else _rare(number - blocks + READERS)
            stamp = int((begin + number / per_second) * 1e6) << 8 | number % workers
            payload = b"%064d" % number
            message = Message.create(topic.encode(), payload, 0, number=stamp, publisher=f"device {number % _DEVICES}")
            store.archive.archiver.add(message)
            store.append_archived()
            if number // workers % _COMMIT_BLOCKS == _COMMIT_BLOCKS - 1:
                _commit(store)
        for store in stores:
            _commit(store)


def _commit(store: LevelStore) -> None:
    ticket = store.flush()
    wait_until(lambda: store.collect() >= ticket, _WAIT_SECONDS, f"ticket {ticket} is durable")


def retention(path: Path) -> float:
    """Return the CPU seconds per block of worker 0 removed by age: the oldest ten minutes, at most half of all; in a
    kept day, all blocks that are too old by now.
    """

    def opened(age_ms: int) -> LevelStore:
        table = ArchiveTable(_FILTER.encode(), age_ms, 1 << 50)
        return LevelStore(store_path(str(path), 0), archive=ArchiveOptions(archive_epoch_of(str(path)), 0, (table,)))

    store = opened(24_000 * _HOUR_MS)
    first = unix_ms(store.archive.read([_FILTER.encode()], 0, 1, with_gaps=True).messages[0].number)
    last = unix_ms(store.archive.last)
    store.close()
    until = max(first + min(600_000, (last - first) // 2), int(time.time() * 1000) - 24 * _HOUR_MS)
    used = time.process_time()
    store = opened(int(time.time() * 1000) - until)
    wait_until(lambda: unix_ms(store.archive.start(_FILTER.encode())) > until - 1000, 60, "they are removed")
    used = time.process_time() - used
    removed, _ = store.archive.removed
    store.close()
    return used / removed


# ---------------------------------------------------------------- clients


def _publish(address: tuple[str, int], per_second: float, orders: Connection) -> None:
    """Publish one message at a time until an order arrives."""
    client = wire.Client(address, 5)
    client.connect("publisher")
    number, begun = 0, time.monotonic()
    while not orders.poll():
        client.publish(_topic(number), bytes(_PAYLOAD_BYTES))
        number += 1
        let_pass(max(0.0, begun + number / per_second - time.monotonic()))
    client.disconnect()


class _Day:
    """A broker with that archive, and the figures measured on it."""

    def __init__(self, broker: BrokerProcess, pings: Connection, quiet_seconds: float) -> None:
        self.figures: dict[str, Any] = {}
        self._broker = broker
        self._pings = pings
        self._seconds = quiet_seconds
        self._quiet = 0.0

    @contextmanager
    def _measuring(self, name: str) -> Iterator[dict[str, float]]:
        """Measure the costs of the `with` block as figures with this name; the block may add figures."""
        told: dict[str, float] = {}
        self._pings.send(0)
        self._pings.recv()
        used, begun = cpu_seconds(self._broker), time.monotonic()
        yield told
        took = time.monotonic() - begun
        self._pings.send(0)
        p50 = statistics.median(self._pings.recv())
        cpu = cpu_seconds(self._broker) - used
        self.figures[name] = {
            "seconds": round(took, 3),
            "cpu_seconds": round(cpu, 2),
            "cpu_of_a_core": round(cpu / took, 3),
            "beyond_quiet_of_a_core": round(cpu / took - self._quiet, 3),
            "ping_p50_us": round(1e6 * p50, 1),
            **{each: round(value, 4) for each, value in told.items()},
        }
        print(name, json.dumps(self.figures[name]), file=sys.stderr, flush=True)

    def _client(self, client_id: str) -> wire.Client:
        client = wire.Client(self._broker.address, 5)
        client.connect(client_id)
        return client

    def quiet(self, name: str) -> None:
        """Measure without readers."""
        with self._measuring(name):
            let_pass(self._seconds)
        self._quiet = self.figures[name]["cpu_of_a_core"]

    def rare(self, name: str, readers: int) -> None:
        """Measure readers of the last messages of the day."""
        clients = [self._client(f"{name} {number}") for number in range(readers)]
        with self._measuring(name) as told:
            begun = time.monotonic()
            for number, client in enumerate(clients):
                client.subscribe((_rare(number), 0), properties=_EARLIEST)
            for number, client in enumerate(clients):
                client.socket.settimeout(_WAIT_SECONDS)
                _await(client, _rare(number))
                told.setdefault("first", time.monotonic() - begun)
        for client in clients:
            client.close()

    def nothing(self, name: str, readers: int) -> None:
        """Measure readers of topics without archived messages, in one session."""
        client = self._client(name)
        other = self._client(f"{name} beside")
        with self._measuring(name):
            client.subscribe(*((_absent(number), 0) for number in range(readers)), properties=_EARLIEST)
            for number in range(readers):
                other.publish(_absent(number), b"live", qos=1)
            for _ in range(readers):
                _await(client)
        client.close()
        other.close()

    def many(self, name: str, wanted: str, messages: int) -> None:
        """Measure a reader of this number of messages, from the oldest."""
        client = self._client(name)
        with self._measuring(name) as told:
            begun = time.monotonic()
            client.subscribe((wanted, 0), properties=_EARLIEST)
            _await(client)
            told["first"] = time.monotonic() - begun
            for _ in range(messages - 1):
                _await(client)
            told["per_second"] = messages / (time.monotonic() - begun)
        client.close()

    def cancelled(self, name: str, readers: int) -> None:
        """Measure the remaining costs of readers that close a second after their start."""
        client = self._client(name)
        client.subscribe(*((_absent(100 + number), 0) for number in range(readers)), properties=_EARLIEST)
        let_pass(1.0)
        client.close()
        with self._measuring(name):
            let_pass(min(5.0, self._seconds))

    def waiting(self, name: str, readers: int, many_each: int) -> None:
        """Measure the latency of a new message while readers wait at the end of the archive."""
        clients = []
        latest = {"user_property": [("mqttd-offset", "latest")]}
        for number in range(0, readers - 1, many_each):
            client = self._client(f"{name} {number}")
            clients.append(client)
            wanted = range(number, min(number + many_each, readers - 1))
            client.subscribe(*((_absent(1000 + each), 0) for each in wanted), properties=latest)
        client = self._client(f"{name} live")
        client.subscribe((_rare(500), 0), properties=latest)
        other = self._client(f"{name} beside")
        late = []
        with self._measuring(name) as told:
            until = time.monotonic() + self._seconds
            while time.monotonic() < until:
                begun = time.monotonic()
                other.publish(_rare(500), b"live", qos=0)
                _await(client, _rare(500))
                late.append(time.monotonic() - begun)
                let_pass(0.1)
            told["live_p50_ms"] = 1e3 * statistics.median(late)
            told["live_worst_ms"] = 1e3 * max(late)
        for each in (*clients, client, other):
            each.close()


def _await(client: wire.Client, topic: str = "") -> None:
    packet = client.read(_WAIT_SECONDS)
    assert packet.kind == "PUBLISH", packet
    assert not topic or packet.topic == topic, packet


def _memory(broker: BrokerProcess) -> float:
    """Return the MB of its processes together, without tables mapped by LevelDB: those are the system's cache."""
    total = 0
    for pid in broker.processes():
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
            name, _, rest = line.partition(":")
            if name == "RssAnon":
                total += int(rest.split()[0])
    return total / 1024


def _bytes(path: Path) -> int:
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


# ---------------------------------------------------------------- all cases


def measured(
    path: Path,
    *,
    workers: int,
    per_second: float,
    seconds: float,
    dense: int,
    sparse: int = SPARSE,
    waiting: int = REPLAYS_MAX,
) -> Figures:
    """Return the figures of a broker on a directory made by `fill`."""
    config = path.with_suffix(".toml")
    config.write_text(_CONFIG, encoding="utf-8")
    disk = _bytes(path)
    per_block = retention(path)
    begun = time.monotonic()
    with ExitStack() as stack:
        arguments = ["--store", "leveldb", "--data-dir", str(path), "--config", str(config)]
        broker = stack.enter_context(BrokerProcess(workers, arguments))
        start = time.monotonic() - begun
        after_start = _memory(broker)
        pings, ping_end = multiprocessing.Pipe()
        orders, publisher_end = multiprocessing.Pipe()
        for target, arguments_of in (
            (ping, (broker.address, ping_end)),
            (_publish, (broker.address, per_second, publisher_end)),
        ):
            process = multiprocessing.Process(target=target, args=arguments_of, daemon=True)
            process.start()
            stack.callback(process.join)
        stack.callback(orders.send, None)
        stack.callback(pings.send, None)
        let_pass(min(2.0, seconds))
        day = _Day(broker, pings, seconds)
        day.quiet("quiet")
        day.rare("rare", 1)
        day.nothing("nothing", 1)
        day.rare("rare16", READERS)
        day.nothing("nothing16", READERS)
        day.many("sparse", _topic(0), sparse)
        day.many("dense", _FILTER, dense)
        day.cancelled("cancelled", READERS)
        day.waiting("waiting16", READERS, READERS)
        day.waiting(f"waiting{waiting}", waiting, READERS)
        after = _memory(broker)
        day.figures |= {
            "ok": True,
            "retention_us_per_block": round(1e6 * per_block, 1),
            "retention_cpu_ms_per_minute": round(1e3 * per_block * 60 * per_second, 1),
            "disk_mb": round(disk / 1e6, 1),
            "start_s": round(start, 2),
            "memory_after_start_mb": round(after_start, 1),
            "memory_at_the_end_mb": round(after, 1),
        }
    return day.figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.archive_day", description=__doc__)
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    parser.add_argument("--per-second", type=float, default=PER_SECOND)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0, help="that `quiet` and `waiting` last")
    parser.add_argument("--dense", type=int, default=100_000, help="messages")
    parser.add_argument("--keep", type=Path, help="a directory for the archive, which is left there and used again")
    given = parser.parse_args(arguments)
    with ExitStack() as stack:
        path = given.keep or stack.enter_context(directory()) / "day"
        if not path.exists():
            begun = time.monotonic()
            fill(path, given.blocks, given.per_second, given.workers)
            print(f"filled in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
        figures = measured(
            path, workers=given.workers, per_second=given.per_second, seconds=given.seconds, dense=given.dense
        )
    print(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Figures of the store on disk that mqload does not measure: from a publish to its ack, a start with a large backlog,
bytes written for one session and for a thousand, and the effect of a shared disk on the loop.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from shards.data_dir import DataDir
from tests import wire
from tests.benchmarks.ruler import ROOT, Figures
from tests.broker_process import BrokerProcess
from tests.sansio import Peer
from tests.waiting import let_pass

if TYPE_CHECKING:
    from tests.benchmarks.ruler import Ruler, Running

TOPIC = "building-07/floor-03/room-1024"
_PATIENCE_SECONDS = 60.0

_ACKS = 1500
_ACKS_IN_TURN = 25
_ACK_PAYLOAD_BYTES = 64

_SESSIONS = 100_000
_MESSAGES_EACH = 10
_TICK_MESSAGES = 100

_GIVEN_MESSAGES = 2000

_PINGS_EVERY_SECONDS = 0.002
_PING_SECONDS = 8.0
_SATURATING_BYTES = 4 << 20
_SATURATING_FILE_BYTES = 256 << 20
_SATURATING_THREADS = 4
_LOAD = "pair --pubs 5 --qos 1 --window 50 --persist --rate 2000 --seconds {seconds} --warmup 0.5"


@contextmanager
def directory() -> Iterator[Path]:
    """Yield a temporary directory on the measured disk, that of the build."""
    base = ROOT / "build"
    base.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=base, prefix="durable-") as name:
        yield Path(name)


def on_disk(path: Path, durability: str = "fsync") -> BrokerProcess:
    """Return a broker with a store there, not started yet."""
    arguments = ["--store", "leveldb", "--data-dir", str(path)]
    return BrokerProcess(1, arguments, {"MQTTD_DURABILITY": durability})


# ---------------------------------------------------------------- from a publish to its ack


class Pair:
    """A publisher with one message in flight, and a lasting session that receives it: both on blocking sockets."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._subscriber = _dial(address)
        self._subscriber.sendall(wire.connect(4, "ack-subscriber", clean=False) + wire.subscribe(4, 1, (TOPIC, 1)))
        _take(self._subscriber, 4 + 5)
        self._publisher = _dial(address)
        self._publisher.sendall(wire.connect(4, "ack-publisher"))
        _take(self._publisher, 4)
        self._packet_id = 0

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self._subscriber.close()
        self._publisher.close()

    def ack(self, payload: bytes) -> float:
        """Return the seconds from the publish to its PUBACK. Then the subscriber acknowledges its copy."""
        self._packet_id = self._packet_id % 65_535 + 1
        packet = wire.publish(4, TOPIC, payload, qos=1, packet_id=self._packet_id)
        began = time.perf_counter()
        self._publisher.sendall(packet)
        _take(self._publisher, 4)
        seconds = time.perf_counter() - began
        came = _take(self._subscriber, len(packet))
        at = len(packet) - len(payload) - 2
        self._subscriber.sendall(b"\x40\x02" + came[at : at + 2])
        return seconds


class Appending:
    """A file for timing an append with fdatasync."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def __enter__(self) -> Appending:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def sync(self, data: bytes) -> float:
        """Append and sync; return the seconds."""
        began = time.perf_counter()
        os.write(self._fd, data)
        os.fdatasync(self._fd)
        return time.perf_counter() - began


def acks(_: Ruler) -> Figures:
    """Return the p50 of acks with the store in memory and on disk, and of one fdatasync of as many bytes: in turn."""
    return acks_of(_ACKS)


def acks_of(count: int) -> Figures:
    """Measure `acks` with this number of each."""
    payload = os.urandom(_ACK_PAYLOAD_BYTES)
    with directory() as path, ExitStack() as stack:
        memory = stack.enter_context(BrokerProcess(1, ["--store", "memory"]))
        disk = stack.enter_context(on_disk(path / "data"))
        of_memory = stack.enter_context(Pair(memory.address))
        of_disk = stack.enter_context(Pair(disk.address))
        appending = stack.enter_context(Appending(path / "appended"))
        for _ in range(_ACKS_IN_TURN):
            of_memory.ack(payload)
            of_disk.ack(payload)
        began = _log_bytes(path)
        for _ in range(_ACKS_IN_TURN):
            of_disk.ack(payload)
        record = os.urandom(max(1, (_log_bytes(path) - began) // _ACKS_IN_TURN))
        turns: Sequence[Callable[[], float]] = (
            lambda: of_memory.ack(payload), lambda: of_disk.ack(payload), lambda: appending.sync(record),
        )  # fmt: skip
        found: list[list[float]] = [[] for _ in turns]
        while len(found[0]) < count:
            for each, seconds in zip(turns, found, strict=True):
                seconds.extend(each() for _ in range(_ACKS_IN_TURN))
    in_memory, with_disk, fdatasync = (1e6 * _percentile(seconds, 50) for seconds in found)
    return {
        "ok": True,
        "ack_memory_p50_us": in_memory,
        "ack_p50_us": with_disk,
        "ack_p99_us": 1e6 * _percentile(found[1], 99),
        "fdatasync_p50_us": fdatasync,
        "record_bytes": len(record),
        "ack_fdatasyncs": (with_disk - in_memory) / fdatasync,
    }


def _log_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in (path / "data" / "worker-0").glob("*.log"))


# ---------------------------------------------------------------- a start


def start(_: Ruler) -> Figures:
    """Measure a start with 1,000,000 queued messages of 100,000 sessions, each with its own filter."""
    return start_with(_SESSIONS, _MESSAGES_EACH)


def start_in_flight(_: Ruler) -> Figures:
    """Measure a start with 1,000,000 different messages in flight to 10,000 sessions, whose messages interleave."""
    return start_with(_SESSIONS // 10, _MESSAGES_EACH * 10, are_in_flight=True)


def start_with(sessions: int, messages_each: int, ping_seconds: float = 3.0, are_in_flight: bool = False) -> Figures:
    """Return the seconds until a broker with this backlog is ready, the slowest PINGRESP within `ping_seconds` after
    that, and whether the sessions have their messages, queued or in flight (100 at most).
    """
    with directory() as path:
        store = _filled(path / "data", sessions, messages_each, are_in_flight)
        broker = on_disk(path / "data")
        began = time.monotonic()
        try:
            broker.start()
            seconds = time.monotonic() - began
            found = sum(_took_all(broker.address, each, messages_each) for each in (0, sessions // 2, sessions - 1))
            ping = _slowest_ping(broker.address, ping_seconds)
            memory = sum(_pss_bytes(pid) for pid in broker.processes())
        finally:
            broker.close()
    return {
        "ok": found == 3, "why": "" if found == 3 else "messages are missing",
        "start_s": seconds, "ping_max_ms": 1e3 * ping, "pss_bytes": memory, "store_bytes": store,
    }  # fmt: skip


def _filled(path: Path, sessions: int, messages_each: int, are_in_flight: bool) -> int:
    """Make a data directory with that backlog; return the bytes of its store."""
    from tests.benchmarks.on_disk import Worker, names

    opened = DataDir(str(path), 1)
    opened.close()
    store = path / "worker-0"
    worker = Worker(store)
    client_ids = names(sessions)
    connected: list[Peer] = []
    for first in range(0, sessions, 1000):
        peers = worker.connect(client_ids[first : first + 1000])
        for peer in peers:
            peer.send(wire.subscribe(4, 1, (_topic_of(peer.client_id), 1)))
        worker.settle()
        if are_in_flight:
            connected += peers
        else:
            worker.leave(peers)
        worker.host.peers.clear()
    [publisher] = worker.connect(["publisher-0123456789012"])
    for _ in range(messages_each):
        for number, client_id in enumerate(client_ids):
            publisher.publish(_topic_of(client_id), os.urandom(64), qos=1)
            if (number + 1) % _TICK_MESSAGES == 0:
                worker.host.turn()
                publisher.packets.clear()
        worker.settle()
        publisher.packets.clear()
        for peer in connected:
            peer.packets.clear()
    worker.close()
    return sum(file.stat().st_size for file in store.iterdir())


def _topic_of(client_id: str) -> str:
    return f"fleet/{client_id}"


def _took_all(address: tuple[str, int], session: int, messages: int) -> bool:
    """Return whether that session receives this number of messages."""
    from tests.benchmarks.on_disk import names

    client_id = names(session + 1)[session]
    size = len(wire.publish(4, _topic_of(client_id), bytes(64), qos=1, packet_id=1))
    with _dial(address) as client:
        client.sendall(wire.connect(4, client_id, clean=False))
        came = _take(client, 4 + messages * size)
        return came[:4] == b"\x20\x02\x01\x00" and (came[4] | 0x08) == 0x3A  # DUP if it was sent before the restart


def _slowest_ping(address: tuple[str, int], seconds: float) -> float:
    with _dial(address) as client:
        client.sendall(wire.connect(4, "ping"))
        _take(client, 4)
        return max(_pings(client, seconds))


def _pss_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


# ---------------------------------------------------------------- bytes for one session and for a thousand


def given_for_one(_: Ruler) -> Figures:
    """Return the bytes given to LevelDB for each message to one offline session."""
    return _given(1)


def given_for_a_thousand(_: Ruler) -> Figures:
    """Return the same for 1,000 sessions with one filter."""
    return _given(1000)


def _given(sessions: int) -> Figures:
    from tests.benchmarks import on_disk

    with directory() as path:
        return {"ok": True, "given_bytes": on_disk.given(path, sessions, _GIVEN_MESSAGES) / _GIVEN_MESSAGES}


# ---------------------------------------------------------------- a shared disk


def ping_with_disk_quiet(ruler: Ruler) -> Figures:
    """Measure from PINGREQ to PINGRESP while 2,000 msg/s at QoS 1 are sent to lasting sessions."""
    return _ping(ruler, "mqttd/1+fsync", is_saturated=False)


def ping_with_disk_saturated(ruler: Ruler) -> Figures:
    """Measure the same while another process writes and syncs as fast as the disk allows."""
    return _ping(ruler, "mqttd/1+fsync", is_saturated=True)


def ping_in_memory_with_disk_saturated(ruler: Ruler) -> Figures:
    """Measure the same with the store in memory: the other process's effect on the whole machine."""
    return _ping(ruler, "mqttd/1", is_saturated=True)


def _ping(ruler: Ruler, broker: str, is_saturated: bool) -> Figures:
    with directory() as path, ruler.started(broker) as running, ExitStack() as stack:
        if is_saturated:
            stack.enter_context(_saturated(path / "saturating"))
        appending = stack.enter_context(Appending(path / "appended"))
        with _dial(("127.0.0.1", running.port)) as client:
            client.sendall(wire.connect(4, "ping"))
            _take(client, 4)
            load: list[Figures] = []
            arguments = _LOAD.format(seconds=_PING_SECONDS)
            beside = threading.Thread(target=lambda: load.append(_loaded(ruler, running, arguments)))
            beside.start()
            let_pass(1.0)  # the warm-up of the load
            loop = _Loop(running.pid)
            seconds = _pings(client, _PING_SECONDS - 1.0, loop.look)
            syncs = [appending.sync(bytes(200)) for _ in range(50)]
            beside.join()
    return {
        **load[0],
        "ping_p50_us": 1e6 * _percentile(seconds, 50),
        "ping_p99_us": 1e6 * _percentile(seconds, 99),
        "ping_max_ms": 1e3 * max(seconds),
        "fdatasync_p50_us": 1e6 * _percentile(syncs, 50),
        "disk_wait_pct": loop.waiting_percent,
    }


class _Loop:
    """Samples whether a worker's loop waits for the disk: its thread is then in uninterruptible sleep."""

    def __init__(self, supervisor: int) -> None:
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
        [worker] = [pid for pid in children if b"mqttd: worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        self._stat = Path(f"/proc/{worker}/task/{worker}/stat")
        self._looks = self._waits = 0

    def look(self) -> None:
        """Take a sample."""
        state = self._stat.read_text().rpartition(")")[2].split()[0]
        self._looks += 1
        self._waits += state == "D"

    @property
    def waiting_percent(self) -> float:
        """Percentage of samples in which it waited."""
        return 100 * self._waits / self._looks


def _loaded(ruler: Ruler, running: Running, arguments: str) -> Figures:
    figures = ruler.generate(running, arguments)
    return {name: figures[name] for name in ("ok", "why", "out_per_s") if name in figures}


def _pings(client: socket.socket, seconds: float, each: Callable[[], None] = lambda: None) -> list[float]:
    found = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        each()
        began = time.perf_counter()
        client.sendall(wire.PINGREQ)
        _take(client, 2)
        found.append(time.perf_counter() - began)
        let_pass(_PINGS_EVERY_SECONDS)
    return found


@contextmanager
def _saturated(path: Path) -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(target=_saturate, args=(path,), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _saturate(path: Path) -> None:
    def write(fd: int) -> None:
        data = os.urandom(_SATURATING_BYTES)
        at = 0
        while True:
            os.pwrite(fd, data, at)
            os.fdatasync(fd)
            at = (at + len(data)) % _SATURATING_FILE_BYTES

    for number in range(_SATURATING_THREADS):
        fd = os.open(path.with_name(f"{path.name}-{number}"), os.O_WRONLY | os.O_CREAT, 0o600)
        threading.Thread(target=write, args=(fd,)).start()


# ---------------------------------------------------------------- sockets


def _percentile(values: Sequence[float], percent: int) -> float:
    return sorted(values)[len(values) * percent // 100]


def _dial(address: tuple[str, int]) -> socket.socket:
    dialled = socket.create_connection(address, _PATIENCE_SECONDS)
    dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return dialled


def _take(source: socket.socket, size: int) -> bytes:
    """Return this many bytes; raise ConnectionError if the connection ends before."""
    got = bytearray()
    while len(got) < size:
        more = source.recv(size - len(got))
        if not more:
            raise ConnectionError(f"closed after {len(got)} of {size} bytes")
        got += more
    return bytes(got)

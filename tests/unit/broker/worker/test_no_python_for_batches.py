"""No Python code runs for a batch between siblings in sync: two workers in one process, each with its reactor, over
their real sockets; Python's calls are counted while messages cross.
"""

from __future__ import annotations

import gc
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from broker.config.limits import Limits
from broker.config.settings import Settings
from broker.worker.core import Node
from broker.worker.mesh import WorkerMesh
from leveldb_store.memory import MemoryStore
from pyx.core.counters import ROW_BYTES
from pyx.io.reactor import Reactor
from shards.placement import home
from tests import wire
from tests.sansio import KeptLog
from tests.unit.pyx.io.test_reactor import taken

WORKERS = 2
SETTINGS = Settings(workers=WORKERS, sys_interval_seconds=0)
SECONDS = 60.0
NAMES = [next(name for name in map(str, range(100)) if home(name, WORKERS) == worker) for worker in range(WORKERS)]
"""Client ids by the worker that is their home."""


class Worker:
    """A node, its reactor and its mesh."""

    def __init__(self, index: int, runtime_dir: Path, settings: Settings) -> None:
        now = time.monotonic()
        self.node = Node(index, WORKERS, settings, MemoryStore(), KeptLog(), int(now * 1000), int(time.time() * 1000))
        self.node.recovery.run()
        self.reactor = Reactor(self.node.router, self.node.dispatch)
        self.node.opened = self.reactor.start_keep_alive
        rows = [memoryview(bytearray(ROW_BYTES)) for _ in range(WORKERS)]
        channel: Any = SimpleNamespace(
            index=index, workers=WORKERS, rows=rows, runtime_dir=str(runtime_dir), incarnation=1
        )
        self.mesh = WorkerMesh(channel, self.node, self.reactor)
        self._ends: list[socket.socket] = []

    def open(self, packet: bytes) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        self._ends.append(theirs)
        self.reactor.adopt(ours.detach())
        theirs.sendall(packet)
        return theirs

    def close(self) -> None:
        for each in self._ends:
            each.close()
        self.mesh.close()


class Pair:
    """Two workers, run in turn."""

    def __init__(self, runtime_dir: Path, settings: Settings = SETTINGS) -> None:
        self.workers = [Worker(index, runtime_dir, settings) for index in range(WORKERS)]
        self.called: list[str] = []
        self.until(lambda: all(worker.mesh.ready for worker in self.workers), "both are ready")

    def turn(self) -> None:
        for worker in self.workers:
            worker.reactor.poll()

    def until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not done():
            assert time.monotonic() < deadline, f"not within {SECONDS} s: {what}"
            now = time.monotonic()
            for worker in self.workers:
                worker.mesh.tick(now)
            self.turn()

    def counted_turns(self, client: socket.socket, size: int) -> bytes:
        """Run turns until so many bytes came to the client; the names of the Python functions called are noted."""
        received = b""
        deadline = time.monotonic() + SECONDS
        while len(received) < size:
            assert time.monotonic() < deadline, f"{len(received)} of {size} bytes came"
            now = time.monotonic()
            for worker in self.workers:
                worker.mesh.tick(now)
            gc.disable()  # libraries of the tests have functions that it calls
            sys.setprofile(self._note)
            try:
                self.turn()
            finally:
                sys.setprofile(None)
                gc.enable()
            received += taken(client)
        return received

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename != __file__:
            self.called.append(frame.f_code.co_qualname)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    it = Pair(tmp_path)
    yield it
    for worker in it.workers:
        worker.close()


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("size", [10, 5000, 20_000, 300_000])
def test_a_message_that_crosses(pair: Pair, qos: int, size: int) -> None:
    publishing, subscribing = (worker.open(wire.connect(4, NAMES[i])) for i, worker in enumerate(pair.workers))
    subscribing.sendall(wire.subscribe(4, 1, ("t", qos)))
    answers = {id(publishing): b"", id(subscribing): b""}

    def are_there() -> bool:
        for each in (publishing, subscribing):
            answers[id(each)] += taken(each)
        return len(answers[id(subscribing)]) == 4 + 5

    pair.until(are_there, "CONNACK and SUBACK have come")
    counted = []
    for number in range(1, 6):
        packet = wire.publish(4, "t", bytes(size), qos=qos, packet_id=number)
        publishing.setblocking(True)
        pair.called.clear()
        begun = packet[:40_000]
        publishing.sendall(begun)
        rest = packet[len(begun) :]
        while rest:
            pair.turn()
            rest = rest[publishing.send(rest[:40_000]) :]
        publishing.setblocking(False)
        received = pair.counted_turns(subscribing, len(packet))
        assert received.endswith(bytes(size))
        if qos:
            assert pair.counted_turns(publishing, 4) == wire.ack(4, "PUBACK", number)
            subscribing.sendall(wire.ack(4, "PUBACK", int.from_bytes(received[len(packet) - size - 2 :][:2], "big")))
            pair.turn()
        counted.append(list(pair.called))
    assert counted[1:] == [[]] * 4


def test_a_worker_under_load_asks_no_sibling(tmp_path: Path) -> None:
    """It is certain after each round that there was no pause, however much has come, however rarely its timer does."""
    silence = 6.0
    settings = Settings(workers=WORKERS, sys_interval_seconds=0, limits=Limits(link_silence_seconds_max=silence))
    pair = Pair(tmp_path, settings)
    publishing, subscribing = (worker.open(wire.connect(4, NAMES[i])) for i, worker in enumerate(pair.workers))
    subscribing.sendall(wire.subscribe(4, 1, ("t", 0)))
    got = b""

    def has(size: int) -> bool:
        nonlocal got
        got += taken(subscribing)
        return len(got) >= size

    pair.until(lambda: has(4 + 5), "CONNACK and SUBACK have come")
    together = [worker.node.peering.batches.together for worker in pair.workers]
    before = [each.greetings for each in together if each is not None]
    end = time.monotonic() + silence / 2
    while time.monotonic() < end:
        publishing.sendall(wire.publish(4, "t", bytes(500)))
        pair.turn()
        has(0)
    assert len(got) > 100_000
    assert [each.greetings for each in together if each is not None] == before
    for worker in pair.workers:
        worker.close()

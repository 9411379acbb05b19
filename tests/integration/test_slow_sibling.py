"""A sibling that reads one byte a second, and one that is gone in the middle of a frame: meshes of one process with a
relay between two of them. The tests determine the time that passes.
"""

from __future__ import annotations

import itertools
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pyx.core.peer import sibling
from tests.integration.test_mesh_sockets import LIMITS, Node
from tests.waiting import wait_until
from zmq_mesh.unix_sockets import path_of

SIZE = 20_000
COUNT = 20
"""Batches of 16 entries: more than the outbox and all buffers of the kernel have room for."""


class Relay:
    """Passes on to worker 1 what its siblings send, all of it or byte by byte."""

    def __init__(self, own_path: str, path: str) -> None:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(own_path)
        self._listening.listen()
        self._listening.setblocking(False)
        self._path = path
        self._ends: list[tuple[socket.socket, socket.socket]] = []

    def run(self, most: int) -> None:
        """Pass on at most so many bytes of each connection, and all that comes back."""
        with suppress(BlockingIOError):
            near, _ = self._listening.accept()
            far = socket.socket(socket.AF_UNIX)
            far.connect(self._path)
            near.setblocking(False)
            far.setblocking(False)
            self._ends.append((near, far))
        for ends in list(self._ends):
            near, far = ends
            if self._passes_on(near, far, most) and self._passes_on(far, near, 1 << 16):
                continue
            self._ends.remove(ends)
            for each in ends:
                each.close()

    @staticmethod
    def _passes_on(one: socket.socket, other: socket.socket, most: int) -> bool:
        # returns whether both are still there
        try:
            waiting = one.recv(max(1, most), socket.MSG_PEEK)
            if most and waiting:
                one.recv(other.send(waiting))
            return bool(waiting)
        except BlockingIOError:
            return True
        except (BrokenPipeError, ConnectionResetError):
            return False

    def end(self) -> None:
        """Close the connections, as the kernel does for a process that is killed."""
        for each in itertools.chain(*self._ends):
            each.close()
        self._ends.clear()

    def close(self) -> None:
        self.end()
        self._listening.close()


class Three:
    """Three meshes, a relay from the others to worker 1, and the time."""

    def __init__(self, near: str, far: str) -> None:
        self.now = time.monotonic()
        for index in (0, 2):
            Path(path_of(far, sibling(index))).symlink_to(path_of(near, sibling(index)))
        self.nodes = [Node(index, 3, far if index == 1 else near, 1) for index in range(3)]
        self.relay = Relay(path_of(near, sibling(1)), path_of(far, sibling(1)))
        self.most = 1 << 20

    def round(self, seconds: float = 0.001) -> None:
        self.now += seconds
        for node in self.nodes:
            node.flow()
            node.mesh.awake(self.now)
            node.round(self.now)
            node.mesh.tick(self.now)
        self.relay.run(self.most)

    def until(self, so: Callable[[], bool], what: str, seconds: float = 0.001) -> None:
        def after_a_round() -> bool:
            self.round(seconds)
            return so()

        wait_until(after_a_round, 60, what)

    def close(self) -> None:
        for node in self.nodes:
            node.mesh.close()
        self.relay.close()


@pytest.fixture
def three() -> Iterator[Three]:
    with tempfile.TemporaryDirectory(prefix="near") as near, tempfile.TemporaryDirectory(prefix="far") as far:
        it = Three(near, far)
        it.until(lambda: all(node.mesh.ready for node in it.nodes), "all are ready")
        yield it
        it.close()


def test_a_sibling_that_reads_one_byte_a_second(three: Three) -> None:
    """What waits for it is bounded, it is away after `peer_stall_seconds_max`, others get theirs meanwhile, and it gets
    everything once and in order when it reads again.
    """
    source, slow, other = three.nodes
    link = source.mesh.links[sibling(1)]
    three.most = 0
    source.flows = {1: (0, 16 * COUNT, SIZE), 2: (0, 16 * COUNT, SIZE)}
    three.until(lambda: link.full, "its outbox is full")
    assert link.outbox_bytes < LIMITS.peer_outbox_bytes_max + 20 * SIZE
    three.most = 1
    three.until(lambda: len(other.got[0]) == 16 * COUNT, "the other sibling has all", seconds=1.0)
    three.until(lambda: ("away", 1) in source.log, "it is away", seconds=1.0)
    assert link.outbox_bytes < LIMITS.peer_outbox_bytes_max + 20 * SIZE
    assert not link.full, "publishers do not wait for it any more"
    assert ("away", 2) not in source.log
    three.most = 1 << 20
    three.until(lambda: len(slow.got[0]) == source.flows[1][0] == 16 * COUNT, "it has all")
    assert slow.got[0] == other.got[0] == list(range(16 * COUNT))
    three.until(lambda: source.report()["acked"], "all is acknowledged")
    assert source.log.count(("ready", 1)) == 2


@pytest.mark.parametrize("passed", [1, 63, 64, 65, 200, 10_000, 300_000, 1_000_000])
def test_a_connection_that_ends_in_the_middle_of_a_frame(three: Three, passed: int) -> None:
    """As that of a process that is killed, on either side: the rest is sent on the next connection, nothing twice."""
    source, target, _ = three.nodes
    source.flows = {1: (0, 160, SIZE)}
    target.flows = {0: (0, 160, SIZE)}
    three.most = 0
    for _ in range(20):
        three.round()
    three.most = passed
    three.round()
    three.relay.end()
    three.most = 1 << 20
    three.until(lambda: len(target.got[0]) == 160, "all has come", seconds=0.02)
    three.until(lambda: source.report()["acked"] and target.report()["acked"], "all is acknowledged")
    assert target.got[0] == source.got[1] == list(range(160))
    assert source.mesh.frames_malformed == target.mesh.frames_malformed == 0

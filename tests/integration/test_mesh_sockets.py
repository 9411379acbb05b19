"""Meshes of forked processes over real sockets, of the reactor and of ZeroMQ's library, also of both kinds together:
large and small batches, SIGKILL and SIGSTOP of one of three.
"""

import itertools
import multiprocessing
import os
import signal
import tempfile
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import pytest

from pyx.core.peer import OWN_HOST, sibling, siblings
from pyx.mesh.sockets import SOCKET_PATH_BYTES_MAX
from tests.rounds import Rounds, Worked
from tests.waiting import let_pass, wait_until
from zmq_mesh.contract import LinkLimits, Transport, Undelivered
from zmq_mesh.curve import Curve, new_keys
from zmq_mesh.envelope import OWN_FRAME, Entry, decode_entries, encode_entries
from zmq_mesh.interest import Change, Publisher
from zmq_mesh.mesh import Mesh
from zmq_mesh.unix_sockets import UnixSockets, path_of
from zmq_mesh.zeromq import ZeroMq

# ruff: noqa: ARG002  (what an event says and this node does not need)

LIMITS = LinkLimits(peer_outbox_bytes_max=1024 * 1024, link_silence_seconds_max=0.6, peer_stall_seconds_max=1.0)
"""For nodes of one process, whose rounds the test runs itself."""

PATIENT = LinkLimits(peer_outbox_bytes_max=1024 * 1024, link_silence_seconds_max=30.0, peer_stall_seconds_max=30.0)
"""Longer than any wait below: a busy machine makes no process look silent; events are noticed without a silence."""

WATCHFUL = LinkLimits(peer_outbox_bytes_max=1024 * 1024, link_silence_seconds_max=3.0, peer_stall_seconds_max=5.0)
"""A stopped process is noticed soon; one on a busy machine is not taken for stopped."""
FORK = multiprocessing.get_context("fork")


KINDS = ["unix", "zeromq", "both", "curve"]
"""Of transports; both: every second worker has the other one; curve: ZeroMQ over TCP, with keys."""

KEYS = new_keys()
"""Of the own host: as all workers are its, so are the keys."""


def transport_of(kind: str, index: int, runtime_dir: str, rounds: Rounds) -> Transport:
    if kind == "curve":
        network = zlib.crc32(runtime_dir.encode())
        address = f"tcp://127.{network >> 16 & 0x7F}.{network >> 8 & 0xFF}.{network & 0x7F | 0x80}"
        return ZeroMq(
            sibling(index),
            lambda peer: f"{address}:{20_000 + peer}",
            rounds,
            Curve(KEYS, {KEYS.public: OWN_HOST}, 64 * 1024 * 1024),
        )
    if kind == "unix" or (kind == "both" and index % 2):
        return UnixSockets(sibling(index), runtime_dir, rounds)
    return ZeroMq(sibling(index), lambda peer: f"ipc://{path_of(runtime_dir, peer)}", rounds)


class Node:
    """One process: a poll loop around a mesh. Sends numbered entries on command, commits received ones at once."""

    def __init__(
        self,
        index: int,
        count: int,
        runtime_dir: str,
        incarnation: int,
        limits: LinkLimits = LIMITS,
        kind: str = "unix",
        drain_bytes_max: int = 1024 * 1024,
    ) -> None:
        self.rounds = Rounds()
        self.batches = Worked(self)
        self.publisher = Publisher()
        self.publisher.change(b"from/%d/%d" % (index, incarnation))
        self.got: dict[int, list[int]] = defaultdict(list)
        self.got_volatile: dict[int, list[int]] = defaultdict(list)
        self.acked: dict[int, int] = defaultdict(int)
        self.tickets: dict[int, int] = defaultdict(int)
        self.lost_entries = 0
        self.log: list[tuple[str, int]] = []
        self.wants: dict[int, set[bytes]] = defaultdict(set)
        self.flows: dict[int, tuple[int, int, int]] = {}  # by peer: next number, end, payload bytes
        self.mesh = Mesh(
            sibling(index),
            siblings(index, count),
            incarnation,
            self.publisher,
            self,
            limits,
            time.monotonic(),
            transport_of(kind, index, runtime_dir, self.rounds),
            drain_bytes_max=drain_bytes_max,
            batches=self.batches,
        )

    def round(self, now: float, milliseconds: float = 0) -> None:
        """Hear what has come, and send what is due."""
        self.mesh.together.begin(now)
        self.rounds.once(milliseconds)
        self.mesh.together.end_reading()
        self.mesh.flush(now)

    def batch(
        self, peer: int, volatile: memoryview | None, sequenced: memoryview | None, payloads: list[Any], sequence: int
    ) -> None:
        frames = [memoryview(payload) for payload in payloads]
        if volatile is not None:
            own = len(frames) if sequenced is None else _own_frames(volatile)
            entries = list(decode_entries(volatile, frames[:own]))
            self.got_volatile[peer] += [entry.number for entry in entries]
            frames = frames[own:]
        if sequenced is not None:
            for entry in decode_entries(sequenced, frames):
                assert entry.payload == entry.number.to_bytes(8, "big") * (len(entry.payload) // 8)
                self.got[peer].append(entry.number)
            self.mesh.links[sibling(peer)].commit(sequence)

    def acknowledged(self, peer: int, ticket: int) -> None:
        self.acked[peer] = ticket

    def refused(self, peer: int, batch: Undelivered, refusals: Sequence[tuple[int, int]]) -> None:
        raise AssertionError((peer, batch.ticket, refusals))

    def refusals_known(self, peer: int, number: int) -> None:
        raise AssertionError((peer, number))

    def lost(self, peer: int, batches: list[Undelivered], ticket: int) -> None:
        self.lost_entries += sum(batch.entries_count for batch in batches)

    def interest(self, peer: int, changes: list[Change]) -> None:
        self.wants[peer] |= {change.filter for change in changes if change.members}

    def interest_snapshot(self, peer: int, entries: list[Change], first: bool, last: bool) -> None:
        assert first
        assert last
        self.wants[peer] = {entry.filter for entry in entries}

    def interest_taken(self, peer: int, number: int) -> None:
        self.log.append(("taken", peer))

    def answered(self, peer: int) -> None:
        pass

    def ready(self, peer: int) -> None:
        self.log.append(("ready", peer))

    def away(self, peer: int) -> None:
        self.log.append(("away", peer))

    def unconfirmed(self, peer: int) -> None:
        self.log.append(("unconfirmed", peer))

    def incompatible(self, peer: int, oldest: int, newest: int) -> None:
        raise AssertionError(f"{peer} speaks {oldest} to {newest}")

    def gone(self, peer: int, incarnation: int) -> None:
        self.log.append(("gone", peer))

    def flow(self) -> bool:
        """Send one batch to each peer with a flow. -> whether any flow is unfinished."""
        for peer, (number, end, size) in self.flows.items():
            link = self.mesh.links[sibling(peer)]
            if number == end or link.full:
                continue
            upto = min(end, number + 16)
            made = [
                Entry(b"t", n.to_bytes(8, "big") * (size // 8), n, 1, own_frame=size > 4096)
                for n in range(number, upto)
            ]
            part, frames = encode_entries(made)
            volatile, volatile_frames = encode_entries([Entry(b"v", b"", number, own_frame=False)])
            self.tickets[peer] += 1
            link.submit(volatile, part, list(volatile_frames), list(frames), self.tickets[peer])
            self.flows[peer] = (upto, end, size)
        return any(
            number < end and not self.mesh.links[sibling(peer)].full for peer, (number, end, _) in self.flows.items()
        )

    def report(self) -> dict[str, Any]:
        links = self.mesh.links
        return {
            "got": {peer: list(numbers) for peer, numbers in self.got.items()},
            "got_volatile": {peer: list(numbers) for peer, numbers in self.got_volatile.items()},
            "acked": all(self.acked[peer] == ticket for peer, ticket in self.tickets.items()),
            "sent": {peer: flow[0] for peer, flow in self.flows.items()},
            "log": list(self.log),
            "wants": {peer: sorted(filters) for peer, filters in self.wants.items()},
            "ready": self.mesh.ready,
            "lost": self.lost_entries,
            "unacknowledged": {peer: link.unacknowledged for peer, link in links.items()},
            "handoff_bytes": {peer: link.handoff_bytes for peer, link in links.items()},
            "malformed": self.mesh.frames_malformed,
        }

    def run(self, pipe: Connection) -> None:
        ticked_at = 0.0
        busy = False
        self.rounds.watch_in_round(pipe.fileno(), lambda: self.answer(pipe))
        while not pipe.closed:
            now = time.monotonic()
            busy = self.mesh.awake(now) and self.flow()
            self.round(now, 0 if busy else 50)
            if now - ticked_at > 0.05:
                ticked_at = now
                self.mesh.tick(now)

    def answer(self, pipe: Connection) -> None:
        command, arguments = pipe.recv()
        if command == "end":
            self.mesh.close()
            pipe.close()
            return
        if command == "flow":
            self.flows[arguments[0]] = arguments[1:]
        elif command == "down":
            self.mesh.down(*arguments)
        elif command == "want":
            self.publisher.change(*arguments)
        pipe.send(self.report())


def _own_frames(part: memoryview) -> int:
    return sum(1 for entry in decode_entries(part) if entry.own_frame) if not part[0] & OWN_FRAME else 1


class Process:
    """A forked node and the pipe to it."""

    def __init__(
        self, index: int, count: int, runtime_dir: str, incarnation: int, limits: LinkLimits, kind: str
    ) -> None:
        self.index = index
        self.incarnation = incarnation
        self.pipe, theirs = FORK.Pipe()
        arguments = (theirs, index, count, runtime_dir, incarnation, limits, kind)
        self.process = FORK.Process(target=self._main, args=arguments)
        self.process.start()
        theirs.close()

    @staticmethod
    def _main(pipe: Connection, *arguments: Any) -> None:
        Node(*arguments).run(pipe)

    def tell(self, command: str, *arguments: Any) -> dict[str, Any]:
        self.pipe.send((command, arguments))
        assert self.pipe.poll(10), f"worker {self.index} does not answer"
        report: dict[str, Any] = self.pipe.recv()
        return report

    def report(self) -> dict[str, Any]:
        return self.tell("report")

    def wait(self, condition: Callable[[dict[str, Any]], bool], seconds: float = 10.0) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while not condition(report := self.report()):
            assert time.monotonic() < end, {
                key: value if len(str(value)) < 500 else str(value)[-500:] for key, value in report.items()
            }
            let_pass(0.01)
        return report

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def end(self) -> None:
        if self.process.is_alive():
            self.signal(signal.SIGCONT)
            self.pipe.send(("end", ()))
            self.process.join(5)
            if self.process.is_alive():
                self.process.kill()
        self.process.join()
        self.pipe.close()
        self.process.close()


class Meshes:
    """The processes of a test, and the directory of their sockets."""

    def __init__(self, runtime_dir: str, kind: str) -> None:
        self.runtime_dir = runtime_dir
        self.kind = kind
        self.processes: list[Process] = []
        self.limits = PATIENT

    def start(self, count: int, limits: LinkLimits = PATIENT) -> list[Process]:
        self.limits = limits
        self.processes = [Process(index, count, self.runtime_dir, 1, limits, self.kind) for index in range(count)]
        for process in self.processes:
            process.wait(lambda report: report["ready"])
        return self.processes

    def restart(self, index: int) -> Process:
        dead = self.processes[index]
        dead.process.join()
        dead.end()
        self.processes[index] = Process(
            index, len(self.processes), self.runtime_dir, dead.incarnation + 1, self.limits, self.kind
        )
        return self.processes[index]


@pytest.fixture(params=KINDS)
def meshes(request: pytest.FixtureRequest) -> Iterator[Meshes]:
    with tempfile.TemporaryDirectory(prefix="mesh") as runtime_dir:
        started = Meshes(runtime_dir, request.param)
        yield started
        for process in started.processes:
            process.end()


def done(end: int, *peers: int) -> Callable[[dict[str, Any]], bool]:
    """Return a condition: everything up to `end` was sent to these peers and acked."""
    return lambda report: report["acked"] and all(report["sent"][peer] == end for peer in peers)


@pytest.mark.parametrize(("size", "count"), [(8, 20_000), (1200, 20_000), (4096, 4_000), (8192, 4_000), (1 << 20, 200)])
def test_both_directions_everything_arrives_once_in_order(meshes: Meshes, size: int, count: int) -> None:
    one, two = meshes.start(2)
    one.tell("flow", 1, 0, count, size)
    two.tell("flow", 0, 0, count, size)
    for process, peer in ((one, 1), (two, 0)):
        process.wait(done(count, peer), 30)
    for process, peer in ((one, 1), (two, 0)):
        report = process.report()
        assert report["got"][peer] == list(range(count))
        assert report["got_volatile"][peer] == list(range(0, count, 16))
        assert report["malformed"] == 0


def test_interest_is_exchanged_before_ready_and_followed_after(meshes: Meshes) -> None:
    processes = meshes.start(3)
    for process in processes:
        report = process.report()
        assert report["wants"] == {peer: [b"from/%d/1" % peer] for peer in range(3) if peer != process.index}
    processes[0].tell("want", b"later")
    for process in processes[1:]:
        process.wait(lambda report: b"later" in report["wants"][0])


def test_sigkill_of_one_of_three(meshes: Meshes) -> None:
    """The others are undisturbed; the successor is ready at once and gets what is sent after that."""
    processes = meshes.start(3)
    count = 60_000
    for source in (0, 1):
        processes[source].tell("flow", 1 - source, 0, count, 64)
        processes[source].tell("flow", 2, 0, count, 64)
    let_pass(0.1)
    processes[2].signal(signal.SIGKILL)
    successor = meshes.restart(2)
    for source in (0, 1):
        processes[source].tell("down", 2, 1)
    successor.wait(lambda report: report["ready"])
    for source in (0, 1):
        processes[source].wait(done(count, 1 - source, 2), 60)
    for source in (0, 1):
        report = processes[source].wait(lambda report: ("gone", 2) in report["log"] and report["log"][-1][1] == 2)
        assert ("away", 1 - source) not in report["log"]
        assert report["got"][1 - source] == list(range(count))
        assert report["wants"][2] == [b"from/2/2"]
    for source in (0, 1):
        processes[source].tell("flow", 2, count, count + 5000, 64)
        processes[source].wait(done(count + 5000, 2), 30)
    report = successor.report()
    for source in (0, 1):
        got = report["got"][source]
        assert got == list(range(got[0], count + 5000))
        assert processes[source].report()["unacknowledged"][2] == 0


def test_sigkill_without_the_supervisors_word(meshes: Meshes) -> None:
    processes = meshes.start(2)
    processes[0].tell("flow", 1, 0, 2000, 64)
    processes[1].signal(signal.SIGKILL)
    successor = meshes.restart(1)
    successor.wait(lambda report: report["ready"])
    processes[0].wait(lambda report: report["ready"] and ("gone", 1) in report["log"])
    processes[0].tell("flow", 1, 5000, 6000, 64)
    processes[0].wait(done(6000, 1))
    assert successor.report()["got"][0][-1000:] == list(range(5000, 6000))


def test_sigstop_and_back(meshes: Meshes) -> None:
    """Stopped for longer than the allowed silence: away, logged, acked; after SIGCONT all arrives once, in order."""
    processes = meshes.start(3, WATCHFUL)
    count = 4_000
    processes[2].signal(signal.SIGSTOP)
    for source in (0, 1):
        processes[source].tell("flow", 2, 0, count, 1024)
        processes[source].tell("flow", 1 - source, 0, count, 1024)
    for source in (0, 1):
        report = processes[source].wait(done(count, 2, 1 - source), 30)
        assert [entry for entry in report["log"] if entry[0] == "away"] == [("away", 2)]
        assert report["handoff_bytes"][2] > 0
    processes[2].signal(signal.SIGCONT)
    for source in (0, 1):
        report = processes[source].wait(lambda report: report["ready"] and report["unacknowledged"][2] == 0, 30)
        assert report["handoff_bytes"][2] == 0
        assert report["lost"] == 0
    report = processes[2].report()
    assert not [entry for entry in report["log"] if entry[0] == "away"]
    for source in (0, 1):
        assert report["got"][source] == list(range(count))


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_takes_its_part_of_each_sibling(kind: str) -> None:
    """`drain_bytes_max` is per sibling: two of them give twice as much before the clients' turn."""
    count, size, most = 16 * 200, 512, 64 * 1024
    with tempfile.TemporaryDirectory(prefix="mesh") as runtime_dir:
        nodes = [Node(index, 3, runtime_dir, 1, LIMITS, kind, most) for index in range(3)]
        target, sources = nodes[0], nodes[1:]

        def after_a_round(some: list[Node], so: Callable[[Node], bool]) -> bool:
            now = time.monotonic()
            for node in some:
                node.flow()
                node.round(now)
                node.mesh.tick(now)
            return all(so(node) for node in some)

        try:
            wait_until(lambda: after_a_round(nodes, lambda node: node.mesh.ready), 60, "meshes ready")
            for node in sources:
                node.flows[0] = (0, count, size)
            wait_until(
                lambda: after_a_round(sources, lambda node: node.flows[0][0] * size > 8 * most),
                60,
                "the sources have sent more than a round's part",
            )
            rounds = [{1: 0, 2: 0}]
            while hears(target):
                taken = {peer: len(target.got[peer]) * size for peer in (1, 2)}
                before = rounds[-1]
                for peer in (1, 2):
                    assert taken[peer] - before[peer] <= most + 16 * size  # and the batch that reached it
                rounds.append(taken)
            assert any(
                all(after[peer] - before[peer] > most // 2 for peer in (1, 2))
                for before, after in itertools.pairwise(rounds)
            )
        finally:
            for node in nodes:
                node.mesh.close()


def hears(node: Node) -> bool:
    """Hear siblings out of turn; return whether there was anything."""
    node.mesh.heard = False
    node.mesh.receive(time.monotonic())
    return node.mesh.heard


def test_socket_path_too_long() -> None:
    with pytest.raises(ValueError, match="shorter"):
        path_of("/tmp/" + "x" * SOCKET_PATH_BYTES_MAX, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_has_enough_to_do_reads_nothing_and_takes_nobody_for_silent(kind: str) -> None:
    count, size = 16 * 20, 64
    with tempfile.TemporaryDirectory(prefix="mesh") as runtime_dir:
        nodes = [Node(index, 2, runtime_dir, 1, LIMITS, kind) for index in range(2)]
        target, source = nodes

        def after_a_round(so: Callable[[], bool]) -> bool:
            now = time.monotonic()
            for node in nodes:
                node.flow()
                node.round(now)
                node.mesh.tick(now)
            return so()

        try:
            wait_until(lambda: after_a_round(lambda: all(node.mesh.ready for node in nodes)), 60, "meshes ready")
            target.batches.full = True
            source.flows[0] = (0, count, size)
            until = time.monotonic() + 3 * LIMITS.link_silence_seconds_max
            wait_until(lambda: after_a_round(lambda: time.monotonic() > until), 30, "a sibling would be silent")
            assert target.got[1] == []
            assert ("away", 1) not in target.log
            target.batches.full = False
            wait_until(lambda: after_a_round(lambda: target.got[1] == list(range(count))), 60, "all has come")
        finally:
            for node in nodes:
                node.mesh.close()

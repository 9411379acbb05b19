"""Links, memory and time to ready of N workers whose channels are wired in three ways.

    python -m tests.benchmarks.wiring [workers ...]

at registration     every worker links to every other one when it starts
at first use        a worker links to those that its clients need: here FIRST_USE others; the worst case is the one
                    above, and the first message waits for a link to become ready
one shared sender   every worker links to one process that forwards everything

Each worker is a forked process with only a `zmq_mesh.mesh.Mesh`. Reported when all links of all workers are ready:
descriptors, threads and private memory (Private_Dirty) that a mesh adds to its process (the median, and the maximum
where that is the shared sender), seconds from the first fork until the last worker was ready, and the cost of
heartbeats of idle workers, in percent of a core, all workers together.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, NamedTuple

from pyx.core.peer import Peer, sibling
from tests.rounds import Rounds
from tests.waiting import let_pass
from zmq_mesh.contract import LinkLimits
from zmq_mesh.interest import Publisher
from zmq_mesh.mesh import Mesh
from zmq_mesh.unix_sockets import UnixSockets

FIRST_USE = 4
_TICK_SECONDS = 0.1
_READY_SECONDS_MAX = 60.0
_IDLE_SECONDS = 3.0
_LIMITS = LinkLimits()
_FORK = get_context("fork")


class Quiet:
    """Events of a worker without a broker: every call does nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def at_registration(worker: int, workers: int) -> list[int]:
    """Return all other workers."""
    return [other for other in range(workers) if other != worker]


def at_first_use(worker: int, workers: int) -> list[int]:
    """Return the next few and the last few workers, so that links are mutual."""
    reach = FIRST_USE // 2
    near = {(worker + step) % workers for step in range(-reach, reach + 1)} - {worker}
    return sorted(near)


def shared_sender(worker: int, workers: int) -> list[int]:
    """Return all others for the sender, worker 0; the sender for all others."""
    return list(range(1, workers)) if worker == 0 else [0]


WAYS: dict[str, Callable[[int, int], list[int]]] = {
    "at registration": at_registration,
    "at first use": at_first_use,
    "one shared sender": shared_sender,
}


class Seen(NamedTuple):
    """Descriptors, threads and memory that a worker reports of itself."""

    descriptors: int
    threads: int
    private: int


def _serve(worker: int, peers: list[Peer], runtime_dir: str, parent: Connection) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    events: Any = Quiet()
    before = _seen()
    rounds = Rounds()
    transport = UnixSockets(sibling(worker), runtime_dir, rounds)
    mesh = Mesh(sibling(worker), peers, 1, Publisher(), events, _LIMITS, time.monotonic(), transport)

    def answer() -> None:  # it continues until all have answered, then it is killed
        parent.recv()
        parent.send(Seen(*(new - old for new, old in zip(_seen(), before, strict=True))))

    rounds.watch_in_round(parent.fileno(), answer)
    told = False
    while True:
        now = time.monotonic()
        mesh.together.begin(now)
        rounds.once(_TICK_SECONDS * 1000)
        mesh.together.end_reading()
        mesh.tick(now)
        mesh.flush(now)
        if mesh.ready and not told:
            told = True
            parent.send(time.monotonic())


def _seen() -> Seen:
    with open("/proc/self/smaps_rollup", encoding="ascii") as lines:
        private = next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:"))
    return Seen(len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), private)


def measure(way: str, workers: int) -> None:
    """Print one line of the table."""
    wiring = WAYS[way]
    with tempfile.TemporaryDirectory(prefix="wiring-") as runtime_dir:
        pairs, processes = [], []
        began = time.monotonic()
        for worker in range(workers):
            ours, theirs = _FORK.Pipe()
            process = _FORK.Process(target=_serve, args=(worker, wiring(worker, workers), runtime_dir, theirs))
            process.start()
            theirs.close()
            pairs.append(ours)
            processes.append(process)
        try:
            ready = 0.0
            for ours in pairs:
                if not ours.poll(_READY_SECONDS_MAX):
                    raise TimeoutError(f"{way}, {workers} workers: not ready in {_READY_SECONDS_MAX:.0f} s")
                ready = max(ready, ours.recv() - began)
            pids = [process.pid or 0 for process in processes]
            cpu = sum(map(_cpu_seconds, pids))
            let_pass(_IDLE_SECONDS)
            idle = (sum(map(_cpu_seconds, pids)) - cpu) / _IDLE_SECONDS
            seen: list[Seen] = []
            for ours in pairs:
                ours.send("say")
                seen.append(ours.recv())
        finally:
            for process in processes:
                process.kill()
                process.join()
    links = sum(len(wiring(worker, workers)) for worker in range(workers)) // 2
    cells = [
        way,
        workers,
        links,
        *(_range(values) for values in zip(*seen, strict=True)),
        f"{ready:.2f}",
        f"{idle:.1%}",
    ]
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def _range(values: Sequence[int]) -> str:
    usual, most = int(median(values)), max(values)
    return f"{usual}" if most < usual * 1.5 else f"{usual} (one: {most})"


def _cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii") as line:
        words = line.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure every way at every size."""
    sizes = [int(argument) for argument in sys.argv[1:]] or [4, 16, 64]
    print("| way | workers | links | descriptors each | threads each | private memory each, KB | ready, s | idle CPU |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for way in WAYS:
        for workers in sizes:
            measure(way, workers)


if __name__ == "__main__":
    main()

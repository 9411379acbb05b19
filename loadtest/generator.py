"""One process of a run: opens its clients, publishes and receives as ordered, and counts.

Orders are in shared memory (`SharedFigures.orders`): a phase, and for PUBLISH the time at which it begins. A process
looks at them some times a second, on a busy machine less often, and confirms a phase in `SharedFigures.heard`.
Everything per message is in `pyx.loadgen.crowd`.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

from loadtest.figures import SharedFigures
from loadtest.scenario import Scenario
from loadtest.target import Target
from loadtest.transport import transport
from pyx.loadgen.crowd import Crowd

CONNECT: Final = 0
PUBLISH: Final = 1
DRAIN: Final = 2
LEAVE: Final = 3

_OWN_FILES: Final = 100
_SLICE_NS: Final = 50_000_000
_LEAVE_NS: Final = 2_000_000_000


@dataclass(frozen=True)
class Load:
    """The behaviour of a run's clients."""

    target: Target
    scenario: Scenario
    payloads: tuple[int | bytes, ...] = (64,)
    """In turn, from `loadtest.options.payloads`: total bytes, or the content between head and check."""
    qos: int = 0
    window: int = 50
    lag: int = 400
    rate: float = 0.0
    """Messages per second of all publishers, 0: as fast as acks and deliveries arrive."""
    connects_per_second: float = 2000.0
    """Of the whole run, 0: all at once."""
    coalesce_us: float = 100.0
    """Without a rate: the least time between two rounds of a process."""


def connections_max() -> int:
    """Return the connections possible in a process: its limit of open files."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1] - _OWN_FILES


def generate(load: Load, shared: SharedFigures, process: int, answers: Connection) -> None:
    """Run as process number `process`. At the end send the refusals, and the messages of a share group that it has
    seen: (list of lines, list of bytes per publisher).
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the first process reacts
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    parent = os.getppid()
    publishers = len(shared.sent)
    crowd = Crowd(
        shared.row(process),
        shared.deliveries[process * publishers : (process + 1) * publishers],
        shared.deliveries,
        shared.sent,
        load.scenario.topics,
        list(load.payloads),
        pairs=load.scenario.pairs,
        group=load.scenario.group,
        strict=load.scenario.publishers > 0,
        version=load.target.version,
        qos=load.qos,
        window=load.window,
        lag=load.lag,
        copies=load.scenario.copies,
    )
    said = _open(crowd, load, shared, process)
    phase = CONNECT
    while phase != LEAVE:
        if os.getppid() != parent:
            raise SystemExit(1)  # the parent process has ended
        told = shared.orders[0]
        if told != phase:
            phase = told
            if phase == PUBLISH:
                own = len(range(process, load.scenario.publishers, shared.processes))
                rate = load.rate * own / load.scenario.publishers if load.scenario.publishers else 0.0
                gap = 0 if load.rate or not load.scenario.publishers else int(load.coalesce_us * 1000)
                crowd.start(shared.orders[1], rate, process / shared.processes, gap)
            else:
                crowd.stop()
            shared.heard[process] = phase
        crowd.ping(_quiet_ns(load.target))
        crowd.run(time.monotonic_ns() + _SLICE_NS)
    crowd.count_tails()
    crowd.leave()
    patience = time.monotonic_ns() + _LEAVE_NS
    while crowd.remaining and time.monotonic_ns() < patience:  # messages in their buffers count as sent
        crowd.run(time.monotonic_ns() + _SLICE_NS)
    seen = [crowd.seen_of(each) for each in range(publishers)] if load.scenario.group else []
    answers.send((said + crowd.said, seen))
    answers.close()


def _quiet_ns(target: Target) -> int:
    return int(0.75e9 * target.keep_alive)


def _open(crowd: Crowd, load: Load, shared: SharedFigures, process: int) -> list[str]:
    # opens its connections in order: subscribers first, so that nothing is published before it is subscribed to
    scenario, target = load.scenario, load.target
    step = shared.processes
    pause_ns = 1e9 * step / load.connects_per_second if load.connects_per_second else 0.0
    said: list[str] = []
    context = target.tls() if target.is_tls else None
    number = opened = 0
    began = time.monotonic_ns()
    whole = scenario.subscribers, scenario.publishers, scenario.idle
    for kind, count in enumerate(whole):
        for i in range(process, count, step):
            while time.monotonic_ns() < began + opened * pause_ns and shared.orders[0] == CONNECT:
                crowd.run(int(began + opened * pause_ns))
            if shared.orders[0] != CONNECT:
                return said
            number = sum(whole[:kind]) + i
            opened += 1
            try:
                fd = target.dial(number)
            except OSError as error:
                said.append(f"connection {number} cannot be opened: {error}")
                shared.row(process)[1] += 1
                continue
            wrapped = transport(target, context)
            if kind == 0:
                hello = target.connect(scenario.subscriber_id(i)) + target.subscribe(scenario.filter_of(i), load.qos)
                crowd.add(fd, hello, number=i, transport=wrapped)
            elif kind == 1:
                crowd.add(fd, target.connect(scenario.publisher_id(i)), publisher=i, transport=wrapped)
            else:
                crowd.add(fd, target.connect(scenario.idle_id(i)), transport=wrapped)
            if not opened % 64:
                crowd.ping(_quiet_ns(target))
                crowd.run(time.monotonic_ns() + 1_000_000)
    return said

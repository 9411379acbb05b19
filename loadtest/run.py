"""A run from its first connection to its figures: starts processes, gives them orders, and reads their rows."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from loadtest import generator, processor
from loadtest.balance import Balance
from loadtest.commands import Commands
from loadtest.figures import PERCENTILES, Moment, SharedFigures
from loadtest.generator import Load

_LOOK_SECONDS = 0.05
_PATIENCE_SECONDS = 30.0


class RunFailed(Exception):
    """The run was impossible: one line with the cause."""


@dataclass
class Result:
    """The result of a run."""

    figures: dict[str, float]
    series: list[dict[str, float]]
    """A row per second of the measured time."""
    said: list[str] = field(default_factory=list)
    """Refusals of the broker, and failures of the clients; the first lines of each process."""
    happened: list[tuple[float, str]] = field(default_factory=list)
    """(seconds since the measured time began, event): connections lost, workers restarted, commands of ours."""
    published: list[int] = field(default_factory=list)
    """Messages of each publisher, from the first to the last."""
    balance: list[dict[str, float]] = field(default_factory=list)
    """Publishes received per second by each worker, a row per second, with its time as `at`."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing failed that must not: QoS 1 may duplicate, QoS 0 may lose; gates judge these."""
        names = ("corrupt", "protocol_errors", "connections_refused", "connections_lost", "subscriptions_refused")
        return not any(self.figures[name] for name in names)


def run(
    load: Load,
    *,
    processes: int,
    seconds: float,
    warmup: float = 1.0,
    drain: float = 5.0,
    pid: int | None = None,
    balance: Balance | None = None,
    commands: Commands | None = None,
    progress: Callable[[str, float, Moment], None] = lambda *_: None,
) -> Result:
    """Make the run. progress: called with the phase, its progress (0 to 1) and the counts, a few times a second. pid:
    the broker's first process, whose CPU time is measured, with that of its descendants. RunFailed: clients cannot
    connect, or a process of ours ended. balance: asked once a second. commands: run during the measurement.
    """
    shared = SharedFigures(processes, max(1, load.scenario.publishers))
    broker = None if pid is None else _Use(pid)
    result = Result({}, [])
    with _processes(load, shared) as pipes:
        _connect(load, shared, pipes, progress)
        if broker is not None:
            broker.note_connected(shared.moment(time.monotonic()))
        shared.orders[1] = time.monotonic_ns() + 100_000_000
        shared.orders[0] = generator.PUBLISH
        _watch(shared, pipes, "warm-up", warmup, progress)
        begin = shared.moment(time.monotonic())
        if broker is not None:
            broker.begin()
        end = _measure(result, begin, seconds, shared, pipes, balance, commands or Commands(), progress)
        used = {} if broker is None else broker.figures(end.since(begin), end.at - begin.at)
        shared.orders[0] = generator.DRAIN
        _drain(load, shared, pipes, drain, progress)
        shared.orders[0] = generator.LEAVE
        said, seen = _answers(pipes)
    whole = shared.moment(time.monotonic())
    figures = _of(end.since(begin), end.at - begin.at, end)
    # errors count from the first message to the last
    for name in ("lost", "reordered", "duplicates", "corrupt", "foreign", "protocol_errors", "publishes_refused",
                 "connections_refused", "connections_lost", "subscriptions_refused"):  # fmt: skip
        figures[name] = whole[name]
    figures |= {"total_sent": whole["sent"], "total_received": whole["received"]}
    if load.scenario.group:
        figures["lost"], figures["duplicates"] = _shared_out(shared, seen)
    result.figures, result.said = figures | used, result.said + said
    result.published = [int(sent) for sent in shared.sent[: load.scenario.publishers]]
    return result


class _Use:
    """A broker's resources: its CPU time, and its memory before, with all connections, and at the end."""

    def __init__(self, pid: int) -> None:
        if not Path(f"/proc/{pid}").exists():
            raise RunFailed(f"there is no process {pid}")
        self._pid = pid
        self._memory_before = processor.pss_bytes(pid)
        self._cpu = processor.seconds(pid)
        self._connected: dict[str, float] = {}

    def note_connected(self, now: Moment) -> None:
        """Note the memory when all clients are connected, and nothing was published."""
        clients = max(1, now["connected"])
        self._connected = {
            "broker_bytes_per_client": (processor.pss_bytes(self._pid) - self._memory_before) / clients,
            "broker_connect_cpu_us": 1e6 * (processor.seconds(self._pid) - self._cpu) / clients,
        }

    def begin(self) -> None:
        """Begin measuring."""
        self._cpu = processor.seconds(self._pid)

    def figures(self, counted: Moment, seconds: float) -> dict[str, float]:
        """Return the figures of the time since then."""
        used = processor.seconds(self._pid) - self._cpu
        return {
            "broker_cpu_us": 1e6 * used / max(1, counted["received"] or counted["sent"]),
            "broker_cpu_percent": 100 * used / seconds,
            "broker_bytes": processor.pss_bytes(self._pid),
            **self._connected,
        }


def _measure(
    result: Result,
    begin: Moment,
    seconds: float,
    shared: SharedFigures,
    pipes: list[tuple[Any, Connection]],
    balance: Balance | None,
    commands: Commands,
    progress: Callable[[str, float, Moment], None],
) -> Moment:
    # records a row per second, and events; returns the last moment
    def watched(phase: str, _: float, now: Moment) -> None:
        result.happened += commands.look(now.at - begin.at)
        progress(phase, (now.at - begin.at) / seconds, now)

    last = begin
    _ask(result, balance, 0.0)
    try:
        watched("run", 0.0, begin)
        for _ in range(int(seconds)):
            _watch(shared, pipes, "run", 1.0, watched)
            now = shared.moment(time.monotonic())
            _note_second(result, begin, last, now, balance)
            last = now
        _watch(shared, pipes, "run", begin.at + seconds - last.at, watched)
        return shared.moment(time.monotonic())
    finally:
        result.said += commands.stop()


def _note_second(result: Result, begin: Moment, last: Moment, now: Moment, balance: Balance | None) -> None:
    counted, at = now.since(last), now.at - begin.at
    result.series.append({"at": at, **_of(counted, now.at - last.at, now)})
    if counted["connections_lost"]:
        result.happened.append((at, f"{counted['connections_lost']:,} connections were lost"))
    _ask(result, balance, at)


def _ask(result: Result, balance: Balance | None, at: float) -> None:
    if balance is None:
        return
    try:
        rates, happened = balance.look(at)
    except (OSError, ValueError) as error:
        if str(error) not in result.said:
            result.said.append(str(error))
        return
    if rates:
        result.balance.append({"at": at, **rates})
    result.happened += [(at, what) for what in happened]


@contextmanager
def _processes(load: Load, shared: SharedFigures) -> Iterator[list[tuple[Any, Connection]]]:
    context = multiprocessing.get_context("fork")
    started: list[tuple[Any, Connection]] = []
    try:
        for number in range(shared.processes):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=generator.generate, args=(load, shared, number, theirs), daemon=True)
            process.start()
            theirs.close()
            started.append((process, ours))
        yield started
    finally:
        for process, ours in started:
            process.join(0 if process.exitcode is None and shared.orders[0] != generator.LEAVE else 10)
            if process.is_alive():
                process.kill()
                process.join()
            ours.close()


def _alive(pipes: list[tuple[Any, Connection]]) -> None:
    for number, (process, _) in enumerate(pipes):
        if not process.is_alive():
            raise RunFailed(f"process {number} of the generator has ended with status {process.exitcode}")


def _watch(
    shared: SharedFigures,
    pipes: list[tuple[Any, Connection]],
    phase: str,
    seconds: float,
    progress: Callable[[str, float, Moment], None],
) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.25))
        _alive(pipes)
        progress(phase, 0.0, shared.moment(time.monotonic()))


def _connect(
    load: Load,
    shared: SharedFigures,
    pipes: list[tuple[Any, Connection]],
    progress: Callable[[str, float, Moment], None],
) -> None:
    wanted = load.scenario.clients
    before, since = -1, time.monotonic()
    while True:
        now = shared.moment(time.monotonic())
        progress("connect", now["connected"] / wanted, now)
        if now["connected"] + now["connections_refused"] + now["connections_lost"] >= wanted:
            break
        if now["connected"] != before:
            before, since = now["connected"], now.at
        if now.at - since > _PATIENCE_SECONDS:
            raise RunFailed(f"{before} of {wanted} clients are connected, and no other for {_PATIENCE_SECONDS:.0f} s")
        _alive(pipes)
        time.sleep(_LOOK_SECONDS)
    if not now["connected"]:
        shared.orders[0] = generator.LEAVE
        said, _ = _answers(pipes)
        raise RunFailed(f"no client is connected: {said[0] if said else 'connection refused'}")


def _drain(
    load: Load,
    shared: SharedFigures,
    pipes: list[tuple[Any, Connection]],
    patience: float,
    progress: Callable[[str, float, Moment], None],
) -> None:
    # until all messages have arrived, or none for this time
    if not load.scenario.publishers:
        return  # an external publisher goes on
    _hushed(shared, pipes)
    before, since = None, time.monotonic()
    while time.monotonic() - since < patience:
        now = shared.moment(time.monotonic())
        answered = not load.qos or now["acknowledged"] + now["publishes_refused"] >= now["sent"]
        if answered and now["received"] - now["duplicates"] >= now["sent"] * load.scenario.copies:
            return
        state = now["received"], now["acknowledged"]
        if state != before:
            before, since = state, now.at
        progress("drain", 1.0, now)
        _alive(pipes)
        time.sleep(_LOOK_SECONDS)


def _hushed(shared: SharedFigures, pipes: list[tuple[Any, Connection]]) -> None:
    # a process that was not scheduled publishes until it reads the order: only then is the number to expect known
    since = time.monotonic()
    while min(shared.heard) < generator.DRAIN:
        if time.monotonic() - since > _PATIENCE_SECONDS:
            raise RunFailed("a process of the generator does not stop publishing")
        _alive(pipes)
        time.sleep(_LOOK_SECONDS)


def _answers(pipes: list[tuple[Any, Connection]]) -> tuple[list[str], list[list[bytes]]]:
    said: list[str] = []
    seen: list[list[bytes]] = []
    for number, (_, ours) in enumerate(pipes):
        try:
            if not ours.poll(_PATIENCE_SECONDS):
                raise RunFailed(f"process {number} of the generator does not end")
            lines, bits = ours.recv()
        except EOFError:
            raise RunFailed(f"process {number} of the generator has ended before its time") from None
        said += lines
        seen.append(bits)
    return said, seen


def _shared_out(shared: SharedFigures, seen: list[list[bytes]]) -> tuple[int, int]:
    # (lost, duplicates): each message of a share group must arrive once, in any process
    lost = duplicates = 0
    for publisher, sent in enumerate(shared.sent):
        joined = 0
        for bits in seen:
            joined |= int.from_bytes(bits[publisher], "little")
        once = joined.bit_count()
        lost += sent - once
        count = sum(shared.deliveries[process * len(shared.sent) + publisher] for process in range(shared.processes))
        duplicates += count - once
    return lost, duplicates


def _of(counted: Moment, seconds: float, now: Moment) -> dict[str, float]:
    figures: dict[str, float] = {
        "seconds": seconds,
        "connected": now["connected"],
        "late_now": now["late_now"],
        **{name: counted[name] for name in ("sent", "acknowledged", "received", "lost", "duplicates", "reordered")},
        **{f"{name}_per_s": counted[name] / seconds for name in ("sent", "acknowledged", "received")},
        "bytes_sent_per_s": counted["bytes_sent"] / seconds,
        "bytes_received_per_s": counted["bytes_received"] / seconds,
    }
    for name in ("delivery", "acknowledgement", "lateness"):
        durations = counted.durations(name)
        if durations.count:
            figures |= {f"{name}_p{each:g}_us": durations.percentile(each) for each in PERCENTILES}
            figures |= {f"{name}_max_us": durations.most(), f"{name}_mean_us": durations.mean()}
    connects = now.durations("connect")
    if connects.count:
        figures |= {f"connect_p{each:g}_us": connects.percentile(each) for each in PERCENTILES}
    return figures

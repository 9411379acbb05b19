"""python -m loadtest.plan [options]: measures this host for two minutes, and reports the fleet that it can carry.

    python -m loadtest.plan                                             its capacity
    python -m loadtest.plan --clients 20000 --interval 10 --size 200 --qos 1 --fanout 2 --durable      does mine fit?
    python -m loadtest.plan --json host.json                            measure once,
    python -m loadtest.plan --measured host.json --clients 50000        and ask again
    python -m loadtest.plan --check --measured host.json                the promises beside flood's medians of 5

mqttd starts with its defaults, sessions on the disk, on a free port with its own directory; the generator runs
beside it on the same cores. --host measures a running broker (with --pid its memory and its CPU too).

Rates are found by schedules of 500 pairs (fan-out: one publisher, 100 subscribers), each higher than the last, until
two of three floods fail: in the median second p99 exceeds the bound or less than 98 % of the due messages arrive, or
a message is lost. docs/sizing.md has the formula.

The exit status is 0 when the fleet fits (or none was given), or when --check has found every promise within 30 %;
1 otherwise; 2 for wrong usage, or when there is no broker.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import shlex
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtest import brokers, flood, gates, host, options, processor
from loadtest.brokers import BrokerFailed
from loadtest.capacity import KINDS, SIZE_BYTES, Assessment, Fleet, Measured, answer, highest
from loadtest.comparison import markdown
from loadtest.figures import Moment
from loadtest.options import Parser, at_least
from loadtest.run import Result, RunFailed, run

PATTERNS: Final = {
    "qos0": "pair -c 500 -q 0",
    "qos1": "pair -c 500 -q 1",
    "qos2": "pair -c 500 -q 2",
    "fanout": "fanout -c 100 -q 0",
    "durable": "pair -c 500 -q 1 --session-expiry 3600",
}
"""By KINDS: flood's arguments, to which a rate is added."""
TITLES: Final = {
    "qos0": "QoS 0, one to one", "qos1": "QoS 1, one to one", "qos2": "QoS 2, one to one",
    "fanout": "QoS 0, one to 100", "durable": "QoS 1, durable sessions",
}  # fmt: skip
LARGE_BYTES: Final = 4096
WITHIN: Final = 0.30
COMES: Final = 0.98
"""Fraction of the due messages that must arrive within the measured time."""

_OF_THE_FLEET: Final = ("host", "qos", "rate", "payload", "session-expiry")
"""Options of all load tools that have a meaning for the fleet here."""
_DEFAULTS: Final = {**dict.fromkeys(each.name for each in options.OPTIONS), "client-prefix": "plan"}
_FIRST_RATE: Final = 40_000.0
_LIKE: Final = {"qos1": ("qos0", 0.5), "qos2": ("qos1", 0.5), "fanout": ("qos0", 100.0), "durable": ("qos1", 0.5)}
"""Start of the search for a kind: a multiple of another one's rate."""
_LEAST_RATE: Final = 100.0
_ALIKE: Final = 2
"""Number of floods, three at most, that decide whether a rate is sustained."""
_WARMUP_SECONDS: Final = 0.3
_DRAIN_SECONDS: Final = 0.5
_IDLE_SECONDS: Final = 10.0
_ALONE_SECONDS: Final = 2.0
_BUSY_MAX: Final = 0.05
_KEEP_ALIVE_SECONDS: Final = 10
"""Keep Alive of idle clients, which ping after three quarters of it."""
_EXAMPLES: Final = (
    Fleet(10_000, 60.0, 200, 1), Fleet(10_000, 10.0, 200, 1, is_durable=True), Fleet(1_000, 1.0, 64, 0, 10),
)  # fmt: skip


@dataclass(frozen=True)
class Rate:
    """The result for a kind at its highest sustained rate."""

    per_second: float
    """Deliveries per second."""
    p99_us: float
    ack_p50_us: float
    ack_p99_us: float
    broker_share: float
    """Fraction of the whole host used by the broker alone; the rest is the generator's, or idle."""


def carried(result: Result, per_second: float, p99_us_max: float) -> Rate | None:
    """Return None if deliveries were too late in the median second at this rate, or some were missing."""
    figures = result.figures
    rows = result.series or [figures]
    p99 = statistics.median(row.get("delivery_p99_us", float("inf")) for row in rows)
    is_late = p99 > p99_us_max or statistics.median(row["received_per_s"] for row in rows) < COMES * per_second
    if is_late or figures["lost"] or figures["connections_lost"] or figures["connections_refused"]:
        return None
    return Rate(
        per_second, p99, figures.get("acknowledgement_p50_us", 0.0), figures.get("acknowledgement_p99_us", 0.0),
        figures.get("broker_cpu_percent", 0.0) / 100 / host.cores(),
    )  # fmt: skip


class Bench:
    """A broker, and floods against it one after the other."""

    def __init__(self, url: str, pid: int | None, given: argparse.Namespace, tell: Callable[[str], None]) -> None:
        self.pid = pid
        self._url = url
        self._given = given
        self._tell = tell
        self._count = 0

    def flood(
        self, arguments: str, seconds: float, warmup: float = _WARMUP_SECONDS, look: Callable[[str], None] | None = None
    ) -> Result:
        """Run a flood. Topics and client ids are new each time, so that an overload does not affect the next one. look:
        called with the phase, a few times a second. RunFailed.
        """
        self._count += 1
        given = self._given
        topic = f"{given.topic}/{self._count}" if given.topic else f"plan{self._count}/%i"
        own = ["--host", self._url, "--client-prefix", f"{given.client_prefix}{self._count}-", "-t", topic, "-i", "0.1"]
        own += options.arguments_of(given, without=(*_OF_THE_FLEET, "topic", "client-prefix"))
        load = flood.load_of(flood.parser({}).parse_args([*shlex.split(arguments), *own]))
        if load.scenario.idle:
            load = dataclasses.replace(
                load, target=dataclasses.replace(load.target, keep_alive=_KEEP_ALIVE_SECONDS)
            )  # fmt: skip

        def progress(phase: str, _: float, __: Moment) -> None:
            if look is not None:
                look(phase)

        return run(
            load, processes=host.cores(), seconds=seconds, warmup=warmup, drain=_DRAIN_SECONDS, pid=self.pid,
            progress=progress,
        )  # fmt: skip

    def at(self, kind: str, per_second: float) -> Result:
        """Run a flood by a schedule of this many deliveries per second."""
        copies = 100 if kind == "fanout" else 1
        self._tell(f"{TITLES[kind]}: {per_second:,.0f}/s")
        return self.flood(f"{PATTERNS[kind]} --rate {per_second / copies:.3f}", self._given.step)

    def is_carried(self, kind: str, per_second: float) -> Rate | None:
        """Return the result at this scheduled rate; None: it is not sustained."""
        return carried(self.at(kind, per_second), per_second, self._given.p99)

    def rate(self, kind: str, first: float) -> Rate:
        """Search the highest sustained rate, from `first` on."""
        best = Rate(0.0, 0.0, 0.0, 0.0, 0.0)

        def carries(per_second: float) -> bool:
            # one flood may have had a bad second, or a lucky one: several with the same result decide
            nonlocal best
            found: list[Rate] = []
            failed = 0
            while len(found) < _ALIKE and failed < _ALIKE:
                rate = self.is_carried(kind, per_second)
                if rate is None:
                    failed += 1
                else:
                    found.append(rate)
            if failed == _ALIKE:
                return False
            if per_second > best.per_second:
                best = max(found, key=lambda each: each.p99_us)
            return True

        highest(carries, first, _LEAST_RATE)
        return best

    def byte(self) -> float:
        """Return seconds of the host for a byte of a payload: the loss of 500 saturated pairs with larger ones."""
        rates = []
        for size in (SIZE_BYTES, LARGE_BYTES):
            self._tell(f"payloads of {size} bytes")
            rates.append(self.flood(f"{PATTERNS['qos0']} -s {size}", self._given.step).figures["received_per_s"])
        small, large = rates
        return max(0.0, 1 / large - 1 / small) / (LARGE_BYTES - SIZE_BYTES) if small and large else 0.0

    def idle(self, clients: int) -> tuple[float, float, float]:
        """Return (bytes of the broker without clients, bytes and host share of an idle client); 0 without a pid."""
        if self.pid is None:
            return 0.0, 0.0, 0.0
        pid = self.pid
        self._tell(f"{clients:,} idle clients")
        base, kernel, grown = processor.pss_bytes(pid), host.kernel_bytes(), 0
        began, cpu = time.monotonic(), processor.seconds(pid)
        time.sleep(_ALONE_SECONDS)
        alone = (processor.seconds(pid) - cpu) / (time.monotonic() - began) / host.cores()

        def look(phase: str) -> None:
            nonlocal grown
            if phase == "run":
                grown = host.kernel_bytes() - kernel

        figures = self.flood(f"conn -c {clients}", _IDLE_SECONDS, 2.0, look).figures
        busy = figures["broker_cpu_percent"] / 100 / host.cores()
        count = max(1.0, figures["connected"])
        client = max(0.0, figures["broker_bytes_per_client"]) + max(0, grown) / count
        return float(base), client, max(0.0, busy - alone) / count


def measure(bench: Bench, clients: int, kinds: Sequence[str]) -> tuple[Measured, dict[str, Rate]]:
    """Run all measurements. RunFailed: the broker does not take the clients."""
    free = host.available_bytes()
    base, client, idle = bench.idle(clients)
    rates: dict[str, Rate] = {}
    for kind in kinds:
        like, times = _LIKE.get(kind, ("", 1.0))
        known = rates[like].per_second if like in rates else 0.0
        rates[kind] = bench.rate(kind, known * times or _FIRST_RATE)
    return (
        Measured(
            free, resource.getrlimit(resource.RLIMIT_NOFILE)[1], base, client, idle,
            {kind: rate.per_second for kind, rate in rates.items()}, bench.byte(),
        ),
        rates,
    )  # fmt: skip


@dataclass(frozen=True)
class PromiseCheck:
    """The comparison of a promise with flood."""

    kind: str
    promised: float
    delivered: float
    """Deliveries per second, by floods at the promised rate: the median."""
    p99_us: float
    """p99 of the same floods."""
    times: int
    """Floods at each of three rates, in turn."""
    below: int
    """Number of floods at promised / 1.3 that were sustained."""
    above: int
    """The same at promised / 0.7."""

    @property
    def is_within(self) -> bool:
        """Whether the capacity is within 30 %: flood's median delivers the promise, most floods at 1 / 1.3 of it are
        sustained, and most at 1 / 0.7 are not.
        """
        delivers = abs(self.delivered - self.promised) <= WITHIN * self.promised
        return bool(self.promised) and delivers and self.below > self.times / 2 > self.above


def check(bench: Bench, measured: Measured, kinds: Sequence[str], times: int) -> list[PromiseCheck]:
    """Check each promise by floods."""
    found = []
    for kind in kinds:
        promised = measured.rates.get(kind, 0.0)
        below = above = 0
        there: list[tuple[float, float]] = []
        for _ in range(times if promised else 0):
            below += bench.is_carried(kind, promised / (1 + WITHIN)) is not None
            figures = bench.at(kind, promised).figures
            there.append((figures["received_per_s"], figures.get("delivery_p99_us", float("inf"))))
            above += bench.is_carried(kind, promised / (1 - WITHIN)) is not None
        delivered, p99 = map(statistics.median, zip(*there or [(0.0, 0.0)], strict=True))
        found.append(PromiseCheck(kind, promised, delivered, p99, times, below, above))
    return found


def plan_text(measured: Measured, about: dict[str, Any], margin: float) -> str:
    """Return the measurements, and the capacity of the host, as text."""
    most = answer(measured, Fleet(1, 1e9), margin).clients_max
    lines = [
        f"host       {about['machine']}; {measured.memory_bytes / 2**30:,.1f} GB free; others have "
        f"{100 * about['busy']:.0f} % of it" + (": measure again when it is quiet" * (about["busy"] > _BUSY_MAX)),
        f"broker     {about['broker']}, its directory on {about['file_system']}, {measured.base_bytes / 1e6:,.0f} MB",
        f"client     {measured.client_bytes:,.0f} B, {1e6 * measured.idle:.3g} millionths of the host while idle: "
        f"at most {most:,}",
    ]
    for kind, rate in about["rates"].items():
        line = f"{TITLES[kind]:24} {rate['per_second']:>11,.0f}/s delivered, p99 {rate['p99_us'] / 1000:,.3g} ms"
        if rate["ack_p50_us"]:
            line += f", ack p50 {rate['ack_p50_us'] / 1000:,.3g} ms, p99 {rate['ack_p99_us'] / 1000:,.3g} ms"
        lines.append(f"{line}; {100 * rate['broker_share']:.0f} % of the host is the broker's")
    lines.append(
        f"a byte beyond {SIZE_BYTES}         {1e9 * measured.byte:.3g} ns of the host, each delivery\n"
        f"With {100 * margin:.0f} % of the host to spare:"
    )
    return "\n".join([*lines, *(f"    {answered(measured, each, margin)}" for each in _EXAMPLES)])


def answered(measured: Measured, fleet: Fleet, margin: float) -> str:
    """Return one line: whether it fits, and by how much."""
    found = answer(measured, fleet, margin)
    durable = ", durable" if fleet.is_durable else ""
    what = (
        f"{fleet.clients:,} clients, {fleet.size_bytes} B each {fleet.interval_seconds:g} s at QoS {fleet.qos} to "
        f"{fleet.fanout:g}{durable}: {fleet.messages_per_second:,.0f} messages/s"
    )
    verdict = "fits" if found.fits else f"does not fit: {'; '.join(found.reasons)}"
    return (
        f"{what}: {verdict} ({100 * found.share:.1f} % of the host, {100 * found.memory_share:.1f} % of the memory; "
        f"at most {found.messages_per_second_max:,.0f} messages/s)"
    )


def checks_text(checks: Sequence[PromiseCheck]) -> str:
    """Return a Markdown table."""
    titles = ["", "promised", "flood delivers, median", "p99", "carried at 1/1.3", "carried at 1/0.7", "within 30 %"]
    cells = [
        [TITLES[each.kind], f"{each.promised:,.0f}/s", f"{each.delivered:,.0f}/s", f"{each.p99_us / 1000:,.3g} ms",
         f"{each.below} of {each.times}", f"{each.above} of {each.times}", "yes" if each.is_within else "**no**"]
        for each in checks
    ]  # fmt: skip
    return "\n".join(markdown([titles, *cells], range(1, 6)))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    made = Parser(
        prog="python -m loadtest.plan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--clients", type=at_least(1), help="clients of the fleet")
    add("--interval", type=at_least(0.001, float), default=60.0, metavar="S",
        help="seconds between two messages of a client (default: %(default)s)")  # fmt: skip
    add("--rate", type=at_least(0.001, float), metavar="N", help="messages per second of all clients, instead")
    add("-s", "--payload", "--size", dest="size", type=at_least(0), default=200, metavar="BYTES",
        help="bytes of a payload (default: %(default)s)")  # fmt: skip
    add("-q", "--qos", type=int, choices=[0, 1, 2], default=0)
    add("--fanout", type=at_least(1, float), default=1.0, help="subscribers of a message (default: %(default)s)")
    add("--durable", action="store_true", help="their sessions outlast connections, on the disk")
    add("--session-expiry", type=at_least(0), metavar="S", help="the same, for any S but 0")
    add("--margin", type=at_least(0, float), default=30.0, metavar="PERCENT",
        help="share of the host to keep free (default: %(default)s)")  # fmt: skip
    add("--p99", default="20ms", metavar="TIME", help="limit of p99 for a carried rate (default: %(default)s)")
    add("--step", type=at_least(0.1, float), default=2.0, metavar="S",
        help="seconds measured at a rate (default: %(default)s)")  # fmt: skip
    add("--kinds", type=_kinds, default=list(KINDS), metavar="NAMES",
        help=f"kinds to measure (default: {','.join(KINDS)})")  # fmt: skip
    add("--idle-clients", type=at_least(1), default=10_000, help="to measure memory and CPU (default: %(default)s)")
    add("--broker", default="mqttd", metavar="NAME", help=f"{', '.join(brokers.KNOWN)} (default: %(default)s)")
    add("--directory", type=Path, metavar="DIR", help="parent of its directory, on the disk to measure")
    add("--host", metavar="URL", help="a running broker on this machine, instead")
    options.add_to(made, without=_OF_THE_FLEET, defaults=_DEFAULTS)
    add("--pid", type=at_least(1), help="its first process")
    add("--measured", type=Path, metavar="FILE", help="an earlier --json: nothing is measured again")
    add("--json", type=Path, metavar="FILE", help="write the measurements and the answer; - for standard output")
    add("--check", action="store_true", help="compare promises with flood's deliveries (some minutes)")
    add("--checks", type=at_least(1), default=5, help="floods of each rate (default: %(default)s)")
    add("--quiet", action="store_true", help="no progress bar")
    options.from_environment(made, os.environ)
    return made


def _kinds(text: str) -> list[str]:
    kinds = text.split(",")
    if unknown := set(kinds) - set(KINDS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: of {', '.join(KINDS)}")
    return kinds


@contextmanager
def _bench(given: argparse.Namespace, tell: Callable[[str], None]) -> Iterator[Bench]:
    if given.host:
        yield Bench(given.host, given.pid, given, tell)
        return
    with brokers.started(brokers.KNOWN[given.broker], given.directory) as running:
        yield Bench(running.url, running.pid, given, tell)


@contextmanager
def _progress(is_quiet: bool) -> Iterator[Callable[[str], None]]:
    if is_quiet:
        yield lambda _: None
        return
    from tqdm import tqdm  # in the extra `loadtest`

    with tqdm(leave=False, bar_format="{elapsed} {desc}") as bar:
        yield bar.set_description_str


def _read(path: Path) -> tuple[Measured, dict[str, Any]]:
    try:
        values = json.loads(path.read_text())
        about = {each: values["about"][each] for each in ("machine", "broker", "file_system", "busy", "rates")}
        return Measured.of(values["measured"]), about
    except OSError as error:
        raise flood.Wrong(f"--measured {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise flood.Wrong(f"--measured {path} was not written by --json") from None


def _p99_us(text: str) -> float:
    try:
        [gate] = gates.gates(f"p99>{text}")
    except ValueError:
        raise flood.Wrong(f"--p99 {text}: a number with us, ms or s") from None
    return gate.bound


def _made(given: argparse.Namespace) -> tuple[Measured, dict[str, Any], list[PromiseCheck]]:
    """Measure, or read earlier measurements, and check them if requested."""
    checks: list[PromiseCheck] = []
    with _progress(given.quiet) as tell:
        if given.measured is not None:
            measured, about = _read(given.measured)
        else:
            busy = host.busy_share(_ALONE_SECONDS)
            with _bench(given, tell) as bench:
                measured, rates = measure(bench, given.idle_clients, given.kinds)
            about = {
                "machine": host.machine(), "date": time.strftime("%Y-%m-%d"), "commit": host.commit(),
                "broker": given.host or brokers.KNOWN[given.broker].shown,
                "file_system": host.file_system(given.directory or Path(tempfile.gettempdir())),
                "busy": busy,
                "rates": {kind: dataclasses.asdict(rate) for kind, rate in rates.items()},
            }  # fmt: skip
        if given.check:
            with _bench(given, tell) as bench:
                checks = check(bench, measured, given.kinds, given.checks)
    return measured, about, checks


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and answer; return the exit status."""
    given = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the broker is stopped on the way out
    margin = given.margin / 100
    try:
        if given.broker not in brokers.KNOWN:
            raise flood.Wrong(f"{given.broker} is no broker: {', '.join(brokers.KNOWN)}")
        if margin >= 1:
            raise flood.Wrong("--margin: less than 100")
        given.p99 = _p99_us(given.p99)
        measured, about, checks = _made(given)
    except (flood.Wrong, BrokerFailed, RunFailed) as error:
        print(f"plan: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"plan: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return _print_plan(given, measured, about, checks, margin)


def _print_plan(
    given: argparse.Namespace, measured: Measured, about: dict[str, Any], checks: list[PromiseCheck], margin: float
) -> int:
    interval = (given.clients or 1) / given.rate if given.rate else given.interval
    is_durable = given.durable or bool(given.session_expiry)
    fleet = Fleet(given.clients or 1, interval, given.size, given.qos, given.fanout, is_durable)
    found: Assessment | None = answer(measured, fleet, margin) if given.clients else None
    is_on_stdout = given.json is not None and str(given.json) == "-"
    out = sys.stderr if is_on_stdout else sys.stdout
    print(plan_text(measured, about, margin), file=out)
    if found is not None:
        print(answered(measured, fleet, margin), file=out)
    if checks:
        print(checks_text(checks), file=out)
    if given.json is not None:
        whole = {
            "measured": dataclasses.asdict(measured), "about": about,
            "answer": None if found is None else {"fits": found.fits, **dataclasses.asdict(found)},
            "checks": [{"within": each.is_within, **dataclasses.asdict(each)} for each in checks],
        }  # fmt: skip
        text = json.dumps(whole, indent=1)
        if is_on_stdout:
            print(text)
        else:
            given.json.write_text(text + "\n")
    return 0 if (found is None or found.fits) and all(each.is_within for each in checks) else 1


if __name__ == "__main__":
    sys.exit(main())

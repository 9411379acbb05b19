"""python -m loadtest.flood SCENARIO [options]: loads a broker, and checks every delivery.

    pair     each of -c publishers has its own subscriber
    fanin    -c publishers (or --pubs), one subscriber (or --subs) of all
    fanout   one publisher (or --pubs), -c subscribers (or --subs) of all
    shared   -c publishers, and as many subscribers (or --subs) in a share group: each message to one of them
    pub      -c publishers, without subscribers
    sub      -c subscribers to the messages of another flood
    conn     -c idle connections

With -I (or --rate) messages are sent by a schedule, and latencies count from it; without, as fast as acks arrive, and
never further ahead of the deliveries than --lag. Every option can also be set in the environment: --client-prefix as
MQTTD_LOAD_CLIENT_PREFIX.

The exit status is 0 on success; 1 when a message was damaged, a client was refused or disconnected, or a condition of
--fail-if is true; 2 for wrong usage, or when there is no broker.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from loadtest import gates, options, report
from loadtest.balance import Balance
from loadtest.commands import Commands
from loadtest.figures import Moment
from loadtest.generator import Load, connections_max
from loadtest.run import Result, RunFailed, run
from loadtest.scenario import scenario
from loadtest.target import Target
from pyx.loadgen.ledger import PAYLOAD_BYTES_MIN

UNDER_WAY_MESSAGES_MAX = 8192
"""Messages of all publishers sent and not delivered, without a schedule and --lag."""
UNDER_WAY_BYTES_MAX = 512 << 10
"""Bytes of payloads, in the same way, to one subscriber: half of mqttd's outbox limit of a connection."""


class Wrong(Exception):
    """The options are invalid: one line with the cause."""


def parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """Return the parser, with values of the environment as defaults."""
    made = options.Parser(
        prog="python -m loadtest.flood", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("scenario", choices=["pair", "fanin", "fanout", "shared", "pub", "sub", "conn"], metavar="SCENARIO")
    options.add_to(made)
    number = options.at_least
    add("-c", "--clients", type=number(1), default=20, help="clients; see the scenarios (default: %(default)s)")
    add("--pubs", type=number(1), help="number of publishers, if not --clients")
    add("--subs", type=number(1), help="number of subscribers, if not --clients")
    add("--idle", type=number(0), default=0, help="additional idle connections (default: 0)")
    add("-i", "--connect-interval", type=number(0, float), default=0.5, metavar="MS",
        help="milliseconds between two connections of the whole run (default: %(default)s)")  # fmt: skip
    add("-I", "--interval", type=number(0, float), metavar="MS",
        help="milliseconds between two messages of one publisher")  # fmt: skip
    add("--window", type=number(1), default=50, help="unacknowledged messages of a publisher (default: %(default)s)")
    add("--lag", type=number(1), help="undelivered messages of a publisher, without a schedule")
    add("--coalesce", type=number(0, float), default=100.0, metavar="US", help="without a schedule: microseconds "
        "between two rounds of the generator, so that it is not woken for every write (default: 100)")  # fmt: skip
    add("--seconds", type=number(0.01, float), default=10.0, help="measured seconds (default: %(default)s)")
    add("--warmup", type=number(0, float), default=1.0, help="seconds before measuring (default: %(default)s)")
    add("--drain", type=number(0, float), default=5.0,
        help="seconds without progress until missing messages count as lost (default: 5)")  # fmt: skip
    add(
        "--processes",
        type=number(1),
        help="processes of the generator (default: one per core, or as many as all connections need)",
    )
    add(
        "--pid",
        type=number(1),
        help="the broker's first process: measures its CPU time and that of all descendants",
    )
    add("--json", type=Path, metavar="FILE", help="write figures, and a row per second; - for standard output")
    add("--metrics", metavar="URL", help="admin interface of an mqttd: reports how its workers share the load")
    add("--run", action="append", default=[], metavar="SECONDS:COMMAND",
        help="start a command during the measurement, and mark it in the report; may be repeated")  # fmt: skip
    add("--report", type=Path, metavar="FILE", help="write a self-contained HTML page with charts")
    add("--fail-if", default="", metavar="CONDITIONS", help="p99>20ms,lost>0")
    add("--quiet", action="store_true", help="no progress bar")
    options.from_environment(made, environment)
    return made


def load_of(given: argparse.Namespace) -> Load:
    """Return the load of the options. Wrong: they contradict each other."""
    try:
        target = Target.of(given)
        turn = options.payloads(given.payload)
        of = scenario(
            given.scenario, given.clients, given.pubs, given.subs, given.topic, given.client_prefix, given.idle
        )
    except ValueError as error:
        raise Wrong(str(error)) from None
    sizes = [each if isinstance(each, int) else len(each) + PAYLOAD_BYTES_MIN for each in turn]
    if min(sizes) < PAYLOAD_BYTES_MIN:
        raise Wrong(f"--payload {given.payload}: one that is checked has {PAYLOAD_BYTES_MIN} bytes at least")
    if given.rate and given.interval:
        raise Wrong("--rate and -I say the same: one of them")
    if given.window > 65_535:
        raise Wrong("--window: 1 to 65535")
    rate = given.rate or (1000.0 * of.publishers / given.interval if given.interval else 0.0)
    # without a schedule: messages in transit to a subscriber must fit the queues of a broker
    heard = 1 if of.pairs else max(1, of.publishers)
    under_way = min(UNDER_WAY_MESSAGES_MAX // max(1, of.publishers), UNDER_WAY_BYTES_MAX // (max(sizes) * heard))
    return Load(
        target,
        of,
        turn,
        given.qos,
        given.window,
        given.lag or max(4, under_way),
        rate,
        1000.0 / given.connect_interval if given.connect_interval > 0 else 0.0,
        given.coalesce,
    )


def result_text(load: Load, result: Result) -> str:
    """Return a run's result as text."""
    figures = result.figures
    lines = [
        f"connected  {figures['connected']:,.0f}" + _latency(figures, "connect", ", CONNECT to CONNACK"),
        f"sent       {figures['sent_per_s']:,.0f}/s" + _latency(figures, "acknowledgement", ", to the last ack"),
        f"received   {figures['received_per_s']:,.0f}/s" + _latency(figures, "delivery", ", from the time it was due"),
        f"in all     {figures['total_sent']:,.0f} sent, {figures['total_received']:,.0f} received",
        f"wrong      lost {figures['lost']:,.0f}, reordered {figures['reordered']:,.0f}, "
        f"duplicates {figures['duplicates']:,.0f}, corrupt {figures['corrupt']:,.0f}, "
        f"publishes refused {figures['publishes_refused']:,.0f}, connections lost {figures['connections_lost']:,.0f}",
    ]
    if load.rate:
        lines.append("schedule   late" + _latency(figures, "lateness", "").removeprefix(":"))
    if "broker_cpu_us" in figures:
        lines.append(
            f"broker     {figures['broker_cpu_us']:.3g} us of CPU per message, "
            f"{figures['broker_cpu_percent']:.0f} % of a core; {figures['broker_bytes'] / 2**20:,.1f} MB, "
            f"{figures['broker_bytes_per_client']:,.0f} bytes per client before anything was published"
        )
    lines += [f"           {line}" for line in dict.fromkeys(result.said)]
    return "\n".join(lines)


def published(load: Load, result: Result) -> list[dict[str, object]]:
    """Return client id, topic and number of messages, warm-up included, of each publisher."""
    of = load.scenario
    return [
        {"client": of.publisher_id(number), "topic": topic.decode(), "messages": messages}
        for number, (topic, messages) in enumerate(zip(of.topics, result.published, strict=False))
    ]


def _latency(figures: Mapping[str, float], name: str, what: str) -> str:
    if f"{name}_p50_us" not in figures:
        return ""
    p50, p99 = figures[f"{name}_p50_us"], figures[f"{name}_p99_us"]
    return f"{what}: p50 {p50:,.0f} us, p99 {p99:,.0f} us"


@contextmanager
def _bar() -> Iterator[Callable[[str, float, Moment], None]]:
    from tqdm import tqdm  # in the extra `loadtest`

    with tqdm(total=100, bar_format="{desc} {bar} {postfix}", leave=False) as bar:

        def progress(phase: str, done: float, now: Moment) -> None:
            bar.n = min(100, int(100 * done))
            bar.set_description_str(f"{phase:8}")
            bar.set_postfix_str(
                f"{now['connected']:,} connected, {now['sent']:,} sent, {now['received']:,} received, "
                f"{now['lost']:,} lost"
            )

        yield progress


@contextmanager
def _no_bar() -> Iterator[Callable[[str, float, Moment], None]]:
    yield lambda *_: None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; return the exit status."""
    given = parser(os.environ).parse_args(arguments)
    try:
        load = load_of(given)
        try:
            conditions, commands = gates.gates(given.fail_if), Commands(given.run)
        except ValueError as error:
            raise Wrong(str(error)) from None
        cores = len(os.sched_getaffinity(0))
        processes = given.processes or max(min(cores, given.clients), -(-load.scenario.clients // connections_max()))
        with _no_bar() if given.quiet else _bar() as progress:
            result = run(
                load, processes=processes, seconds=given.seconds, warmup=given.warmup, drain=given.drain,
                pid=given.pid, balance=Balance(given.metrics) if given.metrics else None,
                commands=commands, progress=progress,
            )  # fmt: skip
        failures = gates.failed(conditions, result.figures)
        _write(given, load, result, failures)
    except (Wrong, RunFailed, OSError) as error:
        print(f"flood: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0 if result.is_whole and not failures else 1


def _write(given: argparse.Namespace, load: Load, result: Result, failures: list[str]) -> None:
    is_on_stdout = str(given.json) == "-"
    print(result_text(load, result), file=sys.stderr if is_on_stdout else sys.stdout)
    for line in failures:
        print(f"failed     {line}", file=sys.stderr)
    if given.report is not None:
        report.write(given.report, load, result, failures, f"flood {given.scenario}")
    if given.json is not None:
        text = json.dumps(
            {"ok": result.is_whole and not failures, "failed": failures, "figures": result.figures,
             "series": result.series, "balance": result.balance, "happened": result.happened, "said": result.said,
             "published": published(load, result)},
            indent=1,
        )  # fmt: skip
        if is_on_stdout:
            print(text)
        else:
            given.json.write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(main())

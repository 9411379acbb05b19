"""python -m loadtest.flood SCENARIO [options]: load a broker, and check everything it delivers.

    pair     each of -c publishers has a subscriber of its own
    fanin    -c publishers (or --pubs), one subscriber (or --subs) of all
    fanout   one publisher (or --pubs), -c subscribers (or --subs) of all
    shared   -c publishers, and as many subscribers (or --subs) that share: each message to one of them
    pub      -c publishers, nobody of ours listens
    sub      -c subscribers of what another flood publishes
    conn     -c connections that say nothing

With -I (or --rate) messages are sent by a schedule, and latencies count from it; without, as fast as acks come, and
never further ahead of the deliveries than --lag. Every option can be given in the environment, too: --client-prefix as
MQTTD_LOAD_CLIENT_PREFIX.

The exit status is 0 when all went well; 1 when something came damaged, was refused or ended, or a condition of
--fail-if is true; 2 for a wrong use, or when there is no broker.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from loadtest import gates, report
from loadtest.balance import Balance
from loadtest.figures import Moment
from loadtest.generator import Load
from loadtest.run import Result, RunFailed, run
from loadtest.scenario import scenario
from loadtest.target import Target
from pyx.ledger import PAYLOAD_BYTES_MIN

_ENVIRONMENT = "MQTTD_LOAD_"
UNDER_WAY_MESSAGES_MAX = 8192
"""Of all publishers, sent and not delivered, where neither a schedule nor --lag says otherwise."""
UNDER_WAY_BYTES_MAX = 512 << 10
"""Of payloads, likewise, to one subscriber: half of what mqttd lets wait for a connection."""


class Wrong(Exception):
    """The options do not fit: one line that says why."""


def parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """The options, with the environment's values as defaults."""
    made = argparse.ArgumentParser(
        prog="python -m loadtest.flood", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("scenario", choices=["pair", "fanin", "fanout", "shared", "pub", "sub", "conn"], metavar="SCENARIO")
    add("--host", default="mqtt://127.0.0.1:1883", metavar="URL", help="mqtt://HOST:PORT (default: %(default)s)")
    add("-c", "--clients", type=int, default=20, help="how many; see the scenarios (default: %(default)s)")
    add("--pubs", type=int, help="publishers, where they are not --clients")
    add("--subs", type=int, help="subscribers, where they are not --clients")
    add("-i", "--connect-interval", type=float, default=0.5, metavar="MS",
        help="milliseconds between two connections, of the whole run (default: %(default)s)")  # fmt: skip
    add("-I", "--interval", type=float, metavar="MS", help="milliseconds between two messages of one publisher")
    add("--rate", type=float, metavar="N", help="messages per second of all publishers, instead of -I")
    add("-t", "--topic", default="t/%i", help="%%i: the publisher's number, %%c: its client id (default: t/%%i)")
    add("-q", "--qos", type=int, choices=[0, 1, 2], default=0)
    add("-s", "--size", default="64", metavar="BYTES",
        help=f"of a payload, {PAYLOAD_BYTES_MIN} at least; several with commas come in turn (default: 64)")  # fmt: skip
    add("--window", type=int, default=50, help="unacknowledged messages of a publisher (default: %(default)s)")
    add("--lag", type=int, help="messages of a publisher that were not delivered yet, without a schedule")
    add("--seconds", type=float, default=10.0, help="measured (default: %(default)s)")
    add("--warmup", type=float, default=1.0, help="seconds before that (default: %(default)s)")
    add("--drain", type=float, default=5.0, help="seconds without news until what is missing is lost (default: 5)")
    add("--version", type=int, choices=[3, 4, 5], default=4, help="protocol: 3.1, 3.1.1 (default) or 5.0")
    add("--user", help="user name")
    add("--password")
    add("--client-prefix", default="flood-", help="of client ids (default: %(default)s)")
    add("--session-expiry", type=int, metavar="S", help="seconds for which sessions outlive connections (3, 4: any)")
    add("--processes", type=int, help="of the generator (default: one per core)")
    add("--pid", type=int, help="of the broker's first process: its CPU time is measured, all descendants' with it")
    add("--json", type=Path, metavar="FILE", help="write figures, and a row per second; - for standard output")
    add("--metrics", metavar="URL", help="of an mqttd's admin interface: how its workers share the load is reported")
    add("--report", type=Path, metavar="FILE", help="write an HTML page with charts, which needs nothing else")
    add("--fail-if", default="", metavar="CONDITIONS", help="p99>20ms,lost>0")
    add("--quiet", action="store_true", help="no progress bar")
    for action in made._actions:
        name = _ENVIRONMENT + (action.option_strings[-1].strip("-") if action.option_strings else "")
        name = name.replace("-", "_").upper()
        if action.option_strings and name in environment:
            action.default = environment[name] if action.nargs != 0 else environment[name] not in ("", "0", "no")
    return made


def load_of(options: argparse.Namespace) -> Load:
    """What was asked for. Wrong: it does not fit together."""
    try:
        target = Target.parse(
            options.host,
            version=options.version,
            username=options.user,
            password=options.password,
            session_expiry=options.session_expiry,
        )
        sizes = tuple(int(each) for each in options.size.split(","))
        of = scenario(
            options.scenario, options.clients, options.pubs, options.subs, options.topic, options.client_prefix
        )
    except ValueError as error:
        raise Wrong(str(error)) from None
    if min(sizes) < PAYLOAD_BYTES_MIN:
        raise Wrong(f"-s {options.size}: a payload that is checked has {PAYLOAD_BYTES_MIN} bytes at least")
    if options.rate and options.interval:
        raise Wrong("--rate and -I say the same: one of them")
    if not 1 <= options.window <= 65_535:
        raise Wrong("--window: 1 to 65535")
    if options.seconds <= 0 or options.warmup < 0 or options.drain < 0:
        raise Wrong("--seconds is more than 0, --warmup and --drain not less")
    rate = options.rate or (1000.0 * of.publishers / options.interval if options.interval else 0.0)
    # without a schedule: what is under way to a subscriber fits the queues of a broker
    heard = 1 if of.pairs else max(1, of.publishers)
    under_way = min(UNDER_WAY_MESSAGES_MAX // max(1, of.publishers), UNDER_WAY_BYTES_MAX // (max(sizes) * heard))
    return Load(
        target,
        of,
        sizes,
        options.qos,
        options.window,
        options.lag or max(4, under_way),
        rate,
        1000.0 / options.connect_interval if options.connect_interval > 0 else 0.0,
    )


def told(load: Load, result: Result) -> str:
    """A run as a person reads it."""
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
            f"{figures['broker_cpu_percent']:.0f} % of a core"
        )
    lines += [f"           {line}" for line in dict.fromkeys(result.said)]
    return "\n".join(lines)


def _latency(figures: Mapping[str, float], name: str, what: str) -> str:
    if f"{name}_p50_us" not in figures:
        return ""
    p50, p99 = figures[f"{name}_p50_us"], figures[f"{name}_p99_us"]
    return f"{what}: p50 {p50:,.0f} us, p99 {p99:,.0f} us"


@contextmanager
def _bar() -> Iterator[Callable[[str, float, Moment], None]]:
    from tqdm import tqdm  # of the extra `loadtest`

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
    """Run it; the exit status."""
    options = parser(os.environ).parse_args(arguments)
    try:
        load = load_of(options)
        try:
            conditions = gates.gates(options.fail_if)
        except ValueError as error:
            raise Wrong(f"--fail-if: {error}") from None
        processes = options.processes or min(len(os.sched_getaffinity(0)), max(1, options.clients))
        if processes < 1:
            raise Wrong("--processes: 1 at least")
        with _no_bar() if options.quiet else _bar() as progress:
            result = run(
                load, processes=processes, seconds=options.seconds, warmup=options.warmup, drain=options.drain,
                pid=options.pid, balance=Balance(options.metrics) if options.metrics else None, progress=progress,
            )  # fmt: skip
    except (Wrong, RunFailed) as error:
        print(f"flood: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    failures = gates.failed(conditions, result.figures)
    is_on_stdout = options.json is not None and str(options.json) == "-"
    print(told(load, result), file=sys.stderr if is_on_stdout else sys.stdout)
    for line in failures:
        print(f"failed     {line}", file=sys.stderr)
    if options.report is not None:
        report.write(options.report, load, result, failures, f"flood {options.scenario}")
    if options.json is not None:
        text = json.dumps(
            {"ok": result.is_whole and not failures, "failed": failures, "figures": result.figures,
             "series": result.series, "balance": result.balance, "happened": result.happened, "said": result.said},
            indent=1,
        )  # fmt: skip
        if is_on_stdout:
            print(text)
        else:
            options.json.write_text(text + "\n")
    return 0 if result.is_whole and not failures else 1


if __name__ == "__main__":
    sys.exit(main())

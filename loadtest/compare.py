"""python -m loadtest.compare [options]: several brokers under the same loads, in turn, A B A B.

Each run is a fresh broker on a free port of 127.0.0.1 with an empty directory, loaded by `loadtest.flood`, which checks
every delivery. Figures are medians, with the smallest and the largest run, and ratios to the first broker (or --base).

    python -m loadtest.compare                                   mqttd, mosquitto and nats-server, those installed
    python -m loadtest.compare --brokers mqttd-memory,mosquitto --scenarios pair0,pair1 --runs 5
    python -m loadtest.compare --broker new='./mqttd-next --port {port} --data-dir {dir}' --brokers mqttd
    python -m loadtest.compare --scenario mine='pair -c 100 -q 1 -s 500 --rate 2000' --fail-if 'mine.cpu.ratio>1.1'
    python -m loadtest.compare --scenarios pair1,fanin --payload 80:64,20:4096 --session-expiry 60
    python -m loadtest.compare --broker new='./new --tls {port} ...' --scheme mqtts --cafile ca.pem --user me
    python -m loadtest.compare --list                            known brokers and scenarios

--qos, --payload, --topic and so on override the values of the scenarios; --scheme, --cafile, --user and the like apply
to brokers of --broker only: the known ones listen without TLS and without credentials. A command contains {port} and
{dir}; {mqttd} is the mqttd beside this program. A condition of --fail-if is [SCENARIO.][BROKER.]FIGURE[.ratio] < or > a
number: a ratio of any broker to the base, or a median.

The exit status is 0 on success; 1 when a broker failed, a message was damaged, or a condition is true; 2 for wrong
usage, or when there is no broker.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

from loadtest import brokers, comparison, document, flood, host, options, report
from loadtest.brokers import PLAIN, Broker, BrokerFailed
from loadtest.charts import charts
from loadtest.comparison import Cell, Comparison, Row
from loadtest.generator import Load
from loadtest.options import Parser, at_least
from loadtest.run import Result, RunFailed, run
from loadtest.target import SCHEMES, Target

MARK: Final = "<!-- measured: python -m loadtest.compare -->"
"""In a document of --write; what follows up to `document.END` is replaced."""


@dataclass(frozen=True)
class Scenario:
    """A load, and what of it the table shows."""

    name: str
    title: str
    flood: str
    """Arguments of `python -m loadtest.flood`."""
    shows: tuple[str, ...]
    beside: tuple[str, ...]
    """Whose ratio to the base is shown."""
    needs: frozenset[str] = frozenset()
    """What not every broker has: qos2, shared."""


_SATURATED: Final = ("rate", "cpu", "memory", "lost")
_BY_SCHEDULE: Final = ("rate", "cpu", "p50", "p99", "p999", "memory", "lost")
_BESIDE: Final = ("rate", "cpu")
SCENARIOS: Final = {
    each.name: each
    for each in (
        Scenario("pair0", "20 pairs, QoS 0, as fast as it goes", "pair -c 20", _SATURATED, _BESIDE),
        Scenario("pair1", "20 pairs, QoS 1, window 50", "pair -c 20 -q 1", _SATURATED, _BESIDE),
        Scenario("pair2", "20 pairs, QoS 2, window 50", "pair -c 20 -q 2", _SATURATED, _BESIDE, frozenset({"qos2"})),
        Scenario("fanin", "50 publishers, one subscriber of all, QoS 0", "fanin -c 50", _SATURATED, _BESIDE),
        Scenario("fanout", "one publisher, 500 subscribers, QoS 0", "fanout -c 500 -i 0.1", _SATURATED, _BESIDE),
        Scenario("shared", "20 publishers, 10 subscribers that share, QoS 1", "shared -c 20 --subs 10 -q 1",
                 _SATURATED, _BESIDE, frozenset({"shared"})),
        Scenario("fleet", "500 pairs, 10,000 messages per second by a schedule, QoS 0",
                 "pair -c 500 -i 0.1 --rate 10000", _BY_SCHEDULE, ("cpu", "p50")),
        Scenario("durable", "20 pairs, QoS 1, subscribers with sessions that last",
                 "pair -c 20 -q 1 --session-expiry 3600", _SATURATED, _BESIDE),
        Scenario("ack", "one publisher that waits for each ack, QoS 1, a subscriber whose session lasts",
                 "pair -c 1 -q 1 --window 1 --session-expiry 3600", ("ack_p50", "ack_p99", "rate", "cpu", "lost"),
                 ("ack_p50", "cpu")),
        Scenario("conn", "5,000 idle connections", "conn -c 5000 -i 0.1",
                 ("connect_p50", "connect_p99", "connect_cpu", "client_bytes", "idle_cpu"),
                 ("connect_cpu", "client_bytes")),
    )
}  # fmt: skip

_Known = TypeVar("_Known", Broker, Scenario)
_LOOK_SECONDS: Final = 0.5
_DEFAULT: Final = ("mqttd", "mqttd-single", "mosquitto", "nats-server")
_FROM_FLOOD: Final = {
    "rate": "received_per_s", "cpu": "broker_cpu_us", "p50": "delivery_p50_us", "p99": "delivery_p99_us",
    "p999": "delivery_p99.9_us", "ack_p50": "acknowledgement_p50_us", "ack_p99": "acknowledgement_p99_us",
    "memory": "broker_bytes", "lost": "lost", "duplicates": "duplicates",
}  # fmt: skip
_FROM_CONNECTIONS: Final = {
    "connect_p50": "connect_p50_us", "connect_p99": "connect_p99_us", "connect_cpu": "broker_connect_cpu_us",
    "client_bytes": "broker_bytes_per_client", "idle_cpu": "broker_cpu_percent", "memory": "broker_bytes",
}  # fmt: skip


@dataclass
class Chosen:
    """What is to be measured."""

    brokers: list[Broker]
    scenarios: list[Scenario]
    base: str
    conditions: list[comparison.Condition]
    earlier: Comparison | None = None
    like: Target = PLAIN
    """How brokers are reached."""
    out: list[str] = field(default_factory=list)
    """Lines about brokers that take no part."""


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = Parser(
        prog="python -m loadtest.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--brokers", metavar="NAMES", help=f"of those that are known (default: {','.join(_DEFAULT)})")
    add("--broker", action="append", default=[], metavar="NAME=COMMAND", help="another broker; the default of --base")
    add("--scenarios", metavar="NAMES", help="known scenarios; none: measure nothing (default: all)")
    add("--scenario", action="append", default=[], metavar="NAME=ARGUMENTS", help="another one: arguments of flood")
    add("--scheme", choices=SCHEMES, default="mqtt", help="URL scheme for brokers of --broker (default: %(default)s)")
    add("--base", metavar="NAME", help="base of the ratios (default: the first broker)")
    add("--runs", type=at_least(1), default=3, help="runs of each broker in each scenario (default: %(default)s)")
    add("--seconds", type=at_least(0.01, float), default=2.0, help="measured seconds of a run (default: %(default)s)")
    add("--warmup", type=at_least(0, float), default=0.5, help="seconds before measuring (default: %(default)s)")
    add("--drain", type=at_least(0, float), default=2.0,
        help="seconds without progress until missing messages count as lost (default: 2)")  # fmt: skip
    add("--patience", type=at_least(0, float), default=brokers.READY_SECONDS_MAX, metavar="S",
        help="seconds in which a broker must answer CONNECT (default: %(default)s)")  # fmt: skip
    add("--processes", type=at_least(1), help="processes of the generator (default: one per core)")
    add("--directory", type=Path, metavar="DIR", help="parent of the brokers' directories, on the disk to measure")
    add("--fail-if", default="", metavar="CONDITIONS", help="pair0.cpu.ratio>0.1,mqttd.p99>20ms,lost>0")
    add("--json", type=Path, metavar="FILE", help="write all results; - for standard output")
    add("--with", dest="earlier", type=Path, metavar="FILE", help="an earlier --json: adds its scenarios")
    add("--html", type=Path, metavar="FILE", help="write a self-contained page with tables and charts")
    add("--write", type=Path, metavar="FILE",
        help=f"a Markdown document: tables between {MARK} and {document.END}, charts beside it")  # fmt: skip
    add("--list", action="store_true", help="list brokers and scenarios, and end")
    add("--quiet", action="store_true", help="no progress bar")
    options.add_to(made, without=("host",), defaults=dict.fromkeys(each.name for each in options.OPTIONS))
    options.from_environment(made, os.environ)
    return made


def chosen(given: argparse.Namespace) -> Chosen:
    """What was asked for. flood.Wrong: it does not fit together."""
    named = [Broker(name, command) for name, command in (_pair(each, "--broker") for each in given.broker)]
    default = "" if named else ",".join(_DEFAULT)
    named += [_known(each, brokers.KNOWN, "broker") for each in _names(given.brokers, default)]
    out = [f"{each.name} is left out: {each.missing} is not installed" for each in named if each.missing]
    there = [each for each in named if not each.missing]
    if not there:
        raise flood.Wrong("; ".join(out) or "no broker")
    _all_different([each.name for each in there])
    own = [_own(*_pair(each, "--scenario")) for each in given.scenario]
    wanted = _names(given.scenarios, "" if own else ",".join(SCENARIOS))
    scenarios = own + [_known(each, SCENARIOS, "scenario") for each in wanted if each != "none"]
    like = _reached(given, there)
    more = options.arguments_of(given, without=options.OF_CONNECTIONS)
    scenarios = [_over(each, more) for each in scenarios] if more else scenarios
    _all_different([each.name for each in scenarios])
    earlier = _read(given.earlier) if given.earlier else None
    base = given.base or (earlier.base if earlier else there[0].name)
    names = [*(each.name for each in there), *(earlier.brokers if earlier else ())]
    if base not in names:
        raise flood.Wrong(f"--base {base} takes no part")
    rows = [*(each.name for each in scenarios), *(earlier.rows if earlier else ())]
    if not rows:
        raise flood.Wrong("no scenario")
    try:
        conditions = comparison.conditions(given.fail_if, rows, names)
    except ValueError as error:
        raise flood.Wrong(f"--fail-if: {error}") from None
    return Chosen(there, scenarios, base, conditions, earlier, like, out if given.brokers or given.broker else [])


def _names(text: str | None, default: str) -> list[str]:
    return [each for each in (default if text is None else text).split(",") if each]


def _pair(text: str, option: str) -> tuple[str, str]:
    name, found, command = text.partition("=")
    if not found or not command.strip() or not name.replace("-", "").replace("+", "").replace("_", "").isalnum():
        raise flood.Wrong(f"{option} {text}: NAME=COMMAND, the name of letters, digits, -, + and _")
    return name, command


def _known(name: str, table: Mapping[str, _Known], what: str) -> _Known:
    if name not in table:
        raise flood.Wrong(f"{name} is no {what}: {', '.join(table)}")
    return table[name]


def _all_different(names: list[str]) -> None:
    if len(set(names)) < len(names):
        raise flood.Wrong(f"{', '.join(names)}: names must differ")


def _own(name: str, arguments: str) -> Scenario:
    load = _load(arguments)
    if not load.scenario.publishers:
        shows, beside = SCENARIOS["conn"].shows, SCENARIOS["conn"].beside
    else:
        shows, beside = (_BY_SCHEDULE, ("cpu", "p50")) if load.rate else (_SATURATED, _BESIDE)
    return Scenario(name, arguments, arguments, shows, beside, _needs(load))


def _over(scenario: Scenario, more: Sequence[str]) -> Scenario:
    # adds the options given for all scenarios, which override the scenario's own
    arguments = shlex.join([*shlex.split(scenario.flood), *more])
    load = _load(arguments)
    shows, beside = scenario.shows, scenario.beside
    if load.rate and shows == _SATURATED:
        shows, beside = _BY_SCHEDULE, ("cpu", "p50")
    title = f"{scenario.title}; {shlex.join(more)}"
    return Scenario(scenario.name, title, arguments, shows, beside, _needs(load))


def _load(arguments: str) -> Load:
    return flood.load_of(flood.parser({}).parse_args(shlex.split(arguments)))


def _needs(load: Load) -> frozenset[str]:
    needs = {"qos2"} if load.qos == 2 else set()
    needs |= {"shared"} if load.scenario.group else set()
    needs |= {"v5"} if load.target.version == 5 else set()
    return frozenset(needs)


def _reached(given: argparse.Namespace, there: Sequence[Broker]) -> Target:
    plain = [each.name for each in there if each.name in brokers.KNOWN]
    if given.scheme != "mqtt" and plain:
        raise flood.Wrong(f"--scheme {given.scheme}: {', '.join(plain)}, as started here, has no such listener")
    version = given.mqtt_version or PLAIN.version
    where = {"host": f"{given.scheme}://{brokers.HOST}", "mqtt_version": version}
    try:
        return Target.of(argparse.Namespace(**{**vars(given), **where}))
    except ValueError as error:
        raise flood.Wrong(str(error)) from None


def _read(path: Path) -> Comparison:
    try:
        return Comparison.of(json.loads(path.read_text()))
    except OSError as error:
        raise flood.Wrong(f"--with {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise flood.Wrong(f"--with {path} was not written by --json") from None


def once(
    scenario: Scenario, broker: Broker, like: Target, given: argparse.Namespace
) -> tuple[dict[str, float], list[str]]:
    """One run: its figures, and what went wrong without ending it. BrokerFailed, RunFailed: there are none."""
    load = _load(scenario.flood)
    with brokers.started(broker, given.directory, given.patience, like) as running:
        of = load.target
        target = replace(
            running.target, version=of.version, session_expiry=of.session_expiry, keep_alive=of.keep_alive
        )  # fmt: skip
        try:
            result = run(
                replace(load, target=target), processes=given.processes or host.cores(), seconds=given.seconds,
                warmup=given.warmup, drain=given.drain, pid=running.pid,
            )  # fmt: skip
        except RunFailed as error:
            running.check()  # that it has ended says more
            raise BrokerFailed(f"{broker.name}: {error}") from None
        running.check()
    names = _FROM_FLOOD if load.scenario.publishers else _FROM_CONNECTIONS
    figures = {name: result.figures[figure] for name, figure in names.items() if figure in result.figures}
    return figures, _wrong(broker, result)


def _wrong(broker: Broker, result: Result) -> list[str]:
    if result.is_whole:
        return []
    names = ("corrupt", "protocol_errors", "connections_refused", "connections_lost", "subscriptions_refused")
    counts = ", ".join(
        f"{name.replace('_', ' ')} {result.figures[name]:,.0f}" for name in names if result.figures[name]
    )
    return [f"{broker.name}: {counts}" + (f" ({result.said[0]})" if result.said else "")]


def begun(what: Chosen) -> Comparison:
    """The comparison before the first run: the brokers, and the earlier results."""
    found = Comparison(host.machine(), what.base, {})
    if what.earlier is not None:
        found.brokers, found.rows = dict(what.earlier.brokers), dict(what.earlier.rows)
    for each in what.brokers:
        files = "\n".join(text.strip() for text in each.files.values())
        found.brokers[each.name] = {
            "version": each.said_version(), "command": each.shown, "keeps": each.keeps, "files": files,
        }  # fmt: skip
    return found


def measure(
    found: Comparison,
    what: Chosen,
    given: argparse.Namespace,
    progress: Callable[[str], None],
    tell: Callable[[str], None],
) -> None:
    """Make all runs. A broker that does not come up takes no further part; one that fails a run has the others."""
    came_up: set[str] = set()
    out: set[str] = set()
    for scenario in what.scenarios:
        row = Row(
            scenario.title, scenario.flood, list(scenario.shows), list(scenario.beside),
            time.strftime("%Y-%m-%d"), host.commit(), given.seconds, host.busy_share(_LOOK_SECONDS),
        )  # fmt: skip
        able = [each for each in what.brokers if not scenario.needs & each.cannot]
        row.cells = {each.name: Cell() for each in able}
        found.rows[scenario.name] = row
        for number in range(given.runs):
            for broker in able:
                progress(f"{scenario.name} {number + 1}/{given.runs} {broker.name}")
                if broker.name in out:
                    continue
                cell = row.cells[broker.name]
                try:
                    figures, said = once(scenario, broker, what.like, given)
                except BrokerFailed as error:
                    said = [str(error)]
                    if broker.name not in came_up:
                        out.add(broker.name)  # what follows would wait for it in vain
                else:
                    cell.runs.append(figures)
                    came_up.add(broker.name)
                for line in said:
                    if line not in cell.said:
                        tell(f"{scenario.name}: {line}")
                cell.said += said


def page(found: Comparison, command: str, failures: Sequence[str]) -> str:
    """HTML that needs nothing else."""
    parts = ["<h1>Brokers compared</h1>", f"<pre>{html.escape(command)}</pre>"]
    parts += [f"<p class=bad>failed: {html.escape(line)}</p>" for line in failures]
    parts += [f"<p>{html.escape(found.machine)}</p>", *charts(found).values()]
    for name, row in found.rows.items():
        parts += [
            f"<h2>{html.escape(f'{name}: {row.title}')}</h2>",
            f"<p><code>flood {html.escape(row.flood)}</code></p>",
        ]
        first, *lines = comparison.table(row, found.base)
        parts.append("<table>" + _html_row("th", first) + "".join(_html_row("td", line) for line in lines) + "</table>")
    parts.append("<h2>The brokers</h2>")
    for name, about in found.brokers.items():
        parts.append(
            f"<h3>{html.escape(name)}</h3><p>{html.escape(about['version'])}<br>After a crash: "
            f"{html.escape(about['keeps'])}</p><pre>{html.escape(about['command'])}\n{html.escape(about['files'])}</pre>"
        )
    return report.page("Brokers compared", parts)


def _html_row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(each)}</{tag}>" for each in cells) + "</tr>"


def write(path: Path, found: Comparison, command: str) -> None:
    """Tables between the marks of a Markdown document, charts in a folder beside it that has its name. ValueError: it
    has no marks.
    """
    folder = path.with_suffix("")
    drawn = charts(found)
    images = [f"![{name}]({folder.name}/{name}.svg)" for name in drawn]
    part = "\n".join([f"    {command}", "", comparison.how(found, "####"), "", *images, "", comparison.tables(found)])
    document.write(path, part, MARK)
    folder.mkdir(exist_ok=True)
    for name, svg in drawn.items():
        (folder / f"{name}.svg").write_text(svg + "\n")


@contextmanager
def _progress(total: int, is_quiet: bool) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    # (called before each run, prints a line)
    if is_quiet:
        yield lambda _: None, lambda line: print(f"compare: {line}", file=sys.stderr)
        return
    from tqdm import tqdm  # of the extra `loadtest`

    with tqdm(total=total, leave=False, bar_format="{bar} {n}/{total} {desc} [{elapsed}<{remaining}]") as bar:

        def progress(what: str) -> None:
            bar.set_description_str(what)
            bar.update()

        yield progress, lambda line: tqdm.write(f"compare: {line}", file=sys.stderr)


def _list() -> None:
    for broker in brokers.KNOWN.values():
        print(f"{broker.name:20} {broker.shown}" + (f" (not installed: {broker.missing})" if broker.missing else ""))
    print()
    for scenario in SCENARIOS.values():
        print(f"{scenario.name:8} {scenario.title}: flood {scenario.flood}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare; the exit status."""
    given = parser().parse_args(arguments)
    if given.list:
        _list()
        return 0
    said = options.shown(sys.argv[1:] if arguments is None else arguments)
    command = shlex.join(["python", "-m", "loadtest.compare", *said])
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # brokers are stopped on the way out
    try:
        what = chosen(given)
        if given.write is not None:
            document.with_part(given.write.read_text(), MARK, "")  # not after minutes of measuring
        total = given.runs * sum(not s.needs & b.cannot for s in what.scenarios for b in what.brokers)
        with _progress(total, given.quiet) as (progress, tell):
            for line in what.out:
                tell(line)
            found = begun(what)
            try:
                measure(found, what, given, progress, tell)
            except KeyboardInterrupt:
                what.out.append("interrupted: not all runs were made")
        failures = [*what.out, *found.failures(), *comparison.failed(what.conditions, found)]
        _give(given, found, command, failures)
    except (flood.Wrong, ValueError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"compare: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if not any(cell.runs for row in found.rows.values() for cell in row.cells.values()):
        return 2
    return 1 if failures else 0


def _give(given: argparse.Namespace, found: Comparison, command: str, failures: Sequence[str]) -> None:
    is_on_stdout = given.json is not None and str(given.json) == "-"
    where = host.file_system(given.directory or Path(tempfile.gettempdir()))
    out = sys.stderr if is_on_stdout else sys.stdout
    print(f"{comparison.how(found)}\n\nDirectories are on {where}.\n\n{comparison.tables(found)}", file=out)
    for line in failures:
        print(f"failed: {line}", file=sys.stderr)
    if given.json is not None:
        text = json.dumps(
            {"ok": not failures, "failed": list(failures), "command": command, **found.values()}, indent=1
        )
        if is_on_stdout:
            print(text)
        else:
            given.json.write_text(text + "\n")
    if given.html is not None:
        given.html.write_text(page(found, command, failures))
    if given.write is not None:
        write(given.write, found, command)


if __name__ == "__main__":
    sys.exit(main())

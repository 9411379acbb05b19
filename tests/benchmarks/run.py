"""All measurements: micro-benchmarks, and this broker beside others.

    python -m tests.benchmarks.run                             everything; writes docs/benchmarks.md
    python -m tests.benchmarks.run --list                      the names of the scenarios
    python -m tests.benchmarks.run --rows pair0,connect        some of them; prints, and writes with --write
    python -m tests.benchmarks.run --rows pair0 --runs 1 --seconds 1      a short run
    python -m tests.benchmarks.run --micro                     only the micro-benchmarks

`make bench ARGS='--rows pair0'` does the same after compiling. The variants of a scenario are measured in turn, and
every figure is the median of its runs. Results are kept in build/benchmarks.json, scenario by scenario, so that a table
can be completed or corrected by measuring a part again; the written table has the date and commit of each part.

The comparison needs the ruler (--ruler, RULER, default ../shared/ruler): without it one line reports its omission. Two
more measurements decide constants and are not part of the table:

    python -m tests.benchmarks.sharing     the size from which a body is worth sharing (limits.share_large_bytes)
    python -m tests.benchmarks.wiring      links, memory and time to ready of 4, 16 and 64 workers, three ways

Nor are those of clusters and bridges:

    python -m tests.benchmarks.moving_sessions  how long a session takes to move between hosts
    python -m tests.benchmarks.far_hosts        what reaches a host that is far
    python -m tests.benchmarks.joining          how long a host takes to join a cluster that has much
    python -m tests.benchmarks.reconnecting     how fast clients come back, and how often that asks etcd
    python -m tests.benchmarks.bridging         what a bridge costs
    python -m tests.benchmarks.capacity         what 20 hosts need for 1, 10 and 100 million clients
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from loadtest.document import write
from loadtest.host import commit, machine
from tests.benchmarks import run_subscriptions
from tests.benchmarks.ruler import PEERS, ROOT, Figures, Ruler
from tests.benchmarks.scenarios import SCENARIOS, Scenario, Variant
from tests.benchmarks.tables import BEGIN, Result, document, figures_table, judged, targets_table

DOCUMENT = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "build" / "benchmarks.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure as the arguments ask."""
    options = _parser().parse_args(arguments)
    if options.list:
        for scenario in SCENARIOS:
            print(f"{scenario.name:15} {scenario.title}")
        return 0
    chosen = [scenario for scenario in SCENARIOS if not options.rows or scenario.name in options.rows]
    unknown = set(options.rows) - {scenario.name for scenario in chosen}
    if unknown:
        print(f"no such scenario: {', '.join(sorted(unknown))} (--list names them)", file=sys.stderr)
        return 2
    if options.micro or not options.rows:
        micro()
        if options.micro:
            return 0
    ruler = Ruler.at(Path(options.ruler))
    if ruler is None:
        print(f"no ruler at {options.ruler}: no comparison with other brokers (RULER=DIRECTORY says where it is)")
        return 0
    results = _kept_results()
    began = time.monotonic()
    for scenario in chosen:
        results[scenario.name] = result = _measured(ruler, scenario, options)
        _keep(results)
        print("\n".join(figures_table([scenario], {scenario.name: result})[2:]))
        for target in scenario.targets:
            j = judged(target, result)
            most = j.at_most if target.is_least else f"at most {j.at_most}"
            print(f"    {j.of} / {j.than or 'absolute'}: {j.reached}, {most}: {_verdict(j.met)}")
        print(f"    [{time.monotonic() - began:.0f} s]", flush=True)
    print("\n".join(["", *targets_table(chosen, results)]))
    if not options.rows or options.write:
        rest = [] if not arguments and len(sys.argv) == 1 else (arguments or sys.argv[1:])
        command = " ".join(["python -m tests.benchmarks.run", *rest])
        write(DOCUMENT, document(SCENARIOS, results, machine(), command), BEGIN)
        print(f"\nwritten to {DOCUMENT.relative_to(ROOT)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    default = os.environ.get("RULER", str(ROOT.parent / "shared" / "ruler"))
    add("--ruler", default=default, help="folder of the ruler (default: RULER or ../shared/ruler)")
    add("--rows", type=_names, default=[], help="scenarios to measure, by name (default: all)")
    add("--runs", type=int, default=5, help="runs of each variant (default: 5)")
    add("--seconds", type=float, default=2.5, help="measured in each run (default: 2.5)")
    add("--warmup", type=float, default=0.7, help="before that (default: 0.7)")
    every = [*PEERS, "mqttd"]
    add("--brokers", type=_names, default=every, help=f"which of {', '.join(every)} (default: all)")
    add("--write", action="store_true", help="write the document although only some scenarios are measured")
    add("--micro", action="store_true", help="only the micro-benchmarks")
    add("--list", action="store_true", help="name the scenarios and end")
    return parser


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _verdict(met: bool | None) -> str:
    return "not measured" if met is None else "met" if met else "MISSED"


def micro() -> None:
    """Measure decoding, matching and fan-out: inside one process, without sockets."""
    from tests.benchmarks import bench_codec, bench_fanout

    print("decoding, best of five")
    bench_codec.report(2_000_000)
    print("\nfan-out without sockets, ns per delivery, best of five")
    bench_fanout.report()
    print("\nmatching", flush=True)
    run_subscriptions.main()


def _measured(ruler: Ruler, scenario: Scenario, options: argparse.Namespace) -> Result:
    """Run one scenario, its variants in turn, and return its result."""
    variants = [v for v in scenario.variants if v.broker.split("/")[0] in options.brokers and _installed(ruler, v)]
    runs: dict[str, list[Figures]] = {variant.name: [] for variant in variants}
    times = min(options.runs, scenario.runs_max)
    for _ in range(times):
        for variant in variants:
            runs[variant.name].append(_once(ruler, scenario, variant, options))
    result = Result(time.strftime("%Y-%m-%d"), commit(), times)
    for name, figures in runs.items():
        good = [each for each in figures if each.get("ok") or "broker_us_per_msg" in each]
        result.medians[name], result.spreads[name] = ruler.medians(good)
        result.complaints[name] = ruler.complaint(figures)
    return result


def _once(ruler: Ruler, scenario: Scenario, variant: Variant, options: argparse.Namespace) -> Figures:
    try:
        if variant.measure is not None:
            return variant.measure(ruler)
        arguments = f"{scenario.arguments} {variant.extra}".strip()
        return ruler.mqload(variant.broker, arguments, options.seconds * scenario.seconds, options.warmup)
    except (OSError, RuntimeError) as error:  # the broker died: the table reports it, the other runs continue
        return {"ok": False, "why": f"{type(error).__name__}: {error}"[:300]}


def _installed(ruler: Ruler, variant: Variant) -> bool:
    if ruler.installed(variant.broker):
        return True
    print(f"{variant.name} is not installed: left out")
    return False


def _kept_results() -> dict[str, Result]:
    try:
        values = json.loads(RESULTS.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return {name: Result.of(each) for name, each in values.items()}


def _keep(results: dict[str, Result]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({name: dataclasses.asdict(each) for name, each in results.items()}, indent=1))


if __name__ == "__main__":
    raise SystemExit(main())

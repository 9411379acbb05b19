"""What a cluster of 20 hosts with 16 cores needs for 1, 10 and 100 million clients: the tables of docs/capacity.md.

    python -m tests.benchmarks.capacity                        measure and simulate everything; prints the tables
    python -m tests.benchmarks.capacity --only links,grid      a part of it (--list names them)
    python -m tests.benchmarks.capacity --derived              only the tables, from what was measured last
    python -m tests.benchmarks.capacity --write                and put them into docs/capacity.md

What is measured is kept in tests/benchmarks/capacity.json, part by part, with its machine, date and commit. The tables
are computed from it alone (`capacity_rows`), and a test holds docs/capacity.md to them. Each part runs in a process of
its own. All of it takes an hour on two cores, and 4 GB of memory; the largest part is `filters_20m`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

from loadtest.document import write
from loadtest.host import commit, machine
from tests.benchmarks import capacity_etcd, capacity_routers, owner_directory
from tests.benchmarks.capacity_rows import BEGIN, CORES, FLEETS, HOSTS, WORKERS, end_seconds, kept_figures, tables
from tests.benchmarks.owner_directory import DirectoryCosts, directory_owners
from tests.benchmarks.owner_simulation import Event, Fleet, Owners, World, etcd_owners, simulated
from tests.benchmarks.ruler import ROOT

__all__ = ["DOCUMENT", "KEPT", "PARTS", "main"]

DOCUMENT: Final = ROOT / "docs" / "capacity.md"
KEPT: Final = Path(__file__).with_name("capacity.json")
_SIMULATED: Final = 200_000
"""Clients of a simulation; each stands for as many as there are more."""
_BYTE_SECONDS: Final = 1 / 1.25e9
"""A network of 10 Gbit/s: an assumption."""
_PARTED: Final = 300_000
_OF_A_LEASE: Final = 10_000
_DEATH_SECONDS: Final = 60.0
"""Time over which the clients of a dead host come to the others: an assumption."""

Figures = dict[str, Any]


def _links() -> Figures:
    """Return for hosts of so many workers: the most links of a worker, and how many (worker, other host) have no
    place.
    """
    figures: Figures = {}
    for own in CORES:
        for other in CORES:
            links, missing = capacity_routers.places(own, [other] * (HOSTS - 1))
            figures[f"{own}_with_{other}"] = {"links": max(links), "missing": missing, "all": sum(links)}
    return figures


def _snapshot() -> Figures:
    figures: Figures = {**capacity_routers.snapshot_of_table(1_000_000)}
    return figures | {"delta_1": capacity_routers.delta(1), "delta_1000": capacity_routers.delta(1000)}


def _etcd() -> Figures:
    figures: Figures = {**capacity_etcd.records(1_000_000), "host_record": capacity_etcd.host_record_bytes()}
    return figures


def _ends() -> Figures:
    return {
        **capacity_etcd.endings((10_000, 100_000), 3),
        **capacity_etcd.endings((300_000, 1_000_000), 1),
        "in_parts": capacity_etcd.endings((_PARTED,), 1, _PARTED // _OF_A_LEASE) | {"of_a_lease": _OF_A_LEASE},
    }


def _scatter_pace() -> Figures:
    """Return for a million clients that all go to any host within so many seconds how many are unproven, with etcd."""
    figures: Figures = {}
    for seconds in (10, 20, 30, 40):
        outcome = simulated(Fleet(FLEETS[0], HOSTS, 20, float(seconds)), Event.SCATTER, etcd_owners())
        figures[str(seconds)] = {"unproven": outcome.unproven, "transactions": outcome.transactions}
    return figures


def _simulation() -> Figures:
    """Simulate every event at every size in both ways."""
    kept = kept_figures(KEPT)
    costs = kept["directory"]
    ends = kept["etcd_ends"]
    directory = directory_owners(
        DirectoryCosts(costs["entry_us"] / 1e6 / WORKERS, costs["scan_us"] / 1e6 / WORKERS, _BYTE_SECONDS)
    )
    parts = ends["in_parts"]
    of_a_lease = int(parts["of_a_lease"])
    each = parts[f"seconds_{_PARTED}"] / _PARTED
    ways: dict[str, Callable[[World], Owners]] = {
        "etcd, small leases": etcd_owners(end_seconds=lambda keys: keys * each, of_a_lease=of_a_lease),
        "etcd": etcd_owners(end_seconds=lambda keys: end_seconds(ends, keys)),
        "directory": directory,
    }
    figures: Figures = {}
    for clients in FLEETS:
        for event in Event:
            seconds = _DEATH_SECONDS if event is Event.DEATH else 10.0
            fleet = Fleet(clients, HOSTS, clients // _SIMULATED, seconds)
            for name, owners in ways.items():
                outcome = vars(simulated(fleet, event, owners))
                del outcome["by_second"]
                figures[f"{event.name.lower()}_{clients}_{name}"] = outcome
                print(event.name, clients, name, outcome, flush=True)
    return figures


PARTS: Final[dict[str, Callable[[], Figures]]] = {
    "links": _links,
    "filters_1m": lambda: dict(capacity_routers.remote_interest(1_000_000, 0, 1)),
    "filters_20m": lambda: dict(capacity_routers.remote_interest(20_000_000, WORKERS - 1, HOSTS - 1)),
    "snapshot": _snapshot,
    "idle_link": lambda: dict(capacity_routers.idle_link(600)),
    "grid": lambda: dict(capacity_routers.grid(HOSTS, WORKERS, 20_000, 20_000)),
    "sessions": lambda: dict(capacity_routers.sessions(200_000)),
    "retained": lambda: dict(capacity_routers.retained(10_000_000, 100)),
    "on_disk": lambda: dict(capacity_routers.on_disk_bytes(20_000)),
    "etcd": _etcd,
    "etcd_storm": lambda: dict(capacity_etcd.storms(100_000, HOSTS)),
    "etcd_ends": _ends,
    "directory": lambda: dict(owner_directory.measured(1_000_000, HOSTS)),
    "simulation": _simulation,
    "scatter_pace": _scatter_pace,
}


def _run(name: str) -> Figures:
    return PARTS[name]()


def _measure(names: Sequence[str]) -> None:
    spawn = multiprocessing.get_context("spawn")
    for name in names:
        began, (load, _, _) = time.monotonic(), os.getloadavg()
        with ProcessPoolExecutor(1, spawn) as process:
            figures = process.submit(_run, name).result()
        kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
        kept[name] = {
            "date": time.strftime("%Y-%m-%d"),
            "commit": commit(),
            "machine": machine(),
            "load": round(load, 1),
            "figures": figures,
        }
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
        print(f"{name}: {figures} [{time.monotonic() - began:.0f} s]", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure as the arguments ask, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="parts to measure, by name (default: all)")
    parser.add_argument("--list", action="store_true", help="name the parts and end")
    parser.add_argument("--derived", action="store_true", help="measure nothing")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/capacity.md")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(PARTS))
        return 0
    names = [] if options.derived else [name for name in options.only.split(",") if name]
    unknown = set(names) - set(PARTS)
    if unknown:
        print(f"no such part: {', '.join(sorted(unknown))} (--list names them)", file=sys.stderr)
        return 2
    _measure(names)
    kept = json.loads(KEPT.read_text())
    missing = set(PARTS) - set(kept)
    if missing:
        print(f"not measured yet: {', '.join(sorted(missing))}: no tables", file=sys.stderr)
        return 1
    print(tables(kept))
    if options.write:
        write(DOCUMENT, tables(kept), BEGIN)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

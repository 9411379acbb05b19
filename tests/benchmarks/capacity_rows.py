"""The tables of docs/capacity.md, from what `tests.benchmarks.capacity` has kept. Nothing is measured here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from broker.cluster.contract import OPERATIONS_MAX
from broker.cluster.ownership import TRANSACTIONS_PER_SECOND_MAX
from broker.config.limits import Limits
from tests.benchmarks.owner_simulation import LEASE_SECONDS, Event

__all__ = ["BEGIN", "CORES", "FLEETS", "HOSTS", "WORKERS", "Figures", "end_seconds", "kept_figures", "tables"]

BEGIN: Final = "<!-- measured: python -m tests.benchmarks.capacity -->"
HOSTS: Final = 20
CORES: Final = (8, 16, 64)
"""Of a host; a worker for each."""
WORKERS: Final = CORES[1]
"""Of each of the hosts, unless it is said."""
FLEETS: Final = (1_000_000, 10_000_000, 100_000_000)
RETAINED: Final = 10_000_000

IDLE_BYTES: Final = 1_172
"""Memory of an idle connection with its session, real sockets: docs/benchmarks.md, "memory per idle connection"."""
KERNEL_BYTES: Final = 7_575 / 2
"""Of the kernel for it: half of both ends, docs/benchmarks.md, "kernel memory per connection"."""
CONNECT_US: Final = 62.2
"""CPU of CONNECT, CONNACK and DISCONNECT with two workers: docs/benchmarks.md."""
QUOTA_BYTES: Final = 2e9
"""Of etcd's database, by default; 8e9 is the most that etcd's documentation suggests."""

Figures = Mapping[str, Any]
Kept = Mapping[str, Figures]


class FleetRow(NamedTuple):
    """A line: values for the three fleets, how they were found, and from what."""

    what: str
    values: tuple[str, ...]
    kind: str
    source: str


def kept_figures(path: Path) -> dict[str, Figures]:
    """Return the figures of each part."""
    return {name: part["figures"] for name, part in json.loads(path.read_text()).items()}


# ---------------------------------------------------------------- numbers as they are read


def _size(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:,.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.3g} {unit}"
        size /= 1000
    raise AssertionError(size)


def _count(number: float) -> str:
    return f"{number:,.0f}"


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"


def _row(what: str, of: Callable[[int], str], kind: str, source: str) -> FleetRow:
    return FleetRow(what, tuple(of(clients) for clients in FLEETS), kind, source)


def end_seconds(ends: Figures, keys: float) -> float:
    """Return for how long etcd does nothing else when a lease with so many keys ends: between the numbers that were
    measured in proportion, and beyond them as for each key of the largest.
    """
    known = sorted((int(name.rpartition("_")[2]), value) for name, value in ends.items() if name.startswith("writes"))
    below = (0, 0.0)
    for above in known:
        if keys <= above[0]:
            return float(below[1] + (above[1] - below[1]) * (keys - below[0]) / (above[0] - below[0]))
        below = above
    return float(below[1] * keys / below[0])


# ---------------------------------------------------------------- the rows


def clients(kept: Kept) -> list[FleetRow]:
    """Return what clients and their sessions need of a host."""
    session, disk = kept["sessions"]["memory"], kept["on_disk"]
    at_rest = disk["session"] + disk["subscription"]
    most = Limits().sessions_max
    cores = HOSTS * WORKERS
    return [
        _row("clients of a host", lambda n: _count(n / HOSTS), "derived", "clients / 20"),
        _row("clients of a worker", lambda n: _count(n / cores), "derived", "clients / 320"),
        _row(
            "memory of a host, all connected and idle",
            lambda n: _size(n / HOSTS * IDLE_BYTES),
            "derived",
            f"{IDLE_BYTES:,} B each, measured with sockets ([benchmarks](benchmarks.md))",
        ),
        _row(
            "memory of its kernel for these",
            lambda n: _size(n / HOSTS * KERNEL_BYTES),
            "derived",
            f"{KERNEL_BYTES:,.0f} B each, half of both ends ([benchmarks](benchmarks.md))",
        ),
        _row(
            "memory of a host, sessions without connection",
            lambda n: _size(n / HOSTS * session),
            "derived",
            f"{session:,.0f} B each with a filter, measured (`sessions`)",
        ),
        _row(
            "disk of a host, sessions and subscriptions",
            lambda n: _size(n / HOSTS * at_rest),
            "derived",
            f"{disk['session']:.1f} B and {disk['subscription']:.1f} B at rest, measured (`on_disk`)",
        ),
        _row(
            "fits `limits.sessions_max` as it is by default",
            lambda n: "yes" if n / HOSTS <= most else f"no: set it to {_count(n / HOSTS)}",
            "derived",
            f"{most:,} for a host",
        ),
        _row(
            "all clients reconnect: CPU of all hosts",
            lambda n: _time(n * CONNECT_US / 1e6 / cores),
            "derived",
            f"{CONNECT_US} us each ([benchmarks](benchmarks.md)), 320 cores that do nothing else",
        ),
    ]


def filters(kept: Kept) -> list[FleetRow]:
    """Return what is known of other hosts' filters, if each client has one exact filter of its own."""
    one, many, snapshot, grid = (kept[name] for name in ("filters_1m", "filters_20m", "snapshot", "grid"))
    each, take = many["memory"], many["take_us"]
    others = (HOSTS - 1) / HOSTS
    return [
        _row(
            "filters in the table of every worker",
            _count,
            "simulated",
            f"{grid['routers']:.0f} real routers, {grid['clients']:,.0f} filters: each router has all of them (`grid`)",
        ),
        _row(
            "memory of a worker for them",
            lambda n: _size(n * each),
            "derived",
            f"{each:.0f} B each, measured with 20,000,000 of 15 siblings and 19 hosts (`filters_20m`); "
            f"{one['memory']:.0f} B with 1,000,000 of one host",
        ),
        _row(
            "memory of a host for them",
            lambda n: _size(n * each * WORKERS),
            "derived",
            "16 workers, each its own table",
        ),
        _row(
            "a host joins: it is sent",
            lambda n: _size(n * others * snapshot["bytes"] * WORKERS),
            "derived",
            f"{snapshot['bytes']:.0f} B for each filter of 30 B, measured (`snapshot`), to each of 16 workers",
        ),
        _row(
            "a host joins: CPU of each of its workers",
            lambda n: _time(n * others * take / 1e6),
            "derived",
            f"{take:.1f} us for each filter, measured (`filters_20m`)",
        ),
        _row(
            "a host joins: CPU of each worker of the others",
            lambda n: _time(n / HOSTS * snapshot["us"] / 1e6),
            "derived",
            f"{snapshot['us']:.1f} us for each filter of its host, measured (`snapshot`)",
        ),
        _row(
            "a client subscribes: bytes on all links",
            lambda _: _size(grid["told_bytes_per_filter"]),
            "simulated",
            f"a delta of {snapshot['delta_1']} B to 15 siblings, and to 19 hosts from each of 16 workers (`grid`)",
        ),
    ]


def in_etcd(kept: Kept) -> list[FleetRow]:
    """Return what is in etcd and what is written to it."""
    etcd, ends = kept["etcd"], kept["etcd_ends"]
    size, memory = etcd["database_as_written"], etcd["memory"]
    claims = etcd["claims_per_second"]

    def quota(n: int) -> str:
        needs = n * size
        if needs <= QUOTA_BYTES:
            return "yes"
        return "no: 8 GB does" if needs <= 4 * QUOTA_BYTES else "no, nor into 8 GB"

    def ended(n: int) -> str:
        seconds = end_seconds(ends, n / HOSTS)
        return _time(seconds) + (": all leases end" if seconds > LEASE_SECONDS else "")

    return [
        _row(
            "keys",
            lambda n: f"{n + 2 * HOSTS:,}",
            "derived",
            "one for each session, two for each host; none for a subscription, a retained message, a connection",
        ),
        _row(
            "database",
            lambda n: _size(n * size),
            "derived",
            f"{size:.0f} B for each session, measured with {etcd['sessions']:,} (`etcd`); the goal is 200 B",
        ),
        _row("it fits into etcd's quota (2 GB by default)", quota, "derived", "the row above"),
        _row(
            "memory of each etcd",
            lambda n: _size(n * memory),
            "derived",
            f"{memory:,.0f} B for each session, measured (`etcd`)",
        ),
        _row(
            "known clients return to their host: transactions",
            lambda _: "0",
            "measured",
            "`tests/cluster/test_owners.py`",
        ),
        _row(
            "all clients are new: transactions",
            lambda n: _count(n / OPERATIONS_MAX),
            "derived",
            f"{OPERATIONS_MAX} in each",
        ),
        _row(
            "these, at the pace of the hosts",
            lambda n: _time(n / OPERATIONS_MAX / TRANSACTIONS_PER_SECOND_MAX),
            "derived",
            f"{TRANSACTIONS_PER_SECOND_MAX} transactions/s of all hosts",
        ),
        _row(
            "these, at the pace of an etcd like this one",
            lambda n: _time(n / claims),
            "derived",
            f"{claims:,.0f} claims/s in {etcd['transactions_per_second']:.0f} transactions/s, measured (`etcd`)",
        ),
        _row("a host's lease ends: keys that etcd deletes", lambda n: _count(n / HOSTS), "derived", "clients / 20"),
        _row(
            "meanwhile etcd renews no lease and writes nothing for",
            ended,
            "derived",
            f"measured up to 1,000,000 keys (`etcd_ends`); a lease is {LEASE_SECONDS:.0f} s",
        ),
    ]


def directory(kept: Kept) -> list[FleetRow]:
    """Return what a directory on the hosts would need."""
    each, etcd = kept["directory"], kept["etcd"]
    return [
        _row(
            "records of hosts in etcd",
            lambda _: _size(HOSTS * etcd["host_record"]),
            "derived",
            f"{etcd['host_record']} B each, measured; nothing else is in etcd",
        ),
        _row("entries of a registrar", lambda n: _count(n / HOSTS), "derived", "clients / 20"),
        _row(
            "memory of a host for them",
            lambda n: _size(n / HOSTS * each["memory"]),
            "derived",
            f"{each['memory']:.0f} B for an entry in a dict of Python, measured (`directory`)",
        ),
        _row(
            "membership changes: a host computes registrars for",
            lambda n: _time(n / HOSTS * each["scan_us"] / 1e6 / WORKERS),
            "derived",
            f"{each['scan_us']:.1f} us for each of its sessions, measured, on 16 cores",
        ),
    ]


def simulated_rows(kept: Kept) -> list[str]:
    """Return the table of what happens to the fleet, in both ways."""
    lines = [
        "| what happens | clients | owners in | asked | unproven | doubled | etcd transactions | most in a second | "
        "messages between hosts | bytes | longest answer | settled after |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for event in Event:
        for fleet in FLEETS:
            for way in ("etcd", "directory"):
                of = kept["simulation"][f"{event.name.lower()}_{fleet}_{way}"]
                cells = [
                    event.value,
                    _count(fleet),
                    way,
                    *(
                        _count(of[name])
                        for name in (
                            "asked",
                            "unproven",
                            "doubled",
                            "transactions",
                            "most_transactions_in_a_second",
                            "messages",
                        )
                    ),
                    _size(of["bytes"]),
                    _time(of["longest_wait"]),
                    _time(of["settled"]),
                ]
                lines.append("| " + " | ".join(cells) + " |")
    return lines


def link_rows(kept: Kept) -> list[str]:
    """Return the table of links."""
    lines = [
        "| a host of | with 19 hosts of | links of a worker | links of the host | it fits |",
        "|---|---|---:|---:|---|",
    ]
    for own in CORES:
        for other in CORES:
            of = kept["links"][f"{own}_with_{other}"]
            fits = "yes" if not of["missing"] else f"**no**: {of['missing']:,} of {own * (HOSTS - 1):,} are missing"
            lines.append(f"| {own} workers | {other} workers | {of['links']} | {of['all']:,} | {fits} |")
    return lines


def item_rows(kept: Kept) -> list[str]:
    """Return the table of what does not depend on the number of clients."""
    one, many, snapshot, grid = (kept[name] for name in ("filters_1m", "filters_20m", "snapshot", "grid"))
    retained, disk, etcd, storm = (kept[name] for name in ("retained", "on_disk", "etcd", "etcd_storm"))
    held, stored = retained["memory"], disk["retained"] + retained["payload"]
    rows = [
        (
            "1,000,000 exact filters of another host: memory of each",
            f"{one['memory']:.0f} B",
            "measured",
            "`filters_1m`",
        ),
        (
            "20,000,000 exact filters in a worker: memory",
            _size(many["filters"] * many["memory"]),
            "measured",
            "`filters_20m`, 34 peers",
        ),
        (
            "a topic is matched among 1,000,000 filters of another host",
            f"{one['match_ns']:.0f} ns",
            "measured",
            f"`filters_1m`; {one['none_ns']:.0f} ns if none matches",
        ),
        (
            "... among 20,000,000",
            f"{many['match_ns']:.0f} ns",
            "measured",
            f"`filters_20m`; {many['none_ns']:.0f} ns if none",
        ),
        (
            "snapshot of 1,000,000 filters: bytes",
            _size(snapshot["filters"] * snapshot["bytes"]),
            "measured",
            "`snapshot`",
        ),
        ("... CPU to make it, in pieces", _time(snapshot["filters"] * snapshot["us"] / 1e6), "measured", "`snapshot`"),
        ("... CPU to take it, in pieces", _time(1e6 * one["take_us"] / 1e6), "measured", "`filters_1m`"),
        (
            "delta of one filter, of 1,000",
            f"{snapshot['delta_1']} B, {snapshot['delta_1000']:,} B",
            "measured",
            "`snapshot`",
        ),
        (
            f"a message of {grid['payload']:.0f} B to one subscriber: crosses to another host",
            f"{grid['between_hosts']:.3f} times",
            "simulated",
            "`grid`; 19 / 20 of the subscribers are on other hosts",
        ),
        ("... crosses inside of a host", f"{grid['inside']:.3f} times", "simulated", "`grid`"),
        (
            "... bytes in the batch between hosts",
            f"{grid['bytes_between_hosts']:.0f} B",
            "simulated",
            "`grid`; without the head of the batch",
        ),
        (
            f"10,000,000 retained messages of {retained['payload']} B: memory of every host",
            _size(RETAINED * held),
            "measured",
            f"`retained`; {held:.0f} B each",
        ),
        (
            "... memory of each of its 16 workers",
            _size(RETAINED * held / WORKERS),
            "derived",
            "each topic has one owner on a host",
        ),
        (
            "... disk of every host",
            _size(RETAINED * stored),
            "derived",
            f"{disk['retained']:.1f} B beside the payload, measured (`on_disk`)",
        ),
        (
            "... a host joins: it is sent",
            _size(RETAINED * (HOSTS - 1) * disk["retained_plain"]),
            "derived",
            f"by each of 19 hosts, {disk['retained_plain']:.0f} B and the payload; below: the payload is not counted",
        ),
        (
            "a session in etcd: key and value",
            f"{etcd['key_and_value']} B",
            "measured",
            "client id of 23 B, node id of 7 B",
        ),
        (
            "... in the database, as written, and compacted",
            f"{etcd['database_as_written']:.0f} B, {etcd['database_tidied']:.0f} B",
            "measured",
            "`etcd`; the goal is 200 B",
        ),
        ("a subscription in etcd", "0 B", "measured", "`tests/cluster/test_owners.py` lists the keys"),
        (
            f"{storm['clients']:,} new clients connect at once: transactions",
            _count(storm["new_transactions"]),
            "measured",
            "`etcd_storm`, 20 hosts",
        ),
        ("... in one second at most", _count(storm["new_most_in_a_second"]), "measured", "the goal is below 1,000"),
        (
            f"{storm['clients']:,} clients move to another host at once: transactions",
            _count(storm["moved_transactions"]),
            "measured",
            "`etcd_storm`",
        ),
        ("... in one second at most", _count(storm["moved_most_in_a_second"]), "measured", "the goal is below 1,000"),
    ]
    return ["| | | | from |", "|---|---:|---|---|", *("| " + " | ".join(row) + " |" for row in rows)]


# ---------------------------------------------------------------- the document


def fleet_table(rows: Iterable[FleetRow]) -> list[str]:
    """Return rows as a table."""
    heads = " | ".join(f"{clients // 1_000_000} million" for clients in FLEETS)
    lines = [f"| | {heads} | | from |", "|---|---:|---:|---:|---|---|"]
    return lines + [f"| {row.what} | {' | '.join(row.values)} | {row.kind} | {row.source} |" for row in rows]


def conditions(parts: Kept) -> list[str]:
    """Return when and where each part was measured."""
    by: dict[tuple[str, str, str], list[str]] = {}
    for name, part in parts.items():
        by.setdefault((part["date"], part["commit"], part["machine"]), []).append(name)
    return [
        f"- {date}, commit {commit}, {machine}: {', '.join(names)}" for (date, commit, machine), names in by.items()
    ]


def tables(parts: Kept) -> str:
    """Return the text between the marks. parts: as they are kept."""
    kept = {name: part["figures"] for name, part in parts.items()}
    sections = [
        ("Conditions", conditions(parts)),
        ("Each item", item_rows(kept)),
        ("Links", link_rows(kept)),
        ("Clients and sessions", fleet_table(clients(kept))),
        ("Filters", fleet_table(filters(kept))),
        ("etcd", fleet_table(in_etcd(kept))),
        ("A directory on the hosts", fleet_table(directory(kept))),
        ("When very many clients connect", simulated_rows(kept)),
    ]
    return "\n\n".join(f"### {title}\n\n" + "\n".join(lines) for title, lines in sections)

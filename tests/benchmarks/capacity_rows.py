"""The tables of docs/capacity.md, from what `tests.benchmarks.capacity` has kept. Nothing is measured here."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from broker.cluster.contract import OPERATIONS_MAX
from broker.cluster.etcd import CALL_SECONDS
from broker.cluster.ownership import TRANSACTIONS_PER_SECOND_MAX
from broker.config.limits import Limits
from broker.worker import retained_exchange
from tests.benchmarks.owner_simulation import LEASE_SECONDS, Event

__all__ = [
    "BEGIN",
    "CORES",
    "FLEETS",
    "HOSTS",
    "KEYS_OF_A_HOST",
    "WORKERS",
    "Figures",
    "end_seconds",
    "kept_figures",
    "tables",
]

BEGIN: Final = "<!-- measured: python -m tests.benchmarks.capacity -->"
HOSTS: Final = 20
CORES: Final = (8, 16, 64)
"""Of a host; a worker for each."""
WORKERS: Final = CORES[1]
"""Of each of the hosts, unless it is said."""
FLEETS: Final = (1_000_000, 10_000_000, 100_000_000)
RETAINED: Final = 10_000_000

KEYS_OF_A_HOST: Final = 3
OFFERED_PER_SECOND: Final = retained_exchange._PAGE / retained_exchange._PAUSE_SECONDS
"""Retained messages that a worker sends over a rail to a host that joins, at most."""
IDLE_BYTES: Final = 1_172
"""Memory of an idle connection with its session, real sockets: docs/benchmarks.md, "memory per idle connection"."""
KERNEL_BYTES: Final = 7_575 / 2
"""Of the kernel for it: half of both ends, docs/benchmarks.md, "kernel memory per connection"."""
CONNECT_US: Final = 62.2
"""CPU of CONNECT, CONNACK and DISCONNECT with two workers: docs/benchmarks.md."""
WAYS: Final = ("etcd", "etcd, small leases", "directory")
"""Of the simulation, by name. The second one differs where leases end."""
_LEASES_END: Final = (Event.DEATH, Event.PARTITION)
QUOTA_BYTES: Final = 2 << 30
"""Of etcd's database, by default; four times as much is the most that etcd's documentation suggests."""

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


def _round(number: float) -> str:
    """Return a number with two digits that count."""
    digits = 10 ** max(0, len(str(int(number))) - 2)
    return f"{number // digits * digits:,.0f}"


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


def keys_within(ends: Figures, seconds: float) -> int:
    """Return the most keys of a lease whose end takes etcd so long, by `end_seconds`."""
    keys = bisect_right(range(1_000_000_000), seconds, key=lambda each: end_seconds(ends, each))
    return keys - 1


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
            f"{disk['session']:.1f} B and {disk['subscription']:.1f} B at rest, ids that count up, measured; "
            f"{disk['session_plain']:.0f} B and {disk['subscription_plain']:.0f} B of keys and values",
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
        return "no: into 8 GiB" if needs <= 4 * QUOTA_BYTES else "no, nor into 8 GiB"

    def ended(n: int) -> str:
        seconds = end_seconds(ends, n / HOSTS)
        return _time(seconds) + (": all leases end" if seconds > LEASE_SECONDS else "")

    return [
        _row(
            "keys",
            lambda n: f"{n + KEYS_OF_A_HOST * HOSTS:,}",
            "derived",
            "one for each session, three for each host (its record, its number, its installation)",
        ),
        _row(
            "database",
            lambda n: _size(n * size),
            "derived",
            f"{size:.0f} B for each session, measured with {etcd['sessions']:,} (`etcd`); the goal is 200 B",
        ),
        _row("it fits into etcd's quota, 2 GiB by default", quota, "derived", "the row above"),
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
            for way in WAYS if event in _LEASES_END else (WAYS[0], WAYS[2]):
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
    """Return the table of links: measured, but for the memory, which is derived."""
    each = kept["filters_20m"]["memory"]
    lines = [
        "| a host of | with 19 hosts of | links of a worker | links of the host | it fits | memory of the host "
        "for filters, 1 million clients (derived) |",
        "|---|---|---:|---:|---|---:|",
    ]
    for own in CORES:
        for other in CORES:
            of = kept["links"][f"{own}_with_{other}"]
            fits = (
                "yes"
                if not of["missing"]
                else f"**no**: {of['missing']:,} of {own * (HOSTS - 1):,} (worker, host) have no place"
            )
            memory = _size(own * FLEETS[0] * each)
            lines.append(f"| {own} workers | {other} workers | {of['links']} | {of['all']:,} | {fits} | {memory} |")
    return lines


class ItemRow(NamedTuple):
    """A line that does not depend on the number of clients."""

    what: str
    value: str
    kind: str
    source: str


def filter_items(kept: Kept) -> list[ItemRow]:
    """Return what a filter of another host costs, and a message for it."""
    one, many, snapshot, grid = (kept[name] for name in ("filters_1m", "filters_20m", "snapshot", "grid"))
    whole = snapshot["filters"]
    link = kept["idle_link"]
    return [
        ItemRow("1,000,000 exact filters of another host: memory", _size(whole * one["memory"]), "measured",
                f"`filters_1m`: {one['memory']:.0f} B each, in every worker"),
        ItemRow("20,000,000 exact filters in a worker: memory", _size(many["filters"] * many["memory"]), "measured",
                f"`filters_20m`: {many['memory']:.0f} B each, of {many['peers']:.0f} peers"),
        ItemRow("a topic is matched among 1,000,000 of another host", f"{one['match_ns']:.0f} ns", "measured",
                f"`filters_1m`; {one['none_ns']:.0f} ns if none matches"),
        ItemRow("... among 20,000,000", f"{many['match_ns']:.0f} ns", "measured",
                f"`filters_20m`; {many['none_ns']:.0f} ns if none matches"),
        ItemRow("snapshot of 1,000,000 filters", _size(whole * snapshot["bytes"]), "measured",
                f"`snapshot`: {snapshot['bytes']:.0f} B for a filter of 30 B"),
        ItemRow("... CPU to make it, in pieces", _time(whole * snapshot["us"] / 1e6), "measured", "`snapshot`"),
        ItemRow("... CPU to take it, in pieces", _time(whole * one["take_us"] / 1e6), "measured", "`filters_1m`"),
        ItemRow("delta of one filter", f"{snapshot['delta_1']} B", "measured", "`snapshot`"),
        ItemRow("... of 1,000", f"{snapshot['delta_1000']:,} B", "measured", "`snapshot`"),
        ItemRow("a message to one subscriber: crosses to another host", f"{grid['between_hosts']:.3f} times",
                "simulated", "`grid`; 19 / 20 of the subscribers are on another host"),
        ItemRow("... crosses inside of a host", f"{grid['inside']:.3f} times", "simulated", "`grid`"),
        ItemRow(f"... bytes in the batch, payload of {grid['payload']:.0f} B", f"{grid['bytes_between_hosts']:.0f} B",
                "simulated", "`grid`; without the head of the batch"),
        ItemRow("an idle link between hosts", f"{link['messages']:.1f} messages/s, {link['bytes']:.0f} B/s", "measured",
                "`idle_link`; both ways together, without TCP"),
    ]  # fmt: skip


def retained_items(kept: Kept) -> list[ItemRow]:
    """Return what ten million retained messages cost."""
    retained, disk, grid = kept["retained"], kept["on_disk"], kept["grid"]
    held, stored = retained["memory"], disk["retained"] + retained["payload"]
    kind = "measured" if retained["messages"] == RETAINED else "derived"
    return [
        ItemRow(f"10,000,000 retained messages of {retained['payload']} B: memory of every host",
                _size(RETAINED * held), kind, f"`retained`: {held:.0f} B each, with {retained['messages']:,}"),
        ItemRow("... of each of its 16 workers", _size(RETAINED * held / WORKERS), "derived",
                "each topic has one owner on a host"),
        ItemRow("... disk of every host", _size(RETAINED * stored), "derived",
                f"{disk['retained']:.1f} B beside the payload, measured (`on_disk`)"),
        ItemRow("... a host joins: it is sent", _size(RETAINED * (HOSTS - 1) * grid["bytes_between_hosts"]), "derived",
                f"all of them by each of 19 hosts, {grid['bytes_between_hosts']:.0f} B each (`grid`)"),
        ItemRow("... for at least", _time(RETAINED / WORKERS / OFFERED_PER_SECOND), "derived",
                f"{OFFERED_PER_SECOND:,.0f}/s over a rail (`broker/worker/retained_exchange.py`), 16 rails of a host"),
    ]  # fmt: skip


def etcd_items(kept: Kept) -> list[ItemRow]:
    """Return what a session costs etcd, a storm, and the end of a host."""
    etcd, storm, ends = kept["etcd"], kept["etcd_storm"], kept["etcd_ends"]
    parts, each = ends["in_parts"], etcd["database_as_written"]
    rows = [
        ItemRow("a session in etcd: key and value", f"{etcd['key_and_value']} B", "measured",
                "client id of 23 B, node id of 7 B"),
        ItemRow("... in the database", f"{etcd['database_as_written']:.0f} B", "measured",
                f"`etcd`; {etcd['database_tidied']:.0f} B after a compaction; the goal is 200 B"),
        ItemRow("a subscription in etcd", "0 B", "measured", "`tests/benchmarks/test_capacity.py` lists all keys"),
    ]  # fmt: skip
    for what, name in (("new clients connect", "new"), ("clients move to another host", "moved")):
        rows += [
            ItemRow(f"{storm['clients']:,} {what} at once: transactions", _count(storm[f"{name}_transactions"]),
                    "measured", f"`etcd_storm`, {storm['hosts']} hosts, {storm[f'{name}_seconds']:.0f} s"),
            ItemRow("... in one second at most", _count(storm[f"{name}_most_in_a_second"]), "measured",
                    "the goal is below 1,000"),
        ]  # fmt: skip
    for count in (10_000, 100_000, 300_000, 1_000_000):
        ended = "; the lease of a host that goes on has ended, too" if ends[f"others_ended_{count}"] else ""
        rows.append(
            ItemRow(f"the lease of a host with {count:,} sessions ends: etcd does nothing else for",
                    _time(ends[f"writes_wait_{count}"]), "measured", f"`etcd_ends`{ended}")
        )  # fmt: skip
    [(name, value)] = [each for each in parts.items() if each[0].startswith("writes_wait")]
    rows.append(
        ItemRow(f"... {int(name.rpartition('_')[2]):,}, {parts['of_a_lease']:,} to a lease (not built)", _time(value),
                "measured", "`etcd_ends`, in_parts")
    )  # fmt: skip
    for what, seconds in (("a call of the broker", CALL_SECONDS), ("a lease", LEASE_SECONDS)):
        rows.append(
            ItemRow(f"... as long as {what} has time, {seconds:.0f} s: sessions of the host",
                    _round(keys_within(ends, seconds)), "derived", "between the lines above in proportion")
        )  # fmt: skip
    for times in (1, 4):
        rows.append(
            ItemRow(f"sessions that fit into {2 * times} GiB of etcd", _round(times * QUOTA_BYTES / each), "derived",
                    f"{each:.0f} B each")
        )  # fmt: skip
    return rows


def pace_items(kept: Kept) -> list[ItemRow]:
    """Return how fast clients may all go to other hosts."""
    return [
        ItemRow(f"1,000,000 clients all go to any host within {seconds} s: served unproven", _count(of["unproven"]),
                "simulated", f"`scatter_pace`, {of['transactions']:,} transactions, {TRANSACTIONS_PER_SECOND_MAX}/s")
        for seconds, of in kept["scatter_pace"].items()
    ]  # fmt: skip


def item_table(kept: Kept) -> list[str]:
    """Return the table of what does not depend on the number of clients."""
    rows = [*filter_items(kept), *retained_items(kept), *etcd_items(kept), *pace_items(kept)]
    return ["| | | | from |", "|---|---:|---|---|", *("| " + " | ".join(row) + " |" for row in rows)]


# ---------------------------------------------------------------- the document


def fleet_table(rows: Iterable[FleetRow]) -> list[str]:
    """Return rows as a table."""
    heads = " | ".join(f"{clients // 1_000_000} million" for clients in FLEETS)
    lines = [f"| | {heads} | | from |", "|---|---:|---:|---:|---|---|"]
    return lines + [f"| {row.what} | {' | '.join(row.values)} | {row.kind} | {row.source} |" for row in rows]


def conditions(parts: Kept) -> list[str]:
    """Return when and where each part was measured, and how busy the machine was at its beginning."""
    by: dict[tuple[str, str, str], list[str]] = {}
    for name, part in parts.items():
        by.setdefault((part["date"], part["commit"], part["machine"]), []).append(f"{name} ({part['load']})")
    return [
        "In parentheses the processes that wanted to run when the part began (load, of a minute).",
        "",
        *(f"- {date}, commit {commit}, {machine}: {', '.join(names)}" for (date, commit, machine), names in by.items()),
    ]


def tables(parts: Kept) -> str:
    """Return the text between the marks. parts: as they are kept."""
    kept = {name: part["figures"] for name, part in parts.items()}
    sections = [
        ("Conditions", conditions(parts)),
        ("Each item", item_table(kept)),
        ("Links", link_rows(kept)),
        ("Clients and sessions", fleet_table(clients(kept))),
        ("Filters", fleet_table(filters(kept))),
        ("etcd", fleet_table(in_etcd(kept))),
        ("A directory on the hosts", fleet_table(directory(kept))),
        ("When very many clients connect", simulated_rows(kept)),
    ]
    return "\n\n".join(f"### {title}\n\n" + "\n".join(lines) for title, lines in sections)

"""The tables of docs/capacity.md are what the program computes from what it has measured, and it can measure."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from broker.cluster.etcd import Etcd, EtcdAddress
from loadtest.document import with_part
from tests.benchmarks import capacity, capacity_etcd, capacity_routers, owner_directory
from tests.benchmarks.capacity_rows import (
    BEGIN,
    FLEETS,
    KEYS_OF_A_HOST,
    directory,
    end_seconds,
    filters,
    in_etcd,
    kept_figures,
    keys_within,
    tables,
)
from tests.benchmarks.capacity_rows import clients as client_rows
from tests.cluster.hosts import hosts_of


def test_the_document_has_the_tables_of_the_program() -> None:
    text = capacity.DOCUMENT.read_text()
    assert with_part(text, BEGIN, tables(json.loads(capacity.KEPT.read_text()))) == text


def test_each_line_says_how_it_was_found() -> None:
    kept = kept_figures(capacity.KEPT)
    rows = [*client_rows(kept), *filters(kept), *in_etcd(kept), *directory(kept)]
    for row in rows:
        assert row.kind in ("measured", "simulated", "derived"), row
        assert row.source, row
        assert len(row.values) == len(FLEETS), row
    assert set(kept) == set(capacity.PARTS)


def test_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert capacity.main(["--derived"]) == 0
    assert "| keys | 1,000,060 | 10,000,060 | 100,000,060 | derived |" in capsys.readouterr().out
    assert capacity.main(["--list"]) == 0
    assert capsys.readouterr().out.split() == list(capacity.PARTS)
    assert capacity.main(["--only", "nothing"]) == 2
    assert "no such part: nothing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("keys", "seconds"), [(0, 0), (50, 0.5), (100, 1), (101, 1.04), (150, 3), (200, 5), (201, 5.025), (400, 10)]
)
def test_the_end_of_a_lease_between_and_beyond_what_was_measured(keys: int, seconds: float) -> None:
    ends: dict[str, Any] = {"seconds_100": 7, "writes_wait_100": 1.0, "writes_wait_200": 5.0, "in_parts": {}}
    assert end_seconds(ends, keys) == pytest.approx(seconds)


def test_keys_of_a_lease_that_ends_in_time() -> None:
    ends: dict[str, Any] = {"writes_wait_100": 1.0, "writes_wait_200": 5.0}
    assert [keys_within(ends, seconds) for seconds in (0, 0.5, 1, 3, 5, 10)] == [0, 50, 100, 150, 200, 400]


def test_filters_of_another_host() -> None:
    """A change has 13 bytes and the filter of 30."""
    assert [capacity_routers.delta(count) for count in (0, 1, 1000, 1001)] == [0, 43, 43_000, 43_043]
    snapshot = capacity_routers.snapshot_of_table(1001)
    assert snapshot["bytes"] == 43
    figures = capacity_routers.remote_interest(4000, 3, 5)
    assert (figures["filters"], figures["peers"], figures["snapshot"]) == (4000, 8, 43)
    assert figures["match_ns"] > 0


@pytest.mark.parametrize(("own", "missing"), [(1, 0), (44, 0), (45, 0), (46, 46), (64, 64 * 19)])
def test_places(own: int, missing: int) -> None:
    """64 places of a worker: its own, its siblings', 19 rails."""
    links, found = capacity_routers.places(own, [own] * 19)
    assert found == missing
    assert set(links) == {min(63, own - 1 + 19)}


def test_a_grid_of_routers() -> None:
    """Each message arrives once (`grid` looks); it crosses to another host as often as its subscriber is there."""
    one = capacity_routers.grid(1, 2, 50, 200)
    assert one["between_hosts"] == 0
    assert one["filters_each"] == 50
    three = capacity_routers.grid(3, 2, 60, 300)
    assert three["told_bytes_per_filter"] == 43 * (1 + 2 * 2)
    assert 0.5 < three["between_hosts"] < 0.85
    assert three["inside"] < 1


def test_an_idle_link() -> None:
    found = capacity_routers.idle_link(20)
    assert 0 < found["messages"] < 20
    assert found["bytes"] > 50 * found["messages"]


def test_sessions_and_retained_messages() -> None:
    assert capacity_routers.sessions(1501)["sessions"] == 1501
    assert capacity_routers.retained(1001, 10)["messages"] == 1001


def test_what_is_in_etcd() -> None:
    """Sessions, subscriptions and retained messages add a key for each session, and nothing else."""

    async def keys() -> set[bytes]:
        connection = Etcd(EtcdAddress((hosts.etcd.endpoint,)))
        try:
            return {each.key for each in (await connection.read_all(b"/")).entries}
        finally:
            await connection.close()

    with hosts_of((1, 1)) as hosts:
        before = asyncio.run(keys())
        for at in range(3):
            client = hosts[at % 2].client(f"c{at}", properties={"session_expiry_interval": 600})
            client.subscribe(*((f"{at}/{number}", 1) for number in range(100)))
            client.publish("retained", b"x", qos=1, retain=True)
        added = asyncio.run(keys()) - before
    assert added == {b"/mqttd/mqttd/owners/c%d" % at for at in range(3)}
    assert len(before) >= KEYS_OF_A_HOST * len(hosts)


def test_what_etcd_costs() -> None:
    found = capacity_etcd.records(1000)
    assert found["key_and_value"] == len("/mqttd/mqttd/owners/") + 23 + len("host-01")
    assert found["database_as_written"] >= 0
    storm = capacity_etcd.storms(900, 3)
    assert storm["new_transactions"] == 3 * 3
    assert storm["moved_transactions"] == 2 * 3 * 3
    assert 0 < capacity_etcd.host_record_bytes() < 1000


@pytest.mark.parametrize(
    ("moments", "most"), [([], 0), ([5.0], 1), ([0.0, 1.0, 1.5], 2), ([0.0, 1.1, 2.0, 2.05, 9.0], 3)]
)
def test_the_most_in_a_second(moments: list[float], most: int) -> None:
    assert capacity_etcd.most_in_a_second(moments) == most


def test_the_cost_of_a_directory() -> None:
    found = owner_directory.measured(3000, 20)
    assert found["entries"] == 3000
    assert min(found["entry_us"], found["scan_us"]) > 0

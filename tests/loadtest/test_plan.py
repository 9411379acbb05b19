"""The capacity plan of a host: its arithmetic, a broker measured briefly, and (long) promises checked by flood's
medians.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from loadtest import plan
from loadtest.capacity import KINDS, SIZE_BYTES, Fleet, Measured, answer, highest, message_seconds
from loadtest.generator import Load
from loadtest.run import Result
from tests.broker_process import ROOT, BrokerProcess

HOST = Measured(
    memory_bytes=8_000_000_000, descriptors=100_000, base_bytes=100e6, client_bytes=10_000.0, idle=1e-6,
    rates={"qos0": 50_000.0, "qos1": 25_000.0, "qos2": 10_000.0, "fanout": 500_000.0, "durable": 5_000.0}, byte=1e-9,
)  # fmt: skip
ABOUT = {
    "machine": "a machine", "broker": "mqttd", "file_system": "ext4", "busy": 0.5, "date": "2026-01-01",
    "commit": "abc",
    "rates": {kind: asdict(plan.Rate(HOST.rates[kind], 5000.0, 0.0, 0.0, 0.4)) for kind in KINDS},
}  # fmt: skip


@pytest.mark.parametrize(
    ("fleet", "seconds"),
    [
        (Fleet(1, 1.0), 20e-6),
        (Fleet(1, 1.0, 64, 1), 40e-6),
        (Fleet(1, 1.0, 1064), 21e-6),
        (Fleet(1, 1.0, 1064, 0, 11), 20e-6 + 20e-6 + 11e-6),
        (Fleet(1, 1.0, 64, 1, is_durable=True), 200e-6),
        (Fleet(1, 1.0, 64, 2, is_durable=True), 200e-6),
        (Fleet(1, 1.0, 64, 0, is_durable=True), 20e-6),
        (Fleet(1, 1.0, 20), 20e-6),
    ],
)
def test_a_message_takes_its_share_of_the_host(fleet: Fleet, seconds: float) -> None:
    assert message_seconds(HOST, fleet) == pytest.approx(seconds)


def test_shares_add_up_and_the_margin_stays_free() -> None:
    found = answer(HOST, Fleet(20_000, 1.0), 0.3)
    assert found.share == pytest.approx(20_000 * 1e-6 + 20_000 / 50_000)
    assert found.memory_share == pytest.approx((100e6 + 200e6) / 8e9)
    assert found.messages_per_second_max == pytest.approx((0.7 - 0.02) * 50_000)
    assert found.clients_max == 100_000
    assert found.fits
    assert answer(HOST, Fleet(20_000, 20_000 / found.messages_per_second_max), 0.3).share == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("fleet", "reasons"),
    [
        (Fleet(40_000, 1.0), ["it takes 84 % of the host, and 70 % are to be taken"]),
        (Fleet(100_001, 3600.0), ["a process may have 100,000 open files (ulimit -Hn)"]),
        (Fleet(70_000, 3600.0), []),
    ],
)
def test_what_does_not_fit_says_why(fleet: Fleet, reasons: list[str]) -> None:
    assert list(answer(HOST, fleet, 0.3).reasons) == reasons


def test_memory_bounds_the_clients() -> None:
    small = replace(HOST, memory_bytes=1_000_000_000)
    assert answer(small, Fleet(1, 60.0), 0.3).clients_max == (700_000_000 - 100_000_000) // 10_000
    [reason] = answer(small, Fleet(60_001, 3600.0), 0.3).reasons
    assert reason == "it takes 0.7 GB of 0.9"


def test_what_was_not_carried_fits_nothing() -> None:
    weak = replace(HOST, rates=dict(HOST.rates) | {"qos2": 0.0})
    assert message_seconds(weak, Fleet(1, 1.0, qos=2)) == math.inf
    assert not answer(weak, Fleet(1, 1.0, qos=2), 0.3).fits
    assert answer(weak, Fleet(1, 1.0, qos=2), 0.3).messages_per_second_max == 0.0


@pytest.mark.parametrize("limit", [150.0, 900.0, 1000.0, 1900.0, 123_456.0])
def test_the_highest_rate_is_found(limit: float) -> None:
    found = highest(lambda rate: rate <= limit, 1000.0, 100.0)
    assert limit / 2**0.25 <= found * 1.000001
    assert found <= limit


def test_nothing_is_carried() -> None:
    assert highest(lambda rate: rate < 50, 1000.0, 100.0) == 0.0
    assert highest(lambda rate: rate < 130, 1000.0, 100.0) > 100


def run(*arguments: str, status: int) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.plan", "--quiet", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False,
    )  # fmt: skip
    assert done.returncode == status, (done.stdout, done.stderr)
    return done


@pytest.fixture
def measured(tmp_path: Path) -> str:
    path = tmp_path / "host.json"
    path.write_text(json.dumps({"measured": asdict(HOST), "about": ABOUT}))
    return str(path)


def test_a_fleet_is_asked_about_without_measuring_again(measured: str) -> None:
    done = run("--measured", measured, "--clients", "20000", "--interval", "1", "--size", "64", status=0)
    assert "7.5 GB free; others have 50 % of it: measure again when it is quiet" in done.stdout
    assert "QoS 1, one to one             25,000/s delivered, p99 5 ms; 40 % of the host is the broker's" in done.stdout
    assert (
        "20,000 clients, 64 B each 1 s at QoS 0 to 1: 20,000 messages/s: fits "
        "(42.0 % of the host, 3.8 % of the memory; at most 34,000 messages/s)"
    ) in done.stdout
    done = run(
        "--measured", measured, "--clients", "20000", "--interval", "1", "--qos", "1", "--json", "-", status=1
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["answer"]["fits"] is False
    assert Measured.of(found["measured"]) == HOST
    run("--measured", measured, "--clients", "20000", "--interval", "1", "--margin", "60", "--size", "64", status=1)


def options(**more: Any) -> argparse.Namespace:
    found = plan.parser().parse_args([])
    found.p99, found.step = 10e6, 0.3
    vars(found).update(more)
    return found


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    process = BrokerProcess(1)
    with process:
        yield process


@pytest.fixture
def bench(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> plan.Bench:
    monkeypatch.setattr(plan, "_DRAIN_SECONDS", 30.0)  # all messages arrive on a busy machine, too
    return plan.Bench(broker.url, broker.pid, options(), lambda _: None)


FIGURES = {
    "received_per_s": 990.0, "delivery_p99_us": 900.0, "lost": 0.0, "connections_lost": 0.0, "connections_refused": 0.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "is_carried"),
    [
        ({}, True),
        ({"received_per_s": 970.0}, False),
        ({"delivery_p99_us": 1100.0}, False),
        ({"lost": 1.0}, False),
        ({"connections_lost": 1.0}, False),
    ],
)
def test_what_is_carried_comes_whole_and_in_time(more: dict[str, float], is_carried: bool) -> None:
    assert (plan.carried(Result(FIGURES | more, []), 1000.0, 1000.0) is not None) is is_carried


@pytest.mark.parametrize(("bad_seconds", "is_carried"), [(1, True), (2, False)])
def test_the_median_second_counts(bad_seconds: int, is_carried: bool) -> None:
    series = [FIGURES] * (3 - bad_seconds) + [
        FIGURES | {"delivery_p99_us": 9000.0, "received_per_s": 500.0}
    ] * bad_seconds
    assert (plan.carried(Result(dict(FIGURES), series), 1000.0, 1000.0) is not None) is is_carried


def test_a_bad_flood_or_a_lucky_one_decides_nothing(bench: plan.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: Counter[float] = Counter()

    def is_carried(_: str, per_second: float) -> plan.Rate | None:
        # at 1,000/s every second flood fails, at 2,000/s every second one succeeds
        turns[per_second] += 1
        if turns[per_second] % 2 == (per_second > 1000):
            return None
        return plan.Rate(per_second, 100.0 * turns[per_second], 0.0, 0.0, 0.0)

    monkeypatch.setattr(bench, "is_carried", is_carried)
    found = bench.rate("qos0", 1000.0)
    assert found == plan.Rate(1000.0, 300.0, 0.0, 0.0, 0.0)  # the worse of two
    assert turns[1000.0] == turns[2000.0] == 3


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_sent_and_comes(bench: plan.Bench, kind: str) -> None:
    figures = bench.at(kind, 2000.0).figures
    assert figures["total_received"] > 100
    assert figures["lost"] == figures["foreign"] == 0
    assert ("acknowledgement_p50_us" in figures) is (kind not in ("qos0", "fanout") and figures["acknowledged"] > 0)


def test_floods_have_the_names_that_were_asked_for(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Load] = []

    def run(load: Load, **_: object) -> Result:
        seen.append(load)
        return Result(dict(FIGURES), [])

    monkeypatch.setattr(plan, "run", run)
    named = {"user": "me", "password": "word", "topic": "fleet/%i", "client_prefix": "car-", "mqtt_version": 5}
    plan.Bench(broker.url, None, options(**named), lambda _: None).at("durable", 500.0)
    [load] = seen
    assert (load.target.username, load.target.password, load.target.version) == ("me", "word", 5)
    assert load.scenario.topics[0] == b"fleet/0/1"
    assert load.scenario.publisher_id(0).startswith("car-1-")
    assert load.target.session_expiry == 3600


def test_a_fleet_may_be_said_as_a_rate_and_with_sessions_that_last(tmp_path: Path) -> None:
    measured = tmp_path / "host.json"
    measured.write_text(json.dumps({"measured": asdict(HOST), "about": ABOUT}))
    fleet = ["--measured", measured, "--clients", "1000", "--qos", "1", "--json", "-"]
    one = run(*map(str, fleet), "--interval", "4", "--durable", "--payload", "100", status=0)
    same = run(*map(str, fleet), "--rate", "250", "--session-expiry", "60", "--size", "100", status=0)
    assert json.loads(one.stdout)["answer"] == json.loads(same.stdout)["answer"]
    assert "durable: 250 messages/s" in same.stderr


def test_clients_and_bytes_have_their_price(bench: plan.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_IDLE_SECONDS", 1.0)
    base, client, idle = bench.idle(300)
    assert base > 1e6
    assert 0 <= client < 1e6  # the PSS of so few clients is below the changes by other processes' starts and ends
    assert 0 <= idle < 0.01
    assert 0 <= bench.byte() < 1e-3


def test_the_price_of_a_byte_is_what_larger_payloads_lose(bench: plan.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter([20_000.0, 10_000.0, 10_000.0, 20_000.0, 0.0, 10_000.0])
    monkeypatch.setattr(bench, "flood", lambda *_: Result({"received_per_s": next(rates)}, []))
    larger_by = plan.LARGE_BYTES - SIZE_BYTES
    assert bench.byte() == pytest.approx(50e-6 / larger_by)
    assert bench.byte() == 0  # larger payloads had the higher rate
    assert bench.byte() == 0


def test_promises_are_compared_with_flood(bench: plan.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A promise that is far too low is reported: flood carries much more."""
    monkeypatch.setattr(plan, "COMES", 0.01)  # succeeds on a busy machine, too
    [low, none] = plan.check(bench, replace(HOST, rates={"qos0": 500.0}), ["qos0", "qos1"], 1)
    assert (low.below, low.above) == (1, 1)
    assert not low.is_within
    assert replace(low, above=0).is_within
    assert not replace(low, above=0, delivered=300.0).is_within
    assert not none.is_within
    assert "| QoS 0, one to one | 500/s |" in plan.checks_text([low, none])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--measured", "/nowhere"], "--measured /nowhere: No such file or directory"),
        (["--measured", "pyproject.toml"], "was not written by --json"),
        (["--p99", "20"], "--p99 20: a number with us, ms or s"),
        (["--margin", "100"], "--margin: less than 100"),
        (["--kinds", "qos0,qos3"], "qos3: of qos0, "),
        (["--broker", "emqx"], "emqx is no broker"),
        (["--fanout", "0"], "a number from 1 on"),
        (["--host", "mqtt://127.0.0.1:1", "--step", "0.1"], "no client is connected"),
    ],
)
def test_wrong_use_is_one_line(arguments: list[str], said: str) -> None:
    done = run(*arguments, status=2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.soak
def test_what_is_promised_is_what_flood_finds() -> None:
    """Promises agree with flood: two minutes of measuring, then five floods at each of three rates per promise. Needs a
    quiet machine.
    """
    done = run("--check", "--json", "-", status=0)
    checks = json.loads(done.stdout)["checks"]
    assert [each["kind"] for each in checks] == list(KINDS)
    assert all(each["within"] for each in checks), done.stderr

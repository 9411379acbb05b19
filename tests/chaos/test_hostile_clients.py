"""Hostile clients cost their own bound in memory, and other clients next to nothing.

A pair of well-behaved clients on two workers exchanges messages throughout. In the short version it must lose nothing
and memory must keep its bound; the long one (``soak``) also compares the delays with those of the same run before the
attack: p50 at most doubled, p99 under the larger of twice and 20 ms.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.broker_process import ROOT, STORES, BrokerProcess
from tests.chaos.conftest import Record
from tests.chaos.crowd import Crowd, Publisher, Subscriber, ids_on, in_order, missing, repeated
from tests.chaos.hostile import ATTACKS

WORKERS = 2
MB = 1 << 20
KB = 1 << 10
OUTBOX_BYTES = MB
P99_SECONDS = 0.020

RESULTS_BYTES = 8 * MB  # the match cache of a worker grows in blocks of this size (pyx.matching.match_cache)

#: the limits that an operator may set, and the defaults
LIMITS: dict[str, dict[str, int]] = {
    "tight": {
        "outbox_bytes_max": OUTBOX_BYTES, "queue_bytes_max": 2 * MB, "queue_messages_max": 1000,
        "connect_seconds_max": 2, "filters_per_session_max": 10_000,
    },
    "defaults": {},
}  # fmt: skip

#: attack -> its greatest cost in all, from the limits above and the numbers of its clients in tests.chaos.hostile
BOUNDS = {
    # per client its outbox, where answers stop the reading at twice that, and its queue: the messages of a few seconds,
    # which fill no queue
    "never_reads": 20 * (2 * OUTBOX_BYTES + 2 * MB + 100 * KB),
    "drips": 300 * 16 * KB,
    "announces": 200 * 16 * KB,  # what arrived, not what was announced
    "subscribes": 100_000 * 800,  # held by its worker, by the sibling, and in the table of what siblings know
    "connects": 4 * MB,
    "stays_silent": 2000 * 4 * KB,
    "never_releases": 20 * (65_536 * 4 * 4 + 100 * KB),
    "properties": 4 * 16 * MB,
    "aliases": 10 * 10 * 8 * KB + WORKERS * RESULTS_BYTES,
    "deep": 8 * 256 * 2 * KB,
}
SLACK_BYTES = 4 * MB  # of both workers' allocators


#: the limits that an operator sets against that attack. Each of its connections brings 254 filters of up to 127 levels
#: and closes at once, so that the number of connections is what costs
DEFENCES = {"deep": {"connections_per_address_per_second_max": 20}}


@pytest.fixture(scope="module")
def besieged(request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    """One broker for all attacks with the same store and limits: leftovers of one attack show in the next."""
    store, kind, attack = request.param
    limits = {**LIMITS[kind], **DEFENCES.get(attack, {})}
    environment = {f"MQTTD_LIMITS__{name.upper()}": str(value) for name, value in limits.items()}
    broker = BrokerProcess(WORKERS, ["--log-format", "json"], environment, store).start()
    try:
        yield broker
        status, said = broker.stop(), broker.stderr()
        assert status == 0, f"the broker ended with status {status}:\n{said[-20000:]}"
        assert "Traceback" not in said, said[-20000:]
    finally:
        broker.kill()
        broker.forget()


class Pair:
    """A subscriber and a publisher on two workers; the memory of the broker is sampled meanwhile."""

    def __init__(self, crowd: Crowd, broker: BrokerProcess, topic: str) -> None:
        self.crowd = crowd
        self.broker = broker
        here, there = ids_on(0, WORKERS, f"{topic}sub"), ids_on(1, WORKERS, f"{topic}pub")
        self.subscriber = Subscriber(crowd, next(here), topic, qos=1)
        self.publisher = Publisher(crowd, next(there), topic, qos=1, rate=100.0)
        crowd.settle()
        self.peak = 0
        self.usual_rate = 0.0
        self._looked_at = 0.0
        crowd.on_turn.append(self._look)
        crowd.begin()

    def _look(self, now: float) -> None:
        if now - self._looked_at > 0.1:
            self._looked_at = now
            self.peak = max(self.peak, self.broker.pss_bytes())

    def usual_delays(self, seconds: float) -> tuple[float, float]:
        """Return p50 and p99 of the messages of the next so many seconds, or of more if a busy machine lets few
        through: what the machine takes from the pair is not due to an attack.
        """
        delays: list[float] = []
        self.subscriber.delays = delays
        began = time.monotonic()
        self.crowd.let_run(seconds)
        self.crowd.until(lambda: len(delays) > seconds * 20, "the pair exchanges messages")
        found = sorted(delays)
        self.usual_rate = min(100.0, len(found) / (time.monotonic() - began))
        return statistics.median(found), found[len(found) * 99 // 100]

    def delays(self, seconds: float) -> tuple[float, float]:
        """Return p50 and p99 of the messages of the next so many seconds, or of more if a busy machine lets few
        through: a fifth of the usual number has to arrive.
        """
        delays: list[float] = []
        self.subscriber.delays = delays
        self.crowd.let_run(seconds)
        least = max(1.0, seconds * self.usual_rate / 5)
        self.crowd.until(lambda: len(delays) > least, f"messages come, usually {self.usual_rate} in a second")
        found = sorted(delays)
        return statistics.median(found), found[len(found) * 99 // 100]

    def check(self) -> None:
        """Check that nothing was lost, repeated or out of order."""
        self.crowd.finish()
        self.crowd.until(lambda: not missing(self.subscriber, self.publisher), "nothing is lost")
        assert repeated(self.subscriber, self.publisher) == 0
        assert in_order(self.subscriber, self.publisher)


def sieges() -> list[Any]:
    """Return (store, limits and attack of the broker; attack; seconds): each attack on one store and one kind of
    limits, in turn, in `make test`, on the others in `make test-all`, on all of them for longer in `make soak`.
    """
    found = []
    short = dict(zip(STORES, ("tight", "defaults"), strict=False))
    for store, kind, (number, attack) in itertools.product(STORES, LIMITS, enumerate(ATTACKS)):
        broker = store, kind, attack if attack in DEFENCES else ""
        if short[store] == kind:
            is_long = len(STORES) > 1 and STORES[number % 2] != store
            named = f"{store}-{kind}-{attack}-short"
            found.append(pytest.param(broker, attack, 1.5, id=named, marks=[pytest.mark.long] if is_long else []))
        named = f"{store}-{kind}-{attack}-long"
        found.append(pytest.param(broker, attack, 20.0, id=named, marks=pytest.mark.soak))
    return found


@pytest.mark.parametrize(("besieged", "attack", "seconds"), sieges(), indirect=["besieged"])
def test_an_attack_costs_its_bound_and_others_nothing(
    besieged: BrokerProcess, attack: str, seconds: float, request: pytest.FixtureRequest, record_property: Record
) -> None:
    """An attack keeps the bounds of memory, and of delays and messages of a well-behaved pair; no worker is lost."""
    workers = besieged.worker_pids()
    with Crowd(besieged.address) as crowd:
        pair = Pair(crowd, besieged, f"{attack}{seconds:.0f}")
        quiet_p50, quiet_p99 = pair.usual_delays(max(1.0, seconds / 2))
        before, pair.peak = pair.peak, 0
        command = [sys.executable, "-m", "tests.chaos.hostile", attack, str(besieged.address[1])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=os.environ) as attacker:
            try:
                assert attacker.stdout is not None
                os.set_blocking(attacker.stdout.fileno(), False)
                said = attacker.stdout
                crowd.until(lambda: said.read(10), "the attack has begun")
                p50, p99 = pair.delays(seconds)
                assert attacker.poll() is None, "the attacker gave up"
            finally:
                attacker.kill()
        growth = pair.peak - before
        told = (
            f"{attack}: p50 {quiet_p50 * 1e3:.2f} -> {p50 * 1e3:.2f} ms, "
            f"p99 {quiet_p99 * 1e3:.2f} -> {p99 * 1e3:.2f} ms, "
            f"memory +{growth / MB:.2f} MB of {BOUNDS[attack] / MB:.2f} MB"
        )
        record_property("attack", told)
        print(told)
        pair.check()
    assert growth <= BOUNDS[attack] + SLACK_BYTES, told
    assert besieged.worker_pids() == workers, "a worker was lost"
    assert not besieged.logged("internal_error")
    if request.node.get_closest_marker("soak"):
        assert p50 <= 2 * quiet_p50, told
        assert p99 <= max(2 * quiet_p99, P99_SECONDS), told

"""A thousand connections over all workers race with one client id while workers are killed: one session, never two.

Only the home knows the order of the connections; the contenders here read in any order. So the test checks only what no
order changes: a message is sent without DUP once per session, on any connection; nothing that was acknowledged is lost
as long as the home lives; and at the end one connection is left, and its session works.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

from shards.placement import home
from tests.broker_process import BrokerProcess
from tests.chaos.conftest import OpenCrowd, StartBroker
from tests.chaos.crowd import Crowd, Publisher, Subscriber, ids_on, missing
from tests.chaos.test_take_over_races import check_one_session, survivors
from tests.waiting import wait_until

WORKERS = 4
CONTENDERS = 1000
WAVES = 20
KILLS_AT = (6, 12)
NAME = "contested"


class Contender(Subscriber):
    """Answers as its client would, and records the messages that the broker marks as sent for the first time."""

    def __init__(self, crowd: Crowd, topic: str, fresh: Counter[tuple[int, int]], version: int) -> None:
        self.fresh = fresh
        expiry = {"session_expiry_interval": 600} if version == 5 else {}
        super().__init__(crowd, NAME, topic, qos=2, version=version, clean=False, properties=expiry)

    def packet(self, first: int, buffer: bytes, body: int, end: int) -> None:
        before = {publisher: len(got) for publisher, got in self.received.items()}
        super().packet(first, buffer, body, end)
        if first >> 4 == 3 and not first & 0x08:
            for publisher, got in self.received.items():
                for sequence in got[before.get(publisher, 0) :]:
                    self.fresh[publisher, sequence] += 1


def kill(broker: BrokerProcess, worker: int) -> None:
    """SIGKILL, and wait until the successor is there: only living workers are asked for the home of a client id."""
    pids = broker.worker_pids()
    os.kill(pids[worker], signal.SIGKILL)
    wait_until(lambda: broker.worker_pids().get(worker, pids[worker]) != pids[worker], 60.0, "it was started again")


@pytest.mark.parametrize(
    ("version", "victim_is_home"),
    [
        (4, False),
        pytest.param(4, True, marks=pytest.mark.long),
        pytest.param(5, False, marks=pytest.mark.long),
        (5, True),
    ],
    ids=["4-bystander", "4-home", "5-bystander", "5-home"],
)
def test_a_thousand_contenders_and_killed_workers_leave_one_session(
    start_broker: StartBroker, crowd_of: OpenCrowd, version: int, victim_is_home: bool
) -> None:
    """Waves of connections, QoS 1 and 2 flowing to the holder of the session, two workers killed on the way."""
    broker = start_broker(WORKERS, takeovers_per_minute_max=0)
    crowd = crowd_of(broker)
    at_home = home(NAME, WORKERS)
    of_publishers = (at_home + 1) % WORKERS
    victims = [at_home] * 2 if victim_is_home else [(at_home + 2) % WORKERS, (at_home + 3) % WORKERS]
    fresh: Counter[tuple[int, int]] = Counter()
    contenders: list[Subscriber] = [Contender(crowd, "contested/+", fresh, version)]
    crowd.settle()
    names = ids_on(of_publishers, WORKERS, "contestedpub")
    publishers = [
        Publisher(crowd, next(names), f"contested/{qos}", qos=qos, rate=200.0, version=version) for qos in (1, 2)
    ]
    crowd.settle()
    crowd.begin()
    before = 0

    def somebody_gets_messages() -> bool:
        return fresh.total() > before + 2

    for wave in range(WAVES):
        before = fresh.total()
        contenders += [Contender(crowd, "contested/+", fresh, version) for _ in range(CONTENDERS // WAVES)]
        crowd.until(somebody_gets_messages, "somebody has the session")
        if wave in KILLS_AT:
            kill(broker, victims[KILLS_AT.index(wave)])
    crowd.until(lambda: len(survivors(contenders)) <= 1, "one is left")
    crowd.finish()
    check_one_session(crowd, contenders, "contested/after")
    assert len({each.connack.session_present for each in contenders if each.connack}) == 2
    repeated = {copy: count for copy, count in fresh.items() if count > 1}
    assert not repeated, "sent without DUP more than once"
    if not victim_is_home:
        for publisher in publishers:
            everybody = {sequence for each in contenders for sequence in each.received[publisher.number]}
            assert set(publisher.acknowledged) <= everybody, "what was acknowledged reached the session"
    [survivor] = survivors(contenders)
    again = Contender(crowd, "contested/+", fresh, version)
    crowd.until(lambda: again.subscribed, "the session is usable")
    assert again.connack is not None
    assert again.connack.session_present or version == 3
    crowd.until(lambda: bool(survivor.closed), "the former connection is closed")
    last = Publisher(crowd, next(names), "contested/last", qos=2, version=version, count=20)
    last.begin()
    crowd.until(lambda: last.done and not missing(again, last), "what is published to it comes")
    assert again.received[last.number] == list(range(20))

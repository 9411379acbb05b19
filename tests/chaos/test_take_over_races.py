"""Many connections over all workers with one client id, and a worker killed in between: one session, never two."""

from __future__ import annotations

import os
import signal

import pytest

from shards.placement import home
from tests.chaos.conftest import OpenCrowd, StartBroker
from tests.chaos.crowd import Crowd, Publisher, Subscriber

WORKERS = 4
CONTENDERS = 40


def survivors(contenders: list[Subscriber]) -> list[Subscriber]:
    """Return the contenders whose connection is still open."""
    return [each for each in contenders if not each.closed]


def check_one_session(crowd: Crowd, contenders: list[Subscriber], topic: str) -> None:
    """Check that exactly one connection is left, it was accepted, and it gets each message once."""
    crowd.until(lambda: all(each.connack or each.closed for each in contenders), "each is accepted or closed")
    crowd.until(lambda: len(survivors(contenders)) <= 1, "one is left")
    [survivor] = survivors(contenders)
    crowd.until(lambda: survivor.subscribed or survivor.closed, "it has subscribed")
    # Anything the broker still had to send would arrive before this: a message over the mesh and back.
    publisher = Publisher(crowd, f"{topic}check", topic, qos=1, count=5)
    publisher.begin()
    crowd.until(lambda: publisher.done and not missing_any(survivor, publisher), "it gets what is published")
    assert survivors(contenders) == [survivor]
    for each in contenders:
        assert each is survivor or not each.received[publisher.number]
    assert survivor.received[publisher.number] == [0, 1, 2, 3, 4]


def missing_any(subscriber: Subscriber, publisher: Publisher) -> bool:
    """Whether a message that was sent has not arrived."""
    return len(subscriber.received[publisher.number]) < publisher.sent


@pytest.mark.parametrize("version", [4, 5])
def test_one_of_many_contenders_is_left(start_broker: StartBroker, crowd_of: OpenCrowd, version: int) -> None:
    """Connections to all workers at once; v5 losers that were accepted get Session taken over."""
    broker = start_broker(WORKERS, takeovers_per_minute_max=0)
    crowd = crowd_of(broker)
    contenders = [
        Subscriber(crowd, "contested", "race/all", qos=1, version=version, clean=False) for _ in range(CONTENDERS)
    ]
    check_one_session(crowd, contenders, "race/all")
    if version == 5:
        told = [packet.reason for each in contenders for packet in each.packets if packet.kind == "DISCONNECT"]
        assert set(told) == {0x8E}
        assert len(told) == sum(each.accepted_by_broker for each in contenders) - 1


@pytest.mark.parametrize("victim_is_home", [True, False])
def test_a_worker_killed_in_a_race_leaves_one_session_too(
    start_broker: StartBroker, crowd_of: OpenCrowd, victim_is_home: bool
) -> None:
    """The home, or a worker that accepts and hands off, dies while connections arrive; exactly one is left."""
    broker = start_broker(WORKERS, takeovers_per_minute_max=0)
    crowd = crowd_of(broker)
    for number in range(4):
        name, topic = f"contested{number}", f"race/{number}"
        at_home = home(name, WORKERS)
        victim = broker.worker_pids()[at_home if victim_is_home else (at_home + 1) % WORKERS]
        contenders = [Subscriber(crowd, name, topic, qos=1, clean=False) for _ in range(CONTENDERS // 2)]
        crowd.turn()
        os.kill(victim, signal.SIGKILL)
        contenders += [Subscriber(crowd, name, topic, qos=1, clean=False) for _ in range(CONTENDERS // 2)]
        check_one_session(crowd, contenders, topic)


def test_contenders_that_wait_for_a_stopped_home(start_broker: StartBroker, crowd_of: OpenCrowd) -> None:
    """The order in which the home takes them decides: after SIGCONT one connection is left, and the session with it."""
    broker = start_broker(WORKERS, takeovers_per_minute_max=0)
    crowd = crowd_of(broker)
    first = Subscriber(crowd, "stopped", "race/stopped", qos=1, clean=False)
    crowd.settle()
    pid = broker.worker_pids()[home("stopped", WORKERS)]
    os.kill(pid, signal.SIGSTOP)
    try:
        contenders = [Subscriber(crowd, "stopped", "race/stopped", qos=1, clean=False) for _ in range(10)]
        crowd.let_run(0.3)
        assert not any(each.connack for each in contenders)
        assert not first.closed
    finally:
        os.kill(pid, signal.SIGCONT)
    check_one_session(crowd, [first, *contenders], "race/stopped")
    accepted = [each.connack for each in contenders if each.connack]
    assert {(connack.session_present, connack.reason) for connack in accepted} == {(True, 0)}

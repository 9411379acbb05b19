"""Durable clients lose their connections under load and resume their sessions: nothing lost, QoS 2 once, in order.

The broker lives on, so this holds with any store. It also shows that the clients of the crash tests keep their own half
of a session.
"""

from __future__ import annotations

import itertools
import random

import pytest

from tests.chaos.conftest import OpenCrowd, StartBroker
from tests.chaos.durable import ROOM, Load

WORKERS = 2


@pytest.mark.parametrize("seed", [1, 2])
def test_sessions_go_on(start_broker: StartBroker, crowd_of: OpenCrowd, seed: int) -> None:
    """Nothing is lost when some clients are cut off every tenth of a second, in the middle of an exchange."""
    crowd = crowd_of(start_broker(WORKERS, **ROOM))
    load = Load(crowd, WORKERS)
    load.begin()
    rng = random.Random(seed)
    for _ in range(20):
        crowd.let_run(rng.random() * 0.2)
        for member in rng.sample(load.members, 4):
            member.close()
        for subscriber in load.subscribers:
            subscriber.resting = rng.random() < 0.3
    load.finish()
    load.check()
    assert sum(each.returns for each in load.members) > 20


def test_clients_can_be_made_from_their_past(start_broker: StartBroker, crowd_of: OpenCrowd) -> None:
    """After all clients close at one moment, others made from the same journals complete the open exchanges."""
    broker = start_broker(WORKERS, **ROOM)
    moments = itertools.count()
    first = Load(crowd_of(broker), WORKERS, moment=lambda: next(moments))
    first.begin()
    first.crowd.let_run(0.5)
    first.crowd.until(lambda: any(each.unanswered for each in first.publishers), "something is open")
    for member in first.members:
        member.close()
    second = Load(crowd_of(broker), WORKERS, past=first.past())
    for each, former in zip(second.publishers, first.publishers, strict=True):
        assert each.acknowledged[: len(former.acknowledged)] == former.acknowledged
    second.begin()
    second.crowd.let_run(0.2)
    second.finish()
    second.check()
    assert all(each.sent > former.sent for each, former in zip(second.publishers, first.publishers, strict=True))

"""Messages of a sibling that a round leaves for the next one are taken without a new event: they are in no socket."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from broker.config.limits import Limits
from tests import wire
from tests.unit.broker.worker.test_no_python_for_batches import NAMES, SETTINGS, Pair
from tests.unit.pyx.io.test_reactor import taken

SIZE = 60_000
COUNT = 3
"""More than a sibling's share of a round, and no more than its socket takes at once."""


@pytest.mark.parametrize("out_of_turn", [False, True])
def test_what_a_round_leaves_is_taken_in_the_next(tmp_path: Path, out_of_turn: bool) -> None:
    pair = Pair(tmp_path, SETTINGS.model_copy(update={"limits": Limits(tick_peer_bytes_max=65_536)}))
    one, other = pair.workers
    try:
        publisher, subscriber = one.open(wire.connect(4, NAMES[0])), other.open(wire.connect(4, NAMES[1]))
        subscriber.sendall(wire.subscribe(4, 1, ("t", 0)))
        heard = b""

        def subscribed() -> bool:
            nonlocal heard
            heard += taken(subscriber)
            return len(heard) == 4 + 5

        pair.until(subscribed, "CONNACK and SUBACK have come")
        taken(publisher)
        asked: list[bool] = []
        other.reactor.schedule = lambda: asked.append(True)
        packet = wire.publish(4, "t", bytes(SIZE))
        publisher.setblocking(True)
        received = 0
        for _ in range(COUNT):
            publisher.sendall(packet)
            one.reactor.poll()
        if out_of_turn:
            other.mesh.tick(time.monotonic())
        other.reactor.poll()
        while asked:
            asked.clear()
            received += len(taken(subscriber))
            one.reactor.poll()
            other.reactor.poll()
        received += len(taken(subscriber))
        assert received == COUNT * len(packet)
    finally:
        for worker in pair.workers:
            worker.close()

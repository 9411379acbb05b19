"""SIGKILL of a worker while a frame of ZeroMQ's protocol is half in the socket: of the sender, and of the receiver.

The receiver is stopped, and a body is larger than the socket's buffer: so its frame is cut when the signal comes.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from tests.chaos.conftest import OpenCrowd
from tests.chaos.crowd import ids_on, in_order, missing
from tests.chaos.durable import DurablePublisher, DurableSubscriber
from tests.counted import CountedBroker

WORKERS = 2
SENDER, RECEIVER = 0, 1
MESSAGES = 3
BODY_BYTES = 900_000
SOCKET_BYTES_MAX = int(Path("/proc/sys/net/core/wmem_default").read_text())
LONG = 30.0
"""So many seconds nobody notices that the receiver is stopped."""


@pytest.mark.parametrize("victim", [SENDER, RECEIVER])
def test_what_was_cut_arrives(victim: int, crowd_of: OpenCrowd) -> None:
    """All arrives in order and whole, and nothing is taken for malformed."""
    assert BODY_BYTES > 2 * SOCKET_BYTES_MAX
    broker = CountedBroker(
        WORKERS,
        environment={"MQTTD_STORE": "leveldb"},
        link_silence_seconds_max=LONG,
        peer_stall_seconds_max=LONG,
        worker_hang_seconds_max=2 * LONG,
    ).start()
    try:
        crowd = crowd_of(broker)
        subscriber = DurableSubscriber(crowd, next(ids_on(RECEIVER, WORKERS, "s")), "cut", qos=1)
        publisher = DurablePublisher(
            crowd, next(ids_on(SENDER, WORKERS, "p")), "cut", qos=1, payload_bytes=BODY_BYTES, count=MESSAGES
        )
        crowd.on_turn += [subscriber.look, publisher.look]
        crowd.until(lambda: subscriber.there and publisher.there, "both are there")
        pids = broker.worker_pids()
        os.kill(pids[RECEIVER], signal.SIGSTOP)
        try:
            publisher.begin()
            crowd.until(lambda: broker.rows()[SENDER]["publish_received"] == MESSAGES, "the sender has it")
            os.kill(pids[victim], signal.SIGKILL)
        finally:
            with contextlib.suppress(ProcessLookupError):  # it was the victim
                os.kill(pids[RECEIVER], signal.SIGCONT)
        crowd.until(lambda: publisher.done, "all is acknowledged", 60.0)
        crowd.until(lambda: not missing(subscriber, publisher), "all has arrived", 60.0)
        assert len(publisher.acknowledged) == MESSAGES
        assert in_order(subscriber, publisher)
        assert publisher.returns == (victim == SENDER)
        assert subscriber.returns == (victim == RECEIVER)
        assert broker.counter("mesh_frames_refused") == 0
        assert broker.stop() == 0
        assert "Traceback" not in broker.stderr()
    finally:
        broker.kill()
        broker.forget()

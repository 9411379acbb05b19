"""A broker to which nothing comes sleeps."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest

from shards.placement import home
from tests.broker_process import KIND, BrokerProcess
from tests.waiting import let_pass, wait_until
from tests.wire import Client

pytestmark = pytest.mark.skipif(KIND == "mosquitto", reason="the processes of mqttd")

SECONDS = 3
WAKE_UPS_MAX = 4 * SECONDS
"""Of a worker: its heartbeat, a sweep and $SYS. It was 17 a second when its timer and its links had a fixed pace."""


def wake_ups(pids: Iterable[int]) -> int:
    """Return how often these processes, all their threads together, have gone to sleep by themselves."""
    statuses = [each.read_text() for pid in pids for each in Path(f"/proc/{pid}/task").glob("*/status")]
    return sum(int(re.findall(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.MULTILINE)[0]) for status in statuses)


@pytest.mark.parametrize("store", ["memory", "leveldb"])
def test_workers_that_have_nothing_to_do_sleep(workers: int, store: str) -> None:
    """Also when messages have crossed between them, with clients that stay; and they serve at once after that."""
    with BrokerProcess(workers, store=store) as broker:
        names = [next(name for name in map(str, range(1000)) if home(name, workers) == each) for each in range(workers)]
        with closing(Client(broker.address, 5)) as one, closing(Client(broker.address, 5)) as other:
            one.connect(names[0])
            one.subscribe("t", qos=1)
            other.connect(names[-1] + "-other" if workers == 1 else names[-1])
            pids = broker.worker_pids()

            def exchange(payload: bytes) -> None:
                other.publish("t", payload, qos=1)
                one.receive("t", payload)

            def sleep() -> bool:
                before = wake_ups(pids)
                let_pass(SECONDS)
                return wake_ups(pids) - before <= WAKE_UPS_MAX * workers

            for number in range(20):
                exchange(b"%d" % number)
            wait_until(sleep, 120, "the workers sleep")
            exchange(b"after")

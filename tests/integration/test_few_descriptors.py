"""A process that may open few files: connections use up their own share and nothing else."""

from __future__ import annotations

import os
import resource
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from broker.testing import wait_until
from tests import wire
from tests.broker_process import KIND
from tests.chaos.crowd import ids_on
from tests.counted import CountedBroker
from tests.wire import Client

pytestmark = pytest.mark.skipif(KIND != "mqttd", reason="about the descriptors of mqttd")

SECONDS = 60.0
DESCRIPTORS = 200
MANY = 300


def limit(pid: int, descriptors: int) -> None:
    """Set the limit of a running process."""
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors, DESCRIPTORS))


class Few(CountedBroker):
    """A broker that may open DESCRIPTORS files in each process."""

    def _command(self) -> list[str]:
        return ["prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}", *super()._command()]


@pytest.mark.parametrize("many", [1, 2])
def test_connections_leave_the_store_what_it_needs(tmp_path: Path, many: int) -> None:
    """More clients connect than there are descriptors. Accepted ones are served, the store writes and compacts tables
    all the while, and when all have left others are accepted.
    """
    environment = {"MQTTD_LEVELDB__WRITE_BUFFER_BYTES": str(64 << 10)}
    arguments = ["--store", "leveldb", "--data-dir", str(tmp_path / "data"), "--admin", "127.0.0.1:0"]
    lasting = {"clean": False, "properties": {"session_expiry_interval": 600}}
    broker = Few(many, arguments, environment)
    with broker:
        pids = broker.worker_pids()
        sleepers = [next(ids_on(worker, many, "s")) for worker in range(many)]
        for each in sleepers:
            with closing(Client(broker.address, 5)) as sleeper:
                sleeper.connect(each, **lasting)
                sleeper.subscribe(("t", 1))
                sleeper.disconnect()
        with ExitStack() as crowd:
            publisher = Client(broker.address, 5)
            crowd.callback(publisher.close)
            publisher.connect("publisher")
            for _ in range(many * MANY):
                crowd.callback(Client(broker.address, 5).close)
            wait_until(
                lambda: broker.counter("connections_refused") or broker.counter("accept_errors"),
                SECONDS,
                "there is no room for some",
            )  # and not longer: silent connections are closed after connect_seconds_max
            for _ in range(60):
                assert publisher.publish("t", os.urandom(30_000), qos=1) == 0
            assert broker.worker_pids() == pids
            assert not broker.counter("accept_errors")
            assert not broker.counter("store_failed")
            assert broker.logged("connections_max_reached")
        wait_until(lambda: sum(row["connections"] for row in broker.rows()) == 0, SECONDS, "all have gone")
        assert broker.worker_pids() == pids
        for each in sleepers:
            with closing(Client(broker.address, 5)) as sleeper:
                assert sleeper.connect(each, **lasting).session_present
                sleeper.await_packet("PUBLISH")


def test_an_accept_without_a_descriptor_is_not_tried_all_the_time() -> None:
    """When other files have used up the descriptors, the listener pauses, and serves again once some are free."""
    with Few(1) as broker:
        pid = broker.worker_pids()[0]
        taken = len(os.listdir(f"/proc/{pid}/fd"))
        limit(pid, taken)
        with closing(Client(broker.address, 5)) as client:
            wait_until(lambda: broker.counter("accept_errors"), SECONDS, "it has tried")
            before = broker.counter("ticks")
            errors = broker.counter("accept_errors")
            client.send(wire.connect(5, "c"))
            wait_until(lambda: broker.counter("accept_errors") >= errors + 3, SECONDS, "it has tried again")
            assert broker.counter("ticks") - before < 1000, "it has done nothing but try"
            limit(pid, DESCRIPTORS)
            client.expect("CONNACK", reason=0)

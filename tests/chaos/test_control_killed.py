"""The control process is killed, stopped, or cannot live: only those who ask it notice."""

from __future__ import annotations

import http.client
import itertools
import os
import signal

from tests.broker_process import BrokerProcess, processes_of_session
from tests.chaos.conftest import OpenCrowd, StartBroker
from tests.chaos.crowd import Publisher, Subscriber, ids_on, in_order, missing
from tests.waiting import wait_until

WORKERS = 2
SECONDS_MAX = 60.0
GAP_SECONDS_MAX = 5.0
"""The longest gap that a busy machine makes; a wait for a timeout is longer."""
ADMIN = ("--admin", "127.0.0.1:0")


def ready(broker: BrokerProcess) -> int:
    """Return the HTTP status of /ready."""
    connection = http.client.HTTPConnection(*broker.admin, timeout=SECONDS_MAX)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status
    finally:
        connection.close()


def test_sigkill_of_control_disturbs_nobody(start_broker: StartBroker, crowd_of: OpenCrowd) -> None:
    """With traffic from all workers to all, no connection ends, no gap, nothing missing; requests wait for the
    successor; five times in a row.
    """
    broker = start_broker(WORKERS, *ADMIN)
    crowd = crowd_of(broker)
    pairs: list[tuple[Publisher, Subscriber]] = []
    for source, target in itertools.product(range(WORKERS), repeat=2):
        name = f"ctl{source}{target}"
        subscriber = Subscriber(crowd, next(ids_on(target, WORKERS, f"{name}s")), f"ctl/{name}", qos=1)
        publisher = Publisher(crowd, next(ids_on(source, WORKERS, f"{name}p")), f"ctl/{name}", qos=1, rate=100)
        pairs.append((publisher, subscriber))
    crowd.settle()
    crowd.begin()
    crowd.until(lambda: broker.logged("control_ready"), "it serves")
    workers = broker.worker_pids()
    for _, subscriber in pairs:
        subscriber.watch_gaps()
    for death in range(1, 6):
        os.kill(broker.control_pid(), signal.SIGKILL)
        crowd.until(lambda death=death: len(broker.logged("control_ready")) > death, "it is back")  # type: ignore[misc]
    assert ready(broker) == 200
    gaps = [subscriber.gap() for _, subscriber in pairs]
    crowd.finish()
    assert max(gaps) < GAP_SECONDS_MAX
    assert not [member.closed for member in crowd.members if member.closed]
    assert not [1 for publisher, subscriber in pairs if missing(subscriber, publisher)]
    assert all(in_order(subscriber, publisher) for publisher, subscriber in pairs)
    assert broker.worker_pids() == workers
    died = broker.logged("control_died")
    assert [(each["process"], each["reason"]) for each in died] == [("control", "killed by SIGKILL")] * 5
    assert not broker.logged("worker_died")


def test_a_request_waits_for_the_successor(start_broker: StartBroker) -> None:
    """The supervisor holds the backlog: a request that arrives without a control process is answered, not refused."""
    broker = start_broker(WORKERS, *ADMIN)
    wait_until(lambda: broker.logged("control_ready"), SECONDS_MAX, "it serves")
    os.kill(broker.control_pid(), signal.SIGKILL)
    assert ready(broker) == 200


def test_a_control_process_that_hangs_is_replaced(start_broker: StartBroker) -> None:
    """A control process whose heartbeat stands still is killed and started again, as a worker would be."""
    broker = start_broker(WORKERS, *ADMIN, worker_hang_seconds_max=4.0)
    wait_until(lambda: broker.logged("control_ready"), SECONDS_MAX, "it serves")
    os.kill(broker.control_pid(), signal.SIGSTOP)
    wait_until(lambda: len(broker.logged("control_ready")) == 2, SECONDS_MAX, "its successor serves")
    assert broker.logged("control_hung")
    assert ready(broker) == 200
    assert not broker.logged("worker_hung")


def test_control_dies_with_the_supervisor(start_broker: StartBroker) -> None:
    """SIGKILL of the supervisor leaves no control process behind."""
    broker = start_broker(WORKERS, *ADMIN)
    wait_until(lambda: broker.logged("control_ready"), SECONDS_MAX, "it serves")
    session = broker.pid
    assert len(processes_of_session(session)) == WORKERS + 2
    os.kill(broker.pid, signal.SIGKILL)
    wait_until(lambda: not processes_of_session(session), SECONDS_MAX, "no orphan is left")

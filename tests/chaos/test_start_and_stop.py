"""Start and end of the broker: stopped under load, supervisor killed, started twice, given wrong settings."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.broker_process import ROOT, processes_of_session
from tests.chaos.conftest import OpenCrowd, StartBroker
from tests.chaos.crowd import Member, Publisher, Subscriber, ids_on, missing
from tests.waiting import wait_until

WORKERS = 4
STOP_SECONDS_MAX = 14.0  # after 15 s a broker of tests is killed


def test_sigterm_under_load_ends_in_time_and_nobody_is_left(start_broker: StartBroker, crowd_of: OpenCrowd) -> None:
    """Exit status 0 within stop_seconds_max; v5 clients get 0x8B; acknowledged messages arrived; no process is left."""
    broker = start_broker(WORKERS, stop_seconds_max=STOP_SECONDS_MAX)
    crowd = crowd_of(broker)
    pairs: list[tuple[Publisher, Subscriber]] = []
    for source, target in itertools.product(range(WORKERS), repeat=2):
        name = f"stop{source}{target}"
        # Lasting sessions: an ending worker does not acknowledge messages that arrive for them after their connections.
        subscriber = Subscriber(
            crowd, next(ids_on(target, WORKERS, f"{name}s")), f"stop/{name}", qos=1, version=5,
            properties={"session_expiry_interval": 100},
        )  # fmt: skip
        publisher_id = next(ids_on(source, WORKERS, f"{name}p"))
        pairs.append((Publisher(crowd, publisher_id, f"stop/{name}", qos=1, version=5, window=20), subscriber))
    idle = [Member(crowd, f"idle{number}", version=4 + number % 2) for number in range(20)]
    crowd.settle()
    crowd.begin()
    crowd.let_run(0.5)
    began = time.monotonic()
    os.kill(broker.pid, signal.SIGTERM)
    crowd.until(lambda: all(each.closed for each in crowd.members), "every connection is closed", STOP_SECONDS_MAX)
    crowd.until(lambda: not broker.alive(), "the broker has ended", STOP_SECONDS_MAX)
    assert time.monotonic() - began < STOP_SECONDS_MAX
    assert broker.stop() == 0
    assert not broker.logged("workers_killed_stopping")
    assert not broker.logged("worker_died_stopping")
    for member in crowd.members:
        told = [packet.reason for packet in member.packets if packet.kind == "DISCONNECT"]
        assert told == ([0x8B] if member.version == 5 else []), member.client_id
        assert member.closed == "closed by the broker"
    assert idle
    for publisher, subscriber in pairs:
        assert publisher.acknowledged
        assert not missing(subscriber, publisher)


def test_sigterm_is_obeyed_while_a_client_does_not_read(start_broker: StartBroker, crowd_of: OpenCrowd) -> None:
    """A connection whose output the kernel does not take delays nothing."""
    broker = start_broker(2, stop_seconds_max=STOP_SECONDS_MAX)
    crowd = crowd_of(broker)
    stalled = Subscriber(crowd, "stalled", "stop/stalled", version=5, receive_buffer=4096)
    publisher = Publisher(crowd, "floods", "stop/stalled", payload_bytes=50_000, count=300)
    crowd.settle()
    stalled.read_on(False)
    publisher.begin()
    crowd.until(lambda: publisher.done, "the stalled one's outbox is full")
    crowd.until(lambda: broker.logged("drops_begin"), "it drops")
    began = time.monotonic()
    assert broker.stop() == 0
    assert time.monotonic() - began < STOP_SECONDS_MAX
    assert not broker.logged("workers_killed_stopping")


def test_sigkill_of_the_supervisor_leaves_no_orphan(start_broker: StartBroker, crowd_of: OpenCrowd) -> None:
    """The kernel ends the workers; the next start removes the files of the dead broker in its runtime directory."""
    broker = start_broker(WORKERS)
    crowd = crowd_of(broker)
    clients = [Member(crowd, f"orphan{number}") for number in range(20)]
    crowd.settle()
    session = broker.pid
    assert len(processes_of_session(session)) == WORKERS + 1
    os.kill(broker.pid, signal.SIGKILL)
    crowd.until(lambda: all(each.closed for each in clients), "the connections are closed")
    wait_until(lambda: not processes_of_session(session), 60.0, "no orphan is left")


def test_sigkill_of_the_supervisor_ends_a_stopped_worker_too(start_broker: StartBroker) -> None:
    """SIGKILL also ends a process under SIGSTOP."""
    broker = start_broker(2)
    os.kill(broker.worker_pids()[1], signal.SIGSTOP)
    session = broker.pid
    os.kill(broker.pid, signal.SIGKILL)
    wait_until(lambda: not processes_of_session(session), 60.0, "no orphan is left")


def test_a_port_in_use_is_noticed(start_broker: StartBroker, tmp_path: Path) -> None:
    """One line, exit status 3, although the workers' sockets could share the port; the first broker keeps serving."""
    broker = start_broker(2)
    second = subprocess.run(
        [sys.executable, "-m", "broker", "--workers", "2", "--port", str(broker.address[1]), "--host", "127.0.0.1"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60.0, check=False,
    )  # fmt: skip
    assert second.returncode == 3
    assert second.stdout == ""
    assert [line for line in second.stderr.splitlines() if "in use" in line] == second.stderr.splitlines()
    assert broker.alive()


def test_sighup_with_wrong_settings_keeps_the_old(
    start_broker: StartBroker, crowd_of: OpenCrowd, tmp_path: Path
) -> None:
    """reload_refused names the key; clients notice nothing; afterwards all workers apply a correct config."""
    config = tmp_path / "mqttd.toml"
    config.write_text("[limits]\nreceive_maximum = 7\n")
    broker = start_broker(2, "--config", str(config))
    crowd = crowd_of(broker)

    def receive_maxima() -> set[int]:
        new = [Member(crowd, next(ids_on(worker, 2, f"hup{len(crowd.members)}x")), version=5) for worker in (0, 1)]
        crowd.until(lambda: all(each.connack for each in new), "they are accepted")
        return {each.connack.properties["receive_maximum"] for each in new if each.connack}

    assert receive_maxima() == {7}
    config.write_text("[limits]\nreceive_maximum = 0\n")
    os.kill(broker.pid, signal.SIGHUP)
    crowd.until(lambda: broker.logged("reload_refused"), "the wrong config is refused")
    assert "limits.receive_maximum" in broker.logged("reload_refused")[0]["reason"]
    assert receive_maxima() == {7}
    config.write_text("[limits]\nreceive_maximum = 9\n")
    os.kill(broker.pid, signal.SIGHUP)
    crowd.until(lambda: sum("worker" in line for line in broker.logged("reloaded")) == 2, "both have reloaded")
    assert receive_maxima() == {9}
    assert not [each for each in crowd.members if each.closed]

"""Every signal that ends a process by default, to every process of a broker: none ends one by surprise, and each is
either an action that is documented or a line in the log.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from functools import partial

import pytest

from broker.testing import READY_SECONDS_MAX
from shards.signals import IGNORED, name_of
from tests.broker_process import KIND, BrokerProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(KIND != "mqttd", reason="about the processes of mqttd")

SECONDS_MAX = 60.0
ARGUMENTS = ["--log-format", "json", "--admin", "127.0.0.1:0"]


#: what ends a process by default, and no fault of the processor raises
FATAL = {
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGTERM),
    *(signal.SIGSTKFLT, signal.SIGXCPU, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGPWR),
    *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
}


def test_every_signal_has_its_place() -> None:
    """What is not ignored with a line means something to the supervisor."""
    assert {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM} == FATAL - IGNORED


def test_signals_that_mean_nothing_are_ignored_with_a_line() -> None:
    """All of them, to supervisor, workers and control process: a line each, and every process goes on."""
    with BrokerProcess(2, ARGUMENTS) as broker:
        processes: dict[tuple[str, object], int] = {}
        for index, pid in broker.worker_pids().items():
            processes["worker", index] = pid
        wait_until(broker.control_pid, SECONDS_MAX, "there is a control process")
        wait_until(lambda: broker.logged("control_ready"), SECONDS_MAX, "it serves")
        processes["process", "control"] = broker.control_pid()
        before = sorted(broker.processes())
        for number in sorted(IGNORED):
            os.kill(broker.pid, number)
            for pid in processes.values():
                os.kill(pid, number)

        def told(key: str | None, value: object) -> set[str]:
            return {
                line["signal"]
                for line in broker.logged("signal_ignored")
                if (line.get(key) == value if key else not {"worker", "process"} & set(line))
            }

        everything = {name_of(number) for number in IGNORED}

        def has_told_all(key: str, value: object) -> bool:
            return told(key, value) == everything - {"SIGUSR2"}  # a worker writes its stack for this one

        wait_until(lambda: told(None, None) == everything, SECONDS_MAX, "the supervisor has told all")
        for key, value in processes:
            wait_until(partial(has_told_all, key, value), SECONDS_MAX, f"{key} {value} has told all")
        assert sorted(broker.processes()) == before
        assert not broker.logged("worker_died")
        assert broker.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT, signal.SIGHUP])
def test_what_a_terminal_sends_to_all_is_the_supervisors_to_judge(number: signal.Signals) -> None:
    """Workers and control process do nothing, and nothing is said."""
    with BrokerProcess(2, ARGUMENTS) as broker:
        wait_until(lambda: broker.logged("control_ready"), SECONDS_MAX, "it serves")
        before = sorted(broker.processes())
        for pid in before:
            if pid != broker.pid:
                os.kill(pid, number)
        os.kill(broker.pid, signal.SIGUSR1)  # it is no process of another group: what it says comes later
        wait_until(lambda: broker.logged("signal_ignored"), SECONDS_MAX, "the supervisor has looked")
        assert sorted(broker.processes()) == before
        assert broker.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_the_supervisor_stops(number: signal.Signals) -> None:
    """In order, with a line that names the signal, and status 0."""
    with BrokerProcess(2, ARGUMENTS) as broker:
        assert broker.stop(number) == 0
        assert [line["signal"] for line in broker.logged("stopping") if "worker" not in line] == [number.name]


def test_signals_while_it_starts() -> None:
    """Everything that there is gets SIGUSR1 again and again until the broker is ready: it becomes ready, and nobody has
    died. What comes before a process can say so is said when it can.
    """
    broker = BrokerProcess(2, ARGUMENTS)
    try:
        over = threading.Event()

        def shoot() -> None:
            deadline = time.monotonic() + READY_SECONDS_MAX
            while not over.wait(0.001) and time.monotonic() < deadline:
                # an interpreter that is loading has no handlers: what comes before it has forked is not our matter
                there = broker.processes() if broker.alive() else []
                for pid in there if len(there) > 1 else ():
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGUSR1)

        thread = threading.Thread(target=shoot)
        thread.start()
        try:
            broker.start()
        finally:
            over.set()
            thread.join()
        assert not broker.logged("worker_died")
        wait_until(lambda: broker.logged("signal_ignored"), SECONDS_MAX, "it was said")
        assert broker.stop() == 0
    finally:
        broker.close()

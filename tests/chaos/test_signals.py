"""Every signal that ends a process by default, sent to every process of a broker: none ends one by surprise, and each
is either a documented action or a line in the log.
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


#: signals that end a process by default, and that no fault of the processor raises
FATAL = {
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGTERM),
    *(signal.SIGSTKFLT, signal.SIGXCPU, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGPWR),
    *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
}


def test_every_signal_has_its_place() -> None:
    """Every signal that is not ignored with a line has a meaning for the supervisor."""
    assert {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM} == FATAL - IGNORED


def test_signals_that_mean_nothing_are_ignored_with_a_line() -> None:
    """Supervisor, workers and control process log a line for each of these signals and keep running."""
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
    """Workers and control process do nothing, and nothing is logged."""
    with BrokerProcess(2, ARGUMENTS) as broker:
        wait_until(lambda: broker.logged("control_ready"), SECONDS_MAX, "it serves")
        before = sorted(broker.processes())
        for pid in before:
            if pid != broker.pid:
                os.kill(pid, number)
        os.kill(broker.pid, signal.SIGUSR1)  # its line shows that the supervisor has looked since
        wait_until(lambda: broker.logged("signal_ignored"), SECONDS_MAX, "the supervisor has looked")
        assert sorted(broker.processes()) == before
        assert broker.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_the_supervisor_stops(number: signal.Signals) -> None:
    """The supervisor stops in order, with a line that names the signal, and status 0."""
    with BrokerProcess(2, ARGUMENTS) as broker:
        assert broker.stop(number) == 0
        assert [line["signal"] for line in broker.logged("stopping") if "worker" not in line] == [number.name]


def test_signals_while_it_starts() -> None:
    """All processes get SIGUSR1 again and again until the broker is ready: it becomes ready, and no process has died.
    Signals that arrive before a process can log them are logged later.
    """
    broker = BrokerProcess(2, ARGUMENTS)
    try:
        over = threading.Event()

        def shoot() -> None:
            deadline = time.monotonic() + READY_SECONDS_MAX
            while not over.wait(0.001) and time.monotonic() < deadline:
                # an interpreter that is loading has no handlers: signals before its fork are not tested here
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

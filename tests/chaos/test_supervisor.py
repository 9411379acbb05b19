"""The supervisor with real processes: workers that die, hang or cannot start, and the death of the supervisor itself.

The worker here answers one line per command (tests/chaos/supervised.py); nothing of MQTT is involved.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker_process import ROOT, processes_of_session
from tests.waiting import wait_until

SECONDS_MAX = 60.0
HANG_SECONDS = 3.0
"""A stopped worker is noticed soon; one that waits for a busy machine is not taken for hung."""


class Supervised:
    """A running supervisor with its workers."""

    def __init__(self, options: dict[str, Any], environment: dict[str, str], directory: Path) -> None:
        self._out, self._err = directory / "out", directory / "err"
        self._connections: list[socket.socket] = []
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.supervised", json.dumps(options)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=ROOT,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def wait_ready(self) -> Supervised:
        wait_until(lambda: self._out.read_text().endswith("\n") or not self.alive(), SECONDS_MAX, "ready")
        assert self.process.poll() is None, self._err.read_text()
        return self

    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def port(self) -> int:
        return int(self._out.read_text().split()[1])

    def log(self) -> list[dict[str, Any]]:
        """Return the log events until now (a dying worker's plain text left out)."""
        return [json.loads(line) for line in self._err.read_text().splitlines() if line.startswith("{")]

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [entry for entry in self.log() if entry["event"] == event]

    def processes(self) -> list[int]:
        return processes_of_session(self.process.pid)

    def connect(self, host: str = "127.0.0.1") -> socket.socket:
        self._connections.append(socket.create_connection((host, self.port), timeout=SECONDS_MAX))
        return self._connections[-1]

    def ask(self, connection: socket.socket, command: str) -> Any:
        connection.sendall(command.encode())
        answer = b""
        while not answer.endswith(b"\n"):
            piece = connection.recv(65536)
            if not piece:
                raise ConnectionError("closed")
            answer += piece
        return json.loads(answer)

    def connections(self, count: int) -> dict[int, socket.socket]:
        """Return one connection to each of `count` workers."""
        found: dict[int, socket.socket] = {}

        def one_more() -> bool:
            connection = self.connect()
            index = self.ask(connection, "who")["index"]
            if index in found:
                connection.close()
            else:
                found[index] = connection
            return len(found) == count

        wait_until(one_more, SECONDS_MAX, f"a connection to each of {count} workers")
        return dict(sorted(found.items()))

    def end(self, with_signal: int = signal.SIGTERM) -> int:
        self.process.send_signal(with_signal)
        return self.wait()

    def wait(self) -> int:
        status = self.process.wait(SECONDS_MAX)
        wait_until(lambda: not self.processes(), SECONDS_MAX, "no process is left")
        return status

    def clean_up(self) -> None:
        for connection in self._connections:
            connection.close()
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self.process.wait(SECONDS_MAX)


Start = Callable[..., Supervised]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(environment={}, **options)`` with the options of tests.chaos.supervised; ends with the test."""
    started: list[Supervised] = []
    with tempfile.TemporaryDirectory(prefix="m", dir="/tmp") as short:  # tmp_path is too long for runtime directories

        def start_one(environment: dict[str, str] | None = None, **options: Any) -> Supervised:
            directory = tmp_path / str(len(started))
            directory.mkdir()
            started.append(Supervised(options, {"TMPDIR": short, **(environment or {})}, directory))
            return started[-1]

        yield start_one
        for each in started:
            each.clean_up()


def test_every_worker_serves_on_one_port_and_all_stop(start: Start) -> None:
    broker = start(workers=3).wait_ready()
    connections = broker.connections(3)
    answers = [broker.ask(connection, "who") for connection in connections.values()]
    assert [answer["index"] for answer in answers] == [0, 1, 2]
    assert len({answer["pid"] for answer in answers}) == 3
    assert len({answer["random"] for answer in answers}) == 3
    assert sorted(broker.processes()) == sorted([broker.process.pid, *(answer["pid"] for answer in answers)])
    assert broker.end() == 0
    assert not broker.logged("workers_killed_stopping")
    assert not Path(answers[0]["runtime_dir"]).exists()


def test_process_titles_say_who_is_who(start: Start) -> None:
    broker = start(workers=2).wait_ready()

    def title(pid: int) -> str:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()

    titles = {title(pid) for pid in broker.processes()}
    assert titles == {"mqttd: supervisor", "mqttd: worker 0", "mqttd: worker 1"}


def test_ipv4_and_ipv6_share_the_picked_port(start: Start) -> None:
    broker = start(workers=2, hosts=["127.0.0.1", "::1"]).wait_ready()
    for host in ("127.0.0.1", "::1"):
        with broker.connect(host) as connection:
            assert len(broker.ask(connection, "who")["listeners"]) == 2


def test_a_port_in_use_is_noticed_although_workers_share_it(start: Start) -> None:
    first = start(workers=2).wait_ready()
    second = start(workers=2, port=first.port)
    assert second.wait() == 3
    assert second.logged("cannot_listen")[0]["reason"] == f"cannot listen on 127.0.0.1:{first.port}: the port is in use"
    assert len(first.processes()) == 3


def test_a_worker_holds_no_socket_of_a_sibling(start: Start) -> None:
    broker = start(workers=2).wait_ready()
    answers = [broker.ask(connection, "who") for connection in broker.connections(2).values()]
    for own, other in (answers, answers[::-1]):
        held = {os.readlink(entry) for entry in Path(f"/proc/{own['pid']}/fd").iterdir() if entry.is_symlink()}
        assert {f"socket:[{inode}]" for inode in own["listeners"]} <= held
        assert not {f"socket:[{inode}]" for inode in other["listeners"]} & held


def test_a_killed_worker_comes_back_and_its_siblings_are_told(start: Start) -> None:
    broker = start(workers=3).wait_ready()
    connections = broker.connections(3)
    former = broker.ask(connections[1], "who")
    os.kill(former["pid"], signal.SIGKILL)
    wait_until(lambda: len(broker.logged("worker_ready")) == 4, SECONDS_MAX, "it is back")
    assert broker.logged("worker_died")[0]["reason"] == "killed by SIGKILL"
    successor = broker.ask(broker.connections(3)[1], "who")
    assert successor["incarnation"] > former["incarnation"]
    for index in (0, 2):  # their connections are the same as before
        heard = broker.ask(connections[index], "heard")
        about = [
            message for message in heard if message["worker"] == 1 and message["incarnation"] != former["incarnation"]
        ]
        down = {"event": "sibling_down", "worker": 1, "incarnation": former["incarnation"]}
        up = {"event": "sibling_up", "worker": 1, "incarnation": successor["incarnation"]}
        assert heard[-2:] == [down, up]
        assert about == [up]
        assert successor["incarnations"][index] == broker.ask(connections[index], "who")["incarnation"]
    told = broker.ask(broker.connections(3)[1], "heard")
    assert sorted(message["worker"] for message in told if message["event"] == "sibling_up") == [0, 2]


def test_every_worker_knows_every_sibling_after_the_start(start: Start) -> None:
    broker = start(workers=3).wait_ready()
    connections = broker.connections(3)
    incarnations = {index: broker.ask(each, "who")["incarnation"] for index, each in connections.items()}
    for index, connection in connections.items():
        heard = {message["worker"]: message["incarnation"] for message in broker.ask(connection, "heard")}
        assert heard == {other: number for other, number in incarnations.items() if other != index}


def test_connections_wait_in_the_backlog_of_a_dead_worker(start: Start) -> None:
    """Twice in a row: the second successor starts 0.25 s later, and serves the connections made meanwhile."""
    broker = start(workers=1).wait_ready()
    former = 0
    for _ in range(2):
        with broker.connect() as connection:
            pid = broker.ask(connection, "who")["pid"]
            assert pid != former
            former = pid
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda gone=pid: gone not in broker.processes(), SECONDS_MAX, "it is gone")  # type: ignore[misc]
    with broker.connect() as connection:
        assert broker.ask(connection, "who")["pid"] != former


def test_a_hand_off_to_a_dead_worker_is_taken_by_its_successor(start: Start) -> None:
    broker = start(workers=2).wait_ready()
    connections = broker.connections(2)
    former = broker.ask(connections[1], "who")["pid"]
    os.kill(former, signal.SIGSTOP)  # so that it cannot take the connection
    connections[0].sendall(b"hand 1 who")
    os.kill(former, signal.SIGKILL)
    answer = json.loads(connections[0].recv(65536))
    assert (answer["index"], answer["pid"] != former) == (1, True)


def test_counter_rows_are_shared_and_outlive_a_worker(start: Start) -> None:
    broker = start(workers=2).wait_ready()
    connections = broker.connections(2)
    assert broker.ask(connections[0], "count") == [1, 0]
    assert broker.ask(connections[1], "count") == [1, 1]
    os.kill(broker.ask(connections[1], "who")["pid"], signal.SIGKILL)
    wait_until(lambda: len(broker.logged("worker_ready")) == 3, SECONDS_MAX, "it is back")
    assert broker.ask(broker.connections(2)[1], "count") == [1, 2]


def test_no_orphan_is_left_when_the_supervisor_is_killed(start: Start) -> None:
    broker = start(workers=3).wait_ready()
    assert len(broker.processes()) == 4
    broker.process.kill()
    broker.process.wait(SECONDS_MAX)
    wait_until(lambda: not broker.processes(), SECONDS_MAX, "no worker is left")


def test_what_a_killed_supervisor_left_is_removed_at_the_next_start(start: Start) -> None:
    with tempfile.TemporaryDirectory(prefix="m", dir="/tmp") as base:
        killed = start(environment={"TMPDIR": base}).wait_ready()
        alive = start(environment={"TMPDIR": base}).wait_ready()
        killed.process.kill()
        killed.wait()
        assert len(os.listdir(base)) == 2
        start(environment={"TMPDIR": base}).wait_ready()
        assert len(os.listdir(base)) == 2
        with alive.connect() as connection:
            assert Path(alive.ask(connection, "who")["runtime_dir"]).is_dir()


def test_a_hanging_worker_is_logged_with_its_stack_and_replaced(start: Start) -> None:
    broker = start(workers=2, policy={"worker_hang_seconds_max": HANG_SECONDS}).wait_ready()
    connections = broker.connections(2)
    connections[0].sendall(b"hang")
    wait_until(lambda: len(broker.logged("worker_ready")) == 3, SECONDS_MAX, "it was replaced")
    hung = broker.logged("worker_hung")
    assert len(hung) == 1
    assert hung[0]["worker"] == 0
    assert "_stuck_in_here" in hung[0]["stack"]
    assert hung[0]["state"].startswith("R")
    assert broker.logged("worker_died")[0]["reason"] == "hung"
    assert broker.ask(connections[1], "who")["index"] == 1


def test_a_stopped_worker_is_replaced_too(start: Start) -> None:
    """A process under SIGSTOP cannot write its stack, but SIGKILL ends it."""
    broker = start(workers=1, policy={"worker_hang_seconds_max": HANG_SECONDS}).wait_ready()
    with broker.connect() as connection:
        os.kill(broker.ask(connection, "who")["pid"], signal.SIGSTOP)
    wait_until(lambda: len(broker.logged("worker_ready")) == 2, SECONDS_MAX, "it was replaced")
    assert broker.logged("worker_hung")[0]["state"].startswith("T")


def test_a_machine_that_slept_kills_nobody(start: Start) -> None:
    """Supervisor and workers stopped together (a suspended machine): silence is not taken for a hang."""
    broker = start(workers=2, policy={"worker_hang_seconds_max": HANG_SECONDS}).wait_ready()
    pids = broker.processes()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    resume_at = time.monotonic() + 2 * HANG_SECONDS
    wait_until(lambda: time.monotonic() > resume_at, SECONDS_MAX, "the machine sleeps")
    os.kill(broker.process.pid, signal.SIGCONT)  # first: it finds them silent
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    awake_until = time.monotonic() + HANG_SECONDS
    wait_until(lambda: time.monotonic() > awake_until, SECONDS_MAX, "the supervisor has looked")
    assert broker.processes() == pids


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"fails": 1}, "worker 1 cannot start: no such store (exit status 1)"),
        ({"raises": 0}, "worker 0 cannot start: RuntimeError: broken worker (exit status 1)"),
        ({"dies": 1}, "worker 1 cannot start: killed by SIGKILL"),
    ],
)
def test_a_worker_that_cannot_start_ends_the_broker(start: Start, settings: dict[str, int], reason: str) -> None:
    broker = start(workers=2, settings=settings)
    assert broker.wait() == 1
    assert broker.logged("ended")[0]["failure"] == reason


def test_the_tenth_death_within_a_minute_ends_the_broker(start: Start) -> None:
    broker = start(workers=5).wait_ready()
    for count in range(1, 11):
        assert broker.process.poll() is None
        pid = next(pid for pid in broker.processes() if pid != broker.process.pid)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda n=count: len(broker.logged("worker_died")) == n, SECONDS_MAX, f"death {count}")  # type: ignore[misc]
        if count < 10:
            wait_until(lambda: len(broker.processes()) > 1, SECONDS_MAX, "somebody to kill")
    assert broker.wait() == 1
    assert broker.logged("ended")[0]["failure"].startswith("10 workers died within 60 s, the last was worker")


def test_restarts_back_off(start: Start) -> None:
    """The first restart is immediate, the second after 0.25 s, the third after 0.5 s."""
    broker = start(workers=1).wait_ready()
    pauses = []
    for deaths in range(1, 4):
        with broker.connect() as connection:
            os.kill(broker.ask(connection, "who")["pid"], signal.SIGKILL)
        killed_at = time.monotonic()
        wait_until(lambda n=deaths: len(broker.logged("worker_ready")) == n + 1, SECONDS_MAX, "it is back")  # type: ignore[misc]
        pauses.append(time.monotonic() - killed_at)
    assert pauses[1] >= 0.25
    assert pauses[2] >= 0.5


def test_sigint_of_a_terminal_ends_everybody_orderly(start: Start) -> None:
    """Ctrl-C reaches the whole group; the workers leave it to the supervisor."""
    broker = start(workers=2).wait_ready()
    os.killpg(broker.process.pid, signal.SIGINT)
    assert broker.wait() == 0
    assert not broker.logged("worker_died_stopping")


def test_a_worker_that_ignores_the_stop_is_killed_in_time(start: Start) -> None:
    broker = start(workers=2, policy={"stop_seconds_max": 1.0}, settings={"ignore_stop": True}).wait_ready()
    began = time.monotonic()
    assert broker.end() == 0
    assert time.monotonic() - began > 0.9
    assert broker.logged("workers_killed_stopping")[0]["workers"] == [0, 1]


def test_nothing_is_accepted_any_more_while_workers_end_their_work(start: Start) -> None:
    """The supervisor's own copies of the listening sockets do not keep the backlogs open."""
    broker = start(workers=2, policy={"stop_seconds_max": SECONDS_MAX}, settings={"ignore_stop": True}).wait_ready()
    broker.process.send_signal(signal.SIGTERM)

    def refused() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", broker.port)) == errno.ECONNREFUSED

    wait_until(refused, SECONDS_MAX / 2, "connections are refused")
    assert len(broker.processes()) == 3


def test_a_second_signal_does_not_wait(start: Start) -> None:
    broker = start(workers=2, policy={"stop_seconds_max": 3600.0}, settings={"ignore_stop": True}).wait_ready()
    broker.process.send_signal(signal.SIGTERM)
    wait_until(lambda: broker.logged("stopping"), SECONDS_MAX, "it is stopping")
    assert broker.end() == 0


def test_a_stop_while_starting(start: Start) -> None:
    broker = start(workers=2, policy={"stop_seconds_max": 1.0}, settings={"slow": 1})
    wait_until(lambda: broker.logged("worker_ready"), SECONDS_MAX, "one of two is ready")
    assert broker.end() == 0


def test_reload_reaches_running_and_later_workers(start: Start) -> None:
    broker = start(workers=2, settings={"reload": {"level": "debug"}}).wait_ready()
    connections = broker.connections(2)
    broker.process.send_signal(signal.SIGHUP)
    wait_until(lambda: broker.logged("reloaded"), SECONDS_MAX, "it has reloaded")
    for connection in connections.values():
        heard = broker.ask(connection, "heard")[-1]
        assert heard == {"event": "reload", "number": 1, "settings": {"level": "debug"}}
    os.kill(broker.ask(connections[0], "who")["pid"], signal.SIGKILL)
    wait_until(lambda: len(broker.logged("worker_ready")) == 3, SECONDS_MAX, "it is back")
    assert broker.ask(broker.connections(2)[0], "who")["settings"]["level"] == "debug"


def test_a_reload_of_any_size_reaches_everybody_before_it_is_said(start: Start) -> None:
    """3 MB of settings, more than a packet holds, reach all workers before the reload is logged."""
    rules = ["x" * 1000] * 3000
    broker = start(workers=2, settings={"reload_items": 3000}).wait_ready()
    broker.process.send_signal(signal.SIGHUP)
    wait_until(lambda: broker.logged("reloaded"), SECONDS_MAX, "it has reloaded")
    for connection in broker.connections(2).values():
        assert broker.ask(connection, "heard")[-1] == {"event": "reload", "number": 1, "settings": {"rules": rules}}


def test_a_reload_is_not_said_before_each_worker_has_said_so(start: Start) -> None:
    """While one worker is stopped nothing is logged; when it continues, all have reloaded."""
    broker = start(workers=2, settings={"reload": {"level": "debug"}}).wait_ready()
    connections = broker.connections(2)
    stopped = broker.ask(connections[1], "who")["pid"]
    os.kill(stopped, signal.SIGSTOP)
    broker.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "reload" in str(broker.ask(connections[0], "heard")), SECONDS_MAX, "the other one has heard it")
    assert not broker.logged("reloaded")
    os.kill(stopped, signal.SIGCONT)
    wait_until(lambda: broker.logged("reloaded"), SECONDS_MAX, "all have reloaded")
    assert not broker.logged("reload_refused")


def test_a_worker_that_refuses_a_reload_is_named(start: Start) -> None:
    broker = start(workers=3, settings={"reload": {"level": "debug"}, "refuses": 1}).wait_ready()
    broker.process.send_signal(signal.SIGHUP)
    wait_until(lambda: broker.logged("reload_refused"), SECONDS_MAX, "it is said")
    (line,) = broker.logged("reload_refused")
    assert (line["worker"], line["reason"]) == (1, "not this one")
    assert not broker.logged("reloaded")


def test_a_worker_that_does_not_answer_to_a_reload_is_named(start: Start) -> None:
    """A worker with a heartbeat that ignores the reload is named after worker_hang_seconds_max, then not waited for."""
    policy = {"worker_hang_seconds_max": HANG_SECONDS}
    broker = start(workers=2, policy=policy, settings={"reload": {"level": "debug"}, "deaf": 0}).wait_ready()
    broker.process.send_signal(signal.SIGHUP)
    wait_until(lambda: broker.logged("reload_refused"), SECONDS_MAX, "it is said")
    (line,) = broker.logged("reload_refused")
    assert (line["worker"], line["reason"]) == (0, "it does not answer")
    assert not broker.logged("reloaded")


def test_a_worker_that_dies_during_a_reload_is_not_waited_for(start: Start) -> None:
    """Its successor has the new settings."""
    broker = start(workers=2, settings={"reload": {"level": "debug"}, "deaf": 0}).wait_ready()
    pid = broker.ask(broker.connections(2)[0], "who")["pid"]
    broker.process.send_signal(signal.SIGHUP)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: broker.logged("reloaded"), SECONDS_MAX, "it has reloaded")
    wait_until(lambda: len(broker.logged("worker_ready")) == 3, SECONDS_MAX, "it is back")
    assert broker.ask(broker.connections(2)[0], "who")["settings"]["level"] == "debug"


def test_a_wrong_reload_changes_nothing(start: Start) -> None:
    broker = start(workers=1).wait_ready()
    broker.process.send_signal(signal.SIGHUP)
    wait_until(lambda: broker.logged("reload_refused"), SECONDS_MAX, "it has refused")
    assert broker.logged("reload_refused")[0]["reason"] == "port: wrong"
    with broker.connect() as connection:
        assert all(message["event"] != "reload" for message in broker.ask(connection, "heard"))


def test_the_service_manager_is_told(start: Start) -> None:
    """Sent: READY when all serve, WATCHDOG while they do, RELOADING and READY around a reload, STOPPING at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="m", dir="/tmp") as directory,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
    ):
        manager.bind(f"{directory}/notify")
        manager.settimeout(SECONDS_MAX)
        environment = {"NOTIFY_SOCKET": f"{directory}/notify", "WATCHDOG_USEC": "400000"}
        broker = start(environment=environment, settings={"reload": {}}).wait_ready()

        def next_message() -> str:
            while (message := manager.recv(4096).decode().split("\n")[0]) == "WATCHDOG=1":
                pass
            return message

        assert next_message() == "READY=1"
        assert manager.recv(4096) == b"WATCHDOG=1"
        broker.process.send_signal(signal.SIGHUP)
        assert [next_message(), next_message()] == ["RELOADING=1", "READY=1"]
        broker.process.send_signal(signal.SIGTERM)
        assert next_message() == "STOPPING=1"
        assert broker.wait() == 0


def test_workers_are_pinned_when_asked(start: Start) -> None:
    usable = sorted(os.sched_getaffinity(0))
    broker = start(workers=2, pin_cpus=True).wait_ready()
    pinned = [broker.ask(connection, "who")["cpus"] for connection in broker.connections(2).values()]
    assert pinned == [[usable[0]], [usable[1 % len(usable)]]]

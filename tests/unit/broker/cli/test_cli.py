"""The command line: its output before a broker runs, around one, and when none can start.

The worker is a stand-in that is ready at once and stops on request, so that this needs nothing compiled.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import plyvel
import pytest

from tests.broker_process import ROOT, processes_of_session
from tests.waiting import wait_until

SECONDS_MAX = 60.0
WITH_STAND_IN = """
import select, sys, types
from pyx.core import counters
worker = types.ModuleType("broker.worker.process")
def run(channel):
    channel.ready()
    while not any(message["event"] == "stop" for message in channel.messages()):
        channel.heartbeat[0] += 1
        select.select([channel.control], [], [], 0.1)
    return 0
worker.run, counters.ROW_BYTES, counters.NAMES = run, 8192, ("x", "heartbeat")
counters.settle_row = counters.in_hand = lambda row: None
sys.modules["broker.worker.process"] = worker
"""
MAIN = "from broker.cli.main import main; sys.exit(main())"


class Command:
    """A run of `mqttd` with the stand-in."""

    def __init__(
        self, directory: Path, *arguments: str, program: str = WITH_STAND_IN, environment: dict[str, str]
    ) -> None:
        self._out, self._err = directory / "out", directory / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program + MAIN, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=ROOT,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def out(self) -> str:
        return self._out.read_text()

    def err(self) -> str:
        return self._err.read_text()

    def wait_ready(self) -> Command:
        wait_until(lambda: self.out().endswith("\n") or self.process.poll() is not None, SECONDS_MAX, "ready")
        assert self.process.poll() is None, self.err()
        return self

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SECONDS_MAX)

    def status(self) -> int:
        return self.process.wait(SECONDS_MAX)


Mqttd = Callable[..., Command]


@pytest.fixture
def mqttd(tmp_path: Path) -> Iterator[Mqttd]:
    """``mqttd(*arguments, environment={}, program=...)`` starts it and returns the run."""
    started: list[Command] = []
    with tempfile.TemporaryDirectory(prefix="m", dir="/tmp") as short:  # tmp_path is too long for runtime directories

        def start(*arguments: str, environment: dict[str, str] | None = None, program: str = WITH_STAND_IN) -> Command:
            directory = tmp_path / str(len(started))
            directory.mkdir()
            data_dir = str(directory / "data")
            all_of_it = {"TMPDIR": short, "MQTTD_ADMIN": "none", "MQTTD_DATA_DIR": data_dir, **(environment or {})}
            started.append(Command(directory, *arguments, program=program, environment=all_of_it))
            return started[-1]

        yield start
        for each in started:
            for pid in processes_of_session(each.process.pid):
                os.kill(pid, signal.SIGKILL)
            each.process.wait(SECONDS_MAX)


def seconds_in_line(session: int) -> float:
    """Return how long other processes kept its processes from a core: 0 on an idle machine."""
    stats = [file for pid in processes_of_session(session) for file in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(file.read_text().split()[1]) for file in stats) / 1e9


@pytest.mark.alone
def test_the_ready_line_is_all_of_the_output_and_comes_soon(mqttd: Mqttd) -> None:
    began = time.monotonic()
    command = mqttd("--workers", "2", "--port", "0").wait_ready()
    seconds = time.monotonic() - began
    assert seconds - seconds_in_line(command.process.pid) < 2.0
    assert re.fullmatch(r"mqttd ready 127\.0\.0\.1:\d+ workers=2\n", command.out())
    assert command.end() == 0
    assert command.out().count("\n") == 1


def test_an_ipv6_host_stands_in_brackets(mqttd: Mqttd) -> None:
    command = mqttd("--workers", "1", "--port", "0", "--host", "::1").wait_ready()
    assert re.fullmatch(r"mqttd ready \[::1\]:\d+ workers=1\n", command.out())
    assert "mosquitto_pub -h ::1 -p " in command.err()


def test_the_banner_says_what_was_started_and_what_to_try(mqttd: Mqttd) -> None:
    command = mqttd("--workers", "2", "--port", "0").wait_ready()
    port = command.out().split()[2].rpartition(":")[2]
    banner = command.err()
    for said in (
        f"127.0.0.1:{port}, [::1]:{port}",
        "workers       2",
        "store         leveldb in ",
        "anonymous clients are allowed",
        "at most",
    ):
        assert said in banner
    assert len(re.findall(rf"^  mosquitto_(?:pub|sub) -h 127\.0\.0\.1 -p {port} ", banner, re.MULTILINE)) == 3


def on_cores(cores: int) -> str:
    """Return the stand-in on a host of so many cores."""
    return f"import os; os.sched_getaffinity = lambda _: set(range({cores}))" + WITH_STAND_IN


@pytest.mark.parametrize(("cores", "started"), [(1, 1), (63, 63), (64, 64), (65, 64), (256, 64)])
def test_there_are_as_many_workers_as_cores_and_64_at_most(mqttd: Mqttd, cores: int, started: int) -> None:
    """A host with more usable cores than there can be workers starts 64 by default, and logs the reason."""
    command = mqttd("--port", "0", program=on_cores(cores)).wait_ready()
    assert command.out().endswith(f" workers={started}\n")
    said = [line for line in command.err().splitlines() if "workers_capped" in line]
    assert len(said) == (cores > 64)
    for line in said:
        assert f"cores={cores} workers=64" in line
        assert "64 bits" in line
    assert command.end() == 0


@pytest.mark.alone  # 64 processes
def test_the_default_start_of_a_host_with_96_cores(mqttd: Mqttd) -> None:
    """With real workers: all 64 serve."""
    many = "import os, sys; os.sched_getaffinity = lambda _: set(range(96))\n"
    command = mqttd("--port", "0", "--store", "memory", program=many)
    wait_until(lambda: command.out() or command.process.poll() is not None, 60.0, "ready")
    assert command.out().endswith(" workers=64\n"), command.err()
    assert command.process.poll() is None
    command.process.send_signal(signal.SIGTERM)
    assert command.process.wait(60.0) == 0


@pytest.mark.parametrize("asked", [pytest.param("64", marks=pytest.mark.alone), "65"])
def test_more_than_64_workers_are_refused_when_asked_for(mqttd: Mqttd, asked: str) -> None:
    command = mqttd("--port", "0", "--workers", asked)
    if asked == "64":
        assert command.wait_ready().end() == 0
        return
    assert command.status() == 2
    assert command.err() == (
        "mqttd: workers: should be at most 64, because a set of workers is a word of 64 bits, not 65 (from --workers)\n"
    )


def test_logs_in_json_are_json_from_the_first_line(mqttd: Mqttd) -> None:
    command = mqttd("--workers", "1", "--port", "0", "--log-format", "json").wait_ready()
    assert command.end() == 0
    events = [json.loads(line) for line in command.err().splitlines()]
    assert [event["event"] for event in events] == ["start", "worker_ready", "stopping", "stopped"]
    assert events[0]["limits"]["packet_bytes_max"] == 16 << 20
    assert events[0]["connections_max"] > 0


def test_file_environment_and_flags_meet(mqttd: Mqttd, tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    file.write_text('workers = 3\nhost = "::1"\nport = 0\n')
    environment = {"MQTTD_CONFIG": str(file), "MQTTD_HOST": "127.0.0.1"}
    command = mqttd("--workers", "2", environment=environment).wait_ready()
    assert re.fullmatch(r"mqttd ready 127\.0\.0\.1:\d+ workers=2\n", command.out())


def test_sighup_reloads_the_file_or_keeps_what_was(mqttd: Mqttd, tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    file.write_text('port = 0\nlog_format = "json"\n')
    command = mqttd("--workers", "1", "--config", str(file)).wait_ready()

    def events(name: str) -> list[dict[str, object]]:
        return [event for event in map(json.loads, command.err().splitlines()) if event["event"] == name]

    file.write_text("port = 0\nqueue_ful = 3\n")
    command.process.send_signal(signal.SIGHUP)
    wait_until(lambda: events("reload_refused"), SECONDS_MAX, "the refusal")
    assert events("reload_refused")[0]["reason"] == "queue_ful: unknown key; did you mean queue_full?"
    file.write_text('port = 1\nlog_format = "json"\nlog_level = "warning"\n')
    command.process.send_signal(signal.SIGHUP)
    wait_until(lambda: events("reload_needs_restart"), SECONDS_MAX, "the reload")
    assert events("reload_needs_restart")[0]["keys"] == ["port"]
    assert command.end() == 0
    assert not events("stopped")  # its level is not logged any more


def test_a_port_in_use(mqttd: Mqttd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command = mqttd("--host", "127.0.0.1", "--port", str(port))
        assert command.status() == 3
        assert command.err() == f"mqttd: cannot listen on 127.0.0.1:{port}: the port is in use\n"


def test_an_admin_address_in_use(mqttd: Mqttd) -> None:
    """An address that was configured, in any way: a start error. By default: one warning, and no admin address."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        said = f"cannot listen on {address}: the port is in use"
        for command in (
            mqttd("--port", "0", "--admin", address),
            mqttd("--port", "0", environment={"MQTTD_ADMIN": address}),
        ):
            assert command.status() == 3
            assert command.err() == f"mqttd: admin: {said}\n"
        taken = WITH_STAND_IN + (
            "import os, broker.config.settings\n"
            f"broker.config.settings.Settings.model_fields['admin'].default = {address!r}\n"
            "broker.config.settings.Settings.model_rebuild(force=True)\n"
            "del os.environ['MQTTD_ADMIN']\n"
        )
        command = mqttd("--port", "0", "--log-format", "json", program=taken).wait_ready()
        assert command.end() == 0
        events = [json.loads(line) for line in command.err().splitlines()]
        warnings = [event for event in events if event["level"] == "warning"]
        assert [(each["event"], each["address"], each["reason"]) for each in warnings] == [
            ("admin_unavailable", address, said)
        ]
        assert next(event["admin"] for event in events if event["event"] == "start") == []


def test_an_open_admin_address_must_be_asked_for(mqttd: Mqttd) -> None:
    command = mqttd("--port", "0", "--admin", "0.0.0.0:0")
    assert command.status() == 2
    assert command.err().count("\n") == 1
    assert "--admin-allow-anonymous" in command.err()
    command = mqttd("--port", "0", "--admin", "8083")
    assert command.status() == 2
    assert command.err() == "mqttd: admin: '8083' is neither HOST:PORT ([HOST]:PORT for IPv6) nor none\n"


def test_an_open_address_must_be_asked_for(mqttd: Mqttd) -> None:
    command = mqttd("--host", "0.0.0.0", "--port", "0")
    assert command.status() == 2
    assert command.err().count("\n") == 1
    assert "--allow-anonymous" in command.err()
    command = mqttd("--workers", "1", "--host", "0.0.0.0", "--port", "0", "--allow-anonymous").wait_ready()
    assert "mosquitto_pub -h 127.0.0.1 " in command.err()


def test_the_banner_and_the_log_say_who_may_connect(mqttd: Mqttd, tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text(f"alice:$6$c2FsdA==${'A' * 86}==\n")
    path.chmod(0o600)
    arguments = ("--workers", "1", "--host", "0.0.0.0", "--port", "0", "--password-file", str(path))
    banner = mqttd(*arguments).wait_ready().err()
    assert f"access        1 users of {path}; anonymous clients are refused\n" in banner
    assert " -u USER -P PASSWORD -t " in banner
    assert "world_readable" not in banner
    path.chmod(0o644)
    command = mqttd(*arguments, "--allow-anonymous", "--log-format", "json").wait_ready()
    events = {event["event"]: event for event in map(json.loads, command.err().splitlines())}
    start = events["start"]
    assert (start["anonymous"], start["password_file"], start["users"]) == (True, str(path), 1)
    assert events["password_file_world_readable"]["level"] == "warning"


def test_check_config_checks_the_password_file(mqttd: Mqttd, tmp_path: Path) -> None:
    file, users = tmp_path / "m.toml", tmp_path / "users"
    file.write_text(f'password_file = "{users}"\n')
    users.write_text("alice:secret\n")
    command = mqttd("check-config", str(file))
    assert command.status() == 2
    assert command.err() == f"password_file: {users}:1: no argon2id, $7$ or $6$ hash\n"
    users.write_text("# none\n")
    users.chmod(0o644)
    command = mqttd("check-config", str(file))
    assert (command.status(), command.out()) == (0, f"{file}: no errors\n")
    assert command.err() == f"password_file: {users}: others on this machine may read it\n"


def test_bad_settings(mqttd: Mqttd) -> None:
    command = mqttd("--port", "70000", environment={"MQTTD_WORKERS": "-1"})
    assert command.status() == 2
    assert command.err().splitlines() == [
        "mqttd: workers: input should be greater than or equal to 0, not -1 (from MQTTD_WORKERS)",
        "mqttd: port: input should be less than or equal to 65535, not 70000 (from --port)",
    ]


def test_an_unknown_flag(mqttd: Mqttd) -> None:
    command = mqttd("--wrokers", "2")
    assert command.status() == 2
    assert "--wrokers" in command.err()


def test_missing_compiled_modules_are_one_line(mqttd: Mqttd) -> None:
    command = mqttd(program=WITH_STAND_IN + 'sys.modules["pyx.core.counters"] = None\n')
    assert command.status() == 1
    assert command.err() == (
        "mqttd: cannot start: the compiled module pyx.core.counters is missing "
        "(needs a C compiler at installation: pip install .)\n"
    )


def test_a_worker_that_cannot_start(mqttd: Mqttd) -> None:
    program = WITH_STAND_IN + 'worker.run = lambda channel: channel.failed("the disk is full") or 1\n'
    command = mqttd("--workers", "2", "--port", "0", program=program)
    assert command.status() == 1
    assert command.err().splitlines()[-1] in {
        f"mqttd: worker {index} cannot start: the disk is full (exit status 1)" for index in (0, 1)
    }


def test_a_runtime_directory_that_cannot_be_made(mqttd: Mqttd) -> None:
    command = mqttd("--runtime-dir", "/proc/mqttd")
    assert command.status() == 1
    assert command.err() == "mqttd: runtime_dir /proc/mqttd: No such file or directory\n"


def test_a_data_directory_that_another_mqttd_has(mqttd: Mqttd, tmp_path: Path) -> None:
    flags = ("--workers", "2", "--port", "0", "--store", "leveldb", "--data-dir", str(tmp_path / "data"))
    first = mqttd(*flags).wait_ready()
    assert f"store         leveldb in {tmp_path}/data (fsync)" in first.err()
    second = mqttd(*flags)
    assert second.status() == 4
    assert second.err() == f"mqttd: data_dir {tmp_path}/data: in use by another mqttd\n"
    assert first.end() == 0
    third = mqttd(*flags).wait_ready()
    os.killpg(third.process.pid, signal.SIGKILL)  # it leaves nothing that would have to be removed
    assert mqttd(*flags).wait_ready().end() == 0


def test_a_data_directory_for_another_number_of_workers(mqttd: Mqttd, tmp_path: Path) -> None:
    environment = {"MQTTD_STORE": "leveldb", "MQTTD_DATA_DIR": str(tmp_path / "data")}
    assert mqttd("--workers", "2", "--port", "0", environment=environment).wait_ready().end() == 0
    command = mqttd("--workers", "1", "--port", "0", environment=environment)
    assert command.wait_ready().end() == 0
    assert "repartitioned" in command.err()
    assert {path.name for path in (tmp_path / "data").iterdir()} == {
        "clock.json",
        "mqttd.lock",
        "store.json",
        "worker-0.1",
    }
    with plyvel.DB(str(tmp_path / "data" / "worker-0.1")) as db:
        db.put(b"Sclient", b"")
    command = mqttd("--workers", "3", "--port", "0", "--strict-store", environment=environment)
    assert command.status() == 4
    assert command.err().splitlines()[-1] == (
        "mqttd: the stores of 1 workers cannot be repartitioned for 3: the store "
        f"{tmp_path}/data/worker-0.1, record b'Sclient': a session is cut off; they are unchanged: "
        "start with --workers 1, or with another --data-dir"
    )
    assert {path.name for path in (tmp_path / "data").iterdir()} == {
        "clock.json",
        "mqttd.lock",
        "store.json",
        "worker-0.1",
    }


def test_a_store_in_memory_makes_no_data_directory(mqttd: Mqttd, tmp_path: Path) -> None:
    flags = ("--port", "0", "--store", "memory", "--data-dir", str(tmp_path / "data"))
    assert mqttd(*flags).wait_ready().end() == 0
    assert not (tmp_path / "data").exists()


def test_a_second_broker_is_told_of_the_port_and_not_of_the_data_directory(mqttd: Mqttd, tmp_path: Path) -> None:
    environment = {"MQTTD_DATA_DIR": str(tmp_path / "data")}
    first = mqttd("--workers", "1", "--port", "0", "--host", "127.0.0.1", environment=environment).wait_ready()
    port = first.out().split()[2].rpartition(":")[2]
    second = mqttd("--workers", "1", "--port", port, "--host", "127.0.0.1", environment=environment)
    assert second.status() == 3
    assert second.err() == f"mqttd: cannot listen on 127.0.0.1:{port}: the port is in use\n"
    assert first.end() == 0


def test_check_config(mqttd: Mqttd, tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    file.write_text("port = 1883\n")
    command = mqttd("check-config", str(file))
    assert (command.status(), command.out(), command.err()) == (0, f"{file}: no errors\n", "")
    file.write_text('prot = 1\nworkers = "x"\n[limits]\nqueue_bytes_max = 0\n')
    command = mqttd("check-config", str(file))
    assert command.status() == 2
    assert [line.partition(":")[0] for line in command.err().splitlines()] == [
        "workers",
        "limits.queue_bytes_max",
        "prot",
    ]
    assert command.out() == ""


@pytest.mark.parametrize(("flag", "said"), [("--version", "mqttd 0.1.0\n"), ("--help", "--allow-anonymous")])
def test_version_and_help(mqttd: Mqttd, flag: str, said: str) -> None:
    command = mqttd(flag)
    assert command.status() == 0
    assert said in command.out()

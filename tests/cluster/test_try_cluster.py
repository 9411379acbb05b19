"""`mqttd try-cluster`, followed as a reader does: everything that is used here is what it prints."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from broker.cli.try_cluster import main
from broker.testing import processes_of_session
from tests.broker_process import KIND, ROOT
from tests.waiting import wait_until
from tests.wire import Client

pytestmark = pytest.mark.skipif(KIND == "mosquitto", reason="the command is mqttd's")

SECONDS_MAX = 90.0
HOST = re.compile(
    r"^host (?P<name>\w)\n"
    r"  subscribe    mosquitto_sub -p (?P<port>\d+) .*\n"
    r"  publish      mosquitto_pub -p (?P=port) .*\n"
    r"  admin        http://127.0.0.1:(?P<admin>\d+)\n"
    r"  supervisor   pid (?P<pid>\d+)\n"
    r"  start again  (?P<again>.*)\n",
    re.MULTILINE,
)


def started(command: Sequence[str], output: Path, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start `mqttd`; it ends with the tests, however they end."""
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("MQTTD_")}
    with output.open("ab") as file:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", sys.executable, "-P", "-m", "broker", *command],
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
            env={**inherited, "PYTHONPATH": str(ROOT), **variables},
        )  # fmt: skip


class Tried:
    """A run of `mqttd try-cluster`. `others`: where its temporary directory is."""

    def __init__(self, others: Path, *arguments: str) -> None:
        self.others = others
        self._output = others / "output"
        self._output.write_text("")
        self.temporary = others / "tmp"
        self.temporary.mkdir(exist_ok=True)
        # a setting of the reader's is not one of the hosts
        self.process = started(
            ["try-cluster", *arguments], self._output, {"TMPDIR": str(self.temporary), "MQTTD_PORT": "1"}
        )

    def said(self) -> str:
        return self._output.read_text()

    def wait_for(self, text: str) -> None:
        def is_there() -> bool:
            if text in self.said():
                return True
            assert self.process.poll() is None, self.said()
            return False

        wait_until(is_there, SECONDS_MAX, f"it says {text!r}")

    def ready(self) -> dict[str, re.Match[str]]:
        """Wait for it; return what it says of each host, by name."""
        self.wait_for(" hosts are ready")
        return {found["name"]: found for found in HOST.finditer(self.said())}

    def sessions(self) -> list[int]:
        """Return its child processes: each leads a session."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == self.process.pid:
                        found.append(int(entry.name))
        return found

    def end(self, number: int) -> int:
        """Send the signal; return the exit status when no process and no temporary directory is left."""
        sessions = self.sessions()
        assert sessions
        self.process.send_signal(number)
        status = self.process.wait(SECONDS_MAX)
        if number == signal.SIGKILL:
            wait_until(lambda: not self.left(sessions), SECONDS_MAX, "nothing is left")
        assert self.left(sessions) == []
        return status

    def left(self, sessions: Sequence[int]) -> list[object]:
        found: list[object] = [pid for session in sessions for pid in processes_of_session(session)]
        return found + list(self.temporary.iterdir())


@pytest.fixture
def tried() -> Iterator[Callable[..., Tried]]:
    """``tried(*arguments)``: starts it with a temporary directory of a short name."""
    with tempfile.TemporaryDirectory(prefix="tried-", dir="/tmp") as folder:
        runs: list[Tried] = []

        def start(*arguments: str) -> Tried:
            runs.append(Tried(Path(folder), *arguments))
            return runs[-1]

        yield start
        for each in runs:
            if each.process.poll() is None:
                each.end(signal.SIGKILL)


def client(host: re.Match[str], name: str, *, clean: bool = True) -> Client:
    one = Client(("127.0.0.1", int(host["port"])), 4)
    one.connect(name, clean=clean)
    return one


def test_three_hosts_are_one_broker_and_one_may_die(tried: Callable[..., Tried]) -> None:
    """What host b was owed when it was killed arrives when it is started again with the command that was printed."""
    run = tried("--hosts", "3", "--workers", "2")
    hosts = run.ready()
    assert list(hosts) == ["a", "b", "c"]
    a, c = client(hosts["a"], "a"), client(hosts["c"], "c")
    a.subscribe("from/#")
    c.publish("from/c", b"1", qos=1)
    a.expect("PUBLISH", topic="from/c", payload=b"1")
    b = client(hosts["b"], "b", clean=False)
    b.subscribe("owed", qos=1)
    b.close()

    os.kill(int(hosts["b"]["pid"]), signal.SIGKILL)
    run.wait_for("host b has ended: killed by SIGKILL\n")
    c.publish("owed", b"2", qos=1)
    c.publish("from/c", b"3", qos=1)
    a.expect("PUBLISH", topic="from/c", payload=b"3")
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", int(hosts["b"]["port"])))

    command = shlex.split(hosts["b"]["again"])
    again = started(command[command.index("--config") :], run.others / "again", {})
    try:
        wait_until(lambda: "mqttd ready" in (run.others / "again").read_text(), SECONDS_MAX, "b is back")
        b = client(hosts["b"], "b", clean=False)
        b.expect("PUBLISH", topic="owed", payload=b"2")
    finally:
        again.terminate()
        assert again.wait(SECONDS_MAX) == 0
    for each in (a, b, c):
        each.close()
    assert run.end(signal.SIGTERM) == 0
    assert run.said().count("ended") == 1


def test_a_directory_is_kept(tried: Callable[..., Tried], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "with space"
    run = tried("--hosts", "1", "--dir", str(folder))
    a = client(run.ready()["a"], "a")
    a.publish("kept", b"1", qos=1, retain=True)
    a.close()
    assert run.end(signal.SIGINT) == 0
    assert {each.name for each in folder.iterdir()} == {"a", "a.toml", "a.log", "etcd", "etcd.log"}

    run = tried("--hosts", "1", "--dir", str(folder))
    a = client(run.ready()["a"], "a")
    a.subscribe("kept")
    a.expect("PUBLISH", topic="kept", payload=b"1")
    a.close()
    assert main(["--dir", str(folder)]) == 2
    assert capsys.readouterr().err == f"mqttd: --dir: {folder}: in use by another mqttd try-cluster\n"
    assert run.end(signal.SIGKILL) == -signal.SIGKILL


def test_a_host_that_cannot_start_is_named(tried: Callable[..., Tried], tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.txt").touch()
    run = tried("--hosts", "1", "--dir", str(tmp_path))
    assert run.process.wait(SECONDS_MAX) == 1
    said = run.said().splitlines()
    assert said[1:] == [
        "mqttd: host a has ended before all were ready: exit status 4; its log ends with:",
        f"    mqttd: data_dir {tmp_path}/a: is not empty, and not a data directory of mqttd",
    ]
    assert run.left([]) == []


def test_it_can_be_stopped_before_it_is_ready(tried: Callable[..., Tried]) -> None:
    run = tried("--hosts", "2", "--store", "memory")
    wait_until(lambda: list(run.temporary.glob("*/b.log")), SECONDS_MAX, "the last host starts")
    assert run.end(signal.SIGTERM) == 0
    assert "ready" not in run.said()


# ------------------------------------------------------------------------------------------ what is refused


def test_no_etcd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([]) == 1
    wanted = "mqttd: the program etcd is missing: install it, e.g. apt-get install etcd-server\n"
    assert capsys.readouterr() == ("", wanted)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--hosts 0", "--hosts: 0 is not 1 to 9"),
        ("--hosts 10", "--hosts: 10 is not 1 to 9"),
        ("--hosts x", "argument --hosts: invalid int value: 'x'"),
        ("--workers 0", "--workers: 0 is not 1 to 64"),
        ("--workers 65", "--workers: 65 is not 1 to 64"),
        ("--workers 63", "--workers: 3 hosts can have 62 at most: a worker has 64 peers"),
        ("--store disk", "argument --store: invalid choice: 'disk'"),
    ],
)
def test_wrong_values(arguments: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"mqttd try-cluster: error: {line}")


@pytest.mark.parametrize(("name", "why"), [("file", "File exists"), ("no/where", "No such file or directory")])
def test_a_directory_that_cannot_be_made(
    name: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["--dir", f"{tmp_path}/{name}"]) == 2
    assert capsys.readouterr().err == f"mqttd: --dir: {tmp_path}/{name}: {why}\n"

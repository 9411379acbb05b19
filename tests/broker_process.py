"""Starts a real broker for the tests, and sees to it that nothing of it is left behind.

By default that is ``python -m broker`` of this tree. ``MQTTD_TEST_BROKER=mosquitto`` takes Debian's mosquitto
instead, to find out whether it is the broker or the test that is wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent
KIND = os.environ.get("MQTTD_TEST_BROKER", "mqttd")
READY_SECONDS_MAX = 20.0  # the promise is 2 s on a free machine; this is the deadline of a loaded one
STOP_SECONDS_MAX = 15.0

MOSQUITTO = """\
listener {port} 127.0.0.1
allow_anonymous true
max_packet_size 1000000
set_tcp_nodelay true
log_type all
"""


def processes_of_session(session: int) -> list[int]:
    """The processes that belong to a session (setsid) and are no zombies: a broker with everything it forked."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we looked
            if int(after_name[3]) == session and after_name[0] != "Z":
                found.append(int(entry.name))
    return found


def free_port() -> int:
    """A port that was free a moment ago; only for brokers that cannot choose one themselves."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class BrokerProcess:
    """A running broker: ``address`` to connect to, ``pid`` of its supervisor, what it wrote to its standard streams."""

    def __init__(
        self, workers: int = 1, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        self.workers = workers
        self.arguments = list(arguments)
        self.environment = dict(environment or {})
        self.address = ("127.0.0.1", 0)
        self._directory = tempfile.TemporaryDirectory(prefix="mqttd-test-")
        self._streams = {name: Path(self._directory.name, name) for name in ("stdout", "stderr")}

    @property
    def pid(self) -> int:
        """The supervisor, which is also the leader of the session all its children are in."""
        return self._process.pid

    def start(self) -> BrokerProcess:
        """Start, and return when the ready line is there (mosquitto: when the port answers)."""
        if KIND == "mosquitto":
            self.address = ("127.0.0.1", free_port())
            config = Path(self._directory.name, "mosquitto.conf")
            config.write_text(MOSQUITTO.format(port=self.address[1]))
            command = [os.environ.get("MOSQUITTO", "/usr/sbin/mosquitto"), "-c", str(config)]
        else:
            command = [sys.executable, "-m", "broker", "--workers", str(self.workers), "--port", "0", *self.arguments]
        with self._streams["stdout"].open("wb") as out, self._streams["stderr"].open("wb") as err:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=ROOT,
                env={**os.environ, "MQTTD_ADMIN": "none", **self.environment},
                start_new_session=True,
            )
        try:
            wait_until(self._is_ready, READY_SECONDS_MAX, f"{KIND} is ready")
        except BaseException:
            self.kill()
            raise
        return self

    def _is_ready(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"{KIND} ended with status {self._process.returncode}:\n{self.stdout()}{self.stderr()}")
        if KIND == "mosquitto":
            with socket.socket() as probe:
                return probe.connect_ex(self.address) == 0
        for line in self.stdout().splitlines(keepends=True):
            words = line.split()
            if line.endswith("\n") and words[:2] == ["mqttd", "ready"]:
                assert words[3:] == [f"workers={self.workers}"], line
                host, _, port = words[2].rpartition(":")
                self.address = (host.strip("[]"), int(port))
                return True
        return False

    @property
    def admin(self) -> tuple[str, int]:
        """Where its admin interface listens; it must have been started with ``--admin 127.0.0.1:0``."""
        said = re.search(r"^  admin +http://([\d.]+):(\d+)$", self.stderr(), re.MULTILINE)
        if said is not None:
            return said[1], int(said[2])
        host, _, port = self.logged("start")[0]["admin"][0].rpartition(":")
        return host, int(port)

    def control_pid(self) -> int:
        """Process id of the control process, 0 when there is none."""
        for pid in self.processes():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"mqttd: control"):
                    return pid
        return 0

    def alive(self) -> bool:
        """Whether the supervisor runs."""
        return self._process.poll() is None

    def stdout(self) -> str:
        """All of the standard output until now."""
        return self._streams["stdout"].read_text(errors="replace")

    def stderr(self, since: int = 0) -> str:
        """The standard error from byte ``since``."""
        return self._streams["stderr"].read_bytes()[since:].decode(errors="replace")

    def stderr_size(self) -> int:
        """Bytes of standard error until now."""
        return self._streams["stderr"].stat().st_size

    def processes(self) -> list[int]:
        """Supervisor and everything it forked."""
        return processes_of_session(self.pid)

    def worker_pids(self) -> dict[int, int]:
        """Process ids of the workers by index, from their titles."""
        found = {}
        for pid in self.processes():
            try:
                title = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if title.startswith(b"mqttd: worker "):
                found[int(title.split()[-1])] = pid
        return found

    def pss_bytes(self) -> int:
        """Memory of supervisor and workers, what they share counted once (kernel socket buffers are not in it).

        Without the pages of files: our share of an interpreter's code grows when another Python on the machine ends.
        """
        kilobytes = 0
        for pid in self.processes():
            try:
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            kilobytes += sum(int(rollup.partition(f"\n{kind}:")[2].split()[0]) for kind in ("Pss_Anon", "Pss_Shmem"))
        return kilobytes * 1024

    def logged(self, event: str, since: int = 0) -> list[dict[str, Any]]:
        """The log lines of this event from byte ``since`` until now; the broker must log as JSON."""
        lines = [
            json.loads(line)
            for line in self.stderr(since).splitlines(keepends=True)
            if line.startswith("{") and line[-1] == "\n"
        ]
        return [line for line in lines if line["event"] == event]

    def stop(self, with_signal: int = signal.SIGTERM) -> int:
        """End it as an operator would; return the exit status. AssertionError when a process is left behind."""
        if self.alive():
            self._process.send_signal(with_signal)
        try:
            status = self._process.wait(STOP_SECONDS_MAX)
            wait_until(lambda: not self.processes(), 2.0, f"no process is left of {self.pid}: {self.processes()}")
        finally:
            self.kill()
        return status

    def kill(self) -> None:
        """SIGKILL for every process of it that is still there."""
        for process in self.processes():
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait(STOP_SECONDS_MAX)

    def forget(self) -> None:
        """Remove its files."""
        self._directory.cleanup()

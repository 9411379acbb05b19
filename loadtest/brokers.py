"""Brokers to compare: how each is started, what survives a crash, and what it does not support.

Every run uses a fresh broker with an empty directory and a free port of 127.0.0.1. A command is a template: {port} and
{dir} are those, {mqttd} is the command of the mqttd in this tree (or this environment), {user} the user who starts it.
MQTTD_... variables of the environment are not passed on; a command that needs some begins with `env`.
"""

from __future__ import annotations

import getpass
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from loadtest.host import ROOT
from loadtest.target import Target

HOST: Final = "127.0.0.1"
READY_SECONDS_MAX: Final = 15.0
STOP_SECONDS_MAX: Final = 15.0
"""Time from SIGTERM to SIGKILL for the whole process group."""

_PATH: Final = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin"])
_PAUSE_SECONDS: Final = 0.02

_MOSQUITTO = """\
listener {port} 127.0.0.1
allow_anonymous true
user {user}
max_queued_messages 0
max_inflight_messages 0
set_tcp_nodelay true
sys_interval 0
log_type error
connection_messages false
"""
_NATS = """\
listen: "127.0.0.1:-1"
server_name: compared
jetstream { store_dir: "{dir}/jetstream" }
mqtt { listen: "127.0.0.1:{port}", max_ack_pending: 60000 }
max_connections: 64000
max_pending: 1GB
write_deadline: "60s"
"""
PLAIN: Final = Target(HOST, 0)
"""The address of known brokers."""
_MQTTD = "{mqttd} --host 127.0.0.1 --port {port} --admin none --log-level warning"


class BrokerFailed(Exception):
    """The broker cannot be started, did not start, or ended: one line with the cause."""


@dataclass(frozen=True)
class Broker:
    """A row of the table."""

    name: str
    command: str
    keeps: str = "not known"
    """What survives a crash of acknowledged messages and sessions."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files written into {dir} before it starts, by name; templates like the command."""
    cannot: frozenset[str] = frozenset()
    """Unsupported features, of Scenario.needs."""
    version: str = ""
    """A command whose first line of output is the version."""

    @property
    def shown(self) -> str:
        """The command for display."""
        return self.command.replace("{mqttd}", "mqttd")

    @property
    def missing(self) -> str:
        """The program that is not installed, or an empty text."""
        program = _program(_filled(self.command))
        return "" if shutil.which(program, path=_PATH) else program

    def said_version(self) -> str:
        """Return its version; empty, if there is no command for it."""
        if not self.version:
            return ""
        done = subprocess.run(
            _filled(self.version), capture_output=True, text=True, check=False, env=_environment(), timeout=60
        )
        return (done.stdout + done.stderr).strip().partition("\n")[0]


KNOWN: Final = {
    each.name: each
    for each in (
        Broker("mqttd", f"{_MQTTD} --data-dir {{dir}}/data",
               "sessions, and what is acknowledged: on the disk before the ack (fsync); as mqttd starts by default",
               version="{mqttd} --version"),
        Broker("mqttd-buffered", f"env MQTTD_DURABILITY=buffered {_MQTTD} --data-dir {{dir}}/data",
               "the same after a crash of mqttd; what the system had not written yet goes when the machine does",
               version="{mqttd} --version"),
        Broker("mqttd-memory", f"{_MQTTD} --store memory", "nothing", version="{mqttd} --version"),
        Broker("mqttd-single", f"{_MQTTD} --store memory --workers 1",
               "nothing: one worker, beside brokers of one thread that keep nothing either",
               version="{mqttd} --version"),
        Broker("mosquitto", "mosquitto -c {dir}/mosquitto.conf", "nothing (persistence false, its default)",
               {"mosquitto.conf": _MOSQUITTO}, version="mosquitto -h"),
        Broker("mosquitto-autosave", "mosquitto -c {dir}/mosquitto.conf",
               "what there was at the last save of everything, once a second",
               {"mosquitto.conf": _MOSQUITTO + "persistence true\npersistence_location {dir}/\nautosave_interval 1\n"},
               version="mosquitto -h"),
        Broker("nats-server", "nats-server -c {dir}/nats.conf",
               "sessions and QoS 1 in files of JetStream, without a sync before the ack",
               {"nats.conf": _NATS}, frozenset({"qos2", "shared", "v5"}), "nats-server --version"),
    )
}  # fmt: skip
"""Limits on queues or windows are only those with which mqttd starts; no broker logs messages."""


class Running:
    """A running broker that answers."""

    def __init__(self, broker: Broker, process: subprocess.Popen[bytes], port: int, log: Path, like: Target) -> None:
        self._broker = broker
        self._process = process
        self._log = log
        self.target = replace(like, host=HOST, port=port)
        """Its address."""

    @property
    def pid(self) -> int:
        """Its first process; the others are descendants."""
        return self._process.pid

    @property
    def url(self) -> str:
        """Its address as SCHEME://HOST:PORT."""
        return self.target.url

    def check(self) -> None:
        """Raise BrokerFailed if it has ended."""
        if self._process.poll() is not None:
            raise self._failed(f"ended with status {self._process.returncode}")

    def wait_ready(self, seconds: float) -> None:
        """Return when it answers CONNECT; with WebSocket, when it accepts connections. BrokerFailed: it does not, or
        refuses.
        """
        until = time.monotonic() + seconds
        while not self._answers(until):
            self.check()
            if time.monotonic() > until:
                raise self._failed(f"does not answer CONNECT within {seconds:g} s")
            time.sleep(_PAUSE_SECONDS)

    def _answers(self, until: float) -> bool:
        target = replace(self.target, session_expiry=None)
        try:
            with ExitStack() as stack:
                one = stack.enter_context(socket.create_connection((HOST, target.port), 1.0))
                one.settimeout(min(1.0, max(0.01, until - time.monotonic())))
                if target.is_tls:
                    one = stack.enter_context(target.tls().wrap_socket(one, server_hostname=HOST))
                if target.is_websocket:
                    return True
                one.sendall(target.connect("compare-ready"))
                said = one.recv(4)
                one.sendall(b"\xe0\x00")
        except OSError:
            return False  # asked again until the time is over
        if len(said) == 4 and said[0] == 0x20 and said[3]:
            raise self._failed(f"refuses clients: CONNACK with Reason Code 0x{said[3]:02x}")
        return said[:1] == b"\x20"

    def _failed(self, what: str) -> BrokerFailed:
        lines = self._log.read_text(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return BrokerFailed(f"{self._broker.name} {what}" + (f": {last[:200]}" if last else ""))

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL to the rest of its process group."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS_MAX)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextmanager
def started(
    broker: Broker, directory: Path | None = None, patience: float = READY_SECONDS_MAX, like: Target = PLAIN
) -> Iterator[Running]:
    """Yield a fresh broker that answers. directory: parent of its own. like: its address, except for host and port.
    BrokerFailed: it does not start.
    """
    with tempfile.TemporaryDirectory(prefix="compare-", dir=directory, ignore_cleanup_errors=True) as name:
        folder, port = Path(name), _free_port()
        for file, text in broker.files.items():
            (folder / file).write_text(_replaced(text, port, name))
        log = folder / "log"
        with log.open("wb") as output:
            try:
                process = subprocess.Popen(
                    _filled(broker.command, port, name), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    cwd=folder, env=_environment(), start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise BrokerFailed(f"{broker.name} cannot be started: {error.filename}: {error.strerror}") from None
        running = Running(broker, process, port, log, like)
        try:
            running.wait_ready(patience)
            yield running
        finally:
            running.stop()


def _environment() -> dict[str, str]:
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("MQTTD_")}
    return {**inherited, "PATH": _PATH}


def _filled(command: str, port: int = 0, folder: str = "") -> list[str]:
    return shlex.split(_replaced(command.replace("{mqttd}", shlex.join(_mqttd())), port, folder))


def _replaced(template: str, port: int, folder: str) -> str:
    # not str.format: configuration files contain braces
    return template.replace("{port}", str(port)).replace("{dir}", folder).replace("{user}", getpass.getuser())


def _mqttd() -> list[str]:
    if (ROOT / "broker" / "__main__.py").exists():  # beside this package, in a tree or installed
        return ["env", f"PYTHONPATH={ROOT}", sys.executable, "-P", "-m", "broker"]
    return ["mqttd"]


def _program(command: list[str]) -> str:
    words = iter(command)
    return next((each for each in words if each != "env" and "=" not in each), "")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port

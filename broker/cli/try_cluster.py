"""`mqttd try-cluster`: an etcd and several hosts of one cluster on this machine, until Ctrl-C.

Each host is an `mqttd --config FILE`, as it would be on a machine of its own: the file is made here, and with it the
reader starts a host again that has been killed.

*Ports* are free ones, and stay reserved, so that a host finds its own again: a socket that is bound and never listens
keeps everyone else from taking the port, but not a program that sets SO_REUSEADDR, as mqttd, ZeroMQ and etcd do.

*Nothing is left behind*, however this ends. All processes have sessions of their own (an interrupt at the terminal
reaches only this one, which stops them in order) and PR_SET_PDEATHSIG. The temporary directory is removed by a shell
that waits until no process holds the other end of its standard input: this one, the etcd and the hosts do.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import http.client
import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from broker.config.settings import WORKERS_MAX

__all__ = ["main"]

_CANNOT_START = 1
_BAD_USAGE = 2
_ETCD = "etcd"
_HOSTS_MAX = 9
_PEERS_MAX = 64  # of a worker: docs/cluster.md
_ADDRESS = "127.0.0.1"
_READY_SECONDS_MAX = 60.0
_STOP_SECONDS_MAX = 20.0  # above limits.stop_seconds_max
_ANSWER_SECONDS_MAX = 2.0
_LOOK_SECONDS = 0.1
_PORT_ATTEMPTS = 100
_LOG_LINES = 8
_TEMPORARY_BYTES_MAX = 40  # of the place of temporary directories: hosts make theirs, with unix sockets, in ours
_REMOVE = 'read -r _; exec /bin/rm -rf -- "$1"'


class _Refused(Exception):
    """An error for the user: a line, and lines of a log."""

    def __init__(self, line: str, status: int = _CANNOT_START, log: Sequence[str] = ()) -> None:
        super().__init__(line)
        self.status = status
        self.log = log


class _Interrupted(Exception):
    """SIGINT or SIGTERM came before the cluster was ready."""


def main(arguments: Sequence[str]) -> int:
    """Run the cluster. Exit status: 0 stopped as asked, 1 it cannot start, or a host did not stop, 2 wrong usage."""
    given = _parsed(arguments)
    try:
        etcd, setpriv = _found("etcd", "etcd-server"), _found("setpriv", "util-linux")
        with _Signals() as signals, _directories(given.dir) as directories:
            cluster = _TryCluster(given, directories, signals)
            try:
                with contextlib.suppress(_Interrupted):
                    cluster.start(etcd, setpriv)
                    cluster.serve()
            finally:
                killed = cluster.stop()
    except _Refused as error:
        print(f"mqttd: {error}", file=sys.stderr)
        for line in error.log:
            print(f"    {line}", file=sys.stderr)
        return error.status
    except BrokenPipeError:  # nobody reads what it prints
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"mqttd: {where}{error.strerror or error}", file=sys.stderr)
        return _CANNOT_START
    return _CANNOT_START if killed else 0


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="mqttd try-cluster",
        description="Run several hosts of one cluster, and the etcd that they need, on this machine until Ctrl-C.",
        epilog="The program etcd has to be installed, Debian: apt-get install etcd-server.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--hosts", type=int, default=3, metavar="N", help=f"hosts, 1 to {_HOSTS_MAX} (default: 3)")
    add("--workers", type=int, default=1, metavar="N", help="worker processes of each host (default: 1)")
    add("--store", choices=["memory", "leveldb"], default="leveldb", help="as of mqttd (default: leveldb)")
    add(
        "--dir",
        metavar="DIR",
        help="directory of settings, stores and logs; created if missing, kept (default: a temporary one)",
    )
    given = parser.parse_args(arguments)
    if not 1 <= given.hosts <= _HOSTS_MAX:
        parser.error(f"--hosts: {given.hosts} is not 1 to {_HOSTS_MAX}")
    if not 1 <= given.workers <= WORKERS_MAX:
        parser.error(f"--workers: {given.workers} is not 1 to {WORKERS_MAX}")
    if given.workers + given.hosts - 1 > _PEERS_MAX:
        most = _PEERS_MAX + 1 - given.hosts
        parser.error(f"--workers: {given.hosts} hosts can have {most} at most: a worker has {_PEERS_MAX} peers")
    return given


# ---------------------------------------------------------------- what all share


class _Signals:
    """SIGINT, SIGTERM and the end of a child process end a wait. They raise nothing, so that no process is started
    without being known, and none is stopped by halves.
    """

    def __init__(self) -> None:
        self.is_stop_asked = False

    def __enter__(self) -> _Signals:
        self._woken, self._wake = socket.socketpair()
        for each in (self._woken, self._wake):
            each.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
        self._former = {number: signal.signal(number, self._come) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        self._woken.close()
        self._wake.close()

    def wait(self, seconds: float | None = None) -> None:
        """Return when a signal has come, or after `seconds`."""
        if select.select([self._woken], [], [], seconds)[0]:
            self._woken.recv(4096)

    def _come(self, number: int, _: object) -> None:
        self.is_stop_asked = self.is_stop_asked or number != signal.SIGCHLD


class _Directories(NamedTuple):
    """Where files are."""

    base: Path
    """Settings, stores and logs."""
    temporary: Path
    """Unix sockets; without --dir the same directory."""
    lifeline: int
    """A descriptor; the temporary directory is removed when no process has it open."""


@contextlib.contextmanager
def _directories(kept: str | None) -> Iterator[_Directories]:
    """Make the directories; the temporary one is removed."""
    base = tempfile.gettempdir()
    base = base if len(os.fsencode(base)) <= _TEMPORARY_BYTES_MAX else "/tmp"
    temporary = tempfile.mkdtemp(prefix="mqttd-try-", dir=base)
    awaited, lifeline = os.pipe2(os.O_CLOEXEC)
    command = ["/bin/sh", "-c", _REMOVE, "sh", temporary]
    try:
        remover = subprocess.Popen(command, stdin=awaited, stdout=subprocess.DEVNULL, start_new_session=True)
    except OSError:
        os.rmdir(temporary)
        raise
    os.close(awaited)
    try:
        if kept is None:
            yield _Directories(Path(temporary), Path(temporary), lifeline)
        else:
            with _held(kept) as directory:
                yield _Directories(directory, Path(temporary), lifeline)
    finally:
        os.close(lifeline)
        with contextlib.suppress(subprocess.TimeoutExpired):  # it removes it later, then
            remover.wait(_STOP_SECONDS_MAX)


@contextlib.contextmanager
def _held(name: str) -> Iterator[Path]:
    # locked: two etcds on the same files would wait for each other
    try:
        directory = Path(os.path.abspath(name))
        str(directory).encode()  # settings are UTF-8
        directory.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except UnicodeEncodeError:
        raise _Refused("--dir: its name is not UTF-8", _BAD_USAGE) from None
    except OSError as error:
        raise _Refused(f"--dir: {name}: {error.strerror}", _BAD_USAGE) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _Refused(f"--dir: {name}: in use by another mqttd try-cluster", _BAD_USAGE) from None
        yield directory
    finally:
        os.close(descriptor)


class _Ports:
    """Free ports, reserved until the end."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def row(self, count: int) -> int:
        """Return the first of `count` consecutive ports."""
        for _ in range(_PORT_ATTEMPTS):
            with contextlib.ExitStack() as stack:
                sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
                try:
                    sockets[0].bind((_ADDRESS, 0))
                    first: int = sockets[0].getsockname()[1]
                    for number, each in enumerate(sockets[1:], first + 1):
                        each.bind((_ADDRESS, number))
                except (OSError, OverflowError):  # the next one is in use, or beyond 65535
                    continue
                for each in sockets:
                    # not before bind, which would share the port with another reservation
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                self._sockets += sockets
                stack.pop_all()
                return first
        raise _Refused(f"no {count} consecutive free ports were found")

    def close(self) -> None:
        """Free them."""
        for each in self._sockets:
            each.close()


# ---------------------------------------------------------------- etcd and hosts


@dataclass(slots=True)
class _Program:
    """A program that runs here: etcd, or a host."""

    name: str
    log: Path
    admin_port: int
    path: str
    """GET answers 200 when it is ready."""
    process: subprocess.Popen[bytes]

    def is_ready(self) -> bool:
        """Whether it says so."""
        connection = http.client.HTTPConnection(_ADDRESS, self.admin_port, timeout=_ANSWER_SECONDS_MAX)
        try:
            connection.request("GET", self.path)
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def last_lines(self) -> list[str]:
        """Return the end of its log."""
        return self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:]

    def end(self) -> str:
        """Describe how it ended."""
        status = self.process.returncode
        return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


@dataclass(slots=True)
class _TryHost:
    """What a reader needs to know of a host."""

    program: _Program
    port: int
    file: Path


class _TryCluster:
    """The etcd and the hosts."""

    def __init__(self, given: argparse.Namespace, directories: _Directories, signals: _Signals) -> None:
        self._given = given
        self._base = directories.base
        self._temporary = directories.temporary
        self._lifeline = directories.lifeline
        self._signals = signals
        self._ports = _Ports()
        self._running: list[_Program] = []

    def start(self, etcd: str, setpriv: str) -> None:
        """Start all and say how to use them. Raises _Refused, _Interrupted."""
        self._spawn = [setpriv, "--pdeathsig", "KILL", "--"]
        print(f"starting etcd and {self._given.hosts} hosts in {self._base}", flush=True)
        client, peer = (f"http://{_ADDRESS}:{self._ports.row(1)}" for _ in range(2))
        self._start_etcd(etcd, client, peer)
        # at once: hosts take longer to start, and wait for etcd anyway
        hosts = [self._start_host(chr(ord("a") + number), client) for number in range(self._given.hosts)]
        self._wait_ready()
        self._say_ready(hosts)

    def serve(self) -> None:
        """Report what ends, until SIGINT or SIGTERM."""
        while not self._signals.is_stop_asked:
            for each in self._ended():
                print(f"{each.name} has ended: {each.end()}", flush=True)
                self._running.remove(each)
            self._signals.wait()

    def stop(self) -> bool:
        """Stop the hosts, then etcd. Return whether one had to be killed."""
        hosts = [each for each in self._running if each.name != _ETCD]
        etcd = [each for each in self._running if each.name == _ETCD]
        killed = [self._stop(hosts), self._stop(etcd)]
        self._ports.close()
        return any(killed)

    def _stop(self, programs: list[_Program]) -> bool:
        for each in programs:
            each.process.terminate()
        deadline = time.monotonic() + _STOP_SECONDS_MAX
        killed = False
        for each in programs:
            try:
                each.process.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                killed = True
                each.process.kill()
                each.process.wait()
                print(f"mqttd: {each.name} did not stop within {_STOP_SECONDS_MAX:.0f} s: killed", file=sys.stderr)
        return killed

    def _ended(self) -> list[_Program]:
        return [each for each in self._running if each.process.poll() is not None]

    def _start_etcd(self, etcd: str, client: str, peer: str) -> None:
        command = [
            *(etcd, "--name", "one", "--data-dir", str(self._base / "etcd")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}"),
        ]
        self._started(_ETCD, command, self._base / "etcd.log", int(client.rpartition(":")[2]), "/health")

    def _start_host(self, name: str, etcd: str) -> _TryHost:
        port, admin_port = self._ports.row(1), self._ports.row(1)
        file = self._base / f"{name}.toml"
        settings = {
            "": {
                "workers": self._given.workers,
                "host": [_ADDRESS],
                "port": port,
                "admin": f"{_ADDRESS}:{admin_port}",
                "allow_anonymous": True,
                "store": self._given.store,
                "data_dir": str(self._base / name),
            },
            "leveldb": {"reserve_bytes": 0},  # files for the day on which the disk is full: too large for a try
            "cluster": {
                "etcd": [etcd.replace("http", "etcd")],
                "node_id": name,
                "listen": f"tcp://{_ADDRESS}:{self._ports.row(self._given.workers + 1)}",
                "snapshot_dir": str(self._base / "snapshots"),
            },
        }
        lines = [f"# Host {name} of `mqttd try-cluster`, which writes this file at each start"]
        for table, values in settings.items():
            lines += ["", f"[{table}]"] if table else []
            lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
        file.write_text("\n".join([*lines, ""]))
        # -P: a folder `broker` in the current directory is not this package
        command = [sys.executable, "-P", "-m", "broker", "--config", str(file)]
        log = self._base / f"{name}.log"
        return _TryHost(self._started(f"host {name}", command, log, admin_port, "/ready"), port, file)

    def _started(self, name: str, command: list[str], log: Path, admin_port: int, path: str) -> _Program:
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*self._spawn, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment(self._temporary),
                start_new_session=True,
                pass_fds=[self._lifeline],
            )
        program = _Program(name, log, admin_port, path, process)
        self._running.append(program)
        return program

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + _READY_SECONDS_MAX
        while waiting := [each for each in self._running if not each.is_ready()]:
            for each in self._ended():
                raise _Refused(
                    f"{each.name} has ended before all were ready: {each.end()}; its log ends with:",
                    log=each.last_lines(),
                )
            if self._signals.is_stop_asked:
                raise _Interrupted
            if time.monotonic() > deadline:
                raise _Refused(
                    f"{waiting[0].name} is not ready after {_READY_SECONDS_MAX:.0f} s; its log ends with:",
                    log=waiting[0].last_lines(),
                )
            self._signals.wait(_LOOK_SECONDS)

    def _say_ready(self, hosts: list[_TryHost]) -> None:
        mqttd = "mqttd" if shutil.which("mqttd") else f"{shlex.quote(sys.executable)} -m broker"
        lines = []
        for each in hosts:
            lines += [
                each.program.name,
                f"  subscribe    mosquitto_sub -p {each.port} -t '#' -v",
                f"  publish      mosquitto_pub -p {each.port} -t hello/world -m hi",
                f"  admin        http://{_ADDRESS}:{each.program.admin_port}",
                f"  supervisor   pid {each.program.process.pid}",
                f"  start again  {mqttd} --config {shlex.quote(str(each.file))}",
            ]
        print("\n".join(lines))
        print(f"{len(hosts)} hosts are ready, as one broker. Ctrl-C stops them.", flush=True)


def _found(program: str, package: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise _Refused(f"the program {program} is missing: install it, e.g. apt-get install {package}")
    return path


def _environment(temporary: Path) -> dict[str, str]:
    """Return this process's environment without what would override the settings of a host or of etcd."""
    # TMPDIR and not runtime_dir: a host that the reader starts again has a runtime directory of its own, and may stay
    # longer than ours
    own = str(Path(__file__).resolve().parents[2])
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("MQTTD_", "ETCD_"))}
    path = os.pathsep.join([own, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**kept, "PYTHONPATH": path, "TMPDIR": str(temporary)}

"""A real broker for tests, in a process of its own: to be started, restarted, killed and stopped.

    with Mqttd(workers=2, config={"limits": {"packet_bytes_max": 1000}}) as mqttd:
        client.connect(mqttd.host, mqttd.port)

`broker.pytest_plugin` makes fixtures of it; this module needs only the standard library.

*The port* is chosen here and not by `--port 0`, because it must stay the same over a restart. A socket that is bound to
it and never listens reserves it, also while no broker runs; connections are refused then, as they should be.

*No process is left behind*, however the tests end. The broker leads a session of its own (so an interrupt at the
terminal does not reach it), and its standard input is a pipe that nobody writes to: when the process that runs the
tests ends, by whatever signal, the kernel closes the pipe and sends the broker SIGTERM (F_SETSIG, O_ASYNC).
`python -m broker.testing` arranges this before it becomes `mqttd`. PR_SET_PDEATHSIG would act when the *thread* that
started the broker ends, which in a test may belong to a pool.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

HOST = "127.0.0.1"
READY_SECONDS_MAX = 20.0
"""A start that logs nothing for this long has failed. A start takes less than a second on an idle machine; this allows
for a loaded one."""
_START_SECONDS_MAX = 600.0
"""Limit of a start that keeps logging: a broker whose workers die again and again must not be waited for forever."""
_LOOK_MILLISECONDS = 200
STOP_SECONDS_MAX = 15.0
"""Deadline of an orderly stop, after which everything is killed: above `limits.stop_seconds_max`."""

_DIRECTORY_BYTES_MAX = 50  # length of the temporary directory's path: unix sockets below it have at most 107 bytes
_WORKER_READY = re.compile(r"\bworker_ready\b.*?\bworker\W+(\d+)\b.*?\bpid\W+(\d+)")  # in logs of either format


class BrokerFailed(Exception):
    """The broker did not start, or ended by itself. The text has its exit status and its log."""


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Return once `condition()` is true; raise TimeoutError naming `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    pause = 0.001
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s: {what}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def processes_of_session(session: int) -> list[int]:
    """Return the processes of a session (setsid) that are not zombies: a broker with everything it forked."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended meanwhile
            if int(after_name[3]) == session and after_name[0] != "Z":
                found.append(int(entry.name))
    return found


class Mqttd:
    """A broker on a free port of 127.0.0.1. It does not run before `start()`; `with` starts and closes it.

    `config` is the content of a configuration file, as a mapping (`{"limits": {"inflight_max": 10}}`), or the path of a
    TOML file. Address, port, runtime directory and number of workers given here override it, and there is no admin
    interface. `store` defaults to `memory`, and `data_dir` to a directory that is removed with the broker.
    MQTTD_... variables of this process's environment are not passed on, those in `environment` are.
    """

    ready_seconds_max = READY_SECONDS_MAX
    """Seconds without a log line until a start fails: recovery and repartitioning log progress for minutes."""

    def __init__(
        self,
        workers: int = 1,
        config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.workers = workers
        self.arguments = list(arguments)
        self.environment = dict(environment or {})
        self.host = HOST
        base = tempfile.gettempdir()
        short = len(os.fsencode(base)) <= _DIRECTORY_BYTES_MAX
        self._directory = tempfile.TemporaryDirectory(prefix="mqttd-test-", dir=base if short else "/tmp")
        self._log = Path(self._directory.name, "log")
        self._log.touch()
        if config is None or isinstance(config, str | os.PathLike):
            self._config = config
        else:
            self._config = Path(self._directory.name, "mqttd.toml")
            self._config.write_text("".join(f"{_toml(key)} = {_toml(value)}\n" for key, value in config.items()))
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reserved.bind((HOST, 0))
        self.port: int = self._reserved.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = True

    def __repr__(self) -> str:
        return f"<Mqttd {self.url} workers={self.workers} {'running' if self.alive() else 'not running'}>"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.forget()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The broker's address as `mqtt://HOST:PORT`."""
        return f"mqtt://{self.host}:{self.port}"

    @property
    def address(self) -> tuple[str, int]:
        """The broker's address as (host, port)."""
        return self.host, self.port

    @property
    def runtime_dir(self) -> str:
        """Where `mqttd sessions` and the like find the broker."""
        return str(Path(self._directory.name, "run"))

    @property
    def pid(self) -> int:
        """The supervisor's process id, which is also the session id of all its children."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def logs(self) -> str:
        """Everything that the broker has written to standard error, over all its starts."""
        return self._log.read_text(errors="replace")

    # -- start and end

    def start(self) -> Mqttd:
        """Start the broker and return when every worker serves. Raises BrokerFailed; nothing runs then."""
        __tracebackhide__ = True  # pytest shows the calling test, and the broker's output
        assert not self.alive(), "already running"
        inherited = {name: text for name, text in os.environ.items() if not name.startswith("MQTTD_")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**inherited, "PYTHONPATH": _python_path(), **self.environment},
                start_new_session=True,
            )
        self._stopped = False
        try:
            self._wait_ready(self._process)
        except BaseException:
            self.kill()
            raise
        return self

    def _command(self) -> list[str]:
        """-P: a folder `broker` in the current directory is not this package."""
        command = [sys.executable, "-P", "-m", "broker.testing", "--workers", str(self.workers)]
        command += ["--host", self.host, "--port", str(self.port)]
        command += ["--runtime-dir", self.runtime_dir, "--admin", "none"]
        if not self._says("store"):
            command += ["--store", "memory"]
        if not self._says("data_dir"):
            command += ["--data-dir", str(Path(self._directory.name, "data"))]
        if self._config is not None:
            command += ["--config", os.fspath(self._config)]
        return [*command, *self.arguments]

    def _says(self, key: str) -> bool:
        """Whether arguments, environment or configuration set this key."""
        flag = "--" + key.replace("_", "-")
        if any(each == flag or each.startswith(f"{flag}=") for each in self.arguments):
            return True
        if f"MQTTD_{key.upper()}" in self.environment:
            return True
        named = itertools.dropwhile(lambda each: each != "--config", self.arguments)
        file = next(itertools.islice(named, 1, None), self._config)
        try:
            return file is not None and key in tomllib.loads(Path(file).read_text())
        except (OSError, ValueError):
            return False  # the broker reports the error

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the one line on standard output: `mqttd ready HOST:PORT workers=N`."""
        __tracebackhide__ = True
        assert process.stdout is not None
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        begun = logged = time.monotonic()
        log_bytes = 0
        line = b""
        while not line.endswith(b"\n"):
            if not poll.poll(_LOOK_MILLISECONDS):
                now = time.monotonic()
                size = self._log.stat().st_size
                if size > log_bytes:
                    log_bytes, logged = size, now
                if now - logged > self.ready_seconds_max or now - begun > _START_SECONDS_MAX:
                    silent = f"{now - logged:.0f} s after its last log line"
                    raise BrokerFailed(f"mqttd is not ready after {now - begun:.0f} s, {silent}:\n{self.logs}")
                continue
            said = os.read(process.stdout.fileno(), 4096)
            if not said:
                status = process.wait(STOP_SECONDS_MAX)
                raise BrokerFailed(f"mqttd ended with status {status} before it was ready:\n{self.logs}")
            line += said
        assert line.split()[:2] == [b"mqttd", b"ready"], line

    def alive(self) -> bool:
        """Whether the supervisor is running."""
        return self._process is not None and self._process.poll() is None

    def stop(self, with_signal: int = signal.SIGTERM) -> int:
        """Stop the broker as an operator would; return its exit status (0: orderly). TimeoutError: one is left."""
        assert self._process is not None, "not started"
        self._stopped = True
        try:
            if self.alive():
                self._process.send_signal(with_signal)
            status = self._process.wait(STOP_SECONDS_MAX)
            wait_until(lambda: not self.processes(), 2.0, f"no process is left of {self.pid}: {self.processes()}")
        finally:
            self.kill()
        return status

    def restart(self) -> None:
        """Stop, and start on the same port. State in memory is lost: with `--store memory`, everything."""
        status = self.stop()
        if status:
            raise BrokerFailed(f"mqttd ended with status {status}:\n{self.logs}")
        self.start()

    def kill(self) -> None:
        """Send SIGKILL to all of its processes."""
        if self._process is None:
            return
        self._stopped = True
        for process in self.processes():
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait(STOP_SECONDS_MAX)
        for stream in (self._process.stdin, self._process.stdout):  # not before: closing stdin sends another SIGTERM
            if stream is not None:
                stream.close()

    def close(self) -> None:
        """Stop the broker if it runs, remove its files, release the port. BrokerFailed: it ended by itself or badly."""
        try:
            if self._process is not None and not self._stopped:
                unasked = not self.alive()
                status = self.stop()
                if status or unasked:
                    how = "ended by itself" if unasked else "was stopped and ended"
                    raise BrokerFailed(f"mqttd {how} with status {status}:\n{self.logs}")
        finally:
            self.forget()

    def forget(self) -> None:
        """Remove its files and release the port."""
        self._directory.cleanup()
        self._reserved.close()

    # -- its processes

    def processes(self) -> list[int]:
        """Return the supervisor and everything it forked."""
        return processes_of_session(self.pid)

    def worker_pids(self) -> dict[int, int]:
        """Return the process ids of the workers by index, read from their titles."""
        found = {}
        for pid in self.processes():
            try:
                # while a title is being written, the end of the former one may still follow it
                title = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if title.startswith(b"mqttd: worker "):
                found[int(title.split()[-1])] = pid
        return found

    def kill_worker(self, index: int) -> None:
        """Kill one worker (SIGKILL); return when its successor serves (as logged, at level info or debug)."""
        former = self.worker_pids()[index]
        os.kill(former, signal.SIGKILL)

        def succeeded() -> bool:
            ready = [int(pid) for worker, pid in _WORKER_READY.findall(self.logs) if int(worker) == index]
            return bool(ready) and ready[-1] != former

        wait_until(succeeded, READY_SECONDS_MAX, f"worker {index} is ready again:\n{self.logs}")


def _toml(value: object) -> str:
    """Return a value as TOML. JSON is TOML, except for tables, null and NaN or infinity."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if value is None:
        raise TypeError("a configuration has no null: leave the key out")
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")


def _python_path() -> str:
    """Put the directory of this package first: it may run from a source tree."""
    own = str(Path(__file__).resolve().parent.parent)
    return os.pathsep.join([own, *filter(None, [os.environ.get("PYTHONPATH")])])


def _end_with_parent() -> None:
    """Send this process SIGTERM when the other end of its standard input is closed."""
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    hung_up = select.poll()
    hung_up.register(0, 0)
    if hung_up.poll(0):
        raise SystemExit("mqttd: the process that started this broker is gone")


if __name__ == "__main__":
    _end_with_parent()
    from broker.cli.main import main

    raise SystemExit(main())

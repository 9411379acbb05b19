"""Real etcd servers on free ports of 127.0.0.1, without fsync: tests of mqttd do not cut etcd's power."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.waiting import wait_until

__all__ = ["EtcdProcess", "etcd_process"]


_STARTED = 'grpc_server_started_total{grpc_method="Txn"'


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _state_of(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


class EtcdProcess:
    """One etcd server with a folder of its own, a cluster of one. Its ports and data stay over `stop` and `start`."""

    def __init__(
        self, folder: Path, options: Sequence[str] = (), scheme: str = "http", host: str = "127.0.0.1"
    ) -> None:
        self.folder = folder
        self.port, self._peer_port, self._metrics_port = _free_ports(3)
        self.endpoint = f"{host}:{self.port}"
        self.url = f"{scheme}://{self.endpoint}"
        self.cluster = f"etcd://{self.endpoint}"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> EtcdProcess:
        """Start it and wait until it answers."""
        peer = f"http://127.0.0.1:{self._peer_port}"
        program = shutil.which("etcd")
        assert program is not None, "etcd is missing: install etcd-server"
        command = [
            *("setpriv", "--pdeathsig", "KILL"),  # it ends with the tests, however they end
            program,
            *("--name", "one", "--data-dir", str(self.folder / "data"), "--unsafe-no-fsync"),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}"),
            *("--listen-metrics-urls", f"http://127.0.0.1:{self._metrics_port}"),
            *self._options,
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(self._is_healthy, 60, "etcd serves")
        return self

    def _is_healthy(self) -> bool:
        assert self._process is not None
        status = self._process.poll()
        assert status is None, f"etcd ended with status {status}: {self.log()[-3000:]}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics_port}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def transactions(self) -> int:
        """Return how many transactions it has been asked for since its start."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        return sum(int(float(line.split()[1])) for line in lines if line.startswith(_STARTED))

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def freeze(self) -> None:
        """Stop all its threads, until `thaw`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self._process.pid}/task")
        wait_until(lambda: {_state_of(each) for each in tasks.iterdir()} == {"T"}, 30, "its threads have stopped")

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Kill it and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def etcd_process(options: Sequence[str] = (), scheme: str = "http", host: str = "127.0.0.1") -> Iterator[EtcdProcess]:
    """A running etcd server, removed in the end. host: where its clients reach it."""
    with tempfile.TemporaryDirectory(prefix="mqttd-etcd-") as folder:
        server = EtcdProcess(Path(folder), options, scheme, host)
        try:
            yield server.start()
        finally:
            server.stop()

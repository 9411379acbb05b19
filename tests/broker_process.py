"""The broker process of our own tests: `broker.testing.Mqttd` with access to its log, memory and processes.

By default it runs the broker of this tree; ``MQTTD_TEST_BROKER=mosquitto`` runs Debian's mosquitto instead, to find out
whether the broker or the test is wrong. If a test names no store, one worker has it in memory and several on disk, as
users do; ``MQTTD_TEST_STORE=memory`` or ``leveldb`` sets the store of all these tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from broker.testing import READY_SECONDS_MAX, BrokerFailed, Mqttd, processes_of_session, wait_until

__all__ = ["KIND", "ROOT", "STORES", "BrokerProcess", "processes_of_session", "usual_store"]

ROOT = Path(__file__).resolve().parent.parent
KIND = os.environ.get("MQTTD_TEST_BROKER", "mqttd")
STORE = os.environ.get("MQTTD_TEST_STORE", "")
_FAILURE = re.compile(r"Traceback|killed by SIG(SEGV|ABRT|BUS|FPE|ILL|SYS|TRAP)")

#: The stores of a suite that runs on every store
STORES = ("",) if KIND == "mosquitto" else (STORE,) if STORE else ("memory", "leveldb")


def usual_store(workers: int) -> str:
    """Return the store that users have by default with this number of workers."""
    return "leveldb" if workers > 1 else "memory"


MOSQUITTO = """\
listener {port} 127.0.0.1
allow_anonymous true
max_packet_size 1000000
set_tcp_nodelay true
log_type all
"""


class BrokerProcess(Mqttd):
    """A running broker, with its settings in arguments and environment, as an operator passes them."""

    def __init__(
        self,
        workers: int = 1,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        store: str = "",
    ) -> None:
        # disk reserves would fill the machine's disk: pytest keeps the directories of its last runs
        store = store or STORE or usual_store(workers)
        environment = {"MQTTD_LEVELDB__RESERVE_BYTES": "0", "MQTTD_STORE": store, **(environment or {})}
        super().__init__(workers, arguments=arguments, environment=environment)

    def start(self) -> BrokerProcess:
        """Start, and return when the ready line is logged (mosquitto: when the port answers)."""
        try:
            super().start()
        except BaseException:
            self.forget()
            raise
        return self

    def _command(self) -> list[str]:
        if KIND != "mosquitto":
            return super()._command()
        config = Path(self._directory.name, "mosquitto.conf")
        config.write_text(MOSQUITTO.format(port=self.port))
        return [os.environ.get("MOSQUITTO", "/usr/sbin/mosquitto"), "-c", str(config)]

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        if KIND != "mosquitto":
            super()._wait_ready(process)
            return

        def listens() -> bool:
            if process.poll() is not None:
                raise BrokerFailed(f"mosquitto ended with status {process.returncode}:\n{self.logs}")
            with socket.socket() as probe:
                return probe.connect_ex(self.address) == 0

        wait_until(listens, READY_SECONDS_MAX, "mosquitto listens")

    @property
    def admin(self) -> tuple[str, int]:
        """Address of its admin interface, since its last start; that must have been with ``--admin 127.0.0.1:0``."""
        said = re.findall(r"^  admin +http://([\d.]+):(\d+)$", self.stderr(), re.MULTILINE)
        if said:
            return said[-1][0], int(said[-1][1])
        host, _, port = self.logged("start")[-1]["admin"][0].rpartition(":")
        return host, int(port)

    def control_pid(self) -> int:
        """Return the process id of the control process, 0 if there is none."""
        for pid in self.processes():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"mqttd: control"):
                    return pid
        return 0

    def stderr(self, since: int = 0) -> str:
        """Return the standard error from byte ``since``."""
        return self._log.read_bytes()[since:].decode(errors="replace")

    def assert_sound(self) -> None:
        """Check that no exception was logged until now, and that no process has crashed."""
        said = self.stderr()
        wrong = [line for line in said.splitlines() if _FAILURE.search(line)]
        assert not wrong, f"the broker failed within: {wrong[:3]}\n{said[-20000:]}"

    def stderr_size(self) -> int:
        """Return the bytes of standard error until now."""
        return self._log.stat().st_size

    def pss_bytes(self) -> int:
        """Return the memory of all processes, shared memory counted once, without kernel socket buffers.

        Pages of files are left out: our share of an interpreter's code grows when another Python on the machine ends.
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
        """Return the log lines of this event from byte ``since`` until now; the broker must log as JSON."""
        lines = [
            json.loads(line)
            for line in self.stderr(since).splitlines(keepends=True)
            if line.startswith("{") and line[-1] == "\n"
        ]
        return [line for line in lines if line["event"] == event]

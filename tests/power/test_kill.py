"""A process is killed at the requested point, once: the crash tests of the broker rely on it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker_process import ROOT
from tests.power.conftest import Trace
from tests.power.test_shim import SECONDS_MAX
from tests.power.trace import What

#: two writes, a sync and an answer, five times
PROGRAM = """\
import os, socket, sys
log = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
answers = socket.socket(fileno=int(sys.argv[2]))
for number in range(5):
    os.write(log, b"one")
    os.write(log, b"two")
    os.fdatasync(log)
    answers.send(b"%d" % number)
"""


@pytest.mark.parametrize(
    ("point", "at", "writes", "syncs", "answers"),
    [
        ("write", 3, 2, 1, b"0"),
        ("written", 4, 4, 1, b"0"),
        ("sync", 2, 4, 1, b"0"),
        ("synced", 2, 4, 2, b"0"),
        ("answer", 2, 4, 2, b"0"),
        ("answered", 2, 4, 2, b"01"),
    ],
)
def test_it_dies_there_and_only_once(
    trace: Trace, tmp_path: Path, point: str, at: int, writes: int, syncs: int, answers: bytes
) -> None:
    traced = trace(tmp_path / "root")
    traced.environment["POWER_KILL"] = f"{point} {at} {tmp_path / 'killed'}"

    def run() -> tuple[int, bytes]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            command = [sys.executable, "-c", PROGRAM, str(traced.root / "log"), str(theirs.fileno())]
            done = subprocess.run(
                command, cwd=ROOT, env={**os.environ, **traced.environment}, pass_fds=[theirs.fileno()],
                timeout=SECONDS_MAX, check=False,
            )  # fmt: skip
            theirs.close()
            return done.returncode, ours.recv(100)

    assert run() == (-signal.SIGKILL, answers)
    kinds = [record.what for record in traced.records()]
    assert (kinds.count(What.WRITE), kinds.count(What.SYNC_END)) == (writes, syncs)
    assert run() == (0, b"01234")

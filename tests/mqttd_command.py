"""Runner of `mqttd SUBCOMMAND` in a process of its own, because it lowers its priority and opens databases."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.broker_process import ROOT

__all__ = ["Said", "command", "mqttd"]


_PROGRESS = re.compile(r"mqttd: (snapshot|restore) .*, \d+%, \d+ s$")


class Said(NamedTuple):
    """The exit status and the output of a command."""

    status: int
    out: str
    err: str

    @property
    def err_beside_progress(self) -> str:
        """Standard error without the progress lines of a snapshot or restore."""
        return "".join(line for line in self.err.splitlines(keepends=True) if not _PROGRESS.match(line))


def command(*arguments: str | Path) -> subprocess.Popen[str]:
    """Start the command, without inherited MQTTD_... variables."""
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("MQTTD_")}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "broker", *map(str, arguments)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**inherited, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def mqttd(*arguments: str | Path, seconds: float = 120.0) -> Said:
    """Run the command to its end; raise subprocess.TimeoutExpired after `seconds`."""
    process = command(*arguments)
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return Said(process.returncode, out, err)

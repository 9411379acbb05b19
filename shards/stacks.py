"""The stack of a worker that hangs: it registers a signal whose handler, in C, writes every thread's Python stack to a
file, whatever the interpreter is stuck in; the supervisor sends the signal, waits a moment and reads the file.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from typing import IO

SIGNAL = signal.SIGUSR2
_CHARACTERS_MAX = 16384


def register(runtime_dir: str, index: int) -> IO[str]:
    """In worker `index`: let SIGNAL write its stack. The file must stay open as long as the process lives.

    Crashes (SIGSEGV and the like) write theirs to standard error.
    """
    stack_file = open(_path(runtime_dir, index), "w")  # noqa: SIM115
    faulthandler.register(SIGNAL, file=stack_file, all_threads=True, chain=False)
    faulthandler.enable()
    return stack_file


def read(runtime_dir: str, index: int) -> str:
    """What worker `index` has written."""
    try:
        with open(_path(runtime_dir, index), errors="replace") as stack_file:
            return stack_file.read(_CHARACTERS_MAX)
    except OSError as error:
        return f"unavailable: {error.strerror}"


def process_state(pid: int) -> str:
    """The kernel's word for what a process does: "R (running)", "T (stopped)", "D (disk sleep)", ..."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("State:"):
                return line.partition(":")[2].strip()
    return "unknown"


def _path(runtime_dir: str, index: int) -> str:
    return os.path.join(runtime_dir, f"worker-{index}.stack")

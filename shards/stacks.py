"""Stack of a hung worker: the worker registers a signal whose handler, in C, writes every thread's Python stack to a
file, whatever the interpreter is stuck in; the supervisor sends the signal, waits a moment and reads the file.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import mmap
import os
import signal
from typing import IO

SIGNAL = signal.SIGUSR2
_CHARACTERS_MAX = 16384
_HANDLER_BYTES = 256 * 1024


def register(runtime_dir: str, index: int) -> IO[str]:
    """In worker `index`: let SIGNAL write its stack. The file must stay open as long as the process lives.

    Crashes (SIGSEGV and the like) write theirs to standard error.
    """
    stack_file = open(_path(runtime_dir, index), "w")  # noqa: SIM115
    faulthandler.register(SIGNAL, file=stack_file, all_threads=True, chain=False)
    faulthandler.enable()
    _give_room_to_handlers()
    return stack_file


class _Stack(ctypes.Structure):
    _fields_ = (("ss_sp", ctypes.c_void_p), ("ss_flags", ctypes.c_int), ("ss_size", ctypes.c_size_t))


def _give_room_to_handlers() -> None:
    """Install a larger stack for signal handlers: faulthandler's own has room for one signal. With the registers of a
    large processor (AVX-512, AMX) a second one that arrives meanwhile overflows it, and the process dies of SIGSEGV.
    For the main thread, which takes the signals.
    """
    room = mmap.mmap(-1, _HANDLER_BYTES)
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    _kept.append(room)
    if ctypes.CDLL(None, use_errno=True).sigaltstack(ctypes.byref(_Stack(address, 0, _HANDLER_BYTES)), None) != 0:
        raise OSError(ctypes.get_errno(), "sigaltstack")


_kept: list[mmap.mmap] = []  # kept for the life of the process


def read(runtime_dir: str, index: int) -> str:
    """Return what worker `index` has written."""
    try:
        with open(_path(runtime_dir, index), errors="replace") as stack_file:
            return stack_file.read(_CHARACTERS_MAX)
    except OSError as error:
        return f"unavailable: {error.strerror}"


def process_state(pid: int) -> str:
    """Return the kernel's state of a process: "R (running)", "T (stopped)", "D (disk sleep)", ..."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("State:"):
                return line.partition(":")[2].strip()
    return "unknown"


def _path(runtime_dir: str, index: int) -> str:
    return os.path.join(runtime_dir, f"worker-{index}.stack")

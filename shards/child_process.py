"""Runs work in a process of its own, before anything else is forked: threads that libraries start end with it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

__all__ = ["ChildFailed", "run_in_child"]

_PR_SET_PDEATHSIG = 1
_TEXT_BYTES_MAX = 4096


class ChildFailed(Exception):
    """The process ended without having done its work. The text is one line."""


def run_in_child(work: Callable[[], None], refused: type[Exception]) -> None:
    """Call `work` in a child process and wait for its end. No other thread may run, because a fork copies none:
    LevelDB, for one, would wait in the child for the thread that it had here. Exceptions of kind `refused` are raised
    here as ChildFailed, with their text; so are all others, and the end of a child that was killed. The child never
    outlives its parent.
    """
    libc = ctypes.CDLL(None)
    parent = os.getpid()
    said, say = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        _work(work, refused, say)
    os.close(say)
    try:
        with os.fdopen(said, "rb") as answer:
            text = answer.read().decode(errors="replace")
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    _, status = os.waitpid(pid, 0)
    exit_status = os.waitstatus_to_exitcode(status)
    if exit_status < 0:
        raise ChildFailed(f"killed by {signal.Signals(-exit_status).name}")
    if exit_status:
        raise ChildFailed(text or f"exit status {exit_status}")


def _work(work: Callable[[], None], refused: type[Exception], say: int) -> NoReturn:
    status = 1
    try:
        work()
        status = 0
    except refused as error:
        os.write(say, str(error).encode()[:_TEXT_BYTES_MAX])
    except BaseException as error:  # noqa: BLE001  this process ends here
        traceback.print_exc()
        os.write(say, f"internal error: {error!r}".encode()[:_TEXT_BYTES_MAX])
    finally:
        sys.stderr.flush()
        os._exit(status)

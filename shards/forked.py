"""Start and end of a forked process: turns a copy of the supervisor into a process of its own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from typing import IO, NoReturn

from setproctitle import setproctitle

from shards import signals, stacks
from shards.cores import usable_cpus
from shards.worker_channel import ControlChannel, WorkerChannel

__all__ = ["live"]

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def live(
    channel: WorkerChannel | ControlChannel,
    *,
    life: Callable[[], int],
    leave: Callable[[], None],
    failed: Callable[[str, str], None],
    parent: int,
    is_pinned: bool,
) -> NoReturn:
    """Run `life`, and exit with its result.

    `leave` closes what belongs to the parent or to another child; `failed` is called with an error, in one line, and
    its stack. `is_pinned`: a worker is pinned to one CPU.
    """
    status = 1
    try:
        _settle(channel, leave, parent, is_pinned)
        status = life()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:  # noqa: BLE001 (nothing may unwind into the supervisor's frames)
        reason = "".join(traceback.format_exception_only(error)).strip().replace("\n", " ")
        channel.failed(reason)
        failed(reason, traceback.format_exc())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status & 0xFF)


def _settle(channel: WorkerChannel | ControlChannel, leave: Callable[[], None], parent: int, is_pinned: bool) -> None:
    signals.forget_handlers()
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before PR_SET_PDEATHSIG was set
        os._exit(1)
    leave()
    _kept.append(stacks.register(channel.runtime_dir, channel.index))
    signals.let_come_to_child()
    worker = isinstance(channel, WorkerChannel)
    setproctitle(f"mqttd: worker {channel.index}" if worker else "mqttd: control")
    random.seed()
    if is_pinned and worker:
        cpus = usable_cpus()
        os.sched_setaffinity(0, {cpus[channel.index % len(cpus)]})


_kept: list[IO[str]] = []  # kept open for the life of the process

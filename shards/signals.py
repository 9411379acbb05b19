"""Signal handling of a broker's processes: no signal ends one of them by surprise.

    to the supervisor   SIGTERM, SIGINT, SIGQUIT   the broker stops; a second one kills what is left
                        SIGHUP                     the configuration is read again
    to a worker, or the control process
                        SIGTERM                    it stops; the supervisor starts another one
                        SIGINT, SIGQUIT, SIGHUP    ignored: a terminal sends them to all processes, and the supervisor
                                                   acts on them
                        SIGUSR2                    its stack is written to a file (shards.stacks)
    to any of them      every other signal that would end a process and does not come from a machine fault
                        (IGNORED)                  ignored, with a line in the log (`signal_ignored`)

Signals of the processor (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS) and SIGABRT end the process, with its stack
on standard error; SIGPIPE and SIGXFSZ are ignored without a line, as Python does: the failing call reports the error.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable

from shards import stacks

STOPPING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})

IGNORED: frozenset[int] = frozenset(
    {
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGALRM,
        signal.SIGVTALRM,
        signal.SIGPROF,
        signal.SIGXCPU,
        signal.SIGIO,
        signal.SIGPWR,
        signal.SIGSTKFLT,
        *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
    }
)
"""Signals that the supervisor ignores; its children use SIGUSR2."""

_WATCHED = STOPPING | IGNORED | {signal.SIGHUP, signal.SIGCHLD}
_WATCHED_BY_CHILDREN = frozenset({stacks.SIGNAL})


class SignalWatch:
    """The supervisor's signal handling: a signal wakes the poll on `fileno()`, and does nothing else."""

    def __init__(self) -> None:
        self._wakeup, self._signalled = socket.socketpair()
        self._wakeup.setblocking(False)
        self._signalled.setblocking(False)
        self._former = {number: signal.signal(number, lambda *_: None) for number in _WATCHED}
        self._former_wakeup = signal.set_wakeup_fd(self._signalled.fileno(), warn_on_full_buffer=False)

    def fileno(self) -> int:
        """Return the descriptor that is readable when a signal has arrived."""
        return self._wakeup.fileno()

    def came(self) -> set[int]:
        """Return the signals that have arrived since the last call."""
        with contextlib.suppress(BlockingIOError):
            return set(self._wakeup.recv(4096))
        return set()

    def close(self) -> None:
        """Restore the former handling."""
        signal.set_wakeup_fd(self._former_wakeup)
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self.leave()

    def leave(self) -> None:
        """In a child: close the supervisor's sockets."""
        self._wakeup.close()
        self._signalled.close()


def hold_back() -> None:
    """Block signals around a fork: one between it and the child's own handlers would be written into the supervisor's
    wake-up socket.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)


def let_come() -> None:
    """Unblock signals in the supervisor, after the fork."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)


def forget_handlers() -> None:
    """Reset the supervisor's handlers, first of all in the child."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # until the worker has a handler: die
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # The terminal sends these to the whole process group; only the supervisor acts on them.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def let_come_to_child() -> None:
    """Unblock signals in the child, once it can handle them; the ignored ones in `ignore_with_a_line`."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED - IGNORED | _WATCHED_BY_CHILDREN)


def name_of(number: int) -> str:
    """Return the name of a signal: SIGUSR1, SIGRTMIN+3, ..."""
    if signal.SIGRTMIN < number < signal.SIGRTMAX:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
    return signal.Signals(number).name


def ignore_with_a_line(loop: asyncio.AbstractEventLoop, known: frozenset[int], say: Callable[[str], None]) -> None:
    """In a child's main thread: report IGNORED signals except those in `known` to `say`, by name. Until now they were
    blocked: one that has arrived since the fork is reported as well.
    """
    others = IGNORED - known
    for number in others:
        loop.add_signal_handler(number, say, name_of(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, others)

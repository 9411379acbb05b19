"""What each signal does to the processes of a broker. None ends one of them by surprise.

    to the supervisor   SIGTERM, SIGINT, SIGQUIT   the broker stops; a second one kills what is left
                        SIGHUP                     the configuration is read again
    to a worker, or the control process
                        SIGTERM                    it stops; the supervisor makes another one
                        SIGINT, SIGQUIT, SIGHUP    nothing: a terminal sends them to all of them, and what they mean is
                                                   the supervisor's to say
                        SIGUSR2                    its stack is written to a file (shards.stacks)
    to any of them      every other one that would end a process and that nobody sends by accident of the machine
                        (IGNORED)                  ignored, with a line in the log (`signal_ignored`)

What the processor raises (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS) and SIGABRT end the process, with its stack
on standard error; SIGPIPE and SIGXFSZ are ignored without a line, as Python has it: the failing call says so.
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
"""By the supervisor; its children know SIGUSR2."""

_WATCHED = STOPPING | IGNORED | {signal.SIGHUP, signal.SIGCHLD}
_WATCHED_BY_CHILDREN = frozenset({stacks.SIGNAL})


class Watch:
    """The supervisor's: from now on a signal wakes whoever polls `fileno()`, and does nothing else."""

    def __init__(self) -> None:
        self._wakeup, self._signalled = socket.socketpair()
        self._wakeup.setblocking(False)
        self._signalled.setblocking(False)
        self._former = {number: signal.signal(number, lambda *_: None) for number in _WATCHED}
        self._former_wakeup = signal.set_wakeup_fd(self._signalled.fileno(), warn_on_full_buffer=False)

    def fileno(self) -> int:
        """Readable when one has come."""
        return self._wakeup.fileno()

    def came(self) -> set[int]:
        """Those that have come since it was asked last."""
        with contextlib.suppress(BlockingIOError):
            return set(self._wakeup.recv(4096))
        return set()

    def close(self) -> None:
        """All is as it was before."""
        signal.set_wakeup_fd(self._former_wakeup)
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self.leave()

    def leave(self) -> None:
        """In a child: its sockets are the supervisor's."""
        self._wakeup.close()
        self._signalled.close()


def hold_back() -> None:
    """Around a fork: a signal between it and the child's own handlers would be written into the supervisor's wake-up
    socket.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)


def let_come() -> None:
    """In the supervisor, after the fork."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)


def forget_handlers() -> None:
    """In the child, first of all: the supervisor's handlers are not its own."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # until the worker has a handler: die
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # The terminal sends these to the whole group; what they mean is the supervisor's to say.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def let_come_to_child() -> None:
    """In the child, when it can take them; the ignored ones when it can say that they came (`ignore_with_a_line`)."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED - IGNORED | _WATCHED_BY_CHILDREN)


def name_of(number: int) -> str:
    """SIGUSR1, SIGRTMIN+3, ..."""
    if signal.SIGRTMIN < number < signal.SIGRTMAX:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
    return signal.Signals(number).name


def ignore_with_a_line(loop: asyncio.AbstractEventLoop, known: frozenset[int], say: Callable[[str], None]) -> None:
    """In a child, in its main thread: from now on IGNORED signals but those in `known` are told to `say`, by name.
    Until now they were blocked: one that came since the fork is told as well.
    """
    others = IGNORED - known
    for number in others:
        loop.add_signal_handler(number, say, name_of(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, others)

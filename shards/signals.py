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
import signal
from collections.abc import Callable

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

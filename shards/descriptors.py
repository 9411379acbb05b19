"""File descriptors: as many as the system lets a process have, and those of them that are not for connections.

Whoever connects must not use up what the store, the links, the log and the supervisor's words take: a LevelDB that may
not open a file has failed, and a worker that cannot is of no use to anybody. So a worker has fewer connections than
descriptors (`left_for_connections`); one more is accepted and closed at once, and never waits in front of a listener
that can take nobody.
"""

from __future__ import annotations

import contextlib
import resource

__all__ = ["left_for_connections", "raise_descriptor_limit"]

_OF_A_WORKER = 64
"""Event loop, epoll, timers, log, control, a store's logs and manifest, what is read or written for a moment."""
_PER_WORKER = 8
"""Of each worker of the broker: links, both ends of its hand-off sockets."""
_TABLES_SHARE = 5
"""LevelDB holds no more tables open than this part of all descriptors (its PosixEnv, MaxOpenFiles)."""
_UNLIMITED = 1 << 30


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open file descriptors to the hard one, for this process and its children. The limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # an unlimited hard limit above fs.nr_open
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft


def left_for_connections(workers: int, listeners: int, tables: int) -> int:
    """How many connections each of so many workers may have, with so many listeners of its own and tables of its store
    that it may hold open; at least one.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        limit = _UNLIMITED
    own = _OF_A_WORKER + _PER_WORKER * workers + listeners + min(tables, limit // _TABLES_SHARE)
    return max(1, limit - own)

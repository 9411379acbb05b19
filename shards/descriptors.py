"""File descriptors: raises the limit, and divides them between connections and everything else.

Connections must not use up the descriptors that the store, the links, the log and the supervisor's channel need: a
LevelDB that cannot open a file has failed, and a worker that cannot is useless. So a worker has fewer connections than
descriptors (`left_for_connections`); one more is accepted and closed at once, and never waits at a listener that cannot
accept it.
"""

from __future__ import annotations

import contextlib
import resource

__all__ = ["left_for_connections", "raise_descriptor_limit"]

_OF_A_WORKER = 64
"""Event loop, epoll, timers, log, control, a store's logs and manifest, files open for a moment."""
_PER_WORKER = 8
"""Per worker of the broker: links, both ends of its hand-off sockets."""
_TABLES_SHARE = 5
"""LevelDB keeps at most this fraction of all descriptors as open tables (its PosixEnv, MaxOpenFiles)."""
_UNLIMITED = 1 << 30


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one, for this process and its children; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # an unlimited hard limit above fs.nr_open
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft


def left_for_connections(workers: int, listeners: int, tables: int) -> int:
    """Return how many connections each worker may have, given the number of workers, of its listeners and of tables
    that its store may keep open; at least one.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        limit = _UNLIMITED
    own = _OF_A_WORKER + _PER_WORKER * workers + listeners + min(tables, limit // _TABLES_SHARE)
    return max(1, limit - own)

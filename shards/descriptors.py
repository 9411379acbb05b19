"""File descriptors: as many as the system lets a process have."""

from __future__ import annotations

import contextlib
import resource


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open file descriptors to the hard one, for this process and its children. The limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # an unlimited hard limit above fs.nr_open
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft

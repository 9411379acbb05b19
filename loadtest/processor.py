"""CPU time and memory of the broker that is measured, by the pid of its first process."""

from __future__ import annotations

import os
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """A process and all its descendants, as they are now."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                found += map(int, task.read_text().split())
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we looked
    return found


def seconds(pid: int) -> float:
    """User and system time of a process, of its descendants, and of those that have ended and were waited for."""
    total = 0
    for each in tree(pid):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        total += sum(map(int, fields[11:15]))
    return total / _TICK


def pss_bytes(pid: int) -> int:
    """Memory of a process and its descendants: a page that n of them share counts 1/n in each. The kernel's buffers
    for sockets are not in it.
    """
    kilobytes = 0
    for each in tree(pid):
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kilobytes << 10

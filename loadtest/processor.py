"""CPU time and memory of the measured broker, by the pid of its first process."""

from __future__ import annotations

import os
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """Return a process and all its present descendants."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                found += map(int, task.read_text().split())
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended meanwhile
    return found


def seconds(pid: int) -> float:
    """Return user and system time of a process, its descendants, and ended ones that were waited for."""
    total = 0
    for each in tree(pid):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        total += sum(map(int, fields[11:15]))
    return total / _TICK


def pss_bytes(pid: int) -> int:
    """Return the memory of a process and its descendants: a page that n of them share counts 1/n in each. The kernel's
    socket buffers are not included.
    """
    kilobytes = 0
    for each in tree(pid):
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kilobytes << 10

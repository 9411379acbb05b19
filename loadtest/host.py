"""The environment of a measurement: the machine, the commit, the file system."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def memory_bytes() -> int:
    """Return the machine's total memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_bytes() -> int:
    """Return the kernel's estimate of memory for new processes without swapping (MemAvailable)."""
    return _meminfo("MemAvailable")


def kernel_bytes() -> int:
    """Return the memory of kernel objects (Slab): sockets, files, inodes."""
    return _meminfo("Slab")


def _meminfo(name: str) -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def busy_share(seconds: float) -> float:
    """Measure the use of all cores, 0 to 1, for this time: by other programs, while nothing of ours runs."""
    idle, total = _processor_times()
    time.sleep(seconds)
    idle_then, total_then = _processor_times()
    return 1 - (idle_then - idle) / max(1, total_then - total)


def _processor_times() -> tuple[int, int]:
    # (idle and waiting for disks, all) in ticks
    fields = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return fields[3] + fields[4], sum(fields)


def machine() -> str:
    """Return cores, memory, kernel and Python, in one line."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (
        f"{cores()} cores of {models[0] if models else platform.machine()}, {memory_bytes() / 2**30:.0f} GB, "
        f"Linux {platform.release()}, CPython {platform.python_version()}"
    )


def commit() -> str:
    """Return the commit of this tree, with a + when there are changes; `unknown` outside of a repository."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--abbrev=10"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def file_system(path: Path) -> str:
    """Return the file system type of a directory: ext4, tmpfs."""
    command = ["stat", "--file-system", "--format=%T", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

"""Number of usable cores: limited by the CPU affinity and the CPU quota of control groups, not by the installed CPUs. A
container with `--cpus 1.5` on 64 cores gets two workers and not 64.

Control groups have two versions, and both may be mounted at once. The quota of every group from ours up to the root
applies, so the smallest one counts. The mount's own root (third field of mountinfo) is taken off our path first: inside
a container the path in /proc/self/cgroup is the host's, while the mount shows only our part of it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path


def usable_cpus() -> list[int]:
    """Return the numbers of the CPUs this process may be scheduled on, ascending."""
    return sorted(os.sched_getaffinity(0))


def usable_cores() -> int:
    """Return the cores to plan for: affinity limited by the control groups' quota, rounded up, at least 1."""
    cores = len(usable_cpus())
    quota = quota_cores(_read("/proc/self/mountinfo") or "", _read("/proc/self/cgroup") or "", _read)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def quota_cores(mountinfo: str, cgroup: str, read: Callable[[str], str | None]) -> float | None:
    """Return the tightest CPU quota in cores, or None when there is none.

    `mountinfo` and `cgroup` are the texts of /proc/self/mountinfo and /proc/self/cgroup; `read(path)` gives a file's
    text or None. Pure except for `read`.
    """
    quotas = []
    for folder in _group_folders(mountinfo, cgroup):
        quota = _quota_v2(read(f"{folder}/cpu.max"))
        if quota is None:
            quota = _quota_v1(read(f"{folder}/cpu.cfs_quota_us"), read(f"{folder}/cpu.cfs_period_us"))
        if quota is not None:
            quotas.append(quota)
    return min(quotas, default=None)


def _group_folders(mountinfo: str, cgroup: str) -> Iterator[str]:
    """Yield the folders, ours first and then its ancestors, of every hierarchy that may have a CPU quota."""
    path_v1: str | None = None
    path_v2: str | None = None
    for line in cgroup.splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            path_v2 = group
        elif "cpu" in controllers.split(","):
            path_v1 = group
    for line in mountinfo.splitlines():
        # 36 35 98:0 /root /mount/point rw,... [optional fields] - type source super,options
        fields, _, rest = line.partition(" - ")
        kind, *details = rest.split(" ")
        if kind == "cgroup2":
            path = path_v2
        elif kind == "cgroup" and "cpu" in details[-1].split(","):
            path = path_v1
        else:
            continue
        if path is None:
            continue
        root, mount_point = fields.split(" ")[3:5]
        if root != "/":
            path = path[len(root) :] if (path + "/").startswith(root + "/") else "/"
        while True:
            yield mount_point + path.rstrip("/")
            if path in ("/", ""):
                break
            path = path.rsplit("/", 1)[0] or "/"


def _quota_v2(text: str | None) -> float | None:
    """Parse cpu.max: "max 100000" or "150000 100000" (quota and period, us)."""
    try:
        quota, period = (text or "").split()
        return int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None


def _quota_v1(quota: str | None, period: str | None) -> float | None:
    """Parse cpu.cfs_quota_us (-1: none) and cpu.cfs_period_us."""
    try:
        cores = int(quota or "") / int(period or "")
        return cores if cores > 0 else None
    except (ValueError, ZeroDivisionError):
        return None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except OSError:
        return None

"""The number of usable cores: affinity and the quotas of both versions of control groups, from recorded files."""

from __future__ import annotations

import os

import pytest

from shards import cores

V2 = "31 24 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "33 32 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "34 32 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
)
# Docker with v1 and the host's cgroup namespace: the mount shows only the container's own group.
V1_DOCKER = "34 32 0:29 /docker/4f1e /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"


@pytest.mark.parametrize(
    ("mountinfo", "cgroup", "files", "quota"),
    [
        (V2, "0::/system.slice/mqttd.service\n", {}, None),
        (V2, "0::/a/b\n", {"/sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, None),
        (V2, "0::/a/b\n", {"/sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, 1.5),
        (
            V2,
            "0::/a/b\n",
            {"/sys/fs/cgroup/a/b/cpu.max": "max 100000", "/sys/fs/cgroup/a/cpu.max": "50000 100000"},
            0.5,
        ),
        (V2, "0::/a/b\n", {"/sys/fs/cgroup/a/b/cpu.max": "20000 10000", "/sys/fs/cgroup/a/cpu.max": "9 3"}, 2.0),
        (V2, "0::/\n", {"/sys/fs/cgroup/cpu.max": "400000 100000"}, 4.0),  # a container's own namespace
        (V2, "0::/\n", {"/sys/fs/cgroup/cpu.max": "nonsense"}, None),
        (V1, "4:cpu,cpuacct:/x\n", {}, None),
        (
            V1,
            "4:cpu,cpuacct:/x\n",
            {
                "/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "-1",
                "/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000",
            },
            None,
        ),
        (
            V1 + V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"),  # both versions at once
            "4:cpu,cpuacct:/x\n1:name=systemd:/x\n0::/x\n",
            {
                "/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "250000",
                "/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000",
            },
            2.5,
        ),
        (
            V1_DOCKER,
            "4:cpu,cpuacct:/docker/4f1e\n",
            {
                "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "100000",
                "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            1.0,
        ),
        ("", "", {}, None),
    ],
)
def test_quota(mountinfo: str, cgroup: str, files: dict[str, str], quota: float | None) -> None:
    assert cores.quota_cores(mountinfo, cgroup, files.get) == quota


@pytest.mark.parametrize(("quota", "expected"), [(None, 4), (0.1, 1), (1.0, 1), (1.5, 2), (3.0, 3), (64.0, 4)])
def test_usable_cores_are_the_smaller_of_affinity_and_quota_rounded_up(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, expected: int
) -> None:
    monkeypatch.setattr(cores, "usable_cpus", lambda: [0, 2, 4, 6])
    monkeypatch.setattr(cores, "quota_cores", lambda *_: quota)
    assert cores.usable_cores() == expected


def test_this_machine_has_at_least_one_and_no_more_than_its_affinity() -> None:
    assert 1 <= cores.usable_cores() <= len(os.sched_getaffinity(0))
    assert cores.usable_cpus() == sorted(os.sched_getaffinity(0))

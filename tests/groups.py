"""Groups of tests for several processes (pytest-xdist): the tests that stay together, and the order of the groups.

A file is a group, so its fixtures start their brokers once. Spark's files are one group, because each process that runs
one of them has a JVM. In folders whose tests start their own brokers each test is a group, except in files with
fixtures for all their tests. Fixtures of the session (tests/conftest.py) exist once per process.

Long groups begin first, so that none is left when all others are done. pytest-xdist looks for marks in a way that
pytest 9.2 no longer has, so groups are made by the tests' names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

TOGETHER = ("spark",)
"""Folders that are one group each."""

APART = ("chaos", "integration", "simulation", "machine")
"""Folders whose tests are a group each."""

APART_FILES = (
    "cluster/test_hosts_that_",
    "cluster/test_histories",
    "cluster/test_commands",
    "cluster/test_draining",
    "cluster/test_peer_",
    "cluster/test_spreading",
    "unit/pyx/delivery/test_bound",
    "unit/pyx/io/test_bound",
)
"""Beginnings of the names of other such files."""

WITH_FIXTURES = ("chaos/test_hostile_clients", "integration/test_limits", "integration/test_limits_at_their_defaults")
"""Files of these folders that are one group each."""

FIRST: Sequence[str] = (
    "spark/",
    "packaging/",
    "power/test_broker",
    "power/",
    "chaos/test_hostile_clients",
    "machine/",
    "integration/test_limits",
    *APART_FILES,
    "chaos/test_crash",
    "chaos/",
    "cluster/",
    "simulation/",
    "integration/",
    "loadtest/",
    "clients/",
    "fuzz/",
    "conformance/",
    "contract/",
)
"""Beginnings of the names of long groups, the longest first. All others follow in the order of the files."""


def group_of(nodeid: str) -> str:
    """Return the group of a test."""
    path, _, _ = nodeid.partition("::")
    group = path.removeprefix("tests/").removesuffix(".py")
    folder = group.partition("/")[0]
    if folder in TOGETHER:
        return folder
    if (folder in APART and group not in WITH_FIXTURES) or group.startswith(APART_FILES):
        return nodeid
    return group


def arrange(items: list[pytest.Item]) -> None:
    """Sort tests by group, long groups first."""

    def rank(item: pytest.Item) -> int:
        name = item.nodeid.removeprefix("tests/")
        return next((number for number, first in enumerate(FIRST) if name.startswith(first)), len(FIRST))

    items.sort(key=rank)


def scheduling(config: pytest.Config, log: Any) -> Any:
    """Return a scheduler that gives whole groups to processes, in the order of collection."""
    from xdist.scheduler import LoadScopeScheduling  # not before pytest has it as a plugin

    class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return GroupScheduling(config, log)

"""Which tests stay together when several processes run them (pytest-xdist), and which begin first.

A file is a group: what its fixtures start is started once. Spark's files are one group, because each process that runs
one of them has a JVM. In folders whose tests start what they need each test is by itself, but for the files that have
fixtures for all their tests. What a session's fixtures start (tests/conftest.py) is there once for each process.

Long groups begin first, so that none is left when all others are done. pytest-xdist looks for marks in a way that
pytest 9.2 no longer has, so groups are made of the tests' names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

TOGETHER = ("spark",)
"""Folders that are one group."""

APART = ("chaos", "integration", "simulation", "machine")
"""Folders whose tests are by themselves."""

APART_FILES = ("unit/pyx/delivery/test_bound", "unit/pyx/io/test_bound")
"""How the names of other such files begin."""

WITH_FIXTURES = ("chaos/test_hostile_clients", "integration/test_limits", "integration/test_limits_at_their_defaults")
"""Their files that are groups."""

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
    "simulation/",
    "integration/",
    "loadtest/",
    "clients/",
    "fuzz/",
    "conformance/",
    "contract/",
)
"""How the names of the long ones begin, the longest first. What is not here begins in the order of the files."""


def group_of(nodeid: str) -> str:
    """The group of a test, by its name."""
    path, _, _ = nodeid.partition("::")
    group = path.removeprefix("tests/").removesuffix(".py")
    folder = group.partition("/")[0]
    if folder in TOGETHER:
        return folder
    if (folder in APART and group not in WITH_FIXTURES) or group.startswith(APART_FILES):
        return nodeid
    return group


def arrange(items: list[pytest.Item]) -> None:
    """Long groups first."""

    def rank(item: pytest.Item) -> int:
        name = item.nodeid.removeprefix("tests/")
        return next((number for number, first in enumerate(FIRST) if name.startswith(first)), len(FIRST))

    items.sort(key=rank)


def scheduling(config: pytest.Config, log: Any) -> Any:
    """What gives whole groups to processes, in the order in which they were collected."""
    from xdist.scheduler import LoadScopeScheduling  # not before pytest has it as a plugin

    class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return GroupScheduling(config, log)

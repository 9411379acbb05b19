"""Tests that run at the same time: which ones stay together, and which command runs them."""

from __future__ import annotations

import itertools
import re

import pytest

from tests.broker_process import ROOT
from tests.groups import APART, APART_FILES, FIRST, WITH_FIXTURES, group_of
from tests.run import commands, status_of

FIXTURE_OF_A_FILE = re.compile(r"^@pytest\.fixture\([^)]*scope=\"module\"", re.MULTILINE)


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/spark/test_state.py::test_a[1::2]", "spark"),
        ("tests/unit/pyx/protocol/test_codec.py::TestIt::test_a", "unit/pyx/protocol/test_codec"),
        ("tests/chaos/test_crash.py::test_a[1-a/b.py]", "tests/chaos/test_crash.py::test_a[1-a/b.py]"),
        ("tests/integration/test_limits.py::test_a", "integration/test_limits"),
    ],
)
def test_the_group_of_a_test_is_in_its_name(nodeid: str, group: str) -> None:
    assert group_of(nodeid) == group


@pytest.mark.whole_tree
def test_a_file_with_fixtures_for_all_its_tests_is_a_group() -> None:
    places = [*(f"{folder}/test_*.py" for folder in APART), *(f"{file}*.py" for file in APART_FILES)]
    files = [path for place in places for path in (ROOT / "tests").glob(place)]
    found = {group_of(str(path.relative_to(ROOT))) for path in files if FIXTURE_OF_A_FILE.search(path.read_text())}
    assert found == set(WITH_FIXTURES)


@pytest.mark.whole_tree
def test_what_begins_first_is_there() -> None:
    names = [str(path.relative_to(ROOT / "tests")) for path in (ROOT / "tests").rglob("test_*.py")]
    for each in FIRST:
        path, _, function = each.partition("::")
        assert any(name.startswith(path) for name in names)
        assert not function or function.partition("[")[0] in (ROOT / "tests" / path).read_text()


def marks_of(command: list[str]) -> str:
    return command[command.index("-m", command.index("pytest")) + 1]


@pytest.mark.parametrize(("is_long", "is_alone", "is_soak"), list(itertools.product([False, True], repeat=3)))
def test_every_test_is_run_by_one_call_of_pytest(is_long: bool, is_alone: bool, is_soak: bool) -> None:
    """`make soak` runs the tests that are marked for it, and no other command does."""
    marks = {"long": is_long, "alone": is_alone, "soak": is_soak}
    calls = [call for which in (False, True) for call in commands(which, 3, [])]
    chosen = [call for call in calls if eval(marks_of(call), {}, dict(marks))]
    assert len(chosen) == (not is_soak)
    assert all(("-n" in call) == (not is_alone) for call in chosen)


@pytest.mark.parametrize(
    ("statuses", "status"),
    [([0, 0], 0), ([0, 5], 0), ([5, 0], 0), ([5, 5], 5), ([1, 0], 1), ([5, 2], 2), ([-9, 1], -9)],
)
def test_a_failure_of_either_call_is_one(statuses: list[int], status: int) -> None:
    """Status 5: no tests were selected."""
    assert status_of(statuses) == status

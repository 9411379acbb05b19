"""docs/reference/conformance.md agrees with the markers of the tests, and has no gaps."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conformance.document import ROOT, Collected, Statement, document, problems, read_statements

A = "tests/conformance/test_a.py::test_one"
STATEMENTS = {
    each.key: each
    for each in [
        Statement("311", "1.1-1", "a", "server"),
        Statement("5", "1.1-1", "b", "client"),
        Statement("5", "1.1-2", "c", "both", untested="because"),
    ]
}


def said(shown: dict[str, set[str]], workers: dict[str, set[int]] | None = None) -> list[str]:
    """Return the problems reported when the tests show these statements."""
    return list(problems(STATEMENTS, Collected({"311:1.1-1": {A}} | shown, workers or {})))


def test_nothing_is_said_when_all_agree() -> None:
    """A statement about brokers is tested, one about clients is not, and one has a reason."""
    assert said({}, {A: {1, 4}}) == []


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        ({"311:1.1-1": set()}, "no test shows 311:1.1-1"),
        ({"5:9.9-9": {A}}, "there is no statement '5:9.9-9'"),
        ({"MQTT-1.1-1": {A}}, "there is no statement 'MQTT-1.1-1'"),
        ({"5:1.1-1": {A}}, "5:1.1-1 binds clients alone"),
        ({"5:1.1-2": {A}}, "5:1.1-2 is said to be untested"),
    ],
)
def test_what_does_not_agree_is_said(shown: dict[str, set[str]], words: str) -> None:
    """Gaps, unknown numbers, client statements marked "tested", and outdated reasons."""
    found = said(shown)
    assert len(found) == 1
    assert found[0].startswith(words)


def test_every_scenario_runs_with_one_and_four_workers() -> None:
    """A wire-level scenario that runs with only one number of workers is named."""
    assert said({}, {A: {1}}) == [f"{A} runs with [1] workers, not with 1 and 4"]


def test_the_page() -> None:
    """One line for each statement: its tests, its reason, or that it does not bind brokers."""
    lines = document(STATEMENTS, Collected({"311:1.1-1": {A, "tests/unit/test_b.py::test_two"}})).splitlines()
    assert "| MQTT-1.1-1 | a | server | `conformance/test_a`: one<br>`unit/test_b`: two |" in lines
    assert "| MQTT-1.1-1 | b | client | *about clients alone* |" in lines
    assert "| MQTT-1.1-2 | c | both | *not tested: because* |" in lines


def test_both_standards_are_complete() -> None:
    """141 normative statements of 3.1.1, 251 of 5.0."""
    standards = [statement.standard for statement in read_statements().values()]
    assert (standards.count("311"), standards.count("5")) == (141, 251)


@pytest.mark.whole_tree
def test_the_page_agrees_with_the_tests() -> None:
    """If this fails, ``python -m tests.conformance.document --write PAGE`` updates the page."""
    checked = subprocess.run(
        [sys.executable, "-m", "tests.conformance.document", "--check", "docs/reference/conformance.md"],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if key != "MQTTD_TEST_BROKER"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr

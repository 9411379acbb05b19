"""The tables of docs/benchmarks.md: ratios, verdicts, and their place in the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.comparison import ratio_shown
from loadtest.document import END, write
from tests.benchmarks.scenarios import SCENARIOS, Scenario, Target, Variant, share_that_crosses
from tests.benchmarks.tables import BEGIN, FIGURES, Result, document, judged

US = "broker_us_per_msg"
VARIANTS = (Variant("theirs", "mosquitto"), Variant("ours", "mqttd/1"))
TWO = Scenario("two", "two brokers", "", VARIANTS, (Target("ours", 0.1, "theirs"),))


def result(**us: float) -> Result:
    """Return a result with one figure per variant."""
    medians = {name: {US: value} for name, value in us.items()}
    return Result("2026-01-01", "abc", 5, medians, {name: {US: 10.0} for name in us}, {})


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1 / 40, "1/40"), (1 / 3, "1/3"), (0.095, "1/11"), (0.3, "1/3.3"), (0.85, "0.85"), (2.5, "2.50")],
)
def test_ratios_read_as_they_are_written_in_targets(ratio: float, text: str) -> None:
    assert ratio_shown(ratio) == text


@pytest.mark.parametrize(("ours", "met"), [(0.9, True), (1.0, True), (1.1, False)])
def test_a_target_is_met_up_to_its_bound(ours: float, met: bool) -> None:
    assert judged(TWO.targets[0], result(theirs=10.0, ours=ours)).met is met


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    assert judged(TWO.targets[0], result(ours=1.0)).met is None
    assert judged(Target("ours", 5, None, "match_ns"), result(ours=1.0)).met is None


@pytest.mark.parametrize(("ours", "met"), [(14.0, False), (15.0, True)])
def test_a_target_that_is_a_least_is_met_from_its_bound_on(ours: float, met: bool) -> None:
    least = judged(Target("ours", 1.5, "theirs", is_least=True), result(theirs=10.0, ours=ours))
    assert (least.met, least.at_most) == (met, ">= 1.50")
    assert judged(Target("ours", 15, None, is_least=True), result(ours=ours)).met is met


def test_every_target_is_about_something_that_is_measured() -> None:
    for scenario in SCENARIOS:
        names = {variant.name for variant in scenario.variants}
        for target in scenario.targets:
            assert target.of in names
            assert target.than is None or target.than in names
            assert target.figure in scenario.figures
        assert set(scenario.figures) <= set(FIGURES)


def test_about_half_of_the_pairs_cross() -> None:
    assert 0.4 < share_that_crosses(500) < 0.6
    assert share_that_crosses(20, 1) == 0.0


def test_the_tables_stand_between_the_marks_and_nothing_else_changes(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write(page, document([TWO], {"two": result(theirs=10.0, ours=0.5)}, "a machine", "a command"), BEGIN)
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "| two brokers | ours: 0.5 us (+-5 %) | theirs: 10 us (+-5 %) | 1/20 | 1/10 | yes |" in text


def test_a_section_has_tables_of_its_own() -> None:
    own = Scenario("own", "of its own", "", VARIANTS, TWO.targets, section="Apart")
    results = {name: result(theirs=10.0, ours=0.5) for name in ("two", "own")}
    first, heading, apart = document([own, TWO], results, "a machine", "a command").partition("### Apart")
    assert heading
    assert "of its own" not in first
    assert apart.count("| of its own |") == 3, "a target, and two variants"
    assert "two brokers" not in apart


def test_a_page_without_marks_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text("nothing\n")
    with pytest.raises(ValueError, match="no lines"):
        write(page, "text", BEGIN)

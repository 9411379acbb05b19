"""The times of interruptions can be measured. Results, which depend on the load of the machine: docs/benchmarks.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from tests.benchmarks import interruptions

if TYPE_CHECKING:
    from tests.benchmarks.ruler import Ruler
    from tests.benchmarks.scenarios import Measure

NO_RULER = cast("Ruler", None)


def test_a_stopped_worker_is_measured() -> None:
    figures = interruptions.stopped_for(0.5)
    assert figures["ok"]
    assert min(figures["gap_ms"], figures["ack_ms"], figures["ack_to_stopped_ms"]) > 0


@pytest.mark.parametrize(
    ("measure", "figure"),
    [
        (interruptions.worker_killed, "gap_ms"),
        (interruptions.control_killed, "gap_ms"),
        (interruptions.stopping, "end_s"),
        (interruptions.supervisor_killed, "end_s"),
        (interruptions.passwords_checked, "answer_ms"),
    ],
)
def test_each_is_measured(measure: Measure, figure: str) -> None:
    figures = measure(NO_RULER)
    assert figures["ok"]
    assert figures[figure] > 0

"""docs/tutorials/first-analysis.md runs as written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker_process import KIND, ROOT
from tests.documents.shell_blocks import follow

pytestmark = pytest.mark.skipif(KIND == "mosquitto", reason="mosquitto has no such stores")


@pytest.mark.long
def test_the_tutorial_runs(tmp_path: Path) -> None:
    assert follow(ROOT / "docs" / "tutorials" / "first-analysis.md", tmp_path) >= 8

"""Retention at full ingest, run by hand: the bytes on the disk stay near what the rule allows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker_process import ROOT
from tests.chaos.conftest import Record


@pytest.mark.soak
def test_the_disk_has_what_a_rule_allows(tmp_path: Path, record_property: Record) -> None:
    """Three times 2 GB, as fast as the store's writer takes it; a separate process writes and reads."""
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.retention",
        str(tmp_path / "0"),
        "--bytes",
        "2GB",
        "--times",
        "3",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=3600)
    found = json.loads(done.stdout)
    record_property("retention", done.stdout.strip())
    assert 0.9 <= found["disk_median"] <= 1.1, found
    assert found["disk_max"] <= 1.2, found
    assert found["held_share"] <= 1.0, found

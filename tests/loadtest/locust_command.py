"""Locust as people start it, with our locustfile; several at a time, for they mostly wait."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.broker_process import ROOT

_SECONDS_MAX = 300
_ENVIRONMENT = dict(os.environ)
"""A copy of its own: pytest changes the process's environment between tests, while a thread starts a run with it, and
execve(2) then says "Bad address"."""


@dataclass(frozen=True)
class Report:
    """What a run said of itself."""

    status: int
    said: str
    """Standard output and error."""
    entries: tuple[dict[str, Any], ...]
    """Locust's statistics, one of each request type and name."""
    errors: tuple[dict[str, str], ...]
    """What failed: Method, Name, Error, Occurrences."""

    def requests(self, kind: str, name: str | None = None) -> int:
        """How many of a type, those that failed included."""
        return self._sum("num_requests", kind, name)

    def failures(self, kind: str | None = None) -> int:
        """How many of a type, or of all."""
        return self._sum("num_failures", kind, None)

    def names(self, kind: str) -> set[str]:
        """All of a type."""
        return {each["name"] for each in self.entries if each["method"] == kind}

    def _sum(self, figure: str, kind: str | None, name: str | None) -> int:
        return sum(
            each[figure] for each in self.entries if kind in (None, each["method"]) and name in (None, each["name"])
        )


def locust(directory: Path, url: str, *arguments: str) -> Report:
    """Run it to its end. directory: one that nobody else writes to."""
    directory.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "loadtest", "locust", "--headless", "--host", url, "--only-summary",
         "--json-file", str(directory / "statistics"), "--csv", str(directory / "run"), *arguments],
        cwd=ROOT, env=_ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_SECONDS_MAX,
    )  # fmt: skip
    file = directory / "statistics.json"
    entries = tuple(json.loads(file.read_text())) if file.exists() else ()
    failures = directory / "run_failures.csv"
    errors = tuple(csv.DictReader(failures.read_text().splitlines())) if failures.exists() else ()
    return Report(done.returncode, done.stdout, entries, errors)

"""Runner of locust as users start it, with the project's locustfile; several runs at a time, for they mostly wait."""

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
"""A copy: pytest changes the environment of the process between tests while a thread starts a run with it, and
execve(2) then fails with "Bad address"."""


@dataclass(frozen=True)
class Report:
    """The outcome of a run."""

    status: int
    said: str
    """Standard output and error."""
    entries: tuple[dict[str, Any], ...]
    """Locust's statistics, one of each request type and name."""
    errors: tuple[dict[str, str], ...]
    """Failures: Method, Name, Error, Occurrences."""

    def requests(self, kind: str, name: str | None = None) -> int:
        """Return the number of requests of a type, failed ones included."""
        return self._sum("num_requests", kind, name)

    def failures(self, kind: str | None = None) -> int:
        """Return the number of failures of a type, or of all types."""
        return self._sum("num_failures", kind, None)

    def names(self, kind: str) -> set[str]:
        """Return all names of a type."""
        return {each["name"] for each in self.entries if each["method"] == kind}

    def _sum(self, figure: str, kind: str | None, name: str | None) -> int:
        return sum(
            each[figure] for each in self.entries if kind in (None, each["method"]) and name in (None, each["name"])
        )


def locust(directory: Path, url: str, *arguments: str) -> Report:
    """Run locust to its end. `directory`: one that nothing else writes to."""
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

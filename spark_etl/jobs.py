"""The jobs of `python -m spark_etl`: a line for each, whose module is imported when the job is requested.

A module of a job has `add_options(parser)`, and `run(options)`, which returns the exit status. Errors of the user, or
in the files, are a `JobError`.
"""

from __future__ import annotations

import importlib
import re
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from typing import Final, Protocol, cast

__all__ = ["JOBS", "Job", "JobError", "JobModule", "one_line"]

_OURS: Final = re.compile(r"\b(?:Snapshot|Table|Option|Clone|Schema|Job)Error: (.+)")
_OF_PYTHON: Final = re.compile(r"^(\w+Error: .+)", re.MULTILINE)
_OF_JAVA: Final = re.compile(r"^(?:: |Caused by: )(.+)", re.MULTILINE)


class JobError(Exception):
    """A job cannot be done: one line."""


def one_line(error: Exception) -> JobError:
    """Return the message of a Spark error: our own line, if our code raised it."""
    text = str(error)
    causes = _OURS.findall(text) or _OF_PYTHON.findall(text) or _OF_JAVA.findall(text)
    return JobError(causes[-1].strip() if causes else text.strip().partition("\n")[0])


class JobModule(Protocol):
    """The interface of a job's module."""

    def add_options(self, parser: ArgumentParser) -> None:
        """Add the job's own options."""

    def run(self, options: Namespace) -> int:
        """Run the job; return the exit status. Raises JobError."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job."""

    name: str
    about: str
    where: str
    """Name of its module."""

    @property
    def module(self) -> JobModule:
        """The module, imported on first use."""
        return cast("JobModule", importlib.import_module(self.where))


JOBS: Final = {
    job.name: job
    for job in (
        Job("parquet", "snapshots to Parquet: what is new since the last run", "spark_etl.parquet.job"),
        Job("compact", "many small files of such Parquet to few large ones", "spark_etl.parquet.compacting"),
        Job(
            "quality",
            "whether snapshots and Parquet agree with the manifests; gaps, doubles",
            "spark_etl.parquet.quality",
        ),
        Job("report", "every analysis of snapshots, with plots, in one HTML file", "spark_etl.report.job"),
        Job("demo", "a broker, a fleet, snapshots, every job and the report, in some minutes", "spark_etl.demo.job"),
        Job("prune", "remove snapshots that are in the Parquet, but the newest", "spark_etl.parquet.pruning"),
    )
}

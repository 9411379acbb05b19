"""`python -m spark_etl JOB ...`, or `spark-submit .../spark_etl/__main__.py JOB ...`.

Exit status 0: done; 1: the job has found a problem; 2: wrong usage, or files that cannot be read or written, with one
line.
"""

from __future__ import annotations

import sys

if not __package__:  # spark-submit: this file's directory must not be an import path
    from pathlib import Path

    sys.path[:] = [each for each in sys.path if Path(each).resolve() != Path(__file__).resolve().parent]

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import NoReturn

from spark_etl.jobs import JOBS, JobError


class _Parser(ArgumentParser):
    """Reports errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"spark_etl: {message}\n")


def options_of(arguments: Sequence[str]) -> Namespace:
    """Parse a command line. Raises SystemExit."""
    # only the module of the requested job is imported
    parser = _Parser(prog="python -m spark_etl", description="Snapshots of mqttd's stores with PySpark.")
    jobs = parser.add_subparsers(metavar="JOB", required=True)
    jobs.add_parser("list", help="list the jobs").set_defaults(run=_list)
    for job in JOBS.values():
        each = jobs.add_parser(job.name, help=job.about, description=job.about)
        if job.name in arguments[:1]:
            job.module.add_options(each)
            each.set_defaults(run=job.module.run)
    return parser.parse_args(arguments)


def _list(_options: Namespace) -> int:
    from spark_etl.analyses import ANALYSES

    print("jobs")
    for job in JOBS.values():
        print(f"  {job.name:20} {job.about}")
    print("analyses, and their tables")
    for analysis in ANALYSES.values():
        print(f"  {analysis.name:20} {analysis.table}: {analysis.title}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job of a command line."""
    options = options_of(sys.argv[1:] if arguments is None else arguments)
    try:
        return int(options.run(options))
    except JobError as error:
        print(f"spark_etl: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"spark_etl: {error.filename or 'files'}: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("spark_etl: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())

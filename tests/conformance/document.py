"""Maps each normative statement to the tests that show it: collected from the markers, written as
docs/reference/conformance.md.

    python -m tests.conformance.document --write docs/reference/conformance.md
    python -m tests.conformance.document --check docs/reference/conformance.md

A test names the statements that it shows by ``@pytest.mark.mqtt("5:3.1.2-22", "311:3.1.2-24")``: [MQTT-3.1.2-22] of
MQTT 5.0 and [MQTT-3.1.2-24] of 3.1.1; the numbers of the two standards look alike and mean different things.
``statements.toml`` in this directory has all statements, whom each binds, and for statements that cannot be tested the
reason. ``--check`` finds every difference between markers and statements, and a test runs it.

"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.conftest import WORKERS

ROOT = Path(__file__).resolve().parents[2]
STATEMENTS = Path(__file__).with_name("statements.toml")
NAMES = {"311": "MQTT 3.1.1", "5": "MQTT 5.0"}
SCENARIOS = "tests/conformance/"


@dataclass(frozen=True)
class Statement:
    """A normative statement of one of the standards."""

    standard: str
    number: str
    title: str
    binds: Literal["client", "server", "both"]
    untested: str = ""
    """The reason why no test can show it."""

    @property
    def key(self) -> str:
        """The name of the statement in a marker."""
        return f"{self.standard}:{self.number}"


@dataclass(eq=False)
class Collected:
    """Content of the markers of all tests."""

    shown: dict[str, set[str]] = field(default_factory=dict)
    """Statement -> the tests that name it, each as path::function."""
    workers: dict[str, set[int]] = field(default_factory=dict)
    """Scenario (a test in tests/conformance) -> the numbers of workers it runs with."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Called by pytest with all collected tests."""
        for item in session.items:
            test = item.nodeid.partition("[")[0]
            for marker in item.iter_markers("mqtt"):
                for statement in (*marker.args, *marker.kwargs.values()):
                    self.shown.setdefault(str(statement), set()).add(test)
            if test.startswith(SCENARIOS):
                callspec = getattr(item, "callspec", None)
                workers = [callspec.params["workers"]] if callspec and "workers" in callspec.params else []
                if "everywhere" in getattr(item, "fixturenames", ()):
                    workers = list(WORKERS)
                self.workers.setdefault(test, set()).update(workers)


def read_statements(path: Path = STATEMENTS) -> dict[str, Statement]:
    """All statements by their key, in the order of the standards."""
    tables: dict[str, dict[str, dict[str, Any]]] = tomllib.loads(path.read_text())
    found = [Statement(standard, number, **row) for standard, rows in tables.items() for number, row in rows.items()]
    return {statement.key: statement for statement in found}


def collect() -> Collected:
    """Return the markers of all tests. Runs pytest: only in a process of its own. Raises RuntimeError if that fails."""
    collected = Collected()
    arguments = ["--collect-only", "-qq", "-m", "", "-p", "no:cacheprovider", str(ROOT / "tests")]
    with redirect_stdout(StringIO()) as said:
        status = pytest.main(arguments, plugins=[collected])
    if status != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest could not collect the tests:\n{said.getvalue()}")
    return collected


def problems(statements: Mapping[str, Statement], collected: Collected) -> Iterator[str]:
    """Return one sentence for each difference between markers and statements."""
    for key, tests in sorted(collected.shown.items()):
        if key not in statements:
            yield f"there is no statement {key!r}, which {', '.join(sorted(tests))} names (write 5:3.1.2-22)"
        elif statements[key].binds == "client":
            yield f"{key} binds clients alone; {', '.join(sorted(tests))} cannot show it"
        elif statements[key].untested:
            yield f"{key} is said to be untested, but {', '.join(sorted(tests))} names it"
    for key, statement in statements.items():
        if statement.binds != "client" and not statement.untested and not collected.shown.get(key):
            yield f"no test shows {key} ({statement.title})"
    for test, workers in sorted(collected.workers.items()):
        if workers != {1, 4}:
            yield f"{test} runs with {sorted(workers)} workers, not with 1 and 4"


def tests_by_file(tests: Iterable[str]) -> str:
    """`fuzz/test_fuzz`: a_bug_is_seen; grouped by file, without tests/, .py and test_."""
    files: dict[str, list[str]] = {}
    for test in sorted(tests):
        path, _, function = test.partition("::")
        files.setdefault(path.removeprefix("tests/").removesuffix(".py"), []).append(function.removeprefix("test_"))
    return "<br>".join(f"`{path}`: {', '.join(functions)}" for path, functions in files.items())


def document(statements: Mapping[str, Statement], collected: Collected) -> str:
    """Return the text of docs/reference/conformance.md."""
    lines = [HEAD]
    for standard, name in NAMES.items():
        rows = [statement for statement in statements.values() if statement.standard == standard]
        shown = [row for row in rows if row.key in collected.shown]
        client = [row for row in rows if row.binds == "client"]
        untested = [row for row in rows if row.untested]
        lines += [
            f"## {name}",
            "",
            f"{len(rows)} statements: {len(shown)} shown by tests, {len(client)} about clients alone, "
            f"{len(untested)} that cannot be tested.",
            "",
            "| statement | about | binds | shown by |",
            "|---|---|---|---|",
        ]
        for row in rows:
            by = "*about clients alone*" if row.binds == "client" else tests_by_file(collected.shown.get(row.key, ()))
            by = f"*not tested: {row.untested}*" if row.untested else by
            lines.append(f"| MQTT-{row.number} | {row.title} | {row.binds} | {by} |")
        lines.append("")
    return "\n".join(lines)


HEAD = """\
# Conformance

<!-- generated: python -m tests.conformance.document --write docs/reference/conformance.md -->

Every normative statement of MQTT 3.1.1 and MQTT 5.0, and the tests that show it, as their markers say. The titles are
ours and short; the statements are in the standards, under these numbers. *Binds*: `server` is about brokers, `client`
about clients alone, `both` about both, or about clients where a broker has to refuse the one that does not keep it.

Tests in `conformance` are scenarios on the wire: each runs with one worker and over the mesh of four, and with every
version of MQTT it concerns. `MQTTD_TEST_BROKER=mosquitto` runs them against mosquitto. A test of each name stands with
`test_` before it. How the generator keeps this page true: `tests/conformance/document.py`.
"""


def main(arguments: list[str]) -> int:
    """Run the command line; return 1 if markers, statements and document differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.document")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=Path, help="write the page")
    what.add_argument("--check", type=Path, help="say what does not agree with the page, the markers, the statements")
    options = parser.parse_args(arguments)
    statements = read_statements()
    collected = collect()
    found = list(problems(statements, collected))
    text = document(statements, collected)
    if options.write:
        options.write.write_text(text)
    elif not options.check.exists() or options.check.read_text() != text:
        found.append(f"{options.check} is not up to date: python -m tests.conformance.document --write {options.check}")
    for each in found:
        print(each)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

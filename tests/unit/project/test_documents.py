"""Every relative link and anchor of the documents has a target, every test that is named exists, and
docs/architecture.md agrees with the code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from broker.config.bridges import Bridge
from broker.config.settings import leaves
from tests.broker_process import ROOT
from tests.unit.project.test_imports_one_way import ALLOWED

pytestmark = pytest.mark.whole_tree

LINK = re.compile(r"\]\((?P<target>[^()\s]+)(?:\s+\"[^\"]*\")?\)")
REFERENCE = re.compile(r"^\[[^\]]+\]:\s+(?P<target>\S+)", re.MULTILINE)
HTML = re.compile(r"(?:href|src)=\"(?P<target>[^\"]+)\"")
FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")
HEADING = re.compile(r"^#{1,6}\s+(?P<text>.+?)\s*#*$", re.MULTILINE)
ANCHOR = re.compile(r"<a (?:id|name)=\"([^\"]+)\"")
DECISION = re.compile(r"\badr/(\d{4})(?:-[\w-]+\.md)?")
NUMBERED = re.compile(r"\[(?:[\w/]*/)?(\d{4})\]\([\w/.]*?(\d{4})-")
NAMED = re.compile(r"`((?:[\w.*-]+/)+[\w.*-]+)`")
TEST = re.compile(r"(?<![\w/.}-])tests/[\w*/-]+\.py\b|\btest_\w+\.py\b")


def documents() -> list[Path]:
    found = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    return sorted([*found, *(path for path in ROOT.glob("*.md") if path not in found)])


def links(text: str) -> Iterator[str]:
    """Return the link targets of a document, except those in code."""
    prose = CODE.sub("", FENCED.sub("", text))
    for kind in (LINK, REFERENCE, HTML):
        for found in kind.finditer(prose):
            yield found["target"]


def slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


@cache
def anchors(path: Path) -> set[str]:
    text = FENCED.sub("", path.read_text())
    found: set[str] = set(ANCHOR.findall(text))
    counts: dict[str, int] = {}
    for heading in HEADING.finditer(text):
        name = slug(heading["text"])
        found.add(f"{name}-{counts[name]}" if name in counts else name)
        counts[name] = counts.get(name, 0) + 1
    return found


def dead(path: Path, text: str) -> list[str]:
    """Return the links of a document without a target."""
    wrong = []
    for target in links(text):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        place, _, anchor = target.partition("#")
        there = (path.parent / place).resolve() if place else path
        is_dead = not there.is_relative_to(ROOT) or not there.exists()
        if is_dead or (anchor and there.suffix == ".md" and anchor not in anchors(there)):
            wrong.append(target)
    return wrong


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_and_anchor_leads_somewhere(path: Path) -> None:
    assert not dead(path, path.read_text())


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[a](store.md)", []),
        ("[a](store.md#snapshots) and [b](adr)", []),
        ("[a](store.md#snapshot)", ["store.md#snapshot"]),
        ("[a](stores.md#snapshots)", ["stores.md#snapshots"]),
        ("[two\nlines](nowhere.md)", ["nowhere.md"]),
        ("![picture](nowhere.svg)", ["nowhere.svg"]),
        ("[![badge](nowhere.svg)](store.md)", ["nowhere.svg"]),
        ('<img src="nowhere.svg">', ["nowhere.svg"]),
        ("[a]: nowhere.md", ["nowhere.md"]),
        ("[a](#nowhere)", ["#nowhere"]),
        ("[a](../../elsewhere)", ["../../elsewhere"]),
        ("[a](https://example.org/x) `[a](nowhere)`", []),
        ("```\n[a](nowhere)\n```", []),
    ],
)
def test_the_reader_finds_links_that_lead_nowhere(text: str, wrong: list[str]) -> None:
    assert dead(ROOT / "docs" / "architecture.md", text) == wrong


def test_two_headings_of_one_name_have_anchors_of_their_own(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n## Fixed\n\n## Fixed\n")
    assert anchors(page) == {"a-page", "fixed", "fixed-1"}


def decisions() -> dict[str, str]:
    """Return number -> name of each page of docs/adr."""
    return {path.name[:4]: path.name for path in (ROOT / "docs" / "adr").glob("*.md")}


def test_decisions_are_numbered_once_and_without_a_gap() -> None:
    assert sorted(decisions()) == [f"{number:04}" for number in range(1, len(list((ROOT / "docs/adr").glob("*"))) + 1)]


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_link_to_a_decision_says_its_number(path: Path) -> None:
    assert [pair for pair in NUMBERED.findall(path.read_text()) if pair[0] != pair[1]] == []


def test_decisions_that_the_code_names_are_there() -> None:
    known, wrong = decisions(), []
    for folder in (*ALLOWED, "tests"):
        for path in (ROOT / folder).rglob("*.p*"):
            if path.suffix in (".py", ".pyx", ".pxd", ".pyi"):
                wrong += [
                    f"{path.relative_to(ROOT)}: {found[0]}"
                    for found in DECISION.finditer(path.read_text())
                    if found[1] not in known or ("-" in found[0] and found[0] != f"adr/{known[found[1]]}")
                ]
    assert not wrong


# ------------------------------------------------------------------------------------------ named tests


def names_of_no_test(text: str) -> list[str]:
    """Return the named files below tests/ that do not exist, with or without their folders."""
    named: list[str] = TEST.findall(text)
    return [name for name in named if not list(ROOT.glob(name if "/" in name else f"tests/**/{name}"))]


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_tests_that_a_document_names_are_there(path: Path) -> None:
    assert names_of_no_test(FENCED.sub("", path.read_text())) == []


def test_tests_that_the_sources_name_are_there() -> None:
    """Files of this folder are exempt."""
    files = [ROOT / name for name in ("Makefile", "setup.py", "pyproject.toml", "MANIFEST.in", ".ci/run")]
    for folder in (*ALLOWED, "tests"):
        files += [path for path in (ROOT / folder).rglob("*.p*") if path.suffix in (".py", ".pyx", ".pxd", ".pyi")]
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in files
        if path.parent != Path(__file__).parent
        for name in names_of_no_test(path.read_text())
        if name.startswith("tests/")
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("`tests/unit/project/test_documents.py`, test_documents.py -k links", []),
        ("(`tests/unit/test_documents.py`)", ["tests/unit/test_documents.py"]),
        ("pytest tests/project/test_documents.py::test_it -q", ["tests/project/test_documents.py"]),
        ("as test_document.py has it", ["test_document.py"]),
        ("tests/*/project/test_*.py, build/tests/unit/test_documents.py", []),
    ],
)
def test_the_reader_finds_tests_that_are_gone(text: str, gone: list[str]) -> None:
    assert names_of_no_test(text) == gone


# ------------------------------------------------------------------------------------------ docs/architecture.md


def folders() -> dict[str, str]:
    """Return folder -> what it may import, in the words of the table."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.partition("\n## Folders\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return {cells[0].strip().strip("`/"): cells[-1].strip() for cells in rows}


def test_the_table_of_folders_is_the_one_of_the_imports() -> None:
    """Every folder of the product is a row, and may import what `test_imports_one_way` allows."""
    rows = folders()
    there = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert set(rows) == there == {*ALLOWED, "tests"}
    for folder, allowed in ALLOWED.items():
        said = set(re.findall(r"`([\w.]+)`", rows[folder]))
        assert said == {name.partition(".")[0] for name in allowed}, folder
        assert said or rows[folder] == "nothing of ours", folder


def test_files_that_the_architecture_names_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    missing = [name for name in NAMED.findall(FENCED.sub("", text)) if not list(ROOT.glob(name.rstrip("/")))]
    assert not missing


def test_modules_that_the_architecture_names_are_there() -> None:
    """Checked in the tree of a worker, and in every dotted name that begins with a folder."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    names = set(re.findall(rf"\b((?:{'|'.join(ALLOWED)})(?:\.[a-z_]+)+)\b", text))
    for line in text.partition("Inside a worker:")[2].partition("\n```\n")[2].partition("```")[0].splitlines():
        if found := re.match(r"\s*((?:pyx|broker|leveldb_store)\.[\w.]+(?:, [\w]+)*)(?: {2,}|$)", line):
            first, *others = found[1].split(", ")
            names |= {first, *(f"{first.rpartition('.')[0]}.{other}" for other in others)}

    def is_there(name: str) -> bool:
        return any((ROOT / name.replace(".", "/")).with_suffix(end).exists() for end in (".py", ".pyx", ".pxd", ""))

    # for a function: its module
    missing = [name for name in sorted(names) if not is_there(name) and not is_there(name.rpartition(".")[0])]
    assert not missing


def test_where_to_change_what() -> None:
    """Ten tasks, each with at most three files, all of which exist."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.partition("\n## Where to change what\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    assert len({task for task, *_ in rows}) == len(rows) == 10
    for task, files, how in rows:
        named = re.findall(r"`([^`]+)`", files)
        assert 1 <= len(named) <= 3, task
        assert [name for name in named if not (ROOT / name).is_file()] == [], task
        assert how, task


def test_settings_that_the_page_of_migration_names_are_there() -> None:
    """Each equivalent of an option of mosquitto.conf is the full key path of a setting."""
    rows = re.findall(r"^\| `.*? \| (.*?) \|", (ROOT / "docs" / "how-to" / "migrate.md").read_text(), re.MULTILINE)
    named = {name for cell in rows for name in re.findall(r"`([^`]+)`", cell)}
    assert len(named) > 15
    of_bridges = {"bridges.NAME", *(f"bridges.NAME.{name}" for name in Bridge.model_fields)}
    assert named <= {".".join(path) for path, _ in leaves()} | of_bridges


def test_the_index_leads_to_every_page() -> None:
    """docs/README.md links to every page except the single decisions, which their folder lists."""
    there = {path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "adr"}
    page = ROOT / "docs" / "README.md"
    linked = {(page.parent / target.partition("#")[0]).resolve() for target in links(page.read_text())}
    assert there - linked == {page}

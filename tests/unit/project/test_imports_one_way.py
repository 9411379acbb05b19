"""Imports go one way: pyx at the bottom, the libraries above it, broker and loadtest on top; and in no folder do
packages or files import in a circle. The table of folders in docs/architecture.md agrees
(`tests.unit.project.test_documents`).

This reads the imports of .py files with ``ast`` and the imports and cimports of .pyx and .pxd files line by line: tools
that know only Python would miss half of them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker_process import ROOT

pytestmark = pytest.mark.whole_tree


#: packages of the store that are pure Python, for users without a compiler
PURE = ["format", "snapshots"]

#: folder -> which of our folders it may import, besides itself. A dotted name allows that module alone.
ALLOWED: dict[str, set[str]] = {
    "pyx": set(),
    "leveldb_store": {"pyx"},
    "zmq_mesh": {"pyx"},
    "shards": {"pyx"},
    "broker": {"pyx", "leveldb_store", "zmq_mesh", "shards"},
    "loadtest": {"pyx"},
    "spark_etl": {f"leveldb_store.{each}" for each in PURE},
}

IMPORT = re.compile(r"^\s*(?:from\s+(?P<source>[\w.]+)\s+c?import\s+(?P<names>.+)|c?import\s+(?P<modules>.+))")


def of_python(text: str, package: str) -> Iterator[str]:
    """Return the full names a .py file imports; of ``from a import b`` both a and a.b, since b may be a module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


def of_cython(text: str, package: str) -> Iterator[str]:
    """Return the same for .pyx and .pxd, cimports included. Continuation lines are joined first."""
    joined = re.sub(r"\\\n", " ", text)
    joined = re.sub(r"\(([^()]*)\)", lambda inside: inside[0].replace("\n", " "), joined)
    for line in joined.splitlines():
        found = IMPORT.match(line)
        if found is None:
            continue
        names = (found["names"] or found["modules"]).split("#")[0].strip(" ()")
        for name in names.split(","):
            bare = name.split(" as ")[0].strip()
            if found["modules"]:
                yield bare
            elif found["source"].startswith("."):
                yield f"{package}.{found['source'].lstrip('.')}.{bare}".replace("..", ".")
            else:
                yield f"{found['source']}.{bare}"


def allowed(importer: str, name: str) -> bool:
    """Return whether the folder ``importer`` may import ``name``."""
    top = name.split(".")[0]
    if top not in ALLOWED or top == importer:
        return top != "tests"
    return any(name == each or name.startswith(f"{each}.") for each in ALLOWED[importer])


def wrong_arrows(path: Path) -> list[str]:
    """Return the imports of a file that are not allowed."""
    package = ".".join(path.relative_to(ROOT).parent.parts)
    read = of_python if path.suffix == ".py" else of_cython
    return sorted({name for name in read(path.read_text(), package) if not allowed(package.split(".")[0], name)})


def test_imports_one_way() -> None:
    """No file imports against the direction."""
    found = {
        str(path.relative_to(ROOT)): wrong
        for folder in ALLOWED
        for suffix in ("py", "pyx", "pxd")
        for path in sorted((ROOT / folder).rglob(f"*.{suffix}"))
        if (wrong := wrong_arrows(path))
    }
    assert not found


def module_of(path: Path) -> str:
    """Return the dotted name of a source file; a package is its ``__init__``."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def arrows(folder: str) -> set[tuple[str, str]]:
    """Return (importer, imported) for the files of a folder. Imports for types alone count; those of the own package do
    not.
    """
    files = [path for suffix in ("py", "pyx", "pxd") for path in sorted((ROOT / folder).rglob(f"*.{suffix}"))]
    modules = {module_of(path) for path in files}
    found = set()
    for path in files:
        own = module_of(path)
        read = of_python if path.suffix == ".py" else of_cython
        for name in read(path.read_text(), ".".join(path.relative_to(ROOT).parent.parts)):
            imported = name if name in modules else name.rpartition(".")[0]
            if imported in modules and imported != own and not own.startswith(f"{imported}."):
                found.add((own, imported))
    return found


def circle(edges: set[tuple[str, str]]) -> list[str]:
    """Return a circle in these arrows, or nothing."""
    after: dict[str, set[str]] = {}
    for begin, end in edges:
        after.setdefault(begin, set()).add(end)
    done: set[str] = set()

    def follow(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        for each in sorted(after.get(name, ())):
            if found := follow(each, [*way, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(after) if (found := follow(name, []))), [])


def package(module: str) -> str:
    """Return the package below the folder that contains a module; a module outside of packages is one itself."""
    return ".".join(module.split(".")[:2])


@pytest.mark.parametrize("folder", ALLOWED)
def test_packages_make_no_circle(folder: str) -> None:
    """Arrows between the packages of a folder go one way."""
    between = {(package(begin), package(end)) for begin, end in arrows(folder) if package(begin) != package(end)}
    assert circle(between) == []


@pytest.mark.parametrize("folder", ALLOWED)
def test_files_make_no_circle(folder: str) -> None:
    assert circle(arrows(folder)) == []


def test_a_circle_is_found() -> None:
    assert circle({("a", "b"), ("b", "c"), ("c", "d"), ("d", "b"), ("x", "a")}) == ["b", "c", "d", "b"]
    assert circle({("a", "b"), ("b", "c"), ("a", "c")}) == []


@pytest.mark.parametrize(
    ("importer", "suffix", "line", "names"),
    [
        ("broker", "py", "from pyx import codec", []),
        ("broker", "py", "import loadtest.users", ["loadtest.users"]),
        ("loadtest", "py", "from broker.cli.main import main", ["broker.cli.main.main"]),
        ("shards", "py", "from zmq_mesh import links", ["zmq_mesh.links"]),
        ("zmq_mesh", "py", "def f():\n    import leveldb_store", ["leveldb_store"]),
        ("pyx", "pyx", "from pyx.protocol.wire cimport Cursor", []),
        ("pyx", "pyx", "from .wire cimport Cursor", []),
        ("pyx", "pyx", "    import broker.config.settings", ["broker.config.settings"]),
        ("pyx", "pxd", "from shards.placement cimport (\n    home,\n    owner)", ["shards.placement.home"]),
        ("pyx", "pyx", "cimport libc.string", []),
        ("spark_etl", "py", "from leveldb_store.format.schema import decode", []),
        ("spark_etl", "py", "from leveldb_store.snapshots import clone", []),
        ("spark_etl", "py", "from leveldb_store.engine import wal", ["leveldb_store.engine.wal"]),
        ("spark_etl", "py", "from leveldb_store import store", ["leveldb_store.store"]),
        ("spark_etl", "py", "import pyx", ["pyx"]),
        ("broker", "py", "from tests import wire", ["tests.wire"]),
    ],
)
def test_the_reader_sees_every_kind_of_import(importer: str, suffix: str, line: str, names: list[str]) -> None:
    """The check finds each kind that it is meant to find."""
    read = of_python if suffix == "py" else of_cython
    found = [name for name in read(line, importer) if not allowed(importer, name)]
    assert found[:1] == names


def test_the_tests_under_the_sanitizers_import_what_is_copied_for_them() -> None:
    """`make asan` runs some folders of tests in a tree of its own, which has few others."""
    copied = re.findall(r"cp -r tests/\{([\w,]+)\}", (ROOT / "Makefile").read_text())
    assert len(copied) == 1
    there = {"unit", *copied[0].split(",")}
    for folder in ("unit", "fuzz", "contract"):
        for path in (ROOT / "tests" / folder).rglob("*.py"):
            if path.is_relative_to(ROOT / "tests" / "unit" / "project"):
                continue  # looks at the whole tree
            package = ".".join(path.relative_to(ROOT).parent.parts)
            for name in of_python(path.read_text(), package):
                head, _, rest = name.partition(".")
                module = rest.partition(".")[0]
                if head == "tests" and module and (ROOT / "tests" / module).is_dir():
                    assert module in there, f"{path.relative_to(ROOT)} imports {name}"

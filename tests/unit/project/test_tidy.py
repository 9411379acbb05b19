"""Style rules that can be counted: names, sizes, leftovers, orphans. Long functions are listed and may only shrink."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker_process import ROOT
from tests.unit.project.test_imports_one_way import of_cython, of_python

pytestmark = pytest.mark.whole_tree

FOLDERS = ["pyx", "broker", "shards", "zmq_mesh", "leveldb_store", "loadtest", "spark_etl", "tests"]
BANNED_NAMES = {"utils", "util", "helpers", "helper", "manager", "managers", "common", "misc"}
FILE_LINES_MAX = 500
TEST_FILE_LINES_MAX = 700
METHODS_MAX = 60
FUNCTION_LINES_MAX = 70
LONG_FUNCTIONS = Path(__file__).with_name("long_functions.txt")

#: modules that are started by a name that no file contains
STARTED = {"broker.__main__", "loadtest.__main__", "tests.simulation.__main__", "loadtest.locustfile"}

#: lists of compiled code that are exempt: they are searched, or lose their first item -> number of items
SEARCHED = {
    "pyx/delivery/watched_topics.pyx: del self.asks[0]": "ASKS_MAX",
    "pyx/delivery/peers.pyx: return p.cut.pop(0)": "one for each 4,096 messages of a tick for one sibling",
    "pyx/delivery/batches.pyx: self.numbers.remove(place)": "PEERS_MAX",
    "pyx/mesh/links.pyx: self.links.remove(link)": "PEERS_MAX",
    "pyx/storage/records.pyx: del spans[0]": "64 holes of a session, or ABSENCES_MAX absences",
}

#: the only file that may sleep, see there
WAITING = ROOT / "tests" / "waiting.py"


def sources(*suffixes: str) -> Iterator[Path]:
    """Return the source files of the project."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in suffixes and "__pycache__" not in path.parts:
                yield path


def name_of(path: Path) -> str:
    """Return the path below the root, for messages."""
    return str(path.relative_to(ROOT))


def module_of(path: Path) -> str:
    """broker/cli/main.py -> broker.cli.main; a package is named without __init__."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_file_names_say_what_is_inside() -> None:
    """No file is named utils, helpers, manager, common or misc."""
    assert not [name_of(path) for path in sources(".py", ".pyx", ".pxd") if path.stem in BANNED_NAMES]


def test_no_leftovers() -> None:
    """Unfinished work is an issue, not a mark in the source."""
    mark = re.compile(r"\b(" + "|".join(["FIX" + "ME", "X" + "XX", "TO" + "DO"]) + r")\b")
    found = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in sources(".py", ".pyx", ".pxd", ".pyi", ".md")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if mark.search(line)
    ]
    assert not found


def test_files_are_short_enough_to_find_things_in() -> None:
    """A product file of more than 500 lines should be two files."""
    too_long = {}
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in sources(".py", ".pyx", ".pxd")}
    for name, length in lengths.items():
        if length > (TEST_FILE_LINES_MAX if name.startswith("tests/") else FILE_LINES_MAX):
            too_long[name] = length
    assert not too_long


def methods_of_python(text: str) -> Iterator[tuple[str, int]]:
    """Return (name, number of methods) of every class of a .py file; properties and overloads count each time."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            yield node.name, sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)


def test_classes_are_small_enough_to_be_known() -> None:
    """A class of more than 60 methods should be two classes."""
    found = {
        f"{name_of(path)}:{name}": methods
        for path in sources(".py")
        for name, methods in methods_of_python(path.read_text())
        if methods > METHODS_MAX
    }
    assert not found


def functions_of_python(text: str) -> Iterator[tuple[str, int]]:
    """Return (name with its class, number of lines) of every function of a .py file."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + child.name, (child.end_lineno or 0) - child.lineno + 1
                yield from walk(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, f"{prefix}{child.name}.")
            else:
                yield from walk(child, prefix)

    return walk(ast.parse(text), "")


def functions_of_cython(text: str) -> Iterator[tuple[str, int]]:
    """Return the same for a .pyx: a function ends before the next line that is not indented more than its def."""
    head = re.compile(r"^( *)(?:(?:cdef|cpdef)\s+(?!class|struct|enum|extern|packed)[^=]*?(\w+)\(|def\s+(\w+)\()")
    block = re.compile(r"^( *)(?:cdef\s+)?class\s+(\w+)")
    lines = text.splitlines()
    classes: list[tuple[int, str]] = []
    for start, line in enumerate(lines):
        if owner := block.match(line):
            classes = [each for each in classes if each[0] < len(owner[1])] + [(len(owner[1]), owner[2])]
            continue
        found = head.match(line)
        if found is None:
            continue
        indent = len(found[1])
        begun = next((n for n in range(start, len(lines)) if lines[n].split("#")[0].rstrip().endswith(":")), None)
        if begun is None or (begun > start and head.match(lines[start + 1])):
            continue  # a declaration without a body
        end = begun
        for number in range(begun + 1, len(lines)):
            if lines[number].strip() and len(lines[number]) - len(lines[number].lstrip()) <= indent:
                break
            if lines[number].strip():
                end = number
        prefix = "".join(f"{name}." for depth, name in classes if depth < indent)
        yield prefix + (found[2] or found[3]), end - start + 1


def long_functions() -> dict[str, int]:
    """Return the functions of more than 70 lines, as file:name -> lines."""
    found = {}
    for path in sources(".py", ".pyx", ".pxd"):
        functions = functions_of_python if path.suffix == ".py" else functions_of_cython
        for name, lines in functions(path.read_text()):
            if lines > FUNCTION_LINES_MAX:
                found[f"{name_of(path)}:{name}"] = lines
    return found


def test_long_functions_only_get_shorter() -> None:
    """A function over 70 lines is in long_functions.txt with its length: it may not grow, and is removed when short."""
    listed = dict(line.rsplit(" ", 1) for line in LONG_FUNCTIONS.read_text().splitlines() if line and line[0] != "#")
    found = long_functions()
    grown = {name: lines for name, lines in found.items() if lines > int(listed.get(name, "0"))}
    assert not grown, "over 70 lines and not listed, or longer than listed"
    shorter = {name: found.get(name, 0) for name, lines in listed.items() if found.get(name, 0) < int(lines)}
    assert not shorter, f"well done: say so in {name_of(LONG_FUNCTIONS)}"


def reaches_through(text: str) -> Iterator[str]:
    """Return what a file takes from the parts of a Node: node.part.something."""
    for each in ast.walk(ast.parse(text)):
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Attribute):
            owner = each.value.value
            if (owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")) in ("node", "_node"):
                yield ast.unparse(each)


def test_nobody_reaches_through_the_node() -> None:
    """A part of the Node is passed to whoever needs it."""
    paths = [path for path in sources(".py") if name_of(path).startswith("broker/worker/")]
    found = {name_of(path): list(reaches_through(path.read_text())) for path in paths}
    assert {name: each for name, each in found.items() if each} == {}
    assert list(reaches_through("self._node.a.b(node.c.d, node.e, nodes.f.g)")) == ["self._node.a.b", "node.c.d"]


def test_no_orphans() -> None:
    """Every module is imported by another one or by a test, or started by its name somewhere."""
    texts = {path: path.read_text() for path in [*sources(".py", ".pyx", ".pxd"), ROOT / "Makefile"]}
    imported: set[str] = set()
    for path in sources(".py", ".pyx", ".pxd"):
        package = ".".join(path.relative_to(ROOT).parent.parts)
        read = of_python if path.suffix == ".py" else of_cython
        for name in read(path.read_text(), package):
            if not module_of(path).startswith(name):
                imported |= {name, name.rpartition(".")[0]}
    orphans = [
        name_of(path)
        for path in sources(".py", ".pyx")
        if path.name not in ("__init__.py", "conftest.py")
        and not path.name.startswith("test_")
        and module_of(path) not in imported | STARTED
        and not any(module_of(path) in text for other, text in texts.items() if other != path)
    ]
    assert not orphans


def test_every_compiled_module_that_python_imports_has_its_types() -> None:
    """A .pyx that a .py file imports has a .pyi beside it."""
    compiled = {module_of(path): path for path in sources(".pyx")}
    used: set[str] = set()
    for path in sources(".py"):
        for name in of_python(path.read_text(), ".".join(path.relative_to(ROOT).parent.parts)):
            used |= {name, name.rpartition(".")[0]}
    assert not [
        name_of(path) for name, path in compiled.items() if name in used and not path.with_suffix(".pyi").exists()
    ]


def test_no_function_of_cython_swallows_an_exception() -> None:
    """A noexcept function calls nothing that raises: Cython would print the exception and continue."""
    generated = sorted(ROOT.glob("build/cython-release/pyx/**/*.c"))
    assert generated
    found = re.findall(r'__Pyx_WriteUnraisable\("([\w.]+)"', "".join(path.read_text() for path in generated))
    assert not [name for name in found if not name.endswith(".__dealloc__")]


def without_texts(text: str) -> str:
    """Return Cython source with docstrings replaced by empty lines, and without comments."""
    text = re.sub(r'""".*?"""', lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
    return re.sub(r"#.*", "", text)


def declared(kinds: str, text: str) -> set[str]:
    """Return the names of attributes, variables and arguments of these types."""
    found = set(re.findall(rf"\b(?:{kinds}) (\w+)(?: not None)?(?= ?[,)=])", text))
    for names in re.findall(rf"\bcdef (?:public |readonly )?(?:{kinds}) ([\w\s,=\[\]]+?) *$", text, re.MULTILINE):
        found |= set(re.findall(r"(\w+)(?:\s*=[^,]*)?(?:,|$)", names))
    return found


def searches_of_lists(root: Path) -> Iterator[str]:
    """Return the lines (`file: line`) that search a list for an item, or remove its first one."""
    texts = {path: without_texts(path.read_text()) for kind in ("pxd", "pyx") for path in root.rglob(f"*.{kind}")}
    attributes = {name for path, text in texts.items() if path.suffix == ".pxd" for name in declared("list", text)}
    loop = re.compile(r"\bfor [\w\s,.()<>*]+? in\b")
    for path, text in sorted(texts.items()):
        own = declared("list", text)
        dotted = (attributes | own) - declared("dict|set", texts.get(path.with_suffix(".pxd"), ""))
        a_list = rf"(?:(?<![\w.])(?:{'|'.join(own) or '(?!)'})|[\w.()<>]+\.(?:{'|'.join(dotted) or '(?!)'}))\b"
        search = re.compile(
            rf"\bin {a_list}(?![.(\[])|{a_list}\.(?:remove|index|count|insert)\(|{a_list}\.pop\(0\)|\bdel {a_list}\[0\]"
        )
        for line in text.splitlines():
            if search.search(loop.sub("", line)):
                yield f"{path.relative_to(root.parent)}: {line.strip()}"


def test_no_list_is_searched_where_it_may_be_long() -> None:
    """Clients determine the length of a list of connections or sessions: membership is a flag of the item instead."""
    found = set(searches_of_lists(ROOT / "pyx"))
    assert found - SEARCHED.keys() == set(), "a flag of the item, or a dict; or say in SEARCHED how few they are"
    assert SEARCHED.keys() - found == set()


def test_searches_of_lists_are_found(tmp_path: Path) -> None:
    """Searches are found in attributes, arguments and variables; code without searches has no findings."""
    fine = ["for conn in self.carried:", "if conn in self.named:", "if conn in self.carried[0]:", "carried.pop()"]
    searches = [
        "if conn.carried and conn not in self.carried:", "self.router.carried.remove(conn)", "del self.carried[0]",
        "return conn in (<A>x).carried", "if item in given:", "made.index(item)", "made.pop(0)",
    ]  # fmt: skip
    head = "cdef class A:\n    cdef readonly list carried   # by the way: x in carried\n    cdef dict named\n"
    body = ["cdef int look(A self, list given not None, item):", "    cdef list made = [], more", *fine, *searches]
    for name, text in ("a.pxd", head), ("a.pyx", "\n".join(body)):
        (tmp_path / name).write_text(text)
    assert [line.partition(": ")[2] for line in searches_of_lists(tmp_path)] == searches


def test_what_leveldb_reads_is_verified() -> None:
    """A block read once without its checksum stays in the cache, and all later readers take it for undamaged."""
    found = []
    for folder in ("leveldb_store", "broker", "spark_etl"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                    continue
                of = ast.unparse(node.func.value).rpartition(".")[2].lstrip("_")
                reads = node.func.attr in ("iterator", "raw_iterator") or (node.func.attr == "get" and of == "db")
                if reads and "verify_checksums" not in {keyword.arg for keyword in node.keywords}:
                    found.append(f"{name_of(path)}:{node.lineno}")
    # the facts of a snapshot's own database, which is read through once: `mqttd store verify` verifies it
    assert [place.partition(":")[0] for place in found] == ["leveldb_store/snapshots/snapshot.py"], found


def test_unit_tests_lie_where_the_product_has_its_folders() -> None:
    """Properties of pyx/delivery are tested in tests/unit/pyx/delivery, those of no folder in tests/unit/project."""
    unit = ROOT / "tests" / "unit"
    folders = {path.parent.relative_to(unit) for path in unit.rglob("test_*.py")} - {Path("project")}
    wrong = {folder for folder in folders if folder == Path() or not (ROOT / folder / "__init__.py").exists()}
    assert not wrong


def test_tests_wait_in_one_place() -> None:
    """time.sleep makes tests slow and flaky: only tests/waiting.py may use it."""
    call = "time." + "sleep("
    found = [name_of(path) for path in (ROOT / "tests").rglob("*.py") if path != WAITING and call in path.read_text()]
    assert not found


def test_conformance_scenarios_say_what_they_show() -> None:
    """Each wire-level scenario has one English sentence and at least one statement of the standard."""
    statement = re.compile(r"^(?:5|311):\d(?:[.-]\d+)+$")
    found = []
    for path in sorted((ROOT / "tests" / "conformance").glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            ids = [
                value.value
                for mark in node.decorator_list
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.mqtt"
                for value in [*mark.args, *(keyword.value for keyword in mark.keywords)]
                if isinstance(value, ast.Constant)
            ]
            if not ast.get_docstring(node) or not ids or not all(statement.match(str(each)) for each in ids):
                found.append(f"{path.name}:{node.name}")
    assert not found

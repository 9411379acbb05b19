"""All log events, collected from the calls in the sources, written as docs/reference/log-events.md.

    python -m tests.documents.log_events --write docs/reference/log-events.md

Names, levels and fields are those of the calls. ``log_events.toml`` beside this file has the meaning of each event and
the operator's action; `also`, the fields that a call takes from elsewhere (``**fields``); `files`, the files of a name
that is logged in several with the same meaning. `problems` finds every difference between the two.
"""

from __future__ import annotations

import ast
import functools
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = "docs/reference/log-events.md"
MEANINGS = Path(__file__).with_name("log_events.toml")
FOLDERS = ("broker", "shards", "leveldb_store", "zmq_mesh", "spark_etl")
LEVELS = ("debug", "info", "warning", "error")

BEGIN = f"<!-- generated: python -m tests.documents.log_events --write {PAGE} -->"
END = "<!-- end of what is generated -->"


class UnknownCall(Exception):
    """A logging call whose event name cannot be read from the source."""


@dataclass
class Event:
    """Levels, fields and files of one event, collected from its calls."""

    levels: set[str] = field(default_factory=set)
    fields: list[str] = field(default_factory=list)
    """Field names in the order of the calls, each once."""
    files: set[str] = field(default_factory=set)
    is_open: bool = False
    """Whether a call adds fields that are not written in it."""


@dataclass(frozen=True)
class Sources:
    """The syntax trees of our Python files, by their path."""

    trees: Mapping[str, ast.Module]

    @classmethod
    @functools.cache
    def of_the_tree(cls) -> Sources:
        """Return the syntax trees of all folders that log."""
        paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
        return cls({str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths})

    def events(self) -> dict[str, Event]:
        """Return all events by name. Raise UnknownCall if an event name cannot be read."""
        found: dict[str, Event] = {}
        for file, tree in self.trees.items():
            for scope, call in _calls(tree, (tree,)):
                if (logged := self._logged(file, scope, call)) is not None:
                    levels, names = logged
                    for name in names:
                        _add(found.setdefault(name, Event()), file, levels, call)
        return dict(sorted(found.items()))

    def _logged(self, file: str, scope: tuple[ast.AST, ...], call: ast.Call) -> tuple[set[str], list[str]] | None:
        """Return (levels, names) if this is a logging call."""
        *before, last = ast.unparse(call.func).split(".")
        of_a_log = bool(before) and before[-1].lstrip("_") == "log"
        if of_a_log and last in LEVELS and call.args:
            return {last}, self._names(file, scope, call.args[0])
        if len(call.args) < 2:
            return None
        level, event = call.args[:2]
        if isinstance(level, ast.Constant) and level.value in LEVELS:
            if file == "broker/logs.py" and isinstance(event, ast.Name):
                return None  # the methods of Log themselves
            return {level.value}, self._names(file, scope, event)
        if of_a_log and last in ("emit", "write") and isinstance(level, ast.Name):
            return _assigned(level.id, scope), self._names(file, scope, event)
        return None

    def _names(self, file: str, scope: tuple[ast.AST, ...], event: ast.expr) -> list[str]:
        match event:
            case ast.Constant(value=str(name)):
                return [name]
            case ast.Call(func=ast.Attribute(attr="event"), args=[ast.Constant(value=str(what))]):
                return [f"worker_{what}", f"control_{what}"]  # shards.posts.Post.event
            case ast.Attribute(value=ast.Name(id="self"), attr=attribute):
                if names := self._given(scope, attribute):
                    return names
        raise UnknownCall(f"{file}:{event.lineno}: {ast.unparse(event)}")

    def _given(self, scope: tuple[ast.AST, ...], attribute: str) -> list[str]:
        """Return the arguments passed by constructor calls of the enclosing class for one of its attributes."""
        owner = next(node for node in reversed(scope) if isinstance(node, ast.ClassDef))
        make = next(node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
        place = [argument.arg for argument in make.args.args].index(attribute.lstrip("_")) - 1
        given = [
            call.args[place]
            for tree in self.trees.values()
            for _, call in _calls(tree, (tree,))
            if isinstance(call.func, ast.Name) and call.func.id == owner.name
        ]
        return [ast.literal_eval(each) for each in given]


def _calls(node: ast.AST, scope: tuple[ast.AST, ...]) -> Iterator[tuple[tuple[ast.AST, ...], ast.Call]]:
    """Yield each call with its enclosing classes and functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield scope, child
        is_scope = isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        yield from _calls(child, (*scope, child) if is_scope else scope)


def _assigned(name: str, scope: tuple[ast.AST, ...]) -> set[str]:
    """Return the possible levels of a variable of the enclosing function."""
    values = [
        node.value
        for node in ast.walk(scope[-1])
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    ]
    constants = {node.value for value in values for node in ast.walk(value) if isinstance(node, ast.Constant)}
    return {level for level in LEVELS if level in constants}


def _add(event: Event, file: str, levels: set[str], call: ast.Call) -> None:
    event.levels |= levels
    event.files.add(file)
    names: list[str] = []
    for keyword in call.keywords:
        if keyword.arg is None:
            event.is_open = True
        else:
            names.append(keyword.arg)
    for given in call.args[2:]:
        if isinstance(given, ast.Dict):
            names += [str(key.value) for key in given.keys if isinstance(key, ast.Constant)]
    event.fields += [name for name in names if name not in event.fields]


def read_meanings() -> dict[str, dict[str, Any]]:
    """Return the hand-written part, by event."""
    return tomllib.loads(MEANINGS.read_text())


def problems(events: Mapping[str, Event], meanings: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for every difference between sources and meanings."""
    for name, event in events.items():
        meaning = meanings.get(name)
        if meaning is None:
            yield f"{name} ({', '.join(sorted(event.files))}) has no meaning in {MEANINGS.name}"
            continue
        if event.is_open != ("also" in meaning):
            yield f"{name}: its calls have {'more' if event.is_open else 'no more'} fields: `also` in {MEANINGS.name}"
        said = sorted(meaning.get("files", event.files if len(event.files) == 1 else []))
        if said != sorted(event.files):
            yield f"{name} is logged in {sorted(event.files)}: do all mean the same? `files` in {MEANINGS.name}"
    for name in meanings:
        if name not in events:
            yield f"nothing logs {name}"


def table(events: Mapping[str, Event], meanings: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table with a row for each event."""
    lines = ["| event | level | fields | meaning, and what to do |", "|---|---|---|---|"]
    for name, event in events.items():
        levels = ", ".join(level for level in LEVELS if level in event.levels)
        also = [each for each in meanings[name].get("also", ()) if each not in event.fields]
        fields = ", ".join(f"`{each}`" for each in [*event.fields, *also])
        lines.append(f"| `{name}` | {levels} | {fields} | {meanings[name]['means']} |")
    return "\n".join(lines)


def with_table(document: str) -> str:
    """Return a document with a new table. Raise ValueError if it has no place for it, or an event no meaning."""
    events, meanings = Sources.of_the_tree().events(), read_meanings()
    if wrong := list(problems(events, meanings)):
        raise ValueError("\n".join(wrong))
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document has no lines {BEGIN!r} and {END!r}")
    return f"{before}{begin}\n\n{table(events, meanings)}\n\n{end}{after}"


def main(arguments: list[str]) -> int:
    """Run the command line; return the exit status."""
    match arguments:
        case ["--write", file]:
            path = Path(file)
            try:
                path.write_text(with_table(path.read_text()))
            except ValueError as error:
                print(error, file=sys.stderr)
                return 1
            return 0
    print(f"usage: python -m tests.documents.log_events --write {PAGE}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

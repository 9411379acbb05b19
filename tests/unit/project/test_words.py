"""Names follow docs/glossary.md: one word for a concept, and one concept for a word."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker_process import ROOT

pytestmark = pytest.mark.whole_tree

PRODUCT = ["pyx", "broker", "shards", "zmq_mesh", "leveldb_store", "loadtest", "spark_etl"]

#: words that names had and a reader could not guess -> the usual term
FORMER = {
    "beside": "in a thread",
    "asking": "console client",
    "stretches": "segments, parts",
    "custody": "state records",
    "holding": "back-pressure",
    "depart": "defer",
    "roster": "members, enrolled",
    "rosters": "members, enrolled",
    "seat": "worker context",
    "straight": "direct",
    "happened": "events",
    "arrivals": "stream reader",
    "apart": "child process",
    "bury": "settle, delete",
    "entrant": "connect attempt",
    "laid": "parts of a block",
    "obituary": "death report",
    "occupants": "attachments",
    "told": "received, reported",
    "void": "SKIP",
}

#: classes, structs and enums that have their name in several modules -> why that is one concept, or cannot mislead
SAME_NAME = {
    "Ack": "a packet: decoded in the data path, and as an object for Python",
    "Archive": "the contract, and its implementation",
    "BrokerFailed": "an error of what starts brokers: for users' tests, and for load tests",
    "Client": "a client: as a rule of authorisation sees it, and of the load generator",
    "Connection": "a connection: of the broker, and of the load generator",
    "Entry": "an entry: of a table in memory, and of a batch between peers in Cython and Python",
    "Event": "a record of an event; of the poller it is the kernel's term",
    "Kind": "a small enumeration of its module",
    "Limits": "the settings, and the data path's copy of them",
    "Listener": "a listener: as configured, and as opened; in load tests a role that only listens",
    "Message": "a message: of the broker, and of the load generator",
    "Node": "the core of a worker; of a trie it is the field's term",
    "Page": "a page of the archive; of memory it is the field's term",
    "Part": "of a batch, and of a log of messages",
    "Publish": "a packet: decoded in the data path, and as an object for Python",
    "QueueRule": "the settings, and the data path's copy of them",
    "Result": "the result of a match, and of a run of the load generator",
    "Retaining": "one concept in two layers: decisions, and the data path",
    "Row": "a row of counters, and of a printed comparison",
    "Rule": "a rule of the archive, and of a property",
    "Scenario": "a scenario of the load generator, and its entry in a comparison",
    "Sequence": "the messages that one worker archives by one rule",
    "Sequences": "sequences of the archive, and of messages in a load test",
    "Settings": "settings of the broker, and of a client under load",
    "Source": "the messages of a replay; of a connection, its source address",
    "Sources": "the same of all",
    "Steps": "steps of work, and steps of a load",
    "Subscribing": "one concept in two layers: decisions, and the data path",
    "Table": "a hash table, and a table of Spark",
    "Transport": "carries the mesh, and a client under load",
}


def names_in(path: Path, text: str) -> Iterator[tuple[str, bool]]:
    """Return (name, whether it is that of a class, struct or enum) of what a source file defines, and of its module."""
    yield path.stem, False
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name, isinstance(node, ast.ClassDef)
        return
    for name in re.findall(r"^\s*(?:cdef )?(?:class|struct|enum) (\w+)", text, re.MULTILINE):
        yield name, True
    for name in re.findall(r"^\s*(?:c|cp)?def [^(=:]*?(\w+)\(", text, re.MULTILINE):
        yield name, False


def words_of(name: str) -> list[str]:
    """take_apart -> take, apart; BlockRange -> block, range."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)]


def sources() -> Iterator[tuple[Path, str]]:
    """Return the source files of the product with their texts."""
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".pyx", ".pxd") and "__pycache__" not in path.parts:
                yield path, path.read_text()


def test_former_words_do_not_come_back() -> None:
    """A name says its concept by the word of the glossary."""
    found = [
        f"{path.relative_to(ROOT)}: {name}: {FORMER[word]}"
        for path, text in sources()
        for name, _ in names_in(path, text)
        for word in words_of(name)
        if word in FORMER
    ]
    assert not found


def test_a_class_has_a_name_of_its_own() -> None:
    """A name of a class that two modules have means one thing, or SAME_NAME says why it is no trap."""
    modules = defaultdict(set)
    for path, text in sources():
        for name, is_class in names_in(path, text):
            if is_class and not name.startswith("_"):
                modules[name].add(path.relative_to(ROOT).with_suffix(""))
    assert {name for name, paths in modules.items() if len(paths) > 1} == set(SAME_NAME)


@pytest.mark.parametrize(
    ("suffix", "text", "names"),
    [
        (".py", "class A:\n    async def b_c(self): pass\ndef d(): pass\n", "x A! b_c d"),
        (
            ".pyx",
            "cdef class A:\n    cdef int b(self) except -1:\n    cpdef c(self):\n    def d(self):\n",
            "x A! b c d",
        ),
        (".pxd", "cdef enum A:\n    B = 0\n", "x A!"),
        (".pxd", "cdef struct A:\n    int b\ncdef inline uint8_t* c(int d) noexcept:\n", "x A! c"),
    ],
)
def test_names_are_found(suffix: str, text: str, names: str) -> None:
    """`names`: those of classes with an exclamation mark."""
    found = {name + "!" * is_class for name, is_class in names_in(Path(f"x{suffix}"), text)}
    assert found == set(names.split())


def test_words_of_names() -> None:
    assert [words_of(name) for name in ("take_apart", "BlockRange", "_MQTTClient", "x2")] == [
        ["take", "apart"], ["block", "range"], ["mqtt", "client"], ["x2"],
    ]  # fmt: skip

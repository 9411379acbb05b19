"""The tutorials run as they are, and their output is as shown. The one on Spark: tests/spark/test_tutorial.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker_process import KIND, ROOT
from tests.documents.shell_blocks import Block, Reader, blocks, expected, follow

pytestmark = pytest.mark.skipif(KIND == "mosquitto", reason="they are mqttd's")

TUTORIALS = ROOT / "docs" / "tutorials"


@pytest.mark.parametrize(
    "name", ["first-broker", "first-replay", "first-cluster", pytest.param("first-load-test", marks=pytest.mark.long)]
)
def test_the_tutorial_runs(name: str, tmp_path: Path) -> None:
    assert follow(TUTORIALS / f"{name}.md", tmp_path) >= 6


def test_every_tutorial_is_run() -> None:
    assert {path.stem for path in TUTORIALS.glob("*.md")} == {
        "first-broker", "first-replay", "first-load-test", "first-analysis", "first-cluster",
    }  # fmt: skip


def test_what_a_page_does_not_show_as_it_comes_is_an_error(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    try:
        reader.do(Block("sh", "", "echo red\n"))
        reader.do(Block("text", "", "red\n"))
        with pytest.raises(AssertionError, match="the page shows"):
            reader.do(Block("text", "", "green\n"))
        with pytest.raises(AssertionError, match="a reason"):
            reader.do(Block("sh", "", "echo a reason; false; true\n"))
    finally:
        reader.close()


def test_numbers_of_a_terminal_are_those_of_later_blocks(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    try:
        reader.do(Block("sh", "one", "sh -c 'echo some; echo at 127.0.0.1:23456, 3 of 98765; exec cat'\n"))
        reader.do(Block("text", "one", "...\nat 127.0.0.1:11111, 2 of 22222\n"))
        reader.do(Block("sh", "", "echo 2 11111 22222 333333 > out\n"))
        assert (tmp_path / "out").read_text() == "2 23456 98765 333333\n"
    finally:
        reader.close()


@pytest.mark.parametrize(
    ("shown", "came", "fits"),
    [
        ("a 1,000/s\n", "a 987.5/s\n", True),
        ("a  12  x\n", "a 3 x\n", True),
        ("up ...\nb\n", "up 3 min\nb\n", True),
        ("...\nb\n", "one\ntwo\nb\n", True),
        ("b\n...\n", "b\n", True),
        ("a\n", "b\n", False),
        ("a\n", "a\nb\n", False),
        ("lost 0\n", "lost none\n", False),
    ],
)
def test_numbers_are_those_of_the_machine(shown: str, came: str, fits: bool) -> None:
    assert (expected(shown).fullmatch(came) is not None) is fits


def test_blocks_of_a_page() -> None:
    page = "a\n\n```sh broker\nmqttd\n```\n\n```text broker\nx\n```\n\n```python\n1\n```\n```sh\nls\n```\n"
    assert blocks(page) == [Block("sh", "broker", "mqttd\n"), Block("text", "broker", "x\n"), Block("sh", "", "ls\n")]

"""The methods that the data path calls on its handler are those of `pyx.delivery.handler`, and a Node has them.

mypy checks the types: `RouterState.handler` is a Handler, and a Node is assigned to it.
"""

from __future__ import annotations

import inspect
import re

import pytest

from pyx.delivery.handler import Handler
from tests.broker_process import ROOT
from tests.sansio import Host

CALL = re.compile(r"\bhandler\.(\w+)\(")


def called(text: str) -> set[str]:
    """Return the names of the methods that this source calls on a handler."""
    return set(CALL.findall(text))


def declared() -> dict[str, inspect.Signature]:
    """Return the names of the protocol's methods."""
    return {
        name: inspect.signature(method)
        for name, method in inspect.getmembers(Handler, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.whole_tree
def test_what_is_called_is_declared_and_nothing_else() -> None:
    sources = sorted((ROOT / "pyx").rglob("*.pyx"))
    assert sources
    assert set().union(*(called(path.read_text()) for path in sources)) == set(declared())


def test_calls_are_found() -> None:
    found = called("self.router.state.handler.sibling_message(peer,\n  word)\nself.handler = handler\nhandler.hold(1)")
    assert found == {"sibling_message", "hold"}


def test_a_node_has_all_of_it() -> None:
    node = Host(workers=2).node
    assert node.router.state.handler is node
    for name, signature in declared().items():
        of_node = list(inspect.signature(getattr(node, name)).parameters.values())
        asked = list(signature.parameters)[1:]
        assert [each.name for each in of_node[: len(asked)]] == asked, name
        assert all(each.default is not each.empty for each in of_node[len(asked) :]), name

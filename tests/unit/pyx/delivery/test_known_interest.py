"""What waits until all siblings know what a worker wants (`Answering.when_known`)."""

from __future__ import annotations

from functools import partial

import pytest

from tests.sansio import Host


@pytest.mark.parametrize("count", [1, 2, 3])
def test_it_is_called_when_every_sibling_knows(count: int) -> None:
    """Once, in the order of asking; alone, at once."""
    host = Host(count)
    node = host.nodes[0]
    host.settle()
    called: list[int] = []
    for number in range(3):
        node.router.answering.when_known(node.context.another_interest_number(), partial(called.append, number))
    assert called == ([0, 1, 2] if count == 1 else [])
    host.settle()
    assert called == [0, 1, 2]
    host.settle()
    assert called == [0, 1, 2]


def test_it_waits_for_the_last_sibling() -> None:
    host = Host(3)
    node = host.nodes[0]
    host.settle()
    called: list[int] = []
    host.held.add((2, 0))  # what the last one says
    node.router.answering.when_known(node.context.another_interest_number(), lambda: called.append(1))
    host.settle()
    assert called == []
    host.held.clear()
    host.settle()
    assert called == [1]


def test_a_lower_number_is_known_before() -> None:
    """And who asks again within its call is called in a later tick."""
    host = Host(2)
    node = host.nodes[0]
    known = node.context.another_interest_number()
    host.settle()
    called: list[str] = []

    def again() -> None:
        called.append("first")
        node.router.answering.when_known(node.context.another_interest_number(), lambda: called.append("later"))

    host.held.add((1, 0))
    node.router.answering.when_known(known, again)
    host.settle()
    assert called == ["first"]
    host.held.clear()
    host.settle()
    assert called == ["first", "later"]

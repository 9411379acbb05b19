"""The step counter: the work of callbacks is counted, each separately, and the maximum of each kind is kept
(pyx/core/work.pxd).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyx.core import work
from pyx.core.timers import TimerWheel
from tests import wire
from tests.sansio import Host


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    assert work.COUNTED, "these modules are those of a release: make compile-tests"
    work.forget()
    yield
    work.forget()


def test_what_is_spent_is_counted() -> None:
    before = work.total()
    work.spend(1234)
    assert work.total() - before == 1234


def test_a_callback_is_counted_without_those_within_it() -> None:
    @work.callback("stored")
    def inner() -> None:
        work.spend(700)

    @work.callback("mesh")
    def outer() -> int:
        work.spend(30)
        inner()
        inner()
        return 5

    assert outer() == 5
    assert work.highest() == {"mesh": 30, "stored": 700}
    assert work.whole() == {"mesh": 1430, "stored": 700}


def test_an_exception_ends_a_callback() -> None:
    @work.callback("mesh")
    def broken() -> None:
        work.spend(30)
        raise ValueError

    for _ in range(2):
        with pytest.raises(ValueError):
            broken()
    assert work.highest() == {"mesh": 30}


def test_the_highest_stays_and_what_is_over_the_bound_is_named() -> None:
    @work.callback("control")
    def reload(ns: int) -> None:
        work.spend(ns)

    for ns in (10, work.BOUND, 20):
        reload(ns)
    assert work.highest() == {"control": work.BOUND}
    assert work.over() == {}
    reload(work.BOUND + 1)
    ((kind, (ns, what)),) = work.over().items()
    assert (kind, ns) == ("control", work.BOUND + 1)
    assert what == reload.__qualname__
    work.forget()
    assert (work.highest(), work.over()) == ({}, {})


def test_a_timer_says_which_it_was() -> None:
    def sweep() -> None:
        work.spend(2 * work.BOUND)

    wheel = TimerWheel(0)
    wheel.call(5, sweep)
    wheel.advance(10)
    assert work.over()["timer"][1] == sweep.__qualname__


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError):
        work.callback("nothing of the kind")


def test_the_same_work_is_the_same_number() -> None:
    """The load of the machine does not matter: the number is no measurement."""
    seen = set()
    for _ in range(3):
        host = Host()
        subscriber = host.connect("subscriber", 5)
        subscriber.subscribe(("t/#", 1))
        publisher = host.connect("publisher", 5)
        work.forget()
        publisher.send(*(wire.publish(5, f"t/{i}", b"body", qos=1, packet_id=i) for i in range(1, 50)))
        host.settle()
        seen.add(tuple(sorted(work.highest().items())))
    assert len(seen) == 1
    assert dict(seen.pop())["packets"] >= 49 * 100

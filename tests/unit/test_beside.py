"""A thread that works beside the loop: what follows, and what it raised, comes back into the loop."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator

import pytest

from broker.beside import Beside


class Watch:
    """What `Beside` asks of the reactor, with poll(2)."""

    def __init__(self) -> None:
        self.watched: dict[int, Callable[[], None]] = {}

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        self.watched[fd] = callback

    def unwatch(self, fd: int) -> None:
        del self.watched[fd]

    def turn(self) -> None:
        """Wait until one is readable, and call it."""
        readable, _, _ = select.select(list(self.watched), [], [], 10)
        assert readable, "nothing came within 10 s"
        for fd in readable:
            self.watched[fd]()


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def beside(watch: Watch) -> Iterator[Beside]:
    made = Beside(watch, "beside")  # type: ignore[arg-type]
    made.start()
    yield made
    made.close()
    assert not watch.watched


def test_work_is_done_by_the_thread_and_what_follows_by_the_loop(watch: Watch, beside: Beside) -> None:
    done: list[tuple[str, int, threading.Thread]] = []
    for number in range(100):
        beside(
            lambda number=number: done.append(("work", number, threading.current_thread())),  # type: ignore[misc]
            lambda number=number: done.append(("then", number, threading.current_thread())),  # type: ignore[misc]
        )
    while sum(kind == "then" for kind, *_ in done) < 100:
        watch.turn()
    here = threading.current_thread()
    for kind in ("work", "then"):
        assert [number for each, number, _ in done if each == kind] == list(range(100))
    assert all((thread is here) == (kind == "then") for kind, _, thread in done)
    assert len({thread for _, _, thread in done}) == 2


def test_a_turn_of_the_reactor_within_another_may_have_taken_it_already(watch: Watch, beside: Beside) -> None:
    followed: list[int] = []
    beside(lambda: None, lambda: followed.append(1))
    watch.turn()
    (callback,) = watch.watched.values()
    callback()
    assert followed == [1]


def test_what_the_work_raised_is_raised_in_the_loop(watch: Watch, beside: Beside) -> None:
    def work() -> None:
        raise OSError("the disk is gone")

    followed: list[int] = []
    beside(work, lambda: followed.append(1))
    with pytest.raises(OSError, match="the disk is gone"):
        watch.turn()
    beside(lambda: None, lambda: followed.append(2))
    watch.turn()
    assert followed == [2]


def test_closing_waits_for_what_is_being_done(watch: Watch) -> None:
    made = Beside(watch, "beside")  # type: ignore[arg-type]
    made.start()
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert may_end.wait(10)
        ended.set()

    made(work, lambda: None)
    assert begun.wait(10)
    threading.Timer(0.05, may_end.set).start()
    made.close()
    assert ended.is_set()


def test_one_that_was_never_started_can_be_closed(watch: Watch) -> None:
    Beside(watch, "beside").close()  # type: ignore[arg-type]
    assert not watch.watched

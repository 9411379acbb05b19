"""Hashes beside the loop: results, callbacks and cancellation; and the cache of correct passwords."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator

import pytest

from broker.auth.cache import Cache
from broker.auth.pool import HashPool

SECONDS_MAX = 60.0


@pytest.fixture
def pool() -> Iterator[HashPool]:
    made = HashPool(2)
    yield made
    made.close()


def collect(pool: HashPool) -> None:
    """Wait until a hash is finished, as the reactor does."""
    assert select.select([pool.fileno()], [], [], SECONDS_MAX)[0], "nothing is finished"
    pool.collect()


def test_work_runs_in_other_threads_and_is_called_back_in_this_one(pool: HashPool) -> None:
    threads: list[int] = []
    results: list[tuple[int, bool | Exception]] = []

    def work() -> bool:
        threads.append(threading.get_ident())
        return True

    pool.submit(work, lambda result: results.append((threading.get_ident(), result)))
    assert results == []
    collect(pool)
    assert results == [(threading.get_ident(), True)]
    assert threads[0] != threading.get_ident()
    assert not select.select([pool.fileno()], [], [], 0)[0]


def test_the_caller_goes_on_while_work_is_done_and_only_so_much_runs_at_once(pool: HashPool) -> None:
    go_on, running, most = threading.Event(), [0], [0]
    results: list[bool | Exception] = []

    def work() -> bool:
        running[0] += 1
        most[0] = max(most[0], running[0])
        assert go_on.wait(SECONDS_MAX)
        running[0] -= 1
        return False

    for _ in range(50):
        pool.submit(work, results.append)
    assert results == []
    go_on.set()
    while len(results) < 50:
        collect(pool)
    assert results == [False] * 50
    assert most[0] <= 2


def test_an_error_of_ours_is_called_back(pool: HashPool) -> None:
    results: list[bool | Exception] = []

    def work() -> bool:
        raise MemoryError("no memory for a hash")

    pool.submit(work, results.append)
    collect(pool)
    assert [type(result) for result in results] == [MemoryError]


def test_what_is_cancelled_is_not_called_back_and_not_computed_if_it_still_waited() -> None:
    pool = HashPool(1)
    go_on, begun = threading.Event(), threading.Event()
    done: list[str] = []
    computed = threading.Event()

    def slow() -> bool:
        begun.set()
        return go_on.wait(SECONDS_MAX)

    def waiting() -> bool:
        computed.set()
        return True

    cancel_running = pool.submit(slow, lambda _: done.append("running"))
    cancel_waiting = pool.submit(waiting, lambda _: done.append("waiting"))
    pool.submit(lambda: True, lambda _: done.append("last"))
    assert begun.wait(SECONDS_MAX)
    cancel_running()
    cancel_waiting()
    go_on.set()
    while "last" not in done:
        collect(pool)
    assert done == ["last"]
    assert not computed.is_set()
    pool.close()


def test_the_threads_leave_the_processor_to_the_loop(pool: HashPool) -> None:
    niceness: list[int] = []

    def work() -> bool:
        niceness.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return True

    pool.submit(work, lambda _: None)
    collect(pool)
    assert niceness == [min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5)]


def test_a_new_size_holds_for_what_comes_and_loses_nothing(pool: HashPool) -> None:
    results: list[bool | Exception] = []
    go_on = threading.Event()
    for _ in range(5):
        pool.submit(lambda: go_on.wait(SECONDS_MAX), results.append)
    pool.resize(1)
    pool.submit(lambda: False, results.append)
    go_on.set()
    while len(results) < 6:
        collect(pool)
    assert sorted(results, key=str) == [False] + [True] * 5


def test_closing_with_work_under_way_disturbs_nobody() -> None:
    pool = HashPool(1)
    go_on, begun, ended = threading.Event(), threading.Event(), threading.Event()

    def slow() -> bool:
        begun.set()
        go_on.wait(SECONDS_MAX)
        ended.set()
        return True

    pool.submit(slow, lambda _: pytest.fail("called back after the end"))
    assert begun.wait(SECONDS_MAX)
    pool.close()
    read, write = os.pipe()  # takes the number that the pool's descriptor had
    go_on.set()
    assert ended.wait(SECONDS_MAX)
    assert not select.select([read], [], [], 0)[0]
    os.close(read)
    os.close(write)


def test_the_cache_knows_pairs_and_forgets_by_number_and_age() -> None:
    cache = Cache()
    one, two, three = (cache.digest(f"u{i}", b"p") for i in range(3))
    assert not cache.has(one, 0.0, 10.0)
    cache.put(one, 0.0, 2)
    cache.put(two, 1.0, 2)
    assert cache.has(one, 5.0, 10.0)
    cache.put(three, 6.0, 2)  # `two` was used least recently
    assert [cache.has(each, 7.0, 10.0) for each in (one, two, three)] == [True, False, True]
    assert cache.has(one, 16.0, 10.0)
    assert not cache.has(three, 17.5, 10.0)
    assert len(cache) == 1
    cache.clear()
    assert not cache.has(one, 17.5, 10.0)
    cache.put(one, 0.0, 0)
    assert len(cache) == 0


def test_the_cache_does_not_mix_up_names_and_passwords_and_keeps_neither() -> None:
    cache = Cache()
    assert cache.digest("ab", b"c") != cache.digest("a", b"bc")
    assert cache.digest("a", b"b") != Cache().digest("a", b"b")  # every process has a key of its own

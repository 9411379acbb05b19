"""Each installation has one number, for ever, and no two have the same."""

from __future__ import annotations

import asyncio

import pytest

from broker.cluster.contract import Coordination, Put, Unreachable
from broker.cluster.host_numbers import NoNumberLeft, keep_number, number_of_host
from pyx.core.peer import HOSTS_MAX, peer_of
from tests.cluster.in_memory import CoordinatorInMemory


def test_many_hosts_ask_at_once() -> None:
    async def run() -> None:
        shared = CoordinatorInMemory()
        names = [f"{number:032x}" for number in range(40)]
        twice = [number_of_host(shared.connect(), "test", name) for name in names for _ in range(2)]
        numbers = await asyncio.gather(*twice)
        assert numbers[::2] == numbers[1::2]
        assert sorted(numbers[::2]) == list(range(1, 41))
        assert await number_of_host(shared.connect(), "test", names[7]) == numbers[14]
        assert await number_of_host(shared.connect(), "other", names[7]) == 1

    asyncio.run(run())


def test_a_lost_answer() -> None:
    async def run() -> None:
        shared = CoordinatorInMemory()
        one = shared.connect()
        one.loses_answers = True
        with pytest.raises(Unreachable):
            await number_of_host(one, "test", "a")
        one.loses_answers = False
        assert await number_of_host(one, "test", "b") == 2
        assert await number_of_host(one, "test", "a") == 1

    asyncio.run(run())


def test_the_last_number() -> None:
    async def run() -> None:
        one: Coordination = CoordinatorInMemory().connect()
        await one.transact([], [Put(b"/mqttd/test/numbers/%08d" % (HOSTS_MAX - 2), b"x")])
        last = await number_of_host(one, "test", "a")
        assert last == HOSTS_MAX - 1
        assert peer_of(last, 0)
        with pytest.raises(NoNumberLeft, match=str(HOSTS_MAX - 1)):
            await number_of_host(one, "test", "b")
        assert await number_of_host(one, "test", "a") == last

    asyncio.run(run())


def test_a_number_is_written_again_after_a_loss() -> None:
    """A coordinator that has lost its data gives it to nobody else, if its host is there first."""

    async def run() -> None:
        former = CoordinatorInMemory().connect()
        assert [await number_of_host(former, "test", name) for name in ("a", "b")] == [1, 2]
        assert await keep_number(former, "test", "b", 2)
        anew = CoordinatorInMemory()
        assert await keep_number(anew.connect(), "test", "b", 2)
        assert await keep_number(anew.connect(), "test", "b", 2)
        assert await number_of_host(anew.connect(), "test", "c") == 3
        assert await number_of_host(anew.connect(), "test", "b") == 2

    asyncio.run(run())


def test_a_number_that_was_given_away_meanwhile() -> None:
    """Either another installation has it, or this one has another: both are said."""

    async def run() -> None:
        anew = CoordinatorInMemory()
        assert await number_of_host(anew.connect(), "test", "c") == 1
        assert not await keep_number(anew.connect(), "test", "a", 1)
        assert await number_of_host(anew.connect(), "test", "a") == 2
        assert not await keep_number(anew.connect(), "test", "a", 1)

    asyncio.run(run())

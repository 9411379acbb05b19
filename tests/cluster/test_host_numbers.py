"""Each installation has one number, for ever, and no two have the same."""

from __future__ import annotations

import asyncio

import pytest

from broker.cluster.contract import Coordination, Put, Unreachable
from broker.cluster.host_numbers import NoNumberLeft, number_of_host
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

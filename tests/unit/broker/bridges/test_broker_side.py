"""One broker of a bridge: how long it is waited for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from broker.bridges.broker_side import BridgeError, BrokerSide
from pyx.bridge.crossing import Crossing, TopicMap
from pyx.protocol.codec import encode_publish, encode_suback, encode_subscribe
from pyx.protocol.packets import Suback, Subscription

SECONDS = 0.2
NUMBER = 65535
SUBSCRIBE = encode_subscribe(5, NUMBER, [Subscription(b"a", 1)])
MESSAGE = encode_publish(5, b"a", bytes(1000), from_server=True)

Scene = Callable[[BrokerSide, socket.socket], Coroutine[Any, Any, None]]


def played(scene: Scene) -> None:
    """Play a scene with a side of a bridge, and the socket of its broker."""

    def defect(error: Exception) -> None:
        raise AssertionError(error)

    async def play() -> None:
        side = BrokerSide(Crossing([TopicMap(b"a", b"", b"")], 1 << 20), 5, defect)
        side.discards = True  # else it reads no more before the other broker is there
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        with theirs:
            await asyncio.get_running_loop().create_connection(lambda: side, sock=ours)
            try:
                await scene(side, theirs)
            finally:
                side.give_up("the end of the test")

    asyncio.run(play())


def test_an_answer_that_never_comes() -> None:
    async def scene(side: BrokerSide, _: socket.socket) -> None:
        with pytest.raises(TimeoutError):
            await side.ask(NUMBER, SUBSCRIBE, SECONDS)

    played(scene)


def test_pings_are_no_messages_that_an_answer_waits_behind() -> None:
    async def scene(side: BrokerSide, broker: socket.socket) -> None:
        asked = asyncio.ensure_future(side.ask(NUMBER, SUBSCRIBE, SECONDS))
        while not asked.done():
            broker.send(b"\xd0\x00")
            await asyncio.sleep(SECONDS / 10)
        with pytest.raises(TimeoutError):
            asked.result()

    played(scene)


@pytest.mark.parametrize("at_once", [1, 100, len(MESSAGE)])
def test_an_answer_may_come_behind_any_number_of_messages(at_once: int) -> None:
    """Also behind parts of one that takes long."""

    async def scene(side: BrokerSide, broker: socket.socket) -> None:
        asked = asyncio.ensure_future(side.ask(NUMBER, SUBSCRIBE, SECONDS))
        left = MESSAGE * 30
        for _ in range(30):
            broker.send(left[:at_once])
            left = left[at_once:]
            await asyncio.sleep(SECONDS / 10)
        assert not asked.done()
        broker.send(left + encode_suback(5, NUMBER, [1]))
        answer = await asked
        assert isinstance(answer, Suback)
        assert list(answer.codes) == [1]

    played(scene)


def test_the_end_of_a_connection_that_is_asked() -> None:
    async def scene(side: BrokerSide, broker: socket.socket) -> None:
        asked = asyncio.ensure_future(side.ask(NUMBER, SUBSCRIBE, SECONDS))
        await asyncio.sleep(0)
        broker.shutdown(socket.SHUT_RDWR)
        with pytest.raises(BridgeError):
            await asked
        with pytest.raises(BridgeError):
            await side.ask(NUMBER, SUBSCRIBE, SECONDS)

    played(scene)


def test_a_broker_that_takes_as_much_as_it_is_sent_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for it is always the same then."""
    unsent = 100_000
    monkeypatch.setattr(BrokerSide, "_unsent_bytes", lambda _: unsent)

    async def scene(side: BrokerSide, _: socket.socket) -> None:
        nonlocal unsent
        began = side.heard_at
        for second in range(20):
            side.write(bytes(1000))
            assert not side.is_silent(began + second, 7.5)
        for second in range(20, 30):
            side.write(b"\xc0\x00")
            unsent += 2
            assert side.is_silent(began + second, 7.5) == (second > 19 + 7.5)

    played(scene)

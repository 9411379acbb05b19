"""Questions between control processes over real sockets: who may ask, how much, and what is said of silent hosts."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest
import zmq
import zmq.asyncio

from broker.cluster import host_channel
from broker.cluster.host_channel import (
    ANSWERING_MAX,
    ANSWERING_OF_HOST_MAX,
    ASKED_MAX,
    HEAD,
    MESSAGE_BYTES_MAX,
    NEWEST,
    HostChannel,
    HostSilent,
)
from broker.cluster.host_record import HostRecord, HostState
from broker.logs import Log
from zmq_mesh.curve import KeyPair, new_keys

SECONDS = 10.0
ANSWER = 2
REFUSAL = 3


def free_port() -> int:
    """Return a port such that the next one is free, too."""
    for _ in range(100):
        port = random.SystemRandom().randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 1))
            return port
    raise AssertionError("no port is free")


class Member:
    """A host with one worker. `asked`: what it was asked; `free`: its answers wait for that."""

    def __init__(self, node: str, number: int, versions: tuple[int, int] = (1, NEWEST)) -> None:
        self.keys = new_keys()
        self.asked: list[dict[str, Any]] = []
        self.free = asyncio.Event()
        self.free.set()
        self.record = HostRecord(
            node=node,
            number=number,
            incarnation=1,
            installation="0" * 32,
            address=f"tcp://127.0.0.1:{free_port()}",
            curve_key=self.keys.public.decode(),
            workers=1,
            state=HostState.READY,
            release="1.0",
            link_versions=(1, 1),
            question_versions=versions,
        )
        self.channel = HostChannel(self.keys, self.record.address, 1, self.answer, Log(level="error"))

    async def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(question)
        await self.free.wait()
        if question.get("fails"):
            raise RuntimeError("a defect")
        return {"heard": len(orjson.dumps(question)), "x": "x" * question.get("long", 0)}

    @property
    def endpoint(self) -> str:
        host, _, port = self.record.address.rpartition(":")
        return f"{host}:{int(port) + 1}"


def know(*members: Member) -> None:
    """Tell them of each other."""
    for one in members:
        one.channel.set_hosts({each.record.node: each.record for each in members if each is not one})


@contextlib.asynccontextmanager
async def running(*members: Member, listen: bool = True) -> AsyncIterator[None]:
    for each in members:
        assert each.channel.start() is listen
    know(*members)
    try:
        yield
    finally:
        for each in members:
            each.free.set()
            await each.channel.close()


@contextlib.asynccontextmanager
async def raw(member: Member, keys: KeyPair | None) -> AsyncIterator[zmq.asyncio.Socket]:
    """Yield a socket that is connected to it with these keys; None: without encryption."""
    context = zmq.asyncio.Context()
    asker = context.socket(zmq.DEALER)
    asker.setsockopt(zmq.LINGER, 0)
    if keys is not None:
        asker.setsockopt(zmq.CURVE_SERVERKEY, member.keys.public)
        asker.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
        asker.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
    asker.connect(member.endpoint)
    try:
        yield asker
    finally:
        asker.close(0)
        context.term()


async def answer_to(asker: zmq.asyncio.Socket, frames: Sequence[bytes]) -> tuple[int, int, int, dict[str, Any]]:
    """Return version, kind, number and body of what is answered."""
    await asker.send_multipart(list(frames))
    (message,) = await asyncio.wait_for(asker.recv_multipart(), SECONDS)
    return *HEAD.unpack_from(message), orjson.loads(message[HEAD.size :])


def test_hosts_ask_each_other() -> None:
    """Both ways, many at a time, each answer to its question."""

    async def run() -> None:
        a, b = Member("a", 1), Member("b", 2)
        async with running(a, b):
            sizes = range(0, ANSWERING_OF_HOST_MAX * 40, 40)
            asked = [a.channel.ask("b", {"text": "x" * size}, SECONDS) for size in sizes]
            asked += [b.channel.ask("a", {"text": "y" * size}, SECONDS) for size in sizes]
            answers = await asyncio.gather(*asked)
        empty = len(orjson.dumps({"text": ""}))
        assert [each["heard"] - empty for each in answers] == [*sizes, *sizes]

    asyncio.run(run())


def test_lengths() -> None:
    """A question of no fields, the longest one and one byte more; the same of answers."""

    async def run() -> None:
        a, b = Member("a", 1), Member("b", 2)
        room = MESSAGE_BYTES_MAX - HEAD.size
        async with running(a, b):
            assert (await a.channel.ask("b", {}, SECONDS))["heard"] == 2
            longest = {"text": "x" * (room - len(orjson.dumps({"text": ""})))}
            assert (await a.channel.ask("b", longest, SECONDS))["heard"] == room
            with pytest.raises(HostSilent, match=f"has {room + 1} bytes, {MESSAGE_BYTES_MAX} are possible"):
                await a.channel.ask("b", {"text": longest["text"] + "x"}, SECONDS)
            known = len(orjson.dumps({"heard": 16, "x": ""}))
            found = await a.channel.ask("b", {"long": room - known}, SECONDS)
            assert len(orjson.dumps(found)) == room
            with pytest.raises(HostSilent, match="host b does not answer: its answer has"):
                await a.channel.ask("b", {"long": room - known + 1}, SECONDS)
            assert (await a.channel.ask("b", {}, SECONDS))["heard"] == 2

    asyncio.run(run())


def test_numbers_of_questions() -> None:
    """As many as a host answers at a time, of one host and of all; one more is refused at once, and others go on."""

    async def run() -> None:
        asked = Member("asked", 1)
        askers = [Member(f"n{at}", 2 + at) for at in range(ANSWERING_MAX // ANSWERING_OF_HOST_MAX + 1)]
        async with running(asked, *askers):
            asked.free.clear()

            async def fill(member: Member, count: int) -> list[asyncio.Task[dict[str, Any]]]:
                before = len(asked.asked)
                tasks = [asyncio.create_task(member.channel.ask("asked", {}, SECONDS)) for _ in range(count)]
                async with asyncio.timeout(SECONDS):
                    while len(asked.asked) < before + count:
                        await asyncio.sleep(0.01)
                return tasks

            waiting = await fill(askers[0], ANSWERING_OF_HOST_MAX)
            with pytest.raises(HostSilent, match="host asked does not answer: it is busy with other questions"):
                await askers[0].channel.ask("asked", {}, SECONDS)
            for each in askers[1:-1]:
                waiting += await fill(each, ANSWERING_OF_HOST_MAX)
            assert len(asked.asked) == ANSWERING_MAX
            with pytest.raises(HostSilent, match="busy"):
                await askers[-1].channel.ask("asked", {}, SECONDS)
            asked.free.set()
            assert all(each["heard"] == 2 for each in await asyncio.gather(*waiting))
            assert (await askers[-1].channel.ask("asked", {}, SECONDS))["heard"] == 2

    asyncio.run(run())


def test_number_of_questions_that_wait() -> None:
    """A host asks no more than ASKED_MAX at a time: the next one is refused here."""

    async def run() -> None:
        a, b = Member("a", 1), Member("b", 2)
        async with running(a):
            a.channel.set_hosts({"b": b.record})  # it does not listen
            waiting = [asyncio.create_task(a.channel.ask("b", {}, 1.0)) for _ in range(ASKED_MAX)]
            await asyncio.sleep(0)
            with pytest.raises(HostSilent, match=f"host b was not asked: {ASKED_MAX} other questions wait"):
                await a.channel.ask("b", {}, 1.0)
            said = await asyncio.gather(*waiting, return_exceptions=True)
            assert {str(each) for each in said} == {"host b has not answered in 1 s"}
            await b.channel.close()

    asyncio.run(run())


def test_nobody_is_waited_for_longer() -> None:
    """One that does not answer, one that is not there, one that leaves meanwhile, and one that has another key."""

    async def run() -> None:
        a, b, c = Member("a", 1), Member("b", 2), Member("c", 3)
        async with running(a, b):
            b.free.clear()
            for seconds in (0.0, 0.3):
                begun = time.monotonic()
                with pytest.raises(HostSilent, match=f"host b has not answered in {seconds:g} s"):
                    await a.channel.ask("b", {}, seconds)
                assert time.monotonic() - begun < seconds + 2
            with pytest.raises(HostSilent, match="there is no host 'c' in the cluster"):
                await a.channel.ask("c", {}, SECONDS)
            waiting = asyncio.create_task(a.channel.ask("b", {}, SECONDS))
            await asyncio.sleep(0.1)
            a.channel.set_hosts({})
            with pytest.raises(HostSilent, match="host b has gone"):
                await waiting
            a.channel.set_hosts({"b": replace(b.record, curve_key=c.keys.public.decode())})
            with pytest.raises(HostSilent, match="host b has not answered in 1 s"):
                await a.channel.ask("b", {}, 1.0)
            b.free.set()
            a.channel.set_hosts({"b": b.record})
            assert (await a.channel.ask("b", {}, SECONDS))["heard"] == 2
        await c.channel.close()

    asyncio.run(run())


def test_other_releases() -> None:
    """A host that says no version, or only later ones, is not asked; one that is asked in a later one says so."""

    async def run() -> None:
        a, b = Member("a", 1), Member("b", 2)
        async with running(a, b):
            for versions in ((0, 0), (NEWEST + 1, NEWEST + 2)):
                a.channel.set_hosts({"b": replace(b.record, question_versions=versions)})
                with pytest.raises(HostSilent, match=r"host b, of release 1\.0, cannot be asked"):
                    await a.channel.ask("b", {}, SECONDS)
            assert b.asked == []
            async with raw(b, a.keys) as asker:
                for version in (0, NEWEST + 1, 255):
                    said = await answer_to(asker, [HEAD.pack(version, 1, 7) + b"of whatever form"])
                    assert said[:3] == (NEWEST, REFUSAL, 7)
                    assert "knows questions of versions" in said[3]["reason"]
                assert await answer_to(asker, [HEAD.pack(NEWEST, 1, 8) + b"{}"]) == (
                    NEWEST, ANSWER, 8, {"heard": 2, "x": ""},
                )  # fmt: skip

    asyncio.run(run())


def test_a_defect_fails_its_question_alone() -> None:
    """Others are answered; the asker hears that it has failed."""

    async def run() -> None:
        a, b = Member("a", 1), Member("b", 2)
        async with running(a, b):
            with pytest.raises(HostSilent, match="host b does not answer: the question has failed"):
                await a.channel.ask("b", {"fails": True}, SECONDS)
            assert (await a.channel.ask("b", {}, SECONDS))["heard"] == 2

    asyncio.run(run())


def test_who_may_ask() -> None:
    """Nobody without keys, nor with a key that no host has, nor one that has left: they are not heard."""

    async def run() -> None:
        a, b = Member("a", 1), Member("b", 2)
        question = HEAD.pack(NEWEST, 1, 1) + b'{"by": "nobody"}'
        async with running(a, b):
            for keys in (None, new_keys()):
                async with raw(b, keys) as stranger:
                    await stranger.send(question)
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(stranger.recv(), 1.0)
            assert b.channel.refused >= 1
            async with raw(b, a.keys) as asker:
                assert (await answer_to(asker, [question]))[1] == ANSWER
                b.channel.set_hosts({})
                await asker.send(question)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(asker.recv(), 1.0)
                assert b.channel.malformed == 1
            assert len(b.asked) == 1

    asyncio.run(run())


def test_any_bytes_of_a_host() -> None:
    """Whatever a host sends, in whatever frames: it is a question, or counted; the next one is answered."""

    async def run() -> None:
        chance = random.Random(20261128)
        a, b = Member("a", 1), Member("b", 2)
        async with running(a, b), raw(b, a.keys) as asker:
            whole = HEAD.pack(NEWEST, 1, 5) + orjson.dumps({"a": [1, {"b": None}]})
            sent: list[list[bytes]] = [
                [b""],
                [b"", b""],
                [whole, whole],
                [whole[: HEAD.size]],
                [HEAD.pack(1, 1, 0)],
            ]
            sent += [[whole[:at]] for at in range(len(whole))]
            sent += [[HEAD.pack(NEWEST, kind, 1) + b"{}"] for kind in range(256) if kind != 1]
            sent += [
                [HEAD.pack(NEWEST, 1, 1) + body] for body in (b"[]", b"1", b"null", b"[" * 5000, b'"\xff"', b"{}{}")
            ]
            sent += [[chance.randbytes(chance.randrange(200))] for _ in range(500)]
            sent += [[chance.randbytes(9), whole, b"x"], [b"x" * (MESSAGE_BYTES_MAX)]]
            for frames in sent:
                await asker.send_multipart(frames)
            await asker.send(HEAD.pack(NEWEST, 1, 999) + b'{"last": 1}')
            async with asyncio.timeout(SECONDS * 3):
                while True:
                    (message,) = await asker.recv_multipart()
                    _, kind, number = struct.unpack_from("<BBQ", message)
                    assert kind in (ANSWER, REFUSAL)
                    if number == 999:
                        break
            assert b.asked[-1] == {"last": 1}
            assert b.channel.malformed > 255
            assert (await a.channel.ask("b", {}, SECONDS))["heard"] == 2

    asyncio.run(run())


def test_any_bytes_instead_of_an_answer() -> None:
    """What a host sends that is no answer is counted, and the asker waits on; a later answer is for nobody."""

    async def run() -> None:
        chance = random.Random(20261129)
        a, b = Member("a", 1), Member("b", 2)
        context = zmq.asyncio.Context()
        other = context.socket(zmq.ROUTER)
        other.setsockopt(zmq.LINGER, 0)
        other.setsockopt(zmq.CURVE_SERVER, 1)
        other.setsockopt(zmq.CURVE_SECRETKEY, b.keys.secret)
        other.bind(b.endpoint)
        try:
            async with running(a):
                a.channel.set_hosts({"b": b.record})
                for at in range(1, 60):
                    asking = asyncio.create_task(a.channel.ask("b", {}, 0.2))
                    who, question = await asyncio.wait_for(other.recv_multipart(), SECONDS)
                    assert HEAD.unpack_from(question)[2] == at
                    for _ in range(5):
                        await other.send_multipart([who, chance.randbytes(chance.randrange(40))])
                    await other.send_multipart([who, HEAD.pack(NEWEST, 1, at) + b"{}"])
                    await other.send_multipart([who, b"", b""])
                    await other.send_multipart([who, HEAD.pack(NEWEST, ANSWER, at + 1) + b"{}"])
                    if at % 3 == 0:
                        await other.send_multipart([who, HEAD.pack(NEWEST, ANSWER, at) + b'{"n":1}'])
                        assert await asking == {"n": 1}
                    elif at % 3 == 1:
                        await other.send_multipart([who, HEAD.pack(NEWEST + 1, ANSWER, at) + b"{}"])
                        with pytest.raises(HostSilent, match=f"it answers in version {NEWEST + 1}"):
                            await asking
                    else:
                        with pytest.raises(HostSilent, match="has not answered"):
                            await asking
                assert a.channel.malformed >= 59 * 2
        finally:
            other.close(0)
            context.term()
            await b.channel.close()

    asyncio.run(run())


def test_the_port_is_in_use() -> None:
    """The host goes on: it asks others, and is not asked."""

    async def run() -> None:
        a, b = Member("a", 1), Member("b", 2)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", int(a.endpoint.rpartition(":")[2])))
            taken.listen()
            assert not a.channel.start()
            assert b.channel.start()
            know(a, b)
            assert (await a.channel.ask("b", {}, SECONDS))["heard"] == 2
            await a.channel.close()
            await b.channel.close()

    asyncio.run(run())


def test_limits_have_their_documented_values() -> None:
    """Those of the docs."""
    assert (ASKED_MAX, ANSWERING_MAX, ANSWERING_OF_HOST_MAX, MESSAGE_BYTES_MAX) == (256, 64, 16, 1 << 20)
    assert (host_channel.OLDEST, NEWEST) == (1, 1)

"""Questions of a host's control process to those of other hosts, and their answers (docs/adr/0049).

Each control process listens on the port after those of its workers, and has a connection to every other host that can
be asked. Connections are encrypted, and let in, as those of rails (`zmq_mesh.curve`): by the keys that hosts publish in
their records, and only as long as they are members.

A message is HEAD, then a JSON object. Of every version the head has the same form, so that a host can say that it does
not know one. Kinds:

    QUESTION    to a host; `number` is the asker's, and that of the answer
    ANSWER      to a question
    REFUSAL     {"reason": why}: the question was not read, or too many others wait

Nobody waits for a host for longer than he says, and nothing is kept for one that is away: who asked is told, and asks
again if he likes. A message that is none is counted, and goes no further.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import orjson
import zmq
import zmq.asyncio

from zmq_mesh.curve import Curve, Door, KeyPair
from zmq_mesh.loop_watcher import LoopWatcher
from zmq_mesh.rails import endpoint_of

if TYPE_CHECKING:
    from broker.cluster.host_record import HostRecord
    from broker.logs import Log

__all__ = [
    "ANSWERING_MAX",
    "ANSWERING_OF_HOST_MAX",
    "ASKED_MAX",
    "HEAD",
    "MESSAGE_BYTES_MAX",
    "NEWEST",
    "OLDEST",
    "Answerer",
    "HostChannel",
    "HostSilent",
]

OLDEST: Final = 1
NEWEST: Final = 1
HEAD: Final = struct.Struct("<BBQ")
"""version, kind, number"""
QUESTION: Final = 1
ANSWER: Final = 2
REFUSAL: Final = 3

MESSAGE_BYTES_MAX: Final = 1 << 20
"""A question may have a client id of 65,535 bytes, or what a snapshot of 64 hosts consists of."""
ASKED_MAX: Final = 256
"""Questions of this host that wait for an answer."""
ANSWERING_MAX: Final = 64
"""Questions of all hosts that are being answered."""
ANSWERING_OF_HOST_MAX: Final = 16
"""And of one of them."""

_CURVE_BYTES: Final = 64
"""What encryption adds to a message, and more."""
_QUEUED_MESSAGES: Final = 8
"""Of a connection, beside what the kernel has; they are not read before there is room."""
_IN_TURN: Final = 16
"""Messages that are taken before others of the event loop have their turn."""
_HEARTBEAT_MS: Final = 2000
_TIMEOUT_MS: Final = 4000
_NOBODY: Final[dict[bytes, int]] = {}

Answerer = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class HostSilent(Exception):
    """A host has not answered, or refused to. The text is one line, which names it."""


@dataclass(slots=True)
class _AskedHost:
    """A host that can be asked, and the connection to it."""

    node: str
    endpoint: str
    key: str
    version: int
    socket: zmq.asyncio.Socket
    reading: asyncio.Task[None] | None = None
    waiting: dict[int, asyncio.Future[dict[str, Any]]] = field(default_factory=dict)

    def is_of(self, record: HostRecord) -> bool:
        """Whether it is there as this record says."""
        return (self.endpoint, self.key) == (_endpoint(record), record.curve_key)


def _endpoint(record: HostRecord) -> str:
    return endpoint_of(record.address, record.workers)


def _version_with(record: HostRecord) -> int:
    """Return the newest version that a host speaks, too; 0: none."""
    oldest, newest = record.question_versions
    version = min(newest, NEWEST)
    return version if version >= max(oldest, OLDEST) else 0


class HostChannel:
    """The channel of one host. keys: of this host. listen: where its first worker listens, "tcp://host:port"; the
    channel has the port after those of its `workers`. answer: answers the questions of other hosts.
    """

    def __init__(self, keys: KeyPair, listen: str, workers: int, answer: Answerer, log: Log) -> None:
        self._endpoint = endpoint_of(listen, workers)
        self._answer = answer
        self._log = log
        self._curve = Curve(keys, _NOBODY, MESSAGE_BYTES_MAX + _CURVE_BYTES)
        self._context: zmq.asyncio.Context | None = None
        self._door: Door | None = None
        self._inlet: zmq.asyncio.Socket | None = None
        self._listening: asyncio.Task[None] | None = None
        self._hosts: Mapping[str, HostRecord] = {}
        self._asked: dict[str, _AskedHost] = {}
        self._numbers = itertools.count(1)
        self._answering: dict[int, set[asyncio.Task[None]]] = {}
        """By host: the questions of it that are being answered."""
        self.malformed = 0
        """Number of messages that were none."""

    @property
    def refused(self) -> int:
        """Number of connections that were refused, because no host has their key."""
        return self._curve.refused

    def start(self) -> bool:
        """Listen. Return whether that was possible; if not, this host asks, and is not asked."""
        self._context = zmq.asyncio.Context(io_threads=1)
        self._door = Door(zmq.Context.shadow(self._context.underlying), self._curve, LoopWatcher())
        inlet = self._context.socket(zmq.ROUTER)
        self._set_up(inlet)
        inlet.setsockopt(
            zmq.SNDHWM, ASKED_MAX
        )  # a refusal for each question that there may be; the socket drops others
        self._curve.secure_inlet(_plain(inlet))
        try:
            inlet.bind(self._endpoint)
        except zmq.ZMQError as error:
            inlet.close(0)
            self._log.error("host_channel_unavailable", address=self._endpoint, reason=str(error))
            return False
        self._inlet = inlet
        self._listening = asyncio.get_running_loop().create_task(self._listen(inlet))
        self._listening.add_done_callback(self._has_ended)
        return True

    async def close(self) -> None:
        """Answer and ask no more."""
        tasks = [each for some in self._answering.values() for each in some]
        tasks += [self._listening] if self._listening is not None else []
        for asked in list(self._asked.values()):
            tasks += self._drop(asked)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._inlet is not None:
            self._inlet.close(0)
        if self._door is not None:
            self._door.close()
        if self._context is not None:
            self._context.term()

    def set_hosts(self, hosts: Mapping[str, HostRecord]) -> None:
        """Take the other hosts, by node id. Whoever waits for one that has gone, or has been started anew, is told."""
        self._hosts = dict(hosts)
        self._curve.hosts = {each.curve_key.encode(): each.number for each in hosts.values()}
        for node, asked in list(self._asked.items()):
            if node not in hosts or not asked.is_of(hosts[node]):
                self._drop(asked)

    @staticmethod
    def _set_up(socket: zmq.asyncio.Socket) -> None:
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, _QUEUED_MESSAGES)
        socket.setsockopt(zmq.SNDHWM, _QUEUED_MESSAGES)
        socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX + _CURVE_BYTES)
        socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _TIMEOUT_MS)

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("host_channel_failed", traceback="".join(traceback.format_exception(error)))

    # ------------------------------------------------------------ asking

    async def ask(self, node: str, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Return a host's answer. Raises HostSilent, after `seconds` at the latest."""
        body = orjson.dumps(question)
        if HEAD.size + len(body) > MESSAGE_BYTES_MAX:
            raise HostSilent(f"host {node}: the question has {len(body)} bytes, {MESSAGE_BYTES_MAX} are possible")
        if sum(len(each.waiting) for each in self._asked.values()) >= ASKED_MAX:
            raise HostSilent(f"host {node} was not asked: {ASKED_MAX} other questions wait for an answer")
        asked = self._asked_host(node)
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        asked.waiting[number] = answer
        sent = asyncio.ensure_future(asked.socket.send(HEAD.pack(asked.version, QUESTION, number) + body))
        sent.add_done_callback(_forgotten)  # until it is connected, nothing is sent
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise HostSilent(f"host {node} has not answered in {seconds:g} s") from None
        finally:
            sent.cancel()
            asked.waiting.pop(number, None)

    def _asked_host(self, node: str) -> _AskedHost:
        if self._context is None or node not in self._hosts:
            raise HostSilent(f"there is no host {node!r} in the cluster")
        if node in self._asked:
            return self._asked[node]
        record = self._hosts[node]
        version = _version_with(record)
        if not version:
            raise HostSilent(
                f"host {node}, of release {record.release}, cannot be asked: it does not listen for questions, or "
                "speaks none of their versions that this host knows"
            )
        socket = self._context.socket(zmq.DEALER)
        self._set_up(socket)
        socket.setsockopt(zmq.IMMEDIATE, 1)  # what is asked while it is away is not sent later
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        try:
            self._curve.secure_outlet(_plain(socket), record.number)
            socket.connect(_endpoint(record))
        except (zmq.ZMQError, LookupError) as error:
            socket.close(0)
            raise HostSilent(f"host {node} cannot be asked: {error}") from None
        asked = _AskedHost(node, _endpoint(record), record.curve_key, version, socket)
        asked.reading = asyncio.get_running_loop().create_task(self._read(asked))
        asked.reading.add_done_callback(self._has_ended)
        self._asked[node] = asked
        return asked

    def _drop(self, asked: _AskedHost) -> list[asyncio.Task[None]]:
        """Give up the connection to a host. Return the task that reads it, which is being cancelled."""
        del self._asked[asked.node]
        for answer in asked.waiting.values():
            if not answer.done():
                answer.set_exception(HostSilent(f"host {asked.node} has gone"))
        if asked.reading is None:
            return []
        asked.reading.add_done_callback(lambda _: asked.socket.close(0))
        asked.reading.cancel()
        return [asked.reading]

    async def _read(self, asked: _AskedHost) -> None:
        for at in itertools.count(1):
            frames = await asked.socket.recv_multipart()
            self._take_answer(asked, frames)
            if at % _IN_TURN == 0:
                await asyncio.sleep(0)

    def _take_answer(self, asked: _AskedHost, frames: list[bytes]) -> None:
        try:
            if len(frames) != 1:
                raise ValueError(f"{len(frames)} frames")
            version, kind, number, body = _decoded(frames[0])
            if kind not in (ANSWER, REFUSAL):
                raise ValueError(f"kind {kind}")
        except ValueError as error:
            self._malformed(asked.node, error)
            return
        answer = asked.waiting.get(number)
        if answer is None or answer.done():
            return  # nobody waits for it any more
        if kind == ANSWER and OLDEST <= version <= NEWEST:
            answer.set_result(body)
        else:
            reason = body.get("reason") if kind == REFUSAL else f"it answers in version {version}"
            answer.set_exception(HostSilent(f"host {asked.node} does not answer: {reason}"))

    def _malformed(self, host: object, error: ValueError) -> None:
        self.malformed += 1
        self._log.warning("host_message_malformed", host=host, reason=str(error))

    # ------------------------------------------------------------ answering

    async def _listen(self, inlet: zmq.asyncio.Socket) -> None:
        for at in itertools.count(1):
            frames = await inlet.recv_multipart(copy=False)
            host = self._curve.hosts.get(str(frames[-1].get("User-Id")).encode())
            if host is None:
                self._malformed("", ValueError("it is of a host that has left"))
            else:
                self._take_question(inlet, host, [frame.bytes for frame in frames])
            if at % _IN_TURN == 0:
                await asyncio.sleep(0)

    def _take_question(self, inlet: zmq.asyncio.Socket, host: int, frames: list[bytes]) -> None:
        """Begin to answer. frames: who asks, as the socket knows him, and the message."""
        try:
            if len(frames) != 2:
                raise ValueError(f"{len(frames) - 1} frames")
            version, kind, number = _head_of(frames[1])
            if kind != QUESTION:
                raise ValueError(f"kind {kind}")
            is_known = OLDEST <= version <= NEWEST
            reply = partial(_say, inlet, frames[0], version if is_known else NEWEST, number)
            if not is_known:
                reply(REFUSAL, {"reason": f"it knows questions of versions {OLDEST} to {NEWEST}, not {version}"})
                return
            question = _body_of(frames[1])
        except ValueError as error:
            self._malformed(host, error)
            return
        of_host = self._answering.setdefault(host, set())
        if len(of_host) >= ANSWERING_OF_HOST_MAX or sum(map(len, self._answering.values())) >= ANSWERING_MAX:
            reply(REFUSAL, {"reason": "it is busy with other questions"})
            return
        task = asyncio.get_running_loop().create_task(self._answered(question, reply))
        of_host.add(task)
        task.add_done_callback(of_host.discard)

    async def _answered(self, question: dict[str, Any], reply: Callable[[int, dict[str, Any]], None]) -> None:
        try:
            answer = await self._answer(question)
        except Exception:  # noqa: BLE001  an internal error: this question fails, the others do not
            self._log.error("host_question_failed", traceback=traceback.format_exc())
            reply(REFUSAL, {"reason": "the question has failed: its log has the details"})
        else:
            reply(ANSWER, answer)


def _plain(socket: zmq.asyncio.Socket) -> zmq.Socket[bytes]:
    """Return a socket as it is for who does not wait for it: its options can be set."""
    return cast("zmq.Socket[bytes]", socket)


def _say(
    inlet: zmq.asyncio.Socket, to: bytes, version: int, number: int, kind: int, body: dict[str, Any]
) -> None:  # fmt: skip
    """Send an answer, if there is room for it: who does not read his answers is not waited for."""
    message = HEAD.pack(version, kind, number) + orjson.dumps(body)
    if len(message) > MESSAGE_BYTES_MAX:
        reason = {"reason": f"its answer has {len(message)} bytes, {MESSAGE_BYTES_MAX} are possible"}
        message = HEAD.pack(version, REFUSAL, number) + orjson.dumps(reason)
    sent = asyncio.ensure_future(inlet.send_multipart([to, message], zmq.NOBLOCK))
    sent.add_done_callback(_forgotten)


def _forgotten(sent: asyncio.Future[Any]) -> None:
    """Take note that a message was not sent: who waits for an answer finds that out when his time is over."""
    if not sent.cancelled():
        sent.exception()


def _decoded(message: bytes) -> tuple[int, int, int, dict[str, Any]]:
    """Return version, kind, number and body of a message. Raises ValueError."""
    return *_head_of(message), _body_of(message)


def _head_of(message: bytes) -> tuple[int, int, int]:
    if len(message) < HEAD.size:
        raise ValueError(f"{len(message)} bytes")
    version, kind, number = HEAD.unpack_from(message)
    return version, kind, number


def _body_of(message: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(memoryview(message)[HEAD.size :])
    except orjson.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error}") from None
    if not isinstance(body, dict):
        raise ValueError("no JSON object")
    return body

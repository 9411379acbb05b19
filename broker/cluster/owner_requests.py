"""Answers the workers of this host who owns a client id: `Ownership` behind the sockets of `owner_messages`."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from broker.cluster.contract import CoordinationError
from broker.cluster.owner_messages import (
    PACKET_BYTES_MAX,
    OwnerAnswer,
    OwnerRequest,
    RequestKind,
    Standing,
    decode_requests,
    encode_answers,
)
from broker.cluster.ownership import Owner

if TYPE_CHECKING:
    from broker.cluster.ownership import Ownership
    from broker.logs import Log

__all__ = ["STANDING_SECONDS", "OwnerRequests"]

STANDING_SECONDS: Final = 2.0
"""The workers are told the standing of their host at least this often."""

_WAITING_MAX: Final = 100_000
"""Requests of all workers together; the answer to more is that the owner is not known."""
_PACKETS: Final = 64
"""Read from a worker before the next one's turn."""


class OwnerRequests:
    """Runs in the loop of the control process. sockets: one for each worker. standing: returns that of this host."""

    def __init__(
        self, ownership: Ownership, standing: Callable[[], Standing], sockets: Sequence[socket.socket], log: Log
    ) -> None:
        self._ownership = ownership
        self._standing = standing
        self._sockets = sockets
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: dict[socket.socket, list[OwnerAnswer]] = {}
        self._sends_soon = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Listen to the workers."""
        loop = asyncio.get_running_loop()
        for each in self._sockets:
            loop.add_reader(each.fileno(), self._on_requests, each)
        self._go_on()

    async def close(self) -> None:
        """Answer nothing more."""
        loop = asyncio.get_running_loop()
        for each in self._sockets:
            loop.remove_reader(each.fileno())
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._ownership.close()

    def _go_on(self) -> None:
        self.tell_standing()
        self._timer = asyncio.get_running_loop().call_later(STANDING_SECONDS, self._go_on)

    def tell_standing(self) -> None:
        """Tell the workers the standing of this host."""
        for each in self._sockets:
            self._answers.setdefault(each, [])
        self._send_soon()

    def _on_requests(self, worker: socket.socket) -> None:
        for _ in range(_PACKETS):
            try:
                packet = worker.recv(PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            except OSError as error:
                self._log.error("owner_requests_failed", reason=str(error))
                return
            if not packet:  # the supervisor has gone, and this process goes with it
                asyncio.get_running_loop().remove_reader(worker.fileno())
                return
            try:
                requests = list(decode_requests(packet))
            except (ValueError, struct.error) as error:
                self._log.error("owner_requests_failed", reason=str(error))
                continue
            for request in requests:
                self._begin(worker, request)

    def _begin(self, worker: socket.socket, request: OwnerRequest) -> None:
        if len(self._tasks) >= _WAITING_MAX:
            self._answer(worker, request, None)
            return
        task = asyncio.get_running_loop().create_task(self._carry_out(worker, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, worker: socket.socket, request: OwnerRequest) -> None:
        client_id, epoch = request.client_id, request.epoch
        owner: Owner | None = None
        try:
            if request.kind is RequestKind.RELEASE:
                await self._ownership.release(client_id, epoch)
                owner = Owner("", 0)
            elif request.kind is RequestKind.LOOK:
                owner = await self._ownership.look(client_id)
            elif request.kind is RequestKind.TAKE:
                owner = await self._ownership.take(client_id, epoch)
            else:
                owner = await self._ownership.claim(client_id)
        except CoordinationError as error:
            self._log.debug("owner_not_known", client=client_id, reason=str(error))
        except ValueError as error:  # a number that is no epoch
            self._log.error("owner_requests_failed", reason=str(error))
        self._answer(worker, request, owner)

    def _answer(self, worker: socket.socket, request: OwnerRequest, owner: Owner | None) -> None:
        known = owner is not None
        answer = OwnerAnswer(request.number, known, owner.epoch if owner else 0, owner.node if owner else "")
        self._answers.setdefault(worker, []).append(answer)
        self._send_soon()

    def _send_soon(self) -> None:
        if not self._sends_soon:  # what comes at the same time travels with it
            self._sends_soon = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._sends_soon = False
        answers, self._answers = self._answers, {}
        for worker, each in answers.items():
            for packet in encode_answers(self._standing(), each):
                try:
                    worker.send(packet)
                except OSError:  # it is down, or behind: what it asked for it asks again
                    break

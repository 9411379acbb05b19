"""Requests of the control process to workers: asynchronous, each with a timeout, lists page by page.

The supervisor forwards them (`shards.worker_requests`), and answers for a worker that does not run, dies, or does not
reply.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

from broker.admin.requests import NoAnswer, Paged, Request, encode, page_at, understood

__all__ = ["Workers"]


class Workers:
    """Sends requests and collects the answers. `tell(event, fields)` sends a message to the supervisor."""

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def ask(self, worker: int, request: Request, seconds: float = 12.0) -> dict[str, Any]:
        """Return the worker's answer. Raises NoAnswer, after `seconds` at the latest."""
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._tell("ask", number=number, worker=worker, ask=encode(request))
            answer = await asyncio.wait_for(self._waiting[number], seconds)
        except TimeoutError:
            raise NoAnswer(f"worker {worker} has not answered in {seconds:g} s") from None
        finally:
            del self._waiting[number]
        return understood(worker, answer)

    async def pages(self, worker: int, request: Paged, seconds: float = 12.0) -> AsyncIterator[dict[str, Any]]:
        """Yield all pages of an answer, each requested when it is needed. Raises NoAnswer."""
        at: int | None = request.at
        while at is not None:
            page = await self.ask(worker, page_at(request, at), seconds)
            yield page
            at = page["next"]

    def answered(self, message: dict[str, Any]) -> None:
        """Take in an answer, or an error, that the supervisor forwards; ignored if nobody waits for it any more."""
        waiting = self._waiting.get(message["number"])
        if waiting is None or waiting.done():
            return
        if "error" in message:
            waiting.set_exception(NoAnswer(str(message["error"])))
        else:
            waiting.set_result(message["answer"])

"""Which host owns a client id: one, by a record in the coordinator that ends with the lease of its host.

The *epoch* of an ownership is the revision at which its record was written. Epochs of a client id rise, also over the
deletion of its record, so whoever knows a higher one refuses what a former owner says.

Requests that come at the same time travel in one transaction. If some of its conditions do not hold, the answer says
which, and the others are sent again: mostly twice as many transactions, however many fail. Transactions are so far
apart that all hosts together make TRANSACTIONS_PER_SECOND_MAX at most, and none waits while there are few.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from broker.cluster.contract import (
    OPERATIONS_MAX,
    Coordination,
    CoordinationError,
    Delete,
    Entry,
    KeyCondition,
    LeaseEnded,
    Put,
)

__all__ = ["KEPT_BYTES_MAX", "TRANSACTIONS_PER_SECOND_MAX", "Owner", "Ownership", "prefix_of_owners"]

TRANSACTIONS_PER_SECOND_MAX: Final = 900
"""Of all hosts together."""
KEPT_BYTES_MAX: Final = 64
"""A client id of more bytes is a digest in its key: etcd holds every key in memory."""
_BATCHES_MAX: Final = 4
"""Transactions under way at the same time."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a client id. epoch: 0 with node "": nobody owns it."""

    node: str
    epoch: int


_NOBODY: Final = Owner("", 0)


@dataclass(slots=True)
class _Request:
    key: bytes
    epoch: int
    """That the record must have; 0: there must be none."""
    is_release: bool
    answers: list[asyncio.Future[Owner]]
    """Of all who ask for the same."""

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits any more."""
        return all(each.cancelled() for each in self.answers)


class Ownership:
    """The requests of one host. `lease`: returns its present lease, 0: it is no member. Used in one event loop."""

    def __init__(self, coordination: Coordination, cluster: str, node: str, lease: Callable[[], int]) -> None:
        self._coordination = coordination
        self._prefix = prefix_of_owners(cluster)
        self._node = node
        self._record = node.encode()
        self._lease = lease
        self._waiting: deque[_Request] = deque()
        self._asked: dict[tuple[bytes, int, bool], _Request] = {}  # of those that wait
        self._again: deque[list[_Request]] = deque()  # what is left of batches of which some were refused
        self._is_closed = False
        self._under_way: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._next_at = 0.0
        self.hosts = 1
        """Number of hosts that share TRANSACTIONS_PER_SECOND_MAX."""
        self.transactions = 0
        """Number of transactions made."""

    async def claim(self, client_id: str) -> Owner:
        """Return the owner of a client id: this host if nobody was it. Raises CoordinationError, after which it may
        own it all the same.
        """
        return await self._ask(client_id, 0, is_release=False)

    async def take(self, client_id: str, epoch: int) -> Owner:
        """Make this host the owner in place of the one with this epoch. Return who is the owner now: another one if it
        changed meanwhile. Raises CoordinationError, after which it may own it all the same.
        """
        return await self._ask(client_id, epoch, is_release=False)

    async def look(self, client_id: str) -> Owner:
        """Return who owns a client id, without changing it. Raises CoordinationError."""
        return _owner(await self._coordination.read(self.key_of(client_id)))

    async def release(self, client_id: str, epoch: int) -> None:
        """End the ownership with this epoch. No effect on a later one. Raises CoordinationError."""
        await self._ask(client_id, epoch, is_release=True)

    async def close(self) -> None:
        """Wait for what is under way, and refuse the rest, and what comes, with CoordinationError."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        try:
            if self._under_way:
                await asyncio.wait(self._under_way)
        finally:
            for batch in (list(self._waiting), *self._again):
                self._fail(batch, CoordinationError("this host leaves the cluster"))

    def key_of(self, client_id: str) -> bytes:
        """Return the key of a client id's record."""
        name = client_id.encode()
        if len(name) > KEPT_BYTES_MAX:  # longer than any that stands for itself, so they never meet
            name = b"#" + hashlib.blake2b(name, digest_size=KEPT_BYTES_MAX // 2).hexdigest().encode()
        return self._prefix + name

    # ------------------------------------------------------------ batches

    async def _ask(self, client_id: str, epoch: int, *, is_release: bool) -> Owner:
        if self._is_closed:
            raise CoordinationError("this host leaves the cluster")
        if not 0 <= epoch < 1 << 63:
            raise ValueError(f"{epoch} is no epoch")
        answer: asyncio.Future[Owner] = asyncio.get_running_loop().create_future()
        key = self.key_of(client_id)
        request = self._asked.get((key, epoch, is_release))
        if request is not None:
            request.answers.append(answer)
        else:
            request = self._asked[key, epoch, is_release] = _Request(key, epoch, is_release, [answer])
            self._waiting.append(request)
            self._schedule()
        return await answer

    def _schedule(self) -> None:
        """Send a batch when the next one may go: not in this call, so that what comes at the same time goes with it."""
        if self._is_closed or self._timer is not None or len(self._under_way) == _BATCHES_MAX:
            return
        if self._waiting or self._again:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(self._next_at, loop.time()), self._send)

    def _send(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        again = self._again.popleft() if self._again else []
        batch = [each for each in again if not each.is_cancelled] or self._next_batch()
        if batch:
            self._next_at = loop.time() + self.hosts / TRANSACTIONS_PER_SECOND_MAX
            task = loop.create_task(self._transact(batch))
            self._under_way.add(task)
            task.add_done_callback(self._is_done)
        self._schedule()

    def _is_done(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._schedule()

    def _next_batch(self) -> list[_Request]:
        """Return the first requests that wait, one for each key: the others of that key stay, in their order."""
        batch: dict[bytes, _Request] = {}
        left: list[_Request] = []
        while self._waiting and len(batch) < OPERATIONS_MAX and len(left) < OPERATIONS_MAX:
            request = self._waiting.popleft()
            if request.is_cancelled:
                self._forget(request)
                continue
            if request.key in batch:
                left.append(request)
            else:
                batch[request.key] = request
        self._waiting.extendleft(reversed(left))
        for request in batch.values():
            self._forget(request)
        return list(batch.values())

    def _forget(self, request: _Request) -> None:
        del self._asked[request.key, request.epoch, request.is_release]

    async def _transact(self, batch: list[_Request]) -> None:
        try:
            lease = self._lease()
            if not lease:
                raise LeaseEnded("this host is no member of the cluster")
            self.transactions += 1
            outcome = await self._coordination.transact(
                [KeyCondition(each.key, each.epoch) for each in batch],
                [Delete(each.key) if each.is_release else Put(each.key, self._record, lease) for each in batch],
            )
        except CoordinationError as error:
            self._fail(batch, error)
        except BaseException as error:
            self._fail(batch, CoordinationError(f"a defect: {error!r}"))
            raise
        else:
            if outcome.done:
                for each in batch:
                    self._answer(each, _NOBODY if each.is_release else Owner(self._node, outcome.revision))
            else:
                self._answer_refused(batch, outcome.found)

    def _answer_refused(self, batch: list[_Request], found: Sequence[Entry | None]) -> None:
        """Answer those whose condition does not hold. The others are the next batch: with new ones, which may be
        refused, they might be sent again and again.
        """
        rest = []
        for each, entry in zip(batch, found, strict=True):
            if (entry.changed if entry is not None else 0) == each.epoch:
                rest.append(each)
            elif entry is not None and self._is_of_former_lease(entry) and not each.is_release:
                each.epoch = entry.changed
                rest.append(each)
            else:
                self._answer(each, _owner(entry))
        if rest:
            self._again.append(rest)

    def _is_of_former_lease(self, entry: Entry) -> bool:
        """Whether the record is this host's, and would end with a lease that it has no more."""
        return entry.value == self._record and entry.lease != self._lease()

    @staticmethod
    def _answer(request: _Request, owner: Owner) -> None:
        for answer in request.answers:
            if not answer.done():
                answer.set_result(owner)

    @staticmethod
    def _fail(batch: list[_Request], error: CoordinationError) -> None:
        for each in batch:
            for answer in each.answers:
                if not answer.done():
                    answer.set_exception(error)


def prefix_of_owners(cluster: str) -> bytes:
    """Return the prefix of the records of all owners."""
    return f"/mqttd/{cluster}/owners/".encode()


def _owner(entry: Entry | None) -> Owner:
    return _NOBODY if entry is None else Owner(entry.value.decode(errors="replace"), entry.changed)

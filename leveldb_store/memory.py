"""The store without a disk: the same contract, in memory. What it holds is lost with its worker.

A message is held once, by reference, however many indexes list it; it is gone when the last index, window and outbox
that wants it has let go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from leveldb_store.contract import Archive
from pyx.protocol.message import Message
from pyx.storage.records import Batch, Block, Index


class MemoryStore:
    """Implements `leveldb_store.contract.Store`."""

    immediate = True
    keeps = False
    unread: Sequence[tuple[bytes, bytes, str]] = ()
    failed: str | None = None
    full: str | None = None
    unwritten_bytes = 0
    archive: Archive | None = None

    def __init__(self) -> None:
        self.last_position = 0
        self._indexes: dict[bytes, Index] = {}
        self._ticket = 0
        self._gathered = False
        self._messages = 0
        self._bytes = 0
        self._nothing = Index()

    def append(self, block: Block, most: int = 0) -> int:
        """See the contract."""
        indexes = self._indexes
        for name, batch in block.batches(most):
            index = indexes.get(name)
            if index is None:
                index = indexes[name] = Index()
            before = index.total_bytes
            index.extend(batch)
            self._messages += batch.count
            self._bytes += index.total_bytes - before
        self.last_position = block.first + block.count - 1
        self._gathered = True
        return self._ticket + 1

    def append_archived(self) -> None:
        """There is no archive."""

    def put(self, key: bytes, value: bytes) -> None:
        """Nothing is kept: what a record says is in its worker's memory anyway."""

    def delete(self, key: bytes) -> None:
        """See `put`."""

    def flush(self, sync: bool = True) -> int:  # noqa: ARG002
        """See the contract."""
        if self._gathered:
            self._gathered = False
            self._ticket += 1
        return self._ticket

    def carry(self, moment: Callable[[], bytes]) -> None:
        """See `put`."""

    def record(self, number: int, event: bytes) -> None:
        """Nothing is kept."""

    def pass_on(self) -> None:
        """See `record`."""

    @property
    def last_event(self) -> int:
        """None."""
        return 0

    def events(self, after: int, bytes_max: int) -> tuple[list[tuple[int, bytes]], bool]:  # noqa: ARG002
        """None."""
        return [], True

    def events_bytes(self) -> int:
        """Nothing."""
        return 0

    def fileno(self) -> int:
        """There is nothing to wait for."""
        return -1

    def collect(self) -> int:
        """See the contract."""
        return self._ticket

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:  # noqa: ARG002
        """No records."""
        return iter(())

    def names(self) -> Iterable[bytes]:
        """See the contract."""
        return list(self._indexes)

    def messages_at(self, positions: Iterable[int]) -> dict[int, Message]:
        """See the contract: found by looking through all indexes, for tests."""
        found: dict[int, Message] = {}
        for position in positions:
            for index in self._indexes.values():
                found.update((at, each) for at, each in index.read(position - 1, 0).items() if at == position)
        return found

    def read(self, index: bytes, after: int, bytes_max: int) -> Batch:
        """See the contract."""
        return self._indexes.get(index, self._nothing).read(after, bytes_max)

    def backlog(self, index: bytes, after: int) -> tuple[int, int]:
        """See the contract."""
        return self._indexes.get(index, self._nothing).backlog(after)

    def position_of_last(self, index: bytes, messages: int, bytes_max: int) -> int:
        """See the contract."""
        return self._indexes.get(index, self._nothing).position_of_last(messages, bytes_max)

    def trim(self, index: bytes, up_to: int) -> None:
        """See the contract."""
        held = self._indexes.get(index)
        if held is not None:
            self._without(held)
            held.trim(up_to)
            self._with(held)

    def drop(self, index: bytes, after: int, up_to: int) -> None:
        """See the contract."""
        held = self._indexes.get(index)
        if held is not None:
            self._without(held)
            held.drop(after, up_to)
            self._with(held)

    def forget(self, index: bytes) -> None:
        """See the contract."""
        held = self._indexes.pop(index, None)
        if held is not None:
            self._without(held)

    def held(self) -> tuple[int, int]:
        """See the contract."""
        return self._messages, self._bytes

    def reads(self) -> tuple[int, int, int]:
        """See the contract: nothing is anywhere else."""
        return 0, 0, 0

    def messages_held(self) -> int:
        """Index entries in all, counted anew: for tests."""
        return sum(len(index) for index in self._indexes.values())

    def _without(self, index: Index) -> None:
        messages, size = index.backlog(0)
        self._messages -= messages
        self._bytes -= size

    def _with(self, index: Index) -> None:
        messages, size = index.backlog(0)
        self._messages += messages
        self._bytes += size

    def close(self) -> None:
        """Nothing to let go of."""

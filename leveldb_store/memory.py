"""The store without a disk: the same contract, in memory. Its contents are lost with its worker.

A message is held once, by reference, however many indexes list it; it is freed when the last index, window and outbox
that needs it has released it.
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
        """Implements Store."""
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
        """Do nothing: there is no archive."""

    def put(self, key: bytes, value: bytes) -> None:
        """Do nothing: records repeat what the worker has in memory anyway."""

    def delete(self, key: bytes) -> None:
        """Do nothing, as `put`."""

    def flush(self, sync: bool = True) -> int:  # noqa: ARG002
        """Implements Store."""
        if self._gathered:
            self._gathered = False
            self._ticket += 1
        return self._ticket

    def carry(self, counters: Callable[[], bytes]) -> None:
        """Do nothing, as `put`."""

    def record(self, number: int, event: bytes) -> None:
        """Do nothing: events are not kept."""

    def pass_on(self) -> None:
        """Do nothing, as `record`."""

    @property
    def last_event(self) -> int:
        """Return 0: there are no events."""
        return 0

    def events(self, after: int, bytes_max: int) -> tuple[list[tuple[int, bytes]], bool]:  # noqa: ARG002
        """Return no events."""
        return [], True

    def events_bytes(self) -> int:
        """Return 0."""
        return 0

    def gather(self) -> Callable[[], None]:
        """Return a function that does nothing."""
        return lambda: None

    def fileno(self) -> int:
        """Return -1: there is nothing to wait for."""
        return -1

    def collect(self) -> int:
        """Implements Store."""
        return self._ticket

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:  # noqa: ARG002
        """Yield no records."""
        return iter(())

    def names(self) -> Iterable[bytes]:
        """Implements Store."""
        return list(self._indexes)

    def messages_at(self, positions: Iterable[int]) -> dict[int, Message]:
        """Implements Store: searches all indexes, for tests."""
        found: dict[int, Message] = {}
        for position in positions:
            for index in self._indexes.values():
                found.update((at, each) for at, each in index.read(position - 1, 0).items() if at == position)
        return found

    def read(self, index: bytes, after: int, bytes_max: int) -> Batch:
        """Implements Store."""
        return self._indexes.get(index, self._nothing).read(after, bytes_max)

    def backlog(self, index: bytes, after: int) -> tuple[int, int]:
        """Implements Store."""
        return self._indexes.get(index, self._nothing).backlog(after)

    def position_of_last(self, index: bytes, messages: int, bytes_max: int) -> int:
        """Implements Store."""
        return self._indexes.get(index, self._nothing).position_of_last(messages, bytes_max)

    def trim(self, index: bytes, up_to: int) -> None:
        """Implements Store."""
        held = self._indexes.get(index)
        if held is not None:
            self._without(held)
            held.trim(up_to)
            self._with(held)

    def drop(self, index: bytes, after: int, up_to: int) -> None:
        """Implements Store."""
        held = self._indexes.get(index)
        if held is not None:
            self._without(held)
            held.drop(after, up_to)
            self._with(held)

    def forget(self, index: bytes) -> None:
        """Implements Store."""
        held = self._indexes.pop(index, None)
        if held is not None:
            self._without(held)

    def held(self) -> tuple[int, int]:
        """Implements Store."""
        return self._messages, self._bytes

    def reads(self) -> tuple[int, int, int]:
        """Implements Store: all messages are in memory."""
        return 0, 0, 0

    def messages_held(self) -> int:
        """Return the number of all index entries, counted anew: for tests."""
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
        """Do nothing: there is nothing to close."""

"""A store that survives a crash, without a disk: `leveldb_store.contract.Store` with its batches in a list.

The operations between two calls of `flush` are a batch; `durable` is the last batch on the simulated disk. `sync`
advances it. `after_crash` returns the store that the next worker finds: the batches up to `durable` only. Reads come
from memory at once, durable or not, like those of the real store.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

from leveldb_store.memory import MemoryStore
from pyx.protocol.message import Message
from pyx.storage.records import Batch, Block, Index
from tests.kept_archive import KeptArchive

__all__ = ["KeptStore"]

_Operation = Callable[["KeptStore"], None]


class KeptStore(MemoryStore):
    """The store. `manual`: nothing is durable until `sync`; else every batch is with the next `collect`."""

    immediate = False
    keeps = True

    def __init__(self, manual: bool = False, archive: KeptArchive | None = None) -> None:
        super().__init__()
        self.manual = manual
        self.archive = self.kept_archive = archive
        self.failed: str | None = None
        self.little_room: str | None = None
        self.records: dict[bytes, bytes] = {}
        """State records as of the last durable ticket."""
        self.durable = 0
        self.unwritten_bytes = 0
        """Counts records, not the log."""
        self.batches: list[list[_Operation]] = []
        self._found: list[_Operation] = []
        """Operations that restore the log as it was at the start of this store."""
        self._batch: list[_Operation] = []
        self._at: dict[int, Message] = {}
        self.recorded: list[tuple[int, bytes]] = []
        """Recorded events, unchanged; a crash loses none."""

    # ------------------------------------------------------------ the disk

    @property
    def full(self) -> str | None:  # type: ignore[override]
        """See the contract."""
        return self.failed or self.little_room

    def sync(self, batches: int | None = None) -> int:
        """Make this number of batches durable (None: all); return the highest durable ticket."""
        if self.failed is None:
            until = len(self.batches) if batches is None else min(self.durable + batches, len(self.batches))
            for batch in self.batches[self.durable : until]:
                for operation in batch:
                    if isinstance(operation, _Record | _Archived):
                        operation(self)
                    if isinstance(operation, _Record):
                        self.unwritten_bytes -= operation.size
            self.durable = until
        return self.durable

    def after_crash(self, manual: bool | None = None) -> KeptStore:
        """Return the store that is found after a SIGKILL or a power cut: its durable content."""
        archive = self.kept_archive.after_crash() if self.kept_archive is not None else None
        after = KeptStore(self.manual if manual is None else manual, archive)
        after.records = dict(self.records)
        after.recorded = self.recorded
        for operation in itertools.chain(self._found, *self.batches[: self.durable]):
            if not isinstance(operation, _Record | _Archived):
                operation(after)
        # for the next crash, everything until now becomes one operation
        after._at.clear()
        parts = [(name, batch) for name in after._indexes for batch in after._read_all(name)]
        for _, batch in parts:
            after._at.update(batch.items())
        after._found = [_Appended(parts, after.last_position)]
        return after

    def _read_all(self, name: bytes) -> Iterator[Batch]:
        reached = 0
        while batch := self.read(name, reached, 1 << 62):
            yield batch
            reached = batch.last

    # ------------------------------------------------------------ the contract

    def append(self, block: Block, most: int = 0) -> int:
        """See the contract."""
        parts = [(name, batch) for name, batch in block.batches(most)]
        last = block.first + block.count - 1
        self._do(_Appended(parts, last))
        return len(self.batches) + 1

    def append_archived(self) -> None:
        """See the contract."""
        if self.kept_archive is not None:
            self._batch.append(_Archived(self.kept_archive.take()))

    def put(self, key: bytes, value: bytes) -> None:
        """See the contract."""
        self._record(_Record(key, value))

    def delete(self, key: bytes) -> None:
        """See the contract."""
        self._record(_Record(key, None))

    def _record(self, record: _Record) -> None:
        self._batch.append(record)
        self.unwritten_bytes += record.size

    def flush(self, sync: bool = True) -> int:  # noqa: ARG002
        """See the contract."""
        if self._batch:
            self.batches.append(self._batch)
            self._batch = []
        return len(self.batches)

    def record(self, number: int, event: bytes) -> None:
        """See the contract."""
        self.recorded.append((number, event))

    @property
    def last_event(self) -> int:
        """See the contract."""
        return self.recorded[-1][0] if self.recorded else 0

    def events(self, after: int, bytes_max: int) -> tuple[list[tuple[int, bytes]], bool]:  # noqa: ARG002
        """See the contract."""
        return [(number, bytes(8) + event) for number, event in self.recorded if number > after], True

    def collect(self) -> int:
        """See the contract."""
        return self.sync(0 if self.manual else None)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See the contract."""
        return iter(sorted((key, value) for key, value in self.records.items() if key.startswith(prefix)))

    def names(self) -> Iterable[bytes]:
        """See the contract."""
        return [name for name, index in self._indexes.items() if len(index)]

    def messages_at(self, positions: Iterable[int]) -> dict[int, Message]:
        """See the contract."""
        return {position: self._at[position] for position in positions if position in self._at}

    def trim(self, index: bytes, up_to: int) -> None:
        """See the contract."""
        self._do(lambda store: MemoryStore.trim(store, index, up_to))

    def drop(self, index: bytes, after: int, up_to: int) -> None:
        """See the contract."""
        self._do(lambda store: MemoryStore.drop(store, index, after, up_to))

    def forget(self, index: bytes) -> None:
        """See the contract."""
        self._do(lambda store: MemoryStore.forget(store, index))

    def _do(self, operation: _Operation) -> None:
        operation(self)
        self._batch.append(operation)

    def appended(self, parts: list[tuple[bytes, Batch]], last: int) -> None:
        """Make an appended block readable."""
        for name, batch in parts:
            index = self._indexes.setdefault(name, Index())
            before = index.total_bytes
            index.extend(batch)
            self._messages += batch.count
            self._bytes += index.total_bytes - before
            self._at.update(batch.items())
        self.last_position = max(self.last_position, last)


class _Record:
    """The operation that puts a state record, or deletes it (None)."""

    def __init__(self, key: bytes, value: bytes | None) -> None:
        self._key = key
        self._value = value

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self._key) + len(self._value or b"")

    def __call__(self, store: KeptStore) -> None:
        if self._value is None:
            store.records.pop(self._key, None)
        else:
            store.records[self._key] = self._value


class _Appended:
    """The operation that appends a block."""

    def __init__(self, parts: list[tuple[bytes, Batch]], last: int) -> None:
        self._parts = parts
        self._last = last

    def __call__(self, store: KeptStore) -> None:
        store.appended(self._parts, self._last)


class _Archived:
    """The operation that archives messages: they are readable once it is durable."""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages

    def __call__(self, store: KeptStore) -> None:
        assert store.kept_archive is not None
        store.kept_archive.wrote(self._messages)

"""The contract of stores: the interface between the router and a store.

Each tick the router gathers the messages that some session cannot take at once into one block and appends it. Sessions
that are behind read from an index (one per Topic Filter, or one of their own) from the position they have reached.
Positions are arrival positions: 64 bits, rising by one per logged message, given out by the router. Beside the log a
store keeps *state records*: sessions, subscriptions, windows, retained messages, wills (keys and values:
`leveldb_store.format.schema`). All calls are per batch; no store is ever called per message.

Everything appended, put and deleted between two calls of `flush` is one batch: after a crash it exists completely or
not at all, and no batch exists without all before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyx.protocol.message import Message
from pyx.storage.records import Batch, Block

if TYPE_CHECKING:
    from pyx.storage.archive import Archiver


class StoreError(Exception):
    """A store cannot be opened or read: one line with the store and the cause."""


class DamagedStoreError(StoreError):
    """The disk does not return what was written: the store needs a repair."""


class FallenBehind(Exception):
    """The next messages of an archive's reader are missing, up to and including number `earliest`: retention has
    removed them, or they are unreadable (`is_damage`).
    """

    def __init__(self, earliest: int, is_damage: bool = False) -> None:
        super().__init__(f"the archive begins behind number {earliest}")
        self.earliest = earliest
        self.is_damage = is_damage


class Page(NamedTuple):
    """One page for a reader of the archive."""

    messages: list[Message]
    """Numbers rise, over all rules and origins; each has its publisher's client id."""
    up_to: int
    """All matching messages with a number up to this one are in this page and those before it."""
    is_end: bool
    """Whether nothing durable is behind it."""


class Archive(Protocol):
    """The archived messages of a worker, by number (microseconds << 8 | worker)."""

    @property
    def epoch(self) -> str:
        """Epoch of the archive: made with the data directory, kept by restart and repartition."""

    @property
    def archiver(self) -> Archiver:
        """Gathers messages to archive; `Store.append_archived` takes them from there."""

    @property
    def highest(self) -> int:
        """The highest number at the start: new messages have higher numbers."""

    @property
    def last(self) -> int:
        """All messages archived here with a number up to this one are durable."""

    @property
    def is_settled(self) -> bool:
        """Whether all archived messages are durable."""

    @property
    def held_bytes(self) -> int:
        """Size of its blocks."""

    @property
    def removed(self) -> tuple[int, int]:
        """(messages, bytes) that retention has removed since the start."""

    def covers(self, topic_filter: bytes) -> bool:
        """Return whether every topic of the filter is archived by one rule of the configuration."""

    def start(self, topic_filter: bytes) -> int:
        """Return the highest number of a removed message that this filter may match; 0: nothing was removed."""

    def read(self, topic_filters: Sequence[bytes], after: int, bytes_max: int, with_gaps: bool = False) -> Page:
        """Return the durable messages behind number `after` that match one of the filters. Blocks of about `bytes_max`
        are read, one at least. Raises FallenBehind when `after` is before `start` of a filter, or the messages after it
        are unreadable; not `with_gaps`: then the existing messages are returned, unless this page finds that more is
        unreadable than was known. (Messages may exist before `start` when not all workers had to remove equally much,
        and their archives are in one store after a repartition.)
        """

    def watch(self, is_watched: bool) -> None:
        """Set whether topics that become durable from now on are noted."""

    def noted(self, after: int) -> list[tuple[int, bytes]] | None:
        """Return for each commit that became durable behind number `after` its last number and a summary of its topics
        (`pyx.delivery.archived.may_match`). None: unknown.
        """


class Store(Protocol):
    """A log with indexes, and state records. Called by one thread; no call waits for an fsync."""

    @property
    def immediate(self) -> bool:
        """True: appended data is already as safe as this store makes it (no disk): acks wait for no ticket."""

    @property
    def keeps(self) -> bool:
        """True: stored data outlives the worker: state and messages for connected lasting sessions are stored."""

    @property
    def unread(self) -> Sequence[tuple[bytes, bytes, str]]:
        """(key, value, error) of records about the log that could not be read when the store was opened."""

    @property
    def last_position(self) -> int:
        """The highest position this store has ever had: the router continues behind it."""

    @property
    def archive(self) -> Archive | None:
        """The archive; None without a disk."""

    @property
    def failed(self) -> str | None:
        """The error of the disk and its time, None = no error. Until it is None again no ticket becomes durable;
        flushed batches are tried again.
        """

    @property
    def full(self) -> str | None:
        """Why no new message should be stored at present: `failed`, or little room left, which deletions and state
        records need. Batches flushed all the same are written as long as there is room.
        """

    @property
    def unwritten_bytes(self) -> int:
        """Bytes of keys and values that were put here and are not written yet: what the store needs memory for."""

    def append(self, block: Block, most: int = 0) -> int:
        """Add the records of one tick to the open batch; readable at once. Return the ticket that `flush` will return
        for this batch.

        `most`: for a sealed block, the number of its indexes to add (0: all that are left). Until none is left the
        block is not read, no other block is appended and the batch is not flushed.
        """

    def append_archived(self) -> None:
        """Add the messages gathered by the archive to the open batch."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set a state record, in the open batch. `scan` and `get` may see it before it is durable."""

    def delete(self, key: bytes) -> None:
        """Delete a state record, in the open batch; a missing one is no error."""

    def flush(self, sync: bool = True) -> int:
        """Close the batch and have it written. Return its ticket, rising by 1. Without a batch: the last ticket.

        Not `sync`: it counts as durable when the operating system has it (as everything does in a store opened without
        fsync); a power cut may lose it, but not those behind it.
        """

    def carry(self, counters: Callable[[], bytes]) -> None:
        """Store `counters()` with each batch that `flush` closes, as the record `schema.COUNTERS`."""

    def record(self, number: int, event: bytes) -> None:
        """Add an event (`leveldb_store.format.events`); numbers rise. It is written with the next batch and does not
        open one.
        """

    def pass_on(self) -> None:
        """Have events written that no batch has included. Nobody waits for them."""

    @property
    def last_event(self) -> int:
        """The highest number of an event that this store has ever had; 0: none."""

    def events(self, after: int, bytes_max: int) -> tuple[list[tuple[int, bytes]], bool]:
        """Return (number, value) of written events behind number `after`, oldest first: one if there is one, then up to
        `bytes_max`; and whether there are no more.
        """

    def events_bytes(self) -> int:
        """Return the size of all events, keys and values."""

    def gather(self) -> Callable[[], None]:
        """Write nothing any more before the returned function is called: when a round has sent its output, so that the
        writer's thread and the loop's do not need the interpreter at once.
        """

    def fileno(self) -> int:
        """Return the descriptor that is readable when tickets became durable, or `failed` or `full` changed; -1 = never
        (`immediate`).
        """

    def collect(self) -> int:
        """Return the highest durable ticket, and make `fileno` unreadable."""

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield state records with this prefix, by key, as at the last durable ticket. For start-up and tools."""

    def names(self) -> Iterable[bytes]:
        """Return the names of indexes that hold messages or did lately: for start-up."""

    def messages_at(self, positions: Iterable[int]) -> dict[int, Message]:
        """Return the messages with these positions, which rise, as far as an index holds something of their blocks: for
        start-up. Each block is read once.
        """

    def read(self, index: bytes, after: int, bytes_max: int) -> Batch:
        """Return an index's messages behind `after`, oldest first: one if there is one, then up to `bytes_max`.

        The batch must not be changed: readers of the same part share it.
        """

    def backlog(self, index: bytes, after: int) -> tuple[int, int]:
        """Return (messages, bytes) of an index behind position `after`."""

    def position_of_last(self, index: bytes, messages: int, bytes_max: int) -> int:
        """Return the lowest position behind which an index holds at most `messages` messages and `bytes_max` bytes."""

    def trim(self, index: bytes, up_to: int) -> None:
        """Release the index's entries at or before `up_to`, which are not needed any more."""

    def drop(self, index: bytes, after: int, up_to: int) -> None:
        """Release the index's entries behind `after` up to and including `up_to`. If there are thousands of separate
        released parts, this one may be kept until it is trimmed.
        """

    def forget(self, index: bytes) -> None:
        """Release the whole index."""

    def held(self) -> tuple[int, int]:
        """Return (entries, bytes) of all indexes; a message that several of them list counts for each."""

    def reads(self) -> tuple[int, int, int]:
        """Return (blocks read back, batches not read because another reader had just read them, unreadable blocks,
        which are left out), since the start.
        """

    def close(self) -> None:
        """Write everything that was flushed and close the store."""

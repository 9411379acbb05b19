"""What a store promises the router.

The router gathers what somebody cannot take at once into one block per tick and appends it. Sessions that are behind
read from an index (one per Topic Filter, or one of their own) from the position they have reached. Positions are
arrival positions: 64 bits, rising by one per logged message, given by the router. Beside the log a store keeps *state
records*: sessions, subscriptions, windows, retained messages, wills (keys and values: `leveldb_store.format.schema`).
The contract is in batches; no store is ever called per message.

What is appended, put and deleted between two `flush` is one batch: after a crash all of it is there, or nothing, and no
batch is there without all before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyx.protocol.message import Message
from pyx.storage.records import Batch, Block

if TYPE_CHECKING:
    from pyx.storage.archive import Archiver


class StoreError(Exception):
    """A store cannot be opened or read: one line that says which one and why."""


class DamagedStoreError(StoreError):
    """What the disk returns is not what was written there: the store wants a repair."""


class FallenBehind(Exception):
    """What a reader of the archive should get next is gone, up to and with number `earliest`: retention has removed it,
    or it cannot be read (`is_damage`).
    """

    def __init__(self, earliest: int, is_damage: bool = False) -> None:
        super().__init__(f"the archive begins behind number {earliest}")
        self.earliest = earliest
        self.is_damage = is_damage


class Page(NamedTuple):
    """What a reader of the archive gets at once."""

    messages: list[Message]
    """Numbers rising, over all rules and origins; each has its publisher's client id."""
    up_to: int
    """Everything at or before this number that matches has been given, by this page and those before it."""
    is_end: bool
    """Nothing durable lies behind it."""


class Archive(Protocol):
    """What a worker has archived, by number (microseconds << 8 | worker)."""

    @property
    def epoch(self) -> str:
        """Of the archive: made with the data directory, kept by restart and repartition."""

    @property
    def archiver(self) -> Archiver:
        """Gathers what is archived; `Store.append_archived` takes it from there."""

    @property
    def highest(self) -> int:
        """The highest number there was at the start: those of new messages lie above it."""

    @property
    def last(self) -> int:
        """Everything that was archived here and has a number up to this one is durable."""

    @property
    def is_settled(self) -> bool:
        """Whether all that was archived is durable."""

    @property
    def held_bytes(self) -> int:
        """Bytes of blocks."""

    @property
    def removed(self) -> tuple[int, int]:
        """(messages, bytes) that retention has removed since the start."""

    def covers(self, topic_filter: bytes) -> bool:
        """Whether every topic of the filter is archived by one rule of the configuration."""

    def start(self, topic_filter: bytes) -> int:
        """The highest number that retention has removed of what this filter may match; 0: nothing."""

    def read(self, topic_filters: Sequence[bytes], after: int, bytes_max: int, with_gaps: bool = False) -> Page:
        """What matches one of the filters and lies behind number `after`, as far as it is durable. Blocks of about
        `bytes_max` are read, one at least. Raises FallenBehind when `after` lies before `start` of a filter, or what
        follows `after` cannot be read; not `with_gaps`: then what is there is given, unless this page shows that more
        cannot be read than was known. (Before `start` there is something when not all workers had to remove equally
        much, and their archives lie in one store since a repartition.)
        """

    def watch(self, is_watched: bool) -> None:
        """Whether it is to be noted which topics become durable from now on."""

    def noted(self, after: int) -> list[tuple[int, bytes]] | None:
        """Of all that became durable behind number `after`, commit by commit: the last number and a summary of the
        topics (`pyx.delivery.archived.may_match`). None: that is not known.
        """


class Store(Protocol):
    """A log with indexes, and state records. One thread calls it; nothing here waits for a disk's fsync."""

    @property
    def immediate(self) -> bool:
        """True: what `append` took is as safe as this store will ever make it (no disk): acks wait for no ticket."""

    @property
    def keeps(self) -> bool:
        """True: what is stored outlives the worker: connected durable sessions are logged for, state is recorded."""

    @property
    def unread(self) -> Sequence[tuple[bytes, bytes, str]]:
        """(key, value, what is wrong) of records about the log that could not be read when the store was opened."""

    @property
    def last_position(self) -> int:
        """The highest position this store has ever seen: the router goes on behind it."""

    @property
    def archive(self) -> Archive | None:
        """The archive; None: there is none without a disk."""

    @property
    def failed(self) -> str | None:
        """What the disk refuses and since when, None = nothing. Until it is None again no ticket becomes durable; what
        was flushed is tried again.
        """

    @property
    def full(self) -> str | None:
        """Why no new message should be stored at present: `failed`, or there is little room left, which deletions and
        state records need. What is flushed all the same is written as long as there is room.
        """

    @property
    def unwritten_bytes(self) -> int:
        """Bytes of keys and values that were put here and are not written yet: what the store needs memory for."""

    def append(self, block: Block, most: int = 0) -> int:
        """Take the records of one tick into the batch that is being gathered; readable at once. Returns the ticket
        that `flush` will return for this batch.

        `most`: of a block that is sealed so many of its indexes (0: all that are left). Until none is left nothing is
        read of it, no other block is appended and the batch is not flushed.
        """

    def append_archived(self) -> None:
        """Take what the archive has gathered into the batch that is being gathered."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set a state record, in the batch that is being gathered. `scan` and `get` may see it before it is durable."""

    def delete(self, key: bytes) -> None:
        """Delete a state record, in the batch that is being gathered; one that is not there is no error."""

    def flush(self, sync: bool = True) -> int:
        """Close the batch and have it written. Returns its ticket, rising by 1. Without a batch: the last ticket.

        Not `sync`: it is durable when the operating system has it (as everything is in a store that was opened without
        fsync); it may be lost in a power cut, and those behind it not.
        """

    def carry(self, moment: Callable[[], bytes]) -> None:
        """Each batch that `flush` closes carries what `moment` says then, as the record `schema.COUNTERS`."""

    def record(self, number: int, event: bytes) -> None:
        """Add an event (`leveldb_store.format.events`); numbers rise. It goes with the next batch and is no reason for
        one.
        """

    def pass_on(self) -> None:
        """Have the events written that no batch has taken along. Nobody waits for them."""

    @property
    def last_event(self) -> int:
        """The highest number of an event that this store has ever seen; 0: none."""

    def events(self, after: int, bytes_max: int) -> tuple[list[tuple[int, bytes]], bool]:
        """(number, value) of events behind number `after` that are written, oldest first: one if there is one, then up
        to `bytes_max`; and whether there are no more.
        """

    def events_bytes(self) -> int:
        """What the events hold, keys and values."""

    def fileno(self) -> int:
        """Becomes readable when tickets have become durable, or `failed` or `full` change; -1 = never (`immediate`)."""

    def collect(self) -> int:
        """The highest ticket that is durable; `fileno` is not readable any more."""

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """State records whose keys begin so, rising by key, as at the last durable ticket. For start-up and tools."""

    def names(self) -> Iterable[bytes]:
        """Names of the indexes that hold something or did lately: for start-up."""

    def messages_at(self, positions: Iterable[int]) -> dict[int, Message]:
        """The messages with these positions, rising, as far as an index holds something of their blocks: for start-up.
        Each block is read once.
        """

    def read(self, index: bytes, after: int, bytes_max: int) -> Batch:
        """Messages of an index behind position `after`, oldest first: one if there is one, then up to `bytes_max`.

        Nobody changes the batch: readers of the same part get the same one.
        """

    def backlog(self, index: bytes, after: int) -> tuple[int, int]:
        """(messages, bytes) of an index behind position `after`."""

    def position_of_last(self, index: bytes, messages: int, bytes_max: int) -> int:
        """The lowest position behind which an index holds at most `messages` messages and `bytes_max` bytes."""

    def trim(self, index: bytes, up_to: int) -> None:
        """Nobody needs the index's entries at or before `up_to` any more."""

    def drop(self, index: bytes, after: int, up_to: int) -> None:
        """Nobody needs the index's entries behind `after` up to and with `up_to` any more. Where thousands of such
        parts lie apart, this one may be kept until it is trimmed.
        """

    def forget(self, index: bytes) -> None:
        """Nobody needs the index any more."""

    def held(self) -> tuple[int, int]:
        """(entries, bytes) of all indexes; a message that several of them list counts for each."""

    def reads(self) -> tuple[int, int, int]:
        """(blocks that were read back, batches that were not read because somebody had just read them, blocks that
        cannot be read: what they had is left out), since the start.
        """

    def close(self) -> None:
        """Write what was flushed and let go of the store."""

"""Reading a log from the disk: parts of an index by position, running counts, batches.

Positions that were removed are never searched among the deleted keys, which LevelDB would walk over one by one: a
search begins at the first part that was not deleted. Recently read data is cached, within bounds: sessions that return
together to the same place of the same index get the same batch, those of other indexes the same messages. A batch ends
when it has touched half of the blocks that can be cached: so sessions that share blocks, each with a few messages of
its own in them, stay close to each other, and each block is read once for all. Only the requested messages of a block
are created.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, Self, TypeVar

import plyvel

from leveldb_store.contract import DamagedStoreError, StoreError
from leveldb_store.engine.database import Database, error_text
from leveldb_store.format import schema
from pyx.core.work import BLOCK_READ, SOUGHT, spend
from pyx.delivery.router import expiry_offset
from pyx.protocol.message import Message
from pyx.storage.records import Batch
from pyx.storage.stored import Gathering, Stored, block_messages, content_size, part_ends, part_running, unpack_block

BLOCKS_BYTES_MAX: Final = 8 << 20  # cached blocks, with the messages created from them
# Blocks in one batch, and their bytes. The loop waits for them. The limit also keeps sessions that return together
# close to each other: were only blocks from the disk counted, each session would continue where the one before has read
# to, and find nothing in the cache
BLOCKS_MAX: Final = 128
TOUCHED_BYTES_MAX: Final = BLOCKS_BYTES_MAX // 2
BATCHES_BYTES_MAX: Final = 8 << 20  # cached batches (their messages are mostly those of the blocks)
MESSAGE_BYTES: Final = 160  # size of a message in addition to its content
RUNNING_MAX: Final = 65_536  # cached running counts

BLOCKS_END: Final = schema.prefix_end(schema.BLOCK)

P = ParamSpec("P")
T = TypeVar("T")


def _refused(read: Callable[Concatenate[Reader, P], T]) -> Callable[Concatenate[Reader, P], T]:
    """Turn an error of LevelDB into a StoreError: this is the only place where its errors enter."""

    @functools.wraps(read)
    def reading(reader: Reader, /, *args: P.args, **keywords: P.kwargs) -> T:
        try:
            return read(reader, *args, **keywords)
        except plyvel.CorruptionError as error:
            raise DamagedStoreError(error_text(error)) from error
        except (plyvel.Error, ValueError) as error:
            raise StoreError(f"the store {reader.path} cannot be read: {error_text(error)}") from error

    return reading


_NO_BLOCK: Final = (schema.block_key(0), b"")


def _step_back(records: plyvel.Iterator) -> tuple[bytes, bytes]:
    # returns the record before the iterator's place; the next one is the record that follows it
    try:
        found: tuple[bytes, bytes] = records.prev()
    except StopIteration:
        return _NO_BLOCK
    if not found[0].startswith(schema.BLOCK):
        # plyvel steps back beyond the beginning of the requested range
        return _NO_BLOCK
    next(records)
    return found


class LogBlocks:
    """Blocks read in rising order: the one that follows the last is not searched for."""

    def __init__(self, db: plyvel.Snapshot) -> None:
        self._db = db
        self._iterator: plyvel.Iterator | None = None
        self._follows = 0  # position behind the last block

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._iterator is not None:
            self._iterator.close()

    def value(self, position: int) -> bytes | None:
        """Return the block that begins at this position, or None."""
        wanted = schema.block_key(position)
        if self._iterator is None:
            self._iterator = self._db.iterator(start=wanted, stop=BLOCKS_END, verify_checksums=True, fill_cache=False)
        elif position != self._follows:
            self._iterator.seek(wanted)
        key, value = next(self._iterator, (None, None))
        if key != wanted or value is None:
            self._follows = 0
            return None
        self._follows = position + block_messages(value)
        found: bytes = value
        return found


class Reader:
    """Reads blocks and parts of one database. Used by one thread."""

    def __init__(self, database: Database, deleted_up_to: dict[int, int], say: Callable[[str], None]) -> None:
        self.blocks_read = 0
        self.batches_shared = 0
        self._left_out: set[int | bytes] = set()
        self._database = database
        self._deleted_up_to = deleted_up_to
        self._say = say
        self._blocks: OrderedDict[int, Stored] = OrderedDict()
        self._blocks_bytes = 0
        self._batches: OrderedDict[tuple[int, int, int], tuple[Batch, int, int, int]] = OrderedDict()
        self._batches_bytes = 0
        self._running: dict[tuple[int, int], tuple[int, int] | None] = {}

    @property
    def blocks_left_out(self) -> int:
        """Return the number of unreadable blocks and parts of indexes."""
        return len(self._left_out)

    @property
    def path(self) -> Path:
        """Return the path of the store."""
        return self._database.path

    @_refused
    def running(self, number: int, position: int) -> tuple[int, int] | None:
        """Return (messages, bytes) of an index up to and including `position`, from its last part at or before that;
        None: no part begins so early.
        """
        key = (number, position)
        if key in self._running:
            return self._running[key]
        spend(2 * SOUGHT)
        with self._database.lock, self._database.db.snapshot() as now:
            found = self._part_at(now, number, position)
        counts = None if found is None else part_running(found[1], found[0], position)
        if len(self._running) >= RUNNING_MAX:
            self._running.clear()
        self._running[key] = counts
        return counts

    @_refused
    def first_part(self, number: int, after: int) -> tuple[int, bytes] | None:
        """Return (first position, value) of the first part that begins behind `after`."""
        spend(SOUGHT)
        with self._database.lock, self._parts(self._database.db, number, after + 1) as parts:
            return self._whole(parts)

    @_refused
    def last_part(self, number: int) -> tuple[int, bytes] | None:
        """Return (first position, value) of the index's last part."""
        spend(SOUGHT)
        with (
            self._database.lock,
            self._database.db.iterator(
                start=schema.part_key(number, 0),
                stop=schema.part_key(number + 1, 0),
                reverse=True,
                verify_checksums=True,
            ) as parts,
        ):
            return self._whole(parts)

    @_refused
    def batch(self, number: int, after: int, up_to: int, bytes_max: int, last: int) -> tuple[Batch, int]:
        """Return messages of an index behind `after` up to and including `up_to`: one if there is one, then up to
        `bytes_max`; and the position up to which they are complete.

        `last`: the index's last position; the batch is truncated if it ends before. Unreadable messages are left out.
        """
        key = (number, after, bytes_max)
        kept = self._batches.get(key)
        if kept is not None and (kept[0].truncated or kept[2] == last):
            self._batches.move_to_end(key)
            self.batches_shared += 1
            return kept[0], kept[1]
        gathering = Gathering()
        reached = after
        spend(2 * SOUGHT)
        room, room_bytes = BLOCKS_MAX, TOUCHED_BYTES_MAX
        # parts and blocks at one moment: the writer deletes both, in one batch
        with self._database.lock, self._database.db.snapshot() as now:
            found = self._part_at(now, number, after)
            begin = after + 1 if found is None else found[0]
            with self._parts(now, number, begin) as parts, LogBlocks(now) as blocks:
                for part_key, value in parts:
                    spend(SOUGHT // 4)
                    first = schema.key_position(part_key)
                    if first > up_to or room == 0 or room_bytes <= 0:
                        break
                    if not self._is_whole(part_key, value):
                        reached = max(reached, first)
                        continue
                    end, position, _ = part_ends(value, first)
                    if end <= after:
                        continue
                    block = self._block(position, blocks)
                    if block is not None:
                        size = block.held_bytes
                        try:
                            is_all = gathering.add(value, first, block, after, bytes_max)
                        except ValueError as error:  # it has a position that is not in its block
                            self._leave_out_part(part_key, error)
                            is_all = True
                        self._blocks_bytes += block.held_bytes - size
                        room -= 1
                        room_bytes -= size
                        if not is_all:
                            reached = gathering.last
                            break
                    reached = end
        batch = gathering.finish(reached < last)
        if batch.count:  # an empty one only shows that there was nothing up to `up_to`
            self._keep_batch(key, batch, reached, last)
        return batch, reached

    @_refused
    def messages(self, positions: Iterable[int]) -> dict[int, Message]:
        """Return the messages at these rising positions; each block is read once. Unreadable ones are left out."""
        found: dict[int, Message] = {}
        follows = first = count = 0  # position behind the last block read; its first position and count
        block: Stored | None = None
        with (
            self._database.lock,
            self._database.db.iterator(prefix=schema.BLOCK, verify_checksums=True, fill_cache=False) as blocks,
        ):
            for position in positions:
                if not first <= position < first + count:
                    spend(BLOCK_READ)
                    if position != follows:
                        blocks.seek(schema.block_key(position + 1))
                    key, value = next(blocks, _NO_BLOCK) if position == follows else _step_back(blocks)
                    first = schema.key_position(key)
                    block = self._unpacked(first, value) if first <= position else None
                    count = 0 if block is None else block.count
                    follows = first + count if count else 0
                if block is not None and position < first + count:
                    found[position] = block.message_at(position - first)
        return found

    def _unpacked(self, position: int, value: bytes) -> Stored | None:
        try:
            return unpack_block(value, expiry_offset) if value else None
        except ValueError as error:
            self._leave_out(position, error_text(error))
            return None

    def _parts(self, db: plyvel.DB | plyvel.Snapshot, number: int, position: int) -> plyvel.Iterator:
        return db.iterator(
            start=schema.part_key(number, position), stop=schema.part_key(number + 1, 0), verify_checksums=True
        )

    def _part_at(self, now: plyvel.Snapshot, number: int, position: int) -> tuple[int, bytes] | None:
        # (first position, value) of the last part that begins at or before `position`. The lock is held
        with self._parts(now, number, self._deleted_up_to.get(number, 0) + 1) as parts:
            found = self._whole(parts)
            if found is None or found[0] > position:
                return None
            if part_ends(found[1], found[0])[0] >= position:
                return found
            parts.seek(schema.part_key(number, position + 1))
            key, value = parts.prev()
            while not self._is_whole(key, value):  # not further than that first one
                key, value = parts.prev()
        return schema.key_position(key), value

    def _whole(self, parts: plyvel.Iterator) -> tuple[int, bytes] | None:
        # (first position, value) of the next readable part
        for key, value in parts:
            if self._is_whole(key, value):
                return schema.key_position(key), value
        return None

    def _is_whole(self, key: bytes, value: bytes) -> bool:
        try:
            part_ends(value, schema.key_position(key))
        except ValueError as error:
            self._leave_out_part(key, error)
            return False
        return True

    def _leave_out_part(self, key: bytes, why: ValueError) -> None:
        if key not in self._left_out:
            self._left_out.add(key)
            self._say(
                f"the part of index {schema.key_number(key)} at position {schema.key_position(key)} of the store "
                f"{self._database.path} cannot be read ({why}): it is left out"
            )

    def _block(self, position: int, blocks: LogBlocks) -> Stored | None:
        # all messages of a block; None: it is unreadable, which was reported. The lock is held
        kept = self._blocks.get(position)
        if kept is not None:
            self._blocks.move_to_end(position)
            return kept
        why = "it is missing"
        spend(BLOCK_READ)
        try:
            value = blocks.value(position)
            block = None if value is None else unpack_block(value, expiry_offset)
        except (plyvel.Error, ValueError) as error:
            block, why = None, error_text(error)
        if block is None:
            self._leave_out(position, why)
            return None
        self.blocks_read += 1
        self._blocks[position] = block
        self._blocks_bytes += block.held_bytes
        while self._blocks_bytes > BLOCKS_BYTES_MAX and len(self._blocks) > 1:
            _, gone = self._blocks.popitem(last=False)
            self._blocks_bytes -= gone.held_bytes
        return block

    def _leave_out(self, position: int, why: str) -> None:
        if position in self._left_out:
            return
        self._left_out.add(position)
        self._say(f"block {position} of the store {self._database.path} cannot be read ({why}): it is left out")

    def _keep_batch(self, key: tuple[int, int, int], batch: Batch, reached: int, last: int) -> None:
        before = self._batches.pop(key, None)
        if before is not None:
            self._batches_bytes -= before[3]
        size = content_size(batch) + 2 * MESSAGE_BYTES * (batch.count + 1)
        self._batches[key] = (batch, reached, last, size)
        self._batches_bytes += size
        while self._batches_bytes > BATCHES_BYTES_MAX and len(self._batches) > 1:
            _, (_, _, _, gone) = self._batches.popitem(last=False)
            self._batches_bytes -= gone

"""Retention of the archive: removes messages by age and by bytes, oldest first, rule by rule.

The store's writer does this between commits, a slice at a time. Bytes are those of keys and values of blocks; each
block has the count of bytes before it in its sequence, so the size of a rule is a subtraction, after a restart, too.

A rule that exceeds its size is reduced by a *step* more than necessary, and that step is compacted at once, in
a thread of its own: LevelDB releases disk space where whole tables are deleted, and frequent small compactions would
rewrite the rest of the archive over and over. The limit used is lower than the configured one by a *margin*, for data
that is written and not merged yet. So the archive takes the configured size on the disk, not twice the write buffers
more. A compaction only ends while few new tables arrive: it waits for such a time, and the writer makes one
(`pause`; docs/adr/0025-the-archive.md).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Final

import plyvel

from leveldb_store.archive.ends import ArchiveSurvey, DamageReporter
from leveldb_store.engine.database import Database
from leveldb_store.engine.readable import Readable, readable
from leveldb_store.format import archive_schema as schema
from leveldb_store.format.archive_schema import HIGHEST
from leveldb_store.format.schema import U64, SchemaError

SLICE_BLOCKS: Final = 500  # examined per slice: one to two milliseconds when they are small
SLICE_BYTES: Final = 2 << 20
STEP_SHARE: Final = 32  # a step is this fraction of the rule's size
STEP_BUFFERS: Final = 2  # at least so many write buffers; a smaller one costs more to compact than it releases,
STEP_SHARE_MIN: Final = 16  # ... unless that is more than this fraction of the rule's size
STEP_BYTES_MAX: Final = 256 << 20
COMPACT_BYTES_MIN: Final = 4 << 20  # deleted bytes of one rule; fewer are not worth a compaction
MARGIN_SHARE: Final = 16
MARGIN_BUFFERS: Final = 4  # write buffers
PACE_BYTES_PER_SECOND: Final = 8 << 20  # written while a compaction runs or is due
PACED_COMMIT_BYTES_MAX: Final = 1 << 20  # size of a commit meanwhile
READY_FILES: Final = ((0, 2), (1, 24))  # highest numbers of tables at a level of LevelDB with which a compaction ends
BEHIND_STEPS: Final = 1.25  # deleted and not compacted: beyond it the pace is reduced in proportion,
BEHIND_MAX: Final = 4.0  # ... at most by this factor
PAUSE_SECONDS_MAX: Final = 1.0  # after one commit
LOOK_SECONDS_MAX: Final = 60.0  # between two checks of the age: a hundredth of the age, and not longer than this
LOOK_SECONDS_MIN: Final = 0.5
AGAIN_SECONDS: Final = 60.0  # after an error
LOOKS: Final = 100


class _Kept:
    """A rule, and the messages that it holds."""

    def __init__(self, rule: schema.Rule, buffer: int) -> None:
        self.rule = rule
        least = min(STEP_BUFFERS * buffer, rule.bytes_max // STEP_SHARE_MIN)
        self.step = min(max(rule.bytes_max // STEP_SHARE, least, 1), STEP_BYTES_MAX)
        self.worth = max(self.step, COMPACT_BYTES_MIN)
        """Bytes compacted together."""
        self.most = rule.bytes_max - min(rule.bytes_max // MARGIN_SHARE, MARGIN_BUFFERS * buffer)
        self.target = self.most
        """Bytes to which it is reduced: below `most` while a reduction is in progress."""
        self.ends: dict[int, int] = {}
        """Origin -> running bytes at the end of its sequence."""
        self.begins: dict[int, int] = {}
        """Origin -> running bytes before its first block."""
        self.look_at = 0.0
        self.again_at = 0.0
        """Time of the next check."""
        self.deleted_bytes = 0
        """Bytes deleted since the last compaction, and their numbers."""
        self.deleted_from = HIGHEST
        self.deleted_to = 0
        self.is_broken = False
        """Whether some block cannot be read: a compaction ends there with an error."""

    @property
    def held(self) -> int:
        """Return the bytes that it holds."""
        return sum(self.ends.values()) - sum(self.begins.values())

    def is_over(self) -> bool:
        """Whether it holds more than allowed."""
        held = self.held
        if held > self.most:
            self.target = self.most - self.step
        elif held <= self.target:
            self.target = self.most
        return held > self.target


class Retention:
    """The retention of one store. Used by the writer's thread; others may read `removed`, `held` and the counts."""

    def __init__(
        self,
        database: Database,
        worker: int,
        rules: Sequence[schema.Rule],
        found: ArchiveSurvey,
        reporter: DamageReporter,
    ) -> None:
        self.removed = found.removed
        """(rule, origin) -> the highest number removed. Set here before the removal."""
        self.removed_messages = 0
        self.removed_bytes = 0
        self._database = database
        self._worker = worker
        self._reporter = reporter
        self._kept: dict[int, _Kept] = {}
        self._next = 0.0
        self._wall_behind = time.time() - time.monotonic()
        """In seconds; steps of the clock forward are added, as they are to message numbers, steps back are not."""
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        for rule in rules:
            if rule.place == schema.NOT_CONFIGURED and rule.number not in found.sequences:
                continue
            kept = self._kept[rule.number] = _Kept(rule, database.write_buffer_bytes)
            kept.ends[worker] = kept.begins[worker] = 0
            for held in found.sequences.get(rule.number, ()):
                kept.begins[held.origin], kept.ends[held.origin] = held.bytes_before, held.bytes

    @property
    def held(self) -> int:
        """Return the bytes of all rules."""
        return sum(kept.held for kept in list(self._kept.values()))

    def learn(self, grown: dict[int, int]) -> None:
        """Note that these sequences of our own have grown and are written: running bytes by rule."""
        for number, end in grown.items():
            kept = self._kept[number]
            kept.ends[self._worker] = end
            if kept.is_over():
                self._next = min(self._next, time.monotonic())

    def wait(self, now: float) -> float | None:
        """Return the seconds until `slice` should be called; None: there is no rule."""
        return max(0.0, self._next - now) if self._kept else None

    def slice(self, now: float, written: int) -> plyvel.WriteBatch | None:
        """Return the deletions of one slice, to be written next, or None. Remaining ones are due at once. `written`:
        bytes written with it: at least as many are deleted, so that no more is added than removed.
        """
        batch = None
        self._wall_behind = max(self._wall_behind, time.time() - time.monotonic())
        wall_ms = int((now + self._wall_behind) * 1000)
        for kept in list(self._kept.values()):
            is_over = kept.is_over()
            if now < kept.again_at or (not is_over and now < kept.look_at):
                continue
            if batch is None:
                batch = self._database.db.write_batch()
            try:
                is_all = self._delete(batch, kept, wall_ms, written)
            except plyvel.Error as error:  # a temporary error: no descriptor, no memory
                kept.look_at = kept.again_at = now + AGAIN_SECONDS
                self._reporter(b"", "nothing can be removed, which is tried again every minute", error)
                continue
            if not is_all:
                self._next = now
                return batch
            kept.look_at = now + min(max(kept.rule.age_ms / 1000 / LOOKS, LOOK_SECONDS_MIN), LOOK_SECONDS_MAX)
            if not kept.held and kept.rule.place == schema.NOT_CONFIGURED:
                del self._kept[kept.rule.number]  # `removed` stays: the rule may come back
        self._next = min((kept.look_at for kept in self._kept.values()), default=now)
        return batch if batch is not None and batch.approximate_size() > 12 else None

    def _delete(self, batch: plyvel.WriteBatch, kept: _Kept, wall_ms: int, written: int) -> bool:
        # oldest first over all origins; True: nothing more to delete now
        number = kept.rule.number
        oldest = wall_ms - kept.rule.age_ms
        removed: dict[int, int] = {}
        blocks = size = 0
        is_all = True
        with contextlib.ExitStack() as stack:
            fronts = []
            for origin in kept.ends:
                front = _Front(self._database.db, number, origin, self.removed.get((number, origin), 0), self._reporter)
                stack.callback(front.close)
                fronts.append(front)
                self._begin(kept, front, 0)
            try:
                while True:
                    front = min(fronts, key=lambda each: each.last)
                    if front.last == HIGHEST or (kept.held <= kept.target and schema.unix_ms(front.last) >= oldest):
                        break
                    if size >= max(SLICE_BYTES, 2 * written) or (blocks >= SLICE_BLOCKS and size >= written):
                        is_all = False
                        break
                    blocks += 1
                    size += front.size
                    self.removed_messages += front.head.messages if front.head is not None else 0
                    kept.deleted_from = min(kept.deleted_from, front.last)
                    kept.deleted_to = max(kept.deleted_to, front.last)
                    removed[front.origin] = front.last
                    batch.delete(front.key)
                    passed = front.size
                    front.step()
                    self._begin(kept, front, passed)
            finally:  # also after an error: these deletions are in the batch
                for origin, last in removed.items():
                    self._delete_summaries(batch, number, origin, last)
                    self.removed[number, origin] = last
                    batch.put(schema.removed_key(number, origin), U64.pack(last))
        self.removed_bytes += size
        kept.deleted_bytes += size
        return is_all

    def _delete_summaries(self, batch: plyvel.WriteBatch, number: int, origin: int, last: int) -> None:
        start = schema.summary_key(number, origin, self.removed.get((number, origin), 0))
        for key, _ in readable(self._database.db, start, schema.summary_key(number, origin, last + 1)):
            batch.delete(key)

    def _begin(self, kept: _Kept, front: _Front, passed: int) -> None:
        # `passed`: bytes in front of this block
        begin, end = kept.begins[front.origin], kept.ends[front.origin]
        kept.is_broken |= front.is_broken
        if front.last == HIGHEST:
            kept.begins[front.origin] = end
        elif front.head is not None and begin <= front.head.bytes_before <= end:
            kept.begins[front.origin] = front.head.bytes_before
        else:  # the block or its counts are damaged
            kept.begins[front.origin] = min(begin + passed, end)

    # ------------------------------------------------------------ the disk

    def compact(self, is_urgent: bool) -> None:
        """Release deleted space, if it is worth it and no compaction is running. `is_urgent`: the disk is full. Called
        when the result of `slice` is written.
        """
        due = [
            kept
            for kept in self._kept.values()
            if kept.deleted_bytes >= (COMPACT_BYTES_MIN if is_urgent else kept.worth)
        ]
        if not due or (self._thread is not None and self._thread.is_alive()):
            return
        if not is_urgent and not self._is_ready():
            return
        ranges = []
        for kept in due:
            number = kept.rule.number
            ranges += (
                []
                if kept.is_broken
                else [
                    (
                        schema.block_key(number, origin, kept.deleted_from),
                        schema.block_key(number, origin, kept.deleted_to + 1),
                    )
                    for origin in kept.ends
                ]
            )
            kept.deleted_bytes, kept.deleted_from, kept.deleted_to, kept.is_broken = 0, HIGHEST, 0, False
        self._stop.clear()
        self._thread = threading.Thread(target=self._compact, args=(ranges,), name="archive-compaction", daemon=True)
        self._thread.start()

    def pause(self, written: int) -> float:
        """Return the seconds that the writer should wait after a commit of this size. A compaction includes LevelDB's
        newest tables repeatedly until none has arrived meanwhile, and can begin only when these are few: faster writes
        would prevent it from ever releasing space.
        """
        behind = self._behind()
        if not behind and (self._thread is None or not self._thread.is_alive()):
            return 0.0
        return min(max(behind, 1.0) * written / PACE_BYTES_PER_SECOND, PAUSE_SECONDS_MAX)

    def _behind(self) -> float:
        # the amount waiting for compaction as a multiple of what is allowed; 0: within the limit
        worst = max((kept.deleted_bytes / (BEHIND_STEPS * kept.worth) for kept in self._kept.values()), default=0)
        return min(worst, BEHIND_MAX) if worst > 1 else 0.0

    @property
    def commit_bytes_max(self) -> int | None:
        """Return the size limit of one commit that keeps pauses short; None: none."""
        return PACED_COMMIT_BYTES_MAX if self._behind() else None

    def _is_ready(self) -> bool:
        for level, most in READY_FILES:
            found = self._database.db.get_property(b"leveldb.num-files-at-level%d" % level)
            if int(found) > most:
                return False
        return True

    def _compact(self, ranges: list[tuple[bytes, bytes]]) -> None:
        for start, stop in ranges:
            if self._stop.is_set():
                return
            # LevelDB itself remembers an error: the next write fails with it
            with contextlib.suppress(plyvel.Error):
                self._database.db.compact_range(start=start, stop=stop)

    def join(self) -> None:
        """Wait until no compaction is running: before the database is closed."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()


class _Front:
    """The oldest readable block of a sequence."""

    def __init__(self, db: plyvel.DB, number: int, origin: int, removed: int, reporter: DamageReporter) -> None:
        self.origin = origin
        self.key = b""
        self.last = HIGHEST
        """Number of its first message; HIGHEST: there is none."""
        self.size = 0
        self.head: schema.BlockHead | None = None
        """Its head; None: damaged."""
        self.is_broken = False
        """Whether something before it could not be read."""
        self._reporter = reporter
        self._blocks = Readable(
            db, schema.block_key(number, origin, removed + 1), schema.block_key(number, origin, HIGHEST)
        )
        self.step()

    def step(self) -> None:
        """Go to the next block."""
        before = self.key
        self.key, value = self._blocks.next()
        if self._blocks.error is not None:
            self.is_broken = True
            self._reporter(before, "what follows cannot be read", self._blocks.error)
        while self.key and len(self.key) != schema.BLOCK_KEY_BYTES:
            self._reporter(self.key, "no key of a block", SchemaError("it is left where it is"))
            self.key, value = self._blocks.next()
        self.last, self.head = HIGHEST, None
        if self.key:
            self.last, self.size = schema.split_block(self.key)[2], len(self.key) + len(value)
            try:
                self.head = schema.decode_head(value)
            except SchemaError as error:
                self._reporter(self.key, "a block", error)

    def close(self) -> None:
        """Close the iterators."""
        self._blocks.close()

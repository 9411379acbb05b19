"""The archive of a store without a disk (`tests.kept_store`): `leveldb_store.contract.Archive` over a list.

It gets messages in blocks, like the real archive, and has them once the store reports them durable. `remove` is
retention.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Sequence

from leveldb_store.contract import FallenBehind, Page
from leveldb_store.filters import covers, overlaps
from leveldb_store.format import archive_schema as schema
from pyx.delivery.router import expiry_offset
from pyx.protocol.message import Message
from pyx.storage.archive import Archiver

__all__ = ["KeptArchive"]


def _summary_of(topic: bytes) -> bytes:
    bits = bytearray(schema.SUMMARY_BITS_BYTES)
    for bit in schema.summarised(topic):
        bits[bit >> 3] |= 1 << (bit & 7)
    return bytes(bits)


class KeptArchive:
    """An archive in memory. `filters`: Topic Filters of its rules."""

    held_bytes = 0
    removed = (0, 0)

    def __init__(self, filters: Sequence[bytes], epoch: str = "an archive") -> None:
        self.epoch = epoch
        self.archiver = Archiver(list(filters))
        self.highest = 0
        self.last = 0
        self.messages: list[Message] = []
        self.reads = 0
        self.afters: list[int] = []
        """The position `after` of each read."""
        self.pages: Counter[bytes] = Counter()
        """Number of pages read, by Topic Filter."""
        self.fails: Exception | None = None
        """Error that every read raises; None: reads work."""
        self._noted: list[tuple[int, bytes]] = []
        self._noted_behind: int | None = None
        self._damage = 0
        self._start = 0
        self._waiting = 0

    @property
    def is_settled(self) -> bool:
        """See the contract."""
        return not self._waiting and not self.archiver.pending_bytes

    def take(self) -> list[Message]:
        """Take the archived messages that go into the store's open batch."""
        taken, size = [], 0
        for _, _, records_bytes, _, block in self.archiver.take():
            size += records_bytes
            for archived in schema.decode_block(block):
                stored = archived.message
                taken.append(
                    Message.create(
                        stored.topic,
                        stored.payload,
                        stored.qos,
                        stored.retain,
                        stored.properties,
                        stored.number,
                        stored.expires or 0,
                        expiry_offset(stored.properties) if stored.expires else -1,
                        stored.publisher or None,
                    )
                )
        self._waiting += 1
        self.archiver.settled(size)
        return taken

    def wrote(self, messages: list[Message]) -> None:
        """Add messages that have become durable."""
        self._waiting -= 1
        for message in messages:
            self.add(message)

    def add(self, message: Message) -> None:
        """Add a message as if it had been archived."""
        insort(self.messages, message, key=lambda each: each.number)
        self.last = max(self.last, message.number)
        if self._noted_behind is not None:
            self._noted.append((message.number, _summary_of(message.topic)))

    def watch(self, is_watched: bool) -> None:
        """See the contract."""
        if is_watched != (self._noted_behind is not None):
            self._noted = []
            self._noted_behind = self.last if is_watched else None

    @property
    def is_watched(self) -> bool:
        """Whether topics of new messages are noted."""
        return self._noted_behind is not None

    def noted(self, after: int) -> list[tuple[int, bytes]] | None:
        """See the contract."""
        if self._noted_behind is None or after < self._noted_behind:
            return None
        return [each for each in self._noted if each[0] > after]

    def after_crash(self) -> KeptArchive:
        """Return the archive that the next worker finds."""
        after = KeptArchive(self.archiver.filters, self.epoch)
        after.messages = list(self.messages)
        after.highest = after.last = self.last
        after._start = self._start
        return after

    def remove(self, up_to: int) -> None:
        """Remove the messages with numbers up to `up_to`, like retention."""
        self.messages = [message for message in self.messages if message.number > up_to]
        self._start = max(self._start, up_to)

    def damage(self, up_to: int) -> None:
        """Make the messages with numbers up to `up_to` unreadable."""
        self.messages = [message for message in self.messages if message.number > up_to]
        self._damage = up_to

    def covers(self, topic_filter: bytes) -> bool:
        """See the contract."""
        return any(covers(rule, topic_filter) for rule in self.archiver.filters)

    def start(self, topic_filter: bytes) -> int:
        """See the contract."""
        return self._start if any(overlaps(rule, topic_filter) for rule in self.archiver.filters) else 0

    def read(self, topic_filters: Sequence[bytes], after: int, bytes_max: int, with_gaps: bool = False) -> Page:
        """See the contract."""
        self.reads += 1
        self.afters.append(after)
        self.pages.update(topic_filters)
        if self.fails is not None:
            raise self.fails
        if after < self._damage and not with_gaps:
            raise FallenBehind(self._damage, is_damage=True)
        earliest = max(map(self.start, topic_filters))
        if after < earliest and not with_gaps:
            raise FallenBehind(earliest)
        found: list[Message] = []
        size = 0
        at = bisect_right(self.messages, after, key=lambda each: each.number)
        for message in self.messages[at:]:
            if size >= bytes_max:
                return Page(found, message.number - 1, False)
            size += 64 + len(message.topic) + len(message.payload)
            if any(overlaps(text, message.topic) for text in topic_filters):
                found.append(message)
        return Page(found, max(after, self.last), True)

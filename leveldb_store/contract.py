"""What a store promises the router.

The router gathers what somebody cannot take at once into one block per tick and appends it. Sessions that are behind
read from an index (one per Topic Filter, or one of their own) from the position they have reached. Positions are
arrival positions: 64 bits, rising by one per logged message, given by the router. The contract is in batches; no
store is ever called per message.
"""

from __future__ import annotations

from typing import Protocol

from pyx.records import Batch, Block


class Store(Protocol):
    """A log with indexes. One thread calls it; nothing here blocks on a disk."""

    immediate: bool
    """True: what `append` returns is as safe as this store will ever make it (no disk): acks wait for no ticket."""

    def append(self, block: Block) -> int:
        """Take the records of one tick; readable at once. Returns a ticket, rising by 1, that the callback the store
        was given reports as durable when its turn has come (never from within this call, unless `immediate`).
        """

    def read(self, index: bytes, after: int, bytes_max: int) -> Batch:
        """Messages of an index behind position `after`, oldest first: one if there is one, then up to `bytes_max`."""

    def backlog(self, index: bytes, after: int) -> tuple[int, int]:
        """(messages, bytes) of an index behind position `after`."""

    def position_of_last(self, index: bytes, messages: int, bytes_max: int) -> int:
        """The lowest position behind which an index holds at most `messages` messages and `bytes_max` bytes."""

    def trim(self, index: bytes, up_to: int) -> None:
        """Nobody needs the index's entries at or before `up_to` any more."""

    def drop(self, index: bytes, after: int, up_to: int) -> None:
        """Nobody needs the index's entries behind `after` up to and with `up_to` any more."""

    def forget(self, index: bytes) -> None:
        """Nobody needs the index any more."""

    def held(self) -> tuple[int, int]:
        """(entries, bytes) of all indexes; a message that several of them list counts for each."""

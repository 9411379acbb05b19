"""Copies the logs during repartitioning: each old log's blocks go to the new workers whose sessions still need them.

    old worker 0   | 31 ....... 100 |           new worker 0   | its own 1 .. 70 | those of worker 2: 71 .. 110 |
    old worker 2   | 1 .. 20 | 51 .. 70 |                                            (111 .. are new messages)

A new log is made of *segments* (`broker.repartition.position_map`), one for each old worker that sends sessions there,
its own first: the blocks that a session there still needs, one behind the other. Every position that a session refers
to moves with its block; the segments behind the session's own are a *hole* for it (family V), as if its queue had been
full. So each session reads exactly what it would have read, in the same order. A message that several old workers had
stored may be in several segments until their sessions have read it.

The reasons and the cost: docs/adr/0020-position-maps.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Final

from broker.repartition.new_store import Moved, NewStore
from broker.repartition.old_store import OldStore, OldStores
from broker.repartition.position_map import Segment
from leveldb_store.format import schema
from pyx.storage.stored import part_before, part_ends, part_running

__all__ = ["Logs"]

_HIGHEST: Final = 2**64 - 1


class Logs:
    """The logs of all workers."""

    def __init__(self, old: OldStores, new: Sequence[NewStore], moved: Moved) -> None:
        self._old = old
        self._new = new
        self._moved = moved

    def lay_out(self) -> None:
        """Compute all positions in the new logs."""
        for target in self._new:
            senders = {source.index for source in self._old.stores if target.index in source.target_of.values()}
            own_first = sorted(self._old.stores, key=lambda source: (source.index != target.index, source.index))
            for source in own_first:
                if source.index not in senders:
                    continue
                segment = Segment(source.log, source.listing.get(target.index), source.expected, target.end)
                target.segments[source.index] = segment
                target.end = segment.end

    def survey(self, source: OldStore) -> None:
        """Find the destinations of its blocks, from the parts of indexes, and how many parts list each block there."""
        for key, value in self._old.scan(source, schema.NAME):
            name = key[1:]
            wanting = [
                (self._new[index], name, wanted[name]) for index, wanted in source.wanted.items() if name in wanted
            ]
            if wanting:
                source.listed[schema.decode_u32(value)] = wanting
        for key, value in self._old.scan(source, schema.BLOCK):
            source.log.add(schema.key_position(key), schema.BLOCK_HEAD.unpack_from(value)[1])
        source.listing = {index: array("I", bytes(4 * len(source.log.firsts))) for index in source.wanted}
        for _, _, at, _, readers in self._parts(source):
            for target, _ in readers:
                source.listing[target.index][at] += 1

    def copy(self, source: OldStore) -> None:
        """Copy its needed blocks, with their parts of indexes."""
        for first, value, at, behind_block, readers in self._parts(source):
            size = part_running(value, first, _HIGHEST)[1] - part_before(value)[1]
            for target, name in readers:
                placed = target.segments[source.index].place(first)
                indexes = source.listing[target.index][at]
                target.put_part(name, placed, behind_block, indexes, value[schema.PART_HEAD.size :], size)
        for at, (key, value) in enumerate(self._old.scan(source, schema.BLOCK)):
            for index, listing in source.listing.items():
                if listing[at]:
                    target = self._new[index]
                    placed = target.segments[source.index].place(schema.key_position(key))
                    target.put(schema.block_key(placed), value)
                    self._moved.blocks += 1

    def _parts(self, source: OldStore) -> Iterator[tuple[int, bytes, int, int, list[tuple[NewStore, bytes]]]]:
        # (first position, value, block, offset from its beginning, readers) of each needed part
        for key, value in self._old.scan(source, schema.PART):
            first = schema.key_position(key)
            end, block, _ = part_ends(value, first)
            listed = source.listed.get(schema.key_number(key), ())
            wanting = [(target, name) for target, name, wanted in listed if wanted.overlaps(first, end)]
            at = source.log.at(block) if wanting else None
            if at is not None:
                yield first, value, at, first - block, wanting

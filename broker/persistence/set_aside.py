"""Records of a worker's store that nobody can read: each is kept under another key, and the rest serves.

A record that cannot be read is a defect of ours, of a disk that LevelDB's checksums did not show, or another program's
doing. Whatever it is, it concerns one client, topic or sibling, and no start of the broker fails for it: the record
moves into family Z (docs/store.md), the log and the metrics name and count it, and so do /ready and `mqttd store
verify`. With `strict_store` the worker does not start instead.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from leveldb_store.contract import StoreError
from leveldb_store.format import schema
from pyx.core import counters as count
from pyx.protocol.reasons import MqttError
from zmq_mesh.envelope import EnvelopeError

if TYPE_CHECKING:
    from broker.context.context import Context

__all__ = ["UNREADABLE", "SetAside"]

UNREADABLE = (schema.SchemaError, EnvelopeError, MqttError, struct.error, ValueError, LookupError, ArithmeticError)
"""What a decoder says of bytes that are no record, and what may be said where its values are used."""


class SetAside:
    """Of one worker. `begin` is called once, before the others."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._said: list[tuple[bytes, str]] = []

    def begin(self) -> None:
        """Count what was set aside by earlier starts."""
        if self._context.store.keeps:
            there = sum(1 for _ in self._context.store.scan(schema.SET_ASIDE))
            self._context.counters.set(count.RECORDS_SET_ASIDE, there)

    def take(self, key: bytes, value: bytes, problem: object) -> None:
        """Keep this record, which cannot be read, apart. Raises StoreError where `strict_store` is set."""
        if self._context.settings.strict_store:
            raise StoreError(f"record {key!r} of the store of worker {self._context.index} cannot be read: {problem}")
        self._context.router.journal.put_record(schema.set_aside_key(key), value)
        self._context.router.journal.delete_record(key)
        self._context.counters.add(count.RECORDS_SET_ASIDE)
        self._said.append((key, str(problem)))

    def tell(self) -> None:
        """Log what was set aside since the last time: a start reads in a thread, and the log is the loop's."""
        said, self._said = self._said, []
        for key, problem in said:
            self._context.log.error("record_set_aside", record=ascii(key), problem=problem)

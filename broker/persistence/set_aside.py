"""Unreadable records of a worker's store: each is kept under another key, and the worker goes on without it.

The cause of an unreadable record is a defect of mqttd, disk damage that LevelDB's checksums missed, or another program.
It affects one client, topic or sibling, so it must not make the start fail: the record moves into family Z
(docs/store.md), the log and the metrics name and count it, and so do /ready and `mqttd store verify`. With
`strict_store` the worker does not start instead.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from leveldb_store.contract import StoreError
from leveldb_store.format import schema
from pyx.core import counters as count
from pyx.mesh.contract import EnvelopeError
from pyx.protocol.reasons import MqttError

if TYPE_CHECKING:
    from broker.context.context import Context

__all__ = ["UNREADABLE", "SetAside"]

UNREADABLE = (schema.SchemaError, EnvelopeError, MqttError, struct.error, ValueError, LookupError, ArithmeticError)
"""Exceptions of decoders for invalid bytes, including those raised where the values are used."""


class SetAside:
    """Sets aside the unreadable records of one worker. `begin` is called once, before the others."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._said: list[tuple[bytes, str]] = []

    def begin(self) -> None:
        """Count the records set aside by earlier starts."""
        if self._context.store.keeps:
            there = sum(1 for _ in self._context.store.scan(schema.SET_ASIDE))
            self._context.counters.set(count.RECORDS_SET_ASIDE, there)

    def take(self, key: bytes, value: bytes, problem: object) -> None:
        """Move an unreadable record to family Z. Raises StoreError if `strict_store` is set."""
        if self._context.settings.strict_store:
            raise StoreError(f"record {key!r} of the store of worker {self._context.index} cannot be read: {problem}")
        self._context.router.journal.put_record(schema.set_aside_key(key), value)
        self._context.router.journal.delete_record(key)
        self._context.counters.add(count.RECORDS_SET_ASIDE)
        self._said.append((key, str(problem)))

    def tell(self) -> None:
        """Log the records set aside since the last call: the store is read in a thread, but only the loop logs."""
        said, self._said = self._said, []
        for key, problem in said:
            self._context.log.error("record_set_aside", record=ascii(key), problem=problem)

"""The record `schema.COUNTERS`: a worker's counters at the time when the last batch of a commit was closed.

It is in the same LevelDB batch as the messages and records of that moment, so a reader of a copy of a store finds
counters that match its contents. Counters begin with 0 when the broker starts; `pyx.core.counters` packs the same
bytes (KEPT), and a test compares the two.

    u8       format (1)
    varints  the fields below, in this order (7 bits a byte, lowest first, the top bit says that more follow)

New fields are added at the end: a reader skips fields that it does not know, and missing ones are absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from leveldb_store.format.schema import SchemaError

__all__ = ["FIELDS", "FORMAT", "decode_counters", "encode_counters"]

FORMAT: Final = 1
_MICROSECONDS_BITS: Final = 53
FIELDS: Final = (
    "time_ms",  # Unix time
    "position",  # of the last logged message
    "number",  # microseconds of the last message number given out
    "sessions",  # session records
    "retained_messages",
    "publish_received",
    "publish_received_qos1",
    "publish_received_qos2",
    "publish_duplicates",
    "publish_refused",
    "publish_unmatched",
    "retained_refused",
    "matched",
    "delivered_qos0",
    "delivered_qos1",
    "delivered_qos2",
    "dropped_expired",
    "dropped_offline_qos0",
    "dropped_outbox_full",
    "dropped_connection_closed",
    "dropped_queue_full",
    "dropped_packet_too_large",
    "dropped_unsubscribed",
    "dropped_session_ended",
    "dropped_refused",
    "dropped_peer_lost",
    "dropped_no_member",
    "dropped_worker_lost",
    "dropped_overtaken",
)


def encode_counters(values: Mapping[str, int]) -> bytes:
    """Encode the values of all FIELDS."""
    out = bytearray((FORMAT,))
    for name in FIELDS:
        value = values[name]
        while value >= 0x80:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
    return bytes(out)


def decode_counters(data: bytes) -> dict[str, int]:
    """Decode the known fields that exist, in order; SchemaError if they are damaged or of another format."""
    if not data or data[0] != FORMAT:
        raise SchemaError(f"counters have format {data[0] if data else 'none'}, known is {FORMAT}")
    values: list[int] = []
    value = shift = 0
    for byte in data[1:]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            values.append(value)
            value = shift = 0
    if shift or any(each >> 64 for each in values):
        raise SchemaError("counters are damaged")
    found = dict(zip(FIELDS, values, strict=False))
    if found.get("number", 0) >> _MICROSECONDS_BITS:
        raise SchemaError("counters are of the year 2255 or later")
    return found

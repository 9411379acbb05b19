"""Stored messages as columns: does the work of `leveldb_store.format.schema.decode_message` for thousands at once.

A record is `lead` bytes of its block, then a stored message. Only the beginnings have to be found one after the other;
numpy and Arrow do the rest. The bytes between the beginnings of two records are cut into six pieces: lead and head,
topic, properties, payload, length of the publisher, publisher. So the unchanged buffer and the offsets of these pieces
are one Arrow array, of which every sixth element is a topic, and so on: taking these is all the copying there is.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from leveldb_store.format.archive_schema import NUMBER_WORKER_BITS
from leveldb_store.format.schema import ENTRY, EXPIRES, QOS, RETAIN, U16, SchemaError
from leveldb_store.format.stored_properties import Properties, decode_properties

__all__ = ["ARCHIVED_LEAD", "Records", "starts_of"]

ARCHIVED_LEAD: Final = 5
"""u32 matches, u8 tenant, before a message of the archive."""

_PIECES: Final = 6
_TOPIC, _PROPERTIES, _PAYLOAD, _PUBLISHER = 1, 2, 3, 5
_SIZES: Final = struct.Struct("<BHII").unpack_from
_HEAD: Final = np.dtype([
    ("flags", "u1"), ("topic", "<u2"), ("properties", "<u4"), ("payload", "<u4"), ("number", "<u8"),
])  # fmt: skip
_ARCHIVED: Final = np.dtype([("matches", "<u4"), ("tenant", "u1")])
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
assert U16.format == "<H"
assert _HEAD.itemsize == ENTRY.size
assert _ARCHIVED.itemsize == ARCHIVED_LEAD
assert EXPIRES == 8  # and a message that expires has 8 bytes more


def starts_of(data: bytes, at: int, count: int, lead: int) -> list[int]:
    """Return the offsets of `count` records, the first at `at`; nothing follows them. Raises SchemaError."""
    sizes, fixed, expires = _SIZES, lead + ENTRY.size, EXPIRES  # this is the only loop over messages
    if count * (fixed + U16.size) > len(data) - at:
        raise SchemaError(f"{count} stored messages cannot have {len(data) - at} bytes")
    starts = [0] * count
    try:
        for index in range(count):
            starts[index] = at
            flags, topic, properties, payload = sizes(data, at + lead)
            at += fixed + (flags & expires) + topic + properties + payload
            at += 2 + (data[at] | data[at + 1] << 8)
    except (struct.error, IndexError) as error:
        raise SchemaError(f"a stored message is cut off: {error}") from None
    if at != len(data):
        raise SchemaError(f"{count} stored messages have {at} bytes, there are {len(data)}")
    return starts


class Records:
    """Messages that follow each other in `data`, from 0 on. Columns are made on demand."""

    def __init__(self, data: bytes, starts: list[int] | npt.NDArray[np.int64], lead: int) -> None:
        """Raises SchemaError."""
        self._data = data
        self._lead = lead
        self._bytes = np.frombuffer(data, np.uint8)
        self._starts = np.asarray(starts, np.int64)
        self._heads = self._fixed(lead, _HEAD)
        flags = self._heads["flags"]
        if np.any(flags & ~np.uint8(QOS | RETAIN | EXPIRES)) or np.any(flags & QOS == QOS):
            raise SchemaError("a stored message is damaged")
        if lead == ARCHIVED_LEAD:
            tenants = self._fixed(0, _ARCHIVED)["tenant"]
            if tenants.any():
                raise SchemaError(f"an archived message is of tenant {tenants.max()}, which is not known")
        self.numbers: npt.NDArray[np.int64] = self._heads["number"].astype(np.int64)
        self._pieces = self._cut()
        self._index = np.arange(len(self._starts), dtype=np.int64) * _PIECES
        self._known: dict[str, pa.Array] = {}
        self._properties: tuple[list[Properties | None], npt.NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return len(self._index)

    def _fixed(self, behind: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        # the values at this offset from each beginning
        at = (self._starts + behind)[:, None] + np.arange(dtype.itemsize)
        return np.ascontiguousarray(self._bytes[at]).view(dtype).reshape(-1)

    def _cut(self) -> pa.Array:
        heads, count = self._heads, len(self._starts)
        offsets = np.empty(count * _PIECES + 1, np.int32)
        offsets[:-1:_PIECES] = self._starts
        at = self._starts + (self._lead + ENTRY.size) + (heads["flags"] & EXPIRES)
        offsets[1::_PIECES] = at
        for piece, name in enumerate(("topic", "properties", "payload"), 2):
            at = at + heads[name]
            offsets[piece::_PIECES] = at
        offsets[5::_PIECES] = at + U16.size
        offsets[-1] = len(self._data)
        return pa.Array.from_buffers(
            pa.binary(), count * _PIECES, [None, pa.py_buffer(offsets), pa.py_buffer(self._data)]
        )

    def keep(self, mask: npt.NDArray[np.bool_]) -> None:
        """Keep only the selected messages."""
        if mask.all():
            return
        self._starts, self._heads, self.numbers = self._starts[mask], self._heads[mask], self.numbers[mask]
        self._index = self._index[mask]
        self._known = {name: known.filter(pa.array(mask)) for name, known in self._known.items()}
        self._properties = None

    def column(self, name: str, kind: pa.DataType) -> pa.Array:
        """Return a column of this name, in Spark's type. Raises SchemaError."""
        if name not in self._known:
            self._known[name] = _COLUMNS[name](self)
        found = self._known[name]
        return found if found.type == kind else _as(found, kind)

    def _taken(self, piece: int) -> pa.Array:
        return self._pieces.take(pa.array(self._index + piece))

    def _topics(self) -> pa.Array:
        return _text(self._taken(_TOPIC), _replaced)

    def _publishers(self) -> pa.Array:
        found = self._taken(_PUBLISHER)
        return _without_empty(found, _text(found, _client_id))

    def _levels(self) -> pa.Array:
        if "levels" not in self._known:
            self._known["levels"] = pc.split_pattern(self.column("topic", pa.string()), "/")
        return self._known["levels"]

    def _first_levels(self) -> pa.Array:
        levels = self._levels()
        return levels.values.take(levels.offsets[:-1])

    def _expires(self) -> pa.Array:
        has = self._heads["flags"] & EXPIRES != 0
        milliseconds = np.zeros(len(self), np.int64)
        if has.any():
            at = (self._starts[has] + self._lead + ENTRY.size)[:, None] + np.arange(8)
            milliseconds[has] = np.ascontiguousarray(self._bytes[at]).view("<u8").reshape(-1)
        return pa.array(milliseconds * 1000, mask=~has).view(_TIMESTAMP)

    def _wire(self) -> pa.Array:
        found = self._taken(_PROPERTIES)
        return _without_empty(found, found)

    def _of_properties(self, value: Callable[[Properties], object], kind: pa.DataType) -> pa.Array:
        # equal ones, of which there are many, are decoded once
        if not self._heads["properties"].any():
            return pa.nulls(len(self), kind)
        if self._properties is None:
            encoded = self._taken(_PROPERTIES).dictionary_encode()
            distinct = [decode_properties(each) if each else None for each in encoded.dictionary.to_pylist()]
            self._properties = distinct, encoded.indices.to_numpy()
        distinct, indices = self._properties
        values = [None if each is None else value(each) for each in distinct]
        return pa.array(values, kind).take(pa.array(indices))

    def _matches(self) -> pa.Array:
        return pa.array(self._fixed(0, _ARCHIVED)["matches"].astype(np.int64))


def _without_empty(raw: pa.Array, found: pa.Array) -> pa.Array:
    return pc.if_else(pc.greater(pc.binary_length(raw), 0), found, None)


def _text(raw: pa.Array, mend: Callable[[bytes], str | None]) -> pa.Array:
    # as UTF-8, without copying if it is valid
    found = raw.view(pa.string())
    try:
        found.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([mend(each) for each in raw.to_pylist()], pa.string())
    return found


def _replaced(data: bytes) -> str:
    return data.decode(errors="replace")


def _client_id(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass").encode(errors="replace").decode()
    except UnicodeDecodeError as error:
        raise SchemaError(f"a publisher's client id is damaged: {error}") from None


def _text_or_none(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _as(found: pa.Array, kind: pa.DataType) -> pa.Array:
    # the same, with the names that Spark gives to elements
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(found.offsets, found.flatten(), type=kind)
    return found.cast(kind)


def _user(found: Properties) -> list[tuple[str, str]] | None:
    return list(dict(found.user_properties).items()) or None


_COLUMNS: Final[dict[str, Callable[[Records], pa.Array]]] = {
    "number": lambda records: pa.array(records.numbers),
    "worker": lambda records: pa.array((records.numbers & 0xFF).astype(np.int32)),
    "time": lambda records: pa.array(records.numbers >> NUMBER_WORKER_BITS).view(_TIMESTAMP),
    "topic": lambda records: records._topics(),
    "first_level": lambda records: records._first_levels(),
    "levels": lambda records: records._levels(),
    "qos": lambda records: pa.array((records._heads["flags"] & QOS).astype(np.int32)),
    "retain": lambda records: pa.array(records._heads["flags"] & RETAIN != 0),
    "publisher": lambda records: records._publishers(),
    "payload": lambda records: records._taken(_PAYLOAD),
    "payload_bytes": lambda records: pa.array(records._heads["payload"].astype(np.int32)),
    "payload_text": lambda records: _text(records.column("payload", pa.binary()), _text_or_none),
    "expires": lambda records: records._expires(),
    "properties": lambda records: records._wire(),
    "payload_format": lambda records: records._of_properties(lambda each: each.payload_format_indicator, pa.int32()),
    "content_type": lambda records: records._of_properties(lambda each: each.content_type, pa.string()),
    "response_topic": lambda records: records._of_properties(lambda each: each.response_topic, pa.string()),
    "correlation_data": lambda records: records._of_properties(lambda each: each.correlation_data, pa.binary()),
    "user_properties": lambda records: records._of_properties(_user, pa.map_(pa.string(), pa.string())),
    "matches": lambda records: records._matches(),
}

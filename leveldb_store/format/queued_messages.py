"""Messages queued for one session, or in flight to it, that are in no index that it reads: families Q and J
(`leveldb_store.format.schema` has the key of the former).

A large message queued for many sessions is stored once: it has one record, of family J, and each session's own
record refers to it. A record of family Q with OF_ITS_OWN has, behind the Subscription Identifiers, the u64
number of the message. The record of that message has this number in its key, and its value is the rest of a record of
family Q without OF_ITS_OWN.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from leveldb_store.format.schema import (
    ENTRY,
    EXPIRES,
    FORM_2,
    MESSAGE,
    OF_ITS_OWN,
    QOS,
    U16,
    U32,
    U64,
    SchemaError,
    StoredMessage,
    decode_message,
    decode_name,
    encode_message,
)

__all__ = [
    "StoredQueued",
    "decode_own",
    "decode_queued",
    "encode_queued",
    "head_of",
    "message_key",
    "message_of",
    "whole",
]

_KEY_BYTES: Final = 8
QUEUED_HEAD_1: Final = struct.Struct("<BIH")
QUEUED_HEAD: Final = struct.Struct("<BII")
# "not known" in records of version 1, which therefore take the longest client id for none
_NO_PUBLISHER_1: Final = 0xFFFF


class StoredQueued(NamedTuple):
    """A message queued for one session."""

    flags: int
    group: int
    """Number of its share group."""
    identifiers: bytes
    """Subscription Identifiers as properties."""
    message: StoredMessage


def encode_queued(queued: StoredQueued) -> bytes:
    """Encode a message of one session; SchemaError if its flags mark another form.

    A reference to a message in another record is only made by `pyx.delivery.windows`.
    """
    if queued.flags & (FORM_2 | OF_ITS_OWN):
        raise SchemaError(f"a queued message has flags {queued.flags:#x}")
    message = queued.message
    entry = encode_message(replace(message, publisher=None))[: -U16.size]
    publisher = U32.pack(0)
    if message.publisher is not None:
        name = message.publisher.encode("utf-8", "surrogatepass")
        publisher = U32.pack(len(name) + 1) + name
    head = QUEUED_HEAD.pack(queued.flags | FORM_2, queued.group, len(queued.identifiers))
    return b"".join((head, queued.identifiers, entry, publisher))


def decode_queued(data: bytes) -> StoredQueued:
    """Decode a message of one session; SchemaError if it is damaged."""
    is_new = bool(data[:1] and data[0] & FORM_2)
    head = QUEUED_HEAD if is_new else QUEUED_HEAD_1
    if len(data) < head.size:
        raise SchemaError("a queued message is cut off")
    flags, group, length = head.unpack_from(data)
    if is_new and flags & OF_ITS_OWN:
        raise SchemaError("a queued message has its message in another record, or is damaged")
    at = head.size + length
    # a stored message marks an unknown publisher by a length that a record of family Q does not use
    end = at + _entry_bytes(data, at)
    publisher = data[end + (U32 if is_new else U16).size :]
    if len(data) < end + (U32 if is_new else U16).size:
        raise SchemaError("a queued message is cut off")
    said = int((U32 if is_new else U16).unpack_from(data, end)[0])
    if is_new:
        said = max(said - 1, 0)
    elif said == _NO_PUBLISHER_1 and not publisher:
        said = 0
    message, _ = decode_message(data[:end] + U16.pack(0), at)
    if len(publisher) != said or flags & QOS == QOS:
        raise SchemaError("a queued message is damaged")
    if publisher:
        message = replace(message, publisher=decode_name(publisher, "surrogatepass"))
    return StoredQueued(flags & ~FORM_2, group, data[head.size : at], message)


def _entry_bytes(data: bytes, at: int) -> int:
    try:
        flags, topic_bytes, property_bytes, payload_bytes, _ = ENTRY.unpack_from(data, at)
    except struct.error as error:
        raise SchemaError(f"a queued message is cut off: {error}") from None
    return int(ENTRY.size + (U64.size if flags & EXPIRES else 0) + topic_bytes + property_bytes + payload_bytes)


def message_key(number: int) -> bytes:
    """Return the key of the message with this number."""
    return MESSAGE + number.to_bytes(_KEY_BYTES, "big")


def head_of(queued: bytes) -> tuple[int, int, bytes]:
    """Return (flags, group, Subscription Identifiers as properties), as in `StoredQueued`, of a record of family Q for
    which `message_of` returns a number. SchemaError if they are damaged.
    """
    flags, group, _ = QUEUED_HEAD.unpack_from(queued)
    if flags & QOS == QOS:
        raise SchemaError("a queued message is damaged")
    return flags & ~(FORM_2 | OF_ITS_OWN), group, queued[QUEUED_HEAD.size : -U64.size]


def message_of(queued: bytes) -> int | None:
    """Return the number of the message, if it has a record of its own. None also if the record is damaged."""
    if len(queued) < QUEUED_HEAD.size or queued[0] & (FORM_2 | OF_ITS_OWN) != FORM_2 | OF_ITS_OWN:
        return None
    if len(queued) != QUEUED_HEAD.size + QUEUED_HEAD.unpack_from(queued)[2] + U64.size:
        return None
    return int.from_bytes(queued[-U64.size :], "little")


def decode_own(data: bytes) -> StoredMessage:
    """Decode a message that has a record of its own; SchemaError if it is damaged."""
    return decode_queued(bytes((FORM_2,)) + bytes(QUEUED_HEAD.size - 1) + data).message


def whole(queued: bytes, get: Callable[[bytes], bytes | None]) -> bytes:
    """Return the record of family Q with its message included. `get`: returns the value of a key of this store, or
    None. SchemaError if it is damaged, or its message is missing.
    """
    number = message_of(queued)
    if number is None:
        return queued
    message = get(message_key(number))
    if message is None:
        raise SchemaError(f"message {number}, which is queued, is not there")
    return bytes((queued[0] & ~OF_ITS_OWN,)) + queued[1 : -U64.size] + message

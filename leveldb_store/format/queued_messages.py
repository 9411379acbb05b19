"""Messages that wait for sessions and are stored once, family J: a large message that many sessions wait for has one
record, and each session's own record (family Q, `leveldb_store.format.schema`) only says which one.

A record of family Q with OF_ITS_OWN has, behind the Subscription Identifiers, the u64 number of the message. The record
of that message has this number in its key, and for its value what a record of family Q without OF_ITS_OWN has there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leveldb_store.format.schema import (
    FORM_2,
    MESSAGE,
    OF_ITS_OWN,
    QOS,
    QUEUED_HEAD,
    U64,
    SchemaError,
    StoredMessage,
    decode_queued,
)

__all__ = ["decode_own", "head_of", "message_key", "message_of", "whole"]

_KEY_BYTES: Final = 8


def message_key(number: int) -> bytes:
    """Key of the message with this number."""
    return MESSAGE + number.to_bytes(_KEY_BYTES, "big")


def head_of(queued: bytes) -> tuple[int, int, bytes]:
    """(flags, group, Subscription Identifiers as properties), as `StoredQueued` has them, of a record of family Q of
    which `message_of` gives a number. SchemaError if they are damaged.
    """
    flags, group, _ = QUEUED_HEAD.unpack_from(queued)
    if flags & QOS == QOS:
        raise SchemaError("a queued message is damaged")
    return flags & ~(FORM_2 | OF_ITS_OWN), group, queued[QUEUED_HEAD.size : -U64.size]


def message_of(queued: bytes) -> int | None:
    """Number of the message, if that has a record of its own. None as well if the record is damaged."""
    if len(queued) < QUEUED_HEAD.size or queued[0] & (FORM_2 | OF_ITS_OWN) != FORM_2 | OF_ITS_OWN:
        return None
    if len(queued) != QUEUED_HEAD.size + QUEUED_HEAD.unpack_from(queued)[2] + U64.size:
        return None
    return int.from_bytes(queued[-U64.size :], "little")


def decode_own(data: bytes) -> StoredMessage:
    """A message that has a record of its own; SchemaError if it is damaged."""
    return decode_queued(bytes((FORM_2,)) + bytes(QUEUED_HEAD.size - 1) + data).message


def whole(queued: bytes, get: Callable[[bytes], bytes | None]) -> bytes:
    """The record of family Q with its message in itself. `get`: the value of a key of this store, or None. SchemaError
    if it is damaged, or its message is not there.
    """
    number = message_of(queued)
    if number is None:
        return queued
    message = get(message_key(number))
    if message is None:
        raise SchemaError(f"message {number}, which is queued, is not there")
    return bytes((queued[0] & ~OF_ITS_OWN,)) + queued[1 : -U64.size] + message

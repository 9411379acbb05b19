"""Values of sessions and wills in a store, families S and W (`leveldb_store.format.schema` has the keys).

Importable without the compiled code, like that.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from leveldb_store.format.schema import (
    FORM_2,
    U32,
    SchemaError,
    StoredMessage,
    decode_message,
    decode_name,
    encode_message,
)

SESSION_HEAD_1: Final = struct.Struct("<IBQQH")
SESSION_HEAD: Final = struct.Struct("<IBQQI")
WILL_HEAD: Final = struct.Struct("<QIBI")
# "not known" in records of version 1, which therefore take the longest username for none
_NO_USERNAME_1: Final = 0xFFFF
_PROTOCOL_VERSIONS: Final = (3, 4, 5)


class StoredSession(NamedTuple):
    """A session without its subscriptions, its window and its will."""

    expiry_interval: int
    """Seconds; 0xFFFFFFFF = never."""
    version: int
    """Protocol version of the last connection: 3, 4 or 5."""
    username: str | None
    disconnected: int
    """Unix time in ms; 0 = it was connected."""
    created: int
    """Unix time in ms."""


class StoredWill(NamedTuple):
    """The will of a client."""

    due: int
    """Unix time in ms; 0 = its client was connected."""
    delay_interval: int
    """Seconds."""
    expiry_interval: int | None
    """Message Expiry Interval in seconds, which counts from the publication; None = none."""
    message: StoredMessage
    """`number` and `expires` are set at its publication, here 0 and None."""


def encode_session(session: StoredSession) -> bytes:
    """Encode a session."""
    username = b"" if session.username is None else session.username.encode()
    length = 0 if session.username is None else len(username) + 1
    version = session.version | FORM_2
    return SESSION_HEAD.pack(session.expiry_interval, version, session.disconnected, session.created, length) + username


def decode_session(data: bytes) -> StoredSession:
    """Decode a session; SchemaError if it is damaged."""
    is_new = len(data) > U32.size and bool(data[U32.size] & FORM_2)
    head = SESSION_HEAD if is_new else SESSION_HEAD_1
    if len(data) < head.size:
        raise SchemaError("a session is cut off")
    expiry, version, disconnected, created, length = head.unpack_from(data)
    if is_new:
        length = None if length == 0 else length - 1
    elif length == _NO_USERNAME_1:
        # in version 1: none, or of this length
        length = None if len(data) == head.size else length
    username = data[head.size :]
    if len(username) != (length or 0) or version & ~FORM_2 not in _PROTOCOL_VERSIONS:
        raise SchemaError("a session is damaged")
    return StoredSession(
        expiry, version & ~FORM_2, None if length is None else decode_name(username), disconnected, created
    )


def encode_will(will: StoredWill) -> bytes:
    """Encode a will."""
    expiry = will.expiry_interval
    head = WILL_HEAD.pack(will.due, will.delay_interval, expiry is not None, expiry or 0)
    return head + encode_message(will.message)


def decode_will(data: bytes) -> StoredWill:
    """Decode a will; SchemaError if it is damaged."""
    if len(data) < WILL_HEAD.size:
        raise SchemaError("a will is cut off")
    due, delay, expires, expiry = WILL_HEAD.unpack_from(data)
    message, end = decode_message(data, WILL_HEAD.size)
    if end != len(data) or expires > 1:
        raise SchemaError("a will is damaged")
    return StoredWill(due, delay, expiry if expires else None, message)

"""Values of subscriptions in a store, family T (`leveldb_store.format.schema` has the key).

u8 options (0x80: retained messages are owed) | u32 Subscription Identifier | u64 since
| if they are owed: u8 count, then per worker u8 index | u16 length | topic behind which the rest is owed; "": all
| formers: u8 options | u64 from behind | u64 up to and including
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from leveldb_store.format.schema import SchemaError

SUBSCRIBED: Final = struct.Struct("<BIQ")
FORMER: Final = struct.Struct("<BQQ")
PART: Final = struct.Struct("<BH")
OWED: Final = 0x80
IDENTIFIER_MAX: Final = 268_435_455


class StoredSubscription(NamedTuple):
    """A subscription of a session."""

    options: int
    """The options byte of SUBSCRIBE."""
    identifier: int
    """Subscription Identifier; 0 = none."""
    since: int
    """The position behind which it begins."""
    formers: list[tuple[int, int, int]]
    """(options, from behind, up to and including), in order: ranges queued while it had earlier options. They may
    include messages that the session has been sent meanwhile."""


def encode_subscription(
    options: int,
    identifier: int,
    since: int,
    formers: Iterable[tuple[int, int, int]] = (),
    owed: Sequence[tuple[int, bytes]] = (),
) -> bytes:
    """Encode a `StoredSubscription`. `owed`: (worker, topic) of the workers whose retained messages behind that topic
    are still to be sent.
    """
    parts = b"".join(PART.pack(worker, len(topic)) + topic for worker, topic in owed)
    head = SUBSCRIBED.pack(options & ~OWED | (OWED if owed else 0), identifier, since)
    return head + (bytes((len(owed),)) + parts if owed else b"") + b"".join(FORMER.pack(*each) for each in formers)


def decode_subscription(data: bytes) -> StoredSubscription:
    """Decode a subscription, also of version 1 (without formers); SchemaError if it is damaged."""
    _, at = _owed(data)
    if (len(data) - at) % FORMER.size:
        raise SchemaError(f"a subscription has {len(data)} bytes instead of {at}")
    formers = [(options, since, up_to) for options, since, up_to in FORMER.iter_unpack(data[at:])]
    options, identifier, since = SUBSCRIBED.unpack_from(data)
    if any(each & 3 == 3 for each in (options, *(was for was, _, _ in formers))) or identifier > IDENTIFIER_MAX:
        raise SchemaError("a subscription has options that there are not")
    return StoredSubscription(options & ~OWED, identifier, since, formers)


def decode_owed(data: bytes) -> list[tuple[int, bytes]]:
    """Return (worker, topic) of the workers whose retained messages behind that topic the session has not been sent;
    SchemaError if they are damaged.
    """
    return _owed(data)[0]


def _owed(data: bytes) -> tuple[list[tuple[int, bytes]], int]:
    """Return the same, and the offset of their end."""
    if len(data) < SUBSCRIBED.size:
        raise SchemaError(f"a subscription has {len(data)} bytes instead of {SUBSCRIBED.size}")
    at = SUBSCRIBED.size
    if not data[0] & OWED:
        return [], at
    found = []
    try:
        count = data[at]
        at += 1
        for _ in range(count):
            worker, length = PART.unpack_from(data, at)
            at += PART.size + length
            found.append((worker, data[at - length : at]))
    except (IndexError, struct.error) as error:
        raise SchemaError(f"a subscription is cut off: {error}") from None
    if at > len(data):
        raise SchemaError("a subscription is cut off")
    return found, at

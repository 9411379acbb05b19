"""Subscriptions of sessions in a store, family T: the value (`leveldb_store.schema` has the key)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from leveldb_store.schema import SchemaError

SUBSCRIBED: Final = struct.Struct("<BIQ")
FORMER: Final = struct.Struct("<BQQ")


class StoredSubscription(NamedTuple):
    """A subscription of a session."""

    options: int
    """As in SUBSCRIBE."""
    identifier: int
    """Subscription Identifier; 0 = none."""
    since: int
    """The position behind which it begins."""
    formers: list[tuple[int, int, int]]
    """(options, from behind, up to and with): what was queued before, while it had these options; rising. What the
    session has been sent meanwhile may stand here still."""


def encode_subscription(
    options: int, identifier: int, since: int, formers: Iterable[tuple[int, int, int]] = ()
) -> bytes:
    """Value of a subscription: what `StoredSubscription` has."""
    return SUBSCRIBED.pack(options, identifier, since) + b"".join(FORMER.pack(*each) for each in formers)


def decode_subscription(data: bytes) -> StoredSubscription:
    """A subscription, as version 1 has it (without formers) as well; SchemaError if it is damaged."""
    if len(data) < SUBSCRIBED.size or (len(data) - SUBSCRIBED.size) % FORMER.size:
        raise SchemaError(f"a subscription has {len(data)} bytes instead of {SUBSCRIBED.size}")
    formers = [(options, since, up_to) for options, since, up_to in FORMER.iter_unpack(data[SUBSCRIBED.size :])]
    options, identifier, since = SUBSCRIBED.unpack_from(data)
    return StoredSubscription(options, identifier, since, formers)

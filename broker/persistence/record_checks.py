"""Checks of a store's records, by family: `mqttd store verify` and a repartition read every record with them.

A check takes key and value and raises one of `broker.persistence.set_aside.UNREADABLE` for an invalid record. Checks
that need several records (whether blocks and parts of the log match, archives) are elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from leveldb_store.format import link_schema, queued_messages, schema, session_schema, windows
from leveldb_store.format.events import decode_event
from leveldb_store.format.persisted_counters import decode_counters
from leveldb_store.format.queued_messages import decode_own, message_of
from leveldb_store.format.replay_schema import decode_replay, split_replay
from leveldb_store.format.subscription_schema import decode_owed, decode_subscription
from pyx.delivery.router import expiry_offset
from pyx.protocol.topics import parse_share
from pyx.storage.stored import part_ends, unpack_block
from zmq_mesh.envelope import decode_entries

__all__ = ["CHECKS"]

_SHARED: Final = b"$share/"


def _subscription(key: bytes, value: bytes) -> None:
    _, named = schema.split_subscription(key)
    decode_subscription(value)
    decode_owed(value)
    if named.startswith(_SHARED) and parse_share(named) is None:
        raise ValueError("no Topic Filter")


def _retained(key: bytes, value: bytes) -> None:
    message, end = schema.decode_message(value)
    if end != len(value) or message.topic != key[1:]:
        raise ValueError("a retained message is damaged")


def _link_position(key: bytes, value: bytes) -> None:
    if schema.is_refusals(key):
        link_schema.decode_refusals(value)
    else:
        link_schema.decode_peer(value)


def _handoff(key: bytes, value: bytes) -> None:
    if schema.key_position(key) == 0:
        link_schema.decode_handoff_head(value)
        return
    _, part, payloads = link_schema.decode_handoff(value)
    for _ in decode_entries(part, payloads):
        pass


def _queued(key: bytes, value: bytes) -> None:
    schema.split_queued(key)
    if message_of(value) is None:
        queued_messages.decode_queued(value)


def _about(key: bytes, value: bytes) -> None:
    if key == schema.STORE:
        json.loads(value)
    elif key == schema.NUMBER:
        schema.decode_number(value)
    elif key in (schema.POSITION, schema.EVENTS_DELETED):
        schema.decode_u64(value)
    elif key == schema.COUNTERS:
        decode_counters(value)
    elif key != schema.SCHEMA:
        raise ValueError("of no family")


CHECKS: Final[dict[bytes, Callable[[bytes, bytes], object]]] = {
    b"\0": _about,
    schema.BLOCK: lambda _, value: unpack_block(value, expiry_offset),
    schema.PART: lambda key, value: part_ends(value, schema.key_position(key)),
    schema.EVENT: decode_event,
    schema.NAME: lambda _, value: schema.decode_u32(value),
    schema.TRIMMED: lambda _, value: schema.decode_u64(value),
    schema.DROPPED: lambda _, value: schema.decode_spans(value),
    schema.WANTED: lambda _, value: schema.decode_u32(value),
    schema.SESSION: lambda key, value: (key[1:].decode(), session_schema.decode_session(value)),
    schema.SUBSCRIPTION: _subscription,
    schema.WINDOW: lambda key, value: (key[1:].decode(), windows.decode_window(value)),
    schema.WINDOW_PAGE: windows.check_page,
    schema.QUEUED: _queued,
    schema.MESSAGE: lambda _, value: decode_own(value),
    schema.REPLAY: lambda key, value: (split_replay(key), decode_replay(value)),
    schema.RETAINED: _retained,
    schema.WILL: lambda key, value: (key[1:].decode(), session_schema.decode_will(value)),
    schema.HANDOFF: _handoff,
    schema.PEER: _link_position,
}
"""The check of each family."""

"""Tables of a store's state of its clients: sessions (S), subscriptions (T, O), messages in flight (V), batches for
siblings (H).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from leveldb_store.format import link_schema, replay_schema, schema, session_schema, windows
from leveldb_store.format.archive_schema import first_level
from leveldb_store.format.queued_messages import decode_queued, whole
from leveldb_store.format.schema import SchemaError
from leveldb_store.format.subscription_schema import decode_subscription
from leveldb_store.snapshots.snapshot import LinkFacts
from spark_etl.tables.catalogue import TABLES
from spark_etl.tables.frames import instant

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_etl.tables.opened import Reading

__all__ = ["handoff", "inflight", "replays", "sessions", "shared", "subscriptions", "window_of"]

_NEVER: Final = 0xFFFFFFFF
_SHARE: Final = "$share/"
_AWAITS: Final = {1: "PUBACK", 2: "PUBREC", 3: "PUBCOMP"}
_NAMES: Final = {name: table.names[4:] for name, table in TABLES.items()}


def sessions(reading: Reading, start: bytes, stop: bytes) -> Iterator[pa.RecordBatch]:
    """Yield sessions. Raises SchemaError."""
    return reading.frames.of_rows(_NAMES["sessions"], _sessions(reading, start, stop))


def _sessions(reading: Reading, start: bytes, stop: bytes) -> Iterator[tuple[Any, ...]]:
    for key, value in reading.scan(start, stop):
        found = session_schema.decode_session(value)
        yield (
            _decoded(key[1:]), found.username, found.version,
            None if found.expiry_interval == _NEVER else found.expiry_interval,
            not found.disconnected, instant(found.disconnected) if found.disconnected else None, instant(found.created),
        )  # fmt: skip


def subscriptions(reading: Reading, start: bytes, stop: bytes) -> Iterator[pa.RecordBatch]:
    """Yield subscriptions of sessions. Raises SchemaError."""
    return reading.frames.of_rows(_NAMES["subscriptions"], _subscriptions(reading, start, stop))


def _subscriptions(reading: Reading, start: bytes, stop: bytes) -> Iterator[tuple[Any, ...]]:
    for key, value in reading.scan(start, stop):
        client, text = schema.split_subscription(key)
        options, identifier, since, _ = decode_subscription(value)
        yield *_subscribed(client, text, options, identifier), since, None


def replays(reading: Reading, start: bytes, stop: bytes) -> Iterator[pa.RecordBatch]:
    """Yield subscriptions that replay the archive. Raises SchemaError."""
    return reading.frames.of_rows(_NAMES["subscriptions"], _replays(reading, start, stop))


def _replays(reading: Reading, start: bytes, stop: bytes) -> Iterator[tuple[Any, ...]]:
    for key, value in reading.scan(start, stop):
        client, text = replay_schema.split_replay(key)
        found = replay_schema.decode_replay(value)
        yield *_subscribed(client, text, found.options, found.identifier), None, found.position


def _subscribed(client: str, text: bytes, options: int, identifier: int) -> tuple[Any, ...]:
    # SUBSCRIBE's options byte [MQTT 5.0, 3.8.3.1]
    named = _decoded(text)
    group, topic_filter = shared(named)
    return (
        client, named, group, topic_filter, _decoded(first_level(topic_filter.encode())), options & 0x03,
        bool(options & 0x04), bool(options & 0x08), options >> 4 & 0x03, identifier or None,
    )  # fmt: skip


def shared(named: str) -> tuple[str | None, str]:
    """Split a subscribed filter into (share group or None, Topic Filter) [MQTT 5.0, 4.8.2]."""
    if not named.startswith(_SHARE):
        return None, named
    group, _, topic_filter = named.removeprefix(_SHARE).partition("/")
    return group, topic_filter


def inflight(reading: Reading, start: bytes, stop: bytes) -> Iterator[pa.RecordBatch]:
    """Yield messages in flight, from the windows of sessions. Raises SchemaError."""
    return reading.frames.of_rows(_NAMES["inflight"], _inflight(reading, start, stop))


def _inflight(reading: Reading, start: bytes, stop: bytes) -> Iterator[tuple[Any, ...]]:
    for key, value in reading.scan(start, stop):
        client = _decoded(key[1:])
        window = window_of(reading, client, value)
        for packet_id, flags, state, at in window.out:
            if state not in _AWAITS:
                raise SchemaError(f"a message in flight has state {state}")
            is_kept = bool(flags & schema.OWN_RECORD)
            yield (
                client, "out", packet_id, _AWAITS[state], flags & schema.QOS, bool(flags & schema.RETAIN),
                bool(flags & schema.SHARED_COPY), None if is_kept else at,
                _number(reading, client, at) if is_kept else None,
            )  # fmt: skip
        for packet_id in window.arrived:
            yield client, "in", packet_id, "PUBREL", 2, None, None, None, None


def window_of(reading: Reading, client: str, value: bytes) -> windows.Window:
    """Return the window of a session from its record of family V. Raises SchemaError."""
    pages: list[windows.Page] = []
    if windows.has_pages(value):
        prefix = windows.pages_of(client)
        pages += reading.scan(prefix, schema.prefix_end(prefix) or b"")
    return windows.decode_window(value, pages)


def _number(reading: Reading, client: str, record: int) -> int | None:
    # of the message: records of one session have their own numbering
    value = reading.db.get(schema.queued_key(client, record), verify_checksums=True)
    return None if value is None else decode_queued(whole(value, reading.get)).message.number


def handoff(reading: Reading, start: bytes, stop: bytes) -> Iterator[pa.RecordBatch]:
    """Yield batches kept for siblings. Raises SchemaError."""
    return reading.frames.of_rows(_NAMES["handoff"], _handoff(reading, start, stop))


def _handoff(reading: Reading, start: bytes, stop: bytes) -> Iterator[tuple[Any, ...]]:
    own, stores = reading.store.facts, reading.store.snapshot.manifest.stores
    for key, value in reading.scan(start, stop):
        peer, sequence = schema.peer_of_key(key), schema.key_position(key)
        if not sequence:
            continue  # the head of the log: the manifest has it
        entries, _, _ = link_schema.decode_handoff(value)
        stream = own.links.get(peer, LinkFacts()).stream
        taken = stores[peer].links.get(own.peer, LinkFacts()) if peer < len(stores) else LinkFacts()
        yield (
            peer, stream, sequence, None if entries < 0 else entries, len(value),
            taken.taken_stream == stream and sequence <= taken.taken,
        )  # fmt: skip


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SchemaError(f"a name is damaged: {error}") from None

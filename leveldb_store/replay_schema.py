"""The bytes of a subscription that replays the archive: family O. docs/store.md has the table.

Importable without the compiled code, as `leveldb_store.schema` is.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from leveldb_store.schema import REPLAY, SchemaError

FORMAT: Final = 1
HEAD: Final = struct.Struct("<BBIIQQH")
FLOOR: Final = struct.Struct("<BQ")


@dataclass(frozen=True, slots=True)
class StoredReplay:
    """What family O has of one."""

    options: int
    """The byte of its SUBSCRIBE."""
    identifier: int
    """Subscription Identifier; 0: none."""
    number: int
    """Of the replay in its session: the share group's place in a record Q has it."""
    position: int
    """Everything up to this message number was queued; 0: from the earliest message on."""
    lost: int = 0
    """Retention has removed what lay behind this position, and the client has not been told; 0: nothing."""
    floors: dict[int, int] = field(default_factory=dict)
    """By worker that gave the numbers: up to this one it was queued, too."""


def replay_key(client_id: str, topic_filter: bytes) -> bytes:
    """Key of a replay."""
    return REPLAY + client_id.encode() + b"\0" + topic_filter


def split_replay(key: bytes) -> tuple[str, bytes]:
    """(client id, Topic Filter) of a replay's key. Raises SchemaError."""
    client_id, nul, topic_filter = key[1:].partition(b"\0")
    if not nul:
        raise SchemaError("a key of a replay without NUL")
    return client_id.decode(), topic_filter


def encode_replay(replay: StoredReplay) -> bytes:
    """Value of a replay."""
    head = HEAD.pack(
        FORMAT, replay.options, replay.identifier, replay.number, replay.position, replay.lost, len(replay.floors)
    )
    return head + b"".join(FLOOR.pack(*each) for each in sorted(replay.floors.items()))


def decode_replay(value: bytes) -> StoredReplay:
    """Raises SchemaError."""
    try:
        known, options, identifier, number, position, lost, count = HEAD.unpack_from(value)
        floors = dict(FLOOR.iter_unpack(value[HEAD.size :]))
    except struct.error as error:
        raise SchemaError(f"a replay is cut off: {error}") from None
    if known != FORMAT or len(floors) != count or len(value) != HEAD.size + count * FLOOR.size:
        raise SchemaError("a replay is damaged")
    return StoredReplay(options, identifier, number, position, lost, floors)

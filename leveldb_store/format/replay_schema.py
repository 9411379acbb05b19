"""Format of a subscription that replays the archive: family O. docs/store.md has the table.

Importable without the compiled code, like `leveldb_store.format.schema`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from leveldb_store.format.schema import REPLAY, SchemaError

FORMAT: Final = 2
WITHOUT_GONE: Final = 1
"""The format of former releases, which ends after the floors; also written when nothing follows them."""
ALL: Final = 2**64 - 1
HEAD: Final = struct.Struct("<BBIIQQH")
FLOOR: Final = struct.Struct("<BQ")
GONE: Final = struct.Struct("<Q")
WORKERS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class StoredReplay:
    """The record of a replay in family O."""

    options: int
    """The options byte of its SUBSCRIBE."""
    identifier: int
    """Subscription Identifier; 0: none."""
    number: int
    """Number of the replay in its session, in the place of the share group of a record Q."""
    position: int
    """Everything up to this message number was queued; 0: it begins at the earliest message."""
    lost: int = 0
    """Retention has removed messages behind this position, and the client has not been told; 0: none."""
    floors: dict[int, int] = field(default_factory=dict)
    """By worker that gave out the numbers: everything up to this one was queued, too."""
    gone: list[int] = field(default_factory=list)
    """By worker that has the archive: the number up to which the client knows that messages are missing; ALL: it takes
    whatever exists. Empty: none are.
    """


def replay_key(client_id: str, topic_filter: bytes) -> bytes:
    """Return the key of a replay."""
    return REPLAY + client_id.encode() + b"\0" + topic_filter


def split_replay(key: bytes) -> tuple[str, bytes]:
    """Split a replay's key into (client id, Topic Filter). Raises SchemaError."""
    client_id, nul, topic_filter = key[1:].partition(b"\0")
    if not nul:
        raise SchemaError("a key of a replay without NUL")
    return client_id.decode(), topic_filter


def encode_replay(replay: StoredReplay) -> bytes:
    """Encode a replay."""
    head = HEAD.pack(
        FORMAT if replay.gone else WITHOUT_GONE,
        replay.options, replay.identifier, replay.number, replay.position, replay.lost, len(replay.floors),
    )  # fmt: skip
    floors = b"".join(FLOOR.pack(*each) for each in sorted(replay.floors.items()))
    return head + floors + b"".join(map(GONE.pack, replay.gone))


def decode_replay(value: bytes) -> StoredReplay:
    """Decode a replay. Raises SchemaError."""
    try:
        known, options, identifier, number, position, lost, count = HEAD.unpack_from(value)
        behind = HEAD.size + count * FLOOR.size
        floors = dict(FLOOR.iter_unpack(value[HEAD.size : behind]))
        gone = [each for (each,) in GONE.iter_unpack(value[behind:])]
    except struct.error as error:
        raise SchemaError(f"a replay is cut off: {error}") from None
    if (
        known != (FORMAT if gone else WITHOUT_GONE)
        or options & 3 == 3
        or len(floors) != count
        or len(gone) > WORKERS_MAX
    ):
        raise SchemaError("a replay is damaged")
    return StoredReplay(options, identifier, number, position, lost, floors, gone)

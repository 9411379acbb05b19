"""The bytes of a subscription that replays the archive: family O. docs/store.md has the table.

Importable without the compiled code, as `leveldb_store.format.schema` is.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from leveldb_store.format.schema import REPLAY, SchemaError

FORMAT: Final = 2
WITHOUT_GONE: Final = 1
"""The format of former releases, which ends behind the floors; written where there is nothing behind them, too."""
ALL: Final = 2**64 - 1
HEAD: Final = struct.Struct("<BBIIQQH")
FLOOR: Final = struct.Struct("<BQ")
GONE: Final = struct.Struct("<Q")
WORKERS_MAX: Final = 256


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
    gone: list[int] = field(default_factory=list)
    """By worker that has the archive: up to this number something is gone, as it knows; ALL: it takes what is there.
    Empty: of none.
    """


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
        FORMAT if replay.gone else WITHOUT_GONE,
        replay.options, replay.identifier, replay.number, replay.position, replay.lost, len(replay.floors),
    )  # fmt: skip
    floors = b"".join(FLOOR.pack(*each) for each in sorted(replay.floors.items()))
    return head + floors + b"".join(map(GONE.pack, replay.gone))


def decode_replay(value: bytes) -> StoredReplay:
    """Raises SchemaError."""
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

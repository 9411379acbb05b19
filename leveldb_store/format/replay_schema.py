"""Format of a subscription that replays the archive: family O. docs/store.md has the table.

Importable without the compiled code, like `leveldb_store.format.schema`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from leveldb_store.format.schema import REPLAY, SchemaError

OF_HOSTS: Final = 3
"""The format with the archives of other hosts, behind those of this one; also where this one has none."""
FORMAT: Final = 2
"""The format of a replay of this host alone."""
WITHOUT_GONE: Final = 1
"""The format of the first releases, which ends after the floors; also written when nothing follows them."""
ALL: Final = 2**64 - 1
HEAD: Final = struct.Struct("<BBIIQQH")
FLOOR: Final = struct.Struct("<BQ")
GONE: Final = struct.Struct("<Q")
WORKERS_MAX: Final = 256
TAIL: Final = struct.Struct("<HQ?HB")
"""Entries of `gone`, `begins`, whether this host is read, bytes of `lost_at`, other hosts."""
HOST: Final = struct.Struct("<8sIQ?HH")
"""Digits of its archive, host, position, whether the client waits for it, floors, entries of `gone`."""
HOSTS_MAX: Final = 64
LOST_BYTES_MAX: Final = 2 + 31 * HOSTS_MAX


@dataclass(frozen=True, slots=True)
class StoredHost:
    """What a replay has read of the archive of another host."""

    tag: bytes
    """Eight digits that identify the archive."""
    host: int
    """Number of the host in the cluster; 0: not known."""
    position: int
    waits: bool = False
    """Whether the client knows that the host is away."""
    floors: dict[int, int] = field(default_factory=dict)
    gone: list[int] = field(default_factory=list)


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
    begins: int = 0
    """Where it begins with the archive of a host that is not known yet."""
    is_read: bool = True
    """Whether it reads the archive of this host: else there was none."""
    lost_at: bytes = b""
    """The position that the client has to be told of as `lost`, if other hosts are read; empty: none."""
    hosts: list[StoredHost] | None = None
    """Of other hosts; None: it reads this one alone."""


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
    known = FORMAT if replay.gone else WITHOUT_GONE
    if replay.hosts is not None:
        known = OF_HOSTS
    head = HEAD.pack(
        known, replay.options, replay.identifier, replay.number, replay.position, replay.lost, len(replay.floors)
    )
    value = head + _floors(replay.floors)
    if replay.hosts is None:
        return value + _gone(replay.gone)
    tail = len(replay.gone), replay.begins, replay.is_read, len(replay.lost_at), len(replay.hosts)
    value += TAIL.pack(*tail) + _gone(replay.gone) + replay.lost_at
    for each in replay.hosts:
        value += HOST.pack(each.tag, each.host, each.position, each.waits, len(each.floors), len(each.gone))
        value += _floors(each.floors) + _gone(each.gone)
    return value


def _floors(floors: dict[int, int]) -> bytes:
    return b"".join(FLOOR.pack(*each) for each in sorted(floors.items()))


def _gone(gone: list[int]) -> bytes:
    return b"".join(map(GONE.pack, gone))


def decode_replay(value: bytes) -> StoredReplay:
    """Decode a replay. Raises SchemaError."""
    try:
        known, options, identifier, number, position, lost, count = HEAD.unpack_from(value)
        reader = _Reader(value, HEAD.size)
        floors = reader.floors(count)
        if known == OF_HOSTS:
            return _of_hosts(reader, options, identifier, number, position, lost, floors)
        gone = [each for (each,) in GONE.iter_unpack(value[reader.at :])]
    except (struct.error, ValueError) as error:
        raise SchemaError(f"a replay is damaged or cut off: {error}") from None
    if known != (FORMAT if gone else WITHOUT_GONE) or options & 3 == 3 or len(gone) > WORKERS_MAX:
        raise SchemaError("a replay is damaged")
    return StoredReplay(options, identifier, number, position, lost, floors, gone)


class _Reader:
    """Reads the lists of a record in turn."""

    def __init__(self, value: bytes, at: int) -> None:
        self.value = value
        self.at = at

    def take(self, length: int) -> bytes:
        if self.at + length > len(self.value):
            raise ValueError("it ends too soon")
        self.at += length
        return self.value[self.at - length : self.at]

    def floors(self, count: int) -> dict[int, int]:
        floors = dict(FLOOR.iter_unpack(self.take(count * FLOOR.size)))
        if len(floors) != count:
            raise ValueError("a worker is named twice")
        return floors

    def gone(self, count: int) -> list[int]:
        if count > WORKERS_MAX:
            raise ValueError("too many workers")
        return [each for (each,) in GONE.iter_unpack(self.take(count * GONE.size))]


def _of_hosts(
    reader: _Reader, options: int, identifier: int, number: int, position: int, lost: int, floors: dict[int, int]
) -> StoredReplay:
    gone_count, begins, is_read, lost_bytes, count = TAIL.unpack(reader.take(TAIL.size))
    gone = reader.gone(gone_count)
    lost_at = reader.take(lost_bytes)
    if count > HOSTS_MAX or lost_bytes > LOST_BYTES_MAX or lost or options & 3 == 3:
        raise ValueError("its head is damaged")
    hosts = []
    for _ in range(count):
        tag, host, reached, waits, floor_count, host_gone = HOST.unpack(reader.take(HOST.size))
        hosts.append(StoredHost(tag, host, reached, waits, reader.floors(floor_count), reader.gone(host_gone)))
    if reader.at != len(reader.value):
        raise ValueError("something follows it")
    return StoredReplay(options, identifier, number, position, 0, floors, gone, begins, is_read, lost_at, hosts)

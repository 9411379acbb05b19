"""Search for unreachable records in a store, which belong to nothing that exists: an independent reader of its keys.

The broker deletes a record together with its owner, in one batch. Any record found here was left behind by a defect, or
by an earlier release: it takes room forever, or reappears in a later session of the same client.

    subscription, window, a page of it,
        queued message, replay                      of a client without a session
    queued message                                  older than its session
    message with a record of its own                that is queued for no session
    will                                            that waits for its delay, of a client without a session
    part, trim and spans of an index                with a number that no index has, nor one being deleted
    block                                           that no part lists, or that waits for more parts than exist
    count of a block                                that does not exist
    hand-off log, link position                     of a worker that does not exist

Indexes of filters without a subscription are not reported: sessions that do not last have them too; they are forgotten
within seconds, and those of a worker that was killed when the next one begins.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from leveldb_store.format import schema, session_schema
from leveldb_store.format.queued_messages import message_of
from pyx.core.peer import is_sibling

__all__ = ["Stray", "unreachable"]

_NUMBER_WORKER_BITS: Final = 8
"""The low byte of a message number: the worker that gave it out."""
_DRAWN: Final = 64
"""As a worker's number, or above: given out by a change of the number of workers, by the clock of that moment."""
Scan = Callable[[bytes], Iterable[tuple[bytes, bytes]]]
Get = Callable[[bytes], bytes | None]


class Stray(NamedTuple):
    """A record that belongs to nothing."""

    kind: str
    key: bytes


def unreachable(scan: Scan, get: Get) -> Iterator[Stray]:
    """Yield all stray records of a store. `scan(prefix)`: its records, rising; `get(key)`: one, or None. Raises
    SchemaError where a record on which others depend is unreadable.
    """
    yield from _of_clients(scan, get)
    yield from _of_the_log(scan)
    yield from _of_links(scan)


def _of_clients(scan: Scan, get: Get) -> Iterator[Stray]:
    at, session = b"\0", None  # records of a client follow each other

    def session_of(client_id: bytes) -> session_schema.StoredSession | None:
        nonlocal at, session
        if client_id != at:
            value = get(schema.SESSION + client_id)
            at, session = client_id, None if value is None else session_schema.decode_session(value)
        return session

    kinds = {
        schema.SUBSCRIPTION: "subscription of no session",
        schema.REPLAY: "replay of no session",
        schema.WINDOW: "window of no session",
        schema.WINDOW_PAGE: "page of a window of no session",
    }
    for family, kind in kinds.items():
        for key, _ in scan(family):
            if session_of(key[1:].partition(b"\0")[0]) is None:
                yield Stray(kind, key)
    waiting = {message_of(value) for _, value in scan(schema.SET_ASIDE + schema.QUEUED)}
    for key, value in scan(schema.QUEUED):
        waiting.add(message_of(value))
        found = session_of(key[1:-9])
        if found is None:
            yield Stray("queued message of no session", key)
        elif key[-1] < _DRAWN and schema.key_position(key) >> _NUMBER_WORKER_BITS < found.created * 1000:
            yield Stray("queued message of a former session", key)
    for key, _ in scan(schema.MESSAGE):
        if schema.key_position(key) not in waiting:
            yield Stray("message that is queued for no session", key)
    for key, value in scan(schema.WILL):
        if session_of(key[1:]) is None and session_schema.decode_will(value).due:
            yield Stray("will of no session", key)


def _of_the_log(scan: Scan) -> Iterator[Stray]:
    numbers = {schema.decode_u32(value) for _, value in scan(schema.NAME)}
    numbers |= {schema.key_number(key) for key, _ in scan(schema.GONE)}
    blocks = array("Q", (schema.key_position(key) for key, _ in scan(schema.BLOCK)))
    listed = array("I", bytes(4 * len(blocks)))
    wanted = array("I", bytes(4 * len(blocks)))

    def place(position: int) -> int | None:
        at = bisect_left(blocks, position)
        return at if at < len(blocks) and blocks[at] == position else None

    for key, value in scan(schema.PART):
        if schema.key_number(key) not in numbers:
            yield Stray("part of no index", key)
        part = schema.decode_part(key, value)
        at = place(part.block)
        if at is not None:
            listed[at] += 1
            wanted[at] = part.indexes
    for family, kind in ((schema.TRIMMED, "trim of no index"), (schema.DROPPED, "spans of no index")):
        for key, _ in scan(family):
            if schema.key_number(key) not in numbers:
                yield Stray(kind, key)
    for key, value in scan(schema.WANTED):
        at = place(schema.key_position(key))
        if at is None:
            yield Stray("count of no block", key)
        else:
            wanted[at] = schema.decode_u32(value)
    for position, parts, counted in zip(blocks, listed, wanted, strict=True):
        if not parts:
            yield Stray("block that no index lists", schema.block_key(position))
        elif parts < counted:
            yield Stray("block that waits for parts that are deleted", schema.block_key(position))


def _of_links(scan: Scan) -> Iterator[Stray]:
    workers = next((json.loads(value)["workers"] for key, value in scan(schema.STORE) if key == schema.STORE), None)
    if workers is None:
        return
    for family, kind in ((schema.HANDOFF, "hand-off log of no worker"), (schema.PEER, "link position of no worker")):
        for key, _ in scan(family):
            peer = schema.peer_of_key(key)
            if is_sibling(peer) and peer >= workers:
                yield Stray(kind, key)

"""A plain reader of the archives in a data directory whose broker does not run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import plyvel

from leveldb_store.format import archive_schema as schema
from leveldb_store.format.archive_schema import ArchivedMessage
from leveldb_store.format.schema import ARCHIVED
from shards.data_dir import read_layout

__all__ = ["Row", "archived", "blocks", "numbers"]


class Row(NamedTuple):
    """An archived message, and its place."""

    store: int
    origin: int
    topic_filter: bytes
    archived: ArchivedMessage

    @property
    def number(self) -> int:
        """Number of the message."""
        return self.archived.message.number

    @property
    def payload(self) -> bytes:
        """Payload of the message."""
        return self.archived.message.payload


def blocks(data_dir: str | os.PathLike[str]) -> Iterator[tuple[int, bytes, bytes, bytes]]:
    """Yield (store, filter of the rule, key, value) of every block."""
    found = read_layout(str(data_dir))
    for store in range(found.workers):
        with plyvel.DB(str(Path(found.path(str(data_dir), store)))) as db:
            rules = {}
            for key, value in db.iterator(prefix=b"C"):
                rule = schema.decode_rule(key, value)
                rules[rule.number] = rule.topic_filter
            for key, value in db.iterator(prefix=ARCHIVED):
                yield store, rules[schema.split_block(key)[0]], key, value


def archived(data_dir: str | os.PathLike[str]) -> list[Row]:
    """Return all messages, sorted by number."""
    rows = [
        Row(store, schema.split_block(key)[1], topic_filter, each)
        for store, topic_filter, key, value in blocks(data_dir)
        for each in schema.decode_block(value)
    ]
    return sorted(rows, key=lambda row: row.number)


def numbers(rows: list[Row]) -> list[int]:
    """Return the message numbers; AssertionError if one occurs twice."""
    found = [row.number for row in rows]
    assert len(set(found)) == len(found)
    return found

"""Reading while the writer's thread deletes and reopens the database."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveldb_store.engine.database import PAGE_RECORDS_MAX
from leveldb_store.format import schema
from leveldb_store.format.events import key_number
from leveldb_store.store import LevelStore
from pyx.storage.stored import part_ends
from tests.contract.test_level_store import wait_durable
from tests.contract.test_stores import Writer


def test_a_block_that_is_deleted_while_it_is_read_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer deletes parts and their blocks in one batch. A reader that has seen a part finds its block."""
    store = LevelStore(tmp_path / "0", tail_bytes_max=1, say=pytest.fail)
    writer = Writer(store)
    for body in (b"1", b"2", b"3"):
        wait_durable(store, writer.append((body, (b"a",))))
    wait_durable(store, writer.append((b"4", (b"a",))))
    ends = part_ends

    def deleted(value: bytes, first: int) -> tuple[int, int, int]:
        with store._database.db.write_batch() as batch:
            for family in (schema.PART, schema.BLOCK):
                for key, _ in store._database.db.iterator(prefix=family):
                    batch.delete(key)
        return ends(value, first)

    monkeypatch.setattr("leveldb_store.reading.part_ends", deleted)
    batch, reached = store._reader.batch(1, 0, 3, 1 << 20, 4)
    assert [bytes(message.payload) for _, message in batch.items()] == [b"1", b"2", b"3"]
    assert (reached, store._reader.blocks_left_out) == (3, 0)
    store.close()


def test_a_family_is_read_to_its_end_although_the_database_is_opened_anew(tmp_path: Path) -> None:
    store = LevelStore(tmp_path / "0", say=pytest.fail)
    many = 2 * PAGE_RECORDS_MAX + 10
    for number in range(many):
        store.put(schema.SESSION + b"%06d" % number, b"x")
    wait_durable(store, store.flush())
    found = store.scan(schema.SESSION)
    keys = [next(found)[0]]
    store._database.reopen(OSError("refused"))
    for key, _ in found:
        keys.append(key)
        if len(keys) % 700 == 0:
            store._database.reopen(OSError("refused"))
    assert keys == [schema.SESSION + b"%06d" % number for number in range(many)]
    assert list(store.scan(b"Z")) == []
    store.close()


def test_a_page_is_bounded_by_bytes_too(tmp_path: Path) -> None:
    store = LevelStore(tmp_path / "0", say=pytest.fail)
    for number in range(5):
        store.put(schema.RETAINED + b"%d" % number, bytes(600_000))
    wait_durable(store, store.flush())
    page, is_all = store._database._page(schema.RETAINED, schema.prefix_end(schema.RETAINED))
    assert (len(page), is_all) == (2, False)
    assert len(list(store.scan(schema.RETAINED))) == 5
    assert next(iter(store.scan(b"")))[0] < schema.RETAINED
    store.close()


def test_the_database_is_not_opened_anew_while_events_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LevelStore(tmp_path / "0", say=pytest.fail)
    for number in range(1, 4):
        store.record(number << 8, b"event")
    store.pass_on()
    store.put(b"Sme", b"{}")
    wait_durable(store, store.flush())
    locked: list[bool] = []

    def noted(key: bytes) -> int:
        locked.append(store._database.lock.locked())
        return key_number(key)

    monkeypatch.setattr("leveldb_store.event_log.key_number", noted)
    assert len(store.events(0, 1 << 20)[0]) == 3
    assert locked == [True] * 3
    store.close()

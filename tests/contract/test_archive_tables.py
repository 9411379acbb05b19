"""Tables that overlap, vanish and return: the positions that each reports, and the notices that readers get."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from leveldb_store.archive.archive import ArchiveTable
from leveldb_store.archive.rules import GONE_MAX
from leveldb_store.contract import FallenBehind
from leveldb_store.format import archive_schema as schema
from leveldb_store.format.schema import ARCHIVE_RULE
from leveldb_store.store import LevelStore
from tests.contract.test_archive import Source, opened, read, table
from tests.waiting import wait_until

MB = 1 << 20
YEAR = 8760.0


def restarted(source: Source, path: Path, *tables: ArchiveTable) -> Source:
    source.store.close()
    source.store = opened(path, *tables)
    assert source.store.archive.highest >= source.number or not source.rows
    source.number = max(source.number, source.store.archive.highest)
    return source


def fill(source: Source, topic: bytes, blocks: int, size: int = 20_000) -> None:
    for number in range(blocks):
        source.archive(topic, b"%d" % number + bytes(size))
        source.commit()


def removes(store: LevelStore, topic_filter: bytes) -> int:
    """Wait for retention, and return the position up to which it has removed."""
    wait_until(lambda: store.archive.start(topic_filter) > 0, 30, "something is removed")
    return store.archive.start(topic_filter)


def is_gone(store: LevelStore, topic_filter: bytes, after: int) -> bool:
    try:
        store.archive.read([topic_filter], after, 1)
    except FallenBehind:
        return True
    return False


def test_a_table_removes_only_its_own(tmp_path: Path) -> None:
    """`alarms/#` is kept for a year; retention of `#` behind it removes no alarm."""
    source = Source(opened(tmp_path / "0", table(b"alarms/#", YEAR * 100), table(b"#", size=MB)))
    source.archive(b"alarms/1", b"first")
    source.commit()
    first = source.number
    fill(source, b"sensor/1", 80)
    source.archive(b"alarms/1", b"second")
    source.commit()
    store = source.store
    start = removes(store, b"sensor/1")
    assert start > first
    assert store.archive.start(b"#") == start
    assert store.archive.start(b"alarms/#") == store.archive.start(b"alarms/1") == 0
    assert [row[2] for row in read(store, [b"alarms/+"])] == [b"first", b"second"]
    source = restarted(source, tmp_path / "0", table(b"alarms/#", YEAR * 100), table(b"#", size=MB))
    assert source.store.archive.start(b"alarms/1") == 0
    source.store.close()


@pytest.mark.parametrize("was", ["behind", "away"])
def test_what_a_table_had_before_another_was_put_in_front_counts(tmp_path: Path, was: str) -> None:
    tables: Sequence[ArchiveTable] = [table(b"#", size=MB), *([table(b"alarms/#")] if was == "behind" else [])]
    path = tmp_path / "0"
    source = Source(opened(path, *tables))
    source.archive(b"alarms/1", b"in #")
    source.commit()
    source = restarted(source, path, table(b"alarms/#"), table(b"#", size=MB))
    changed = source.number
    assert source.store.archive.start(b"alarms/1") == 0  # archived without a gap: `#` was there
    source.archive(b"alarms/1", b"in its own")
    fill(source, b"sensor/1", 80)
    assert removes(source.store, b"sensor/1") > changed
    assert source.store.archive.start(b"alarms/1") == changed
    assert not is_gone(source.store, b"alarms/1", changed)
    assert is_gone(source.store, b"alarms/1", changed - 1)
    assert [row[2] for row in read(source.store, [b"alarms/1"], changed)] == [b"in its own"]
    source.store.close()


def test_a_table_that_comes_back_has_a_gap(tmp_path: Path) -> None:
    """After a table was removed, had expired and was added again, positions from its earlier life are refused."""
    path = tmp_path / "0"
    source = Source(opened(path, table(b"a/#", hours=0.001), table(b"b")))
    fill(source, b"a/1", 3)
    source.archive(b"b", b"1")
    source.commit()
    before = source.number
    wait_until(lambda: source.store.archive.start(b"a/1") > 0, 30, "it is old")
    source = restarted(source, path, table(b"b"))
    source.archive(b"a/1", b"lost")
    source.archive(b"b", b"2")
    source.commit()
    away = source.number
    source = restarted(source, path, table(b"a/#", hours=0.001), table(b"b"))
    assert source.store.archive.start(b"a/1") >= away
    assert is_gone(source.store, b"a/1", before)
    assert is_gone(source.store, b"a/1", away - 1)
    assert source.store.archive.start(b"b") == 0
    source.store.close()


def test_tables_that_take_over_from_each_other_leave_no_gap(tmp_path: Path) -> None:
    path = tmp_path / "0"
    source = Source(opened(path, table(b"a/b/#")))
    for number, tables in enumerate([[b"a/#"], [b"#"], [b"a/+/c", b"a/#"], [b"a/#"], [b"a/b/#"]]):
        source.archive(b"a/b/c", b"%d" % number)
        source.commit()
        source = restarted(source, path, *map(table, tables))
        assert source.store.archive.start(b"a/b/c") == 0
        assert [row[2] for row in read(source.store, [b"a/b/c"])] == [b"%d" % n for n in range(number + 1)]
    assert source.store.archive.covers(b"a/b/c")
    source.store.close()


def test_a_new_table_begins_with_its_start(tmp_path: Path) -> None:
    path = tmp_path / "0"
    source = Source(opened(path, table(b"a")))
    source.archive(b"a", b"1")
    source.commit()
    source = restarted(source, path, table(b"a"), table(b"b"))
    assert source.store.archive.start(b"b") == source.number
    assert source.store.archive.start(b"a") == 0
    source.store.close()


def test_rules_that_are_gone_are_remembered_within_bounds(tmp_path: Path) -> None:
    path = tmp_path / "0"
    source = Source(opened(path, *(table(b"t/%d" % n, hours=0.001) for n in range(GONE_MAX + 5)), table(b"b")))
    for number in range(GONE_MAX + 5):
        source.archive(b"t/%d" % number, b"old")
    source.commit()
    wait_until(lambda: source.store.archive.held_bytes == 0, 30, "all is old")
    fifth = source.rows[4][0]
    source = restarted(source, path, table(b"b"))
    assert source.store.archive.start(b"b") == fifth
    source = restarted(source, path, table(b"b"))
    wait_until(lambda: len(list(source.store.scan(ARCHIVE_RULE))) == GONE_MAX + 1, 30, "five are forgotten")
    assert source.store.archive.start(b"b") == fifth
    assert source.store.archive.start(b"t/100") > fifth
    source.store.close()


def test_rules_of_an_older_release_count_from_now_on(tmp_path: Path) -> None:
    path = tmp_path / "0"
    source = Source(opened(path, table(b"alarms/#"), table(b"#", size=MB)))
    fill(source, b"sensor/1", 80)
    removed = removes(source.store, b"#")
    for key, value in list(source.store.scan(ARCHIVE_RULE)):
        source.store.put(key, value[: schema.RULE_1.size])
    source.commit()
    source = restarted(source, path, table(b"alarms/#"), table(b"#", size=MB))
    assert source.store.archive.start(b"alarms/1") >= removed  # the earlier position is all that is known
    before = source.number
    fill(source, b"sensor/1", 80)
    wait_until(lambda: source.store.archive.start(b"#") > before, 30, "more is removed")
    assert source.store.archive.start(b"alarms/1") <= before
    source.store.close()

"""The archive of a damaged store: unreadable parts are skipped, logged and reported to readers; the rest is kept."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import plyvel
import pytest

from leveldb_store.archive.archive import ArchiveOptions, ArchiveTable
from leveldb_store.contract import FallenBehind
from leveldb_store.format import archive_schema as schema
from leveldb_store.format.schema import ARCHIVE_REMOVED, ARCHIVE_RULE, ARCHIVED
from leveldb_store.store import LevelStore
from pyx.protocol.message import Message
from pyx.protocol.wire import refuse_disallowed
from tests.contract.test_archive import Source, opened, table
from tests.waiting import wait_until

MB = 1 << 20


def followed(store: LevelStore, filters: list[bytes], after: int = 0, size: int = 65536) -> list[bytes]:
    """Return the payloads for a reader that continues behind each gap; a gap is b"?"."""
    got: list[bytes] = []
    while True:
        try:
            page = store.archive.read(filters, after, size)
        except FallenBehind as fallen:
            got.append(b"?" if fallen.earliest > after else b"it knows that")
            page = store.archive.read(filters, after, size, with_gaps=True)
        assert page.up_to > after or page.is_end
        assert all(after < each.number <= page.up_to for each in page.messages)
        got += [bytes(each.payload) for each in page.messages]
        if page.is_end:
            return got
        after = page.up_to


def filled(path: Path, blocks: int, *tables: ArchiveTable, size: int = 0) -> Source:
    """Return a source with one block for each message: its number, and so many bytes."""
    source = Source(opened(path, *tables))
    for number in range(blocks):
        source.archive(b"a/b", b"%d" % number + bytes(size))
        source.commit()
    return source


def keys_of(path: Path, family: bytes) -> list[bytes]:
    with plyvel.DB(str(path)) as db:
        return [key for key, _ in db.iterator(prefix=family)]


def put(path: Path, key: bytes, change: Callable[[bytes], bytes]) -> None:
    with plyvel.DB(str(path)) as db:
        value = db.get(key)
        assert value is not None
        db.put(key, change(value))


def reopened(path: Path, said: list[str], *tables: ArchiveTable) -> Source:
    return Source(LevelStore(path, archive=ArchiveOptions("e", 0, tables), say=said.append))


NONSENSE = {
    "empty": lambda value: b"",  # noqa: ARG005
    "unknown": lambda value: b"\x07" + value[1:],
    "head cut off": lambda value: value[:9],
    "cut off": lambda value: value[:-1],
    "more": lambda value: value + b"?",
    "a number beyond": lambda value: value.replace(value[5:13], b"\xff" * 7 + b"\x7f"),
    "a number before": lambda value: value.replace(value[5:13], b"\x01" + bytes(7)),
    "no count": lambda value: value[:1] + bytes(4) + value[5:],
}


@pytest.mark.parametrize("at", [0, 3, 9], ids=["first", "middle", "last"])
@pytest.mark.parametrize("how", NONSENSE)
def test_a_damaged_block_is_one_block_wherever_it_is(tmp_path: Path, how: str, at: int) -> None:
    path = tmp_path / "0"
    filled(path, 10, table(b"#")).store.close()
    put(path, keys_of(path, ARCHIVED)[at], NONSENSE[how])
    said: list[str] = []
    source = reopened(path, said, table(b"#"))
    source.number = source.store.archive.highest
    expected = [b"?" if number == at else b"%d" % number for number in range(10)]
    for size in (1, 65536):
        assert followed(source.store, [b"a/#"], size=size) == expected
    assert len(said) <= 2, said  # once at the start, once by the first reader
    assert said
    source.archive(b"a/b", b"10")
    source.commit()
    assert followed(source.store, [b"#"]) == [*expected, b"10"]
    source.store.close()


@pytest.mark.parametrize("how", NONSENSE)
def test_damage_does_not_switch_retention_off(tmp_path: Path, how: str) -> None:
    path = tmp_path / "0"
    filled(path, 40, table(b"#", size=MB), size=20_000).store.close()
    for key in keys_of(path, ARCHIVED)[1:6]:
        put(path, key, NONSENSE[how])
    said: list[str] = []
    source = reopened(path, said, table(b"#", size=MB))
    source.number = source.store.archive.highest
    for number in range(40, 150):
        source.archive(b"a/b", b"%d" % number + bytes(20_000))
        source.commit()
    store = source.store
    wait_until(lambda: _on_disk(store) <= MB, 30, "the table is within its bytes")
    assert _on_disk(store) > MB // 2
    wait_until(lambda: store.archive.held_bytes == _on_disk(store), 30, "it is counted exactly again")
    assert len(said) <= 6, said
    store.close()


def _on_disk(store: LevelStore) -> int:
    return sum(len(key) + len(value) for key, value in store.scan(ARCHIVED))


def test_retention_by_age_goes_on_behind_damage(tmp_path: Path) -> None:
    path = tmp_path / "0"
    filled(path, 10, table(b"#")).store.close()
    keys = keys_of(path, ARCHIVED)
    put(path, keys[0], NONSENSE["empty"])
    put(path, keys[9], NONSENSE["empty"])
    source = reopened(path, [], table(b"#", hours=0.001))
    wait_until(lambda: not _on_disk(source.store), 30, "all of 2023 is removed")
    assert source.store.archive.held_bytes == 0
    source.store.close()


def test_characters_that_are_refused_since_are_no_damage(tmp_path: Path) -> None:
    properties = b"\x26\x00\x01a\x00\x01\x01\x03\x00\x01\x02\x0b\x80\x01\x23\x00\x01\x01\x01\x02\x00\x00\x00\x3c"
    source = Source(opened(tmp_path / "0", table(b"#")))
    number = source.number + 256
    message = Message.create(b"a", b"1", 1, False, properties, number, 1 << 50, len(properties) - 4, "me")
    assert source.store.archive.archiver.add(message)
    source.commit()
    refuse_disallowed(True)
    try:
        (found,) = source.store.archive.read([b"a"], 0, 1000).messages
    finally:
        refuse_disallowed(False)
    assert (found.properties, found.expires) == (properties, 1 << 50)
    source.store.close()


# ---------------------------------------------------------------- tables of LevelDB


def unreadable(path: Path, table_at: int = 0, offset: int = 500) -> None:
    """Move everything into tables, and change one byte of one of them."""
    with plyvel.DB(str(path)) as db:
        db.compact_range()
    file = sorted(path.glob("*.ldb"))[table_at]
    data = bytearray(file.read_bytes())
    data[offset] ^= 0xFF
    file.write_bytes(bytes(data))


@pytest.mark.parametrize("seed", range(6))
def test_an_unreadable_part_of_a_table_is_passed_over_and_told(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    path = tmp_path / "0"
    source = Source(opened(path, table(b"#")))
    for number in range(300):
        source.archive(b"a/b", b"%d" % number + choose.randbytes(200))
        source.commit()
    source.store.close()
    unreadable(path, 0, choose.choice([8_000, 20_000, 40_000]))
    said: list[str] = []
    source = reopened(path, said, table(b"#"))
    source.number = source.store.archive.highest
    got = [payload[:3] for payload in followed(source.store, [b"a/b"], size=choose.choice([1, 10_000]))]
    assert got.count(b"?") == 1
    assert 250 < len(got) < 300
    assert len(said) <= 2
    source.archive(b"a/b", b"more")
    source.commit()
    assert followed(source.store, [b"a/b"])[-1] == b"more"
    source.store.close()


def test_retention_passes_an_unreadable_part_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "0"
    choose = random.Random(1)
    source = Source(opened(path, table(b"#")))
    for number in range(300):
        source.archive(b"a/b", b"%d" % number + choose.randbytes(2000))
        source.commit()
    last = source.number
    source.store.close()
    unreadable(path, 0, 100_000)
    said: list[str] = []
    source = reopened(path, said, table(b"#", hours=0.001))
    archive = source.store.archive
    wait_until(lambda: archive.start(b"a/b") == last, 30, "all that can be read is removed")
    wait_until(lambda: archive.held_bytes == 0, 30, "and counted")
    assert len(said) <= 2
    source.store.close()


# ---------------------------------------------------------------- records


def test_a_damaged_rule_keeps_its_blocks(tmp_path: Path) -> None:
    """The rule's filter is in its key, and only one rule number has blocks and no rule: they belong together."""
    path = tmp_path / "0"
    source = Source(opened(path, table(b"a/#"), table(b"b")))
    source.archive(b"a/b", b"1")
    source.archive(b"b", b"2")
    source.commit()
    source.store.close()
    put(path, schema.rule_key(b"a/#"), lambda value: value[:-1])
    said: list[str] = []
    source = reopened(path, said, table(b"a/#"), table(b"b"))
    assert followed(source.store, [b"#"]) == [b"1", b"2"]
    assert len(said) == 1
    source.store.close()
    assert reopened(path, said, table(b"a/#")).store.archive.held_bytes > 0
    assert len(said) == 1


def test_blocks_of_which_no_rule_is_known_are_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "0"
    source = Source(opened(path, table(b"a/#"), table(b"b")))
    source.archive(b"a/b", b"1")
    source.archive(b"b", b"2")
    source.commit()
    source.store.close()
    for text in (b"a/#", b"b"):
        put(path, schema.rule_key(text), lambda value: b"")  # noqa: ARG005
    before = keys_of(path, ARCHIVED)
    said: list[str] = []
    source = reopened(path, said, table(b"a/#"), table(b"b"))
    assert said
    source.number = source.store.archive.highest
    source.archive(b"a/b", b"3")
    source.commit()
    assert followed(source.store, [b"#"]) == [b"3"]
    source.store.close()
    assert set(before) < set(keys_of(path, ARCHIVED))
    assert len(keys_of(path, ARCHIVE_RULE)) == 2


def test_what_was_removed_is_guessed_when_its_record_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "0"
    source = filled(path, 60, table(b"#", size=MB), size=50_000)
    wait_until(lambda: source.store.archive.start(b"a/b") > 0, 30, "something is removed")
    source.store.close()
    start = source.store.archive.start(b"a/b")
    (key,) = keys_of(path, ARCHIVE_REMOVED)
    put(path, key, lambda value: value[:3])
    said: list[str] = []
    again = reopened(path, said, table(b"#", size=MB))
    assert again.store.archive.start(b"a/b") >= start
    assert len(said) == 1
    with pytest.raises(FallenBehind):
        again.store.archive.read([b"a/b"], start - 1, 1000)
    again.store.close()

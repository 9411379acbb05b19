"""Summaries of the archive: what they say of topics, and that readers look at little else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from leveldb_store import archive_blocks
from leveldb_store import archive_schema as schema
from leveldb_store.schema import ARCHIVE_SUMMARY, SchemaError
from leveldb_store.store import LevelStore
from pyx.archive import Archiver
from pyx.archived import may_match, note_topics, place_of
from pyx.message import Message
from tests.contract.test_archive import FILTERS, LEVELS, Source, matches, opened, read, table
from tests.waiting import wait_until


def records_of(topics: list[bytes]) -> bytes:
    archiver = Archiver([b"#", b"$x/#"])
    for number, topic in enumerate(topics, 1):
        archiver.add(Message.create(topic, b"x" * (number % 3), number % 3, number=number, publisher="me"))
    return b"".join(block[5] for block in archiver.take())


def bits_of(topics: list[bytes]) -> bytes:
    bits = bytearray(schema.SUMMARY_BITS_BYTES)
    note_topics(bits, records_of(topics))
    return bytes(bits)


def test_a_summary_is_these_bits_both_ways() -> None:
    assert sorted(schema.summarised(b"a/b")) == [2710, 3084, 3209, 7238, 7322, 7454]
    choose = random.Random(1)
    for _ in range(50):
        topics = [b"/".join(choose.choices([*LEVELS, b"sensor-7"], k=choose.randint(1, 4))) for _ in range(100)]
        expected = set().union(*map(schema.summarised, topics))
        found = bits_of(topics)
        assert {bit for bit in range(8 * len(found)) if found[bit >> 3] >> (bit & 7) & 1} == expected
        for text in FILTERS:
            if any(matches(text, topic) for topic in topics):
                assert may_match(found, text)


def test_most_that_is_not_there_is_not_found() -> None:
    bits = bits_of([b"fleet/%d/temperature" % number for number in range(256)])
    assert not may_match(bits, b"fleet/+/alarm")
    assert not may_match(bits, b"+/+/alarm")
    assert not may_match(bits, b"other/#")
    assert may_match(bits, b"fleet/#")
    assert may_match(bits, b"fleet/7/#")
    assert may_match(bits, b"+/255/temperature")
    assert sum(may_match(bits, b"fleet/%d/temperature" % number) for number in range(1000, 2000)) < 50


def test_a_summary_is_these_bytes() -> None:
    assert schema.summary_key(1, 2, 3) == b"M\x00\x01\x02" + bytes(7) + b"\x03"
    bits = bits_of([b"a"])
    value = schema.encode_summary(5, 6, bits)
    assert value[:13].hex() == "01050000000000000006000000"
    assert schema.decode_summary(value) == (5, 6, bits)
    for wrong in (value[:-1], value + b"?", b"\2" + value[1:]):
        with pytest.raises(SchemaError):
            schema.decode_summary(wrong)


def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with each block that a reader looks at."""
    looked: list[int] = []

    def counted(key: bytes, value: bytes, behind: int) -> Any:
        looked.append(len(value))
        return place_of(key, value, behind)

    monkeypatch.setattr(archive_blocks, "place_of", counted)
    return looked


def filled(path: Path, blocks: int) -> Source:
    source = Source(opened(path, table(b"#")))
    for number in range(blocks):
        source.archive(b"fleet/%d/temperature" % (number % 50), b"1")
        source.store.append_archived()
        if number == blocks // 2:
            source.archive(b"fleet/7/alarm", b"hot")
            source.commit()
    source.commit()
    return source


def test_a_rare_filter_reads_what_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = 40 * schema.SUMMARY_BLOCKS
    source = filled(tmp_path / "0", blocks)
    looked = looked_at(monkeypatch)
    assert [row[2] for row in read(source.store, [b"+/+/alarm"])] == [b"hot"]
    # one of each stretch, the stretch that has it, and the last one, which has no summary
    assert 40 <= len(looked) < 40 + 3 * schema.SUMMARY_BLOCKS
    looked.clear()
    assert read(source.store, [b"fleet/none/temperature"]) == []
    assert len(looked) < 40 + 2 * schema.SUMMARY_BLOCKS
    source.store.close()
    source.store = opened(tmp_path / "0", table(b"#"))
    looked.clear()
    assert [row[2] for row in read(source.store, [b"+/+/alarm"], size=1)] == [b"hot"]
    assert len(looked) < 40 + 4 * schema.SUMMARY_BLOCKS
    source.store.close()


def test_a_page_passes_over_so_much_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_blocks, "_PASSED_MAX", 4)
    source = filled(tmp_path / "0", 20 * schema.SUMMARY_BLOCKS)
    looked = looked_at(monkeypatch)
    page = source.store.archive.read([b"none"], 0, 1000)
    assert (page.messages, page.is_end) == ([], False)
    assert len(looked) == 4
    assert page.up_to > source.rows[4 * schema.SUMMARY_BLOCKS - 2][0]
    assert [row[2] for row in read(source.store, [b"+/+/alarm"])] == [b"hot"]
    source.store.close()


def _summaries(store: LevelStore) -> list[int]:
    return [schema.split_block(key)[2] for key, _ in store.scan(ARCHIVE_SUMMARY)]


def test_summaries_go_with_their_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "SUMMARY_BLOCKS", 3)
    source = Source(opened(tmp_path / "0", table(b"a", size=1 << 20), table(b"b")))
    for number in range(90):
        source.archive(b"a", b"%d" % number + bytes(20_000))
        source.archive(b"b", b"1")
        source.commit()
    archive = source.store.archive
    wait_until(lambda: archive.start(b"a") > 0 and archive.held_bytes < 1 << 20, 30, "something is removed")
    wait_until(lambda: len(_summaries(source.store)) < 60, 30, "and their summaries")
    start = archive.start(b"a")
    for key, _ in source.store.scan(ARCHIVE_SUMMARY):
        rule, _, last = schema.split_block(key)
        assert rule == 2 or last > start
    assert read(source.store, [b"a"], start) == [row for row in source.rows if row[0] > start and row[1] == b"a"]
    source.store.close()

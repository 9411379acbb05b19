"""Summaries of the archive: their statements about topics, and that readers look at little else."""

from __future__ import annotations

import random
from bisect import bisect_left
from pathlib import Path
from typing import Any

import plyvel
import pytest

from leveldb_store.archive import archive as archive_module
from leveldb_store.archive import blocks as archive_blocks
from leveldb_store.format import archive_schema as schema
from leveldb_store.format.schema import ARCHIVE_SUMMARY, ARCHIVED, SchemaError
from leveldb_store.store import LevelStore
from pyx.delivery.archived import Watch, may_match, note_topics, place_of
from pyx.protocol.message import Message
from pyx.storage.archive import Archiver
from tests.contract.test_archive import FILTERS, LEVELS, Source, matches, opened, read, table
from tests.waiting import wait_until


def blocks_of(topics: list[bytes]) -> list[bytes]:
    archiver = Archiver([b"#", b"$x/#"])
    for number, topic in enumerate(topics, 1):
        archiver.add(Message.create(topic, b"x" * (number % 3), number % 3, number=number, publisher="me"))
    return [block for *_, block in archiver.take()]


def bits_of(topics: list[bytes]) -> bytes:
    bits = bytearray(schema.SUMMARY_BITS_BYTES)
    for block in blocks_of(topics):
        note_topics(bits, block)
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


def test_a_watch_says_what_each_of_its_filters_says() -> None:
    choose = random.Random(2)
    watch, model = Watch(), dict[int, bytes]()
    long = b"/".join([b"a"] * 30)
    for _ in range(300):
        key = choose.randrange(40)
        if choose.random() < 0.4:
            watch.discard(key)
            model.pop(key, None)
        else:
            model[key] = choose.choice([*FILTERS, long, long + b"/#", b"a/+/" + long])
            watch.add(key, model[key])
        assert len(watch) == len(model)
        topics = [b"/".join(choose.choices(LEVELS, k=choose.randint(1, 4))) for _ in range(choose.randint(1, 3))]
        bits = bits_of([*topics, long] if choose.random() < 0.2 else topics)
        assert sorted(watch.found(bits)) == sorted(key for key, text in model.items() if may_match(bits, text))
    with pytest.raises(ValueError, match="no summary"):
        watch.found(b"")


def test_what_becomes_durable_is_noted_while_somebody_watches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "NOTED_MAX", 5)
    choose = random.Random(3)
    source = Source(opened(tmp_path / "0", table(b"a/#"), table(b"#"), table(b"$x/#")))
    archive = source.store.archive
    assert archive.noted(source.number) is None
    waiting = False
    for _ in range(120):
        if choose.random() < 0.1:
            archive.watch(choose.random() < 0.8)
        for _ in range(choose.randint(1, 3)):
            source.archive(b"/".join(choose.choices(LEVELS, k=choose.randint(1, 3))), b"1")
        if waiting or choose.random() < 0.7:
            source.commit()
            waiting = False
        else:
            source.store.append_archived()
            waiting = True
        after = choose.choice(source.rows[-12:])[0] - choose.randint(0, 1)
        noted = archive.noted(after)
        if noted is None:
            continue
        assert [up_to for up_to, _ in noted] == sorted(up_to for up_to, _ in noted)
        behind = after
        for up_to, topics in noted:
            for number, topic, _, _ in source.rows:
                assert not behind < number <= up_to or all(
                    may_match(topics, text) for text in FILTERS if matches(text, topic)
                )
            behind = up_to
        assert behind >= archive.last
    source.commit()
    archive.watch(False)
    archive.watch(True)
    assert archive.noted(source.number) == []
    for _ in range(5):
        source.archive(b"b", b"1")
        source.commit()
    assert len(archive.noted(source.rows[-6][0]) or ()) == 5
    source.archive(b"b", b"1")
    source.commit()
    assert archive.noted(source.rows[-7][0]) is None
    source.store.close()


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
    """Return a list that grows with each block that a reader looks at."""
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
    # the stretch that has it, and the last one, which has no summary
    assert schema.SUMMARY_BLOCKS <= len(looked) < 3 * schema.SUMMARY_BLOCKS
    looked.clear()
    assert read(source.store, [b"fleet/none/temperature"]) == []
    assert len(looked) < 2 * schema.SUMMARY_BLOCKS
    source.store.close()
    source.store = opened(tmp_path / "0", table(b"#"))
    looked.clear()
    assert [row[2] for row in read(source.store, [b"+/+/alarm"], size=1)] == [b"hot"]
    assert len(looked) < 4 * schema.SUMMARY_BLOCKS
    source.store.close()


def test_summaries_of_an_older_release_are_used_with_a_block_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old summaries name the first number of their stretch, and do not exclude earlier ones."""
    source = filled(tmp_path / "0", 20 * schema.SUMMARY_BLOCKS)
    source.store.close()
    with plyvel.DB(str(tmp_path / "0")) as db:
        firsts = [schema.decode_head(value).first for _, value in db.iterator(prefix=ARCHIVED)]
        summaries = list(db.iterator(prefix=ARCHIVE_SUMMARY))
        for key, value in summaries:
            speaks_from, blocks, bits = schema.decode_summary(value)
            first = firsts[bisect_left(firsts, speaks_from)]
            assert first > speaks_from
            db.put(key, schema.encode_summary(first, blocks, bits))
        # one summary is missing: its blocks are read
        db.delete(summaries[4][0])
    source.store = opened(tmp_path / "0", table(b"#"))
    looked = looked_at(monkeypatch)
    assert [row[2] for row in read(source.store, [b"+/+/alarm"])] == [b"hot"]
    assert 19 + 2 * schema.SUMMARY_BLOCKS <= len(looked) < 19 + 4 * schema.SUMMARY_BLOCKS
    source.store.close()


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_passing_over_gives_what_looking_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, older: bool
) -> None:
    """With restarts in between, missing or damaged summaries and pages of few stretches, the messages are the same."""
    choose = random.Random(seed)
    monkeypatch.setattr(schema, "SUMMARY_BLOCKS", choose.choice([2, 3, 8]))
    monkeypatch.setattr(archive_blocks, "_PASSED_MAX", choose.choice([1, 2, 5]))
    source = Source(opened(tmp_path / "0", table(b"a/#"), table(b"#")))
    topics = [b"a/%d" % number for number in range(8)] + [b"b/%d" % number for number in range(8)]
    for _ in range(6):
        at = choose.randrange(len(topics))
        for _ in range(choose.randint(5, 60)):
            source.archive(choose.choice(topics[at : at + 3]), b"1")
            source.commit()
        source.store.close()
        with plyvel.DB(str(tmp_path / "0")) as db:
            for key, value in list(db.iterator(prefix=ARCHIVE_SUMMARY)):
                if choose.random() < 0.1:
                    db.delete(key)
                elif choose.random() < 0.1:
                    db.put(key, value[:-1])
                elif older and len(value) == len(schema.encode_summary(0, 0, bytes(schema.SUMMARY_BITS_BYTES))):
                    speaks_from, blocks, bits = schema.decode_summary(value)
                    rule, origin, _ = schema.split_block(key)
                    start, stop = schema.block_key(rule, origin, speaks_from), schema.sequence_end(rule, origin)
                    with db.iterator(start=start, stop=stop) as found:
                        first = schema.decode_head(next(found)[1]).first
                    db.put(key, schema.encode_summary(first, blocks, bits))
        source.store = opened(tmp_path / "0", table(b"a/#"), table(b"#"))
        for text in (*topics, b"a/+", b"+/3", b"none/#"):
            after = choose.choice([0, *(row[0] for row in source.rows)])
            expected = [row for row in source.rows if row[0] > after and matches(text, row[1])]
            assert read(source.store, [text], after, choose.choice([1, 300, 65536])) == expected
    source.store.close()


def test_a_page_passes_over_so_much_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_blocks, "_PASSED_MAX", 4)
    source = filled(tmp_path / "0", 20 * schema.SUMMARY_BLOCKS)
    looked = looked_at(monkeypatch)
    page = source.store.archive.read([b"none"], 0, 1000)
    assert (page.messages, page.is_end) == ([], False)
    assert not looked
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

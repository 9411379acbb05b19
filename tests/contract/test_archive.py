"""The archive of a store agrees with a plain model of what a reader gets, through restarts and retention."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from leveldb_store.archive.archive import ArchiveOptions, ArchiveTable
from leveldb_store.contract import FallenBehind, Page
from leveldb_store.filters import covers, overlaps
from leveldb_store.format import archive_schema as schema
from leveldb_store.format.schema import ARCHIVED, SchemaError, StoredMessage
from leveldb_store.store import LevelStore
from pyx.delivery.archived import check, concerns, first_of, merge
from pyx.protocol.message import Message
from pyx.storage.archive import Archiver
from tests.waiting import wait_until

HOUR = 3_600_000
LEVELS = [b"a", b"b", b"c", b"$x", b""]
FILTERS = [b"#", b"a/#", b"+/b", b"a/+/c", b"b", b"+", b"$x/#", b"+/+", b"c/b/#", b"a/b"]
EXPIRY = b"\x02\x00\x00\x00\x3c"


def matches(topic_filter: bytes, topic: bytes) -> bool:
    """MQTT 4.7, in its plainest form."""
    wanted, levels = topic_filter.split(b"/"), topic.split(b"/")
    if topic[:1] == b"$" and wanted[0] in (b"#", b"+"):
        return False
    for at, level in enumerate(wanted):
        if level == b"#":
            return True
        if at == len(levels) or level not in (b"+", levels[at]):
            return False
    return len(wanted) == len(levels)


def table(topic_filter: bytes, hours: float = 1e6, size: int = 1 << 40) -> ArchiveTable:
    return ArchiveTable(topic_filter, int(hours * HOUR), size)


def opened(path: Path, *tables: ArchiveTable, worker: int = 0) -> LevelStore:
    return LevelStore(path, archive=ArchiveOptions("e", worker, tables, clock=lambda: 0.0))


@dataclass
class Source:
    """A worker that archives: its archived messages, in the order of numbers."""

    store: LevelStore
    number: int = 1_700_000_000_000_000 << 8
    rows: list[tuple[int, bytes, bytes, str | None]] = field(default_factory=list)

    def archive(self, topic: bytes, payload: bytes, publisher: str | None = "me", qos: int = 1) -> None:
        self.number += 1 << 8
        message = Message.create(topic, payload, qos, number=self.number, publisher=publisher)
        if self.store.archive.archiver.add(message):
            self.rows.append((self.number, topic, payload, publisher))

    def commit(self) -> None:
        self.store.append_archived()
        ticket = self.store.flush()
        wait_until(lambda: self.store.collect() >= ticket, 30, f"ticket {ticket} is durable")


def pages(store: LevelStore, filters: list[bytes], after: int, size: int) -> Iterator[Page]:
    while True:
        page = store.archive.read(filters, after, size)
        assert page.up_to >= after
        assert all(after < each.number <= page.up_to for each in page.messages)
        yield page
        if page.is_end:
            return
        assert page.up_to > after
        after = page.up_to


def read(store: LevelStore, filters: list[bytes], after: int = 0, size: int = 65536) -> list[tuple[object, ...]]:
    return [
        (each.number, each.topic, bytes(each.payload), each.publisher)
        for page in pages(store, filters, after, size)
        for each in page.messages
    ]


# ---------------------------------------------------------------- bytes


GOLDEN = [
    schema.ArchivedMessage(StoredMessage(b"a/b", b"hello", 0x0102030405060708, publisher="me"), 3),
    schema.ArchivedMessage(StoredMessage(b"a", b"", 0x0102030405060808, qos=2, retain=True, properties=b"\x01\x01"), 0),
    schema.ArchivedMessage(
        StoredMessage(b"c", b"x", 0x0102030405060908, qos=1, properties=EXPIRY, expires=0x1122334455, publisher="é"),
        70_000,
    ),
]
LAST = 0x0102030405060908
GOLDEN_BYTES = bytes.fromhex(
    "01 03000000 0807060504030201 0700000000000000 0900000000000000 02 01 61 01 63"
    "03000000 00 00 0300 00000000 05000000 0807060504030201 612f62 68656c6c6f 0200 6d65"
    "00000000 00 06 0100 02000000 00000000 0808060504030201 61 0101 0000"
    "70110100 00 09 0100 05000000 01000000 0809060504030201 5544332211000000 63 020000003c 78 0200 c3a9"
)


def made(archived: schema.ArchivedMessage) -> Message:
    each = archived.message
    return Message.create(
        each.topic, each.payload, each.qos, each.retain, each.properties, each.number, each.expires or 0,
        1 if each.expires else -1, each.publisher,
    )  # fmt: skip


def packed(messages: list[schema.ArchivedMessage], before: int = 0, size: int = 0) -> bytes:
    archiver = Archiver([b"#"])
    archiver.count_from(0, before, size)
    for each in messages:
        archiver.add(made(each), each.matches)
    [(_, last, _, running, block)] = archiver.take()
    assert last == messages[-1].message.number
    assert running == size + len(schema.block_key(1, 0, last)) + len(block)
    return block


def test_a_block_is_these_bytes_both_ways() -> None:
    assert schema.encode_block(GOLDEN, 7, 9) == GOLDEN_BYTES
    assert packed(GOLDEN, 7, 9) == GOLDEN_BYTES
    assert list(schema.decode_block(GOLDEN_BYTES)) == GOLDEN
    assert schema.decode_head(GOLDEN_BYTES) == schema.BlockHead(
        3, 0x0102030405060708, 7, 9, frozenset((b"a", b"c")), 34
    )
    found = merge([[GOLDEN_BYTES]], [b"#"], 0, 2**64 - 1)
    assert [(each.topic, bytes(each.payload), each.number, each.qos, each.retain) for each in found] == [
        (each.message.topic, each.message.payload, each.message.number, each.message.qos, each.message.retain)
        for each in GOLDEN
    ]
    assert [each.publisher for each in found] == ["me", None, "é"]
    assert [each.properties for each in found] == [b"", b"\x01\x01", EXPIRY]
    assert found[2].expires == 0x1122334455
    assert (first_of(GOLDEN_BYTES), check(GOLDEN_BYTES, 0, LAST)) == (0x0102030405060708, 3)


def test_the_blocks_of_each_rule_go_on_with_its_own_running_counts() -> None:
    archiver = Archiver([b"a/#", b"b/#"])
    archiver.count_from(0, 5, 100)
    archiver.count_from(1, 2**64 - 2, 2**63)
    with pytest.raises(IndexError):
        archiver.count_from(2, 0, 0)
    expected = {0: (5, 100), 1: (2**64 - 2, 2**63)}
    for number in range(1, 5):
        topics = (b"a/%d" % number, b"b/%d" % number)
        messages = {place: Message.create(topic, b"x", 0, number=number) for place, topic in enumerate(topics)}
        assert all(archiver.add(message) for message in messages.values())
        for place, last, _, running, block in archiver.take():
            head = schema.decode_head(block)
            assert (last, head.messages, head.messages_before, head.bytes_before) == (number, 1, *expected[place])
            expected[place] = (expected[place][0] + 1) % 2**64, expected[place][1] + 12 + len(block)
            assert running == expected[place][1]


def test_keys_and_rules_are_these_bytes() -> None:
    assert schema.block_key(1, 2, 3) == b"A\x00\x01\x02\x00\x00\x00\x00\x00\x00\x00\x03"
    assert schema.split_block(schema.block_key(1, 2, 3)) == (1, 2, 3)
    assert schema.rule_key(b"a/#") == b"Ca/#"
    assert schema.removed_key(258, 3) == b"K\x01\x02\x03"
    rule = schema.Rule(b"a/#", 1, 2, 3, 4, 5, 6)
    assert schema.encode_rule(rule).hex() == "01000200" + "".join(f"0{n}00000000000000" for n in (3, 4, 5, 6))
    old = bytes.fromhex("0100020003000000000000000400000000000000")
    assert schema.decode_rule(schema.rule_key(b"a/#"), old) == schema.Rule(b"a/#", 1, 2, 3, 4, 0, 2**64 - 1)
    assert schema.decode_rule(schema.rule_key(b"a/#"), schema.encode_rule(rule)) == rule


def test_damaged_blocks_are_refused_at_every_cut() -> None:
    for end in range(len(GOLDEN_BYTES)):
        with pytest.raises(ValueError, match=r"archived|entry|stored"):
            check(GOLDEN_BYTES[:end], 0, LAST)
        with pytest.raises(SchemaError):
            list(schema.decode_block(GOLDEN_BYTES[:end]))


def test_damaged_bytes_are_a_value_error_and_nothing_else() -> None:
    choose = random.Random(1)
    for _ in range(20_000):
        damaged = bytearray(GOLDEN_BYTES)
        for _ in range(choose.randint(1, 3)):
            damaged[choose.randrange(len(damaged))] = choose.randrange(256)
        with contextlib.suppress(ValueError):
            check(bytes(damaged), 0, LAST)
        with contextlib.suppress(ValueError):
            merge([[bytes(damaged)]], [b"#"], 0, 2**64 - 1)
        with contextlib.suppress(SchemaError):
            list(schema.decode_block(bytes(damaged)))


def test_heads_name_first_levels_until_there_are_many() -> None:
    def block(topics: list[bytes]) -> bytes:
        messages = [schema.ArchivedMessage(StoredMessage(topic, b"", n), 0) for n, topic in enumerate(topics, 1)]
        assert packed(messages) == schema.encode_block(messages, 0, 0)
        return packed(messages)

    few = block([b"a/x", b"b", b"/c", b"a"])
    assert concerns(few, {b""})
    assert concerns(few, {b"q", b"b"})
    assert not concerns(few, {b"c", b"x"})
    assert concerns(block([b"%d/x" % i for i in range(9)]), {b"q"})
    assert concerns(block([b"l" * 256]), {b"q"})
    assert not concerns(block([b"l" * 255]), {b"q"})


# ---------------------------------------------------------------- filters


def test_covers_and_overlaps_agree_with_all_short_topics() -> None:
    levels = [b"a", b"b", b"$x"]
    topics = [b"/".join(each) for n in (1, 2, 3) for each in _words(levels, n)]
    for one in FILTERS:
        for other in FILTERS:
            both = [topic for topic in topics if matches(one, topic) and matches(other, topic)]
            if both:
                assert overlaps(one, other), (one, other)
            if covers(one, other):
                assert all(matches(one, topic) for topic in topics if matches(other, topic)), (one, other)
    assert not overlaps(b"a/b", b"a/c")
    assert not overlaps(b"#", b"$x/a")
    assert not overlaps(b"a", b"a/b")
    assert overlaps(b"a/#", b"a")
    assert covers(b"a/#", b"a/+/c")
    assert not covers(b"a/+", b"a/#")


def _words(levels: list[bytes], n: int) -> list[list[bytes]]:
    return [[]] if n == 0 else [[level, *rest] for level in levels for rest in _words(levels, n - 1)]


# ---------------------------------------------------------------- readers


@pytest.mark.parametrize("seed", range(20))
def test_readers_get_what_a_model_says_by_pages_and_after_restarts(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = random.Random(seed)
    monkeypatch.setattr(schema, "SUMMARY_BLOCKS", choose.choice([1, 3, 256]))
    tables = [table(each) for each in choose.sample(FILTERS, choose.randint(1, 4))]
    source = Source(opened(tmp_path / "0", *tables))
    for _ in range(choose.randint(1, 60)):
        for _ in range(choose.choice([1, 1, 3, 40])):
            topic = b"/".join(choose.choice(LEVELS) for _ in range(choose.randint(1, 3))) or b"a"
            payload = choose.randbytes(choose.choice([0, 5, 300, 3000]))
            source.archive(topic, payload, choose.choice(["me", "you", None, "é"]))
        source.commit()
        if choose.random() < 0.05:
            source.store.close()
            source.store = opened(tmp_path / "0", *tables)
            assert source.store.archive.highest == (source.rows[-1][0] if source.rows else 0)
    for _ in range(10):
        wanted = choose.sample(FILTERS, choose.randint(1, 3))
        after = choose.choice([0, *(row[0] for row in source.rows)])
        expected = [row for row in source.rows if row[0] > after and any(matches(each, row[1]) for each in wanted)]
        assert read(source.store, wanted, after, choose.choice([1, 500, 65536])) == expected
    source.store.close()


def is_waiting(source: Source) -> bool:
    return not source.store.archive.is_settled


def test_what_is_not_durable_is_not_read(tmp_path: Path) -> None:
    source = Source(opened(tmp_path / "0", table(b"#")))
    source.archive(b"a", b"1")
    source.commit()
    first = source.store.archive.last
    assert first == source.number
    source.archive(b"a", b"2")
    assert is_waiting(source)
    assert source.store.archive.read([b"a"], 0, 1000).up_to == first
    source.commit()
    assert not is_waiting(source)
    assert [row[2] for row in read(source.store, [b"a"])] == [b"1", b"2"]
    source.store.close()


def test_rules_that_are_no_longer_configured_keep_what_they_have(tmp_path: Path) -> None:
    source = Source(opened(tmp_path / "0", table(b"a/#"), table(b"b")))
    source.archive(b"a/1", b"old")
    source.archive(b"b", b"old")
    source.commit()
    source.store.close()
    source.store = opened(tmp_path / "0", table(b"+/1"), table(b"b", 2e6))
    archive = source.store.archive
    assert not archive.covers(b"a/1/2")
    assert archive.covers(b"a/1")
    source.archive(b"a/1", b"new")
    source.archive(b"a/2", b"not archived any more")
    source.archive(b"b", b"new")
    source.commit()
    assert [row[2] for row in read(source.store, [b"#"])] == [b"old", b"old", b"new", b"new"]
    assert [(rule.topic_filter, rule.number, rule.place) for rule in archive.rules] == [
        (b"+/1", 3, 0),
        (b"b", 2, 1),
        (b"a/#", 1, schema.NOT_CONFIGURED),
    ]
    source.store.close()


# ---------------------------------------------------------------- retention


@pytest.mark.parametrize("seed", range(4))
def test_retention_by_bytes_keeps_the_newest_and_counts_exactly(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    limit = 1 << 20
    source = Source(opened(tmp_path / "0", table(b"a", size=limit), table(b"b")))
    for n in range(300):
        for _ in range(choose.randint(1, 30)):
            source.archive(choose.choice([b"a", b"b"]), choose.randbytes(choose.randint(100, 2000)))
        source.commit()
        if n == 200:
            source.store.close()
            source.store = opened(tmp_path / "0", table(b"a", size=limit), table(b"b"))
    archive = source.store.archive
    wait_until(lambda: _held(source.store, 1) <= limit and _is_exact(source.store), 30, "the rule is within its bytes")
    assert _held(source.store, 1) > limit * 0.8
    start = archive.start(b"a")
    assert start > 0
    assert archive.start(b"b") == 0
    with pytest.raises(FallenBehind) as raised:
        archive.read([b"a"], start - 1, 1000)
    assert raised.value.earliest == start
    assert archive.read([b"a"], 0, 1, with_gaps=True).messages[0].number > start
    assert read(source.store, [b"a"], start) == [row for row in source.rows if row[0] > start and row[1] == b"a"]
    assert read(source.store, [b"b"]) == [row for row in source.rows if row[1] == b"b"]
    source.store.close()
    again = opened(tmp_path / "0", table(b"a", size=limit), table(b"b"))
    assert again.archive.start(b"a") >= start
    assert again.archive.held_bytes == archive.held_bytes
    again.close()


def _held(store: LevelStore, rule: int) -> int:
    return sum(len(key) + len(value) for key, value in store.scan(schema.blocks_of(rule)))


def _is_exact(store: LevelStore) -> bool:
    return store.archive.held_bytes == sum(len(key) + len(value) for key, value in store.scan(ARCHIVED))


def test_retention_by_age_removes_what_is_old_and_a_rule_that_is_gone(tmp_path: Path) -> None:
    source = Source(opened(tmp_path / "0", table(b"a", hours=0.001), table(b"b", hours=0.001)))
    source.archive(b"a", b"old")  # from 2023
    source.archive(b"b", b"old")
    source.commit()
    wait_until(lambda: source.store.archive.held_bytes == 0, 30, "both are removed")
    assert source.store.archive.removed[0] == 2
    assert source.store.archive.start(b"a") == source.rows[0][0]
    source.store.close()
    source.store = opened(tmp_path / "0", table(b"a", hours=0.001))
    assert source.store.archive.highest == source.number  # numbers stay above those that were removed
    assert source.store.archive.start(b"b") == source.rows[1][0]  # the removed position of the deleted rule, too
    assert [key for key, _ in source.store.scan(b"K")] == [schema.removed_key(1, 0), schema.removed_key(2, 0)]
    source.store.close()


def test_age_follows_the_clock_forward_and_never_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leveldb_store.archive.retention.LOOK_SECONDS_MAX", 0.05)
    monkeypatch.setattr("leveldb_store.archive.retention.LOOK_SECONDS_MIN", 0.05)
    real, step = time.time, [0.0]
    monkeypatch.setattr("leveldb_store.archive.retention.time.time", lambda: real() + step[0])
    source = Source(opened(tmp_path / "0", table(b"#", hours=2)), int(real() * 1e6) << 8)
    source.archive(b"a", b"1")
    source.commit()
    step[0] = -7200.0 * 2
    source.archive(b"a", b"2")
    source.commit()
    assert source.store.archive.start(b"a") == 0
    step[0] = 7200.0
    wait_until(lambda: source.store.archive.start(b"a") == source.number, 30, "both are old")
    step[0] = 0.0
    source.number += 3_600_000_000 << 8  # an hour old, by its number
    source.archive(b"a", b"3")
    source.commit()
    assert [row[2] for row in read(source.store, [b"a"], source.rows[1][0])] == [b"3"]
    source.store.close()


def test_a_thread_reads_what_becomes_durable_meanwhile_and_skips_nothing(tmp_path: Path) -> None:
    source = Source(opened(tmp_path / "store", table(b"#")))
    got: list[int] = []
    written = threading.Event()

    def follow() -> None:
        after, is_last, is_end = 0, False, False
        while not (is_last and is_end):
            is_last = written.is_set()  # before it is read
            page = source.store.archive.read([b"#"], after, 500)
            got.extend(each.number for each in page.messages)
            after, is_end = page.up_to, page.is_end

    with ThreadPoolExecutor(1) as beside:
        followed = beside.submit(follow)
        for number in range(400):
            for _ in range(1 + number % 3):
                source.archive(b"a/b", b"%d" % number)
            source.commit()
        written.set()
        followed.result(30)
    assert got == [number for number, *_ in source.rows]
    source.store.close()

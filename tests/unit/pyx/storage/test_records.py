"""Blocks, batches and indexes against plain lists; damaged mesh entries."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pyx.delivery.router import expiry_offset
from pyx.protocol.message import Message
from pyx.storage.entries import Packed, pack_messages, unpack_messages
from pyx.storage.records import Batch, Block, Index, LogKey
from tests.unit.adapters import records_adapter as adapter

Row = tuple[int, bytes]


def batch_of(rows: list[Row]) -> Batch:
    """Return a batch with these positions: positions rise, so records in between belong to another index."""
    if not rows:
        return Batch()
    block = Block(rows[0][0])
    wanted, others = LogKey(b"wanted"), LogKey(b"others")
    bodies = dict(rows)
    for position in range(rows[0][0], rows[-1][0] + 1):
        record = adapter.add(block, Message.create(b"t", bodies.get(position, b""), number=position))
        adapter.index(block, wanted if position in bodies else others, record)
    return dict(block.batches())[b"wanted"]


def rows_of(batch: Batch) -> list[Row]:
    return [(position, bytes(message.payload)) for position, message in batch.items()]


def size(rows: list[Row]) -> int:
    return sum(1 + len(body) for _, body in rows)


def test_a_block_says_what_each_index_gets() -> None:
    block = Block(100)
    first, second, unused = LogKey(b"first"), LogKey(b"second"), LogKey(b"unused")
    for i in range(20):
        record = adapter.add(block, Message.create(b"t", b"%d" % i))
        adapter.index(block, first, record)
        adapter.index(block, first, record)
        if i % 2:
            adapter.index(block, second, record)
    assert block.count == 20
    batches = dict(block.batches())
    assert rows_of(batches[b"first"]) == [(100 + i, b"%d" % i) for i in range(20)]
    assert rows_of(batches[b"second"]) == [(100 + i, b"%d" % i) for i in range(1, 20, 2)]
    assert unused.name not in batches
    again = Block(200)
    adapter.index(again, second, adapter.add(again, Message.create(b"t", b"later")))
    assert [(name, rows_of(batch)) for name, batch in again.batches()] == [(b"second", [(200, b"later")])]


class IndexMachine(RuleBasedStateMachine):
    """An index of a log: append at one end, trim at the other, drop and read anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.index = Index()
        self.rows: list[Row] = []
        self.position = 0

    @rule(steps=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 30)), max_size=40))
    def extend(self, steps: list[tuple[int, int]]) -> None:
        rows = []
        for step, length in steps:
            self.position += step
            rows.append((self.position, b"x" * length))
        self.index.extend(batch_of(rows))
        self.rows += rows

    def place(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, self.position + 2))

    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        up_to = self.place(data)
        self.index.trim(up_to)
        self.rows = [row for row in self.rows if row[0] > up_to]

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        after, up_to = self.place(data), self.place(data)
        self.index.drop(after, up_to)
        self.rows = [row for row in self.rows if not after < row[0] <= up_to]

    @rule(data=st.data(), bytes_max=st.integers(0, 3000))
    def read(self, data: st.DataObject, bytes_max: int) -> None:
        after = self.place(data)
        left = [row for row in self.rows if row[0] > after]
        batch = self.index.read(after, bytes_max)
        rows = rows_of(batch)
        assert rows == left[: len(rows)]
        assert bool(rows) == bool(left)
        assert batch.truncated == (len(rows) < len(left))
        assert len(rows) <= 1 or size(rows) <= bytes_max

    @rule(data=st.data())
    def backlog(self, data: st.DataObject) -> None:
        after = self.place(data)
        left = [row for row in self.rows if row[0] > after]
        assert self.index.backlog(after) == (len(left), size(left))

    @rule(messages=st.integers(0, 50), bytes_max=st.integers(0, 500))
    def position_of_last(self, messages: int, bytes_max: int) -> None:
        """The records after it are within the limits, and one more would exceed them."""
        position = self.index.position_of_last(messages, bytes_max)
        left = [row for row in self.rows if row[0] > position]
        assert len(left) <= messages
        assert size(left) <= bytes_max
        more = self.rows[len(self.rows) - len(left) - 1 :] if len(left) < len(self.rows) else []
        assert not more or len(more) > messages or size(more) > bytes_max

    @invariant()
    def length(self) -> None:
        assert len(self.index) == len(self.rows)


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


@given(st.lists(st.tuples(st.sets(st.integers(1, 60)), st.integers(0, 900)), min_size=1, max_size=6))
@settings(deadline=None)
def test_a_merge_is_in_order_once_each_and_leaves_no_gap(parts: list[tuple[set[int], int]]) -> None:
    batches, everything = [], set()
    for positions, bytes_max in parts:
        index = Index()
        index.extend(batch_of([(position, b"") for position in sorted(positions)]))
        everything |= positions
        batch = index.read(0, bytes_max)
        if batch.count:
            batches.append(batch)
    if not batches:
        return
    merged = adapter.merge(batches)
    got = [position for position, _ in merged.items()]
    assert got == sorted(everything)[: len(got)]
    assert got
    assert merged.truncated or len(got) == len(everything)


def test_messages_go_and_come() -> None:
    properties = b"\x02\x00\x00\x00\x0a\x03\x00\x01x"
    messages = [
        Message.create(b"a", b"x" * 5000, qos=1, retain=True, number=7),
        Message.create(b"b/c", b"", qos=2, retain=True, properties=properties, number=8, expires=99, expiry_offset=1),
    ]
    assert pack_messages([]) == b""
    back = unpack_messages(pack_messages(messages), expiry_offset)
    for sent, got in zip(messages, back, strict=True):
        for name in ("topic", "properties", "qos", "retain", "number", "expires"):
            assert getattr(sent, name) == getattr(got, name)
        assert bytes(sent.payload) == bytes(got.payload)


def test_a_payload_outlives_its_message() -> None:
    view = Message.create(b"t", b"payload").payload
    assert bytes(view) == b"payload"
    assert view.readonly


@given(st.binary(max_size=120))
@settings(max_examples=500)
def test_any_bytes_are_entries_or_an_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        adapter.unpack(data)


@pytest.mark.parametrize("wrong", [b"\x03", b"\x20"])
def test_an_answer_with_entries_that_cannot_be(wrong: bytes) -> None:
    packed = Packed()
    adapter.pack(packed, b"t", b"x" * 30, 1)
    with pytest.raises(ValueError):
        unpack_messages(wrong + bytes(memoryview(packed))[1:], expiry_offset)


@given(st.data())
def test_entries_that_end_early_are_refused(data: st.DataObject) -> None:
    packed = Packed()
    adapter.pack(packed, b"topic", b"payload", 1, qos=1, expires=5, shared=b"g/topic", properties=b"\x01\x01")
    whole = bytes(memoryview(packed))
    with pytest.raises(ValueError):
        adapter.unpack(whole[: data.draw(st.integers(1, len(whole) - 1))])

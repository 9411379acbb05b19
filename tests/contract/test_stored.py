"""The bytes of a store: the data path (pyx.storage.stored) and the plain decoders (leveldb_store.format.schema) agree
on them.
"""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveldb_store.format import schema, windows
from leveldb_store.format.schema import Part, Span, StoredMessage
from leveldb_store.format.subscription_schema import decode_owed, decode_subscription, encode_subscription
from leveldb_store.format.windows import Window
from pyx.core.peer import sibling
from pyx.delivery.router import expiry_offset
from pyx.protocol.message import Message
from pyx.storage.records import Block, LogKey
from pyx.storage.stored import (
    Gathering,
    block_messages,
    content_size,
    pack_block,
    pack_part,
    pack_stored,
    part_before,
    part_ends,
    part_running,
    unpack_block,
    unpack_stored,
    without,
)
from tests.unit.adapters import records_adapter as adapter

EXPIRY = b"\x02\x00\x00\x00\x3c"

GOLDEN_MESSAGES = [
    (
        StoredMessage(b"t", b"hello", 0x0102030405060708, publisher="me"),
        "00 0100 00000000 05000000 0807060504030201 74 68656c6c6f 0200 6d65",
    ),
    (
        StoredMessage(b"a/b", b"", 1, qos=2, retain=True, properties=b"\x01\x01"),
        "06 0300 02000000 00000000 0100000000000000 612f62 0101 0000",
    ),
    (
        StoredMessage(b"t", b"x", 2, qos=1, properties=EXPIRY, expires=0x1122334455, publisher="é"),
        "09 0100 05000000 01000000 0200000000000000 5544332211000000 74 020000003c 78 0200 c3a9",
    ),
]


def made(message: StoredMessage) -> Message:
    return Message.create(
        message.topic, message.payload, message.qos, message.retain, message.properties, message.number,
        message.expires or 0, expiry_offset(message.properties), message.publisher,
    )  # fmt: skip


def plain(message: Message, publisher: str | None) -> StoredMessage:
    return StoredMessage(
        message.topic, bytes(message.payload), message.number, message.qos, message.retain, message.properties,
        message.expires or None, publisher,
    )  # fmt: skip


def block_of(first: int, messages: list[StoredMessage]) -> tuple[Block, LogKey]:
    block, key = Block(first), LogKey(b"t")
    for message in messages:
        adapter.index(block, key, adapter.add(block, made(message)))
    return block, key


@pytest.mark.parametrize(("message", "golden"), GOLDEN_MESSAGES)
def test_golden_bytes_of_a_message(message: StoredMessage, golden: str) -> None:
    data = bytes.fromhex(golden)
    assert schema.encode_message(message) == data == pack_stored([made(message)])
    assert schema.decode_message(data) == (message, len(data))
    (again,) = unpack_stored(data, expiry_offset)
    assert plain(again, message.publisher) == message
    assert pack_stored([again]) == data, "publisher and expiry came back, too"


def test_golden_bytes_of_a_block_and_its_part() -> None:
    messages = [message for message, _ in GOLDEN_MESSAGES]
    value = bytes.fromhex("01 03000000" + "".join(golden for _, golden in GOLDEN_MESSAGES))
    block, _ = block_of(7, messages)
    assert pack_block(block) == value == schema.encode_block(messages)
    assert list(schema.decode_block(value)) == messages
    assert block_messages(value) == 3
    stored = unpack_block(value, expiry_offset)
    assert stored.count == 3
    assert pack_stored(stored.messages()) == value[schema.BLOCK_HEAD.size :]

    part = Part(7, 0x0005, 0x0304, 7, 2, [(7, 6), (8, 5), (9, 7)])
    golden = bytes.fromhex(
        "03000000 0500000000000000 0403000000000000 00000000 02000000 00000000 06000000 01000000 05000000"
        "02000000 07000000"
    )
    ((_, written),) = block.batches()
    assert pack_part(written, 0x0005, 0x0304, 7, 2) == (golden, 7, 9, 18)
    assert schema.encode_part(part) == golden
    assert schema.decode_part(schema.part_key(5, 7), golden) == part
    assert part_ends(golden, 7) == (9, 7, 2)
    assert part_before(golden) == (0x0005, 0x0304)
    assert part_running(golden, 7, 6) == (0x0005, 0x0304)
    assert part_running(golden, 7, 8) == (0x0007, 0x0304 + 11)
    assert part_running(golden, 7, 100) == (0x0008, 0x0304 + 18)


def test_golden_bytes_of_keys_and_small_values() -> None:
    assert schema.block_key(258) == bytes.fromhex("42 0000000000000102")
    assert schema.part_key(3, 258) == bytes.fromhex("49 00000003 0000000000000102")
    assert (schema.key_number(schema.part_key(3, 258)), schema.key_position(schema.part_key(3, 258))) == (3, 258)
    assert schema.key_number(schema.trimmed_key(9)) == schema.key_number(schema.gone_key(9)) == 9
    assert schema.name_key(b"a/+") == b"Fa/+"
    assert schema.subscription_key("me", b"$share/g/t") == b"Tme\0$share/g/t"
    assert schema.split_subscription(b"Tme\0$share/g/t") == ("me", b"$share/g/t")
    assert schema.handoff_key(sibling(2), 258) == bytes.fromhex("48 02 0000000000000102")
    assert schema.prefix_end(b"B") == b"C"
    assert schema.prefix_end(b"a\xff\xff") == b"b"
    assert schema.prefix_end(b"\xff") is None
    value = encode_subscription(0x2D, 7, 258)
    assert value == bytes.fromhex("2d 07000000 0201000000000000")
    assert decode_subscription(value) == (0x2D, 7, 258, [])
    value = encode_subscription(0x2C, 7, 258, [(1, 2, 258)])
    assert value == bytes.fromhex("2c 07000000 0201000000000000 01 0200000000000000 0201000000000000")
    assert decode_subscription(value) == (0x2C, 7, 258, [(1, 2, 258)])
    assert decode_owed(value) == []
    owed = [(0, b""), (63, b"x" * 65535), (2, b"a/b")]
    value = encode_subscription(0x2C, 7, 258, [(1, 2, 258)], owed)
    assert decode_subscription(value) == (0x2C, 7, 258, [(1, 2, 258)])
    assert decode_owed(value) == owed
    window = Window(7, [(5, 2, 3, 259)], [9, 10], 258, [(1, 2)], [(3, 4)])
    entries = "0500 02 03 0301000000000000 0900 0a00 0201000000000000"
    spans_1 = "0100 0100000000000000 0200000000000000 0100 0300000000000000 0400000000000000"
    value = bytes.fromhex(f"0000000000000080 0700 00 0100 0200 {entries} {spans_1}")
    assert windows.encode_window(window) == value
    assert windows.decode_window(value) == window
    value = bytes.fromhex(f"0201000000000000 0700 0100 0200 {entries} {spans_1} 0100 0300 612f23 0700000000000000")
    assert windows.decode_window(value) == window, "of version 1"
    spans = [Span(1, 2, 3, 4, 5, 6), Span(7, 8, 9, 10, 11, 12)]
    assert schema.decode_spans(schema.encode_spans(spans)) == spans


MESSAGES = st.builds(
    lambda expires, **fields: StoredMessage(properties=b"" if expires is None else EXPIRY, expires=expires, **fields),
    topic=st.binary(min_size=1, max_size=300),
    payload=st.binary(max_size=3000),
    number=st.integers(0, 2**64 - 1),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    expires=st.none() | st.integers(1, 2**64 - 1),
    publisher=st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30),
)


@given(st.integers(1, 2**63), st.lists(MESSAGES, min_size=1, max_size=6))
def test_both_ways_agree(first: int, messages: list[StoredMessage]) -> None:
    block, _ = block_of(first, messages)
    value = pack_block(block)
    assert value == schema.encode_block(messages)
    assert list(schema.decode_block(value)) == messages
    stored = unpack_block(value, expiry_offset)
    last = stored.message_at(len(messages) - 1)
    assert pack_stored(stored.messages()) == value[schema.BLOCK_HEAD.size :]
    assert stored.messages()[-1] is last, "made once"
    ((_, written),) = block.batches()
    assert content_size(written) == sum(message.content_bytes for message in messages)
    part, at, end, size = pack_part(written, 3, 4, first, 1)
    decoded = schema.decode_part(schema.part_key(1, at), part)
    assert decoded.entries == [(first + i, message.content_bytes) for i, message in enumerate(messages)]
    assert (at, end, size) == (first, first + len(messages) - 1, content_size(written))
    assert schema.encode_part(decoded) == part


@given(st.binary(max_size=200), st.integers(0, 2**64 - 1))
def test_damaged_bytes_are_an_error_and_nothing_else(data: bytes, first: int) -> None:
    for decode in (
        lambda: list(schema.decode_block(data)),
        lambda: schema.decode_message(data),
        lambda: schema.decode_part(schema.part_key(1, first), data),
        lambda: windows.decode_window(data),
        lambda: decode_subscription(data),
        lambda: schema.decode_spans(data),
        lambda: schema.decode_u32(data),
        lambda: schema.decode_u64(data),
    ):
        with contextlib.suppress(schema.SchemaError):
            decode()
    for unpack in (
        lambda: unpack_block(data, expiry_offset).messages(),
        lambda: unpack_stored(data, expiry_offset),
        lambda: part_ends(data, first),
        lambda: part_running(data, first, first),
        lambda: part_before(data),
    ):
        with contextlib.suppress(ValueError):
            unpack()


@given(st.data())
def test_every_cut_of_a_block_is_noticed(data: st.DataObject) -> None:
    value = schema.encode_block([message for message, _ in GOLDEN_MESSAGES])
    cut = value[: data.draw(st.integers(0, len(value) - 1))]
    with pytest.raises(ValueError):
        unpack_block(cut, expiry_offset)
    with pytest.raises(schema.SchemaError):
        list(schema.decode_block(cut))


def test_a_read_is_gathered_part_by_part() -> None:
    bodies = [StoredMessage(b"t", b"x" * 99, n, qos=1) for n in range(1, 7)]
    blocks = [block_of(1, bodies[:3])[0], block_of(4, bodies[3:])[0]]
    values = [pack_block(block) for block in blocks]
    parts = [pack_part(block.batches()[0][1], 0, 0, block.first, 1)[0] for block in blocks]
    unpacked = [unpack_block(value, expiry_offset) for value in values]

    whole = Gathering()
    assert whole.add(parts[0], 1, unpacked[0], 1, 1 << 20)
    assert whole.add(parts[1], 4, unpacked[1], 1, 1 << 20)
    batch = whole.finish(False)
    assert [position for position, _ in batch.items()] == [2, 3, 4, 5, 6]
    assert batch.items()[0][1] is unpacked[0].message_at(1), "bodies are shared, not copied"
    assert [position for position, _ in without(batch, [(0, 2), (3, 5)]).items()] == [3, 6]
    assert [position for position, _ in without(batch, [(10, 20)]).items()] == [2, 3, 4, 5, 6]
    assert len(without(batch, [(1, 6)])) == 0

    first = Gathering()
    assert not first.add(parts[0], 1, unpacked[0], 0, 1), "one message, whatever its size"
    assert len(first) == 1
    assert first.finish(True).truncated

    with pytest.raises(ValueError):
        Gathering().add(parts[1], 4, unpack_block(schema.encode_block(bodies[:2]), expiry_offset), 0, 1 << 20)
    with pytest.raises(IndexError):
        unpacked[0].message_at(3)

"""The decoder of columns finds the same messages as the plain decoders of leveldb_store."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveldb_store.format import archive_schema, schema
from leveldb_store.format.archive_schema import ArchivedMessage
from leveldb_store.format.schema import SchemaError, StoredMessage
from leveldb_store.format.stored_properties import decode_properties
from spark_etl.tables.records import ARCHIVED_LEAD, Records, starts_of

PROPERTIES = st.sampled_from([
    b"", b"\x01\x01", b"\x02\x00\x00\x00\x3c", b"\x03\x00\x01x\x26\x00\x01a\x00\x01b\x26\x00\x01a\x00\x01c",
    b"\x08\x00\x03a/b\x09\x00\x02\x00\xff",
])  # fmt: skip
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
MESSAGES = st.lists(
    st.builds(
        StoredMessage,
        topic=TEXT.map(str.encode),
        payload=st.binary(max_size=30) | TEXT.map(str.encode),
        number=st.integers(0, 2**63 - 1),
        qos=st.integers(0, 2),
        retain=st.booleans(),
        properties=PROPERTIES,
        expires=st.none() | st.integers(0, 2**43),
        publisher=st.none() | TEXT.filter(bool),
    ),
    min_size=1,
    max_size=8,
)
KINDS = {
    "number": pa.int64(), "worker": pa.int32(), "topic": pa.string(), "first_level": pa.string(),
    "levels": pa.list_(pa.string()), "qos": pa.int32(), "retain": pa.bool_(), "publisher": pa.string(),
    "payload": pa.binary(), "payload_bytes": pa.int32(), "payload_text": pa.string(), "payload_format": pa.int32(),
    "content_type": pa.string(), "response_topic": pa.string(), "correlation_data": pa.binary(),
    "user_properties": pa.map_(pa.string(), pa.string()), "properties": pa.binary(),
}  # fmt: skip


def text_or_none(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def plain(message: StoredMessage) -> dict[str, object]:
    """Return the row of a message as documented for the tables."""
    found = decode_properties(message.properties)
    topic = message.topic.decode()
    return {
        "number": message.number, "worker": message.number & 0xFF, "topic": topic,
        "first_level": topic.split("/")[0], "levels": topic.split("/"), "qos": message.qos, "retain": message.retain,
        "publisher": message.publisher, "payload": message.payload, "payload_bytes": len(message.payload),
        "payload_text": text_or_none(message.payload), "payload_format": found.payload_format_indicator,
        "content_type": found.content_type, "response_topic": found.response_topic,
        "correlation_data": found.correlation_data,
        "user_properties": list(dict(found.user_properties).items()) or None,
        "properties": message.properties or None,
        "expires": message.expires,
    }  # fmt: skip


def rows(records: Records) -> list[dict[str, object]]:
    columns = {name: records.column(name, kind).to_pylist() for name, kind in KINDS.items()}
    expires = records.column("expires", pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    columns["expires"] = [None if each is None else each // 1000 for each in expires]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


@given(MESSAGES, st.data())
def test_columns_are_what_the_plain_decoder_finds(messages: list[StoredMessage], data: st.DataObject) -> None:
    block = schema.encode_block(messages)
    stripped = block[schema.BLOCK_HEAD.size :]
    starts = starts_of(block, schema.BLOCK_HEAD.size, len(messages), 0)
    records = Records(stripped, [at - schema.BLOCK_HEAD.size for at in starts], 0)
    assert rows(records) == [plain(message) for message in schema.decode_block(block)]
    mask = data.draw(st.lists(st.booleans(), min_size=len(messages), max_size=len(messages)))
    fresh = Records(stripped, [at - schema.BLOCK_HEAD.size for at in starts], 0)
    for each in (records, fresh):  # the first has its columns already
        each.keep(pa.array(mask).to_numpy(zero_copy_only=False))
        assert rows(each) == [plain(one) for one, wanted in zip(messages, mask, strict=True) if wanted]


@given(MESSAGES, st.integers(0, 2**32 - 1))
def test_messages_of_the_archive_have_their_matches(messages: list[StoredMessage], matches: int) -> None:
    data = b"".join(archive_schema.encode_record(ArchivedMessage(message, matches)) for message in messages)
    records = Records(data, starts_of(data, 0, len(messages), ARCHIVED_LEAD), ARCHIVED_LEAD)
    assert records.column("matches", pa.int64()).to_pylist() == [matches] * len(messages)
    assert rows(records) == [plain(message) for message in messages]


@given(MESSAGES, st.data())
def test_damaged_bytes_are_found_as_the_plain_decoder_finds_them(
    messages: list[StoredMessage], data: st.DataObject
) -> None:
    """Both decoders refuse a block cut short, extended or with a changed byte, or both return the same messages."""
    block = bytearray(schema.encode_block(messages))
    match data.draw(st.sampled_from(["cut", "longer", "byte"])):
        case "cut":
            del block[data.draw(st.integers(schema.BLOCK_HEAD.size, len(block) - 1)) :]
        case "longer":
            block += data.draw(st.binary(min_size=1, max_size=30))
        case _:
            at = data.draw(st.integers(schema.BLOCK_HEAD.size, len(block) - 1))
            block[at] = data.draw(st.integers(0, 255))
    try:
        expected = list(schema.decode_block(bytes(block)))
    except SchemaError:
        with pytest.raises(SchemaError):
            decoded(bytes(block), len(messages))
        return
    found = decoded(bytes(block), len(messages))
    numbers = [message.number for message in expected]
    assert found.column("number", pa.int64()).to_pylist() == [n if n < 2**63 else n - 2**64 for n in numbers]
    assert found.column("payload", pa.binary()).to_pylist() == [message.payload for message in expected]


def decoded(block: bytes, count: int) -> Records:
    starts = starts_of(block, schema.BLOCK_HEAD.size, count, 0)
    records = Records(block[schema.BLOCK_HEAD.size :], [at - schema.BLOCK_HEAD.size for at in starts], 0)
    records.column("publisher", pa.string())
    return records


def test_a_tenant_that_is_not_known_is_refused() -> None:
    record = bytearray(archive_schema.encode_record(ArchivedMessage(StoredMessage(b"t", b"", 1), 0)))
    record[4] = 7
    with pytest.raises(SchemaError, match="of tenant 7, which is not known"):
        Records(bytes(record), [0], ARCHIVED_LEAD)


def test_client_ids_that_are_no_utf_8_are_shown_and_damaged_ones_refused() -> None:
    """A client id with surrogates is shown, a damaged one is refused. Some brokers accept surrogates."""
    data = schema.encode_message(StoredMessage(b"\xff/x", b"", 1, publisher="a\ud800"))
    records = Records(data, [0], 0)
    assert records.column("publisher", pa.string()).to_pylist() == ["a?"]
    assert records.column("topic", pa.string()).to_pylist() == ["\N{REPLACEMENT CHARACTER}/x"]
    with pytest.raises(SchemaError, match="client id is damaged"):
        Records(data[:-3] + b"\xff\xff\xff", [0], 0).column("publisher", pa.string())

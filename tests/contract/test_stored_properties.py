"""The properties of stored messages: the data path (pyx.protocol.properties) and the plain decoder agree on their
bytes.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveldb_store.format.schema import SchemaError
from leveldb_store.format.stored_properties import Properties, decode_properties
from pyx.protocol import properties as compiled

PUBLISH = 3

GOLDEN = [
    ({}, ""),
    ({"payload_format_indicator": 1, "content_type": "text/é"}, "0101 03 0007 746578742fc3a9"),
    ({"message_expiry_interval": 60, "response_topic": "a/b"}, "02 0000003c 08 0003 612f62"),
    ({"correlation_data": b"\x00\xff"}, "09 0002 00ff"),
    ({"subscription_identifier": [1, 200]}, "0b 01 0b c801"),
    ({"user_property": [("k", "1"), ("k", "2"), ("", "")]}, "26 0001 6b 0001 31 26 0001 6b 0001 32 26 0000 0000"),
]

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\0#+"), max_size=20)
TABLE = st.fixed_dictionaries(
    {},
    optional={
        "payload_format_indicator": st.integers(0, 1),
        "message_expiry_interval": st.integers(0, 2**32 - 1),
        "content_type": TEXT,
        "response_topic": TEXT.filter(bool),
        "correlation_data": st.binary(max_size=300),
        "subscription_identifier": st.lists(st.integers(1, 268_435_455), min_size=1, max_size=4),
        "user_property": st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4),
    },
)


def as_table(found: Properties) -> dict[str, Any]:
    """Return the properties under the names of pyx.protocol.properties."""
    table = {name: getattr(found, name) for name in found.__slots__}
    table["subscription_identifier"] = list(table.pop("subscription_identifiers"))
    table["user_property"] = list(table.pop("user_properties"))
    return {name: value for name, value in table.items() if value is not None and value != []}


@pytest.mark.parametrize(("table", "golden"), GOLDEN)
def test_golden_bytes(table: dict[str, Any], golden: str) -> None:
    data = bytes.fromhex(golden)
    assert as_table(decode_properties(data)) == table == compiled.unpack(data, PUBLISH, True)
    assert as_table(decode_properties(compiled.pack(table, PUBLISH, True))) == table


@given(TABLE)
def test_what_the_data_path_packs_is_what_the_plain_decoder_finds(table: dict[str, Any]) -> None:
    assert as_table(decode_properties(compiled.pack(table, PUBLISH, True))) == table


@given(st.binary(max_size=40))
def test_damaged_bytes_are_a_schema_error_and_nothing_else(data: bytes) -> None:
    with contextlib.suppress(SchemaError):
        decode_properties(data)

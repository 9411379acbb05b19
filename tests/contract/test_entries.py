"""The bytes of a mesh entry: the data path (pyx.storage.entries) and the plain decoder (zmq_mesh.envelope) agree on
them.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyx.storage.entries import Packed
from tests.unit.adapters import records_adapter as adapter
from zmq_mesh.envelope import Entry, decode_entries, encode_entry

GOLDEN = [
    (
        Entry(b"t", b"hello", 0x0102030405060708),
        "00 0100 00000000 05000000 0807060504030201 74 68656c6c6f",
    ),
    (
        Entry(b"a/b", b"", 1, qos=2, retain=True, properties=b"\x01\x01"),
        "06 0300 02000000 00000000 0100000000000000 612f62 0101",
    ),
    (
        Entry(b"t", b"x", 2, qos=1, expires=0x1122334455, shared=b"g/t"),
        "19 0100 00000000 01000000 0200000000000000 5544332211000000 00 0000000000000000 0300 672f74 74 78",
    ),
    (
        Entry(b"t", b"x", 2, qos=2, shared=b"other/+", insist=True, key=0x0102030405060708, retained_only=True),
        "52 0100 00000000 01000000 0200000000000000 01 0807060504030201 0700 6f746865722f2b 74 78",
    ),
    (
        Entry(b"big", b"y" * 10, 3, own_frame=True, retained_only=True),
        "60 0300 00000000 0a000000 0300000000000000 626967",
    ),
]  # fmt: skip


def packed(*entries: Entry) -> bytes:
    buffer = Packed()
    for entry in entries:
        adapter.pack(
            buffer, entry.topic, entry.payload, entry.number, entry.qos, entry.retain, entry.properties, entry.expires,
            entry.shared, entry.insist, entry.key, entry.own_frame, entry.retained_only,
        )  # fmt: skip
    assert buffer.entry_count == len(entries)
    assert len(buffer) == memoryview(buffer).nbytes
    return bytes(memoryview(buffer))


def unpacked(entry: Entry) -> adapter.Unpacked:
    return (
        entry.topic, None if entry.own_frame else entry.payload, entry.number, entry.qos, entry.retain,
        entry.properties, entry.expires or 0, entry.shared, entry.insist, entry.key, entry.own_frame,
        entry.retained_only,
    )  # fmt: skip


@pytest.mark.parametrize(("entry", "golden"), GOLDEN)
def test_golden_bytes(entry: Entry, golden: str) -> None:
    data = bytes.fromhex(golden)
    assert packed(entry) == data
    assert encode_entry(entry) == data
    assert adapter.unpack(data) == [unpacked(entry)]
    assert list(decode_entries(data, [entry.payload] if entry.own_frame else [])) == [entry]


def test_golden_bytes_of_a_batch() -> None:
    entries = [entry for entry, _ in GOLDEN]
    data = bytes.fromhex("".join(golden for _, golden in GOLDEN))
    assert packed(*entries) == data
    assert adapter.unpack(data) == [unpacked(entry) for entry in entries]
    assert list(decode_entries(data, [b"y" * 10])) == entries


CHOICES = st.fixed_dictionaries(
    {"shared": st.binary(min_size=1, max_size=400), "insist": st.booleans(), "key": st.integers(0, 2**64 - 1)}
)
ENTRIES = st.builds(
    lambda choice, **fields: Entry(**fields, **choice),
    choice=st.just({}) | CHOICES,
    topic=st.binary(min_size=1, max_size=300),
    payload=st.binary(max_size=3000),
    number=st.integers(0, 2**64 - 1),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    properties=st.binary(max_size=300),
    expires=st.none() | st.integers(1, 2**64 - 1),
    own_frame=st.booleans(),
    retained_only=st.booleans(),
)


@given(st.lists(ENTRIES, max_size=6))
def test_both_ways_agree(entries: list[Entry]) -> None:
    data = b"".join(map(encode_entry, entries))
    assert packed(*entries) == data
    assert adapter.unpack(data) == [unpacked(entry) for entry in entries]
    assert list(decode_entries(data, [entry.payload for entry in entries if entry.own_frame])) == entries

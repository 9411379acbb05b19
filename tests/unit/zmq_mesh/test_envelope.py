"""The mesh's bytes: golden entries and messages, round trips, and an EnvelopeError for every cut and wrong byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyx.core.peer import sibling
from pyx.mesh.contract import EnvelopeError
from pyx.storage.entries import count_entries
from tests import mesh_messages
from tests.mesh_messages import Head, Kind, Prefix
from zmq_mesh.envelope import Entry, decode_entries, encode_entries, encode_entry

PLAIN = Entry(b"a/b", b"hi", 0x0102030405060708, 1)
PLAIN_BYTES = bytes.fromhex("01 0300 00000000 02000000 0807060504030201 612f62 6869")
FULL = Entry(
    b"t",
    b"payload",
    9,
    qos=2,
    retain=True,
    properties=b"\x01\x01",
    expires=0x1122334455,
    shared=b"g/t",
    insist=True,
    key=77,
    own_frame=True,
    retained_only=True,
)
FULL_BYTES = bytes.fromhex(
    "7e 0100 02000000 07000000 0900000000000000 5544332211000000 01 4d00000000000000 0300 672f74 74 0101"
)

entries = st.builds(
    Entry,
    topic=st.binary(max_size=20),
    payload=st.binary(max_size=50),
    number=st.integers(0, 2**64 - 1),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    properties=st.binary(max_size=20),
    expires=st.none() | st.integers(0, 2**64 - 1),
    shared=st.none() | st.binary(max_size=10),
    own_frame=st.booleans(),
    retained_only=st.booleans(),
)


def test_golden_entries() -> None:
    assert encode_entry(PLAIN) == PLAIN_BYTES
    assert encode_entry(FULL) == FULL_BYTES
    assert list(decode_entries(PLAIN_BYTES + FULL_BYTES, [b"payload"])) == [PLAIN, FULL]
    assert count_entries(PLAIN_BYTES + FULL_BYTES) == 2
    assert count_entries(b"") == 0


def test_golden_prefix_and_head() -> None:
    prefix = mesh_messages.pack_prefix(sibling(1), sibling(2), 0x0A0B, 0x0C0D, 0x12345)
    assert prefix.hex() == "b502452301000000020000000b0a0000000000000d0c000000000000"
    head = Head(Kind.BATCH, mesh_messages.SEQUENCED, 0, 3, 4, 1, 0, 10, 11, 12, 13, 14, 15, 16)
    packed = mesh_messages.HEAD.pack(*head)
    assert packed.hex() == "0401000003000000040000000100000000000000" + "".join(
        f"{number:02x}00000000000000" for number in range(10, 17)
    )
    frame = prefix + packed
    assert len(frame) == mesh_messages.HEAD_END == 104
    assert mesh_messages.unpack_prefix(frame) == Prefix(sibling(1), sibling(2), 0x0A0B, 0x0C0D)
    assert mesh_messages.unpack_head(frame) == head


@given(st.lists(entries, max_size=5))
def test_round_trip(made: list[Entry]) -> None:
    part, frames = encode_entries(made)
    assert list(decode_entries(part, frames)) == made
    assert list(decode_entries(memoryview(bytearray(part)), [memoryview(frame) for frame in frames])) == made
    assert count_entries(part) == len(made)


@given(entries)
def test_every_cut_is_an_error(entry: Entry) -> None:
    part = encode_entry(entry)
    for cut in range(1, len(part)):
        with pytest.raises(ValueError, match="mesh entry"):
            count_entries(part[:cut])
        with pytest.raises(EnvelopeError):
            list(decode_entries(part[:cut], [entry.payload] if entry.own_frame else []))


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_raise_envelope_error(part: bytes) -> None:
    try:
        count = count_entries(part)
    except ValueError:
        return
    try:
        assert len(list(decode_entries(part))) == count
    except EnvelopeError as error:
        assert "payload frame" in str(error)  # noqa: PT017


def test_payload_frames_must_fit_their_entries() -> None:
    part, frames = encode_entries([FULL])
    for wrong in ([], [b"paylaod!"], [*frames, b""]):
        with pytest.raises(EnvelopeError, match="payload frame"):
            list(decode_entries(part, wrong))


@pytest.mark.parametrize("frame", [b"", b"\xb5\x02", b"\xb5\x01" + bytes(102), b"\x00\x02" + bytes(102)])
def test_not_a_message_of_this_version(frame: bytes) -> None:
    with pytest.raises(EnvelopeError):
        mesh_messages.unpack_prefix(frame)

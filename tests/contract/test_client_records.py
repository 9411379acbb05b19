"""The bytes of sessions and wills (docs/store.md), and bytes that are no such record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveldb_store.format import queued_messages, schema, session_schema, windows
from leveldb_store.format.schema import SchemaError, StoredMessage
from leveldb_store.format.session_schema import StoredSession, StoredWill
from leveldb_store.format.subscription_schema import decode_subscription
from pyx.core.placement import group_number
from tests.kept_host import kept, lasting

SESSIONS = [
    (StoredSession(0xFFFFFFFF, 4, None, 0, 1), "ffffffff 84 0000000000000000 0100000000000000 00000000"),
    (StoredSession(3600, 5, "", 2, 1), "100e0000 85 0200000000000000 0100000000000000 01000000"),
    (StoredSession(1, 3, "é", 0x0102030405060708, 0), "01000000 83 0807060504030201 0000000000000000 03000000 c3a9"),
]
SESSIONS_1 = [
    (StoredSession(0xFFFFFFFF, 4, None, 0, 1), "ffffffff 04 0000000000000000 0100000000000000 ffff"),
    (StoredSession(3600, 5, "", 2, 1), "100e0000 05 0200000000000000 0100000000000000 0000"),
    (StoredSession(1, 3, "é", 0x0102030405060708, 0), "01000000 03 0807060504030201 0000000000000000 0200 c3a9"),
    (StoredSession(0, 5, "u" * 0xFFFF, 2, 1), "00000000 05 0200000000000000 0100000000000000 ffff" + "75" * 0xFFFF),
]
"""In version 1, the length of the longest username is the same as the mark for none."""
QUEUED_1 = [
    (None, "ffff"),
    ("", "0000"),
    ("c", "0100 63"),
    ("p" * 0xFFFF, "ffff" + "70" * 0xFFFF),
]
WILLS = [
    (
        StoredWill(0, 0, None, StoredMessage(b"t", b"x", 0, qos=1, publisher="c")),
        "0000000000000000 00000000 00 00000000 01 0100 00000000 01000000 0000000000000000 74 78 0100 63",
    ),
    (
        StoredWill(0x0102030405060708, 30, 60, StoredMessage(b"t", b"", 0, retain=True, publisher="c")),
        "0807060504030201 1e000000 01 3c000000 04 0100 00000000 00000000 0000000000000000 74 0100 63",
    ),
]


@pytest.mark.parametrize(("session", "golden"), SESSIONS)
def test_bytes_of_a_session(session: StoredSession, golden: str) -> None:
    data = bytes.fromhex(golden)
    assert session_schema.encode_session(session) == data
    assert session_schema.decode_session(data) == session


@pytest.mark.parametrize(("session", "golden"), SESSIONS_1, ids=["none", "empty", "short", "longest"])
def test_a_session_of_version_1_is_read(session: StoredSession, golden: str) -> None:
    assert session_schema.decode_session(bytes.fromhex(golden)) == session


@pytest.mark.parametrize(("publisher", "golden"), QUEUED_1, ids=["unknown", "empty", "short", "longest"])
def test_a_queued_message_of_version_1_is_read(publisher: str | None, golden: str) -> None:
    message = StoredMessage(b"t", b"x", 7, qos=1, publisher=publisher or None)
    entry = schema.encode_message(StoredMessage(b"t", b"x", 7, qos=1))[:-2]
    data = bytes.fromhex("09 05000000 0200 0b07") + entry + bytes.fromhex(golden)
    assert queued_messages.decode_queued(data) == queued_messages.StoredQueued(9, 5, b"\x0b\x07", message)


@pytest.mark.parametrize("identifiers", [0, 1, 0xFFFE, 0xFFFF, 0x10000, 500_000])
@pytest.mark.parametrize("publisher", [None, 1, 0xFFFE, 0xFFFF])
def test_a_queued_message_has_any_length(identifiers: int, publisher: int | None) -> None:
    message = StoredMessage(b"t", b"x", 7, qos=1, publisher=None if publisher is None else "p" * publisher)
    queued = queued_messages.StoredQueued(9, 5, bytes(identifiers), message)
    assert queued_messages.decode_queued(queued_messages.encode_queued(queued)) == queued


@pytest.mark.parametrize(("will", "golden"), WILLS)
def test_bytes_of_a_will(will: StoredWill, golden: str) -> None:
    data = bytes.fromhex(golden)
    assert session_schema.encode_will(will) == data
    assert session_schema.decode_will(data) == will


@pytest.mark.parametrize("data", [bytes.fromhex(golden) for _, golden in SESSIONS])
def test_a_session_of_another_length_is_damaged(data: bytes) -> None:
    for wrong in (*(data[:n] for n in range(len(data))), data + b"\0"):
        with pytest.raises(SchemaError):
            session_schema.decode_session(wrong)


@pytest.mark.parametrize("data", [bytes.fromhex(golden) for _, golden in WILLS])
def test_a_will_of_another_length_is_damaged(data: bytes) -> None:
    for wrong in (*(data[:n] for n in range(len(data))), data + b"\0"):
        with pytest.raises(SchemaError):
            session_schema.decode_will(wrong)


@given(data=st.binary(max_size=100))
def test_any_bytes_are_a_record_or_damaged(data: bytes) -> None:
    for decode in (
        session_schema.decode_session, session_schema.decode_will, decode_subscription, windows.decode_window,
        queued_messages.decode_queued,
    ):  # fmt: skip
        try:
            decode(data)
        except SchemaError:
            continue


def test_what_the_router_stores_of_a_session_is_what_the_schema_says() -> None:
    host, store = kept()
    member = lasting(host, "m", 5)
    member.subscribe(("$share/g/t", 2), ("t", 1), identifier=300)
    host.lose(member)
    publisher = host.connect("p", 5)
    publisher.publish("t", b"x", qos=2, properties={"message_expiry_interval": 50})
    host.settle()
    ((key, value),) = store.scan(schema.QUEUED)
    queued = queued_messages.decode_queued(value)
    assert schema.split_queued(key)[0] == "m"
    assert queued.flags & schema.SHARED_COPY
    assert queued.group == group_number(b"g/t")
    assert queued.identifiers == b"\x0b\xac\x02"
    assert (queued.message.payload, queued.message.publisher) == (b"x", "p")
    assert queued_messages.encode_queued(queued) == value
    ((_, value),) = store.scan(schema.WINDOW)
    window = windows.decode_window(value)
    assert windows.encode_window(window) == value


def test_windows_and_queued_messages_that_are_cut_off_are_refused() -> None:
    window = windows.Window(9, [(7, 1, 1, 4)], [8], 3, [(1, 2), (4, 5)], [(3, 2**64 - 1)])
    whole = windows.encode_window(window)
    assert windows.decode_window(whole) == window
    for wrong in (*(whole[:end] for end in range(len(whole))), whole + b"\0"):
        with pytest.raises(SchemaError):
            windows.decode_window(wrong)
    queued = queued_messages.StoredQueued(1, 7, b"", StoredMessage(b"t", b"body", 5, 1))
    whole = queued_messages.encode_queued(queued)
    assert queued_messages.decode_queued(whole) == queued
    for end in range(len(whole)):
        with pytest.raises(SchemaError):
            queued_messages.decode_queued(whole[:end])

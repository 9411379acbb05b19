"""The bytes of family E: their form, their round trip, and the detection of damaged ones."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveldb_store.format import events, schema
from leveldb_store.format.events import KINDS, Event, EventKind, decode_event, encode_event, event_key, split_event

NUMBER = 1_800_000_000_123_456 << 8 | 3
BITS = {"B": 8, "H": 16, "I": 32, "Q": 64}
TEXTS = st.none() | st.text(max_size=40)
NAMES = st.text(max_size=20).filter(lambda text: len(text.encode()) <= events.ROW_NAME_BYTES_MAX)


def value_of(before: int, *event: Any) -> bytes:
    return schema.U64.pack(before) + encode_event(*event)


def decoded(before: int, *event: Any) -> Event:
    return decode_event(event_key(NUMBER), value_of(before, *event))


@st.composite
def written(draw: st.DrawFn) -> tuple[EventKind, list[str | None], list[int], dict[str, int]]:
    kind = draw(st.sampled_from(KINDS))
    texts = [draw(TEXTS) for _ in kind.texts]
    numbers = [draw(st.integers(0, 2 ** BITS[code] - 1)) for _, code in kind.numbers]
    rows = draw(st.dictionaries(NAMES, st.integers(0, 2**64 - 1), max_size=5)) if kind.table else {}
    return kind, texts, numbers, rows


def test_golden_bytes() -> None:
    """docs/store.md has the same bytes."""
    assert event_key(NUMBER) == b"E" + bytes.fromhex("066517289a624003")
    value = value_of(
        1000, events.OPENED, ("c", None, "127.0.0.1:5", "127.0.0.1:1883"), (5, 60, True, False, 0xFFFFFFFF)
    )
    assert value == (
        bytes.fromhex("e80300000000000001010100ffff0b000e00053c000100ffffffff") + b"c127.0.0.1:5127.0.0.1:1883"
    )
    value = value_of(0, events.SUPPRESSED, ("why",), (), {"counters": 2}.items())
    assert value == bytes(8) + bytes.fromhex("010e0300") + b"why" + bytes.fromhex("010008") + b"counters" + (
        struct.pack("<Q", 2)
    )
    assert split_event(value) == (0, value[8:])


def test_kinds_are_never_renumbered() -> None:
    assert [(kind.code, kind.name) for kind in KINDS] == [
        (1, "connection_opened"), (2, "connection_closed"), (3, "connection_refused"), (4, "session_created"),
        (5, "session_expired"), (6, "session_taken_over"), (7, "session_ended"), (8, "subscription_made"),
        (9, "subscription_removed"), (10, "messages_dropped"), (11, "counters"), (12, "topic_traffic"),
        (13, "publish_to_ack"), (14, "events_suppressed"), (15, "worker_started"), (16, "worker_stopped"),
    ]  # fmt: skip


@given(written(), st.integers(0, 2**64 - 1))
def test_what_is_written_comes_back(
    event: tuple[EventKind, list[str | None], list[int], dict[str, int]], at: int
) -> None:
    kind, texts, numbers, rows = event
    found = decoded(at, kind, texts, numbers, rows.items())
    expected: dict[str, Any] = dict(zip(kind.texts, texts, strict=True))
    expected |= dict(zip((name for name, _ in kind.numbers), numbers, strict=True))
    if kind.table:
        expected[kind.table] = rows
    assert found == Event(NUMBER, at, kind, expected)
    assert (found.microseconds, found.worker) == (1_800_000_000_123_456, 3)


@given(written(), st.data())
def test_damaged_bytes_are_an_error_of_the_schema_or_another_event(
    event: tuple[EventKind, list[str | None], list[int], dict[str, int]], data: st.DataObject
) -> None:
    kind, texts, numbers, rows = event
    value = bytearray(value_of(7, kind, texts, numbers, rows.items()))
    key = bytearray(event_key(NUMBER))
    for _ in range(data.draw(st.integers(1, 4))):
        target = key if data.draw(st.integers(0, 9)) == 0 else value
        at = data.draw(st.integers(0, max(0, len(target) - 1)))
        match data.draw(st.integers(0, 2)):
            case 0:
                target[at : at + 1] = bytes((data.draw(st.integers(0, 255)),))
            case 1:
                del target[at:]
            case _:
                target[at:at] = data.draw(st.binary(max_size=5))
    try:
        found = decode_event(bytes(key), bytes(value))
    except schema.SchemaError:
        return
    rows = found.fields.get(found.kind.table, {})
    texts = [found.fields[name] for name in found.kind.texts]
    again = [found.fields[name] for name, _ in found.kind.numbers]
    assert len(value_of(found.before, found.kind, texts, again, rows.items())) <= len(value)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_error_of_the_schema_or_an_event(value: bytes) -> None:
    try:
        found = decode_event(event_key(1), value)
    except schema.SchemaError:
        return
    assert found.kind in KINDS


@pytest.mark.parametrize("key", [b"E", b"E" + bytes(9), b"F" + bytes(8)])
def test_keys_of_others_are_none(key: bytes) -> None:
    with pytest.raises(schema.SchemaError):
        decode_event(key, value_of(0, events.STOPPED, (), ()))


def test_long_texts_are_cut_between_two_characters() -> None:
    texts = ["x" * 5000, "ä" * 5000, None, None]
    found = decoded(0, events.OPENED, texts, (5, 0, 0, 0, 0))
    assert found.fields["client"] == "x" * events.TEXT_BYTES_MAX
    found = decoded(0, events.OPENED, ["x" + "ä" * 5000, *texts[1:]], (5, 0, 0, 0, 0))
    assert found.fields["client"] == "x" + "ä" * 511
    assert found.fields["username"] == "ä" * 512

"""The counters in a commit: the bytes are the same in Cython and in plain Python."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leveldb_store.format.persisted_counters import FIELDS, decode_counters, encode_counters
from leveldb_store.format.schema import SchemaError
from pyx.core import counters
from pyx.core.counters import Row

MOST = dict.fromkeys(FIELDS, 2**64 - 1) | {"number": 2**53 - 1}
"""The largest value of each field: a message number is microseconds of a clock that ends in 2255."""

values_of_fields = st.tuples(*(st.integers(0, MOST[name]) for name in FIELDS))


def test_the_fields_are_those_that_the_row_packs() -> None:
    assert ("time_ms", "position", "number", "sessions", *counters.KEPT) == FIELDS
    assert set(counters.KEPT) <= set(counters.NAMES)
    assert {name for name in counters.NAMES if name.startswith(("dropped_", "delivered_"))} <= set(counters.KEPT)


def test_golden_bytes() -> None:
    row = Row()
    row.set(counters.MATCHED, 300)
    packed = row.kept(1, 127, 128, 2)
    zeros = counters.KEPT.index("matched")
    assert packed == b"\x01\x01\x7f\x80\x01\x02" + bytes(zeros) + b"\xac\x02" + bytes(len(counters.KEPT) - zeros - 1)
    assert decode_counters(packed) == dict.fromkeys(FIELDS, 0) | {
        "time_ms": 1, "position": 127, "number": 128, "sessions": 2, "matched": 300,
    }  # fmt: skip


@given(values_of_fields)
@example((0,) * len(FIELDS))
@example(tuple(MOST.values()))
def test_both_sides_agree(values: tuple[int, ...]) -> None:
    row, fields = Row(), dict(zip(FIELDS, values, strict=True))
    for name in counters.KEPT:
        row.set(counters.NAMES.index(name), fields[name])
    packed = row.kept(*values[:4])
    assert packed == encode_counters(fields)
    assert decode_counters(packed) == fields


def test_fields_of_others_are_left_out_and_missing_ones_are_not_there() -> None:
    whole = encode_counters(dict.fromkeys(FIELDS, 3))
    assert decode_counters(whole + b"\x05\x06") == dict.fromkeys(FIELDS, 3)
    assert decode_counters(whole[:3]) == {"time_ms": 3, "position": 3}


def test_a_number_of_the_year_2255_is_told() -> None:
    with pytest.raises(SchemaError, match="2255"):
        decode_counters(encode_counters(MOST | {"number": MOST["number"] + 1}))


@pytest.mark.parametrize("damaged", [b"", b"\x02\x01", b"\x01\x80", b"\x01" + b"\xff" * 10 + b"\x01"])
def test_damage_is_told(damaged: bytes) -> None:
    with pytest.raises(SchemaError):
        decode_counters(damaged)

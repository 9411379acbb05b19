"""LevelDB's log files, cut and damaged at every place."""

from __future__ import annotations

import os
from pathlib import Path

import plyvel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveldb_store.engine.wal import BLOCK_BYTES, cut_at_damage, cut_torn_end, whole_bytes
from pyx.storage.stored import crc32c


def test_the_check_value_of_crc_32c() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[int]]:
    """Return a log written by LevelDB, and the ends of its entries."""
    path = tmp_path_factory.mktemp("log") / "db"
    ends = []
    with plyvel.DB(str(path), create_if_missing=True, write_buffer_size=1 << 22) as db:
        (file,) = path.glob("*.log")
        for size in (10, 100, 5000, 32_700, 10, 70_000, 1, 40_000, 200, 32_738, 3):
            db.put(b"key", os.urandom(size))
            ends.append(file.stat().st_size)
        data = file.read_bytes()
    return data, ends


def test_a_whole_log_is_whole(log: tuple[bytes, list[int]], tmp_path: Path) -> None:
    data, ends = log
    assert whole_bytes(data) == (len(data), False) == (ends[-1], False)
    file = tmp_path / "log"
    file.write_bytes(data)
    assert cut_torn_end(file) == 0
    assert cut_at_damage(file) == 0
    assert file.read_bytes() == data
    assert whole_bytes(b"") == (0, False)


@settings(deadline=None)
@given(at=st.floats(0, 1))
def test_a_cut_log_ends_with_its_last_whole_entry(log: tuple[bytes, list[int]], at: float) -> None:
    data, ends = log
    cut = int(at * len(data))
    assert whole_bytes(data[:cut]) == (max([end for end in ends if end <= cut], default=0), False)


@settings(deadline=None)
@given(at=st.floats(0, 1, exclude_max=True), flipped=st.integers(1, 255))
def test_a_flipped_byte_ends_it_before_its_entry(log: tuple[bytes, list[int]], at: float, flipped: int) -> None:
    data, ends = log
    place = int(at * len(data))
    damaged = bytearray(data)
    damaged[place] ^= flipped
    good, is_followed = whole_bytes(bytes(damaged))
    before = max([end for end in ends if end <= place], default=0)
    if place - before < 7 and before % BLOCK_BYTES > BLOCK_BYTES - 7:
        return  # padding at the end of a block, which is never read
    assert good == before
    if place >= ends[-2]:
        assert not is_followed, "nothing begins behind the last entry"
    elif place < ends[4]:
        assert is_followed


def test_what_is_cut(log: tuple[bytes, list[int]], tmp_path: Path) -> None:
    data, ends = log
    file = tmp_path / "log"
    file.write_bytes(data[:-1] + b"?")
    assert cut_torn_end(file) == len(data) - ends[-2]
    assert file.stat().st_size == ends[-2]
    file.write_bytes(data[: ends[1] + 20] + b"?" + data[ends[1] + 21 :])
    assert cut_torn_end(file) == 0, "others follow"
    assert cut_at_damage(file) == len(data) - ends[1]
    assert file.stat().st_size == ends[1]

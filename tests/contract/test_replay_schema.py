"""Records of replays (family O): the bytes that docs/store.md describes."""

from __future__ import annotations

import pytest

from leveldb_store.replay_schema import StoredReplay, decode_replay, encode_replay, replay_key, split_replay
from leveldb_store.schema import SchemaError

STORED = StoredReplay(
    options=0x09, identifier=300, number=2, position=0x0102030405060708, lost=0x11, floors={3: 0x0102030405060799, 1: 7}
)
GOLDEN = bytes.fromhex(
    "01 09 2c010000 02000000 0807060504030201 1100000000000000 0200 01 0700000000000000 03 9907060504030201"
)


def test_golden_bytes() -> None:
    assert encode_replay(STORED) == GOLDEN
    assert decode_replay(GOLDEN) == STORED


def test_the_least_that_there_is() -> None:
    stored = StoredReplay(0, 0, 1, 0)
    assert decode_replay(encode_replay(stored)) == stored


def test_keys() -> None:
    key = replay_key("client", b"a/+")
    assert key == b"Oclient\0a/+"
    assert split_replay(key) == ("client", b"a/+")
    with pytest.raises(SchemaError):
        split_replay(b"Oclient")


@pytest.mark.parametrize("cut", range(len(GOLDEN)))
def test_cut_off(cut: int) -> None:
    with pytest.raises(SchemaError):
        decode_replay(GOLDEN[:cut])


@pytest.mark.parametrize("damaged", [b"\2" + GOLDEN[1:], GOLDEN + bytes(9), GOLDEN + b"\0"])
def test_damaged(damaged: bytes) -> None:
    with pytest.raises(SchemaError):
        decode_replay(damaged)

"""Records of replays (family O): the bytes that docs/store.md describes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leveldb_store.format.replay_schema import (
    ALL,
    HOSTS_MAX,
    StoredHost,
    StoredReplay,
    decode_replay,
    encode_replay,
    replay_key,
    split_replay,
)
from leveldb_store.format.schema import SchemaError

STORED = StoredReplay(
    options=0x09, identifier=300, number=2, position=0x0102030405060708, lost=0x11, floors={3: 0x0102030405060799, 1: 7}
)
FORMER = bytes.fromhex(
    "01 09 2c010000 02000000 0807060504030201 1100000000000000 0200 01 0700000000000000 03 9907060504030201"
)
WITH_GONE = replace(STORED, gone=[0x0102030405060701, ALL])
GOLDEN = b"\2" + FORMER[1:] + bytes.fromhex("0107060504030201 ffffffffffffffff")


STORED_HEAD = b"\3" + FORMER[1:18] + bytes(8) + FORMER[26:]
"""With nothing lost: that is in `lost_at`."""


def test_golden_bytes() -> None:
    assert encode_replay(STORED) == FORMER
    assert decode_replay(FORMER) == STORED
    assert encode_replay(WITH_GONE) == GOLDEN
    assert decode_replay(GOLDEN) == WITH_GONE


def test_the_least_that_there_is() -> None:
    stored = StoredReplay(0, 0, 1, 0)
    assert decode_replay(encode_replay(stored)) == stored


def test_keys() -> None:
    key = replay_key("client", b"a/+")
    assert key == b"Oclient\0a/+"
    assert split_replay(key) == ("client", b"a/+")
    with pytest.raises(SchemaError):
        split_replay(b"Oclient")


@pytest.mark.parametrize("cut", range(len(FORMER)))
def test_cut_off(cut: int) -> None:
    with pytest.raises(SchemaError):
        decode_replay(FORMER[:cut])
    with pytest.raises(SchemaError):
        decode_replay(b"\2" + FORMER[1:cut])


@pytest.mark.parametrize(
    "damaged",
    [
        b"\2" + FORMER[1:],
        b"\3" + FORMER[1:],
        FORMER + bytes(8),
        FORMER + bytes(9),
        FORMER + b"\0",
        b"\1" + GOLDEN[1:],
        b"\3" + GOLDEN[1:],
        GOLDEN[:-1],
        GOLDEN + b"\0",
        GOLDEN + bytes(8 * 255),
    ],
)
def test_damaged(damaged: bytes) -> None:
    with pytest.raises(SchemaError):
        decode_replay(damaged)


# ------------------------------------------------------------ several hosts

OF_HOSTS = replace(
    WITH_GONE,
    lost=0,
    begins=0x22,
    lost_at=b"h1+",
    hosts=[StoredHost(b"0123abcd", 7, 0x33, True, {2: 5}, [6]), StoredHost(b"00000000", 8, 0)],
)
GOLDEN_OF_HOSTS = (
    b"\3"
    + STORED_HEAD[1:]
    + bytes.fromhex("0200 2200000000000000 01 0300 02 0107060504030201 ffffffffffffffff")
    + b"h1+0123abcd"
    + bytes.fromhex("07000000 3300000000000000 01 0100 0100 02 0500000000000000 0600000000000000")
    + b"00000000"
    + bytes.fromhex("08000000 0000000000000000 00 0000 0000")
)


def test_golden_bytes_of_hosts() -> None:
    assert encode_replay(OF_HOSTS) == GOLDEN_OF_HOSTS
    assert decode_replay(GOLDEN_OF_HOSTS) == OF_HOSTS


@pytest.mark.parametrize("cut", range(len(GOLDEN_OF_HOSTS)))
def test_hosts_cut_off(cut: int) -> None:
    with pytest.raises(SchemaError):
        decode_replay(GOLDEN_OF_HOSTS[:cut])


@pytest.mark.parametrize("count", [0, 1, HOSTS_MAX])
def test_as_many_hosts_as_there_may_be(count: int) -> None:
    stored = replace(OF_HOSTS, hosts=[StoredHost(b"%08x" % at, at, at) for at in range(count)])
    assert decode_replay(encode_replay(stored)) == stored


def test_one_host_beyond() -> None:
    stored = replace(OF_HOSTS, hosts=[StoredHost(b"%08x" % at, at, at) for at in range(HOSTS_MAX + 1)])
    with pytest.raises(SchemaError):
        decode_replay(encode_replay(stored))


def test_something_behind_the_hosts() -> None:
    with pytest.raises(SchemaError):
        decode_replay(GOLDEN_OF_HOSTS + b"\0")

"""Messages between the archives of hosts: the bytes, and what is done with damaged ones."""

from __future__ import annotations

import contextlib
import random

import pytest

from broker.replay.host_messages import NO_ARCHIVE, HostMessage, is_here_of, read_is_here
from pyx.core.peer import peer_of

MESSAGE = HostMessage(b"R", peer_of(3, 1), peer_of(70000, 2), b"0123abcd", 1_795_320_000_000, b"content")
GOLDEN = (
    bytes.fromhex("01 52 03000000 01 70110100 02")
    + b"0123abcd"
    + (1_795_320_000_000).to_bytes(8, "little")
    + b"\7\0\0\0"
)


def test_golden_bytes() -> None:
    assert MESSAGE.encode() == GOLDEN + b"content"
    assert HostMessage.decode(GOLDEN + b"content") == MESSAGE


@pytest.mark.parametrize("cut", range(len(GOLDEN)))
def test_cut_off(cut: int) -> None:
    with pytest.raises(ValueError, match=r"cut off|version"):
        HostMessage.decode(GOLDEN[:cut])


@pytest.mark.parametrize("content", [b"", b"conten", b"content "])
def test_other_lengths_than_the_head_says(content: bytes) -> None:
    with pytest.raises(ValueError, match="cut off, or something follows"):
        HostMessage.decode(GOLDEN + content)


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_refused_by_name(version: int) -> None:
    with pytest.raises(ValueError, match=f"has version {version:02x}, this release reads 1"):
        HostMessage.decode(bytes([version]) + GOLDEN[1:])


@pytest.mark.parametrize(
    "changed",
    [
        MESSAGE._replace(kind=b"?"),
        MESSAGE._replace(tag=b"0123ABCD"),
        MESSAGE._replace(wall_ms=1 << 51),
        MESSAGE._replace(sender=peer_of(0, 1)),
        MESSAGE._replace(receiver=peer_of(0, 1)),
    ],
)
def test_a_damaged_head(changed: HostMessage) -> None:
    with pytest.raises(ValueError, match=r"damaged|no host of a cluster"):
        HostMessage.decode(changed.encode())


def test_hosts_beyond_the_highest_are_none() -> None:
    with pytest.raises(ValueError, match="no host of a cluster"):
        HostMessage.decode(GOLDEN[:2] + (1 << 24).to_bytes(4, "little") + GOLDEN[6:] + b"content")


@pytest.mark.parametrize("seed", range(200))
def test_changed_bytes_are_a_message_or_a_value_error(seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(GOLDEN + b"content")
    for _ in range(chance.randrange(1, 4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    with contextlib.suppress(ValueError):
        assert HostMessage.decode(bytes(data)).encode() == bytes(data)


@pytest.mark.parametrize("count", [1, 256])
def test_workers_of_a_host(count: int) -> None:
    assert read_is_here(is_here_of(count)) == count


@pytest.mark.parametrize("content", [b"", b"\0", b"\0\0", b"\1\1", b"\1\0\0"])
def test_unreadable_workers(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"workers|readable"):
        read_is_here(content)


def test_no_archive_has_a_tag_of_its_own() -> None:
    assert HostMessage.decode(MESSAGE._replace(tag=NO_ARCHIVE).encode()).tag == NO_ARCHIVE

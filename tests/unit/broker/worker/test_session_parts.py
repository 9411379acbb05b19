"""The terms and subscriptions of a session that moves come back as they were, at their longest too."""

from __future__ import annotations

import struct

import pytest

from broker.worker.session_parts import SessionTerms, decode_subscriptions, encode_subscription, split_named

U32_MAX = 0xFFFFFFFF


@pytest.mark.parametrize("username", [None, "", "u", "u" * 65_534, "u" * 65_535, "é" * 32_767])
@pytest.mark.parametrize(("expiry", "gone_ms"), [(1, 0), (1, 1), (U32_MAX, 1 << 50)])
def test_terms(username: str | None, expiry: int, gone_ms: int) -> None:
    terms = SessionTerms(5, expiry, (1 << 50) - 1, True, gone_ms, username)
    encoded = terms.encode()
    assert SessionTerms.decode(encoded + b"rest") == (terms, b"rest")
    for end in {0, 1, len(encoded) // 2, len(encoded) - 1}:
        with pytest.raises((ValueError, struct.error)):
            SessionTerms.decode(encoded[:end])
    with pytest.raises(ValueError, match="format 2"):
        SessionTerms.decode(b"\2" + encoded[1:])
    with pytest.raises(ValueError, match="damaged"):
        SessionTerms.decode(SessionTerms(5, expiry, 1, True, (1 << 50) + 1, username).encode())


@pytest.mark.parametrize("size", [1, 2, 65_534, 65_535])
@pytest.mark.parametrize("identifier", [0, 1, 268_435_455])
def test_subscriptions(size: int, identifier: int) -> None:
    """With their options, but that they ask for no retained messages."""
    encoded = encode_subscription(b"f" * size, 0x01 | 0x04 | 0x08 | 0x10, identifier)
    ((subscription, found),) = decode_subscriptions(encoded)
    assert (subscription.filter, subscription.options, found) == (b"f" * size, 0x01 | 0x04 | 0x08 | 0x20, identifier)
    with pytest.raises((ValueError, struct.error)):
        list(decode_subscriptions(encoded[:-1]))


def test_an_identifier_beyond_the_largest() -> None:
    with pytest.raises(ValueError, match="damaged"):
        list(decode_subscriptions(encode_subscription(b"f", 1, 268_435_456)))


def test_names_of_shares() -> None:
    assert split_named(b"$share/group/a/b") == (b"group", b"a/b")
    assert split_named(b"a/b") == (None, b"a/b")

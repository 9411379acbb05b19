"""Integers, strings and lengths of the wire, tested through the smallest packet or property that has one."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyx.protocol import codec, properties
from pyx.protocol.packets import Publish
from pyx.protocol.reasons import MalformedPacket, ProtocolError
from pyx.protocol.topics import is_topic_name
from pyx.protocol.wire import refuse_disallowed

PUBACK = 4
SUBSCRIBE = 8
REASON_STRING = b"\x1f"


def model_of_utf8(data: bytes) -> bool:
    """Check a UTF-8 Encoded String of the standard with Python's own decoder."""
    try:
        return "\0" not in data.decode("utf-8")
    except UnicodeDecodeError:
        return False


def is_utf8(data: bytes) -> bool:
    try:
        got = properties.unpack(REASON_STRING + len(data).to_bytes(2, "big") + data, PUBACK)
    except MalformedPacket:
        return False
    assert got["reason_string"].encode() == data
    return True


@pytest.mark.mqtt("5:1.5.4-1", "5:1.5.4-2", "311:1.5.3-1", "311:1.5.3-2")
@given(st.binary(max_size=40) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b"")
@example(b"\0")
@example(b"1234567\0")
@example(b"12345678\0")
@example(b"12345678" * 2 + b"\x80")
@example("éçä€𝄞".encode())
@example(b"1234567" + "é".encode())
def test_utf8_is_what_python_takes_without_the_null_character(data: bytes) -> None:
    """A string that is not well-formed UTF-8, or has U+0000 in it, makes its packet malformed."""
    assert is_utf8(data) == model_of_utf8(data)


@pytest.mark.mqtt("5:1.5.4-1", "311:1.5.3-1")
def test_every_three_bytes_at_the_edges_of_utf8() -> None:
    """Every first byte with later bytes around every edge: overlong forms, surrogates, above U+10FFFF."""
    edges = [0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF]
    for first in range(256):
        for second in edges:
            for third in (0x41, 0x7F, 0x80, 0xBF, 0xC0):
                for tail in (b"", b"\x80", b"\xbf", b"a"):
                    data = bytes((first, second, third)) + tail
                    assert is_utf8(data) == model_of_utf8(data), data


@pytest.mark.mqtt("5:1.5.4-1", "5:1.5.4-2", "311:1.5.3-1", "311:1.5.3-2")
def test_a_bad_byte_is_found_at_every_place() -> None:
    """Strings are checked eight bytes at a time: the position of the bad byte must not matter."""
    for length in range(1, 40):
        for place in range(length):
            for bad in (b"\0", b"\x80", b"\xff"):
                data = b"a" * place + bad + b"a" * (length - place - 1)
                assert not is_utf8(data)


@pytest.mark.mqtt("5:1.5.4-3", "311:1.5.3-3")
def test_a_byte_order_mark_is_kept() -> None:
    """0xEF 0xBB 0xBF is U+FEFF wherever it stands, and is not stripped."""
    assert properties.unpack(b"\x1f\x00\x04\xef\xbb\xbfa", PUBACK) == {"reason_string": "\ufeffa"}


@given(st.integers(0, 268_435_455))
@example(0)
@example(127)
@example(128)
@example(16_383)
@example(16_384)
@example(2_097_151)
@example(2_097_152)
@example(268_435_455)
def test_variable_byte_integers_come_back(value: int) -> None:
    """A Subscription Identifier takes every value of a Variable Byte Integer except 0."""
    if value == 0:
        with pytest.raises(ValueError):
            properties.pack({"subscription_identifier": 0}, SUBSCRIBE)
        with pytest.raises(ProtocolError) as refused:
            properties.unpack(b"\x0b\x00", SUBSCRIBE)
        assert refused.value.reason_code == 0x82
        return
    packed = properties.pack({"subscription_identifier": value}, SUBSCRIBE)
    assert len(packed) == 1 + max(1, (value.bit_length() + 6) // 7)
    assert properties.unpack(packed, SUBSCRIBE) == {"subscription_identifier": value}


@pytest.mark.mqtt("5:1.5.5-1")
@pytest.mark.parametrize(
    "encoded",
    [b"\x80\x00", b"\x81\x00", b"\xff\x80\x00", b"\x80\x80\x80\x00", b"\xff\xff\xff\xff\x01", b"\x80" * 4, b"\xff" * 9],
)
def test_variable_byte_integers_that_are_too_long(encoded: bytes) -> None:
    """More bytes than the value needs, or more than four, are malformed."""
    with pytest.raises(MalformedPacket):
        properties.unpack(b"\x0b" + encoded, SUBSCRIBE)


def test_a_variable_byte_integer_that_ends_with_its_packet() -> None:
    """A continuation bit at the end is malformed, not a reason to wait: the packet is complete."""
    for encoded in (b"", b"\x80", b"\x80\x80", b"\xff\xff\xff"):
        with pytest.raises(MalformedPacket):
            properties.unpack(b"\x0b" + encoded, SUBSCRIBE)


@pytest.mark.parametrize("size", [0, 122, 123, 16_378, 16_379, 2_097_146, 2_097_147])
def test_remaining_length_at_its_steps(size: int) -> None:
    """Remaining Length takes one byte up to 127, two up to 16,383, three up to 2,097,151."""
    payload = b"x" * size
    packet = codec.encode_publish(4, b"abc", payload)
    remaining = size + 5
    assert len(packet) == 1 + max(1, (remaining.bit_length() + 6) // 7) + remaining
    assert codec.decode(packet, 4) == Publish(b"abc", payload)


@pytest.mark.mqtt("5:1.5.5-1")
def test_remaining_length_of_more_bytes_than_needed() -> None:
    """MQTT 5 demands the fewest bytes, also for Remaining Length and in the CONNECT that names the version."""
    with pytest.raises(MalformedPacket):
        codec.decode(b"\xc0\x80\x00", 5)
    assert codec.decode(b"\xc0\x80\x00", 4) == codec.decode(b"\xc0\x00", 4)
    for version in (3, 4, 5):
        packet = codec.encode_connect(version, "a")
        padded = packet[:1] + bytes((packet[1] | 0x80, 0)) + packet[2:]
        if version == 5:
            with pytest.raises(MalformedPacket):
                codec.decode(padded, 0)
        else:
            assert codec.decode(padded, 0) == codec.decode(packet, 0)


def test_remaining_length_of_five_bytes() -> None:
    """The packet is malformed as soon as the fourth byte has its continuation bit; until then the decoder waits."""
    for version in (3, 4, 5):
        for have in range(1, 4):
            with pytest.raises(codec.Incomplete):
                codec.decode(b"\x30" + b"\xff" * have, version)
        with pytest.raises(MalformedPacket):
            codec.decode(b"\x30" + b"\xff" * 4, version)


@pytest.mark.parametrize("claimed", [3, 4, 255, 256, 65_535])
def test_a_length_that_reaches_behind_the_packet(claimed: int) -> None:
    """A two-byte length is compared with the available bytes before anything is read or allocated."""
    body = claimed.to_bytes(2, "big") + b"ab"
    with pytest.raises(MalformedPacket):
        codec.decode(b"\x30" + bytes((len(body),)) + body, 4)
    with pytest.raises(MalformedPacket):
        properties.unpack(b"\x1f" + body, PUBACK)


def test_the_encoders_do_not_cut_or_wrap() -> None:
    """A value that does not fit its field is refused by the broker, not sent as a different one."""
    for properties_ in ({"reason_string": "x" * 65_536}, {"reason_string": "\0"}, {"reason_string": "\ud800"}):
        with pytest.raises(ValueError):
            codec.encode_disconnect(0x80, properties_)
    with pytest.raises(ValueError):
        codec.encode_connect(4, "x" * 65_536)
    with pytest.raises(ValueError):
        codec.encode_publish(4, "a\0b")


def is_disallowed(code: int) -> bool:
    """Return whether it is a control character or one of Unicode's non-characters: MQTT 5, 1.5.4."""
    return code < 0x20 or 0x7F <= code < 0xA0 or 0xFDD0 <= code < 0xFDF0 or code & 0xFFFE == 0xFFFE


def test_every_character_when_some_are_refused() -> None:
    """If the configuration refuses them, control characters and non-characters are malformed, and no others are."""
    refuse_disallowed(True)
    try:
        for code in range(0x110000):
            if not 0xD800 <= code < 0xE000 and chr(code) not in "\0+#":
                for text in (chr(code), f"abcdefgh{chr(code)}é"):
                    assert is_topic_name(text.encode()) != is_disallowed(code), hex(code)
        assert not is_utf8(b"a\x01")
        assert is_utf8("é\u00a0".encode())
    finally:
        refuse_disallowed(False)
    assert is_utf8(b"a\x01")
    assert is_topic_name("\ufffe".encode())

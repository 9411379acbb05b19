"""Packets that the encoders refuse and shorten, and the decoder's errors; test_codec.py has the round trips."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pyx.protocol import codec
from pyx.protocol.packets import (
    Connect,
    Publish,
    Subscription,
)
from pyx.protocol.reasons import TABLE, MalformedPacket, MqttError, ProtocolError, ReasonCode, is_reason_allowed
from tests.unit.pyx.protocol.test_codec import CONNACK, PUBACK, PUBREL, SUBACK


def test_subscription_options() -> None:
    one = Subscription(b"a", 0x2E)
    assert (one.qos, one.no_local, one.retain_as_published, one.retain_handling) == (2, True, True, 2)
    one = Subscription(b"a", 0x10)
    assert (one.qos, one.no_local, one.retain_as_published, one.retain_handling) == (0, False, False, 1)


# --- the server's encoders


@pytest.mark.mqtt("311:3.2.2-4", "311:3.2.2-6")
def test_connack_return_codes_before_mqtt_5() -> None:
    """Every Reason Code has a return code, or there is no CONNACK; Session Present is 0 with a refusal."""
    known = {0x84: 1, 0x85: 2, 0x88: 3, 0x89: 3, 0x97: 3, 0x9C: 3, 0x9D: 3, 0x9F: 3, 0x86: 4, 0x87: 5, 0x8A: 5, 0x8C: 5}
    for reason in ReasonCode:
        if not is_reason_allowed(CONNACK, reason, True):
            with pytest.raises(ValueError):
                codec.encode_connack(4, False, reason)
        elif reason:
            code = known.get(reason)
            assert codec.encode_connack(4, True, reason) == (b"" if code is None else bytes((0x20, 2, 0, code)))
            assert codec.encode_connack(5, True, reason) == bytes((0x20, 3, 0, reason, 0))


@pytest.mark.mqtt(
    "5:3.2.2-19", "5:3.2.2-20", "5:3.9.2-1", "5:3.9.2-2", "5:3.11.2-1", "5:3.11.2-2", "5:3.14.2-3", "5:3.14.2-4",
    "5:3.15.2-2", "5:3.15.2-3",
)  # fmt: skip
def test_reason_string_and_user_properties_give_way_to_maximum_packet_size() -> None:
    """A packet larger than the receiver allows is sent without User Properties, then without Reason String."""
    long = {"reason_string": "r" * 20, "user_property": [("u", "v" * 50)]}
    encoders: list[Callable[[dict[str, Any], int | None], bytes]] = [
        lambda extra, size: codec.encode_connack(5, False, 0, {"receive_maximum": 5, **extra}, size),
        lambda extra, size: codec.encode_suback(5, 1, [0], extra, size),
        lambda extra, size: codec.encode_unsuback(5, 1, [0], extra, size),
        lambda extra, size: codec.encode_disconnect(0x82, extra, packet_bytes_max=size),
        lambda extra, size: codec.encode_ack(5, PUBACK, 1, 0x97, extra, True, size),
        lambda extra, size: codec.encode_auth(0x18, {"authentication_method": "m", **extra}, packet_bytes_max=size),
    ]
    for encode in encoders:
        everything = encode(long, None)
        assert encode(long, len(everything)) == everything
        assert encode(long, len(everything) - 1) == encode({"reason_string": "r" * 20}, None)
        bare = encode(long, 10)
        assert len(bare) <= 10
        assert not {"reason_string", "user_property"} & set(codec.decode(bare, 5, True).properties)  # type: ignore[attr-defined]


@pytest.mark.mqtt("5:3.2.2-8", "5:3.6.2-1", "5:3.9.3-2", "5:3.11.3-2", "5:3.14.2-1", "5:3.14.2-2", "5:3.15.2-1")
def test_the_encoders_refuse_what_may_not_be_sent() -> None:
    cases: list[Callable[[], bytes]] = [
        lambda: codec.encode_connack(5, False, 0x8E),
        lambda: codec.encode_connack(5, False, 0, {"topic_alias": 1}),
        lambda: codec.encode_suback(5, 1, [4]),
        lambda: codec.encode_suback(5, 0, [0]),
        lambda: codec.encode_suback(5, 65_536, [0]),
        lambda: codec.encode_unsuback(5, 1, [1]),
        lambda: codec.encode_disconnect(4),
        lambda: codec.encode_disconnect(0, {"session_expiry_interval": 1}),
        lambda: codec.encode_disconnect(0x8B, version=4),
        lambda: codec.encode_auth(0x18),
        lambda: codec.encode_auth(0x19, {"authentication_method": "x"}),
        lambda: codec.encode_connect(2, ""),
        lambda: codec.encode_connect(4, "", keep_alive=65_536),
        lambda: codec.encode_publish(4, "a", qos=3, packet_id=1),
        lambda: codec.encode_publish(4, "a", qos=1),
        lambda: codec.encode_publish(4, "a", packet_id=1),
        lambda: codec.encode_publish(4, "a", dup=True),
        lambda: codec.encode_publish(5, "a", properties={"subscription_identifier": [1]}),
        lambda: codec.encode_ack(5, SUBACK, 1),
        lambda: codec.encode_ack(5, PUBREL, 1, 0x80),
    ]
    for case in cases:
        with pytest.raises((ValueError, OverflowError)):
            case()


# --- limits and errors


def test_the_decoder_refuses_a_packet_that_is_too_large_at_its_fixed_header() -> None:
    """No memory is reserved for an announced length."""
    decoder = codec.Decoder(4, packet_bytes_max=100)
    decoder.feed(codec.encode_publish(4, "a", b"x" * 95))
    assert decoder.next_packet() == Publish(b"a", b"x" * 95)
    decoder.feed(b"\x30\x63")
    with pytest.raises(ProtocolError) as refused:
        decoder.next_packet()
    assert refused.value.reason_code == ReasonCode.PACKET_TOO_LARGE


def test_what_errors_say() -> None:
    assert MalformedPacket("why").reason_code is ReasonCode.MALFORMED_PACKET
    assert ProtocolError().reason_code is ReasonCode.PROTOCOL_ERROR
    assert str(ProtocolError(0x94, "alias")) == "alias (0x94)"
    assert isinstance(MalformedPacket(), MqttError)


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(Connect(4, "a", username="u", password=b"secret"))


def test_the_reason_table_has_every_code_once() -> None:
    assert [row[0] for row in TABLE] == sorted(set(ReasonCode))
    for code, by_client, by_server in TABLE:
        assert by_client or by_server
        for packet_type in range(16):
            assert is_reason_allowed(packet_type, code, False) == (packet_type in by_client)
            assert is_reason_allowed(packet_type, code, True) == (packet_type in by_server)
    assert not is_reason_allowed(PUBACK, 256, True)
    assert not is_reason_allowed(16, 0, True)

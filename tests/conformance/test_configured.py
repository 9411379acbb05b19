"""Behaviour that the standard leaves to the configuration: payload checks, Response Information, bounds of CONNECT."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import wire
from tests.broker_process import KIND, BrokerProcess
from tests.wire import Connect, OpenConnection, Will

pytestmark = pytest.mark.skipif(KIND != "mqttd", reason="these are settings of mqttd")

TOPIC_NAME_INVALID, TOPIC_FILTER_INVALID, QUOTA_EXCEEDED, PAYLOAD_FORMAT_INVALID = 0x90, 0x8F, 0x97, 0x99
V3_IDENTIFIER, V3_UNAVAILABLE = 2, 3
UTF8 = {"payload_format_indicator": 1}


@pytest.fixture
def broker(workers: int, configured: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker that checks more than the standard requires."""
    return configured(
        workers,
        {
            "PROTOCOL__VALIDATE_PAYLOAD_FORMAT": "true",
            "PROTOCOL__RESPONSE_INFORMATION": "responses/",
            "LIMITS__V31_CLIENT_ID_CHARACTERS_MAX": 23,
            "LIMITS__TOPIC_BYTES_MAX": 100,
            "LIMITS__TOPIC_LEVELS_MAX": 10,
            "LIMITS__KEEP_ALIVE_SECONDS_MAX": 100,
            "LIMITS__RECEIVE_MAXIMUM": 65535,
            "LIMITS__TOPIC_ALIAS_MAX": 0,
        },
    )


@pytest.mark.mqtt("5:3.3.2-4")
@pytest.mark.parametrize("payload", [b"", b"plain", "ÄΩ€😀".encode(), b"with \0 in it", b"\0", b"\0\xc3\xa4\0"])
def test_text_payloads(connect: Connect, name: str, payload: bytes) -> None:
    """A payload that is UTF-8 as its Payload Format Indicator says is delivered with the indicator."""
    client = connect(5)
    client.subscribe(name, qos=1)
    client.publish(name, payload, qos=1, properties=UTF8)
    assert client.receive(name, payload).properties == UTF8


@pytest.mark.mqtt("5:3.4.2-1")
@pytest.mark.mqtt("5:3.5.2-1")
@pytest.mark.parametrize("payload", [b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\0\xff", b"x" * 40 + b"\xc0\x80\0"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_payloads_that_are_no_text(connect: Connect, name: str, qos: int, payload: bytes) -> None:
    """A payload that is not UTF-8 is refused with 0x99, at QoS 0 dropped; the connection stays open."""
    client = connect(5)
    client.subscribe(name)
    assert client.publish(name, payload, qos=qos, properties=UTF8) == (PAYLOAD_FORMAT_INVALID if qos else 0)
    client.publish(name, payload, properties={"payload_format_indicator": 0})
    client.receive(name, payload, properties={"payload_format_indicator": 0})
    client.expect_silence()


@pytest.mark.mqtt("5:3.2.2-8")
@pytest.mark.parametrize(("payload", "reason"), [(b"text", 0), (b"\xff", PAYLOAD_FORMAT_INVALID)])
def test_will_payload(open_connection: OpenConnection, name: str, payload: bytes, reason: int) -> None:
    """A will whose payload does not match its Payload Format Indicator is refused with CONNACK 0x99."""
    client = open_connection(5)
    client.send(wire.connect(5, name, will=Will(name, payload, properties=UTF8)))
    client.expect("CONNACK", reason=reason)


@pytest.mark.mqtt("5:3.1.2-28")
@pytest.mark.parametrize("asked", [None, 0, 1])
def test_response_information(connect: Connect, name: str, asked: int | None) -> None:
    """Response Information is returned only to a client that requests it."""
    properties = {} if asked is None else {"request_response_information": asked}
    got = connect(5, name, properties=properties).connack.properties.get("response_information")
    assert got == (f"responses/{name}" if asked else None)


@pytest.mark.mqtt("5:3.1.2-28")
@pytest.mark.parametrize("end", ["/x", "+", "#"])
def test_no_response_information_in_the_place_of_another(connect: Connect, name: str, end: str) -> None:
    """A client id with a separator or a wildcard gets no Response Information: it could be a topic below another
    client's, or a Topic Filter.
    """
    client = connect(5, name + end, properties={"request_response_information": 1})
    assert "response_information" not in client.connack.properties


@pytest.mark.mqtt("5:3.2.2-9")
def test_connack_leaves_out_what_is_the_standards_default(connect: Connect) -> None:
    """CONNACK omits properties whose value is the default of the standard."""
    properties = connect(5, keep_alive=50).connack.properties
    assert set(properties) == {"maximum_packet_size"}


@pytest.mark.mqtt("5:3.2.2-22")
@pytest.mark.parametrize(("asked", "told"), [(0, 100), (1, None), (100, None), (101, 100), (65535, 100)])
def test_server_keep_alive(connect: Connect, asked: int, told: int | None) -> None:
    """CONNACK tells a client that asks for a longer Keep Alive than is allowed, or for none, the one in force."""
    assert connect(5, keep_alive=asked).connack.properties.get("server_keep_alive") == told


@pytest.mark.mqtt("311:3.1.3-9")
@pytest.mark.parametrize(("version", "letters", "accepted"), [(3, 23, True), (3, 24, False), (4, 24, True)])
def test_long_client_ids(
    open_connection: OpenConnection, name: str, version: int, letters: int, accepted: bool
) -> None:
    """v3.1 client ids are limited to 23 characters where configured: return code 2."""
    client = open_connection(version)
    client.send(wire.connect(version, name.ljust(letters, "y")))
    client.expect("CONNACK", reason=0 if accepted else V3_IDENTIFIER)


LONG_TOPICS = ["x" * 101, "/".join("x" * 11)]


@pytest.mark.mqtt("5:3.4.2-1", "311:4.8.0-1")
@pytest.mark.parametrize("topic", LONG_TOPICS, ids=["bytes", "levels"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_topics_beyond_their_bounds(connect: Connect, version: int, name: str, qos: int, topic: str) -> None:
    """A well-formed Topic Name that is too long gets PUBACK or PUBREC 0x90 and the client stays; v3 is closed."""
    client = connect(version)
    client.subscribe(name)
    if version < 5:
        client.send(wire.publish(version, topic, b"x", qos=qos, packet_id=1))
        client.expect_closed()
        return
    assert client.publish(topic, b"x", qos=qos) == (TOPIC_NAME_INVALID if qos else 0)
    client.publish(name, b"goes on")
    client.receive(name, b"goes on")


@pytest.mark.mqtt("5:3.9.3-2")
@pytest.mark.parametrize("topic_filter", LONG_TOPICS, ids=["bytes", "levels"])
def test_filters_beyond_their_bounds(connect: Connect, any_version: int, name: str, topic_filter: str) -> None:
    """A filter that is too long gets SUBACK 0x8F; v3 gets 0x80, also v3.1 although it has no code for it."""
    client = connect(any_version)
    refused = TOPIC_FILTER_INVALID if any_version == 5 else 0x80
    assert client.subscribe(topic_filter, name) == (refused, 0)


@pytest.mark.mqtt("5:3.2.2-8", "311:3.2.2-6")
@pytest.mark.parametrize("topic", LONG_TOPICS, ids=["bytes", "levels"])
def test_will_topic_beyond_its_bounds(open_connection: OpenConnection, version: int, name: str, topic: str) -> None:
    """A will is refused where a PUBLISH to its topic would be: CONNACK 0x90; v3 is closed without CONNACK."""
    client = open_connection(version)
    client.send(wire.connect(version, name, will=Will(topic, b"x")))
    if version == 5:
        client.expect("CONNACK", reason=TOPIC_NAME_INVALID)
    client.expect_closed()

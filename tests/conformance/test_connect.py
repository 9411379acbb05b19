"""CONNECT and CONNACK: which clients are accepted, with which client id, and how a malformed CONNECT is answered."""

from __future__ import annotations

import ssl
import struct
from contextlib import suppress

import pytest

from tests import wire
from tests.broker_process import BrokerProcess
from tests.conformance.conftest import error_line
from tests.wire import Client, Connect, OpenConnection, Will

MALFORMED, PROTOCOL_ERROR, UNSUPPORTED_VERSION, BAD_CLIENT_ID, BAD_AUTHENTICATION_METHOD = 0x81, 0x82, 0x84, 0x85, 0x8C
V3_REFUSED_VERSION, V3_REFUSED_ID = 1, 2


@pytest.mark.mqtt("5:3.1.4-5", "311:3.1.4-4")
def test_connect_is_accepted(connect: Connect, any_version: int) -> None:
    """A client with a new client id connects; CONNACK has Success and Session Present 0."""
    client = connect(any_version)
    assert not client.connack.session_present


@pytest.mark.mqtt("5:3.2.0-2")
def test_one_connack_only(connect: Connect, any_version: int) -> None:
    """An idle client receives nothing after its CONNACK."""
    connect(any_version).expect_silence()


@pytest.mark.mqtt("5:3.2.2-9")
def test_connack_announces_a_complete_broker(connect: Connect) -> None:
    """CONNACK to a v5 client restricts no feature: QoS 2, retain, wildcards, identifiers, shared subscriptions."""
    properties = connect(5).connack.properties
    assert "maximum_qos" not in properties
    for feature in ("retain", "wildcard_subscription", "subscription_identifier", "shared_subscription"):
        assert properties.get(f"{feature}_available", 1) == 1
    assert properties.get("receive_maximum", 65535) > 0
    assert properties.get("maximum_packet_size", 1) > 0


@pytest.mark.mqtt("5:3.1.3-5", "311:3.1.3-5")
@pytest.mark.parametrize("client_id", ["a", "Z9", "0123456789abcdefghijklm", "NOPQRSTUVWXYZnopqrstuvw"])
def test_every_allowed_client_id(open_connection: OpenConnection, any_version: int, client_id: str) -> None:
    """Client ids of 1 to 23 letters and digits are accepted."""
    client = open_connection(any_version)
    client.connect(client_id)
    client.disconnect()


@pytest.mark.mqtt("5:3.1.3-6", "5:3.1.3-7", "5:3.2.2-16")
def test_assigned_client_identifiers_differ(connect: Connect) -> None:
    """Two v5 clients with an empty client id are each assigned an id in CONNACK, and the two differ."""
    first, second = connect(5, ""), connect(5, "")
    ids = {client.connack.properties["assigned_client_identifier"] for client in (first, second)}
    assert len(ids) == 2
    assert "" not in ids


@pytest.mark.mqtt("5:3.1.3-7")
def test_assigned_client_identifier_can_be_resumed(connect: Connect) -> None:
    """A v5 client reconnects with its assigned client id and resumes its session."""
    client = connect(5, "", properties={"session_expiry_interval": 60})
    assigned = client.connack.properties["assigned_client_identifier"]
    client.disconnect()
    assert connect(5, assigned, clean=False).connack.session_present


@pytest.mark.mqtt("5:3.1.3-6", "5:3.2.2-16")
def test_empty_client_id_without_clean_start(connect: Connect) -> None:
    """A v5 client may connect with an empty client id and clean start 0; there is no session to resume."""
    client = connect(5, "", clean=False)
    assert client.connack.properties["assigned_client_identifier"]
    assert not client.connack.session_present


@pytest.mark.mqtt("5:3.2.2-16")
def test_no_assigned_client_identifier_for_a_given_one(connect: Connect) -> None:
    """A v5 client that gives a client id gets no Assigned Client Identifier."""
    assert "assigned_client_identifier" not in connect(5).connack.properties


@pytest.mark.mqtt("311:3.1.3-6")
def test_v311_empty_client_id_with_clean_session(connect: Connect) -> None:
    """Two v3.1.1 clients with an empty id and clean session 1 are two clients: neither takes over the other."""
    first, second = connect(4, ""), connect(4, "")
    first.expect_silence()
    second.expect_silence()


@pytest.mark.mqtt("311:3.1.3-7", "311:3.1.3-8", "311:3.1.3-9", "311:3.2.2-4", "311:3.2.2-5")
def test_v311_empty_client_id_needs_clean_session(open_connection: OpenConnection) -> None:
    """A v3.1.1 client with an empty id and clean session 0 gets return code 2 and is closed."""
    client = open_connection(4)
    client.send(wire.connect(4, "", clean=False))
    client.expect("CONNACK", reason=V3_REFUSED_ID, session_present=False)
    client.expect_closed()


@pytest.mark.mqtt("5:3.1.0-2", "311:3.1.0-2")
def test_second_connect_is_a_protocol_error(connect: Connect, any_version: int, name: str) -> None:
    """A client that sends CONNECT twice is closed."""
    client = connect(any_version, name)
    client.send(wire.connect(any_version, name))
    client.expect_closed(PROTOCOL_ERROR)


@pytest.mark.mqtt("5:3.1.0-1", "311:3.1.0-1")
@pytest.mark.parametrize(
    "first",
    [
        wire.PINGREQ,
        wire.publish(4, "a", b"x"),
        wire.subscribe(4, 1, ("a", 0)),
        wire.disconnect(4),
        wire.packet("PUBACK", 0, b"\0\1"),
        wire.packet("CONNACK", 0, b"\0\0"),
    ],
    ids=["PINGREQ", "PUBLISH", "SUBSCRIBE", "DISCONNECT", "PUBACK", "CONNACK"],
)
def test_first_packet_must_be_connect(open_connection: OpenConnection, first: bytes) -> None:
    """A connection whose first packet is not CONNECT is closed without an answer."""
    client = open_connection(4)
    client.send(first)
    client.expect_closed()


@pytest.mark.mqtt("5:3.1.2-1", "311:3.1.2-1")
@pytest.mark.parametrize("protocol", [b"MQTX", b"mqtt", b"", b"MQTTMQTTMQTT", b"HTTP"])
def test_wrong_protocol_name(open_connection: OpenConnection, protocol: bytes) -> None:
    """A CONNECT with another protocol name is refused."""
    client = open_connection(4)
    client.send(wire.connect(4, "a", protocol=protocol))
    client.expect_refused(UNSUPPORTED_VERSION, V3_REFUSED_VERSION)


@pytest.mark.mqtt("5:3.1.2-2", "311:3.1.2-2")
@pytest.mark.parametrize("level", [0, 1, 2, 6, 127, 255])
def test_unknown_protocol_level(open_connection: OpenConnection, level: int) -> None:
    """A CONNECT with an unknown protocol level is answered by CONNACK (v3.1.1 requires it) and closed."""
    client = open_connection(4)
    client.send(wire.connect(4, "a", level=level))
    got = client.read()
    assert (got.kind, got.reason in (UNSUPPORTED_VERSION, V3_REFUSED_VERSION)) == ("CONNACK", True)
    client.expect_closed()


@pytest.mark.mqtt("5:3.1.2-3", "311:3.1.2-3")
def test_reserved_connect_flag(open_connection: OpenConnection, version: int, name: str) -> None:
    """A CONNECT whose reserved flag is set is refused."""
    client = open_connection(version)
    client.send(wire.connect(version, name, extra_flags=0x01))
    client.expect_refused(MALFORMED, PROTOCOL_ERROR)


@pytest.mark.mqtt("5:2.1.3-1", "311:2.2.2-1", "311:2.2.2-2")
@pytest.mark.parametrize("flags", [1, 2, 4, 6, 8, 15])
def test_reserved_fixed_header_flags_of_connect(
    open_connection: OpenConnection, version: int, name: str, flags: int
) -> None:
    """A CONNECT with a flag in its fixed header is refused."""
    client = open_connection(version)
    whole = wire.connect(version, name)
    client.send(bytes([whole[0] | flags]) + whole[1:])
    client.expect_refused(MALFORMED, PROTOCOL_ERROR)


@pytest.mark.mqtt("5:3.1.2-12", "311:3.1.2-14")
def test_will_qos_3(open_connection: OpenConnection, version: int, name: str) -> None:
    """A will at QoS 3 is refused."""
    client = open_connection(version)
    client.send(wire.connect(version, name, will=Will(name, b"x", qos=3)))
    client.expect_refused(MALFORMED, PROTOCOL_ERROR)


@pytest.mark.mqtt("5:3.1.2-11", "5:3.1.2-13", "311:3.1.2-11", "311:3.1.2-13", "311:3.1.2-15")
@pytest.mark.parametrize("flags", [0x08, 0x10, 0x20], ids=["QoS 1", "QoS 2", "retain"])
def test_will_flags_without_a_will(open_connection: OpenConnection, version: int, name: str, flags: int) -> None:
    """Will QoS or Will Retain without the Will Flag is refused."""
    client = open_connection(version)
    client.send(wire.connect(version, name, extra_flags=flags))
    client.expect_refused(MALFORMED, PROTOCOL_ERROR)


@pytest.mark.mqtt("311:3.1.2-22")
def test_v311_password_without_user_name(open_connection: OpenConnection, name: str) -> None:
    """A v3.1.1 client may not send a password without a user name."""
    client = open_connection(4)
    client.send(wire.connect(4, name, password=b"secret"))
    client.expect_refused()


@pytest.mark.mqtt("5:3.1.2-16")
def test_v5_password_without_user_name(connect: Connect) -> None:
    """A v5 client may send a password without a user name; a broker that allows anonymous clients accepts it."""
    connect(5, password=b"secret").expect_silence()


@pytest.mark.mqtt("5:3.1.2-9", "5:3.1.2-17", "5:3.1.2-19", "311:3.1.2-9", "311:3.1.2-19", "311:3.1.2-21")
@pytest.mark.parametrize("flags", [0x80, 0xC0, 0x04], ids=["user name", "password", "will"])
def test_fields_that_the_flags_promise(open_connection: OpenConnection, version: int, name: str, flags: int) -> None:
    """A CONNECT with fewer fields than its flags announce is refused."""
    client = open_connection(version)
    client.send(wire.connect(version, name, extra_flags=flags))
    client.expect_refused(MALFORMED, PROTOCOL_ERROR)


@pytest.mark.mqtt("5:3.1.4-1", "311:3.1.4-1", "311:3.2.2-6")
def test_bytes_after_the_last_field(open_connection: OpenConnection, version: int, name: str) -> None:
    """A CONNECT with bytes after its last field is refused."""
    client = open_connection(version)
    whole = wire.connect(version, name)
    client.send(whole[:1] + wire.varint(len(whole) - 2 + 3) + whole[2:] + b"abc")
    client.expect_refused(MALFORMED, PROTOCOL_ERROR)


@pytest.mark.mqtt("5:3.1.3-8", "5:3.1.3-4", "5:1.5.4-1", "5:1.5.4-2", "311:3.1.3-4", "311:1.5.3-1", "311:1.5.3-2")
@pytest.mark.parametrize(
    "client_id",
    [b"a\xff", b"\xed\xa0\x80", b"\xc0\xaf", b"a\0b", b"\xe2\x82", b"\xf4\x90\x80\x80"],
    ids=["no UTF-8", "surrogate", "overlong", "U+0000", "cut", "above U+10FFFF"],
)
def test_client_id_must_be_utf8(open_connection: OpenConnection, version: int, client_id: bytes) -> None:
    """A client id that is not a UTF-8 Encoded String is refused."""
    client = open_connection(version)
    head = wire.binary("MQTT") + bytes([version, 0x02, 0, 0]) + wire.in_v5(version, {})
    client.send(wire.packet("CONNECT", 0, head, wire.binary(client_id)))
    client.expect_refused(MALFORMED, PROTOCOL_ERROR, BAD_CLIENT_ID, V3_REFUSED_ID)


@pytest.mark.mqtt("5:4.7.0-1", "5:4.7.3-1", "5:4.7.3-2", "311:4.7.1-1", "311:4.7.3-1", "311:4.7.3-2")
@pytest.mark.parametrize("topic", ["a/#", "+", "", "a\0b"], ids=["#", "+", "empty", "U+0000"])
def test_will_topic_must_be_a_topic_name(open_connection: OpenConnection, version: int, name: str, topic: str) -> None:
    """A will whose topic is not a Topic Name is refused."""
    client = open_connection(version)
    client.send(wire.connect(version, name, will=Will(topic, b"x")))
    client.expect_refused(MALFORMED, PROTOCOL_ERROR, 0x90)


@pytest.mark.mqtt("5:3.1.4-1")
@pytest.mark.parametrize(
    "properties",
    [
        b"\x21\0\0",
        b"\x27\0\0\0\0",
        b"\x17\2",
        b"\x19\2",
        b"\x11\0\0\0\1\x11\0\0\0\1",
        b"\x01\1",
        b"\x7f",
        b"\x11\0",
    ],
    ids=[
        "Receive Maximum 0",
        "Maximum Packet Size 0",
        "Request Problem Information 2",
        "Request Response Information 2",
        "Session Expiry Interval twice",
        "a property of another packet",
        "unknown property",
        "cut property",
    ],
)
def test_bad_connect_properties(open_connection: OpenConnection, name: str, properties: bytes) -> None:
    """A v5 CONNECT with a property that is invalid, repeated or not allowed in CONNECT is refused."""
    client = open_connection(5)
    head = wire.binary("MQTT") + bytes([5, 0x02, 0, 0]) + wire.varint(len(properties)) + properties
    client.send(wire.packet("CONNECT", 0, head, wire.binary(name)))
    client.expect_refused(MALFORMED, PROTOCOL_ERROR)


@pytest.mark.mqtt("5:3.1.4-1")
@pytest.mark.mosquitto_differs("lets it in")
def test_authentication_data_without_a_method(open_connection: OpenConnection, name: str) -> None:
    """Authentication Data without an Authentication Method is a Protocol Error."""
    client = open_connection(5)
    client.send(wire.connect(5, name, properties={"authentication_data": b"x"}))
    client.expect_refused(PROTOCOL_ERROR, MALFORMED)


@pytest.mark.mqtt("5:3.1.4-2", "5:4.12.0-1", "5:4.13.2-1", "5:3.2.2-6", "5:3.2.2-7")
def test_unknown_authentication_method(open_connection: OpenConnection, name: str) -> None:
    """An unsupported Authentication Method is refused with 0x8C."""
    client = open_connection(5)
    client.send(wire.connect(5, name, properties={"authentication_method": "none of yours"}))
    client.expect("CONNACK", reason=BAD_AUTHENTICATION_METHOD, session_present=False)
    client.expect_closed()


@pytest.mark.mqtt("5:3.1.4-5")
def test_connect_with_every_property(connect: Connect) -> None:
    """A CONNECT may carry all its properties, User Property several times."""
    client = connect(
        5,
        keep_alive=60,
        properties={
            "session_expiry_interval": 5,
            "receive_maximum": 10,
            "maximum_packet_size": 100000,
            "topic_alias_maximum": 3,
            "request_response_information": 0,
            "request_problem_information": 1,
            "user_property": [("a", "1"), ("a", "2"), ("", "")],
        },
    )
    client.expect_silence()


@pytest.mark.mqtt("5:3.2.0-1", "311:3.2.0-1")
def test_packets_may_follow_connect_at_once(open_connection: OpenConnection, any_version: int, name: str) -> None:
    """CONNECT, SUBSCRIBE, PUBLISH and PINGREQ in one segment are all answered: CONNACK first, the rest in any order."""
    client = open_connection(any_version)
    client.send(
        wire.connect(any_version, name),
        wire.subscribe(any_version, 7, (name, 0)),
        wire.publish(any_version, name, b"early"),
        wire.PINGREQ,
    )
    client.expect("CONNACK", reason=0)
    assert {client.read().kind for _ in range(3)} == {"SUBACK", "PUBLISH", "PINGRESP"}


@pytest.mark.mqtt("5:3.1.4-5", "311:3.1.4-4")
def test_disconnect_may_follow_connect_at_once(open_connection: OpenConnection, any_version: int, name: str) -> None:
    """CONNECT and DISCONNECT in one segment: the CONNECT is still acknowledged, then the connection is closed."""
    client = open_connection(any_version)
    client.send(wire.connect(any_version, name), wire.disconnect(any_version))
    client.expect("CONNACK", reason=0)
    client.expect_closed()


@pytest.mark.mqtt("5:3.1.4-6", "311:3.1.4-5")
def test_nothing_is_done_after_a_refusal(open_connection: OpenConnection, connect: Connect, name: str) -> None:
    """A PUBLISH that follows a refused CONNECT is not published."""
    watcher = connect(5)
    watcher.subscribe(name)
    refused = open_connection(5)
    refused.send(wire.connect(5, extra_flags=0x01), wire.publish(5, name, b"no"))
    refused.expect_refused(MALFORMED, PROTOCOL_ERROR)
    wire.expect_nothing_more(watcher, watcher, f"{name}/marker")


@pytest.mark.mqtt("5:3.1.4-5", "311:3.1.4-4")
def test_a_hundred_clients_at_once(open_connection: OpenConnection, version: int, name: str) -> None:
    """A hundred connections are open before the first CONNECT is answered; each client gets its CONNACK."""
    clients: list[Client] = [open_connection(version) for _ in range(100)]
    for number, client in enumerate(clients):
        client.send(wire.connect(version, f"{name}y{number}"))
    for client in clients:
        client.expect("CONNACK", reason=0, session_present=False)
    for client in clients:
        client.expect_silence()


@pytest.mark.mqtt("5:3.1.4-1")
def test_connect_body_of_another_version(open_connection: OpenConnection, name: str) -> None:
    """A v3.1.1 body with protocol level 5 is read as v5, where its first byte is a property length, and refused."""
    client = open_connection(5)
    client.send(wire.packet("CONNECT", 0, wire.binary("MQTT"), bytes([5, 2]), struct.pack(">H", 0), wire.binary(name)))
    client.expect_refused(MALFORMED, PROTOCOL_ERROR)


@pytest.mark.mqtt("5:3.1.3-1", "5:3.1.3-3", "311:3.1.3-1", "311:3.1.3-3")
def test_every_field_is_taken_for_what_it_is(connect: Connect, version: int, name: str) -> None:
    """CONNECT with will, user name and password: each field is read in its place, from the client id to the will."""
    watcher = connect(version)
    watcher.subscribe(f"{name}/#")
    will = Will(f"{name}/topic", b"payload")
    client = connect(version, f"{name}id", username=f"{name}/user", password=b"password", will=will)
    connect(version, f"{name}id")
    client.expect_closed(0x8E)
    watcher.receive(f"{name}/topic", b"payload")
    wire.expect_nothing_more(watcher, connect(version), f"marker/{name}")


@pytest.mark.mqtt("5:3.1.3-3", "311:3.1.3-3")
def test_connect_without_a_client_id(open_connection: OpenConnection, version: int) -> None:
    """A CONNECT without a payload is refused: even an empty client id has a length."""
    client = open_connection(version)
    client.send(
        wire.packet("CONNECT", 0, wire.binary("MQTT"), bytes([version, 2, 0, 0]), wire.in_v5(version, {})),
    )
    client.expect_refused(MALFORMED)


@pytest.mark.mqtt("5:3.1.2-16", "5:3.1.2-18", "311:3.1.2-11", "311:3.1.2-18", "311:3.1.2-20")
@pytest.mark.parametrize(
    ("flags", "extra"),
    [
        (0x02, wire.binary("user")),
        (0x02, wire.binary("user") + wire.binary("password")),
        (0x82, wire.binary("user") + wire.binary("password")),
        (0x02, wire.binary("will/topic") + wire.binary("message")),
    ],
    ids=["user name", "user name and password", "password", "will"],
)
def test_fields_that_no_flag_announces(
    open_connection: OpenConnection, version: int, name: str, flags: int, extra: bytes
) -> None:
    """A CONNECT with a user name, a password or a will whose flag is not set is refused."""
    client = open_connection(version)
    head = wire.binary("MQTT") + bytes([version, flags, 0, 0]) + wire.in_v5(version, {})
    client.send(wire.packet("CONNECT", 0, head, wire.binary(name), extra))
    client.expect_refused(MALFORMED)


@pytest.mark.mqtt("5:3.1.3-11", "5:3.1.3-12", "311:3.1.3-10", "311:3.1.3-11")
@pytest.mark.mqtt("5:1.5.4-1", "5:1.5.4-2", "311:1.5.3-1", "311:1.5.3-2")
@pytest.mark.parametrize("text", [b"a\xff", b"\xed\xa0\x80", b"\xc0\xaf", b"a\0b", b"\xe2\x82", b"\xf4\x90\x80\x80"])
@pytest.mark.parametrize("field", ["will topic", "user name"])
def test_will_topic_and_user_name_must_be_utf8(
    open_connection: OpenConnection, version: int, name: str, field: str, text: bytes
) -> None:
    """A will topic or a user name that is not a UTF-8 Encoded String is refused."""
    client = open_connection(version)
    flags, nothing = (0x06, wire.in_v5(version, {})) if field == "will topic" else (0x82, b"")
    head = wire.binary("MQTT") + bytes([version, flags, 0, 0]) + wire.in_v5(version, {}) + wire.binary(name)
    client.send(
        wire.packet("CONNECT", 0, head, nothing, wire.binary(text), wire.binary("m") if nothing or flags == 6 else b"")
    )
    client.expect_refused(MALFORMED, 0x90)


@pytest.mark.mqtt("5:4.12.0-6")
def test_no_authentication_for_who_names_no_method(connect: Connect, name: str) -> None:
    """A v5 client without an Authentication Method gets neither AUTH nor a method in CONNACK."""
    client = connect(5, username="somebody", password=b"secret")
    assert not {"authentication_method", "authentication_data"} & set(client.connack.properties)
    client.publish(name, b"x", qos=2)
    client.expect_silence()


@pytest.mark.mqtt("5:3.1.4-1", "5:3.2.2-8", "5:3.14.0-1", "311:3.1.4-1", "311:3.2.2-6")
@pytest.mark.mosquitto_differs("has other logs")
def test_the_log_says_who_was_refused(
    broker: BrokerProcess, open_connection: OpenConnection, version: int, name: str
) -> None:
    """A malformed CONNECT: CONNACK 0x81 to v5, no answer to v3, and a log line with address, reason and code."""
    begin = broker.stderr_size()
    client = open_connection(version)
    address = "{}:{}".format(*client.socket.getsockname())
    client.send(wire.connect(version, name, extra_flags=0x01))
    client.expect_refused(MALFORMED)
    line = error_line(broker, "connection_refused", begin, address)
    assert line["code"] == MALFORMED
    assert "reserved" in line["reason"]


@pytest.mark.mqtt("5:3.1.0-1", "5:3.1.0-2", "311:3.1.0-1", "311:3.1.0-2")
@pytest.mark.mosquitto_differs("has other logs")
@pytest.mark.parametrize("first", [True, False], ids=["first packet", "second CONNECT"])
def test_the_log_names_a_connect_at_the_wrong_time(
    broker: BrokerProcess, open_connection: OpenConnection, version: int, name: str, first: bool
) -> None:
    """A PUBLISH before CONNECT or a second CONNECT closes the connection, and the log names the packet."""
    begin = broker.stderr_size()
    client = open_connection(version)
    address = "{}:{}".format(*client.socket.getsockname())
    if first:
        client.send(wire.publish(version, name, b"x"))
        client.expect_closed()
        line = error_line(broker, "connection_refused", begin, address)
        assert (line["code"], "not CONNECT" in line["reason"]) == (PROTOCOL_ERROR, True)
    else:
        client.connect(name)
        client.send(wire.connect(version, name))
        client.expect_closed(PROTOCOL_ERROR)
        line = error_line(broker, "protocol_error", begin, address)
        assert (line["client"], line["code"], "second CONNECT" in line["reason"]) == (name, PROTOCOL_ERROR, True)


@pytest.mark.mqtt("5:3.1.4-2", "311:3.1.3-8")
@pytest.mark.mosquitto_differs("has other logs")
def test_the_log_names_the_client_that_was_refused(
    broker: BrokerProcess, open_connection: OpenConnection, version: int, name: str
) -> None:
    """When a well-formed CONNECT is refused, the log line also has the client id."""
    begin = broker.stderr_size()
    client = open_connection(version)
    address = "{}:{}".format(*client.socket.getsockname())
    if version == 5:
        client.send(wire.connect(5, name, will=Will(f"$SYS/{name}", b"no")))
        client.expect_refused(0x87)
    else:
        client.send(wire.connect(4, "", clean=False))
        client.expect_refused(V3_REFUSED_ID)
    line = error_line(broker, "connection_refused", begin, address)
    assert line["client"] == (name if version == 5 else "")
    assert line["reason"]


def client_hello(newest: ssl.TLSVersion) -> bytes:
    """Return the first bytes that a TLS client sends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = newest
    said = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), said, server_hostname="broker.example")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return said.read()


FOREIGN = {
    "TLS 1.2": (client_hello(ssl.TLSVersion.TLSv1_2), "TLS on a plain port"),
    "TLS 1.3": (client_hello(ssl.TLSVersion.TLSv1_3), "TLS on a plain port"),
    "GET": (b"GET / HTTP/1.1\r\nHost: broker.example\r\n\r\n", "HTTP on a plain port"),
    "POST": (b"POST /x HTTP/1.1\r\nHost: broker.example\r\n\r\n", "HTTP on a plain port"),
    "HEAD": (b"HEAD / HTTP/1.0\r\n\r\n", "HTTP on a plain port"),
}


@pytest.mark.mqtt("5:3.1.0-1", "311:3.1.0-1")
@pytest.mark.mosquitto_differs("has other logs")
@pytest.mark.parametrize("what", FOREIGN)
def test_the_log_says_what_came_instead_of_mqtt(
    broker: BrokerProcess, open_connection: OpenConnection, what: str
) -> None:
    """A client of another protocol on the plain port is recognised, logged by its protocol and closed."""
    data, named = FOREIGN[what]
    begin = broker.stderr_size()
    client = open_connection(4)
    address = "{}:{}".format(*client.socket.getsockname())
    client.send(data)
    client.expect_closed()
    line = error_line(broker, "connection_refused", begin, address)
    assert (line["code"], line["reason"]) == (PROTOCOL_ERROR, named)


@pytest.mark.mqtt("5:3.1.0-1", "311:3.1.0-1")
@pytest.mark.mosquitto_differs("has other logs")
def test_a_tls_client_in_pieces(broker: BrokerProcess, open_connection: OpenConnection) -> None:
    """The first byte of a TLS client could be a CONNECT of MQTT 3.1: the second byte decides, whenever it arrives."""
    data, named = FOREIGN["TLS 1.3"]
    begin = broker.stderr_size()
    client = open_connection(4)
    address = "{}:{}".format(*client.socket.getsockname())
    client.send(data[:1])
    client.send(data[1:2])
    client.expect_closed()
    assert error_line(broker, "connection_refused", begin, address)["reason"] == named

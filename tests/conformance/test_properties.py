"""Properties in every packet that a client may send: misplaced, repeated, truncated, and all that are allowed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import wire
from tests.wire import Client, Closed, Connect, OpenConnection, packet

MALFORMED, PROTOCOL_ERROR, TOPIC_ALIAS_INVALID = 0x81, 0x82, 0x94

#: MQTT 5.0, table 2-4, for packets that a client sends: the properties allowed in each
ACK = {"reason_string", "user_property"}
MESSAGE = {
    "payload_format_indicator",
    "message_expiry_interval",
    "content_type",
    "response_topic",
    "correlation_data",
    "user_property",
}
MAY_STAND_IN = {
    "CONNECT": {
        "session_expiry_interval", "authentication_method", "authentication_data", "request_problem_information",
        "request_response_information", "receive_maximum", "topic_alias_maximum", "user_property",
        "maximum_packet_size",
    },
    "WILL": MESSAGE | {"will_delay_interval"},
    "PUBLISH": MESSAGE | {"topic_alias"},
    "PUBACK": ACK, "PUBREC": ACK, "PUBREL": ACK, "PUBCOMP": ACK,
    "SUBSCRIBE": {"subscription_identifier", "user_property"},
    "UNSUBSCRIBE": {"user_property"},
    "DISCONNECT": ACK | {"session_expiry_interval"},
    "AUTH": ACK | {"authentication_method", "authentication_data"},
}  # fmt: skip

#: the same packet with these is right from a server: from a client it is a Protocol Error, not malformed
OF_THE_SERVER = {"PUBLISH": {"subscription_identifier"}, "DISCONNECT": {"server_reference"}}

VALUES = {
    "byte": b"\1", "two": b"\0\1", "four": b"\0\1\0\0", "varint": b"\1", "utf8": b"\0\1v", "binary": b"\0\1v",
    "pair": b"\0\1k\0\1v",
}  # fmt: skip


def one(name: str) -> bytes:
    """Return a property with an allowed value."""
    number, kind = wire.PROPERTY_IDS[name]
    return bytes([number]) + VALUES[kind]


def with_properties(kind: str, client_id: str, data: bytes) -> bytes:
    """Return a packet of this kind, valid apart from these properties; WILL is a CONNECT with them in its will."""
    block = wire.varint(len(data)) + data
    if kind == "CONNECT":
        return packet(kind, 0, wire.binary("MQTT"), b"\x05\x02\0\0", block, wire.binary(client_id))
    if kind == "WILL":
        will = [block, wire.binary(client_id), wire.binary(b"w")]
        return packet("CONNECT", 0, wire.binary("MQTT"), b"\x05\x06\0\0\0", wire.binary(client_id), *will)
    if kind == "PUBLISH":
        return packet(kind, 0, wire.binary(client_id), block, b"x")
    if kind in ("SUBSCRIBE", "UNSUBSCRIBE"):
        options = b"\0" if kind == "SUBSCRIBE" else b""
        return packet(kind, 2, b"\0\1", block, wire.binary(client_id), options)
    if kind == "DISCONNECT":
        return packet(kind, 0, b"\0", block)
    if kind == "AUTH":
        return packet(kind, 0, b"\x18", block)
    return packet(kind, 2 if kind == "PUBREL" else 0, b"\0\1", b"\0", block)


def refusal(open_connection: OpenConnection, kind: str, name: str, data: bytes) -> int:
    """Return the reason code with which the broker ends the connection that sends it, 0 if it does not."""
    client = open_connection(5)
    if kind not in ("CONNECT", "WILL"):
        client.connect(name)
    client.send(with_properties(kind, name, data), wire.PINGREQ)
    reason = last_word(client, "CONNACK" if kind in ("CONNECT", "WILL") else "DISCONNECT")
    client.close()
    return reason


def last_word(client: Client, kind: str) -> int:
    """Return the reason of the packet of this kind before the end of the connection; 0 if the client is served."""
    reason = 0
    try:
        while True:
            got = client.read()
            if got.kind == "PINGRESP":
                return 0
            if got.kind == kind:
                reason = got.reason
    except Closed:
        return reason or -1


def misplaced(kind: str) -> Iterator[tuple[str, bytes, int]]:
    """Return (what, properties, reason) for every property that is not allowed in this packet."""
    for name in wire.PROPERTY_IDS:
        if name not in MAY_STAND_IN[kind]:
            of_the_server = name in OF_THE_SERVER.get(kind, set())
            yield name, one(name), PROTOCOL_ERROR if of_the_server else MALFORMED
    for number in (0x00, 0x04, 0x0A, 0x14, 0x2B, 0x3F, 0x40, 0x7F):
        yield f"property {number:#x}", bytes([number, 0, 0, 0, 0]), MALFORMED


def repeated(kind: str) -> Iterator[tuple[str, bytes, int]]:
    """Return the same for every property that is allowed once."""
    for name in sorted(MAY_STAND_IN[kind] - {"user_property"}):
        yield f"{name} twice", one(name) * 2, PROTOCOL_ERROR
        yield f"{name} twice, apart", one(name) + one("user_property") + one(name), PROTOCOL_ERROR


def cut(kind: str) -> Iterator[tuple[str, bytes, int]]:
    """Return the same for every property that is truncated."""
    for name in sorted(MAY_STAND_IN[kind]):
        for size in range(1, len(one(name))):
            yield f"{name} of {size} bytes", one(name)[:size], MALFORMED


@pytest.mark.mqtt("5:4.13.1-1", "5:3.1.4-1")
@pytest.mark.parametrize("kind", MAY_STAND_IN)
@pytest.mark.parametrize("wrong", [misplaced, repeated, cut], ids=["misplaced", "repeated", "cut"])
@pytest.mark.mosquitto_differs("takes some of them")
def test_properties_that_may_not_stand_there(
    open_connection: OpenConnection, connect: Connect, name: str, kind: str, wrong: object
) -> None:
    """A property that the packet may not have, a repeated one or a truncated one ends the connection with its code."""
    assert callable(wrong)
    witness = connect(5)
    answers = {what: refusal(open_connection, kind, name, data) for what, data, _ in wrong(kind)}
    assert answers == {what: reason for what, _, reason in wrong(kind)}
    witness.expect_silence()


@pytest.mark.mqtt("5:3.1.4-5")
@pytest.mark.parametrize("kind", sorted(set(MAY_STAND_IN) - {"AUTH"}))
def test_properties_that_may_stand_there(open_connection: OpenConnection, name: str, kind: str) -> None:
    """Every packet with all its allowed properties, User Property twice, is accepted."""
    allowed = MAY_STAND_IN[kind] - {"authentication_method", "authentication_data"}
    client = open_connection(5)
    if kind not in ("CONNECT", "WILL"):
        client.connect(name, properties={"session_expiry_interval": 1})
    data = b"".join(one(each) for each in sorted(allowed)) + one("user_property")
    client.send(with_properties(kind, name, data))
    if kind == "DISCONNECT":
        client.expect_closed()
        return
    if kind in ("CONNECT", "WILL"):
        client.expect("CONNACK", reason=0)
    client.send(wire.PINGREQ)
    client.await_packet("PINGRESP")

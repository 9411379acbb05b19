"""Control packets of MQTT 3.1 (version 3), 3.1.1 (4) and 5: round trips, golden bytes, every rule a packet can break.

Invariant of all tests: every input is a packet, a documented MQTT error, or a wait for more bytes.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyx.protocol import codec, properties
from pyx.protocol.packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from pyx.protocol.reasons import TABLE, MalformedPacket, MqttError, ProtocolError, ReasonCode
from tests.unit.pyx.protocol.test_properties import STRINGS, TOPIC_NAMES, dicts_of

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = range(1, 8)
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(8, 16)

VERSIONS = st.sampled_from([3, 4, 5])
IDS = st.integers(1, 65_535)
FILTERS = STRINGS.map(str.encode)


# --- packets that can be sent, with their bytes


def reasons_of(packet_type: int, from_server: bool) -> st.SearchStrategy[int]:
    return st.sampled_from([row[0] for row in TABLE if packet_type in (row[2] if from_server else row[1])])


def maybe(version: int, packet_type: int, from_server: bool = False) -> st.SearchStrategy[dict[str, Any]]:
    """Return properties that the packet may have in that version; Authentication Data only with its Method."""
    if version != 5:
        return st.just({})
    return dicts_of(packet_type, from_server).filter(
        lambda found: "authentication_method" in found or (packet_type != AUTH and "authentication_data" not in found)
    )


@st.composite
def wills(draw: st.DrawFn, version: int) -> Will:
    kept = draw(dicts_of(0)) if version == 5 else {}
    delay = kept.pop("will_delay_interval", 0)
    return Will(
        draw(TOPIC_NAMES).encode(),
        draw(st.binary(max_size=20)),
        draw(st.integers(0, 2)),
        draw(st.booleans()),
        delay,
        kept.get("message_expiry_interval"),
        properties.pack(kept, 0),
    )


@st.composite
def connects(draw: st.DrawFn) -> tuple[int, bytes, Packet]:
    version = draw(VERSIONS)
    username = draw(st.none() | STRINGS)
    passwords = st.none() | st.binary(max_size=20)
    packet = Connect(
        version,
        draw(STRINGS),
        draw(st.booleans()),
        draw(st.integers(0, 65_535)),
        username,
        draw(passwords) if version == 5 or username is not None else None,
        draw(st.none() | wills(version)),
        draw(maybe(version, CONNECT)),
    )
    wire = codec.encode_connect(
        version,
        packet.client_id,
        packet.clean_start,
        packet.keep_alive,
        packet.username,
        packet.password,
        packet.will,
        packet.properties,
    )
    return version, wire, packet


@st.composite
def publishes(draw: st.DrawFn, from_server: bool = False) -> tuple[int, bytes, Packet]:
    version, qos = draw(VERSIONS), draw(st.integers(0, 2))
    found = draw(maybe(version, PUBLISH, from_server))
    topic = draw(TOPIC_NAMES).encode()
    if "topic_alias" in found and draw(st.booleans()):
        topic = b""
    packet = Publish(
        topic,
        draw(st.binary(max_size=300)),
        qos,
        draw(st.booleans()),
        qos > 0 and draw(st.booleans()),
        draw(IDS) if qos else 0,
        found,
    )
    wire = codec.encode_publish(
        version, topic, packet.payload, qos, packet.retain, packet.dup, packet.packet_id, found, from_server
    )
    return version, wire, packet


@st.composite
def acks(draw: st.DrawFn, from_server: bool = False) -> tuple[int, bytes, Packet]:
    version, packet_type = draw(VERSIONS), draw(st.integers(PUBACK, PUBCOMP))
    reason = draw(reasons_of(packet_type, from_server)) if version == 5 else 0
    packet = Ack(packet_type, draw(IDS), reason, draw(maybe(version, packet_type, from_server)))
    wire = codec.encode_ack(version, packet_type, packet.packet_id, reason, packet.properties, from_server)
    return version, wire, packet


@st.composite
def subscribes(draw: st.DrawFn) -> tuple[int, bytes, Packet]:
    version = draw(VERSIONS)
    handling = st.integers(0, 2) if version == 5 else st.just(0)
    flags = st.sampled_from([0, 4, 8, 12]) if version == 5 else st.just(0)
    options = st.builds(lambda qos, flag, how: qos | flag | how << 4, st.integers(0, 2), flags, handling)
    found = draw(maybe(version, SUBSCRIBE))
    filters = draw(st.lists(st.builds(Subscription, FILTERS, options), min_size=1, max_size=4))
    packet = Subscribe(draw(IDS), filters, found.get("subscription_identifier", 0), found)
    return version, codec.encode_subscribe(version, packet.packet_id, filters, found), packet


@st.composite
def unsubscribes(draw: st.DrawFn) -> tuple[int, bytes, Packet]:
    version = draw(VERSIONS)
    packet = Unsubscribe(draw(IDS), draw(st.lists(FILTERS, min_size=1, max_size=4)), draw(maybe(version, UNSUBSCRIBE)))
    return version, codec.encode_unsubscribe(version, packet.packet_id, packet.filters, packet.properties), packet


@st.composite
def disconnects(draw: st.DrawFn, from_server: bool = False) -> tuple[int, bytes, Packet]:
    version = 5 if from_server else draw(VERSIONS)
    reason = draw(reasons_of(DISCONNECT, from_server)) if version == 5 else 0
    packet = Disconnect(reason, draw(maybe(version, DISCONNECT, from_server)))
    return version, codec.encode_disconnect(reason, packet.properties, version, from_server), packet


@st.composite
def auths(draw: st.DrawFn, from_server: bool = False) -> tuple[int, bytes, Packet]:
    packet = Auth(draw(reasons_of(AUTH, from_server)), draw(maybe(5, AUTH, from_server)))
    return 5, codec.encode_auth(packet.reason_code, packet.properties, from_server), packet


@st.composite
def connacks(draw: st.DrawFn) -> tuple[int, bytes, Packet]:
    version = draw(st.sampled_from([4, 5]))
    reason = draw(reasons_of(CONNACK, True)) if version == 5 else 0
    packet = Connack(reason == 0 and draw(st.booleans()), reason, draw(maybe(version, CONNACK, True)))
    return version, codec.encode_connack(version, packet.session_present, reason, packet.properties), packet


@st.composite
def subacks(draw: st.DrawFn) -> tuple[int, bytes, Packet]:
    version = draw(VERSIONS)
    code = reasons_of(SUBACK, True) if version == 5 else st.sampled_from([0, 1, 2, 0x80])
    packet = Suback(draw(IDS), draw(st.lists(code, min_size=1, max_size=4)), draw(maybe(version, SUBACK, True)))
    return version, codec.encode_suback(version, packet.packet_id, packet.codes, packet.properties), packet


@st.composite
def unsubacks(draw: st.DrawFn) -> tuple[int, bytes, Packet]:
    version = draw(VERSIONS)
    codes = draw(st.lists(reasons_of(UNSUBACK, True), min_size=1, max_size=4)) if version == 5 else []
    packet = Unsuback(draw(IDS), codes, draw(maybe(version, UNSUBACK, True)))
    return version, codec.encode_unsuback(version, packet.packet_id, codes, packet.properties), packet


BY_CLIENT = {
    "CONNECT": connects(),
    "PUBLISH": publishes(),
    "ack": acks(),
    "SUBSCRIBE": subscribes(),
    "UNSUBSCRIBE": unsubscribes(),
    "PINGREQ": st.tuples(VERSIONS, st.just(codec.PINGREQ_BYTES), st.just(Pingreq())),
    "DISCONNECT": disconnects(),
    "AUTH": auths(),
}
BY_SERVER = {
    "CONNACK": connacks(),
    "PUBLISH": publishes(from_server=True),
    "ack": acks(from_server=True),
    "SUBACK": subacks(),
    "UNSUBACK": unsubacks(),
    "PINGRESP": st.tuples(VERSIONS, st.just(codec.PINGRESP_BYTES), st.just(Pingresp())),
    "DISCONNECT": disconnects(from_server=True),
    "AUTH": auths(from_server=True),
}
KINDS = [(name, False) for name in BY_CLIENT] + [(name, True) for name in BY_SERVER]


# --- round trips


def decoded(version: int, from_server: bool, *pieces: bytes) -> list[Packet]:
    """Feed the pieces one after the other, taking packets out as soon as they are complete."""
    decoder = codec.Decoder(version, from_server)
    packets = []
    for piece in pieces:
        decoder.feed(piece)
        while (packet := decoder.next_packet()) is not None:
            packets.append(packet)
    return packets


@pytest.mark.parametrize(("kind", "from_server"), KINDS)
def test_what_is_encoded_comes_back(kind: str, from_server: bool) -> None:
    """Whole, byte by byte, at every split; every prefix is a wait for more bytes."""

    @given((BY_SERVER if from_server else BY_CLIENT)[kind])
    def check(case: tuple[int, bytes, Packet]) -> None:
        version, wire, packet = case
        assert codec.decode(wire, version, from_server) == packet
        assert codec.decode(wire + b"\xff", version, from_server) == packet
        assert decoded(version, from_server, *[wire[i : i + 1] for i in range(len(wire))]) == [packet]
        for split in range(len(wire) + 1):
            assert decoded(version, from_server, wire[:split], wire[split:]) == [packet]
            if split < len(wire):
                with pytest.raises(codec.Incomplete):
                    codec.decode(wire[:split], version, from_server)

    check()


@pytest.mark.parametrize(("kind", "from_server"), KINDS)
def test_a_body_that_ends_early_or_late(kind: str, from_server: bool) -> None:
    """With Remaining Length made to fit, a cut or lengthened body is a packet of the same type or an error."""

    @given((BY_SERVER if from_server else BY_CLIENT)[kind])
    def check(case: tuple[int, bytes, Packet]) -> None:
        version, wire, packet = case
        body = wire[2 if wire[1] < 0x80 else 3 :]
        for other in (*[body[:cut] for cut in range(len(body))], body + b"\0", body + b"\xff\xff\xff"):
            length = bytes((len(other),)) if len(other) < 128 else bytes((len(other) & 0x7F | 0x80, len(other) >> 7))
            try:
                got = codec.decode(wire[:1] + length + other, version, from_server)
            except MqttError:
                continue
            assert type(got) is type(packet)

    check()


@given(st.lists(publishes() | acks() | subscribes() | unsubscribes(), max_size=6), st.data())
def test_a_stream_of_packets_cut_anywhere(cases: list[tuple[int, bytes, Packet]], data: st.DataObject) -> None:
    """A stream that begins with a CONNECT is decoded in the version that it names, however it is split."""
    version, connect, packet = data.draw(connects())
    same = [case for case in cases if case[0] == version]
    stream = connect + b"".join(wire for _, wire, _ in same)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert decoded(0, False, *pieces) == [packet, *[one for _, _, one in same]]


# --- any input


def is_packet_error_or_wait(data: bytes, version: int, from_server: bool) -> None:
    reason: int = ReasonCode.UNSPECIFIED_ERROR
    try:
        assert isinstance(codec.decode(data, version, from_server), Packet)
    except (MalformedPacket, ProtocolError) as error:
        reason = error.reason_code
    except codec.Incomplete:
        pass
    assert reason in set(ReasonCode)
    assert reason >= 0x80


@given(st.binary(max_size=80), VERSIONS, st.booleans())
def test_any_bytes(data: bytes, version: int, from_server: bool) -> None:
    is_packet_error_or_wait(data, version, from_server)


@given(st.integers(0, 255), st.binary(max_size=120), VERSIONS, st.booleans())
def test_any_body_of_any_type(first: int, body: bytes, version: int, from_server: bool) -> None:
    is_packet_error_or_wait(bytes((first, len(body))) + body, version, from_server)


@pytest.mark.parametrize(("kind", "from_server"), KINDS)
def test_packets_with_a_changed_byte(kind: str, from_server: bool) -> None:
    @given((BY_SERVER if from_server else BY_CLIENT)[kind], st.data())
    def check(case: tuple[int, bytes, Packet], data: st.DataObject) -> None:
        version, wire, _ = case
        changed = bytearray(wire)
        for _ in range(data.draw(st.integers(1, 3))):
            changed[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
        for any_version in (3, 4, 5, version):
            is_packet_error_or_wait(bytes(changed), any_version, from_server)

    check()


@given(st.binary(max_size=60), st.integers(0, 15), st.booleans())
def test_publish_fields_of_any_body(body: bytes, flags: int, v5: bool) -> None:
    """The data path agrees with the class, except for the topic's content, which it leaves to the router."""
    try:
        fields = codec.publish_fields(flags, body, v5)
    except MqttError:
        with pytest.raises(MqttError):
            codec.decode(bytes((0x30 | flags, len(body))) + body, 5 if v5 else 4)
        return
    try:
        packet = codec.decode(bytes((0x30 | flags, len(body))) + body, 5 if v5 else 4)
    except MqttError:
        return
    assert isinstance(packet, Publish)
    assert (packet.topic, packet.payload, packet.qos) == (fields["topic"], fields["payload"], fields["qos"])


# --- what the data path passes on


@given(publishes())
def test_the_publish_struct(case: tuple[int, bytes, Packet]) -> None:
    """Properties have neither their length nor a Topic Alias; the expiry offset points at its four bytes."""
    version, wire, _ = case
    packet = codec.decode(wire, version)
    assert isinstance(packet, Publish)
    fields = codec.publish_fields(wire[0] & 0x0F, wire[2 if wire[1] < 0x80 else 3 :], version == 5)
    kept = dict(packet.properties)
    alias = kept.pop("topic_alias", None)
    assert fields["has_alias"] == (alias is not None)
    assert fields["topic_alias"] == (alias or 0)
    assert fields["props"] == properties.pack(kept, PUBLISH)
    assert fields["payload_format"] == kept.get("payload_format_indicator", 0)
    assert fields["packet_id"] == packet.packet_id
    assert (fields["retain"], fields["dup"]) == (packet.retain, packet.dup)
    if "message_expiry_interval" in kept:
        offset = fields["expiry_offset"]
        assert fields["expiry_interval"] == kept["message_expiry_interval"]
        assert fields["props"][offset - 1] == 0x02
        assert int.from_bytes(fields["props"][offset : offset + 4], "big") == kept["message_expiry_interval"]
    else:
        assert (fields["expiry_offset"], fields["expiry_interval"]) == (-1, 0)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_topic_alias_is_cut_out_wherever_it_stands(place: int) -> None:
    others = [("content_type", "t"), ("message_expiry_interval", 7)]
    wanted = properties.pack(dict(others), PUBLISH)
    given_ = [*others[:place], ("topic_alias", 9), *others[place:]]
    wire = codec.encode_publish(5, b"a", b"p", properties=dict(given_))
    fields = codec.publish_fields(0, wire[2:], True)
    assert fields["props"] == wanted
    assert fields["props"][fields["expiry_offset"] :][:4] == b"\0\0\0\x07"
    assert (fields["topic_alias"], fields["payload"]) == (9, b"p")


# --- golden bytes, written down from the standards


@pytest.mark.parametrize(
    ("wire", "version", "from_server", "packet"),
    [
        ("100f 00064d5149736470 03 02 000a 000161", 3, False, Connect(3, "a", True, 10)),
        ("1012 00044d515454 04 c2 003c 0000 00017a 00017b", 4, False, Connect(4, "", True, 60, "z", b"{")),
        (
            "1024 00044d515454 05 ce 000a 05 1100000010 0000 05 0200000009 000177 000178 000175 000170",
            5,
            False,
            Connect(
                5,
                "",
                True,
                10,
                "u",
                b"p",
                Will(b"w", b"x", 1, False, 0, 9, b"\x02\0\0\0\x09"),
                {"session_expiry_interval": 16},
            ),
        ),
        ("2002 01 00", 4, True, Connack(True, 0)),
        ("2003 00 00 00", 5, True, Connack(False, 0)),
        ("3d09 0003612f62 000a 6869", 4, False, Publish(b"a/b", b"hi", 2, True, True, 10)),
        ("3008 0003612f62 00 6869", 5, False, Publish(b"a/b", b"hi")),
        ("4002 000a", 5, False, Ack(PUBACK, 10)),
        ("5003 000a 80", 5, False, Ack(PUBREC, 10, 0x80)),
        ("6202 ffff", 4, False, Ack(PUBREL, 65_535)),
        ("7009 0001 92 05 1f0002 6e6f", 5, False, Ack(PUBCOMP, 1, 0x92, {"reason_string": "no"})),
        (
            "820e 000a 0003612f62 01 0003632f64 02",
            4,
            False,
            Subscribe(10, [Subscription(b"a/b", 1), Subscription(b"c/d", 2)]),
        ),
        (
            "8209 000a 02 0b07 000161 2e",
            5,
            False,
            Subscribe(10, [Subscription(b"a", 0x2E)], 7, {"subscription_identifier": 7}),
        ),
        ("9005 000a 00 02 80", 4, True, Suback(10, [0, 2, 0x80])),
        ("a20c 000a 0003612f62 0003632f64", 4, False, Unsubscribe(10, [b"a/b", b"c/d"])),
        ("b002 000a", 4, True, Unsuback(10, [])),
        ("b005 000a 00 00 11", 5, True, Unsuback(10, [0, 0x11])),
        ("c000", 4, False, Pingreq()),
        ("d000", 4, True, Pingresp()),
        ("e000", 4, False, Disconnect()),
        ("e000", 5, False, Disconnect()),
        ("e001 04", 5, False, Disconnect(4)),
        ("e002 8b 00", 5, True, Disconnect(0x8B)),
        ("f006 18 04 15000178", 5, False, Auth(0x18, {"authentication_method": "x"})),
        ("f000", 5, True, Auth(0)),
    ],
)
def test_golden_packets(wire: str, version: int, from_server: bool, packet: Packet) -> None:
    assert codec.decode(bytes.fromhex(wire), version, from_server) == packet


def test_golden_answers() -> None:
    """The packets that the server sends, byte for byte."""
    assert codec.encode_connack(5, True, 0) == bytes.fromhex("2003 01 00 00")
    assert codec.encode_connack(4, True, 0) == bytes.fromhex("2002 01 00")
    assert codec.encode_connack(3, True, 0) == bytes.fromhex("2002 00 00")
    assert codec.encode_connack(5, False, 0, {"receive_maximum": 20}) == bytes.fromhex("2006 00 00 03 210014")
    assert codec.encode_suback(5, 10, [0, 0x8F]) == bytes.fromhex("9005 000a 00 00 8f")
    assert codec.encode_suback(4, 10, [1, 0x8F, 0xA2]) == bytes.fromhex("9005 000a 01 80 80")
    assert codec.encode_unsuback(5, 10, [0x11]) == bytes.fromhex("b004 000a 00 11")
    assert codec.encode_unsuback(4, 10, [0x11]) == bytes.fromhex("b002 000a")
    assert codec.encode_disconnect(0) == bytes.fromhex("e000")
    assert codec.encode_disconnect(0x8B) == bytes.fromhex("e001 8b")
    assert codec.encode_auth(0x18, {"authentication_method": "x"}) == bytes.fromhex("f006 18 04 15000178")
    assert codec.encode_ack(5, PUBREL, 1) == bytes.fromhex("6202 0001")
    assert codec.encode_ack(5, PUBREC, 1, 0x97) == bytes.fromhex("5003 0001 97")
    assert codec.encode_ack(4, PUBREC, 1, 0x97) == bytes.fromhex("5002 0001")


# --- rules. Hex of the whole packet, the version, the error's Reason Code, and the statement that asks for it

V3, V4, V5 = (3,), (4,), (5,)
OLD, LATER, ALL = (3, 4), (4, 5), (3, 4, 5)


def rule(identifier: str, wire: str, versions: tuple[int, ...], reason: int, about: str) -> Any:
    marks = [pytest.mark.mqtt(*identifier.split())] if identifier else []
    return pytest.param(wire.replace(" ", ""), versions, reason, marks=marks, id=about.replace(" ", "-"))


@pytest.mark.parametrize(
    ("wire", "versions", "reason"),
    [
        # fixed header
        rule("", "0000", ALL, 0x81, "packet type 0"),
        rule("", "f000", OLD, 0x81, "packet type 15 before MQTT 5"),
        rule("5:2.1.3-1 311:2.2.2-2", "c100", LATER, 0x81, "PINGREQ with a flag"),
        rule("", "c00100", ALL, 0x81, "PINGREQ with a body"),
        rule("", "20020000", ALL, 0x82, "CONNACK by a client"),
        rule("", "9003000100", ALL, 0x82, "SUBACK by a client"),
        rule("", "b0020001", ALL, 0x82, "UNSUBACK by a client"),
        rule("", "d000", ALL, 0x82, "PINGRESP by a client"),
        # CONNECT
        rule("311:2.2.2-2", "110c 00044d515454 04 02 0000 0000", V4, 0x81, "CONNECT with a reserved bit"),
        rule("5:3.1.2-1 311:3.1.2-1", "100c 00044d515455 04 02 0000 0000", ALL, 0x84, "another protocol name"),
        rule(
            "5:3.1.2-1 311:3.1.2-1", "100c 00046d717474 04 02 0000 0000", ALL, 0x84, "the protocol name in lower case"
        ),
        rule("5:3.1.2-2 311:3.1.2-2", "100c 00044d515454 03 02 0000 0000", ALL, 0x84, "MQTT at level 3"),
        rule("5:3.1.2-2 311:3.1.2-2", "100c 00044d515454 06 02 0000 0000", ALL, 0x84, "MQTT at level 6"),
        rule(
            "5:3.1.2-2 311:3.1.2-2", "100c 00044d515454 84 02 0000 0000", ALL, 0x84, "MQTT at level 4 with a high bit"
        ),
        rule("5:3.1.2-2 311:3.1.2-2", "100e 00064d5149736470 04 02 0000 0000", ALL, 0x84, "MQIsdp at level 4"),
        rule("311:3.1.2-3", "100c 00044d515454 04 03 0000 0000", V4, 0x81, "the reserved flag"),
        rule("5:3.1.2-3", "100d 00044d515454 05 03 0000 00 0000", V5, 0x81, "the reserved flag in v5"),
        rule("311:3.1.2-14", "1012 00044d515454 04 1e 0000 0000 000177 000178", V4, 0x81, "Will QoS 3"),
        rule("5:3.1.2-12", "1014 00044d515454 05 1e 0000 00 0000 00 000177 000178", V5, 0x81, "Will QoS 3 in v5"),
        rule("311:3.1.2-11 311:3.1.2-13", "100c 00044d515454 04 0a 0000 0000", V4, 0x81, "Will QoS without Will"),
        rule("311:3.1.2-11 311:3.1.2-15", "100c 00044d515454 04 22 0000 0000", V4, 0x81, "Will Retain without Will"),
        rule(
            "5:3.1.2-11 5:3.1.2-13",
            "100d 00044d515454 05 22 0000 00 0000",
            V5,
            0x81,
            "Will Retain without Will in v5",
        ),
        rule("311:3.1.2-22", "100f 00044d515454 04 42 0000 0000 000170", V4, 0x81, "a password without user name"),
        rule(
            "311:3.1.2-18 311:3.1.2-20",
            "100f 00044d515454 04 02 0000 0000 000175",
            V4,
            0x81,
            "a user name without its flag",
        ),
        rule(
            "5:3.1.2-16 5:3.1.2-18",
            "1010 00044d515454 05 02 0000 00 0000 000175",
            V5,
            0x81,
            "a user name without flag in v5",
        ),
        rule("311:3.1.2-19", "100c 00044d515454 04 82 0000 0000", V4, 0x81, "no user name with its flag"),
        rule("311:3.1.2-21", "100f 00044d515454 04 c2 0000 0000 000175", V4, 0x81, "no password with its flag"),
        rule("5:3.1.2-17", "100d 00044d515454 05 82 0000 00 0000", V5, 0x81, "no user name with its flag in v5"),
        rule("311:3.1.2-9", "100c 00044d515454 04 06 0000 0000", V4, 0x81, "no Will with its flag"),
        rule("311:3.1.3-3", "100a 00044d515454 04 02 0000", V4, 0x81, "no Client Identifier"),
        rule("311:3.1.3-4", "100d 00044d515454 04 02 0000 0001ff", V4, 0x81, "Client Identifier not UTF-8"),
        rule("311:3.1.3-11", "100f 00044d515454 04 82 0000 0000 0001ff", V4, 0x81, "User Name not UTF-8"),
        rule("5:3.1.3-12", "1010 00044d515454 05 82 0000 00 0000 000100", V5, 0x81, "User Name with U+0000 in v5"),
        rule("311:3.1.3-10", "1012 00044d515454 04 06 0000 0000 0001ff 000178", V4, 0x81, "Will Topic not UTF-8"),
        rule("311:4.7.1-1", "1012 00044d515454 04 06 0000 0000 000123 000178", V4, 0x90, "Will Topic with a wildcard"),
        rule("5:4.7.3-1", "1013 00044d515454 05 06 0000 00 0000 00 0000 000178", V5, 0x90, "Will Topic empty"),
        rule("311:3.1.4-1", "100d 00044d515454 04 02 0000 0000 00", V4, 0x81, "a byte too many"),
        rule("", "1010 00044d515454 05 02 0000 03 210000 0000", V5, 0x82, "Receive Maximum 0"),
        rule("", "1012 00044d515454 05 02 0000 05 2700000000 0000", V5, 0x82, "Maximum Packet Size 0"),
        rule("", "1011 00044d515454 05 02 0000 04 16000178 0000", V5, 0x82, "Authentication Data without Method"),
        rule("", "1017 00044d515454 05 02 0000 0a 1100000001 1100000001 0000", V5, 0x82, "a property twice"),
        rule("", "1010 00044d515454 05 02 0000 03 230001 0000", V5, 0x81, "a property of another packet"),
        rule("", "100d 00044d515454 05 02 0000 7f 0000", V5, 0x81, "Property Length behind the packet"),
        rule("5:2.2.2-1", "100a 00044d515454 05 02 0000", V5, 0x81, "no Property Length"),
        # PUBLISH
        rule("5:3.3.1-4 311:3.3.1-4", "3606 000161 0001 00", ALL, 0x81, "QoS 3"),
        rule("5:3.3.1-2 311:3.3.1-2", "3804 000161 00", ALL, 0x81, "DUP at QoS 0"),
        rule("5:2.2.1-3 311:2.3.1-1", "3206 000161 0000 00", ALL, 0x82, "Packet Identifier 0"),
        rule("5:3.3.2-1 311:3.3.2-1", "3000", ALL, 0x81, "PUBLISH without anything"),
        rule("5:3.3.2-1 311:3.3.2-1", "3002 0005", ALL, 0x81, "Topic Name behind the packet"),
        rule("5:3.3.2-1 311:3.3.2-1", "3004 0001ff 00", ALL, 0x81, "Topic Name not UTF-8"),
        rule("5:1.5.4-2 311:1.5.3-2", "3004 000100 00", ALL, 0x81, "Topic Name with U+0000"),
        rule("5:3.3.2-2 311:3.3.2-2", "3004 000123 00", ALL, 0x90, "Topic Name with a wildcard"),
        rule("311:4.7.3-1", "3002 0000", OLD, 0x90, "Topic Name empty"),
        rule("", "3003 0000 00", V5, 0x82, "neither Topic Name nor Topic Alias"),
        rule("", "3204 000161 00", ALL, 0x81, "half a Packet Identifier"),
        rule("5:2.2.2-1", "3003 000161", V5, 0x81, "PUBLISH without Property Length"),
        rule("5:3.3.2-8", "3007 000161 03 230000", V5, 0x94, "Topic Alias 0"),
        rule("5:3.3.2-14", "3008 000161 04 0800012b", V5, 0x82, "Response Topic with a wildcard"),
        rule("5:3.3.4-6", "3006 000161 02 0b01", V5, 0x82, "Subscription Identifier by a client"),
        rule("", "300a 000161 06 230001 230001", V5, 0x82, "Topic Alias twice"),
        rule("5:3.3.2-19", "3008 000161 04 030001ff", V5, 0x81, "Content Type not UTF-8"),
        rule("", "3005 000161 02 23", V5, 0x81, "Property Length behind the PUBLISH"),
        rule("", "3005 000161 01 23", V5, 0x81, "a property cut off"),
        # PUBACK, PUBREC, PUBREL, PUBCOMP
        rule("5:2.1.3-1 311:2.2.2-2", "4102 0001", LATER, 0x81, "PUBACK with a flag"),
        rule("5:2.1.3-1 311:2.2.2-2", "5202 0001", LATER, 0x81, "PUBREC with a flag"),
        rule("5:3.6.1-1 311:3.6.1-1", "6002 0001", ALL, 0x81, "PUBREL without its flag"),
        rule("5:3.6.1-1 311:3.6.1-1", "6302 0001", LATER, 0x81, "PUBREL with another flag"),
        rule("5:3.6.1-1 311:3.6.1-1", "6a02 0001", LATER, 0x81, "PUBREL with DUP"),
        rule("5:2.1.3-1 311:2.2.2-2", "7202 0001", LATER, 0x81, "PUBCOMP with a flag"),
        rule("", "4002 0000", ALL, 0x82, "PUBACK of Packet Identifier 0"),
        rule("", "4001 00", ALL, 0x81, "half a PUBACK"),
        rule("", "4003 0001 00", OLD, 0x81, "PUBACK with a Reason Code before MQTT 5"),
        rule("5:3.4.2-1", "4003 0001 92", V5, 0x82, "PUBACK with a Reason Code of PUBREL"),
        rule("5:3.5.2-1", "5003 0001 01", V5, 0x82, "PUBREC with a Reason Code of SUBACK"),
        rule("5:3.6.2-1", "6203 0001 80", V5, 0x82, "PUBREL with a Reason Code of PUBREC"),
        rule("5:3.7.2-1", "7003 0001 ff", V5, 0x82, "PUBCOMP with no Reason Code"),
        rule("", "4004 0001 00 01", V5, 0x81, "PUBACK with a Property Length behind the packet"),
        rule("", "4005 0001 00 00 00", V5, 0x81, "PUBACK with a byte too many"),
        rule("", "4006 0001 00 02 0101", V5, 0x81, "PUBACK with a property of PUBLISH"),
        rule("", "400c 0001 00 08 1f000161 1f000161", V5, 0x82, "PUBACK with two Reason Strings"),
        # SUBSCRIBE
        rule("311:3.8.1-1", "8006 0001 000161 00", OLD, 0x81, "SUBSCRIBE without its flag"),
        rule("311:3.8.1-1", "8a06 0001 000161 00", V4, 0x81, "SUBSCRIBE with DUP"),
        rule("5:3.8.1-1", "8307 0001 00 000161 00", V5, 0x81, "SUBSCRIBE with another flag"),
        rule("311:2.3.1-1", "8206 0000 000161 00", OLD, 0x82, "SUBSCRIBE of Packet Identifier 0"),
        rule("5:2.2.1-3", "8207 0000 00 000161 00", V5, 0x82, "SUBSCRIBE of Packet Identifier 0 in v5"),
        rule("311:3.8.3-3", "8202 0001", OLD, 0x82, "SUBSCRIBE without filters"),
        rule("5:3.8.3-2", "8203 0001 00", V5, 0x82, "SUBSCRIBE without filters in v5"),
        rule("311:3.8.3-1", "8206 0001 0001ff 00", OLD, 0x81, "Topic Filter not UTF-8"),
        rule("5:3.8.3-1", "8207 0001 00 000100 00", V5, 0x81, "Topic Filter with U+0000"),
        rule("311:3-8.3-4", "8206 0001 000161 03", OLD, 0x81, "SUBSCRIBE with QoS 3"),
        rule("311:3-8.3-4", "8206 0001 000161 04", OLD, 0x81, "reserved bits of the options"),
        rule("", "8207 0001 00 000161 03", V5, 0x82, "SUBSCRIBE with QoS 3 in v5"),
        rule("5:3.8.3-5", "8207 0001 00 000161 40", V5, 0x81, "reserved bits of the options in v5"),
        rule("5:3.8.3-5", "8207 0001 00 000161 80", V5, 0x81, "the other reserved bit"),
        rule("", "8207 0001 00 000161 30", V5, 0x82, "Retain Handling 3"),
        rule("5:3.8.3-4", "8210 0001 00 000a2473686172652f672f61 04", V5, 0x82, "No Local on a shared filter"),
        rule("", "8205 0001 000161", OLD, 0x81, "a filter without options"),
        rule("", "8209 0001 02 0b00 000161 00", V5, 0x82, "Subscription Identifier 0"),
        rule("", "820b 0001 04 0b010b01 000161 00", V5, 0x82, "two Subscription Identifiers"),
        # UNSUBSCRIBE
        rule("311:3.10.1-1", "a005 0001 000161", OLD, 0x81, "UNSUBSCRIBE without its flag"),
        rule("5:3.10.1-1", "a306 0001 00 000161", V5, 0x81, "UNSUBSCRIBE with another flag"),
        rule("311:2.3.1-1", "a205 0000 000161", OLD, 0x82, "UNSUBSCRIBE of Packet Identifier 0"),
        rule("311:3.10.3-2", "a202 0001", OLD, 0x82, "UNSUBSCRIBE without filters"),
        rule("5:3.10.3-2", "a203 0001 00", V5, 0x82, "UNSUBSCRIBE without filters in v5"),
        rule("311:3.10.3-1", "a205 0001 0001ff", OLD, 0x81, "UNSUBSCRIBE not UTF-8"),
        rule("", "a208 0001 02 0b01 000161", V5, 0x81, "UNSUBSCRIBE with a Subscription Identifier"),
        # DISCONNECT, AUTH
        rule("5:3.14.1-1 311:3.14.1-1", "e100", LATER, 0x81, "DISCONNECT with a flag"),
        rule("", "e00100", OLD, 0x81, "DISCONNECT with a body before MQTT 5"),
        rule("5:3.14.2-1", "e001 01", V5, 0x82, "DISCONNECT with a Reason Code of SUBACK"),
        rule("5:3.14.2-1", "e001 8b", V5, 0x82, "DISCONNECT with a Reason Code of the server"),
        rule("", "e007 00 05 1c000278 79", V5, 0x82, "DISCONNECT with a Server Reference"),
        rule("", "e003 00 00 00", V5, 0x81, "DISCONNECT with a byte too many"),
        rule("5:3.15.1-1", "f106 18 04 15000178", V5, 0x81, "AUTH with a flag"),
        rule("5:3.15.2-1", "f006 00 04 15000178", V5, 0x82, "AUTH Success by a client"),
        rule("5:3.15.2-1", "f000", V5, 0x82, "AUTH without anything by a client"),
        rule("", "f002 18 00", V5, 0x82, "AUTH without Method"),
        rule("", "f001 18", V5, 0x81, "AUTH without Property Length"),
    ],
)
def test_rules(wire: str, versions: tuple[int, ...], reason: int) -> None:
    data = bytes.fromhex(wire)
    assert len(data) == data[1] + 2, "the case itself is wrong"
    for version in versions:
        with pytest.raises(MalformedPacket if reason == 0x81 else ProtocolError) as refused:
            codec.decode(data, version)
        assert refused.value.reason_code == reason, (version, str(refused.value))
        for have in range(len(data)):
            is_packet_error_or_wait(data[:have], version, False)


def test_allowed_though_unusual() -> None:
    """Packets that the standards allow, and an over-strict decoder refuses."""
    # MQTT 3.1 (3.1): a user name's or password's flag may be set with the string missing
    assert codec.decode(bytes.fromhex("100e00064d514973647003c200000000"), 0) == Connect(3, "")
    # MQTT 3.1 (2.1): DUP on PUBREL, SUBSCRIBE, UNSUBSCRIBE
    assert codec.decode(bytes.fromhex("6a020001"), 3) == Ack(PUBREL, 1)
    assert codec.decode(bytes.fromhex("8a06000100016100"), 3) == Subscribe(1, [Subscription(b"a", 0)])
    assert codec.decode(bytes.fromhex("aa050001000161"), 3) == Unsubscribe(1, [b"a"])
    # MQTT 5 (3.1.2.9): a password without a user name
    assert codec.decode(bytes.fromhex("101000044d5154540542000000 0000 000170"), 0) == Connect(5, "", password=b"p")
    # an invalid filter is refused in the SUBACK, one code per filter
    for text in (b"", b"a#", b"$share/g"):
        wire = codec.encode_subscribe(5, 1, [(text, 0)])
        assert codec.decode(wire, 5) == Subscribe(1, [Subscription(text, 0)])
    # an alias alone
    assert codec.decode(bytes.fromhex("3006 0000 03 230001"), 5) == Publish(b"", properties={"topic_alias": 1})
    # Subscription Identifiers by the server, more than one
    found = codec.decode(bytes.fromhex("3008 000161 04 0b010b02"), 5, from_server=True)
    assert found == Publish(b"a", properties={"subscription_identifier": [1, 2]})

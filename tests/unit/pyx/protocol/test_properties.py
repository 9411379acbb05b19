"""MQTT 5 properties (2.2.2.2): the table, the packets that may carry them, their values, repetition."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyx.protocol import properties
from pyx.protocol.reasons import MalformedPacket, ProtocolError
from tests import wire
from tests.conformance.test_properties import MAY_STAND_IN

WILL, CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, DISCONNECT, AUTH = 0, 1, 2, 3, 4, 8, 14, 15
ROWS = {name: row for row in properties.TABLE for name in [row[1]]}
STRINGS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
TOPIC_NAMES = STRINGS.map(lambda text: "t" + text.replace("+", "").replace("#", ""))


def values_of(name: str) -> st.SearchStrategy[Any]:
    """Return values that a property may have once."""
    _, _, _, _, _, _, least, greatest = ROWS[name]
    if name in ("correlation_data", "authentication_data"):
        return st.binary(max_size=20)
    if name == "response_topic":
        return TOPIC_NAMES
    if name == "user_property":
        return st.tuples(STRINGS, STRINGS)
    return st.integers(least, greatest) if greatest else STRINGS


def dicts_of(packet_type: int, from_server: bool = False) -> st.SearchStrategy[dict[str, Any]]:
    """Return property dicts that a packet type of that sender may carry."""
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for _, name, _, by_client, by_server, repeatable, _, _ in properties.TABLE:
        if packet_type in (by_server if from_server else by_client):
            once = values_of(name)
            optional[name] = st.lists(once, min_size=1, max_size=3) if packet_type in repeatable else once
    return st.fixed_dictionaries({}, optional=optional)


def one_value(name: str) -> Any:
    """Return a valid value, for tests of something else."""
    least = ROWS[name][6]
    if name in ("correlation_data", "authentication_data"):
        return b"v"
    if name == "user_property":
        return [("k", "v")]
    return max(least, 1) if ROWS[name][7] else "v"


def wire_of(name: str) -> bytes:
    """Return one property in wire form, packed where it is allowed."""
    _, _, _, by_client, by_server, repeatable, _, _ = ROWS[name]
    packet_type = (by_client or by_server)[0]
    value = one_value(name)
    if packet_type in repeatable and not isinstance(value, list):
        value = [value]
    return properties.pack({name: value}, packet_type, from_server=not by_client)


@pytest.mark.parametrize("from_server", [False, True])
@pytest.mark.parametrize("packet_type", range(16))
def test_what_is_packed_comes_back(packet_type: int, from_server: bool) -> None:
    @given(dicts_of(packet_type, from_server))
    def check(values: dict[str, Any]) -> None:
        packed = properties.pack(values, packet_type, from_server)
        assert properties.unpack(packed, packet_type, from_server) == values
        for cut in range(len(packed)):
            try:
                left = properties.unpack(packed[:cut], packet_type, from_server)
            except MalformedPacket:
                continue
            assert properties.pack(left, packet_type, from_server) == packed[:cut]

    check()


@pytest.mark.parametrize("from_server", [False, True])
@pytest.mark.parametrize("packet_type", range(16))
@pytest.mark.parametrize("name", ROWS)
def test_every_property_in_every_packet(name: str, packet_type: int, from_server: bool) -> None:
    """2.2.2.2: a property of another packet is malformed; one that only the other side may send is a Protocol Error."""
    allowed, other = ROWS[name][3:5][:: -1 if from_server else 1]
    wire = wire_of(name)
    if packet_type in allowed:
        assert name in properties.unpack(wire, packet_type, from_server)
    else:
        with pytest.raises(ProtocolError if packet_type in other else MalformedPacket) as refused:
            properties.unpack(wire, packet_type, from_server)
        assert refused.value.reason_code == (0x82 if packet_type in other else 0x81)
        with pytest.raises(ValueError):
            properties.pack({name: one_value(name)}, packet_type, from_server)


@pytest.mark.parametrize("from_server", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_only_repeatable_properties_are_repeated(name: str, from_server: bool) -> None:
    """Repeating a property is a Protocol Error, except User Property, and Subscription Identifier in PUBLISH."""
    for packet_type in ROWS[name][4] if from_server else ROWS[name][3]:
        twice = wire_of(name) * 2
        if packet_type in ROWS[name][5]:
            assert len(properties.unpack(twice, packet_type, from_server)[name]) == 2
            continue
        with pytest.raises(ProtocolError) as refused:
            properties.unpack(twice, packet_type, from_server)
        assert refused.value.reason_code == 0x82


def test_what_may_be_repeated() -> None:
    repeatable = {name: set(row[5]) for name, row in ROWS.items() if row[5]}
    assert set(repeatable) == {"user_property", "subscription_identifier"}
    assert repeatable["subscription_identifier"] == {PUBLISH}


def test_unknown_identifiers() -> None:
    """Every byte that is not a Property Identifier is malformed."""
    known = {row[0] for row in properties.TABLE}
    assert len(known) == len(properties.TABLE) == 27
    for identifier in set(range(256)) - known:
        with pytest.raises(MalformedPacket):
            properties.unpack(bytes((identifier,)) + bytes(8), CONNECT)


@pytest.mark.parametrize(
    ("wire", "packet_type", "from_server", "reason"),
    [
        ("2100 00", CONNECT, False, 0x82),  # Receive Maximum 0 (3.1.2.11.3)
        ("2700000000", CONNECT, False, 0x82),  # Maximum Packet Size 0 (3.1.2.11.4)
        ("1702", CONNECT, False, 0x82),  # Request Problem Information (3.1.2.11.7)
        ("1902", CONNECT, False, 0x82),  # Request Response Information (3.1.2.11.6)
        ("0102", PUBLISH, False, 0x82),  # Payload Format Indicator (3.3.2.3.2)
        ("0102", WILL, False, 0x82),
        ("0b00", SUBSCRIBE, False, 0x82),  # Subscription Identifier 0 (3.8.2.1.2)
        ("0b00", PUBLISH, True, 0x82),
        ("2402", CONNACK, True, 0x82),  # Maximum QoS 2 (3.2.2.3.4)
        ("2502", CONNACK, True, 0x82),  # Retain Available
        ("2802", CONNACK, True, 0x82),
        ("2902", CONNACK, True, 0x82),
        ("2a02", CONNACK, True, 0x82),
    ],
)
def test_values_that_are_protocol_errors(wire: str, packet_type: int, from_server: bool, reason: int) -> None:
    with pytest.raises(ProtocolError) as refused:
        properties.unpack(bytes.fromhex(wire), packet_type, from_server)
    assert refused.value.reason_code == reason


@pytest.mark.mqtt("5:3.3.2-8")
def test_topic_alias_0() -> None:
    """3.3.2.3.4: a Topic Alias of 0 is not permitted; the Reason Code is 0x94."""
    with pytest.raises(ProtocolError) as refused:
        properties.unpack(b"\x23\0\0", PUBLISH)
    assert refused.value.reason_code == 0x94


@pytest.mark.mqtt("5:3.3.2-13", "5:3.3.2-14")
@pytest.mark.parametrize("packet_type", [PUBLISH, WILL])
def test_response_topic(packet_type: int) -> None:
    """A Response Topic is a Topic Name: no wildcards, not empty, UTF-8."""
    for bad, error in (
        (b"a/+", ProtocolError),
        (b"#", ProtocolError),
        (b"", ProtocolError),
        (b"\xff", MalformedPacket),
    ):
        with pytest.raises(error):
            properties.unpack(b"\x08" + len(bad).to_bytes(2, "big") + bad, packet_type)
    for topic in ("a/+", "#", ""):
        with pytest.raises(ValueError):
            properties.pack({"response_topic": topic}, packet_type)


@pytest.mark.mqtt("5:1.5.7-1")
def test_user_property_has_two_strings() -> None:
    """Both strings of a pair are UTF-8; the order of the strings and of the pairs is kept."""
    pairs = [("b", "1"), ("a", ""), ("", "2"), ("b", "1")]
    assert properties.unpack(properties.pack({"user_property": pairs}, PUBACK), PUBACK) == {"user_property": pairs}
    for bad in (b"\x26\0\1\xff\0\1a", b"\x26\0\1a\0\1\xff", b"\x26\0\1\0\0\1a", b"\x26\0\1a", b"\x26\0\1a\0"):
        with pytest.raises(MalformedPacket):
            properties.unpack(bad, PUBACK)


def test_the_packer_refuses_what_the_table_does_not_have() -> None:
    for bad in (
        {"nonsense": 1},
        {"receive_maximum": 0},
        {"receive_maximum": 65_536},
        {"session_expiry_interval": -1},
        {"session_expiry_interval": 1 << 32},
    ):
        with pytest.raises(ValueError):
            properties.pack(bad, CONNECT)
    for packet_type in (-1, 16):
        with pytest.raises(ValueError):
            properties.pack({}, packet_type)
        with pytest.raises(ValueError):
            properties.unpack(b"", packet_type)


@given(st.binary(max_size=60), st.integers(0, 15), st.booleans())
def test_any_bytes_are_properties_or_a_documented_error(data: bytes, packet_type: int, from_server: bool) -> None:
    try:
        got = properties.unpack(data, packet_type, from_server)
    except (MalformedPacket, ProtocolError):
        return
    assert properties.unpack(properties.pack(got, packet_type, from_server), packet_type, from_server) == got


def test_the_table_is_that_of_the_standard() -> None:
    """Clients and servers may send each property exactly where table 2-4 allows it."""
    numbers = {"WILL": WILL} | wire.TYPES
    by_client = {name: set(row[3]) for name, row in ROWS.items()}
    by_server = {name: set(row[4]) for name, row in ROWS.items()}
    assert set(ROWS) == set(wire.PROPERTY_IDS)
    for kind, names in MAY_STAND_IN.items():
        assert {name for name, packets in by_client.items() if numbers[kind] in packets} == names, kind
    for kind, names in wire.FROM_A_SERVER.items():
        assert {name for name, packets in by_server.items() if numbers[kind] in packets} == names, kind

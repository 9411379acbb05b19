"""Packets of one broker of a bridge, as the other one gets them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from broker.config.data_path import fill
from broker.config.settings import Settings
from pyx.bridge.crossing import Crossing, TopicMap
from pyx.core.limits import Limits
from pyx.protocol.codec import Decoder, encode_ack, encode_connack, encode_publish, encode_suback
from pyx.protocol.packets import Ack, Packet, Publish
from pyx.protocol.reasons import MqttError

PUBACK, PUBREC, PUBREL, PUBCOMP = 4, 5, 6, 7
ANY = 268_435_460


def crossing(
    *maps: tuple[bytes, bytes, bytes],
    versions: tuple[int, int] = (5, 5),
    other_bytes_max: int = ANY,
    retains: bool = True,
    bytes_max: int = ANY,
) -> Crossing:
    made = Crossing([TopicMap(*each) for each in maps or [(b"#", b"", b"")]], bytes_max)
    made.begin(*versions, other_bytes_max, retains)
    return made


def limits(**bounds: int) -> Limits:
    return fill(Limits(), Settings.model_validate({"limits": bounds}))


def packets(data: bytes, version: int = 5) -> list[Packet]:
    """Return the packets of a client."""
    decoder = Decoder(version)
    decoder.feed(data)
    found = []
    while (packet := decoder.next_packet()) is not None:
        found.append(packet)
    return found


def published(data: bytes, version: int = 5) -> list[Publish]:
    found = packets(data, version)
    assert all(isinstance(each, Publish) for each in found)
    return [each for each in found if isinstance(each, Publish)]


@pytest.mark.parametrize("to", [4, 5])
@pytest.mark.parametrize("of", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_crosses_with_another_topic(qos: int, of: int, to: int) -> None:
    way = crossing((b"plant/a/#", b"plant/", b"site/7/"), versions=(of, to))
    properties = {"content_type": "text", "user_property": [("a", "b"), ("a", "c")]}
    sent = encode_publish(
        of, b"plant/a/b", b"payload", qos, True, False, 7 if qos else 0, properties if of == 5 else None, True
    )
    (got,) = published(way.feed(sent), to)
    assert (got.topic, got.payload, got.qos, got.retain, got.dup) == (b"site/7/a/b", b"payload", qos, True, False)
    assert got.packet_id == (7 if qos else 0)
    assert got.properties == (properties if of == to == 5 else {})
    assert (way.messages, way.unmapped, way.too_large, way.answers()) == (1, 0, 0, b"")


def test_a_repeated_message_stays_repeated_and_one_for_who_keeps_none_is_not_retained() -> None:
    way = crossing(retains=False)
    (got,) = published(way.feed(encode_publish(5, b"a", b"", 1, True, True, 3, None, True)))
    assert (got.retain, got.dup, got.packet_id) == (False, True, 3)


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        (b"a/b", b"1/b"),
        (b"a/", b"1/"),
        (b"a/b/c", b"2/c"),
        (b"x/b", b"3/x/b"),
        (b"a", None),  # a/# matches it, and it has not the prefix
        (b"y", None),
    ],
)
def test_the_first_map_that_matches_counts(topic: bytes, expected: bytes | None) -> None:
    way = crossing((b"a/+", b"a/", b"1/"), (b"a/b/#", b"a/b/", b"2/"), (b"a/#", b"a/", b"4/"), (b"x/#", b"", b"3/"))
    out = way.feed(encode_publish(5, topic, b"", from_server=True))
    assert [each.topic for each in published(out)] == ([] if expected is None else [expected])
    assert way.unmapped == (expected is None)


@pytest.mark.parametrize(("version", "reasons"), [(5, (0x90, 0x90)), (4, (0, 0))])
def test_who_sends_what_does_not_cross_is_answered(version: int, reasons: tuple[int, int]) -> None:
    way = crossing((b"a", b"", b""), versions=(version, 5))
    for qos in (0, 1, 2):
        assert way.feed(encode_publish(version, b"b", b"", qos, packet_id=qos, from_server=True)) == b""
    answers = [each for each in packets(way.answers(), version) if isinstance(each, Ack)]
    assert [(each.packet_type, each.packet_id, each.reason_code) for each in answers] == [
        (PUBACK, 1, reasons[0]),
        (PUBREC, 2, reasons[1]),
    ]
    assert (way.unmapped, way.messages) == (3, 0)


@pytest.mark.parametrize("prefix", [b"", b"p/"])
def test_the_largest_packet_that_the_other_broker_takes(prefix: bytes) -> None:
    most = 200
    for payload in range(170, 200):
        way = crossing((b"#", b"", prefix), other_bytes_max=most)
        out = way.feed(encode_publish(5, b"topic", bytes(payload), 1, packet_id=9, from_server=True))
        fits = len(encode_publish(5, prefix + b"topic", bytes(payload), 1, packet_id=9)) <= most
        assert bool(out) == fits
        assert len(out) <= most
        assert way.too_large == (not fits)
        assert [each.reason_code for each in packets(way.answers()) if isinstance(each, Ack)] == [0x83] * (not fits)


@pytest.mark.parametrize("more", [0, 1])
def test_the_longest_topic(more: int) -> None:
    way = crossing((b"#", b"a", b"abc"))
    topic = b"a" + b"x" * (65535 - 3 + more)
    out = way.feed(encode_publish(5, topic, b"", from_server=True))
    assert [len(each.topic) for each in published(out)] == ([65535] if not more else [])
    assert way.unmapped == more


@pytest.mark.parametrize("to", [4, 5])
@pytest.mark.parametrize("kind", [PUBACK, PUBREC, PUBREL, PUBCOMP])
def test_acknowledgements_cross(kind: int, to: int) -> None:
    way = crossing(versions=(5, to))
    failed = 0x92 if kind in (PUBREL, PUBCOMP) else 0x97
    sent = encode_ack(5, kind, 1, 0, None, True) + encode_ack(5, kind, 2, failed, {"reason_string": "why"}, True)
    got = [each for each in packets(way.feed(sent), to) if isinstance(each, Ack)]
    assert [(each.packet_type, each.packet_id) for each in got] == [(kind, 1), (kind, 2)]
    assert [each.reason_code for each in got] == [0, failed if to == 5 else 0]
    assert way.refused == (kind in (PUBACK, PUBREC))


@pytest.mark.parametrize("properties", [None, {"reason_string": "nobody wants it"}])
@pytest.mark.parametrize("kind", [PUBACK, PUBREC])
def test_that_nobody_has_subscribed_is_a_success(kind: int, properties: dict[str, str] | None) -> None:
    """Reason Code 0x10 is sent by servers only [MQTT 5, 3.4.2.1], and a bridge is a client."""
    way = crossing()
    out = way.feed(encode_ack(5, kind, 3, 0x10, properties, True))
    assert out == encode_ack(5, kind, 3, 0)
    assert way.refused == 0


def test_packets_for_the_bridge_itself_stay() -> None:
    way = crossing()
    own = [encode_connack(5, True, 0), encode_suback(5, 1, [1, 0x87]), b"\xd0\x00"]
    between = encode_publish(5, b"a", b"1", from_server=True)
    assert len(published(way.feed(between.join([*own, b""])))) == 3
    assert way.own_packets() == own
    assert way.own_packets() == []


@pytest.mark.parametrize(
    "data",
    [
        b"\x10\x00",  # CONNECT
        b"\xc0\x00",  # PINGREQ
        b"\x30\xff\xff\xff\xff\x01",
        b"\x30\x02\x00\x00",  # an alias: none is offered
        b"\x30\x04\x00\x01#\x00",
        b"\x36\x06\x00\x01a\x00\x01\x00",  # QoS 3
        b"\x32\x06\x00\x01a\x00\x00\x00",  # Packet Identifier 0
        b"\x32\x04\x00\x01a\x00",
        b"\x30\x04\x00\x01a\x05",  # properties that reach behind the end
        b"\x40\x01\x00",
        b"\x40\x02\x00\x00",  # Packet Identifier 0
        b"\x40\x03\x00\x01\x92",  # a Reason Code of PUBREL
        b"\xd0\x00" * 201,
        b"\x90\xff\xff\x07",  # a SUBACK of 128 KiB
    ],
)
def test_what_no_server_sends(data: bytes) -> None:
    way = crossing()
    with pytest.raises(MqttError):
        way.feed(data)


def test_a_packet_of_more_than_is_taken() -> None:
    for extra in (0, 1):
        way = crossing(bytes_max=100)
        data = encode_publish(5, b"a", bytes(100 - len(encode_publish(5, b"a", b"")) + extra), from_server=True)
        assert len(data) == 100 + extra
        if extra:
            with pytest.raises(MqttError):
                way.feed(data[:3])  # before its end has come
        else:
            assert len(published(way.feed(data))) == 1


def fed(way: Crossing, parts: Sequence[bytes]) -> bytes:
    out = b""
    for part in parts:
        out += way.feed(part)
        while way.is_behind:
            out += way.feed(b"")
    return out


def some_packets(chance: random.Random, version: int) -> bytes:
    made = []
    for number in range(1, 40):
        qos = chance.randrange(3)
        topic = chance.choice([b"a/b", b"b/c", b"a/" + b"x" * chance.randrange(300)])
        payload = bytes(chance.choice([0, 1, 100, 5000]))
        made.append(encode_publish(version, topic, payload, qos, packet_id=number if qos else 0, from_server=True))
        made.append(encode_ack(version, chance.choice([PUBACK, PUBREC, PUBREL, PUBCOMP]), number, 0, None, True))
    return b"".join(made)


@pytest.mark.parametrize("versions", [(4, 4), (4, 5), (5, 4), (5, 5)])
@pytest.mark.parametrize("seed", range(5))
def test_it_does_not_matter_how_packets_are_cut(seed: int, versions: tuple[int, int]) -> None:
    chance = random.Random(seed)
    data = some_packets(chance, versions[0])
    maps = [(b"a/#", b"a/", b"prefix/"), (b"b/#", b"", b"")]
    whole = crossing(*maps, versions=versions)
    expected = fed(whole, [data])
    answers = whole.answers()
    for size in (1, 2, 7, 1000):
        way = crossing(*maps, versions=versions)
        assert fed(way, [data[at : at + size] for at in range(0, len(data), size)]) == expected
        assert (way.answers(), way.messages, way.message_bytes) == (answers, whole.messages, whole.message_bytes)


def test_a_call_does_not_do_any_amount_of_work() -> None:
    way = crossing(*[(b"no/such/topic%d/#" % number, b"", b"") for number in range(99)], (b"a", b"", b"b"))
    one = encode_publish(5, b"a", b"", from_server=True)
    out = way.feed(one * 10_000)
    assert way.is_behind
    assert 0 < way.messages < 10_000
    out += fed(way, [b""])
    assert out == encode_publish(5, b"ba", b"") * 10_000


def test_a_message_whose_sender_has_lost_its_session_is_released() -> None:
    """Else its Packet Identifier, used anew, would be taken for a repeated message by the other broker."""
    there, here = crossing(), crossing()
    there.pair(here)
    for number in (1, 8, 65535):
        there.feed(encode_publish(5, b"a", b"", 2, packet_id=number, from_server=True))
    there.feed(encode_ack(5, PUBREL, 8, 0, None, True))
    there.begin(5, 5, ANY, True)
    released, numbers = there.release()
    assert numbers == [1, 65535]
    assert [each.packet_id for each in packets(released) if isinstance(each, Ack)] == numbers
    here.end(numbers)
    late = encode_ack(5, PUBCOMP, 1, 0, None, True)
    assert here.feed(late) == b""
    assert here.feed(late) == late, "one is not passed on, of each"
    here.begin(5, 5, ANY, True)
    assert here.feed(encode_ack(5, PUBCOMP, 65535, 0, None, True)), "of that connection"
    assert there.release()[1] == [65535], "until it is released it is tried again"


@pytest.mark.parametrize("of", [4, 5])
@pytest.mark.parametrize("qos_max", [0, 1])
def test_a_message_crosses_with_the_qos_that_the_other_broker_takes(qos_max: int, of: int) -> None:
    way, back = crossing(versions=(of, 5)), crossing(versions=(5, of))
    way.pair(back)
    way.begin(of, 5, ANY, True, qos_max)
    (got,) = published(way.feed(encode_publish(of, b"a", b"x", 2, False, True, 9, from_server=True)))
    assert (got.qos, got.packet_id, got.dup) == (qos_max, 9 * qos_max, bool(qos_max))
    answers = way.answers()
    if qos_max:
        assert answers == b""
        answers = back.feed(encode_ack(5, PUBACK, 9, 0x10, None, True))
    assert answers == encode_ack(of, PUBREC, 9)
    assert way.feed(encode_ack(of, PUBREL, 9, 0, None, True)) == b""
    assert way.answers() == encode_ack(of, PUBCOMP, 9)
    assert way.release() == (b"", [])
    (got,) = published(way.feed(encode_publish(of, b"a", b"x", 1, packet_id=10, from_server=True)))
    assert got.qos == qos_max
    assert way.answers() == (b"" if qos_max else encode_ack(of, PUBACK, 10))


def test_a_message_that_the_other_broker_does_not_stand_is_refused() -> None:
    way, back = crossing(), crossing()
    way.pair(back)
    one = encode_publish(5, b"a", b"x", 1, packet_id=9, from_server=True)
    way.feed(one + encode_publish(5, b"a", b"x", 1, packet_id=10, from_server=True))
    assert (way.first_id, way.answered) == (9, 0)
    back.feed(encode_ack(5, PUBACK, 10, 0, None, True))
    assert way.answered == 1
    way.begin(5, 5, ANY, True)
    assert (way.first_id, way.answered) == (0, 0)
    way.refuse(9)
    assert way.feed(one) == b""
    assert way.answers() == encode_ack(5, PUBACK, 9, 0x83)
    assert way.refused == 1
    assert way.feed(one), "once"


def test_a_message_of_qos_1_may_have_the_identifier_of_one_that_crossed_lowered() -> None:
    """Its PUBACK is none of the former one, which its session has lost."""
    way, back = crossing(), crossing()
    way.pair(back)
    way.begin(5, 5, ANY, True, 1)
    way.feed(encode_publish(5, b"a", b"", 2, packet_id=9, from_server=True))
    way.begin(5, 5, ANY, True, 1)
    way.feed(encode_publish(5, b"a", b"", 1, packet_id=9, from_server=True))
    assert back.feed(encode_ack(5, PUBACK, 9, 0, None, True)) == encode_ack(5, PUBACK, 9)


@pytest.mark.parametrize("of", [4, 5])
def test_a_message_of_a_table_of_another_connection_does_not_cross(of: int) -> None:
    """Who sends it is told that it has; it is neither counted nor refused."""
    maps = [TopicMap(b"a/#", b"", b"", is_ours=False), TopicMap(b"#", b"", b"")]
    way, back = Crossing(maps, ANY), crossing(versions=(5, of))
    way.pair(back)
    way.begin(of, 5, ANY, True)
    for qos in (0, 1, 2):
        assert way.feed(encode_publish(of, b"a/b", b"", qos, packet_id=qos, from_server=True)) == b""
    assert way.answers() == encode_ack(of, PUBACK, 1) + encode_ack(of, PUBREC, 2)
    assert way.feed(encode_ack(of, PUBREL, 2, 0, None, True)) == b""
    assert way.answers() == encode_ack(of, PUBCOMP, 2)
    assert way.release() == (b"", [])
    assert (way.messages, way.unmapped, way.refused) == (0, 0, 0)
    assert way.feed(encode_publish(of, b"b", b"", from_server=True))


@pytest.mark.parametrize("more", [0, 1])
def test_user_properties_as_many_as_the_broker_takes(more: int) -> None:
    way = crossing()
    way.judge(limits(user_properties_max=20, user_property_bytes_max=1000))
    properties = {"user_property": [("a", "b" * 49)] * (20 + more)}
    out = way.feed(encode_publish(5, b"a", b"", 1, packet_id=3, properties=properties, from_server=True))
    assert bool(out) == (not more)
    assert way.answers() == (encode_ack(5, PUBACK, 3, 0x97) if more else b"")
    assert (way.messages, way.refused) == (1 - more, more)


@pytest.mark.parametrize("properties", [b"\x02\x01\x05", b"\x03#\0\1"], ids=["format", "alias"])
def test_what_the_broker_would_end_the_connection_for(properties: bytes) -> None:
    body = b"\x00\x01a\x00\x03" + properties
    way = crossing()
    way.judge(limits())
    good = encode_publish(5, b"b", b"1", from_server=True)
    assert way.feed(b"\x32" + bytes([len(body)]) + body + good) == encode_publish(5, b"b", b"1")
    assert way.answers() == encode_ack(5, PUBACK, 3, 0x83)


def test_bytes_of_publish_are_counted_while_they_come() -> None:
    way = crossing()
    one = encode_publish(5, b"a", bytes(100), from_server=True)
    way.feed(one + b"\xd0\x00" + one[:50])
    assert way.publish_bytes() == len(one) + 50
    way.feed(one[50:])
    assert way.publish_bytes() == 2 * len(one)

"""Topic Names and Topic Filters: which match, and which are invalid."""

from __future__ import annotations

import pytest

from tests import wire
from tests.conformance.conftest import Configured, OpenTo
from tests.wire import Connect

MALFORMED, PROTOCOL_ERROR, TOPIC_NAME_INVALID = 0x81, 0x82, 0x90

#: (Topic Filter, Topic Name, whether they match); "N" is replaced by a name of the test's own
MATCHES = [
    ("N/sport/tennis/player1/#", "N/sport/tennis/player1", True),
    ("N/sport/tennis/player1/#", "N/sport/tennis/player1/ranking", True),
    ("N/sport/tennis/player1/#", "N/sport/tennis/player1/score/wimbledon", True),
    ("N/sport/#", "N/sport", True),
    ("N/sport/#", "N/sports", False),
    ("N/sport/tennis/+", "N/sport/tennis/player1", True),
    ("N/sport/tennis/+", "N/sport/tennis/player1/ranking", False),
    ("N/sport/+", "N/sport", False),
    ("N/sport/+", "N/sport/", True),
    ("N/+/player1", "N/tennis/player1", True),
    ("N/+/+/+", "N/a/b/c", True),
    ("N/+/+/+", "N/a/b", False),
    ("N/a", "N/a/", False),
    ("N/a/", "N/a", False),
    ("N/a//b", "N/a//b", True),
    ("N/a/+/b", "N/a//b", True),
    ("N/a/b", "N/a//b", False),
    ("N//", "N//", True),
    ("N/+/", "N/x/", True),
    ("N/+", "N/x/", False),
    ("+/N", "/N", True),
    ("/+/N", "/a/N", True),
    ("+/+/N", "/a/N", True),
    ("/N", "N", False),
    ("+/N/#", "x/N", True),
    ("N/A", "N/a", False),
    ("N/a b", "N/a b", True),
    ("N/ä/+", "N/ä/ö", True),
    ("N/ä", "N/a\u0308", False),
    ("N/\ufeffa", "N/\ufeffa", True),
    ("N/a", "N/\ufeffa", False),
    ("N/😀/#", "N/😀/x/y", True),
    ("N/+/b/#", "N/a/b", True),
    ("N/+/b/#", "N/a/c/b", False),
    ("N/#", "N", True),
    ("N/a$b", "N/a$b", True),
    ("N/+", "N/$a", True),
    ("$N/#", "$N/a", True),
    ("$N/+", "$N/a", True),
    ("+/a/N", "$N/a/N", False),
    ("+/a/N", "$/a/N", False),
]


@pytest.mark.mqtt(
    "5:1.5.4-3",
    "5:3.3.2-3",
    "5:4.7.1-1",
    "5:4.7.1-2",
    "5:4.7.3-4",
    "311:1.5.3-3",
    "311:3.3.2-3",
    "311:4.7.1-2",
    "311:4.7.1-3",
    "311:4.7.3-4",
)
@pytest.mark.parametrize(("topic_filter", "topic", "matches"), MATCHES)
def test_match(connect: Connect, name: str, topic_filter: str, topic: str, matches: bool) -> None:
    """A message matches a subscription exactly if its Topic Name matches the Topic Filter."""
    topic_filter, topic = topic_filter.replace("N", name), topic.replace("N", name)
    subscriber, publisher = connect(5), connect(4)
    subscriber.subscribe(topic_filter)
    publisher.publish(topic, b"x")
    if matches:
        subscriber.receive(topic, b"x")
    wire.expect_nothing_more(subscriber, publisher, f"marker-of-{name}")


@pytest.mark.mqtt("5:4.7.2-1", "311:4.7.2-1")
def test_hash_does_not_match_dollar_topics(connect: Connect, version: int, name: str) -> None:
    """A subscription to # gets every topic except those that begin with $."""
    subscriber, publisher = connect(version), connect(version)
    subscriber.subscribe("#")
    publisher.publish(f"${name}/hidden", b"no")
    publisher.publish(f"/{name}", b"seen")
    publisher.publish(name, b"seen too")
    expected = [(f"/{name}", b"seen"), (name, b"seen too")]
    got: list[tuple[str, bytes]] = []
    while len(got) < len(expected):
        packet = subscriber.expect("PUBLISH")
        if name in packet.topic:
            got.append((packet.topic, packet.payload))
    assert got == expected


@pytest.mark.mqtt("5:4.7.1-1", "5:4.7.1-2", "311:4.7.1-2", "311:4.7.1-3")
def test_many_levels(connect: Connect, version: int, name: str) -> None:
    """A topic of sixty levels is matched by itself, by + at any level and by # below any level."""
    levels = [name] + [f"l{number}" for number in range(59)]
    topic = "/".join(levels)
    subscriber, publisher = connect(version), connect(version)
    wanted = [topic, "/".join([*levels[:-1], "+"]), "/".join([*levels[:30], "#"]), "/".join([name, "+", *levels[2:]])]
    for topic_filter in wanted:
        subscriber.subscribe(topic_filter)
        publisher.publish(topic, b"x")
        subscriber.receive(topic, b"x")
        subscriber.unsubscribe(topic_filter)


@pytest.mark.mqtt("5:4.7.3-3", "311:4.7.3-3")
@pytest.mark.parametrize("length", [1000, 4000])
def test_long_topics(connect: Connect, version: int, name: str, length: int) -> None:
    """Long topics are accepted."""
    topic = f"{name}/{'x' * length}"
    client = connect(version)
    client.subscribe(topic, qos=1)
    client.publish(topic, b"x", qos=1)
    client.receive(topic, b"x")


@pytest.mark.mqtt("5:3.3.2-2", "5:4.7.0-1", "311:3.3.2-2", "311:4.7.1-1")
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("topic", ["#", "+", "a/+", "a/#/b", "a+b", "a#"])
def test_wildcards_in_a_topic_name(connect: Connect, version: int, topic: str, qos: int) -> None:
    """A PUBLISH with a wildcard in its Topic Name closes the connection."""
    client = connect(version)
    client.send(wire.publish(version, topic, b"x", qos=qos, packet_id=1))
    client.expect_closed(TOPIC_NAME_INVALID, MALFORMED, PROTOCOL_ERROR)


@pytest.mark.mqtt("5:4.7.3-1", "311:4.7.3-1")
def test_empty_topic_name(connect: Connect, version: int) -> None:
    """A PUBLISH without a Topic Name (and without a Topic Alias) closes the connection."""
    client = connect(version)
    client.send(wire.publish(version, "", b"x"))
    client.expect_closed(PROTOCOL_ERROR, TOPIC_NAME_INVALID, MALFORMED)


@pytest.mark.mqtt(
    "5:1.5.4-1",
    "5:1.5.4-2",
    "5:3.3.2-1",
    "5:3.8.3-1",
    "5:3.10.3-1",
    "5:4.7.3-2",
    "311:1.5.3-1",
    "311:1.5.3-2",
    "311:3.3.2-1",
    "311:3.8.3-1",
    "311:3.10.3-1",
    "311:4.7.3-2",
)
@pytest.mark.parametrize(
    "topic",
    [b"a\0b", b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"a\xe2\x82", b"\x80", b"\xf5\x80\x80\x80"],
)
@pytest.mark.parametrize("kind", ["PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE"])
def test_topics_must_be_utf8(connect: Connect, version: int, kind: str, topic: bytes) -> None:
    """A topic that is not a UTF-8 Encoded String closes the connection, in every packet that has one."""
    client = connect(version)
    no_properties = wire.in_v5(version, {})
    if kind == "PUBLISH":
        client.send(wire.packet(kind, 0, wire.binary(topic), no_properties, b"x"))
    else:
        options = b"\0" if kind == "SUBSCRIBE" else b""
        client.send(wire.packet(kind, 2, b"\0\1", no_properties, wire.binary(topic), options))
    client.expect_closed(MALFORMED, PROTOCOL_ERROR, TOPIC_NAME_INVALID)


@pytest.mark.mqtt("5:4.7.3-4", "311:4.7.3-4")
def test_rarely_used_characters(connect: Connect, version: int, name: str) -> None:
    """Spaces, quotes, first and last characters of each UTF-8 length (no control characters) are valid in topics."""
    client = connect(version)
    client.subscribe(f"{name}/#")
    for text in (" ", "~", "\u00a0", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\U00010000", "\U0010fffd", "'\"\\"):
        client.publish(f"{name}/{text}", text.encode())
        client.receive(f"{name}/{text}", text.encode())


DISALLOWED = [
    "\x01",
    "\x1f",
    "\x7f",
    "\x80",
    "\x9f",
    "\ufdd0",
    "\ufdef",
    "\ufffe",
    "\uffff",
    "\U0001ffff",
    "\U0010fffe",
]


@pytest.mark.mqtt("5:4.7.3-4", "311:4.7.3-4")
@pytest.mark.mosquitto_differs("refuses them")
def test_control_characters_and_non_characters(connect: Connect, version: int, name: str) -> None:
    """By default characters that a client should not use are accepted unchanged and match themselves."""
    client = connect(version)
    client.subscribe(f"{name}/#")
    for text in DISALLOWED:
        client.publish(f"{name}/{text}", text.encode())
        client.receive(f"{name}/{text}", text.encode())


@pytest.mark.mqtt("5:4.13.1-1", "311:4.8.0-1")
@pytest.mark.mosquitto_differs("is configured in another way")
@pytest.mark.parametrize("kind", ["CONNECT", "PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE"])
def test_control_characters_and_non_characters_refused(
    configured: Configured, open_to: OpenTo, workers: int, version: int, name: str, kind: str
) -> None:
    """If configured, such characters are malformed in every string; other characters and payloads are not affected."""
    broker = configured(workers, {"REFUSE_DISALLOWED_CHARACTERS": "true"})
    for number, text in enumerate(DISALLOWED):
        client = open_to(broker, version)
        if kind == "CONNECT":
            client.send(wire.connect(version, name + text))
            client.expect_refused(MALFORMED)
            continue
        client.connect(f"{name}x{number}")
        if kind == "PUBLISH":
            client.send(wire.publish(version, text, b"x"))
        elif kind == "SUBSCRIBE":
            client.send(wire.subscribe(version, 1, (text, 0)))
        else:
            client.send(wire.unsubscribe(version, 1, text))
        client.expect_closed(TOPIC_NAME_INVALID if kind == "PUBLISH" else MALFORMED)
    served = open_to(broker, version)
    served.connect(name)
    served.subscribe(f"{name}/é")
    served.publish(f"{name}/é", b"\x01\xef\xbf\xbe")
    served.receive(f"{name}/é", b"\x01\xef\xbf\xbe")

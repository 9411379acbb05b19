"""Topic Aliases from broker to client: for the topics sent to it most often, if it allows aliases."""

from __future__ import annotations

import pytest

from tests import wire
from tests.broker_process import KIND
from tests.wire import Client, Connect, Packet

pytestmark = pytest.mark.skipif(KIND != "mqttd", reason="mosquitto 2.0.11 sets no aliases at its clients")

ALIASES_MAX = 10  # the default of topic_alias_out_max


class Follower:
    """A subscriber that keeps the aliases that it receives, as a client must."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.known: dict[int, str] = {}
        self.most = 0
        self.by_alias = 0

    def receive(self, payload: bytes) -> Packet:
        """Return the next message, acknowledged, with its topic in place of the alias."""
        got = self.client.expect("PUBLISH", payload=payload)
        alias = got.properties.pop("topic_alias", None)
        if alias is None:
            assert got.topic
        else:
            self.most = max(self.most, alias)
            if got.topic:
                self.known[alias] = got.topic
            else:
                self.by_alias += 1
        if got.qos:
            self.client.ack("PUBACK" if got.qos == 1 else "PUBREC", got.packet_id)
        if got.qos == 2:
            self.client.await_packet("PUBREL", got.packet_id)
            self.client.ack("PUBCOMP", got.packet_id)
        return Packet(**{**got.__dict__, "topic": got.topic or self.known[alias or 0]})


@pytest.fixture
def follower(connect: Connect) -> Follower:
    """A client that allows more aliases than the broker sets."""
    return Follower(connect(5, properties={"topic_alias_maximum": 100}))


@pytest.mark.mqtt("5:3.3.2-11")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("payload", [b"x", b"x" * 5000], ids=["small", "large"])
def test_a_topic_that_comes_again(connect: Connect, follower: Follower, name: str, qos: int, payload: bytes) -> None:
    """The first message of a topic has topic and alias, the next ones the alias only; nothing else changes."""
    topic = f"{name}/hot"
    properties = {"content_type": "t", "user_property": [("a", "1"), ("a", "2")], "message_expiry_interval": 100}
    follower.client.subscribe((topic, qos), properties={"subscription_identifier": 300})
    publisher = connect(5)
    for number in range(6):
        publisher.publish(topic, payload, qos=qos, properties=properties)
        got = follower.receive(payload)
        assert (got.topic, got.qos) == (topic, qos)
        assert got.properties == {**properties, "subscription_identifier": [300]}
        assert follower.by_alias == number


@pytest.mark.mqtt("5:3.1.2-26")
@pytest.mark.parametrize("allowed", [1, 2, 100])
def test_the_hottest_topics_have_them(connect: Connect, name: str, allowed: int) -> None:
    """With more topics than aliases the frequent topics keep theirs, and no alias exceeds the maximum."""
    follower = Follower(connect(5, properties={"topic_alias_maximum": allowed}))
    follower.client.subscribe(f"{name}/#")
    publisher = connect(5)
    hot = [f"{name}/hot/{number}" for number in range(min(allowed, ALIASES_MAX))]
    for turn in range(40):
        for topic in [*hot, *hot, f"{name}/cold/{turn % 15}"]:
            publisher.publish(topic, b"x")
            assert follower.receive(b"x").topic == topic
    assert follower.most <= min(allowed, ALIASES_MAX)
    before = follower.by_alias
    for topic in hot:
        publisher.publish(topic, b"x")
        follower.receive(b"x")
    assert follower.by_alias - before == len(hot)


@pytest.mark.mqtt("5:3.3.2-11")
def test_aliases_pass_to_what_is_hot_now(connect: Connect, name: str) -> None:
    """A topic without new messages loses its alias to one that has them; the packet that changes it has the topic."""
    follower = Follower(connect(5, properties={"topic_alias_maximum": 1}))
    follower.client.subscribe(f"{name}/#")
    publisher = connect(5)
    for topic in (f"{name}/first", f"{name}/second", f"{name}/first"):
        for _ in range(40):
            publisher.publish(topic, b"x")
            assert follower.receive(b"x").topic == topic
        assert follower.known == {1: topic}


@pytest.mark.mqtt("5:3.1.2-27")
@pytest.mark.parametrize("properties", [{}, {"topic_alias_maximum": 0}])
def test_none_for_who_allows_none(connect: Connect, name: str, properties: dict[str, int]) -> None:
    """A client with no Topic Alias Maximum, or with 0, gets the topic in every message."""
    subscriber, publisher = connect(5, properties=properties), connect(5)
    subscriber.subscribe(f"{name}/hot")
    for _ in range(5):
        publisher.publish(f"{name}/hot", b"x")
        subscriber.receive(f"{name}/hot", b"x", properties={})


@pytest.mark.mqtt("5:3.3.2-7")
def test_they_end_with_the_connection(connect: Connect, name: str) -> None:
    """Messages sent again on a new connection have their topic, and aliases are set again."""
    keep = {"session_expiry_interval": 60, "topic_alias_maximum": 10}
    topic = f"{name}/hot"
    subscriber = connect(5, name, properties=keep)
    subscriber.subscribe(topic, qos=1)
    publisher = connect(5)
    for number in range(5):
        publisher.publish(topic, b"%d" % number, qos=1)
    first = [subscriber.expect("PUBLISH", payload=b"%d" % number) for number in range(5)]
    assert [got.topic for got in first] == [topic, "", "", "", ""]
    subscriber.close()
    publisher.publish(topic, b"5", qos=1)
    again = Follower(connect(5, name, clean=False, properties=keep))
    for number in range(6):
        got = again.receive(b"%d" % number)
        assert got.topic == topic
        assert got.dup or number == 5  # which may have been sent before the broker noticed the end
    assert again.by_alias == 5


@pytest.mark.mqtt("5:3.1.2-24")
def test_an_alias_that_does_not_fit_is_left_out(connect: Connect, name: str) -> None:
    """A packet with room for its topic but not for an alias is sent without one; no message is lost."""
    topic = f"{name}/{'x' * 40}"
    plain = len(wire.publish(5, topic, b""))
    follower = Follower(connect(5, properties={"topic_alias_maximum": 5, "maximum_packet_size": plain + 20}))
    follower.client.subscribe(topic)
    publisher = connect(5)
    for size in (20, 20, 19, 18, 17, 17, 20, 16):
        publisher.publish(topic, b"y" * size)
        assert follower.receive(b"y" * size).topic == topic
    publisher.publish(topic, b"y" * 21)
    follower.client.expect_silence()


@pytest.mark.mqtt("5:3.3.2-11")
def test_what_is_dropped_sets_no_alias(connect: Connect, name: str) -> None:
    """Messages dropped because they are too large for the client set no alias."""
    topic = f"{name}/hot"
    follower = Follower(connect(5, properties={"topic_alias_maximum": 5, "maximum_packet_size": 100}))
    follower.client.subscribe(topic)
    publisher = connect(5)
    for size in (200, 200, 200, 1, 200, 2, 200, 3, 4):
        publisher.publish(topic, b"y" * size)
        if size < 100:
            assert follower.receive(b"y" * size).topic == topic
    assert follower.by_alias == 3


@pytest.mark.mqtt("5:3.3.2-11")
def test_short_topics_have_none(connect: Connect) -> None:
    """A topic not much longer than the three bytes of an alias gets none: it would save nothing."""
    follower = Follower(connect(5, properties={"topic_alias_maximum": 5}))
    follower.client.subscribe("a/b")
    publisher = connect(5)
    for _ in range(5):
        publisher.publish("a/b", b"x")
        follower.receive(b"x")
    assert follower.most == 0


@pytest.mark.mqtt("5:3.3.2-11")
def test_subscribers_of_all_kinds_side_by_side(connect: Connect, name: str) -> None:
    """One message to subscribers with and without aliases, with identifiers, and of v3: each gets the right form."""
    topic = f"{name}/hot"
    plain, older = connect(5), connect(4)
    followers = [Follower(connect(5, properties={"topic_alias_maximum": count})) for count in (1, 3)]
    for number, client in enumerate([plain, older, *[each.client for each in followers]], 1):
        client.subscribe((topic, 1), properties={"subscription_identifier": number} if client.version == 5 else {})
    publisher = connect(5)
    for _ in range(4):
        publisher.publish(topic, b"x", qos=1, properties={"content_type": "t"})
        plain.receive(topic, b"x", properties={"content_type": "t", "subscription_identifier": [1]})
        older.receive(topic, b"x")
        for number, each in enumerate(followers, 3):
            got = each.receive(b"x")
            assert (got.topic, got.properties) == (topic, {"content_type": "t", "subscription_identifier": [number]})
    assert [each.by_alias for each in followers] == [3, 3]

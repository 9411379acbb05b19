"""Pages of several archives become deliveries in one order: `pyx.delivery.replay.Merge` against a plain model."""

from __future__ import annotations

import random
from typing import Any

import pytest

from broker.replay.offsets import tag_of
from pyx.delivery.replay import Merge
from pyx.protocol.message import Message
from tests import wire
from tests.sansio import Host, Peer

TAG = tag_of("an archive")


def position_of(packet: Any) -> int:
    properties = dict(packet.properties["user_property"])
    return int(properties["mqttd-offset"][len(TAG) :], 16)


class Reading:
    """A merge that delivers to a client."""

    def __init__(self, sources: int, after: int = 0, floors: dict[int, int] | None = None, options: int = 0) -> None:
        self.host = Host(limits={"outbox_bytes_max": 1 << 30})
        self.peer: Peer = self.host.connect("reader", 5)
        self.merge = Merge(self.peer.session, options, 0, 1, [(TAG, after, [after] * sources)], [floors or {}])

    def feed(self, messages: int = 1 << 30) -> list[Any]:
        """Feed the merge; return the packets that arrive."""
        self.merge.feed(self.host.node.router.backlog, messages, 1 << 30)
        return self.peer.receive()


def message(number: int, topic: bytes = b"t", **options: Any) -> Message:
    return Message.create(topic, b"%d" % number, number=number, **options)


def is_live(reading: Reading) -> bool:
    return reading.merge.live


def numbers(packets: list[Any]) -> list[int]:
    return [int(packet.payload) for packet in packets]


def test_what_lies_behind_the_horizon_waits() -> None:
    reading = Reading(2)
    reading.merge.add(0, [message(0x100), message(0x300)], 0x300, False)
    assert numbers(reading.feed()) == []
    reading.merge.add(1, [message(0x201)], 0x250, False)
    assert numbers(reading.feed()) == [0x100, 0x201]
    assert reading.merge.position == 0x250


def test_live_pages_are_delivered_as_they_come() -> None:
    """The position stays below messages that a silent worker may still send."""
    reading = Reading(2)
    reading.merge.add(0, [], 0x100, True)
    assert is_live(reading) is False
    reading.merge.add(1, [], 0x101, True)
    assert is_live(reading) is True
    reading.merge.add(0, [message(0x500)], 0x500, True)
    (packet,) = reading.feed()
    assert position_of(packet) == 0x101
    assert reading.merge.position == 0x101
    reading.merge.add(1, [], 0x601, True)
    assert reading.merge.position == 0x500


def test_what_has_come_is_forgotten_at_rest() -> None:
    reading = Reading(1)
    reading.merge.add(0, [message(0x100), message(0x200)], 0x250, True)
    assert numbers(reading.feed(1)) == [0x100]
    reading.merge.rest()
    assert reading.merge.up_to(0) == 0x1FF
    assert reading.feed() == []


def test_the_client_is_told_of_a_gap_once() -> None:
    reading = Reading(1)
    reading.merge.lost = TAG + b"0" * 16
    reading.merge.add(0, [message(0x100), message(0x200)], 0x250, True)
    first, second = reading.feed()
    assert ("mqttd-offset-lost", (TAG + b"0" * 16).decode()) in first.properties["user_property"]
    assert [name for name, _ in second.properties["user_property"]] == ["mqttd-offset"]


def test_options_of_the_subscription() -> None:
    """QoS is the lower of both; RETAIN is as published if requested; No Local excludes the client's own messages."""
    reading = Reading(1, options=1 | 4 | 8)
    own = message(0x100, publisher="reader")
    other = message(0x200, publisher="another", qos=2, retain=True)
    expired = message(0x300, expires=1)
    reading.merge.add(0, [own, other, expired], 0x400, True)
    (packet,) = reading.feed()
    assert (packet.payload, packet.qos, packet.retain) == (b"512", 1, True)
    assert reading.merge.position == 0x400


@pytest.mark.parametrize("seed", range(60))
def test_against_a_model(seed: int) -> None:
    """Random messages of random workers, in random pages, with silence and pauses in between: each arrives once (except
    repeats after a pause), each worker's in order, and no position exceeds what was delivered.
    """
    chance = random.Random(seed)
    sources = chance.randrange(1, 5)
    archives: list[list[int]] = [[] for _ in range(sources)]
    reading = Reading(sources)
    merge = reading.merge
    clock, asked = 1, [0] * sources
    delivered: list[int] = []
    for step in range(300):
        source = chance.randrange(sources)
        fate = chance.random()
        if fate < 0.4 and step < 250:
            clock += chance.randrange(1, 3)
            archives[source].append(clock << 8 | source)
        elif fate < 0.8:
            after = merge.up_to(source)
            found = [each for each in archives[source] if each > after]
            page = found[: chance.randrange(1, 6)]
            is_end = len(page) == len(found)
            up_to = page[-1] if page else after
            if is_end and chance.random() < 0.5:
                clock += 1
                up_to = max(up_to, clock << 8 | source)
            merge.add(source, [message(each) for each in page], up_to, is_end)
            asked[source] += 1
        elif fate < 0.83:
            merge.rest()
        packets = reading.feed(chance.randrange(1, 10)) if chance.random() < 0.5 else []
        for packet in packets:
            delivered.append(int(packet.payload))
            upto = position_of(packet)
            assert all(each in delivered for archive in archives for each in archive if each <= upto)
        position = merge.position
        assert all(each in delivered for archive in archives for each in archive if each <= position)
    for source in range(sources):
        found = [each for each in archives[source] if each > merge.up_to(source)]
        merge.add(source, [message(each) for each in found], clock + 1 << 8, True)
    delivered += numbers(reading.feed())
    assert sorted(delivered) == sorted(each for archive in archives for each in archive)
    for source in range(sources):
        assert [each for each in delivered if each & 0xFF == source] == archives[source]
    assert merge.position == clock + 1 << 8
    reading.host.check_books()


def test_state_is_taken_up_elsewhere_without_a_repeat() -> None:
    """Messages above the position that were delivered are not repeated, although every source is queried again."""
    reading = Reading(2)
    for source in range(2):
        reading.merge.add(source, [], 0x100 + source, True)
    reading.merge.add(0, [message(0x500), message(0x600)], 0x600, True)
    assert numbers(reading.feed()) == [0x500, 0x600]
    ((position, floors),) = reading.merge.state()
    assert (position, floors) == (0x101, {0: 0x600})
    again = Reading(3, position, floors)  # another number of workers
    again.merge.add(2, [message(0x500), message(0x600), message(0x700)], 0x700, True)
    again.merge.add(0, [message(0x301), message(0x650 & ~0xFF | 1)], 0x700, True)
    again.merge.add(1, [], 0x700, True)
    assert numbers(again.feed()) == [0x301, 0x601, 0x700]


def test_damaged_arguments() -> None:
    reading = Reading(1)
    with pytest.raises(ValueError, match="no source"):
        reading.merge.add(1, [], 5, True)
    with pytest.raises(ValueError, match="no worker"):
        Reading(1, floors={256: 1})


def test_wire_has_what_these_tests_read() -> None:
    """The position is the last user property; a subscription identifier precedes it."""
    host = Host()
    peer = host.connect("reader", 5)
    merge = Merge(peer.session, 0, 300, 1, [(TAG, 0, [0])], [{}])
    merge.add(0, [message(0x100)], 0x100, True)
    merge.feed(host.node.router.backlog, 10, 1 << 20)
    (packet,) = peer.receive()
    assert packet.properties["subscription_identifier"] == [300]
    assert packet.kind == "PUBLISH"
    assert wire.KINDS


# ------------------------------------------------------------ several hosts


class Hosts(Reading):
    """A merge of the archives of several hosts."""

    def __init__(self, *sources: int, after: int = 0) -> None:
        super().__init__(1)
        begins = [b"h1+A", *[b"+B"] * len(sources)]
        hosts = [(begin, after, [after] * count) for begin, count in zip(begins, sources, strict=False)]
        self.merge = Merge(self.peer.session, 1, 0, 1, hosts, [{} for _ in sources])

    def text(self) -> str:
        return self.merge.text().decode()


def text_of(*numbers: int) -> str:
    return "h1" + "".join(f"+{name}{number:016x}" for name, number in zip("AB", numbers, strict=False))


def test_hosts_may_give_the_same_numbers() -> None:
    """Each message counts for its host: what has the number of another host's message is no repeat."""
    reading = Hosts(1, 1)
    for source in range(2):
        reading.merge.add(source, [message(0x100), message(0x200)], 0x300, True)
    assert numbers(reading.feed()) == [0x100, 0x100, 0x200, 0x200]
    assert reading.text() == text_of(0x300, 0x300)


def test_a_position_has_a_number_for_each_host() -> None:
    reading = Hosts(2, 1)
    for source, up_to in enumerate((0x120, 0x121, 0x150)):
        reading.merge.add(source, [], up_to, True)
    reading.merge.add(1, [message(0x500)], 0x500, True)
    reading.merge.add(2, [message(0x400)], 0x400, True)
    texts = [dict(packet.properties["user_property"])["mqttd-offset"] for packet in reading.feed()]
    assert texts == [text_of(0x120, 0x400), text_of(0x120, 0x400)]
    reading.merge.add(0, [], 0x600, True)
    assert reading.text() == text_of(0x500, 0x400)
    assert reading.merge.position == 0x400


def test_a_host_that_is_away_is_not_waited_for() -> None:
    """Its number stays, and what it has comes when it is back; then it is waited for again until the end is reached."""
    reading = Hosts(1, 1)
    reading.merge.add(0, [message(0x300)], 0x300, True)
    assert numbers(reading.feed()) == []
    reading.merge.set_away(1, True)
    assert numbers(reading.feed()) == [0x300]
    assert reading.text() == text_of(0x300, 0)
    assert reading.merge.position == 0x300
    reading.merge.set_away(1, False)
    assert reading.merge.position == 0
    reading.merge.add(1, [message(0x200)], 0x250, True)
    assert numbers(reading.feed()) == [0x200]
    assert reading.text() == text_of(0x300, 0x250)


def test_a_host_without_sources_keeps_its_position() -> None:
    reading = Hosts(1, 0, after=0x80)
    reading.merge.add(0, [message(0x100)], 0x100, True)
    assert numbers(reading.feed()) == [0x100]
    assert reading.text() == text_of(0x100, 0x80)
    assert reading.merge.state() == [(0x100, {}), (0x80, {})]


@pytest.mark.parametrize(
    ("messages", "up_to", "is_taken"),
    [
        ([], 0x100, True),
        ([0x101], 0x101, True),
        ([0x101, 0x102], 0x200, True),
        ([0x100], 0x200, False),
        ([0x102, 0x101], 0x200, False),
        ([0x101, 0x101], 0x200, False),
        ([0x101], 0x100, False),
    ],
)
def test_pages_that_may_follow(messages: list[int], up_to: int, is_taken: bool) -> None:
    reading = Hosts(1, 1, after=0x100)
    found = [message(each, b"a/b") for each in messages]
    assert reading.merge.takes(1, found, up_to, b"a/#", 0) is is_taken
    assert reading.merge.takes(1, found, up_to, b"b/#", 0) is (is_taken and not messages)


def test_expiries_are_moved_to_this_hosts_clock() -> None:
    reading = Hosts(1, 1)
    found = [message(0x101, b"a", expires=5000), message(0x102, b"a"), message(0x103, b"a", expires=10)]
    assert reading.merge.takes(1, found, 0x200, b"#", 1000)
    assert [each.expires for each in found] == [4000, 0, 1]


def test_no_such_host() -> None:
    reading = Hosts(1, 1)
    with pytest.raises(ValueError, match="no host"):
        reading.merge.set_away(2, True)
    with pytest.raises(ValueError, match="no source"):
        reading.merge.takes(2, [], 5, b"#", 0)
    with pytest.raises(ValueError, match="no host"):
        Merge(reading.peer.session, 0, 0, 1, [], [])

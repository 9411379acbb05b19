"""Configured strategies of share groups, and messages whose member leaves, as clients see them.

The broker of these tests has a rule for each strategy: the group `hash_topic-x` uses hash_topic, and so on.

"""

from __future__ import annotations

import itertools
import select
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import wire
from tests.broker_process import KIND, BrokerProcess
from tests.wire import Client

STRATEGIES = ("round_robin", "least_inflight", "hash_topic", "hash_client", "sticky")
Join = Callable[..., Client]

pytestmark = pytest.mark.skipif(KIND != "mqttd", reason="configured by mqttd's own file")


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[int, str], BrokerProcess]]:
    """Brokers with these rules, by number of workers and store."""
    file = tmp_path_factory.mktemp("shared") / "mqttd.toml"
    file.write_text("".join(f'[[shared]]\ngroup = "{name}-*"\nstrategy = "{name}"\n' for name in STRATEGIES))

    class Starting(dict[tuple[int, str], BrokerProcess]):
        def __missing__(self, key: tuple[int, str]) -> BrokerProcess:
            workers, store = key
            self[key] = BrokerProcess(workers, ["--config", str(Path(file))], store=store).start()
            return self[key]

    running = Starting()
    yield running
    for broker in running.values():
        status = broker.stop()
        said = broker.stderr()
        broker.forget()
        assert status == 0
        assert "Traceback" not in said, said[-20000:]


@pytest.fixture
def join(ruled: dict[tuple[int, str], BrokerProcess], workers: int, store: str, name: str) -> Iterator[Join]:
    """``join(client_id=..., **options)``: a v5 client with its CONNACK; ``share=(group, qos)`` subscribes it."""
    opened: list[Client] = []
    numbers = itertools.count(1)

    def open_one(client_id: str = "", share: tuple[str, int] | None = None, **options: Any) -> Client:
        client = Client(ruled[workers, store].address, 5)
        opened.append(client)
        client.connect(client_id or f"{name}x{next(numbers)}", **options)
        if share is not None:
            assert client.subscribe(f"$share/{share[0]}-{name}/{name}/#", qos=share[1]) == (share[1],)
        return client

    yield open_one
    for client in opened:
        client.close()


def collect(members: list[Client], count: int) -> dict[str, dict[bytes, Client]]:
    """Read and acknowledge ``count`` messages, the only ones; return topic -> payload -> receiving client."""
    got: dict[str, dict[bytes, Client]] = defaultdict(dict)
    by_socket = {member.socket: member for member in members}
    taken = 0
    while taken < count:
        ready, _, _ = select.select(list(by_socket), [], [], wire.DEADLINE_SECONDS)
        assert ready, f"only {taken} of {count} messages came"
        for each in ready:
            member = by_socket[each]
            while True:
                packet = member.read()
                assert packet.kind == "PUBLISH", packet
                assert packet.payload not in got[packet.topic], f"twice: {packet}"
                got[packet.topic][packet.payload] = member
                taken += 1
                if packet.qos == 1:
                    member.ack("PUBACK", packet.packet_id)
                if not member.kept and not member.received:
                    break
    for member in members:
        member.expect_silence()
    return got


@pytest.mark.mqtt("5:4.8.2-1")
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_message_goes_to_one_member(join: Join, name: str, strategy: str, qos: int) -> None:
    """With four members and three publishers on any workers, every message arrives once."""
    members = [join(share=(strategy, qos)) for _ in range(4)]
    publishers = [join() for _ in range(3)]
    for number in range(60):
        publishers[number % 3].publish(f"{name}/{number % 5}", b"%d" % number, qos=qos)
    got = collect(members, 60)
    assert sum(len(part) for part in got.values()) == 60


@pytest.mark.mqtt("5:4.8.2-1")
@pytest.mark.parametrize("strategy", ["round_robin", "least_inflight"])
def test_everybody_gets_a_part(join: Join, name: str, strategy: str) -> None:
    """Each of four members gets about a fourth of 200 messages of one publisher."""
    members = [join(share=(strategy, 0)) for _ in range(4)]
    publisher = join()
    for number in range(200):
        publisher.publish(f"{name}/x", b"%d" % number)
    parts = Counter(id(member) for part in collect(members, 200).values() for member in part.values())
    assert all(30 <= parts[id(member)] <= 70 for member in members), parts


@pytest.mark.mqtt("5:4.8.2-1")
def test_a_topic_stays_with_its_member(join: Join, name: str) -> None:
    """hash_topic: each of forty topics goes to one member, for all publishers; if a member leaves, only its topics
    move.
    """
    members = [join(share=("hash_topic", 1)) for _ in range(4)]
    publishers = [join() for _ in range(3)]

    def owners(among: list[Client]) -> dict[str, Client]:
        for topic in range(40):
            for number, publisher in enumerate(publishers):
                publisher.publish(f"{name}/{topic}", b"%d" % number, qos=1)
        found = {topic: set(part.values()) for topic, part in collect(among, 120).items()}
        assert all(len(who) == 1 for who in found.values())
        return {topic: who.pop() for topic, who in found.items()}

    before = owners(members)
    assert len(set(before.values())) == 4
    leaving = members.pop(1)
    leaving.unsubscribe(f"$share/hash_topic-{name}/{name}/#")
    after = owners(members)
    assert {topic for topic in before if before[topic] is not after[topic]} == {
        topic for topic in before if before[topic] is leaving
    }


@pytest.mark.mqtt("5:4.8.2-1")
def test_a_publisher_stays_with_its_member(join: Join, name: str) -> None:
    """hash_client: all messages of a client, on any topic, go to one member."""
    members = [join(share=("hash_client", 1)) for _ in range(4)]
    for number in range(12):
        publisher = join()
        for topic in range(3):
            publisher.publish(f"{name}/{topic}", b"%d" % number, qos=1)
    got: dict[bytes, set[Client]] = defaultdict(set)
    for part in collect(members, 36).values():
        for payload, member in part.items():
            got[payload].add(member)
    assert all(len(who) == 1 for who in got.values())
    assert len(set.union(*got.values())) > 1


@pytest.mark.mqtt("5:4.8.2-1")
def test_all_goes_to_one_member_until_it_leaves(join: Join, name: str) -> None:
    """sticky: one member gets all messages of all publishers; when it leaves, one of the others does. (Members that
    join several workers within the same milliseconds have no order that a client could know.)
    """
    members = [join(share=("sticky", 1)) for _ in range(3)]
    publishers = [join() for _ in range(3)]
    while members:
        for number in range(12):
            publishers[number % 3].publish(f"{name}/{number}", b"%d" % number, qos=1)
        got = collect(members, 12)
        (leaving,) = {member for part in got.values() for member in part.values()}
        members.remove(leaving)
        leaving.unsubscribe(f"$share/sticky-{name}/{name}/#")


@pytest.mark.mqtt("5:4.8.2-1")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_that_are_offline_are_passed_over(join: Join, name: str, strategy: str) -> None:
    """Two members with lasting sessions disconnect: all of twenty messages reach the third, none waits for them."""
    keep = {"properties": {"session_expiry_interval": 60}}
    gone = [join(f"{name}gone{number}", share=(strategy, 1), **keep) for number in range(2)]
    stays = join(share=(strategy, 1))
    publisher = join()
    for member in gone:
        member.disconnect()
    for number in range(20):
        publisher.publish(f"{name}/{number}", b"%d" % number, qos=1)
    collect([stays], 20)
    for number in range(2):
        join(f"{name}gone{number}", clean=False, **keep).expect_silence()


@pytest.mark.mqtt("5:4.8.2-1")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_waits_for_a_member_that_unsubscribes_goes_to_another(join: Join, name: str, strategy: str) -> None:
    """One member with Receive Maximum 2 does not acknowledge; another joins and the first leaves: the messages not yet
    sent reach the other, in order.
    """
    slow = join(share=(strategy, 1), properties={"receive_maximum": 2})
    publisher = join()
    for number in range(10):
        publisher.publish(f"{name}/x", b"%d" % number, qos=1)
    sent = [slow.expect("PUBLISH") for _ in range(2)]
    other = join(share=(strategy, 1))
    slow.unsubscribe(f"$share/{strategy}-{name}/{name}/#")
    for number in range(2, 10):
        other.receive(f"{name}/x", b"%d" % number)
    for packet in sent:
        slow.ack("PUBACK", packet.packet_id)
    slow.expect_silence()
    other.expect_silence()


@pytest.mark.mqtt("5:4.8.2-4")
@pytest.mark.mqtt("5:4.8.2-5")
def test_qos_2_in_flight_ends_with_its_session(join: Join, name: str) -> None:
    """When a session with a QoS 2 and a QoS 1 message in flight ends, another member gets only the QoS 1 message."""
    member = join(share=("round_robin", 2))
    publisher = join()
    publisher.publish(f"{name}/x", b"two", qos=2)
    publisher.publish(f"{name}/x", b"one", qos=1)
    member.expect("PUBLISH", payload=b"two")
    member.expect("PUBLISH", payload=b"one")
    other = join(share=("round_robin", 2))
    member.disconnect()
    other.receive(f"{name}/x", b"one")
    other.expect_silence()

"""Shared subscriptions: each message goes to one member of a group; no message is lost when members join and leave."""

from __future__ import annotations

import select
from collections import Counter

import pytest

from tests import wire
from tests.wire import Client, Connect

MALFORMED, PROTOCOL_ERROR = 0x81, 0x82


def collect(members: list[Client], count: int) -> Counter[bytes]:
    """Read and acknowledge ``count`` messages, on whichever clients they arrive; then no client may have another."""
    got: Counter[bytes] = Counter()
    by_socket = {member.socket: member for member in members}
    while got.total() < count:
        ready, _, _ = select.select(list(by_socket), [], [], wire.DEADLINE_SECONDS)
        assert ready, f"only {got.total()} of {count} messages came"
        for each in ready:
            member = by_socket[each]
            packet = member.read()
            while True:
                assert packet.kind == "PUBLISH", packet
                got[packet.payload] += 1
                if packet.qos == 1:
                    member.ack("PUBACK", packet.packet_id)
                elif packet.qos == 2:
                    member.ack("PUBREC", packet.packet_id)
                    member.await_packet("PUBREL", packet.packet_id)
                    member.ack("PUBCOMP", packet.packet_id)
                if not member.kept and not member.received:
                    break
                packet = member.read()
    for member in members:
        member.expect_silence()
    return got


def group(connect: Connect, version: int, name: str, members: int, qos: int = 1) -> list[Client]:
    """Clients that share a subscription to ``name`` under the group ``name``."""
    joined = [connect(version) for _ in range(members)]
    for member in joined:
        assert member.subscribe(f"$share/{name}/{name}", qos=qos) == (qos,)
    return joined


@pytest.mark.mqtt("5:4.8.2-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member(connect: Connect, version: int, name: str, qos: int) -> None:
    """Sixty messages for a group of three members are each delivered exactly once."""
    members = group(connect, version, name, 3, qos)
    publisher = connect(version)
    for number in range(60):
        publisher.publish(name, b"%d" % number, qos=qos)
    assert collect(members, 60) == Counter({b"%d" % number: 1 for number in range(60)})


@pytest.mark.mqtt("5:4.8.2-1")
def test_every_member_gets_some(connect: Connect, name: str) -> None:
    """Each of two members gets a share of two hundred messages."""
    members = group(connect, 5, name, 2, qos=0)
    publisher = connect(5)
    for number in range(200):
        publisher.publish(name, b"%d" % number)
    shares: list[int] = []
    for member in members:
        # all messages have reached the broker before its PINGRESP, and the member before the marker
        publisher.expect_silence()
        member.subscribe(f"{name}/marker/{len(shares)}")
        publisher.publish(f"{name}/marker/{len(shares)}", b"marker")
        seen = 0
        while member.read().payload != b"marker":
            seen += 1
        shares.append(seen)
    assert sum(shares) == 200
    assert min(shares) > 0


@pytest.mark.mqtt("5:4.8.2-1")
def test_groups_and_other_subscribers_do_not_share(connect: Connect, version: int, name: str) -> None:
    """Two groups and an ordinary subscriber each get every message."""
    first, second, plain, publisher = connect(version), connect(version), connect(version), connect(version)
    first.subscribe(f"$share/{name}a/{name}", qos=1)
    second.subscribe(f"$share/{name}b/{name}", qos=1)
    plain.subscribe(name, qos=1)
    for number in range(10):
        publisher.publish(name, b"%d" % number, qos=1)
    for client in (first, second, plain):
        for number in range(10):
            client.receive(name, b"%d" % number, qos=1)
        client.expect_silence()


@pytest.mark.mqtt("5:4.8.2-3")
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_the_granted_qos_is_respected(connect: Connect, version: int, name: str, granted: int) -> None:
    """A member gets messages at most at the QoS that it was granted."""
    (member,) = group(connect, version, name, 1, granted)
    connect(version).publish(name, b"x", qos=2)
    member.receive(name, b"x", qos=granted)


@pytest.mark.mqtt("5:4.8.2-2")
def test_shared_filters_may_have_wildcards(connect: Connect, version: int, name: str) -> None:
    """The filter after the ShareName is a Topic Filter like any other; messages keep the topic of their publication."""
    member, publisher = connect(version), connect(version)
    member.subscribe(f"$share/g/{name}/+/#", qos=1)
    publisher.publish(f"{name}/a", b"1", qos=1)
    publisher.publish(f"{name}/a/b/c", b"2", qos=1)
    member.receive(f"{name}/a", b"1")
    member.receive(f"{name}/a/b/c", b"2")


@pytest.mark.mqtt("5:4.8.2-1")
def test_one_group_name_for_many_filters(connect: Connect, version: int, name: str) -> None:
    """The same ShareName with another filter is another group."""
    first, second, publisher = connect(version), connect(version), connect(version)
    first.subscribe(f"$share/g/{name}/a")
    second.subscribe(f"$share/g/{name}/b")
    for letter in (b"a", b"b"):
        publisher.publish(f"{name}/{letter.decode()}", letter)
    first.receive(f"{name}/a", b"a")
    second.receive(f"{name}/b", b"b")


@pytest.mark.mqtt("5:3.10.4-2")
@pytest.mark.parametrize("leave", ["unsubscribe", "disconnect", "close"])
def test_who_leaves_gets_nothing(connect: Connect, version: int, name: str, leave: str) -> None:
    """After one of two members has left, the other gets every message."""
    leaving, staying = group(connect, version, name, 2)
    publisher = connect(version)
    if leave == "unsubscribe":
        leaving.unsubscribe(f"$share/{name}/{name}")
    elif leave == "disconnect":
        leaving.disconnect()
    else:
        leaving.send(wire.publish(version, "a/#"))  # an error, after which the broker closes: we see when it is done
        leaving.expect_closed(0x90, MALFORMED, PROTOCOL_ERROR)
    for number in range(20):
        publisher.publish(name, b"%d" % number, qos=1)
    for number in range(20):
        staying.receive(name, b"%d" % number)
    staying.expect_silence()


@pytest.mark.mqtt("5:4.8.2-1")
@pytest.mark.mosquitto_differs("sends them")
def test_no_retained_messages(connect: Connect, version: int, name: str) -> None:
    """A shared subscription is not sent retained messages."""
    publisher = connect(version)
    publisher.publish(name, b"kept", qos=1, retain=True)
    (member,) = group(connect, version, name, 1)
    wire.expect_nothing_more(member, publisher, f"{name}/marker", qos=1)


@pytest.mark.mqtt("5:3.3.4-3", "5:3.3.4-5")
def test_shared_and_plain_of_one_client(connect: Connect, name: str) -> None:
    """A client with a shared and an ordinary subscription that match gets the message for both."""
    client, publisher = connect(5), connect(5)
    client.subscribe(f"$share/g/{name}", qos=1, properties={"subscription_identifier": 1})
    client.subscribe(name, qos=1, properties={"subscription_identifier": 2})
    publisher.publish(name, b"x", qos=1)
    identifiers = list(client.receive(name, b"x").properties["subscription_identifier"])
    if len(identifiers) == 1:
        identifiers += client.receive(name, b"x").properties["subscription_identifier"]
    assert sorted(identifiers) == [1, 2]
    wire.expect_nothing_more(client, publisher, f"{name}/marker", qos=1)


BAD_SHARES = ["$share//N", "$share/g", "$share/g/", "$share/g+/N", "$share/#/N", "$share/"]


@pytest.mark.mqtt("5:4.8.2-1", "5:4.8.2-2")
@pytest.mark.parametrize("bad", BAD_SHARES)
@pytest.mark.mosquitto_differs("takes some of them")
def test_invalid_shared_filters(connect: Connect, name: str, bad: str) -> None:
    """A $share filter without a ShareName, with a wildcard in it or without a filter is malformed."""
    for packet in (wire.subscribe(5, 1, (bad.replace("N", name), 0)), wire.unsubscribe(5, 1, bad.replace("N", name))):
        client = connect(5)
        client.send(packet)
        client.expect_closed(0x81, 0x82)


@pytest.mark.mqtt("311:3.8.4-5", "311:3.9.3-2", "311:4.7.1-2", "311:4.7.1-3", "311:4.8.0-1")
@pytest.mark.parametrize("bad", BAD_SHARES)
@pytest.mark.mosquitto_differs("takes some of them")
def test_invalid_shared_filters_before_v5(connect: Connect, name: str, bad: str) -> None:
    """For 3.1.1 these are ordinary filters, which are not allowed here: 0x80. Filters with a wildcard that does not
    fill a level are malformed.
    """
    client = connect(4)
    if "+" in bad or "#" in bad:
        client.send(wire.subscribe(4, 1, (bad.replace("N", name), 0)))
        client.expect_closed()
    else:
        assert client.subscribe((bad.replace("N", name), 0)) == (0x80,)
        client.unsubscribe(bad.replace("N", name))
        client.expect_silence()


@pytest.mark.mqtt("5:4.8.2-6")
def test_a_refused_message_goes_to_nobody_else(connect: Connect, name: str) -> None:
    """A QoS 1 message that a member refuses with 0x80 is not sent to another member."""
    members = group(connect, 5, name, 2)
    publisher = connect(5)
    publisher.publish(name, b"refused", qos=1)
    ready, _, _ = select.select([member.socket for member in members], [], [], wire.DEADLINE_SECONDS)
    (refusing,) = (member for member in members if member.socket in ready)
    refusing.ack("PUBACK", refusing.expect("PUBLISH", payload=b"refused").packet_id, reason=0x80)
    for member in members:
        member.expect_silence()


@pytest.mark.mqtt("5:4.8.2-4")
def test_qos_2_stays_with_its_session(connect: Connect, name: str) -> None:
    """A QoS 2 message in flight to a member whose connection breaks is sent again to that member only."""
    keep = {"session_expiry_interval": 60}
    share = f"$share/{name}/{name}"
    member = connect(5, name, properties=keep)
    member.subscribe(share, qos=2)
    publisher = connect(5)
    publisher.publish(name, b"yours", qos=2)
    member.expect("PUBLISH", payload=b"yours", packet_id=1)
    other = connect(5)
    other.subscribe(share, qos=2)
    member.close()
    again = connect(5, name, clean=False, properties=keep)
    again.receive(name, b"yours", qos=2, dup=True, packet_id=1)
    other.expect_silence()


@pytest.mark.mqtt("5:4.5.0-1")
def test_a_group_waits_for_a_member(connect: Connect, version: int, name: str) -> None:
    """Messages of a group whose only member is an offline session are queued for it."""
    keep = {"clean": False, "properties": {"session_expiry_interval": 60} if version == 5 else {}}
    member = connect(version, name, **keep)
    member.subscribe(f"$share/{name}/{name}", qos=1)
    member.disconnect()
    publisher = connect(version)
    for number in range(5):
        publisher.publish(name, b"%d" % number, qos=1)
    again = connect(version, name, **keep)
    for number in range(5):
        again.receive(name, b"%d" % number)
    again.expect_silence()


@pytest.mark.mqtt("5:4.8.2-5")
@pytest.mark.parametrize("end", ["expiry 0", "clean start"])
def test_qos_2_ends_with_its_session(connect: Connect, name: str, end: str) -> None:
    """A QoS 2 message in flight when its member's session ends goes to no other member; later messages do."""
    keep = {"session_expiry_interval": 60}
    share = f"$share/{name}/{name}"
    member, publisher = connect(5, name, properties=keep), connect(5)
    member.subscribe(share, qos=2)
    publisher.publish(name, b"yours", qos=2)
    member.expect("PUBLISH", payload=b"yours")
    other = connect(5)
    other.subscribe(share, qos=2)
    if end == "expiry 0":
        member.disconnect(properties={"session_expiry_interval": 0})
    else:
        member.close()
        connect(5, name, clean=True).expect_silence()
    publisher.publish(name, b"later", qos=2)
    other.receive(name, b"later", qos=2)
    other.expect_silence()

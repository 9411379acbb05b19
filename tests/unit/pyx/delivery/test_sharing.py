"""Share groups without sockets: the member chosen by each strategy, and where its messages go when it is gone."""

from __future__ import annotations

from collections import defaultdict

import pytest

from broker.config.settings import Settings
from broker.config.share_groups import ShareGroupRule, rule_of
from pyx.core.peer import sibling
from pyx.delivery.router import STRATEGIES
from shards.placement import home
from tests import wire
from tests.sansio import Host, Peer

NAMES = list(STRATEGIES)
SPREAD = [(1, 6), (3, 6)]
"""(workers, members)"""


def host_with(strategy: str, workers: int = 1, when_full: str = "next", **limits: int) -> Host:
    rule = ShareGroupRule.model_validate({"group": "*", "strategy": strategy, "when_full": when_full})
    return Host(workers, limits={"inflight_max": 1000, **limits}, shared=[rule])


def client_at(worker: int, workers: int, name: str) -> str:
    """Return a client id whose home is that worker."""
    return next(f"{name}{i}" for i in range(1000) if home(f"{name}{i}", workers) == worker)


def join(host: Host, worker: int, name: str, qos: int = 1, durable: bool = False, filters: str = "$share/g/#") -> Peer:
    peer = host.connect(client_at(worker, len(host.nodes), name), clean=not durable)
    peer.subscribe((filters, qos))
    return peer


def group_of(host: Host, members: int, qos: int = 1, durable: bool = False) -> list[Peer]:
    """Return members, one worker after the other."""
    return [join(host, i % len(host.nodes), f"m{i}x", qos, durable) for i in range(members)]


def publishers(host: Host, count: int = 0) -> list[Peer]:
    """Return one publisher on each worker, or so many."""
    return [
        host.connect(client_at(i % len(host.nodes), len(host.nodes), f"p{i}x")) for i in range(count or len(host.nodes))
    ]


def send(peer: Peer, topic: str, body: bytes, qos: int = 1) -> None:
    """Publish and complete QoS 2; the answers are discarded."""
    peer.publish(topic, body, qos)
    peer.host.settle()
    while peer.packets:
        packet = peer.packets.popleft()
        if packet.kind == "PUBREC":
            peer.ack("PUBREL", packet.packet_id)


def bodies(peer: Peer) -> list[bytes]:
    """Return the payloads that it receives; they are acknowledged."""
    return [packet.payload for packet in peer.receive()]


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(start, start + count)]


def mapping(members: list[Peer], senders: list[Peer], topics: list[str]) -> dict[str, str]:
    """Return topic -> the member that got the messages of all senders; it must be the same one."""
    got: dict[str, set[str]] = defaultdict(set)
    for topic in topics:
        for sender in senders:
            send(sender, topic, topic.encode())
    for member in members:
        for packet in member.receive():
            got[packet.topic].add(member.client_id)
    assert all(len(names) == 1 for names in got.values()), got
    assert len(got) == len(topics)
    return {topic: names.pop() for topic, names in got.items()}


# ---------------------------------------------------------------------------------------------------- strategies


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(("shards", "members"), SPREAD)
@pytest.mark.parametrize("strategy", NAMES)
def test_each_message_goes_to_one_member(strategy: str, shards: int, members: int, qos: int) -> None:
    host = host_with(strategy, shards)
    group = group_of(host, members, qos)
    senders = publishers(host)
    for i, body in enumerate(numbered(60)):
        send(senders[i % shards], f"t/{i % 7}", body, qos)
    assert sorted(body for member in group for body in bodies(member)) == sorted(numbered(60))
    assert host.waiting() == 0
    host.check_books()


@pytest.mark.parametrize("strategy", ["round_robin", "least_inflight"])
@pytest.mark.parametrize("shards", [1, 2, 3])
def test_members_of_all_workers_get_equal_parts(strategy: str, shards: int) -> None:
    host = host_with(strategy, shards)
    group = group_of(host, 6)
    sender = publishers(host)[0]
    for body in numbered(120):
        send(sender, "t", body)
    assert [len(bodies(member)) for member in group] == [20] * 6


def test_round_robin_is_fair_when_local_and_foreign_publishers_take_turns() -> None:
    """Two local and two foreign members, a publisher on each side: turns do not depend on who published."""
    host = host_with("round_robin", 2)
    group = group_of(host, 4)
    senders = publishers(host)
    for i, body in enumerate(numbered(200)):
        send(senders[i % 2], "t", body)
    assert all(40 <= len(bodies(member)) <= 60 for member in group)


def test_least_inflight_spares_who_does_not_answer() -> None:
    host = host_with("least_inflight")
    slow, quick = group_of(host, 2)
    sender = publishers(host)[0]
    for body in numbered(40):
        send(sender, "t", body)
        bodies(quick)
    assert slow.session.unacknowledged <= 2
    host.check_books()


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize(("shards", "members"), SPREAD)
def test_hash_topic_sends_a_topic_to_one_member_from_everywhere(shards: int, members: int, qos: int) -> None:
    host = host_with("hash_topic", shards)
    group = group_of(host, members, qos)
    found = mapping(group, publishers(host), [f"t/{i}" for i in range(200)])
    parts = [list(found.values()).count(member.client_id) for member in group]
    assert sum(parts) == 200
    assert min(parts) > 12  # 33 expected
    assert max(parts) < 60


@pytest.mark.parametrize("how", ["unsubscribe", "lose", "offline"])
@pytest.mark.parametrize(("shards", "members"), SPREAD)
def test_hash_topic_moves_only_the_share_of_who_comes_or_goes(shards: int, members: int, how: str) -> None:
    """When a member leaves, its topics move to others, and all other topics stay; when it returns, they move back."""
    host = host_with("hash_topic", shards)
    group = group_of(host, members, durable=how == "offline")
    senders = publishers(host)
    topics = [f"t/{i}" for i in range(100)]
    before = mapping(group, senders, topics)
    leaving = group[2]
    if how == "unsubscribe":
        leaving.unsubscribe("$share/g/#")
    else:
        host.lose(leaving)
    staying = [member for member in group if member is not leaving]
    after = mapping(staying, senders, topics)
    moved = {topic for topic in topics if before[topic] != after[topic]}
    assert moved == {topic for topic in topics if before[topic] == leaving.client_id}
    assert len({after[topic] for topic in moved}) > 1
    back = leaving if how == "unsubscribe" else host.connect(leaving.client_id, clean=how != "offline")
    if how != "offline":
        back.subscribe(("$share/g/#", 1))
    group[2] = back
    assert mapping(group, senders, topics) == before


@pytest.mark.parametrize("shards", [1, 3])
def test_hash_client_sends_a_publisher_to_one_member(shards: int) -> None:
    host = host_with("hash_client", shards)
    group = group_of(host, 6)
    senders = publishers(host, 40)
    for sender in senders:
        for topic in ("a", "b", "c/d"):
            send(sender, topic, sender.client_id.encode())
    got = {member.client_id: set(bodies(member)) for member in group}
    assert sum(len(names) for names in got.values()) == 40
    assert all(got.values())
    host.check_books()


@pytest.mark.parametrize("shards", [1, 3])
def test_sticky_stays_until_the_member_goes(shards: int) -> None:
    """The member that joined first gets all messages; one that joins later, or returns, is last in order."""
    host = host_with("sticky", shards)
    group = group_of(host, 3, durable=True)
    senders = publishers(host)

    def winner() -> str:
        for sender in senders:
            send(sender, "t", b"x")
        got = {peer.client_id: len(bodies(peer)) for peer in host.peers if not peer.closed and peer not in senders}
        (name,) = (name for name, count in got.items() if count)
        assert got[name] == len(senders)
        return name

    assert winner() == group[0].client_id
    late = join(host, 0, "late")
    assert winner() == group[0].client_id
    host.lose(group[0])
    assert winner() == group[1].client_id
    host.connect(group[0].client_id, clean=False)
    assert winner() == group[1].client_id
    group[1].unsubscribe("$share/g/#")
    assert winner() == group[2].client_id
    host.lose(group[2])
    assert winner() == late.client_id
    late.unsubscribe("$share/g/#")
    assert winner() == group[0].client_id


# ---------------------------------------------------------------------------------------------------- members with room


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("strategy", NAMES)
def test_who_is_offline_is_passed_over(strategy: str, shards: int) -> None:
    host = host_with(strategy, shards)
    away, stays = group_of(host, 2, durable=True)
    host.lose(away)
    sender = publishers(host)[0]
    for i, body in enumerate(numbered(20)):
        send(sender, f"t/{i}", body)
    assert bodies(stays) == numbered(20)
    again = host.connect(away.client_id, clean=False)
    assert bodies(again) == []
    host.check_books()


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("strategy", NAMES)
def test_when_all_are_offline_it_waits_for_one(strategy: str, shards: int) -> None:
    host = host_with(strategy, shards)
    group = group_of(host, 4, durable=True)
    for member in group:
        host.lose(member)
    sender = publishers(host)[0]
    for i, body in enumerate(numbered(20)):
        send(sender, f"t/{i}", body)
        send(sender, f"t/{i}", body, qos=0)
    assert host.counters()["dropped_offline_qos0"] == 20
    got = [body for member in group for body in bodies(host.connect(member.client_id, clean=False))]
    assert sorted(got) == sorted(numbered(20))
    host.check_books()


@pytest.mark.parametrize("strategy", NAMES)
def test_whose_window_is_full_is_passed_over(strategy: str) -> None:
    """No member acknowledges: each gets a full window, then the rest waits, and all of it arrives."""
    host = host_with(strategy, inflight_max=5)
    group = group_of(host, 2)
    sender = publishers(host)[0]
    for body in numbered(10):
        send(sender, "t", body)
    assert [member.session.unacknowledged for member in group] == [5, 5]
    assert [member.session.queued for member in group] == [0, 0]
    for body in numbered(3, 10):
        send(sender, "t", body)
    assert host.counters()["shared_waited"] == 3
    got = bodies(group[0]) + bodies(group[1])
    assert sorted(got, key=int) == numbered(13)
    host.check_books()


@pytest.mark.parametrize("strategy", NAMES)
def test_a_worker_whose_members_are_full_is_passed_over_until_one_has_room(strategy: str) -> None:
    host = host_with(strategy, 2, inflight_max=4)
    here, there = group_of(host, 2)
    sender = publishers(host)[0]
    for body in numbered(30):
        send(sender, "t", body)
        bodies(here)
    assert there.session.unacknowledged <= 4
    assert there.session.queued <= 1  # the message by which its worker noticed
    bodies(there)
    bodies(here)
    host.pass_time(0.3)
    for i, body in enumerate(numbered(40, 100)):
        send(sender, f"t/{i}", body)
    assert bodies(there)
    host.check_books()


@pytest.mark.parametrize("strategy", ["hash_topic", "hash_client", "sticky"])
@pytest.mark.parametrize("shards", [1, 2])
def test_when_full_wait_keeps_the_order(strategy: str, shards: int) -> None:
    host = host_with(strategy, shards, "wait", inflight_max=3)
    group = group_of(host, 4)
    sender = publishers(host)[0]
    for body in numbered(30):
        send(sender, "t", body)
    got = [part for member in group if (part := bodies(member))]
    assert got == [numbered(30)]
    host.check_books()


def test_what_is_known_of_who_is_online_may_be_old() -> None:
    """All members of a sibling are offline, unknown to this worker: the sibling refuses, another one is chosen."""
    host = host_with("round_robin", 2)
    away, stays = join(host, 1, "away", durable=True), join(host, 0, "stays")
    sender = publishers(host)[0]
    host.held |= {(0, 1), (1, 0)}
    for body in numbered(6):
        sender.publish("t", body, 1)
        host.settle()
    host.lose(away)
    host.held.clear()
    host.settle()
    assert sorted(bodies(stays)) == numbered(6)
    assert [sender.next("PUBACK").packet_id for _ in range(6)] == list(range(1, 7))
    assert bodies(host.connect(away.client_id, clean=False)) == []
    host.check_books()


def test_a_member_with_very_many_filters_counts_as_offline_when_it_is() -> None:
    """Above 64 filters a session that is behind has a log index of its own; its groups know that it is offline."""
    host = host_with("round_robin", 2)
    away, stays = join(host, 1, "away", durable=True), join(host, 0, "stays")
    away.subscribe(*((f"f/{i}", 1) for i in range(70)))
    host.lose(away)
    sender = publishers(host)[0]
    for body in numbered(10):
        send(sender, "t", body)
    assert bodies(stays) == numbered(10)
    assert host.counters()["shared_reassigned"] == 0
    again = host.connect(away.client_id, clean=False)
    for body in numbered(10):
        send(sender, "t", body)
    assert len(bodies(again)) == 5


# ---------------------------------------------------------------------------------------------------- leaving members


@pytest.mark.parametrize("how", ["unsubscribe", "lose", "disconnect", "taken over"])
@pytest.mark.parametrize("other", [0, 1])
@pytest.mark.parametrize("strategy", NAMES)
def test_what_waits_for_a_leaving_member_goes_to_another_worker_if_need_be(strategy: str, other: int, how: str) -> None:
    """The order is kept. QoS 1 messages in flight move too when the session ends, otherwise they are completed."""
    host = host_with(strategy, 2, inflight_max=2)
    leaving = join(host, 0, "leaving")
    sender = publishers(host)[0]
    for body in numbered(6):
        send(sender, "t", body)
    assert (leaving.session.unacknowledged, leaving.session.queued) == (2, 4)
    staying = join(host, other, "staying")
    if how == "unsubscribe":
        leaving.send(wire.unsubscribe(4, 9, "$share/g/#"))
        assert bodies(leaving) == numbered(2)
    elif how == "lose":
        host.lose(leaving)
    elif how == "disconnect":
        leaving.disconnect()
    else:
        host.connect(leaving.client_id)
    assert bodies(staying) == (numbered(4, 2) if how == "unsubscribe" else numbered(6))
    assert host.waiting() == 0
    host.check_books()


@pytest.mark.parametrize("other", [0, 1])
def test_qos_2_in_flight_stays_with_its_session(other: int) -> None:
    """MQTT-4.8.2-5: a message sent at QoS 2 goes to no other member; an unsent one does."""
    host = host_with("round_robin", 2, inflight_max=2)
    leaving = join(host, 0, "leaving", qos=2)
    sender = publishers(host)[0]
    for body in numbered(5):
        send(sender, "t", body, qos=2)
    staying = join(host, other, "staying", qos=2)
    host.lose(leaving)
    assert bodies(staying) == numbered(3, 2)
    assert host.counters()["dropped_session_ended"] == 2
    host.check_books()


def test_a_copy_goes_back_to_the_group_that_it_belongs_to() -> None:
    """A member of two groups with one filter leaves one of them, then ends: each group's message reaches that group."""
    host = host_with("round_robin", inflight_max=1)
    both = host.connect("both")
    both.subscribe(("block", 1), ("$share/a/t", 1), ("$share/b/t", 1))
    sender = publishers(host)[0]
    send(sender, "block", b"fills the window")
    send(sender, "t", b"1")
    of_a, of_b = host.connect("a"), host.connect("b")
    of_a.subscribe(("$share/a/t", 1))
    of_b.subscribe(("$share/b/t", 1))
    both.send(wire.unsubscribe(4, 9, "$share/b/t"))
    host.settle()
    assert (bodies(of_a), bodies(of_b)) == ([], [b"1"])
    host.lose(both)
    assert (bodies(of_a), bodies(of_b)) == ([b"1"], [])
    host.check_books()


def test_what_expired_is_not_handed_on() -> None:
    host = host_with("round_robin", inflight_max=1)
    leaving, sender = join(host, 0, "leaving"), host.connect("sender", 5)
    for body in numbered(3):
        sender.publish("t", body, 1, properties={"message_expiry_interval": 1} if body == b"1" else {})
        host.settle()
    staying = join(host, 0, "staying")
    host.pass_time(2.0)
    host.lose(leaving)
    assert bodies(staying) == [b"0", b"2"]
    assert host.counters()["dropped_expired"] == 1
    host.check_books()


# ---------------------------------------------------------------------------------------------------- a worker dies


@pytest.mark.parametrize("strategy", NAMES)
@pytest.mark.parametrize("survivor", [0, 2])
def test_what_a_dead_worker_had_not_acknowledged_is_chosen_again(strategy: str, survivor: int) -> None:
    """QoS 1: it goes to a member here or on a third worker; the publisher's ack waits for that one."""
    host = host_with(strategy, 3)
    join(host, 1, "dead")
    sender = publishers(host)[0]
    host.held |= {(0, 1), (1, 0)}
    for body in numbered(5):
        sender.publish("t", body, 1)
        host.settle()
    assert not sender.packets
    staying = join_unheard(host, survivor)
    if survivor:
        host.held |= {(0, 2)}
    host.kill(1)
    if survivor:
        assert not [packet for packet in sender.packets if packet.kind == "PUBACK"]
        host.held -= {(0, 2)}
        host.settle()
    assert bodies(staying) == numbered(5)
    assert [sender.next("PUBACK").packet_id for _ in range(5)] == list(range(1, 6))
    assert host.counters()["dropped_peer_lost"] == 0
    assert host.counters()["shared_reassigned"] == 5


def join_unheard(host: Host, worker: int) -> Peer:
    """Add a member whose SUBACK may still wait for a sibling that does not answer."""
    peer = host.connect(client_at(worker, len(host.nodes), "stays"))
    peer.send(wire.subscribe(4, 1, ("$share/g/#", 2)))
    host.turn()  # its interest is sent, which `settle` does not count as progress
    host.settle()
    return peer


def test_qos_2_of_a_dead_worker_is_not_repeated() -> None:
    """The message may have been delivered: it is lost with that worker's memory, and counted."""
    host = host_with("round_robin", 2)
    join(host, 1, "dead", qos=2)
    sender = publishers(host)[0]
    host.held |= {(1, 0)}  # it is delivered there; the link's ack does not arrive
    sender.publish("t", b"x", 2)
    sender.publish("t", b"y", 1)
    host.settle()
    staying = join_unheard(host, 0)
    host.kill(1)
    assert bodies(staying) == [b"y"]
    assert host.counters()["dropped_peer_lost"] == 1
    assert {packet.kind for packet in sender.packets} == {"PUBREC", "PUBACK"}


def test_qos_2_that_never_left_is_chosen_again() -> None:
    """The worker was away (stopped), and died: messages for it in the hand-off log cannot have been delivered."""
    host = host_with("round_robin", 2)
    join(host, 1, "dead", qos=2)
    sender = publishers(host)[0]
    host.held |= {(1, 0), (0, 1)}
    host.pass_time(3.0)
    assert host.nodes[0].links[sibling(1)].away
    for body in numbered(3):
        send(sender, "t", body, qos=2)
    staying = join_unheard(host, 0)
    host.kill(1)
    assert bodies(staying) == numbered(3)
    assert host.counters()["dropped_peer_lost"] == 0


def test_members_of_a_stopped_worker_are_passed_over() -> None:
    host = host_with("round_robin", 2)
    join(host, 1, "stopped")
    stays = join(host, 0, "stays")
    sender = publishers(host)[0]
    host.held |= {(1, 0), (0, 1)}
    host.pass_time(3.0)
    for body in numbered(6):
        send(sender, "t", body)
    assert bodies(stays) == numbered(6)


def test_a_retained_message_for_a_group_and_a_subscriber_of_its_owner_is_kept() -> None:
    """One entry serves both, and carries the message to retain."""
    host = host_with("round_robin", 2)
    member = join(host, 1, "member", filters="$share/g/r/#")
    plain = host.connect(client_at(1, 2, "plain"))
    plain.subscribe(("r/#", 1))
    sender = publishers(host)[0]
    for i in range(8):
        sender.publish(f"r/{i}", b"x", 1, retain=True)
        host.settle()
    assert len(bodies(member)) == len(bodies(plain)) == 8
    late = host.connect(client_at(0, 2, "late"))
    late.subscribe(("r/#", 1))
    assert len(late.receive()) == 8


# ---------------------------------------------------------------------------------------------------- configuration


def test_the_first_rule_that_matches_counts() -> None:
    rules = [
        ShareGroupRule(group="billing-*", filter="in/*", strategy="hash_topic", when_full="wait"),
        ShareGroupRule(group="billing-*", strategy="sticky"),
        ShareGroupRule(group="x?", strategy="least_inflight"),
    ]
    assert rule_of(rules, b"billing-1", b"in/+/#") is rules[0]
    assert rule_of(rules, b"billing-1", b"out") is rules[1]
    assert rule_of(rules, b"x1", b"out") is rules[2]
    assert rule_of(rules, b"x", b"out") is None
    assert rule_of(rules, b"Billing-1", b"out") is None


@pytest.mark.parametrize("shards", [1, 3])
def test_a_reload_changes_the_strategy_of_groups_that_exist(shards: int) -> None:
    host = host_with("round_robin", shards)
    group = group_of(host, 3)
    senders = publishers(host)
    topics = [f"t/{i}" for i in range(30)]
    for strategy in ("hash_topic", "sticky", "round_robin", "hash_topic"):
        settings = Settings(
            workers=shards, limits=host.settings.limits, shared=[ShareGroupRule(group="g", strategy=strategy)]
        )
        for node in host.nodes:
            node.reload(settings)
        host.node.router.peers.tell(1, b"x", b"") if shards > 1 else None
        host.settle()
        if strategy == "round_robin":
            for topic in topics:
                send(senders[0], topic, b"")
            assert [len(bodies(member)) for member in group] == [10, 10, 10]
        else:
            found = set(mapping(group, senders, topics).values())
            assert len(found) == (3 if strategy == "hash_topic" else 1)
    host.check_books()

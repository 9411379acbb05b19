"""Members of share groups are sent from host to host until each has as many: real workers without sockets."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from broker.cluster.spread import moves_of
from broker.config.share_groups import ShareGroupRule
from broker.worker import spreading
from broker.worker.group_plans import GROUPS_MAX, PAUSE_SECONDS, STABLE_SECONDS, UNSTABLE_SECONDS_MAX
from broker.worker.sent_members import AGAIN_SECONDS
from pyx.core import work
from pyx.core.placement import group_number
from tests.spread_cluster import GROUP, SpreadCluster

BEGUN = STABLE_SECONDS + PAUSE_SECONDS + 2 * spreading.LOOK_SECONDS + 0.5
"""Time after which members leave."""
SETTLED = BEGUN + 10.0
OTHER_GROUP = "$share/h/t/#"
NOT_SPREAD: dict[str, Any] = {"group": "*", "strategy": "round_robin"}
SPREAD: dict[str, Any] = {**NOT_SPREAD, "spread": True}


def joined(cluster: SpreadCluster, *counts: int, **options: Any) -> None:
    """Let so many members connect to each host."""
    for side, count in zip(cluster.sides, counts, strict=True):
        for at in range(count):
            cluster.join(f"{side.node_id}-{at}", side, **options)


def sent_away(cluster: SpreadCluster) -> int:
    return sum(side.counter("members_sent_away") for side in cluster.sides)


@pytest.mark.parametrize(
    "counts", [(4000, 0, 0, 0, 0, 0), (1500, 11, 1200, 0, 1289, 0), (667, 667, 667, 667, 667, 665)]
)
def test_four_thousand_members_over_six_hosts(counts: tuple[int, ...]) -> None:
    """Two workers each. In the end hosts differ by one at most, and no client was moved that need not be."""
    cluster = SpreadCluster(6, 2)
    joined(cluster, *counts)
    cluster.ready(1, 2, 3, 4, 5, 6)
    cluster.pass_time(30)
    assert sum(cluster.online()) == 4000
    assert max(cluster.online()) - min(cluster.online()) <= 1
    least = moves_of(b"g/t/#", {f"n{at + 1}": count for at, count in enumerate(counts)})
    assert sent_away(cluster) == sum(move.members for move in least)
    assert max(client.moves for client in cluster.clients) <= 1
    cluster.pass_time(15)
    assert sent_away(cluster) == sum(move.members for move in least)
    cluster.assert_sound()


def test_hosts_join_and_leave() -> None:
    """The second and the third host become ready, then the first one is none of them any more, as if it drained."""
    cluster = SpreadCluster(3)
    joined(cluster, 31, 0, 0)
    cluster.ready(1)
    cluster.pass_time(SETTLED)
    assert sent_away(cluster) == 0
    cluster.ready(1, 2, 3)
    cluster.pass_time(SETTLED)
    assert sorted(cluster.online()) == [10, 10, 11]
    assert sent_away(cluster) == 20
    for client in cluster.clients:
        if client.side is cluster.sides[0]:
            client.side = cluster.sides[1]
            client.peer.disconnect()
    cluster.ready(2, 3)
    cluster.pass_time(SETTLED * 2)
    assert cluster.online()[0] == 0
    assert sorted(cluster.online()[1:]) == [15, 16]
    cluster.assert_sound()


def test_members_join_and_leave() -> None:
    """Whatever the cause is that hosts differ."""
    cluster = SpreadCluster(2)
    cluster.ready(1, 2)
    joined(cluster, 5, 4)
    cluster.pass_time(SETTLED)
    assert sent_away(cluster) == 0
    cluster.join("one more", cluster.sides[0])
    cluster.pass_time(SETTLED)
    assert cluster.online() == [5, 5]
    assert sent_away(cluster) == 1


def test_nothing_happens_before_counts_are_stable() -> None:
    cluster = SpreadCluster(2)
    joined(cluster, 10, 0)
    cluster.ready(1, 2)
    cluster.pass_time(STABLE_SECONDS + PAUSE_SECONDS - 0.2)
    assert sent_away(cluster) == 0
    cluster.pass_time(1.5 + 2 * spreading.LOOK_SECONDS)
    assert sent_away(cluster) == 5


def test_members_that_come_and_go_all_the_time_do_not_hold_it_up_for_ever() -> None:
    """After a minute members leave all the same."""
    cluster = SpreadCluster(2)
    joined(cluster, 20, 0)
    cluster.ready(1, 2)
    for at in range(int(UNSTABLE_SECONDS_MAX / 2)):
        cluster.pass_time(1.5)
        cluster.join(f"comes-{at}", cluster.sides[0])
        cluster.pass_time(0.5)
    assert sent_away(cluster) == 0
    cluster.pass_time(PAUSE_SECONDS + 2)
    assert sent_away(cluster) == 25


def test_groups_that_shall_not_be_spread() -> None:
    """Nothing is looked at either, and the worker is not woken for it."""
    cluster = SpreadCluster(2, rules=[NOT_SPREAD])
    joined(cluster, 10, 0)
    cluster.ready(1, 2)
    cluster.pass_time(SETTLED)
    assert cluster.online() == [10, 0]
    assert all(each._timer is None for side in cluster.sides for each in side.spreadings)
    groups = cluster.sides[0].spreadings[0]._groups
    groups.begin()
    assert groups.uneven(1 << cluster.sides[0].places[0][2]) == []


def test_a_reload_begins_and_ends_it() -> None:
    cluster = SpreadCluster(2, rules=[NOT_SPREAD])
    joined(cluster, 10, 0)
    cluster.ready(1, 2)
    cluster.pass_time(BEGUN)
    spread = [ShareGroupRule.model_validate(SPREAD)]
    for side in cluster.sides:
        node = side.host.node
        node.reload(node.settings.model_copy(update={"shared": spread}))
    cluster.pass_time(SETTLED)
    assert cluster.online() == [5, 5]
    for side in cluster.sides:
        node = side.host.node
        node.reload(node.settings.model_copy(update={"shared": [ShareGroupRule.model_validate(NOT_SPREAD)]}))
    for at in range(10):
        cluster.join(f"late-{at}", cluster.sides[0])
    cluster.pass_time(SETTLED)
    assert cluster.online() == [15, 5]


def test_hosts_that_do_not_say_where_clients_reach_them_do_not_count() -> None:
    cluster = SpreadCluster(3)
    joined(cluster, 10, 0, 0)
    cluster.ready(1, 2, 3, without_address=[3])
    cluster.pass_time(SETTLED)
    assert cluster.online() == [5, 5, 0]
    cluster.ready(1, 2, 3, without_address=[1])
    cluster.pass_time(SETTLED)
    assert cluster.online() == [5, 3, 2] or cluster.online() == [5, 2, 3]


def test_nothing_begins_while_a_host_that_counts_is_not_linked() -> None:
    cluster = SpreadCluster(2)
    joined(cluster, 10, 0)
    cluster.sides[0].is_linked = False
    cluster.ready(1, 2)
    cluster.pass_time(SETTLED)
    assert sent_away(cluster) == 0
    cluster.sides[0].is_linked = True
    cluster.pass_time(SETTLED)
    assert cluster.online() == [5, 5]


def test_the_pace() -> None:
    """Ten in a second, of both workers together."""
    cluster = SpreadCluster(2, 2, rate=10)
    joined(cluster, 100, 0)
    cluster.ready(1, 2)
    cluster.pass_time(BEGUN)
    before = sent_away(cluster)
    assert before <= 30
    cluster.pass_time(2)
    assert 0 < sent_away(cluster) - before <= 30
    cluster.pass_time(10)
    assert cluster.online() == [50, 50]


def test_who_comes_back_is_sent_away_once_more_and_then_stays() -> None:
    """None of the ten follows. Each is sent away twice at most, five minutes apart, within a day."""
    cluster = SpreadCluster(2)
    joined(cluster, 10, 0, follows=False)
    cluster.ready(1, 2)
    cluster.pass_time(BEGUN)
    assert sent_away(cluster) == 5
    cluster.pass_time(180)  # the other five are tried
    assert cluster.online() == [10, 0]
    assert sent_away(cluster) == 10
    assert {client.moves for client in cluster.clients} == {1}
    assert {each for client in cluster.clients for each in client.references} == {"n2"}
    cluster.pass_time(AGAIN_SECONDS + 120)
    assert sent_away(cluster) == 20
    cluster.pass_time(2 * AGAIN_SECONDS)
    assert sent_away(cluster) == 20
    assert {client.moves for client in cluster.clients} == {2}
    assert cluster.online() == [10, 0]
    assert cluster.sides[0].counter("members_came_back") == 20


def test_who_follows_goes_in_place_of_those_who_do_not() -> None:
    cluster = SpreadCluster(2)
    joined(cluster, 10, 0, follows=False)
    for at in range(10):
        cluster.join(f"follows-{at}", cluster.sides[0])
    cluster.ready(1, 2)
    cluster.pass_time(BEGUN + 300)
    assert cluster.online() == [10, 10]
    assert max(client.moves for client in cluster.clients) <= 1


def test_clients_before_mqtt_5_go_last() -> None:
    """They cannot be told where to go, and are closed without a word."""
    cluster = SpreadCluster(2)
    old = [cluster.join(f"old-{at}", cluster.sides[0], version=4, follows=False) for at in range(10)]
    for at in range(6):
        cluster.join(f"new-{at}", cluster.sides[0])
    cluster.ready(1, 2)
    cluster.pass_time(BEGUN + 1)
    assert sum(client.moves for client in old) == 2
    assert [client.references for client in old] == [[]] * 10
    assert cluster.online()[1] == 6
    cluster.assert_sound()


def test_a_member_is_sent_nothing_while_it_is_on_its_way() -> None:
    """One that has not acknowledged something yet gets nothing more of its groups, and goes when it has."""
    cluster = SpreadCluster(2)
    joined(cluster, 2, 0)
    first, second = cluster.clients
    side = cluster.sides[0]
    publisher = side.host.connect("publisher", 5)
    for at in range(2):
        publisher.publish("t/x", b"%d" % at, qos=1)
    side.host.settle()
    held = {client.client_id: client.peer.next("PUBLISH") for client in cluster.clients}
    cluster.ready(1, 2)
    cluster.pass_time(BEGUN)
    assert side.online() == 2  # connected
    for at in range(10):
        publisher.publish("t/x", b"later-%d" % at, qos=1)
    side.host.settle()
    leaves, stays = (first, second) if not first.peer.packets else (second, first)
    assert not leaves.peer.packets
    assert len(stays.peer.packets) == 10
    assert sent_away(cluster) == 0
    leaves.peer.ack("PUBACK", held[leaves.client_id].packet_id)
    cluster.pass_time(0.3)
    assert leaves.moves == 1
    assert [packet.kind for packet in stays.peer.packets] == ["PUBLISH"] * 10
    cluster.assert_sound()


@pytest.mark.parametrize("strategy", ["round_robin", "hash_topic", "sticky"])
def test_a_member_that_acknowledges_nothing_stays_if_its_session_would_end(strategy: str) -> None:
    """It is a member again: what it had in flight is neither lost nor sent to another one."""
    cluster = SpreadCluster(2, rules=[{**SPREAD, "strategy": strategy}])
    joined(cluster, 2, 0)
    side = cluster.sides[0]
    publisher = side.host.connect("publisher", 5)
    for at in range(40):
        publisher.publish(f"t/{at}", b"x", qos=1)
    side.host.settle()
    before = Counter({client.client_id: len(client.peer.packets) for client in cluster.clients})
    assert sum(before.values()) == 40
    cluster.ready(1, 2)
    cluster.pass_time(BEGUN + spreading.QUIET_SECONDS_MAX + 1)
    assert sent_away(cluster) == 0
    assert side.online() == 2
    for client in cluster.clients:
        assert len(client.peer.packets) == before[client.client_id]
    for client in cluster.clients:
        while client.peer.packets:
            client.peer.ack("PUBACK", client.peer.packets.popleft().packet_id)
    for at in range(40):
        publisher.publish(f"t/{at}", b"y", qos=1)
    side.host.settle()
    again = {client.client_id: len(client.peer.packets) for client in cluster.clients}
    assert again == dict(before)


def test_a_session_that_lasts_goes_with_what_it_has_not_acknowledged() -> None:
    cluster = SpreadCluster(2)
    joined(cluster, 2, 0, expiry=600)
    side = cluster.sides[0]
    publisher = side.host.connect("publisher", 5)
    for at in range(2):
        publisher.publish("t/x", b"%d" % at, qos=2)
    side.host.settle()
    cluster.ready(1, 2)
    cluster.pass_time(BEGUN + spreading.QUIET_SECONDS_MAX - 2.5)
    assert sent_away(cluster) == 0
    cluster.pass_time(2.5 + 2 * spreading.LOOK_SECONDS)
    assert sent_away(cluster) == 1
    left = next(session for session in side.host.node.sessions if session.connection is None)
    assert left.unacknowledged == 1
    cluster.assert_sound()


def test_a_member_that_leaves_by_itself_meanwhile() -> None:
    """Or connects again: it is a member then as any other."""
    cluster = SpreadCluster(2)
    joined(cluster, 2, 0)
    side = cluster.sides[0]
    publisher = side.host.connect("publisher", 5)
    for at in range(2):
        publisher.publish("t/x", b"%d" % at, qos=1)
    side.host.settle()
    cluster.ready(1, 2)
    cluster.pass_time(BEGUN)
    (withdrawn,) = side.spreadings[0]._leaving
    client = next(each for each in cluster.clients if each.client_id == withdrawn)
    client.follows, client.peer.packets = False, client.peer.packets.__class__()
    client.peer = side.host.connect(withdrawn, 5)  # takes over its former connection
    client.peer.subscribe((GROUP, 1))
    cluster.pass_time(0.5)
    assert not side.spreadings[0]._leaving
    assert sent_away(cluster) == 0
    assert side.host.node.router.peers is not None
    assert side.spreadings[0]._groups.online(group_number(b"g/t/#")) == 2


def test_the_target_leaves_while_members_are_on_their_way() -> None:
    """They stay, and are members again."""
    cluster = SpreadCluster(2)
    joined(cluster, 4, 0)
    side = cluster.sides[0]
    publisher = side.host.connect("publisher", 5)
    for at in range(4):
        publisher.publish("t/x", b"%d" % at, qos=1)
    side.host.settle()
    cluster.ready(1, 2)
    cluster.pass_time(BEGUN)
    number = group_number(b"g/t/#")
    assert side.spreadings[0]._groups.online(number) == 2
    cluster.ready(1)
    cluster.pass_time(0.5)
    assert side.spreadings[0]._groups.online(number) == 4
    assert sent_away(cluster) == 0
    cluster.pass_time(60)
    assert sent_away(cluster) == 0
    assert side.spreadings[0]._timer is None


def test_members_of_two_groups_go_where_both_send_members() -> None:
    """All are members of both: both are spread, and none is moved twice."""
    cluster = SpreadCluster(3, 2)
    joined(cluster, 60, 0, 0, filters=[GROUP, OTHER_GROUP])
    cluster.ready(1, 2, 3)
    cluster.pass_time(SETTLED)
    assert cluster.online() == [20, 20, 20]
    assert cluster.online(OTHER_GROUP) == [20, 20, 20]
    assert sent_away(cluster) == 40


def test_a_group_is_not_made_worse_for_another_one() -> None:
    """Five of ten are members of a second group that is even: the other five go. The only member of a group may go."""
    cluster = SpreadCluster(2)
    for at in range(5):
        cluster.join(f"both-{at}", cluster.sides[0], filters=[GROUP, OTHER_GROUP])
        cluster.join(f"one-{at}", cluster.sides[0], filters=[GROUP, f"$share/own-{at}/#"])
        cluster.join(f"other-{at}", cluster.sides[1], filters=[OTHER_GROUP])
    cluster.ready(1, 2)
    cluster.pass_time(SETTLED)
    assert cluster.online() == [5, 5]
    assert cluster.online(OTHER_GROUP) == [5, 5]
    assert {client.client_id[:3] for client in cluster.clients if client.moves} == {"one"}


def test_a_client_with_too_many_subscriptions_stays() -> None:
    """At the limit it goes, with one more it does not."""
    work.forget()
    cluster = SpreadCluster(2)
    most = spreading.SUBSCRIPTIONS_MAX
    for at, count in enumerate((most, most + 1, most + 1)):
        client = cluster.join(f"many-{at}", cluster.sides[0])
        for topic in range(count - 1):
            client.peer.subscribe((f"of/{topic}", 0))
        assert client.peer.session.subscriptions == count
    cluster.ready(1, 2)
    cluster.pass_time(SETTLED)
    assert [client.moves for client in cluster.clients] == [1, 0, 0]


def test_bridges_stay() -> None:
    """They are sessions of this host, however many of them are members."""
    cluster = SpreadCluster(2)
    joined(cluster, 4, 0)
    for client in cluster.clients:
        client.peer.session.client_id = "$bridge/" + client.client_id
    cluster.ready(1, 2)
    cluster.pass_time(SETTLED)
    assert sent_away(cluster) == 0


def test_no_more_are_on_their_way_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spreading, "LEAVING_MAX", 3)
    cluster = SpreadCluster(2)
    joined(cluster, 20, 0, expiry=600)
    side = cluster.sides[0]
    publisher = side.host.connect("publisher", 5)
    for at in range(20):
        publisher.publish("t/x", b"%d" % at, qos=1)
    side.host.settle()
    cluster.ready(1, 2)
    cluster.pass_time(BEGUN)
    assert len(side.spreadings[0]._leaving) == 3
    cluster.pass_time(spreading.QUIET_SECONDS_MAX * 4 + 5)
    assert sent_away(cluster) == 10


def test_many_groups() -> None:
    """A thousand groups of two members, all on one host: a client of each goes, and the work is done in pieces."""
    work.forget()
    cluster = SpreadCluster(2)
    for at in range(1000):
        for member in range(2):
            cluster.join(f"c{at}-{member}", cluster.sides[0], filters=[f"$share/g{at}/t"])
    cluster.ready(1, 2)
    cluster.pass_time(SETTLED)
    assert sent_away(cluster) == 1000
    assert {side.host.node.router.state.subscriptions.count for side in cluster.sides} == {1000}
    assert work.over() == {}


def test_ten_thousand_groups_are_looked_at_in_pieces() -> None:
    """All of them are uneven, and have a plan, which sends nobody away: their members have too many subscriptions."""
    work.forget()
    cluster = SpreadCluster(2)
    side = cluster.sides[0]
    each = spreading.SUBSCRIPTIONS_MAX + 1
    for first in range(0, GROUPS_MAX, each):
        for member in range(2):
            peer = side.host.connect(f"c{first}-{member}", 5)
            for at in range(first, first + each, 100):
                peer.subscribe(*((f"$share/g{at + i}/t", 0) for i in range(min(100, first + each - at))))
    groups = side.host.node.router.state.subscriptions.shared // 2
    assert groups > GROUPS_MAX
    cluster.ready(1, 2)
    cluster.pass_time(BEGUN - 2)
    assert len(side.spreadings[0]._by_number) == GROUPS_MAX
    cluster.pass_time(60)
    ended = side.host.logs[0].named("members_sent_away")
    assert len({each["group"] for each in ended}) == groups
    assert {(each["members"], each["left"]) for each in ended} == {(0, 1)}
    assert sent_away(cluster) == 0
    assert work.over() == {}


def test_members_with_many_subscriptions_leave_in_pieces() -> None:
    """Each is a member of as many groups as may be looked at, and of all of them together."""
    work.forget()
    cluster = SpreadCluster(2)
    most = spreading.SUBSCRIPTIONS_MAX
    clients = [cluster.join(f"c{at}", cluster.sides[0]) for at in range(20)]
    for client in clients:
        for first in range(0, most - 1, 100):
            filters = [(f"$share/g{at}/t", 0) for at in range(first, min(first + 100, most - 1))]
            client.peer.subscribe(*filters)
    cluster.ready(1, 2)
    cluster.pass_time(SETTLED)
    assert sent_away(cluster) == 10
    assert work.over() == {}


def test_what_is_withdrawn_has_to_be_connected() -> None:
    cluster = SpreadCluster(1)
    client = cluster.join("c", cluster.sides[0], expiry=600)
    session = client.peer.session
    client.peer.disconnect()
    groups = cluster.sides[0].spreadings[0]._groups
    with pytest.raises(ValueError, match="without a connection"):
        groups.withdraw(session)
    groups.rejoin(session)  # it was not withdrawn
    number = group_number(b"g/t/#")
    assert (groups.online(number), groups.members(number), groups.member(number, 0)) == (0, 0, None)
    assert (groups.online(7), groups.members(7), groups.member(7, 0), groups.is_alone(7)) == (0, 0, None, False)
    assert groups.groups_of(session, 1) == [number]
    assert groups.groups_of(session, 0) is None


@pytest.mark.parametrize("seed", range(12))
def test_whatever_hosts_have(seed: int) -> None:
    """Some with several workers, some without members: each client moves once at most, as few as need be, and no host
    is sent more than it lacks.
    """
    chance = random.Random(seed)
    hosts = chance.randrange(2, 7)
    cluster = SpreadCluster(hosts, chance.randrange(1, 4), seed=seed, seconds_back=chance.choice([0.1, 1.5, 4.0]))
    counts = [chance.choice([0, chance.randrange(10), chance.randrange(60)]) for _ in range(hosts)]
    joined(cluster, *counts, expiry=chance.choice([0, 600]))
    cluster.ready(*range(1, hosts + 1))
    cluster.pass_time(SETTLED * 3)
    assert sum(cluster.online()) == sum(counts)
    assert max(cluster.online()) - min(cluster.online()) <= 1
    least = moves_of(b"g/t/#", {f"n{at + 1}": count for at, count in enumerate(counts)})
    assert sent_away(cluster) == sum(move.members for move in least)
    assert max((client.moves for client in cluster.clients), default=0) <= 1
    cluster.assert_sound()

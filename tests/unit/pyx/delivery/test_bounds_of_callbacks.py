"""No callback does more than its bound, with everything at its configured maximum: on the disk, with a sibling.

One row for each operation. Its preconditions are set up before and do not count; then the work of each callback that it
causes is counted (`pyx.core.work`), here and at the sibling, until no work is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.config.limits import Limits
from broker.config.settings import QueueRule
from broker.config.share_groups import ShareGroupRule
from broker.worker.recovery import Recovered
from pyx.core import work
from pyx.core.peer import sibling
from pyx.core.work import callback
from shards.placement import home
from tests import wire
from tests.kept_host import OnDisk, let_go
from tests.sansio import Host, Peer
from tests.unit.broker.replay.test_replaying import archived
from zmq_mesh.interest import CHANGES_MAX, Change

LIMITS = Limits()
OF_PACKET = LIMITS.filters_per_packet_max
OF_SESSION = LIMITS.filters_per_session_max
CLIENT = "gateway"
EXPIRY = 1000
PLAIN, SHARED = "t/{}", "$share/g/t/{}"
OPEN = {"filters_per_second_max": 0}
_NEVER_RETAINED = 0x20  # Retain Handling
Made = Callable[..., Host]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Made]:
    """Return a factory of hosts on the disk; each later host starts with the stores of the previous one."""
    made: list[Host] = []

    def host(workers: int = 2, seconds_later: int = 0, limits: dict[str, int] = OPEN, **settings: Any) -> Host:
        if made:
            let_go(made[-1])
        stores = [OnDisk(tmp_path / str(worker), fsync=False) for worker in range(workers)]
        start_ms = made[-1].now_ms + seconds_later * 1000 if made else 1_000_000
        made.append(Host(workers, limits, stores, start_ms=start_ms, **settings))
        return made[-1]

    yield host
    let_go(made[-1])


def bounded(host: Host, what: str, seconds: float = 0.0) -> None:
    """Check that all work since the last check, and until none is left, is within the bound."""
    host.settle()
    host.pass_time(seconds)
    assert work.over() == {}, what
    work.forget()


def gateway(host: Host, *, clean: bool = False, expiry: int = EXPIRY) -> Peer:
    return host.connect(CLIENT, 5, clean=clean, expiry=expiry)


def names(named: str, count: int, first: int = 0) -> list[str]:
    return [named.format(number) for number in range(first, first + count)]


def subscribe(peer: Peer, named: str, count: int, qos: int = 1, *, retained: bool = True) -> None:
    options = qos if retained else qos | _NEVER_RETAINED
    for first in range(0, count, OF_PACKET):
        filters = names(named, min(OF_PACKET, count - first), first)
        peer.send(wire.subscribe(5, peer.packet_id(), *((text, options) for text in filters)))
        peer.host.settle()
        assert set(peer.next("SUBACK").codes) == {qos}


def full(host: Host, named: str, *, expiry: int = EXPIRY) -> Peer:
    """Return a session with as many subscriptions as it may have."""
    peer = gateway(host, clean=True, expiry=expiry)
    subscribe(peer, named, OF_SESSION, retained=False)
    work.forget()
    return peer


def publish(host: Host, publisher: Peer, topics: list[str], body: bytes = b"x", *, retain: bool = False) -> None:
    for number, topic in enumerate(topics, 1):
        publisher.publish(topic, body, 1, retain=retain)
        if number % 500 == 0:
            host.settle()
            publisher.packets.clear()
    host.settle()
    publisher.packets.clear()


def receive(peer: Peer, messages: int) -> None:
    """Receive exactly this many messages."""
    got = 0
    for _ in range(messages):
        got += len(peer.receive())
        if got >= messages:
            break
        peer.host.pass_time(0.1)
    assert got == messages


# ---------------------------------------------------------------- subscriptions


@pytest.mark.parametrize("named", [PLAIN, SHARED])
def test_subscribing(make: Made, named: str) -> None:
    host = make()
    peer = gateway(host)
    work.forget()
    subscribe(peer, named, OF_PACKET)
    bounded(host, "SUBSCRIBE")
    subscribe(peer, named, OF_PACKET, qos=0)
    bounded(host, "SUBSCRIBE of what is there")
    peer.send(wire.unsubscribe(5, peer.packet_id(), *names(named, OF_PACKET)))
    bounded(host, "UNSUBSCRIBE")
    assert len(peer.next("UNSUBACK").codes) == OF_PACKET
    subscribe(peer, named, OF_SESSION, retained=False)
    bounded(host, "as many as a session may have")
    peer.send(wire.unsubscribe(5, peer.packet_id(), *names(named, OF_PACKET)))
    bounded(host, "UNSUBSCRIBE of some of these")


@pytest.mark.parametrize("retained", [0, 1])
def test_subscribing_where_nothing_is_retained_for_it(make: Made, retained: int) -> None:
    """With one worker the absence is known at once; the store gets a record for each filter."""
    host = make(1)
    publish(host, host.connect("publisher", 5), names("other/{}", retained), retain=True)
    peer = gateway(host)
    work.forget()
    for named in ("t/{}", "+/{}/#"):
        subscribe(peer, named, OF_PACKET)
        bounded(host, f"SUBSCRIBE to {named}")
    assert not peer.session.details.walks_waiting


def test_subscribing_to_the_archive() -> None:
    host = archived(2, (b"t/#",), limits=OPEN)
    peer = gateway(host)
    replay = {"user_property": [("mqttd-offset", "latest")]}
    work.forget()
    peer.send(wire.subscribe(5, 1, *((text, 1) for text in names(PLAIN, OF_PACKET)), properties=replay))
    peer.send(wire.subscribe(5, 2, *((text, 1) for text in names(PLAIN, OF_PACKET))))
    bounded(host, "SUBSCRIBE")
    codes = peer.next("SUBACK").codes
    assert len(codes) == OF_PACKET
    assert codes.count(1) == LIMITS.replays_per_session_max
    assert set(peer.next("SUBACK").codes) == {1}


@pytest.mark.parametrize("named", [PLAIN, pytest.param(SHARED, marks=pytest.mark.long)])
def test_a_session_with_all_it_may_have(make: Made, named: str) -> None:
    host = make()
    full(host, named).disconnect()
    bounded(host, "DISCONNECT")
    gateway(host)
    bounded(host, "CONNECT, resumed")
    peer = gateway(host)
    bounded(host, "CONNECT, taking over")
    host.lose(peer)
    bounded(host, "lost")
    peer = gateway(host, clean=True)
    bounded(host, "CONNECT, clean start")
    assert host.node.router.state.subscriptions.count == 0
    assert peer.session.subscriptions == 0


@pytest.mark.parametrize("named", [PLAIN, pytest.param(SHARED, marks=pytest.mark.long)])
def test_how_it_ends(make: Made, named: str) -> None:
    host = make()
    node = host.nodes[home(CLIENT, 2)]
    peer = full(host, named)
    peer.send(wire.disconnect(5, properties={"session_expiry_interval": 1}))
    bounded(host, "Session Expiry", seconds=2)
    full(host, named).send(wire.disconnect(5, properties={"session_expiry_interval": 0}))
    bounded(host, "DISCONNECT, Session Expiry Interval 0")
    full(host, named, expiry=0)
    gateway(host, clean=True)
    bounded(host, "taken over by one that begins anew")
    full(host, named)
    assert node.closing.delete(CLIENT)
    bounded(host, "deleted by the operator")
    assert node.router.state.subscriptions.filters == 0


@pytest.mark.parametrize("named", [SHARED, *(pytest.param(each, marks=pytest.mark.long) for each in (PLAIN, "+/{}/#"))])
def test_a_sibling_begins_again(make: Made, named: str) -> None:
    """Both workers send each other their whole interest; then the former interest of one of them is withdrawn."""
    host = make()
    host.lose(full(host, named))
    work.forget()
    host = make()
    bounded(host, "told anew")
    other = next(node for node in host.nodes if node.index != home(CLIENT, 2))
    assert other.router.state.subscriptions.filters == OF_SESSION
    callback("mesh")(other.peering.interest_snapshot)(sibling(1 - other.index), [], first=True, last=True)
    bounded(host, "wants nothing any more")
    assert other.router.state.subscriptions.filters == 0


def test_a_sibling_names_many_members_of_a_group(make: Made) -> None:
    host = make()
    router, peering = host.node.router, host.node.peering
    changes, snapshot = callback("mesh")(peering.interest), callback("mesh")(peering.interest_snapshot)
    identities = [1 + number * 0x9E3779B97F4A7C15 % 2**64 for number in range(50_000)]
    members = [Change(b"t", b"g", 1, True, member=identity) for identity in identities]
    work.forget()
    for again in range(2):
        for first in range(0, len(members), CHANGES_MAX):
            part = members[first : first + CHANGES_MAX]
            snapshot(sibling(1), part, first=first == 0, last=first + CHANGES_MAX >= len(members))
        bounded(host, f"named, {again} times before")
    for first in range(0, len(members), CHANGES_MAX):
        changes(sibling(1), [change._replace(members=0) for change in members[first : first + CHANGES_MAX]])
    bounded(host, "left")
    assert router.state.subscriptions.filters == 0


def test_sessions_that_have_expired_when_the_broker_starts(make: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of the start is a callback."""
    begin, steps = Recovered.begin, []

    def counted(recovered: Recovered) -> Iterator[None]:
        before = work.total()
        for _ in begin(recovered):
            steps.append(work.total() - before)
            yield
            before = work.total()

    monkeypatch.setattr(Recovered, "begin", counted)
    host = make(1)
    for number in range(40):
        peer = host.connect(f"c{number}", 5, clean=False, expiry=1)
        subscribe(peer, f"{number}/{{}}", 400)
        host.lose(peer)
    host = make(1, seconds_later=10)
    host.settle()
    assert host.node.router.state.subscriptions.count == 0
    assert len(steps) > 10
    assert max(steps) < work.BOUND


# ---------------------------------------------------------------- publishes


def test_a_queue_of_shares_that_is_left(make: Made) -> None:
    """The member unsubscribes, or ends: all shares move to another member."""
    host = make(1)
    publisher = host.connect("publisher", 5)
    for way in ("UNSUBSCRIBE", "Session Expiry"):
        peer = gateway(host, clean=True)
        subscribe(peer, SHARED, 1)
        host.lose(peer)
        publish(host, publisher, ["t/0"] * LIMITS.queue_messages_max)
        other = host.connect("other", 5, clean=True, expiry=EXPIRY)
        subscribe(other, SHARED, 1)
        host.lose(other)
        peer = host.connect(CLIENT, 5, clean=False, expiry=EXPIRY, properties={"receive_maximum": 1})
        work.forget()
        if way == "UNSUBSCRIBE":
            peer.send(wire.unsubscribe(5, peer.packet_id(), "$share/g/t/0"))
        else:
            peer.send(wire.disconnect(5, properties={"session_expiry_interval": 1}))
        bounded(host, way, seconds=2)
        other = host.connect("other", 5, clean=False, expiry=EXPIRY)
        assert len(other.receive()) >= LIMITS.queue_messages_max - 1
        bounded(host, "read by the other")


def test_a_backlog_of_all_filters(make: Made) -> None:
    """A message for each of thousands of filters of an offline session, as many as may wait."""
    host = make(1)
    peer, publisher = full(host, PLAIN), host.connect("publisher", 5)
    host.lose(peer)
    publish(host, publisher, names("t/{}", LIMITS.queue_messages_max + 1000))
    bounded(host, "PUBLISH for it", seconds=3)
    peer = gateway(host)
    peer.receive()
    bounded(host, "CONNECT, and all of its messages with their acks", seconds=3)


def test_a_publish_for_many(make: Made) -> None:
    host = make(1)
    for number in range(5000):
        host.connect(f"c{number}", 5, clean=True).subscribe(("all/#", 1))
    publisher = host.connect("publisher", 5)
    work.forget()
    publisher.send(*(wire.publish(5, f"all/{i}", b"x", qos=1, packet_id=1 + i) for i in range(10)))
    bounded(host, "PUBLISH")


def test_retained_messages(make: Made) -> None:
    host = make()
    publisher = host.connect("publisher", 5)
    work.forget()
    publish(host, publisher, names("t/{}", 20_000), retain=True)
    bounded(host, "PUBLISH to be retained")
    peer = host.connect("reader", 5, clean=True)
    subscribe(peer, "+/{}", OF_PACKET)
    receive(peer, OF_PACKET)
    bounded(host, "thousands of walks over them")
    peer.send(wire.subscribe(5, peer.packet_id(), ("#", 1)))
    receive(peer, 20_000)
    bounded(host, "a walk over all of them")


def test_a_full_queue_that_holds_publishers(make: Made) -> None:
    """All filters of the session are flagged, here and at the sibling, until it has room again."""
    host = make()
    for node in host.nodes:
        node.reload(host.settings.model_copy(update={"queue_full": "hold"}))
    peer, publisher = full(host, PLAIN), host.connect("publisher", 5)
    router = peer.node.router
    other = next(node for node in host.nodes if node.router is not router)
    host.lose(peer)
    bounded(host, "DISCONNECT")
    publish(host, publisher, names("t/{}", LIMITS.queue_messages_max + 1))
    bounded(host, "its queue is full", seconds=1)
    assert host.counters()["queues_held"] == 1
    assert len(router.back_pressure.held_filters()) == OF_SESSION
    other.router.back_pressure.forget_holds(peer.node.index)
    bounded(host, "it was away for its sibling")
    assert other.router.back_pressure.guarded == 0
    peer.node.greet(sibling(other.index))
    bounded(host, "it greets its sibling")
    assert other.router.back_pressure.guarded
    peer = gateway(host)
    peer.receive()
    bounded(host, "it has room", seconds=1)
    assert all(node.router.back_pressure.guarded == 0 for node in host.nodes)
    assert router.back_pressure.held_filters() == []


def test_a_reload_of_the_rules_for_queues(make: Made) -> None:
    """Each session has the first rule that covers one of its subscriptions: all of them are checked."""
    host = make(1)
    peer = full(host, PLAIN)
    for number in range(2000):
        host.connect(f"c{number}", 5, clean=True).subscribe((f"c/{number}", 1))
    work.forget()
    others = [QueueRule(filter=f"{number}/#", full="hold") for number in range(9)]
    for rules in ([*others, QueueRule(filter="t/99999", full="hold")], []):
        host.node.reload(host.settings.model_copy(update={"queue": rules}))
        bounded(host, "a reload")
        assert peer.session.queue_rule == len(rules)


# ---------------------------------------------------------------- the log


@pytest.mark.parametrize("common", [pytest.param(False, marks=pytest.mark.long), True])
def test_sweeping_what_is_in_flight_of_many(make: Made, common: bool) -> None:
    """Each session has a window full of messages that alternate with those of the other sessions."""
    host = make(1)
    publisher = host.connect("publisher", 5)
    sessions = 400
    for number in range(sessions):
        peer = host.connect(f"c{number}", 5, clean=False, expiry=EXPIRY)
        peer.subscribe((f"s/{number}", 1), *([("all/#", 1)] if common else []))
    for number in range(LIMITS.inflight_max - 1):
        publish(host, publisher, names("s/{}", sessions) + (["all/1"] if common and number % 50 == 0 else []))
    work.forget()
    host = make(1)
    bounded(host, "sweeps after a start", seconds=5)
    for number in range(sessions):
        host.connect(f"c{number}", 5, clean=False, expiry=EXPIRY)
    bounded(host, "CONNECT of all, and sweeps", seconds=5)
    for peer in host.peers:
        peer.receive()
    bounded(host, "all of their acks, and sweeps", seconds=5)
    assert host.stores[0].held() == (0, 0)


# ---------------------------------------------------------------- other callbacks


@pytest.mark.parametrize("end", ["read", "given up", "ended", "sibling lost"])
def test_a_full_session_that_makes_its_publishers_wait(make: Made, end: str) -> None:
    """The filters are flagged here and at the sibling, and sent again to a sibling that returns."""
    host = make(2, limits={**OPEN, "queue_messages_max": 100, "hold_seconds_max": 3}, queue_full="hold")
    peer = full(host, PLAIN)
    here, there = host.nodes[home(CLIENT, 2)], host.nodes[1 - home(CLIENT, 2)]
    publisher = host.connect("publisher", 5)
    host.lose(peer)
    for number in range(110):
        publisher.publish(f"t/{number}", b"x", 1)
        host.settle()
    host.settle()
    bounded(host, "full")
    for node in (here, there):
        assert node.router.back_pressure.guarded
    assert len(here.router.back_pressure.held_filters()) == OF_SESSION
    callback("mesh")(there.peering.away)(sibling(here.index))
    assert len(here.router.back_pressure.held_filters()) == OF_SESSION
    callback("mesh")(here.peering.ready)(sibling(there.index))
    bounded(host, "told again")
    if end == "read":
        gateway(host).receive()
    elif end == "given up":
        host.pass_time(4)
    elif end == "ended":
        assert here.closing.delete(CLIENT)
    else:
        callback("mesh")(there.peering.away)(sibling(here.index))
    bounded(host, end, seconds=1)
    assert not there.router.back_pressure.guarded
    assert bool(here.router.back_pressure.guarded) == (end == "sibling lost")


@pytest.mark.parametrize(
    "strategies",
    [
        ("round_robin", "sticky"),
        *(pytest.param(each, marks=pytest.mark.long) for each in (("hash_topic", "sticky"), ("sticky", "round_robin"))),
    ],
)
def test_a_reload(make: Made, strategies: tuple[str, str]) -> None:
    """Rules for queues and share groups cover everything: 100,000 groups, and one with many members."""
    before, after = (
        {
            "shared": [ShareGroupRule.model_validate({"group": "*", "strategy": strategy})],
            "queue": [QueueRule.model_validate({"filter": text, "full": "drop_newest", "messages_max": 5000})],
        }
        for strategy, text in zip(strategies, ("t/1/#", "t/2/#"), strict=True)
    )
    host = make(2, **before)
    peer = full(host, "$share/g/t/{}")
    full_of_plain = host.connect("other", 5, clean=True, expiry=EXPIRY)
    subscribe(full_of_plain, "t/{}/x", 50_000, retained=False)
    members = [host.connect(f"m{number}", 5) for number in range(3000)]
    for member in members:
        member.subscribe(("$share/g/t/1", 1), ("t/2/#", 1))
    work.forget()
    for node in host.nodes:
        callback("control")(node.reload)(node.settings.model_copy(update=after))
    bounded(host, "reload")
    assert {member.session.queue_rule for member in members} == {1}
    assert peer.session.queue_rule == 0
    named = strategies[1] != "round_robin"
    publisher = host.connect("publisher", 5)
    for _ in range(10):
        publisher.publish("t/1", b"x", 1)
    host.settle()
    got = [member for member in (peer, *members) if member.receive()]
    assert (len(got) == 1) == named

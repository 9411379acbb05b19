"""How many subscriptions may replay the archive (replays_per_session_max, replays_max), including those that wait."""

from __future__ import annotations

from typing import Any

import pytest

from broker.config.limits import Limits
from pyx.core import work
from pyx.core.peer import sibling
from tests import wire
from tests.unit.broker.repartition.test_repartition import client_of
from tests.unit.broker.replay.test_replaying import archived, ask, lasting, subscriber
from tests.unit.pyx.delivery.test_router import client_at

LIMITS = Limits()


def test_limits() -> None:
    host = archived(limits={"replays_per_session_max": 2, "replays_max": 3})
    peer, other = subscriber(host), subscriber(host, "other")
    assert ask(peer, "latest", ("a/1", 0), ("a/2", 0), ("a/3", 0)).codes == (0, 0, 0x97)
    assert ask(other, "latest", ("a/1", 0), ("a/2", 0)).codes == (0, 0x97)
    assert ask(peer, "latest", ("a/1", 0)).codes == (0,)  # replaces the existing one


def test_one_more_beside_those_that_are_there_is_within_the_limit() -> None:
    host = archived(limits={"replays_per_session_max": 3, "replays_max": 4})
    peer = subscriber(host)
    assert ask(peer, "latest", ("a/1", 0), ("a/2", 0)).codes == (0, 0)
    assert ask(peer, "latest", ("a/1", 0), ("a/2", 0), ("a/2", 0), ("a/3", 0)).codes == (0, 0, 0, 0)
    assert ask(peer, "latest", ("a/1", 0), ("a/4", 0), ("a/4", 0)).codes == (0, 0x97, 0x97)
    assert host.node.replaying.count == 3
    assert ask(subscriber(host, "other"), "latest", ("a/1", 0), ("a/1", 0), ("a/2", 0)).codes == (0, 0, 0x97)


@pytest.mark.parametrize("offset", ["latest", "earliest"])
def test_limits_hold_for_subscribes_that_wait_for_siblings(offset: str) -> None:
    """Many may be in progress before the first one is answered."""
    host = archived(2, limits={"replays_per_session_max": 3, "replays_max": 5})
    peer, other = (subscriber(host, client_at(0, 2, name)) for name in ("one", "other"))
    properties: dict[str, Any] = {"user_property": [("mqttd-offset", offset)]}
    for each in (peer, other):
        for number in range(8):
            each.send(wire.subscribe(5, each.packet_id(), (f"a/{number}", 0), properties=properties))
    host.settle()
    codes = [[packet.codes for packet in each.packets if packet.kind == "SUBACK"] for each in (peer, other)]
    assert codes == [[(0,)] * 3 + [(0x97,)] * 5, [(0,)] * 2 + [(0x97,)] * 6]
    assert len(peer.session.replays or {}) == 3
    assert host.node.replaying.count == 5


def test_subscribes_that_wait_for_siblings_are_bounded_together() -> None:
    """Each is within replays_per_session_max when it arrives, but all of them together are not."""
    host = archived(2, limits={"replays_per_session_max": 4, "replays_max": 6})
    peers = [lasting(host, client_of(0, 2, name)) for name in ("one", "two")]
    host.held |= {(0, 1), (1, 0)}
    for number in range(5):
        for peer in peers:
            filters = ((f"a/{number}/{each}", 1) for each in range(2))
            properties = {"user_property": [("mqttd-offset", "latest")]}
            peer.send(wire.subscribe(5, peer.packet_id(), *filters, properties=properties))
        host.settle()
    assert not any(peer.packets for peer in peers)
    host.held.clear()
    host.settle()
    granted = [[code for packet in peer.packets for code in packet.codes].count(1) for peer in peers]
    assert max(granted) == 4
    assert sum(granted) == 6
    assert sum(len(peer.session.replays or ()) for peer in peers) == 6


def test_who_waits_for_a_sibling_costs_nobody_else_anything() -> None:
    """An UNSUBSCRIBE looks only for its own filters, however many SUBSCRIBEs wait; when a sibling goes away, the waits
    end in pieces.
    """
    host = archived(2, limits={"filters_per_second_max": 0, "tick_filters_max": 100_000, "replays_max": 100_000})
    other = lasting(host, client_of(0, 2, "other"))
    waiting = [lasting(host, client_of(0, 2, f"w{number}")) for number in range(50)]
    host.held |= {(0, 1), (1, 0)}
    properties = {"user_property": [("mqttd-offset", "latest")]}
    for peer in waiting:
        for number in range(40):
            filters = ((f"a/{number}/{each}", 1) for each in range(5))
            peer.send(wire.subscribe(5, peer.packet_id(), *filters, properties=properties))
        host.settle()
    work.forget()
    before = work.total()
    other.send(wire.unsubscribe(5, 1, *(f"a/{number}/1" for number in range(400))))
    host.settle()
    assert work.total() - before < 10_000_000
    opening = host.nodes[0].opening
    own = waiting[0]
    own.send(wire.unsubscribe(5, own.packet_id(), "a/3/1"))
    host.settle()
    opening.peer_away(sibling(1))
    assert opening._waiting
    host.settle()
    assert not opening._waiting
    assert not opening._wanted
    assert work.over() == {}
    assert all(len(peer.packets) >= 40 for peer in waiting)
    replays = own.session.replays or {}
    assert len(replays) == LIMITS.replays_per_session_max
    assert b"a/3/1" not in replays

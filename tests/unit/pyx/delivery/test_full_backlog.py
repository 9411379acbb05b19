"""A backlog at its limit: dropped messages are not held. The limit is checked whenever a 32nd of it has arrived."""

from __future__ import annotations

import pytest

from tests.sansio import Host, Peer

LIMIT = 50
WINDOW = 5


def flood(host: Host, publisher: Peer, first: int, count: int) -> None:
    """Publish at QoS 1; the answers are discarded."""
    for number in range(first, first + count):
        publisher.publish("t", b"%d" % number, 1)
        host.settle()
        publisher.packets.clear()


@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest"])
def test_what_is_dropped_at_the_limit_is_not_held(policy: str) -> None:
    host = Host(limits={"queue_messages_max": LIMIT, "inflight_max": WINDOW}, queue_full=policy)
    publisher, stalled = host.connect("publisher"), host.connect("stalled")
    stalled.subscribe(("t", 1))
    flood(host, publisher, 0, 1000)
    assert host.stores[0].messages_held() <= LIMIT + LIMIT // 32 + 1
    kept = [int(packet.payload) for packet in stalled.receive()]
    dropped = 1000 - len(kept)
    assert dropped >= 1000 - LIMIT - WINDOW - LIMIT // 32 - 1
    assert kept[:WINDOW] == list(range(WINDOW))
    assert kept == sorted(kept)
    assert policy == "drop_oldest" or kept[:LIMIT] == list(range(LIMIT))
    assert policy == "drop_newest" or kept[-LIMIT:] == list(range(1000 - LIMIT, 1000))
    assert host.counters()["dropped_queue_full"] == dropped
    flood(host, publisher, 1000, 10)
    assert [int(packet.payload) for packet in stalled.receive()] == list(range(1000, 1010))
    assert host.stores[0].messages_held() <= LIMIT + LIMIT // 32 + 1
    host.check_books()


def test_two_sessions_that_fell_behind_at_different_times_keep_what_each_may() -> None:
    host = Host(limits={"queue_messages_max": LIMIT, "inflight_max": WINDOW})
    publisher, first, second = (host.connect(name) for name in ("publisher", "first", "second"))
    first.subscribe(("t", 1))
    flood(host, publisher, 0, 300)
    second.subscribe(("t", 1))
    flood(host, publisher, 300, 300)
    assert host.stores[0].messages_held() <= 2 * (LIMIT + LIMIT // 32 + 1)
    for stalled, began in ((first, 0), (second, 300)):
        kept = [int(packet.payload) for packet in stalled.receive()]
        assert kept[: LIMIT + WINDOW] == list(range(began, began + LIMIT + WINDOW))
        assert len(kept) <= LIMIT + WINDOW + LIMIT // 32 + 1
    host.check_books()


@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest"])
def test_what_only_came_between_two_sessions_that_are_behind_is_not_held(policy: str) -> None:
    """One is offline for good, its queue full; of the others one is always behind: each holds its own part."""
    host = Host(limits={"queue_messages_max": LIMIT, "inflight_max": WINDOW}, queue_full=policy)
    publisher, gone = host.connect("publisher"), host.connect("gone", clean=False)
    gone.subscribe(("t", 1))
    host.lose(gone)
    others = [host.connect(name, clean=False) for name in ("even", "odd")]
    for other in others:
        other.subscribe(("t", 1))
    flood(host, publisher, 0, 2 * LIMIT)
    for turn in range(40):
        other = others[turn % 2]
        host.lose(other)
        flood(host, publisher, 1000 + 10 * turn, 10)
        again = others[(turn + 1) % 2] = host.connect(others[(turn + 1) % 2].client_id, clean=False)
        again.receive()
        assert host.stores[0].messages_held() <= 2 * (LIMIT + LIMIT // 32 + 1) + 20
        host.check_books()
    came = [int(packet.payload) for packet in host.connect("gone", clean=False).receive()]
    assert len(came) <= LIMIT + LIMIT // 32 + 1
    assert policy == "drop_oldest" or came[:LIMIT] == list(range(LIMIT))
    assert policy == "drop_newest" or came[-1] == 1399
    host.check_books()

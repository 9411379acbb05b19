"""Sessions with much state end in pieces: none of it is found again, not even after a crash at any moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.clients import endings, subscribing
from leveldb_store.format import schema
from leveldb_store.reachability import unreachable
from tests import wire
from tests.kept_host import commit, kept, lasting, store_of
from tests.kept_store import KeptStore
from tests.sansio import Host, Peer

CLIENT = "the-client"
OWN = [f"own/{number}" for number in range(9)]
NAMED = [*OWN, "$share/g/t", "$share/g/elsewhere", "$share/h/t", "all/#"]
SHARES = [b"s%d" % number for number in range(7)]
EXPIRY = 60
End = Callable[[Host], None]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings, "AT_ONCE", 2)
    monkeypatch.setattr(subscribing, "AT_ONCE", 2)


def publish(host: Host, topic: str, *bodies: bytes) -> None:
    publisher = host.connect("publisher", 5)
    for body in bodies:
        publisher.publish(topic, body, 1)
    host.settle()
    commit(host)
    publisher.receive()
    host.lose(publisher)


def connected(host: Host, client_id: str, **options: Any) -> Peer:
    """Return a client whose CONNACK waits for the disk."""
    peer = host.open(5)
    peer.client_id = client_id
    properties = {"session_expiry_interval": options.pop("expiry", EXPIRY), **options.pop("properties", {})}
    peer.send(wire.connect(5, client_id, properties=properties, **options))
    host.settle()
    commit(host)
    peer.session_present = peer.next("CONNACK").session_present
    return peer


def lived(manual: bool = True) -> Host:
    """The client has subscriptions, shares of a group that wait or are in flight, and a log; the group has another
    member from the beginning, which is offline.
    """
    host = kept(manual)[0]
    peer = connected(host, CLIENT, clean=False, properties={"receive_maximum": 3})
    peer.send(wire.subscribe(5, 1, *((named, 1) for named in NAMED)))
    host.settle()
    commit(host)
    assert len(peer.next("SUBACK").codes) == len(NAMED)
    publish(host, "own/3", b"o")
    publish(host, "elsewhere", *SHARES)
    other = connected(host, "other", clean=False, expiry=10_000)
    other.send(wire.subscribe(5, 1, ("$share/g/elsewhere", 1)))
    host.settle()
    commit(host)
    host.lose(other)
    commit(host)
    return host


def client(host: Host) -> Peer:
    return next(peer for peer in host.peers if peer.client_id == CLIENT)


def clean_start(host: Host) -> None:
    host.lose(client(host))
    host.open(5).send(wire.connect(5, CLIENT, clean=True, properties={"session_expiry_interval": EXPIRY}))


def takes_over(host: Host) -> None:
    host.open(5).send(wire.connect(5, CLIENT, clean=True, properties={"session_expiry_interval": 0}))


def says_so(host: Host) -> None:
    client(host).send(wire.disconnect(5, properties={"session_expiry_interval": 0}))


def expires(host: Host) -> None:
    host.lose(client(host))
    host.pass_time(EXPIRY + 1)


def is_deleted(host: Host) -> None:
    assert host.node.closing.delete(CLIENT)


ENDS = [clean_start, takes_over, says_so, expires, is_deleted]


def strays(store: KeptStore) -> list[Any]:
    return list(unreachable(store.scan, store.records.get))


def subscriptions(store: KeptStore) -> set[bytes]:
    return {schema.split_subscription(key)[1] for key, _ in store.scan(schema.SUBSCRIPTION + CLIENT.encode())}


def test_it_ends_in_pieces() -> None:
    host = lived()
    says_so(host)
    left = []
    while host.turn():
        left.append(host.node.router.state.subscriptions.filters)
    assert len(set(left)) > 4
    commit(host)
    assert subscriptions(store_of(host)) == set()
    assert not [key for key in store_of(host).records if CLIENT.encode() in key]
    assert strays(store_of(host)) == []
    other = connected(host, "other", clean=False, expiry=10_000)
    commit(host)
    assert [packet.payload for packet in other.receive()] == SHARES


@pytest.mark.parametrize("end", ENDS)
def test_a_crash_at_any_moment(end: End) -> None:
    host = lived()
    store = store_of(host)
    end(host)
    host.settle()
    seen = set()
    while True:
        assert strays(store) == []
        after = host.crash()
        after.settle()
        commit(after)
        assert strays(store_of(after)) == []
        present = CLIENT.encode() in {key[1:] for key, _ in store_of(after).scan(schema.SESSION)}
        left = subscriptions(store_of(after))
        assert left == (set(NAMED_BYTES) if left else set())
        seen.add((present, bool(left)))
        if not left:
            other = connected(after, "other", clean=False, expiry=10_000)
            commit(after)
            assert sorted(packet.payload for packet in other.receive()) == SHARES
        peer = connected(after, CLIENT, clean=False)
        assert peer.session_present == present
        commit(after)
        assert {packet.payload for packet in peer.receive()} <= ({b"o", *SHARES} if left else set())
        if store.durable == len(store.batches):
            break
        store.sync(1)
    assert {(False, False), (True, True)} & seen


NAMED_BYTES = [named.encode() for named in NAMED]


def test_a_new_session_waits_for_the_end_of_the_former_one() -> None:
    host = lived(manual=False)
    host.lose(client(host))
    peer = host.open(5)
    peer.client_id = CLIENT
    peer.send(
        wire.connect(5, CLIENT, clean=True, properties={"session_expiry_interval": EXPIRY}),
        wire.subscribe(5, 1, ("own/1", 1)),
        wire.publish(5, "own/1", b"new", qos=1, packet_id=2),
    )
    host.turn()
    assert host.node.sessions.get(CLIENT) is None
    assert subscriptions(store_of(host))
    host.settle()
    assert peer.next("CONNACK").session_present is False
    assert [packet.kind for packet in peer.packets if packet.kind != "PUBLISH"] == ["SUBACK", "PUBACK"]
    assert [packet.payload for packet in peer.packets if packet.kind == "PUBLISH"] == [b"new"]
    assert host.node.router.state.subscriptions.count == 2
    host.check_books()


def test_of_two_that_wait_the_newer_one_is_let_in() -> None:
    host = lived(manual=False)
    host.lose(client(host))
    first, second = host.open(5), host.open(4)
    first.send(wire.connect(5, CLIENT, clean=True))
    second.send(wire.connect(4, CLIENT, clean=True))
    host.settle()
    assert first.closed
    assert not first.packets
    assert second.next("CONNACK").reason == 0
    assert host.node.closing.delete(CLIENT)
    host.check_books()


def test_one_that_waits_and_goes() -> None:
    host = lived(manual=False)
    host.lose(client(host))
    peer = host.open(5)
    peer.send(wire.connect(5, CLIENT, clean=True))
    host.turn()
    host.lose(peer)
    assert host.node.sessions.get(CLIENT) is None
    assert lasting(host, CLIENT, 5).session_present is False
    host.check_books()


# ---------------------------------------------------------------- packets with many Topic Filters


def test_what_comes_behind_a_long_subscribe_waits_for_it() -> None:
    host, _ = kept(manual=True)
    peer = connected(host, CLIENT, clean=False)
    peer.send(
        wire.subscribe(5, 1, *((text, 1) for text in OWN)),
        wire.publish(5, OWN[-1], b"mine", qos=1, packet_id=2),
        wire.unsubscribe(5, 3, *OWN),
        wire.publish(5, OWN[-1], b"no more", qos=1, packet_id=4),
    )
    peer.send(wire.subscribe(5, 5, *((text, 1) for text in OWN)))
    host.turn()
    assert 0 < peer.session.subscriptions < len(OWN)
    host.settle()
    assert not [packet for packet in peer.packets if packet.kind != "PUBLISH"]
    for _ in range(3):
        commit(host)
    assert [packet.kind for packet in peer.packets if packet.kind != "PUBLISH"] == [
        "SUBACK", "PUBACK", "UNSUBACK", "PUBACK", "SUBACK",
    ]  # fmt: skip
    assert [packet.payload for packet in peer.packets if packet.kind == "PUBLISH"] == [b"mine"]
    assert peer.session.subscriptions == len(OWN)
    assert subscriptions(store_of(host)) == {text.encode() for text in OWN}


@pytest.mark.parametrize("how", ["lost", "taken over", "ended"])
def test_a_client_that_goes_in_the_middle(how: str) -> None:
    host, store = kept()
    peer = connected(host, CLIENT, clean=False)
    peer.send(wire.subscribe(5, 1, *((text, 1) for text in OWN)))
    host.turn()
    some = peer.session.subscriptions
    assert 0 < some < len(OWN)
    if how == "lost":
        host.lose(peer)
    again = connected(host, CLIENT, clean=how == "ended")
    assert again.session_present == (how != "ended")
    assert again.session.subscriptions < len(OWN)
    again.send(wire.subscribe(5, 1, *((text, 1) for text in OWN)))
    host.settle()
    assert len(again.next("SUBACK").codes) == len(OWN)
    assert len(subscriptions(store)) == len(OWN)


def test_a_share_that_is_left_hands_on_in_pieces() -> None:
    host = lived(manual=False)
    peer = client(host)
    peer.send(wire.unsubscribe(5, 9, *NAMED))
    host.settle()
    assert [packet.kind for packet in peer.packets if packet.kind == "UNSUBACK"] == ["UNSUBACK"]
    other = connected(host, "other", clean=False, expiry=10_000)
    in_flight = [packet.payload for packet in peer.packets if packet.kind == "PUBLISH"]
    assert [packet.payload for packet in other.receive()] == [share for share in SHARES if share not in in_flight]
    assert strays(store_of(host)) == []
    host.check_books()

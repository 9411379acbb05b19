"""A large message that waits for many sessions is stored once (issue 16, 17)."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import plyvel
import pytest

from broker.cli.store_command import Place, verify
from leveldb_store.contract import StoreError
from leveldb_store.format import queued_messages, schema
from leveldb_store.format.queued_messages import decode_own, message_key, message_of, whole
from leveldb_store.reachability import unreachable
from tests import wire
from tests.kept_host import NEVER, kept, lasting, let_go, on_disk, sent
from tests.kept_store import KeptStore
from tests.sansio import Host, Peer
from tests.unit.broker.repartition.test_repartition import client_of, go_on, paths

ONCE_BYTES = 1024
LARGE = b"x" * 100_000
SESSIONS = 5
SLOW = {"receive_maximum": 2, "session_expiry_interval": NEVER}


def family(store: KeptStore, prefix: bytes) -> dict[bytes, bytes]:
    return {key: value for key, value in store.records.items() if key[:1] == prefix}


def retained(host: Host, *bodies: bytes) -> None:
    publisher = host.connect("publisher", 5)
    for number, body in enumerate(bodies):
        publisher.publish(f"r/{number}", body, 1, retain=True)
        publisher.receive()
    publisher.disconnect()


def waiting(host: Host, *names: str) -> list[Peer]:
    """Return clients that have subscribed to all of the messages, and take one at a time."""
    peers = [lasting(host, name, 5, properties={"receive_maximum": 1}) for name in names]
    for peer in peers:
        peer.subscribe(("r/#", 1))
    host.pass_time(0.1)
    return peers


def bodies(peer: Peer) -> list[bytes]:
    return sorted(packet.payload for packet in peer.receive())


def strays(path: Path) -> Counter[str]:
    with plyvel.DB(str(path)) as db:
        return Counter(stray.kind for stray in unreachable(lambda prefix: db.iterator(prefix=prefix), db.get))


def test_once_until_the_last_session_has_it() -> None:
    host, store = kept()
    retained(host, LARGE, LARGE + b"!", b"small")
    peers = waiting(host, *(f"c{number}" for number in range(SESSIONS)))
    queued, messages = family(store, schema.QUEUED), family(store, schema.MESSAGE)
    assert len(queued) == 3 * SESSIONS
    assert sum(len(value) for value in queued.values()) < 3 * SESSIONS * 100
    assert sorted(decode_own(value).payload for value in messages.values()) == [LARGE, LARGE + b"!"]
    named = Counter(map(message_of, queued.values()))
    assert named.keys() == {None, *map(schema.key_position, messages)}
    assert set(named.values()) == {SESSIONS}
    for peer in peers[:-1]:
        assert bodies(peer) == sorted([LARGE, LARGE + b"!", b"small"])
    assert family(store, schema.MESSAGE) == messages
    peers[-1].receive()
    assert not family(store, schema.QUEUED)
    assert not family(store, schema.MESSAGE)


@pytest.mark.parametrize(("size", "own"), [(0, False), (1, False), (-1, False), (ONCE_BYTES, True)])
def test_from_which_size_on(size: int, own: bool) -> None:
    """Topic, properties and payload count towards the size."""
    host, store = kept()
    topic = len("r/0")
    retained(host, b"x" * (max(1, size - topic) if size >= 0 else ONCE_BYTES - 1 - topic))
    waiting(host, "c")
    assert bool(family(store, schema.MESSAGE)) == own
    assert len(family(store, schema.QUEUED)) == 1


def test_all_of_it_comes_back() -> None:
    """In flight or queued, with its properties and its publisher; it is deleted with the last session that has it."""
    host, _ = kept()
    publisher = host.connect("publisher", 5)
    properties = {"content_type": "t" * 1000, "user_property": [("a", "b")]}
    publisher.publish("r/0", LARGE, 2, retain=True, properties=properties)
    publisher.publish("r/1", LARGE, 2, retain=True)
    publisher.receive()
    waiting(host, "a", "b")
    host = host.crash()
    assert {each.publisher for name in "ab" for each, _, _ in lasting(host, name, 5).session.held()} == {"publisher"}
    host = host.crash()
    for name in "ab":
        got = lasting(host, name, 5).receive()
        assert sorted(packet.topic for packet in got) == ["r/0", "r/1"]
        assert all(packet.payload == LARGE and packet.retain for packet in got)
        first = next(packet for packet in got if packet.topic == "r/0")
        assert first.properties["content_type"] == "t" * 1000
    host.pass_time(1)
    store = host.stores[0]
    assert isinstance(store, KeptStore)
    assert not family(store, schema.QUEUED)
    assert not family(store, schema.MESSAGE)


def test_one_object_for_all_of_them() -> None:
    host, _ = kept()
    retained(host, LARGE)
    names = [f"c{number}" for number in range(SESSIONS)]
    waiting(host, *names)
    host = host.crash()
    sessions = [host.node.sessions.get(name) for name in names]
    assert len({id(message) for session in sessions if session for message, _, _ in session.held()}) == 1


def test_a_session_that_ends_takes_it_along() -> None:
    host, store = kept()
    retained(host, LARGE)
    waiting(host, "a", "b")
    lasting(host, "a", 5).disconnect()
    host.connect("a", 5, clean=True)
    assert len(family(store, schema.MESSAGE)) == 1
    after = host.crash()
    after.connect("b", 5, clean=True)
    kept_after = after.stores[0]
    assert isinstance(kept_after, KeptStore)
    assert not family(kept_after, schema.MESSAGE)


def test_in_flight_of_a_subscription_that_ends() -> None:
    """The message is in no index any more, for neither session."""
    host, store = kept()
    peers = [lasting(host, name, 5) for name in "ab"]
    for peer in peers:
        peer.subscribe(("t", 1))
    publisher = host.connect("publisher", 5)
    publisher.publish("t", LARGE, 1)
    publisher.receive()
    for peer in peers:
        assert peer.next("PUBLISH").payload == LARGE
        peer.unsubscribe("t")
    assert len(family(store, schema.MESSAGE)) == 1
    assert len(family(store, schema.QUEUED)) == 2
    host = host.crash()
    for name in "ab":
        assert [packet.payload for packet in lasting(host, name, 5).receive()] == [LARGE]


@pytest.mark.parametrize("seed", range(12))
def test_killed_between_any_two_writes(seed: int) -> None:
    """The disk is consistent at every moment: each message that is named exists, and no other; and every subscriber
    gets all of its messages in the end.
    """
    dice = random.Random(seed)
    host, store = kept(manual=True)
    peers: dict[str, Peer] = {}
    publisher = host.connect("p", 5)
    for number in range(40):
        name = f"c{dice.randrange(4)}"
        match dice.randrange(6):
            case 0:
                topic = f"r/{dice.randrange(3)}"
                publisher.publish(topic, b"%d" % number + LARGE, 1, retain=True)
            case 1:
                peers[name] = sent(host, name, 5, clean=dice.random() < 0.2, properties=SLOW)
            case 2 if name in peers:
                peers[name].send(wire.subscribe(5, peers[name].packet_id(), ("r/#", dice.randrange(1, 3))))
            case 3 if name in peers:
                for packet in [packet for packet in peers[name].packets if packet.kind == "PUBLISH"][-1:]:
                    peers[name].ack("PUBACK" if packet.qos == 1 else "PUBREC", packet.packet_id)
            case 4 if name in peers:
                peers.pop(name).send(wire.disconnect(5))
            case _:
                host.node.router.journal.durable(store.sync(dice.randrange(4)))
        host.settle()
        check_whole(store.after_crash(manual=False))


def check_whole(store: KeptStore) -> None:
    """A host starts with it and sets nothing aside; nothing is left when all sessions have taken their messages."""
    named = {message_of(value) for value in family(store, schema.QUEUED).values()} - {None}
    assert named == {schema.key_position(key) for key in family(store, schema.MESSAGE)}
    host = Host(stores=[store])
    assert not host.counters()["records_set_aside"]
    for name in [session.client_id for session in host.node.sessions]:
        lasting(host, name, 5).receive()
    host.pass_time(1)
    assert not family(store, schema.QUEUED)
    assert not family(store, schema.MESSAGE)


@pytest.mark.parametrize("damaged", [None, b"", b"\0" * 7])
def test_a_message_that_is_not_there_ends_nothing(damaged: bytes | None) -> None:
    host, store = kept()
    retained(host, LARGE, b"small")
    waiting(host, "a", "b")
    (key,) = family(store, schema.MESSAGE)
    crashed = store.after_crash()
    if damaged is None:
        del crashed.records[key]
    else:
        crashed.records[key] = damaged
    after = Host(stores=[crashed])
    assert after.counters()["records_set_aside"] == 2 + (damaged is not None)
    for name in "ab":
        assert bodies(lasting(after, name, 5)) == [b"small"]
    again = after.crash().stores[0]
    assert isinstance(again, KeptStore)
    assert len(family(again, schema.SET_ASIDE)) == 2 + (damaged is not None)
    strict = store.after_crash()
    del strict.records[key]
    with pytest.raises(StoreError, match="is not there"):
        Host(stores=[strict], strict_store=True)


def test_it_is_kept_for_a_queued_message_that_was_set_aside() -> None:
    host, store = kept()
    retained(host, LARGE)
    waiting(host, "a")
    crashed = store.after_crash()
    crashed.records[schema.session_key("a")] = b""
    for _ in range(2):
        Host(stores=[crashed])
        crashed = crashed.after_crash()
        assert len(family(crashed, schema.MESSAGE)) == 1
        assert not family(crashed, schema.QUEUED)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3)])
def test_another_number_of_workers(tmp_path: Path, before: int, after: int) -> None:
    host = on_disk(paths(tmp_path, before))
    names = [client_of(worker, 3) for worker in range(3)]
    retained(host, LARGE, b"small")
    waiting(host, *names)
    host = go_on(tmp_path, host, after)
    for name in names:
        assert bodies(lasting(host, name, 5)) == sorted([LARGE, b"small"])
    host.pass_time(1)
    let_go(host)
    for path in paths(tmp_path / "next", after):
        assert not strays(path)
        with plyvel.DB(str(path)) as db:
            assert not list(db.iterator(prefix=schema.MESSAGE))


def test_what_store_verify_says_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = paths(tmp_path, 1)
    host = on_disk([path])
    retained(host, LARGE)
    waiting(host, "a")
    let_go(host)
    assert verify([Place(path)]) == 0
    capsys.readouterr()
    with plyvel.DB(str(path)) as db:
        ((key, value),) = db.iterator(prefix=schema.MESSAGE)
        ((_, queued),) = db.iterator(prefix=schema.QUEUED)
        assert queued_messages.decode_queued(whole(queued, db.get)).message.payload == LARGE
        db.delete(key)
        db.put(message_key(5), value)
    assert verify([Place(path)]) == 1
    said = capsys.readouterr().out
    assert "1 of these belong to nothing: message that is queued for no session" in said
    assert f"message {schema.key_position(key)} is not there" in said

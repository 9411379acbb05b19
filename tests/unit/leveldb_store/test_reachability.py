"""Each record of a store belongs to something that exists; orphans are found, by kind."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import plyvel
import pytest

from broker.cli.store_command import Place, verify
from leveldb_store.format import link_schema, queued_messages, schema, session_schema
from leveldb_store.format.replay_schema import replay_key
from leveldb_store.format.subscription_schema import encode_subscription
from leveldb_store.reachability import unreachable
from pyx.core.peer import sibling
from tests.kept_host import WILL, lasting, let_go, on_disk
from tests.sansio import Host

WILL_OF_NOBODY = session_schema.StoredWill(5, 5, None, schema.StoredMessage(b"t", b"x", 0))
MESSAGE = queued_messages.encode_queued(queued_messages.StoredQueued(1, 0, b"", schema.StoredMessage(b"t", b"x", 1)))


def strays(path: Path) -> Counter[str]:
    with plyvel.DB(str(path)) as db:
        return Counter(stray.kind for stray in unreachable(lambda prefix: db.iterator(prefix=prefix), db.get))


def lived_in(path: Path) -> Host:
    """Return a store with records of every family that a client can cause."""
    path.mkdir()
    host = on_disk([path])
    publisher = host.connect("publisher", 5)

    def publish(topic: str, body: bytes = b"x", retain: bool = False) -> None:
        publisher.publish(topic, body, 1, retain=retain)
        publisher.receive()

    publish("retained", retain=True)
    for number in range(4):
        peer = lasting(host, f"client-{number}", 5, will=WILL, properties={"receive_maximum": 2})
        peer.subscribe((f"own/{number}", 2), ("all", 1), ("$share/g/t", 1))
    for topic in ("all", "t", "t", "t", "own/1", "own/2", "all", "t"):
        publish(topic)
    lasting(host, "client-0", 5).receive()
    host.lose(host.peers[2])
    publish("all")
    host.lose(host.connect("client-3", 5, clean=True))
    host.pass_time(2)
    host.node.router.sweeping.sweep()
    return host


def test_what_lives_is_reachable(tmp_path: Path) -> None:
    host = lived_in(tmp_path / "0")
    let_go(host)
    assert strays(tmp_path / "0") == {}
    host = on_disk([tmp_path / "0"], start_ms=host.now_ms)
    host.pass_time(2)
    host.node.router.sweeping.sweep()
    let_go(host)
    assert strays(tmp_path / "0") == {}


def test_what_belongs_to_nothing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "0"
    let_go(lived_in(path))
    capsys.readouterr()
    assert verify([Place(path)]) == 0
    part = schema.Part(2**40, 0, 0, 2**40, 1, [(2**40, 5)])
    block = schema.encode_block([schema.StoredMessage(b"t", b"x", 1)])
    planted = {
        "subscription of no session": {schema.subscription_key("gone", b"t"): encode_subscription(1, 0, 0)},
        "window of no session": {schema.window_key("gone"): b""},
        "replay of no session": {replay_key("gone", b"t"): b""},
        "queued message of no session": {schema.queued_key("gone", 2**60): MESSAGE},
        "queued message of a former session": {schema.queued_key("client-0", 5 << 8): MESSAGE},
        "will of no session": {schema.will_key("gone"): session_schema.encode_will(WILL_OF_NOBODY)},
        "part of no index": {
            schema.part_key(999, 2**40): schema.encode_part(part),
            schema.block_key(2**40): block,
        },
        "trim of no index": {schema.trimmed_key(999): schema.U64.pack(1)},
        "spans of no index": {schema.dropped_key(999): b""},
        "count of no block": {schema.wanted_key(2**41): schema.U32.pack(1)},
        "block that no index lists": {schema.block_key(2**42): block},
        "block that waits for parts that are deleted": {schema.wanted_key(2**40): schema.U32.pack(2)},
        "hand-off log of no worker": {schema.handoff_key(sibling(7), 5): link_schema.encode_handoff(0, b"", [])},
        "link position of no worker": {schema.peer_key(sibling(7)): link_schema.encode_peer(1, 1)},
    }
    with plyvel.DB(str(path)) as db:
        db.put(schema.STORE, b'{"worker": 0, "workers": 1, "epoch": "e"}')
        for records in planted.values():
            for key, value in records.items():
                db.put(key, value)
    assert strays(path) == dict.fromkeys(planted, 1)
    assert verify([Place(path)]) == 1
    said = capsys.readouterr().out
    assert all(f"1 of these belong to nothing: {kind}; the first is " in said for kind in planted), said


def test_a_will_of_a_client_that_is_there_needs_no_session(tmp_path: Path) -> None:
    with plyvel.DB(str(tmp_path / "0"), create_if_missing=True) as db:
        db.put(schema.will_key("here"), session_schema.encode_will(WILL_OF_NOBODY._replace(due=0)))
        assert list(unreachable(lambda prefix: db.iterator(prefix=prefix), db.get)) == []

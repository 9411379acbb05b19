"""Any record of a store, damaged in any way: the broker starts with any number of workers, all other clients have their
state, and `store verify` ends with a report of it.

A damaged record may still be readable (a flipped bit of a payload): then its own client may see the damage, and no
other.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import plyvel
import pytest

from broker.cli.store_command import Place, verify
from broker.repartition.stores import repartition
from leveldb_store.format import schema
from tests.kept_host import WILL, lasting, let_go, on_disk
from tests.sansio import Peer

CLIENTS = [f"c{number}" for number in range(6)]
WORKERS = 2
TRIES = 36
OF_CLIENTS = {schema.SESSION, schema.SUBSCRIPTION, schema.WINDOW, schema.WINDOW_PAGE, schema.QUEUED, schema.WILL}
OF_NOBODY = {schema.EVENT, schema.TRIMMED, schema.DROPPED, schema.WANTED}


@dataclass(frozen=True)
class Whole:
    """Undamaged stores, and the state that each client has there."""

    stores: list[Path]
    records: list[tuple[int, bytes, bytes]]
    now: int
    bodies: dict[str, list[bytes]]


def bodies(peer: Peer) -> list[bytes]:
    return sorted(packet.payload for packet in peer.receive() if packet.kind == "PUBLISH")


def answered(peer: Peer) -> list[bytes]:
    """Return all messages of a session, whatever its Receive Maximum; each is acknowledged."""
    found: list[bytes] = []
    while got := bodies(peer):
        found += got
    return sorted(found)


def made(directory: Path) -> Whole:
    stores = [directory / str(worker) for worker in range(WORKERS)]
    for store in stores:
        store.mkdir(parents=True)
    host = on_disk(stores)
    publisher = host.connect("publisher", 5)

    def publish(topic: str, body: bytes, qos: int = 1, retain: bool = False) -> None:
        publisher.publish(topic, body, qos, retain=retain)
        publisher.receive()

    publish("retained/1", b"r", retain=True)
    for name in CLIENTS:
        peer = lasting(host, name, 5, will=WILL, username="u", properties={"receive_maximum": 2})
        peer.subscribe((f"own/{name}", 2), ("all", 1), ("$share/g/shared", 1), ("retained/#", 1))
    for number in range(4):
        publish("all", b"all %d" % number)
        publish("shared", b"shared %d" % number)
    for name in CLIENTS:
        publish(f"own/{name}", name.encode(), qos=2)
    for peer in host.peers[2::2]:
        host.lose(peer)
    publish("all", b"large" * 1000)
    host.pass_time(2)
    host.node.router.sweeping.sweep()
    let_go(host)
    records = []
    for worker, store in enumerate(stores):
        with plyvel.DB(str(store)) as db:
            records += [(worker, key, value) for key, value in db]
    return Whole(stores, records, host.now_ms, {})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    directory = tmp_path_factory.mktemp("whole")
    found = made(directory / "stores")
    found.bodies.update(read(copied(found, directory / "copy"), found.now))
    assert all(b"all 0" in each for each in found.bodies.values())
    return found


def copied(whole: Whole, directory: Path) -> list[Path]:
    stores = [directory / str(worker) for worker in range(WORKERS)]
    for old, new in zip(whole.stores, stores, strict=True):
        shutil.copytree(old, new)
    return stores


def read(stores: list[Path], now: int) -> dict[str, list[bytes]]:
    """Return the state that each client with a session finds; every worker sweeps."""
    host = on_disk(stores, start_ms=now)
    found = {}
    try:
        host.pass_time(1)
        for node in host.nodes:
            node.router.sweeping.sweep()
        for name in CLIENTS:
            peer = lasting(host, name, 5)
            if peer.session_present:
                found[name] = answered(peer)
            assert not peer.closed, name
        host.pass_time(1)
        for node in host.nodes:
            node.router.sweeping.sweep()
    finally:
        let_go(host)
    return found


def damaged(rng: random.Random, value: bytes) -> bytes:
    at = rng.randrange(len(value)) if value else 0
    ways = [
        value[:at] + bytes((value[at] ^ 1 << rng.randrange(8),)) + value[at + 1 :] if value else b"\0",
        value[:at],
        value + rng.randbytes(rng.randrange(1, 20)),
        value[:at] + b"\xff" * rng.choice((1, 2, 4, 8)) + value[at + 1 :],
        rng.randbytes(len(value)),
    ]
    return rng.choice(ways)


def is_of(key: bytes, name: str) -> bool:
    return key[:1] in OF_CLIENTS and key[1:].partition(b"\0")[0] == name.encode()


@pytest.mark.parametrize("after", [1, 2, 3])
def test_whatever_is_damaged_the_rest_serves(
    whole: Whole, tmp_path: Path, capsys: pytest.CaptureFixture[str], after: int
) -> None:
    """A random record of a random family; the seed identifies the attempt."""
    families = sorted({key[:1] for _, key, _ in whole.records})
    for seed in range(after, TRIES, 3):
        rng = random.Random(seed)
        family = rng.choice(families)
        worker, key, value = rng.choice([each for each in whole.records if each[1][:1] == family])
        if key in (schema.SCHEMA, schema.STORE):
            continue  # the identity of a store is not guessed: these are refused
        new = damaged(rng, value)
        what = f"seed {seed}: {key!r} is {new!r}"
        stores = copied(whole, tmp_path / str(seed))
        with plyvel.DB(str(stores[worker])) as db:
            db.put(key, new)
        verify([Place(store) for store in stores])
        if after != WORKERS:
            moved = [tmp_path / f"{seed}-moved" / str(each) for each in range(after)]
            for store in moved:
                store.mkdir(parents=True)
            repartition(stores, moved, "before", "after")
            stores = moved
        found = read(stores, whole.now)
        for name in CLIENTS:
            if family in OF_CLIENTS | OF_NOBODY and not is_of(key, name):
                assert found.get(name) == whole.bodies[name], f"{what}: {name}"
            elif family != schema.SESSION:
                assert name in found, what
    capsys.readouterr()


@pytest.mark.parametrize("family", [schema.PART, schema.TRIMMED, schema.DROPPED, schema.WANTED])
@pytest.mark.parametrize("value", [b"", b"\xff" * 8, b"\xff" * 48, b"\x01\x00\x00\x00" + b"\xff" * 32])
def test_a_damaged_index_serves_what_can_be_read(tmp_path: Path, family: bytes, value: bytes) -> None:
    """An index's first part or its range is damaged: messages of all other parts arrive; those read are deleted."""
    store = tmp_path / "0"
    store.mkdir()
    host = on_disk([store])
    for name in ("c", "d"):
        client = lasting(host, name, 5)
        client.subscribe(("t", 1), (name, 1))
        host.lose(client)
    publisher = host.connect("p")
    for number in range(5):
        publisher.publish("t", b"%d" % number, qos=1)
        publisher.publish("c", b"own %d" % number, qos=1)
        publisher.receive()
    let_go(host)
    with plyvel.DB(str(store)) as db:
        number = schema.decode_u32(db.get(schema.name_key(b"t")))
        first = next(key for key in db.iterator(prefix=schema.part_key(number, 0)[:5], include_value=False))
        block = next(db.iterator(prefix=schema.BLOCK, include_value=False))
        keys = {
            schema.PART: first,
            schema.TRIMMED: schema.trimmed_key(number),
            schema.DROPPED: schema.dropped_key(number),
            schema.WANTED: schema.wanted_key(schema.key_position(block)),
        }
        db.put(keys[family], value)
    host = on_disk([store], start_ms=host.now_ms)
    lost = {b"0"} if family == schema.PART else set()
    expected = sorted({b"%d" % number for number in range(5)} - lost)
    assert answered(lasting(host, "c", 5)) == sorted([*expected, *(b"own %d" % number for number in range(5))])
    host.node.router.sweeping.sweep()
    assert answered(lasting(host, "d", 5)) == expected
    host.node.router.sweeping.sweep()
    publisher = host.connect("p")
    publisher.publish("t", b"new", qos=1)
    assert answered(host.peers[-2]) == [b"new"]
    let_go(host)


def test_positions_that_a_disk_has_lost_are_given_anew(tmp_path: Path) -> None:
    """The end of the log is lost with the record of its length: sessions that had read it get what follows."""
    store = tmp_path / "0"
    store.mkdir()
    host = on_disk([store])
    client = lasting(host, "c", 5)
    client.subscribe(("t", 1))
    publisher = host.connect("p")
    for number in range(5):
        publisher.publish("t", b"%d" % number, qos=1)
    assert len(answered(client)) == 5
    client.subscribe(("u", 1))
    host.pass_time(1)
    host.lose(client)
    let_go(host)
    with plyvel.DB(str(store)) as db:
        for key in [key for key, _ in db if key[:1] in (schema.BLOCK, schema.PART) or key == schema.POSITION]:
            db.delete(key)
    host = on_disk([store], start_ms=host.now_ms)
    publisher = host.connect("p")
    for topic in ("t", "u"):
        publisher.publish(topic, topic.encode(), qos=1)
    assert answered(lasting(host, "c", 5)) == [b"t", b"u"]
    let_go(host)

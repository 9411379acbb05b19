"""Wills of QoS 0 where the store keeps: published at most once, whenever the worker is killed."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from pyx.core import work
from pyx.delivery.connection import Connection
from pyx.protocol.packets import Connect
from tests import wire
from tests.kept_store import KeptStore
from tests.sansio import OPEN, Host, Peer
from tests.unit.pyx.delivery.test_router import client_at

TOPIC = "status"


def watcher(host: Host) -> Peer:
    """Return a client of the last worker that receives the wills."""
    watching = host.connect(client_at(len(host.nodes) - 1, len(host.nodes), "watching"), 5)
    watching.subscribe((TOPIC, 2), ("other", 2))
    return watching


def payloads(peer: Peer) -> list[bytes]:
    return [packet.payload for packet in peer.receive()]


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("durable", [True, False])
def test_published_once_over_a_kill(shards: int, clean: bool, durable: bool) -> None:
    """The worker is killed before or after the deletion of the will's record is durable."""
    stores = [KeptStore() for _ in range(shards)]
    host = Host(shards, stores=stores)
    watching = watcher(host)
    will = wire.Will(TOPIC, b"gone", 0)
    gone = host.connect(client_at(0, shards, "gone"), 5, clean=clean, expiry=0 if clean else 1000, will=will)
    stores[0].manual = True
    host.lose(gone)
    before = payloads(watching)
    assert before == [], "its record is there"
    if durable:
        stores[0].manual = False
        host.settle()
        before = payloads(watching)
        assert before == [b"gone"]
    host = host.crash()
    watching = watcher(host)
    host.pass_time(1)
    host.pass_time(1)
    assert before + payloads(watching) == ([b"gone"] if durable else [])


def test_a_will_is_not_published_again_by_a_second_kill() -> None:
    """The successor publishes it, and is killed before its own deletion of the record is durable."""
    host = Host(stores=[KeptStore()])
    host.connect("gone", 5, will=wire.Will(TOPIC, b"gone", 0, retain=True))
    for _ in range(3):
        host = Host(stores=[host.stores[0].after_crash(manual=True)])
        host.pass_time(1)
        assert host.counters()["retained_messages"] == 0
    host.stores[0].sync()
    host.settle()
    assert host.counters()["retained_messages"] == 1


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("takes_over", [True, False])
def test_a_client_that_comes_back_publishes_after_its_will(shards: int, clean: bool, takes_over: bool) -> None:
    """Its CONNACK waits for the will, so that what it publishes then is retained."""
    stores = [KeptStore() for _ in range(shards)]
    host = Host(shards, stores=stores)
    client_id = client_at(0, shards, "client")
    options: dict[str, Any] = {"clean": clean, "properties": {"session_expiry_interval": 0 if clean else 1000}}
    first = host.connect(client_id, 5, will=wire.Will(TOPIC, b"offline", 0, retain=True), **options)
    stores[0].manual = True
    if not takes_over:
        host.lose(first)
    again = host.open(5, 0)
    again.send(wire.connect(5, client_id, **options))
    host.settle()
    again.silent()
    stores[0].manual = False
    stores[0].sync()
    host.settle()
    assert again.next("CONNACK").reason == 0
    again.publish(TOPIC, b"online", retain=True)
    host.settle()
    late = host.connect(client_at(0, shards, "late"), 5)
    late.subscribe((TOPIC, 1))
    assert payloads(late) == [b"online"]


def test_a_will_of_qos_0_waits_for_no_disk_without_a_store() -> None:
    host = Host()
    watching = watcher(host)
    host.lose(host.connect("gone", 5, will=wire.Will(TOPIC, b"gone", 0)))
    assert payloads(watching) == [b"gone"]


def test_what_waited_for_the_disk_goes_on_in_slices() -> None:
    """2,000 clients connect, and 2,000 with a will are lost, while the disk takes nothing."""
    store = KeptStore()
    host = Host(stores=[store])
    watching = watcher(host)
    many = 2_000
    gone = [host.connect(f"gone{number}", 5, will=wire.Will(TOPIC, b"gone", 0)) for number in range(many)]
    store.manual = True
    for peer in gone:
        peer.node.router.state.close(peer.conn, 0, "lost")
    host.settle()
    coming = [host.open(5) for _ in range(many)]
    for number, peer in enumerate(coming):
        peer.send(wire.connect(5, f"coming{number}", clean=False, properties={"session_expiry_interval": 100}))
    host.settle()
    assert not any(peer.packets for peer in coming)
    work.forget()
    host.node.router.journal.durable(store.sync())
    assert host.node.router.journal.callbacks_due
    assert work.highest()["stored"] < work.BOUND // 2
    late: list[bool] = []
    host.node.router.journal.when_durable(lambda: late.append(any(peer.conn.state != OPEN for peer in coming)))
    store.manual = False
    host.settle()
    assert work.over() == {}
    assert late == [False], "it follows those that began to wait before"
    assert [peer.next("CONNACK").reason for peer in coming] == [0] * many
    assert len(payloads(watching)) == many


def filled(host: Host, store: KeptStore) -> None:
    """Let the store fall behind: it takes nothing."""
    store.manual = True
    filler = host.connect("filler", 5)
    for number in range(200):
        filler.publish(f"filler/{number}", bytes(1000), retain=True)
        host.turn()
    host.pass_time(0.3)
    assert host.node.router.back_pressure.is_store_behind


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("former", ["delayed", "lost", "taken over"])
@pytest.mark.parametrize("disk", ["full", "behind", "failed"])
def test_a_stored_session_is_resumed_whatever_will_it_had(disk: str, former: str, qos: int) -> None:
    """Nothing of it changes. Only the CONNACK behind a will of QoS 0 waits, and is refused while the store fails."""
    store = KeptStore()
    host = Host(stores=[store], limits={"store_unwritten_bytes_max": 100_000})
    properties = {"will_delay_interval": 100} if former == "delayed" else {}
    device = host.connect(
        "device", 5, clean=False, expiry=1000, will=wire.Will(TOPIC, b"offline", qos, properties=properties)
    )
    if former != "taken over":
        host.lose(device)
    if disk == "behind":
        filled(host, store)
    else:
        store.little_room, store.failed = "no room", "no disk" if disk == "failed" else None
    host.pass_time(0.3)
    again = host.open(5)
    again.send(wire.connect(5, "device", clean=False, properties={"session_expiry_interval": 1000}))
    host.settle()
    host.pass_time(0.3)
    if former == "taken over" and qos == 0 and disk == "failed":
        assert again.next("CONNACK").reason == 0x88
        return
    if former == "taken over" and qos == 0 and disk == "behind":
        assert not again.packets
        store.manual = False
        store.sync()
        host.settle()
    connack = again.next("CONNACK")
    assert (connack.reason, connack.session_present) == (0, True)


def connects() -> int:
    """Return the number of decoded CONNECTs in memory, with those that other tests have left."""
    gc.collect()
    return sum(isinstance(each, Connect) for each in gc.get_objects())


@pytest.mark.parametrize("disk", ["slow", "behind"])
def test_connections_that_are_gone_hold_no_connect(disk: str) -> None:
    """They wait behind the will, or are refused; their CONNECTs may be large."""
    store = KeptStore()
    host = Host(stores=[store], limits={"store_unwritten_bytes_max": 100_000})
    device = host.connect("device", 5, will=wire.Will(TOPIC, b"offline", 0))
    if disk == "behind":
        filled(host, store)
    store.manual = True
    host.lose(device)
    before = connects()
    for _ in range(50):
        again = host.open(5)
        again.send(wire.connect(5, "device", properties={"user_property": [("k", "v" * 1000)]}))
        host.settle()
        host.lose(again)
        assert [packet.reason for packet in again.packets] == ([] if disk == "slow" else [0x88])
    assert connects() < before + 5
    store.manual = False
    store.sync()
    host.settle()
    assert host.connect("device", 5).session is not None


@pytest.mark.parametrize("patient", [0, 10, 1500])
def test_connections_that_are_gone_are_not_held_while_the_disk_hangs(patient: int) -> None:
    """A client gives up and tries again, thousands of times; others wait."""
    store = KeptStore()
    host = Host(stores=[store], limits={"takeovers_per_minute_max": 0})
    names = ["device", *(f"patient{number}" for number in range(patient))]
    devices = [host.connect(name, 5, will=wire.Will(TOPIC, b"offline", 0)) for name in names]
    store.manual = True
    for device in devices:
        host.lose(device)
    waiting = [host.open(5) for _ in range(patient)]
    for name, peer in zip(names[1:], waiting, strict=True):
        peer.send(wire.connect(5, name))
    host.settle()
    before = connections()
    for _ in range(4000):
        again = host.open(5)
        again.send(wire.connect(5, "device"))
        host.turn()
        host.lose(again)
        host.peers.remove(again)
        host.peer_of.clear()
    assert connections() <= before + 1000 + patient + 5
    store.manual = False
    store.sync()
    host.peer_of.update((peer.conn, peer) for peer in waiting)
    host.settle()
    assert [[packet.reason for packet in peer.packets] for peer in waiting] == [[0]] * patient


def connections() -> int:
    gc.collect()
    return sum(isinstance(each, Connection) for each in gc.get_objects())


def test_when_the_broker_stops_they_wait_for_no_disk() -> None:
    """Those that wait come at once, in their order, and those that follow; none comes twice."""
    store = KeptStore()
    host = Host(stores=[store])
    watching = watcher(host)
    peers = [host.connect(f"gone{number}", 5, will=wire.Will(TOPIC, b"%d" % number, 0)) for number in range(4)]
    store.manual = True
    host.lose(peers[1])
    host.lose(peers[0])
    assert payloads(watching) == []
    host.node.wills.stop()
    host.settle()
    assert payloads(watching) == [b"1", b"0"]
    host.lose(peers[2])
    assert payloads(watching) == [b"2"]
    store.manual = False
    store.sync()
    host.settle()
    host.lose(peers[3])
    assert payloads(watching) == [b"3"]

"""Numbers of the stream to a sibling are given out once, however often and whenever a worker is killed; and where the
store has lost what a sibling has received, the link goes on in another stream.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests import wire
from tests.kept_store import KeptStore
from tests.sansio import Host, Peer
from tests.unit.pyx.delivery.test_router import client_at
from zmq_mesh.contract import LinkLimits

SILENCE = LinkLimits().link_silence_seconds_max


def host_of(stores: Sequence[KeptStore]) -> Host:
    host = Host(len(stores), stores=list(stores))
    host.settle()
    return host


def client(host: Host, worker: int, name: str) -> Peer:
    return host.connect(client_at(worker, len(host.nodes), name), 5)


def subscriber(host: Host, worker: int) -> Peer:
    """Return a client that has its SUBACK, which may have waited for a slow disk."""
    peer = client(host, worker, f"subscriber{worker}")
    peer.send(wire.subscribe(5, 1, ("t/#", 1)))
    host.settle()
    host.pass_time(SILENCE + 1)
    peer.next("SUBACK")
    return peer


def publish(host: Host, worker: int, payload: bytes, count: int = 5) -> None:
    peer = client(host, worker, f"publisher{worker}")
    for number in range(count):
        peer.publish(f"t/{number}", payload, 0, retain=True)
        host.settle()


def assert_they_speak(host: Host) -> None:
    """Publishes of QoS 1 arrive at the other worker, in both directions."""
    host.pass_time(SILENCE + 1)
    for worker in range(2):
        hearer = subscriber(host, 1 - worker)
        hearer.receive()
        speaker = client(host, worker, f"speaker{worker}")
        for number in range(10):
            speaker.publish(f"t/{number}", b"now", 1)
            host.settle()
        host.pass_time(1)
        assert [(packet.topic, packet.payload) for packet in hearer.receive()] == [
            (f"t/{number}", b"now") for number in range(10)
        ]
        for peer in (hearer, speaker):
            peer.disconnect()


@pytest.mark.parametrize("kills", [1, 2, 3])
@pytest.mark.parametrize("killed", [(0,), (1,), (0, 1)], ids=str)
def test_a_worker_is_killed_before_its_disk_has_written_anything(kills: int, killed: tuple[int, ...]) -> None:
    host = host_of([KeptStore(), KeptStore()])
    host.pass_time(1)
    for _ in range(kills):
        stores = [store.after_crash(manual=worker in killed) for worker, store in enumerate(host.stores)]
        host = host_of(stores)
        for worker in range(2):
            subscriber(host, worker)
        for worker in killed:
            publish(host, worker, b"lost")
    host = host_of([store.after_crash(manual=False) for store in host.stores])
    assert_they_speak(host)


def test_a_store_that_has_lost_what_a_sibling_has_received() -> None:
    """As when a power cut leaves the newer records of one worker, and the older ones of another."""
    host = host_of([KeptStore(), KeptStore()])
    host.pass_time(1)
    before = host.stores[0].after_crash()
    host = host_of([store.after_crash() for store in host.stores])
    subscriber(host, 1)
    publish(host, 0, b"before")
    host.pass_time(1)
    host = host_of([before, host.stores[1].after_crash()])
    assert_they_speak(host)
    host = host_of([store.after_crash() for store in host.stores])
    assert_they_speak(host)


def test_what_its_log_has_is_sent_although_the_store_has_lost_something() -> None:
    """What waits in the hand-off log is sent in the other stream, behind nothing that was not there before."""
    host = host_of([KeptStore(), KeptStore()])
    lasting = host.connect(client_at(1, 2, "lasting"), 5, clean=False, properties={"session_expiry_interval": 1000})
    lasting.subscribe(("kept", 1))
    lasting.disconnect()
    host.pass_time(1)
    host.kill(1)
    publisher = client(host, 0, "publisher")
    publisher.publish("kept", b"logged", 1)
    host.settle()
    assert [packet.kind for packet in publisher.packets] == ["PUBACK"]
    before = host.stores[0].after_crash()
    stores = [host.stores[0].after_crash(), host.stores[1].after_crash()]
    stores[1].manual = True  # it receives the message, and loses it with its disk's cache
    host = host_of(stores)
    host.pass_time(1)
    host = host_of([before, host.stores[1].after_crash(manual=False)])
    host.pass_time(SILENCE + 1)
    again = host.connect(client_at(1, 2, "lasting"), 5, clean=False, properties={"session_expiry_interval": 1000})
    host.pass_time(1)
    assert [packet.payload for packet in again.receive()] == [b"logged"]
    assert_they_speak(host)

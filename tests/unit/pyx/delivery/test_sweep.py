"""A sweep of the log in a persistent store reads only the indexes in which something has happened."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kept_store import KeptStore
from tests.sansio import Host, Peer

OTHERS = 20


class Looked(KeptStore):
    """A store that records which indexes a sweep has read."""

    def __init__(self) -> None:
        super().__init__()
        self.looked: list[bytes] = []

    def position_of_last(self, index: bytes, messages: int, bytes_max: int) -> int:
        self.looked.append(index)
        return super().position_of_last(index, messages, bytes_max)


class Fleet:
    """Offline sessions, each with a filter of its own and a message that waits; the first one is connected."""

    def __init__(self) -> None:
        self.store = Looked()
        self.host = Host(stores=[self.store])
        self.publisher = self.host.connect("publisher")
        for number in range(OTHERS):
            peer = self.host.connect(f"c{number}", clean=False)
            peer.subscribe((f"t/{number}", 1))
            peer.disconnect()
            self.publish(number)
        self.peer = self.come_back()
        self.swept()

    def come_back(self) -> Peer:
        return self.host.connect("c0", clean=False)

    def publish(self, number: int) -> None:
        self.publisher.publish(f"t/{number}", b"body", 1)
        self.host.settle()
        self.publisher.packets.clear()

    def swept(self) -> set[bytes]:
        """Return the indexes that the sweeps of some seconds read."""
        self.store.looked.clear()
        self.host.pass_time(3.2)
        return set(self.store.looked)


def test_what_rests_is_not_looked_at() -> None:
    fleet = Fleet()
    assert fleet.swept() == set()
    assert fleet.store.messages_held() == OTHERS


def answer(fleet: Fleet) -> None:
    assert [packet.payload for packet in fleet.peer.receive()] == [b"body"]


def unsubscribe(fleet: Fleet) -> None:
    fleet.peer.packets.clear()
    fleet.peer.unsubscribe("t/0")


def end(fleet: Fleet) -> None:
    fleet.peer.disconnect()
    fleet.host.connect("c0", clean=True)


@pytest.mark.parametrize(
    ("happens", "held"),
    [
        (lambda fleet: fleet.publish(0), 2),
        (answer, 0),
        (end, 0),
        (unsubscribe, 0),
    ],
    ids=["published", "answered", "ended", "unsubscribed"],
)
def test_what_has_changed_is_looked_at_and_trimmed(happens: Callable[[Fleet], None], held: int) -> None:
    fleet = Fleet()
    happens(fleet)
    assert fleet.swept() <= {b"t/0"}
    assert fleet.store.messages_held() == OTHERS - 1 + held
    assert fleet.swept() == set(), "once, or until it is in order"


def test_new_limits_concern_all() -> None:
    fleet = Fleet()
    fleet.host.node.reload(fleet.host.settings)
    assert fleet.swept() == {b"t/%d" % number for number in range(OTHERS)}


def test_what_has_expired_for_a_session_is_not_kept_for_it() -> None:
    """No expired message is sent, so that no window records how far the session has read."""
    store = Looked()
    host = Host(stores=[store])
    subscriber = host.connect("c", 5, clean=False, expiry=1000)
    subscriber.subscribe(("t", 1))
    subscriber.disconnect()
    publisher = host.connect("publisher", 5)
    publisher.publish("t", b"old", 1, properties={"message_expiry_interval": 1})
    host.settle()
    host.pass_time(5)
    assert store.messages_held() == 1
    assert host.connect("c", 5, clean=False, expiry=1000).receive() == []
    host.pass_time(2.2)
    assert store.messages_held() == 0


def test_after_a_start_all_are_looked_at_a_hundred_at_a_time() -> None:
    store = Looked()
    host = Host(stores=[store])
    for number in range(250):
        peer = host.connect(f"c{number}", clean=False)
        peer.subscribe((f"t/{number}", 1))
        peer.disconnect()
    publisher = host.connect("publisher")
    for number in range(250):
        publisher.publish(f"t/{number}", b"body", 1)
    host.settle()
    again = store.after_crash()
    looked: list[bytes] = []

    def position_of_last(index: bytes, messages: int, bytes_max: int) -> int:
        looked.append(index)
        return KeptStore.position_of_last(again, index, messages, bytes_max)

    again.position_of_last = position_of_last  # type: ignore[method-assign]
    host = Host(stores=[again])
    for expected in (100, 200, 250, 250):
        host.pass_time(1.0)
        assert len(looked) == len(set(looked)) == expected
    assert again.messages_held() == 250


def test_the_memory_store_is_swept_whole() -> None:
    """Sessions of the memory store store no windows: its whole content is swept."""
    host = Host()
    peer = host.connect("c", clean=False)
    peer.subscribe(("t", 1))
    peer.disconnect()
    host.connect("publisher").publish("t", b"body", 1)
    host.settle()
    again = host.connect("c", clean=False)
    host.pass_time(2.2)
    assert [packet.payload for packet in again.receive()] == [b"body"]
    host.pass_time(1.2)
    assert host.stores[0].messages_held() == 0

"""Which links a worker has with workers of other hosts, and what becomes of them when hosts come, change and go."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pyx.core.peer import Peer, host_of, peer_of, worker_of
from pyx.mesh.links import Links
from zmq_mesh.barrier import Barrier, HostsFirst
from zmq_mesh.contract import Buffer, LinkLimits, Outlet
from zmq_mesh.interest import Publisher
from zmq_mesh.rails import Host, RailPlace, Rails, endpoint_of, peers_of

WAIT_SECONDS = 300.0


@pytest.mark.parametrize("here", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("there", [1, 2, 3, 4, 16])
def test_each_worker_sends_over_one_rail_and_both_sides_agree(here: int, there: int) -> None:
    """Exactly one of its links leads to the host, and what one side sends over, the other receives over."""
    ours = {own: peers_of(7, there, own, here) for own in range(here)}
    theirs = {own: peers_of(3, here, own, there) for own in range(there)}
    for own, peers in ours.items():
        assert sum(sends for sends, _ in peers.values()) == 1
        for peer, (sends, receives) in peers.items():
            assert theirs[worker_of(peer)][peer_of(3, own)] == (receives, sends)
            assert sends or receives
    for worker in range(there):
        receiving = [own for own, peers in ours.items() if peers.get(peer_of(7, worker), (False, False))[1]]
        assert len(receiving) == 1


def test_where_a_worker_listens() -> None:
    """Each worker has the next port; an IPv6 address keeps its brackets."""
    assert endpoint_of("tcp://10.0.0.1:7000", 0) == "tcp://10.0.0.1:7000"
    assert endpoint_of("tcp://[::1]:7000", 3) == "tcp://[::1]:7003"


class Carrier:
    """A transport that notes what it is asked for."""

    is_immediate = False
    malformed = 0

    def __init__(self) -> None:
        self.connected: list[Peer] = []
        self.refuses: int | None = None
        self.calls: list[tuple[str, Peer]] = []

    def listen(self, receiver: object) -> None:
        pass

    def connect(self, peer: Peer, when_writable: Callable[[], object]) -> Outlet:  # noqa: ARG002
        if self.refuses is not None and host_of(peer) == self.refuses:
            raise ValueError("an address that cannot be used")
        self.connected.append(peer)

        def send(frames: list[Buffer]) -> bool:  # noqa: ARG001
            return False

        return Outlet(
            send,
            lambda: self.calls.append(("reconnect", peer)),
            None,
            lambda: self.calls.append(("close", peer)),
        )

    def receive(self) -> bool:
        return False

    def go_on(self) -> None:
        pass

    def tick(self) -> None:
        pass

    def close(self) -> None:
        self.calls.append(("close", Peer(0)))


class Places:
    """Places from 2 on, as many as `most`."""

    def __init__(self, most: int = 60) -> None:
        self.most = most
        self.taken: dict[int, tuple[Peer, bool, bool]] = {}

    def add(self, peer: Peer, *, sends: bool, receives: bool) -> RailPlace:
        place = next(at for at in range(2, 64) if at not in self.taken)
        if len(self.taken) == self.most:
            raise LookupError("no place")
        self.taken[place] = peer, sends, receives
        return RailPlace(place, None, (0, 0), ())

    def drop(self, place: int) -> None:
        del self.taken[place]


class Events:
    """Takes every event of a link."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Scene:
    """The rails of worker 0 of a host of two."""

    def __init__(self, most: int = 60) -> None:
        self.carrier, self.places = Carrier(), Places(most)
        self.together = Links(Publisher(), 1 << 20)
        self.rails = Rails(
            peer_of(1, 0),
            2,
            5_000,
            self.together,
            self.carrier,
            Publisher(),
            Events(),
            self.places,
            LinkLimits(),
            None,  # type: ignore[arg-type]  # no batch arrives
            lambda _peer: lambda: None,
            WAIT_SECONDS,
        )
        self.now = 0.0

    def set(self, *hosts: Host) -> list[int]:
        return list(self.rails.set_hosts({each.number: each for each in hosts}, self.now))


def host(
    number: int, workers: int = 2, address: str = "tcp://h:1", key: bytes = b"k", keeps: bool = True, node: str = ""
) -> Host:
    return Host(number, node or f"n{number}", workers, address, key, keeps)


def test_links_come_with_hosts() -> None:
    """A link for each, with an incarnation of its own, found by the number that messages have."""
    scene = Scene()
    scene.set(host(2), host(3, workers=4))
    assert scene.carrier.connected == [peer_of(2, 0), peer_of(3, 0), peer_of(3, 2)]
    incarnations = [link.incarnation for link in scene.rails.links.values()]
    assert incarnations == [5_000, 5_001, 5_002]
    assert {link.peer for link in scene.together.by_peer.values()} == set(scene.places.taken)
    assert all(host_of(link.number) in (2, 3) for link in scene.together.by_peer.values())


def test_another_address_or_key_connects_anew() -> None:
    """And nothing else does."""
    scene = Scene()
    scene.set(host(2))
    scene.set(host(2), host(3))
    assert scene.carrier.calls == []
    scene.set(host(2, address="tcp://h:9"), host(3, key=b"other"))
    assert scene.carrier.calls == [("reconnect", peer_of(2, 0)), ("reconnect", peer_of(3, 0))]


def test_a_host_with_a_disk_that_is_gone_is_kept() -> None:
    """Its rail waits for it; if it comes back with another key it connects anew."""
    scene = Scene()
    scene.set(host(2))
    scene.set()
    assert list(scene.rails.links) == [peer_of(2, 0)]
    scene.set(host(2, key=b"other"))
    assert scene.carrier.calls == [("reconnect", peer_of(2, 0))]


def test_a_host_that_cannot_be_linked_harms_no_other() -> None:
    """It takes no place, and is tried again with the next view."""
    scene = Scene()
    scene.carrier.refuses = 2
    assert scene.set(host(2), host(3)) == [2]
    assert set(scene.rails.links) == {peer_of(3, 0)}
    assert [peer for peer, _, _ in scene.places.taken.values()] == [peer_of(3, 0)]
    scene.carrier.refuses = None
    assert scene.set(host(2), host(3)) == []
    assert set(scene.rails.links) == {peer_of(2, 0), peer_of(3, 0)}


def test_a_host_without_a_disk_is_waited_for() -> None:
    """It may only be cut off from etcd, and has its sessions yet: what they are owed is kept."""
    scene = Scene()
    scene.set(host(2, keeps=False), host(3))
    link = scene.rails.links[peer_of(2, 0)]
    scene.now = 5.0
    scene.set(host(3))
    scene.now += WAIT_SECONDS - 1
    scene.rails.drop_the_gone(scene.now)
    assert scene.rails.links[peer_of(2, 0)] is link
    scene.set(host(2, keeps=False), host(3))
    scene.now += WAIT_SECONDS
    scene.set(host(3))
    scene.now += WAIT_SECONDS - 1
    scene.set(host(3))
    assert scene.rails.links[peer_of(2, 0)] is link
    scene.rails.drop_the_gone(scene.now + 1)
    assert set(scene.rails.links) == {peer_of(3, 0)}


def test_a_host_without_a_disk_that_begins_anew_is_not_waited_for() -> None:
    """It has another number, and nothing of what it had."""
    scene = Scene()
    scene.set(host(2, keeps=False))
    scene.set()
    assert set(scene.rails.links) == {peer_of(2, 0)}
    scene.set(host(5, keeps=False, node="n2"))
    assert set(scene.rails.links) == {peer_of(5, 0)}


def test_a_host_without_a_disk_that_is_gone_gives_way() -> None:
    """Its place is for hosts that are there, however often that happens."""
    scene = Scene(most=1)
    for number in range(2, 200):
        assert scene.set(host(number, keeps=False)) == []
        assert [each[0] for each in scene.places.taken.values()] == [peer_of(number, 0)]


def test_one_host_gives_way_to_one() -> None:
    """The others are waited for, as what they are owed is kept."""
    scene = Scene(most=3)
    scene.set(host(2, keeps=False), host(3, keeps=False), host(4, keeps=False))
    scene.now = 1.0
    scene.set(host(2, keeps=False), host(4, keeps=False))
    scene.now = 2.0
    scene.set()
    assert scene.set(host(5)) == []
    assert set(scene.rails.links) == {peer_of(2, 0), peer_of(4, 0), peer_of(5, 0)}


def test_fewer_workers_than_before() -> None:
    """Links to workers that are no more are dropped."""
    scene = Scene()
    scene.set(host(2, workers=4))
    assert set(scene.rails.links) == {peer_of(2, 0), peer_of(2, 2)}
    scene.set(host(2, workers=1))
    assert set(scene.rails.links) == {peer_of(2, 0)}
    assert ("close", peer_of(2, 2)) in scene.carrier.calls


def test_more_hosts_than_places() -> None:
    """They are named, and linked as soon as there is room."""
    scene = Scene(most=1)
    assert scene.set(host(2, keeps=False), host(3)) == [3]
    assert ("close", peer_of(3, 0)) in scene.carrier.calls
    assert scene.set(host(3)) == []
    assert set(scene.rails.links) == {peer_of(3, 0)}


# ------------------------------------------------------------------------------------------------- HostsFirst


class Waiter:
    """A link to a sibling, and hosts that know numbers up to `known`."""

    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        self.known = 0
        self.number = 0
        barrier = Barrier({Peer(0): self, Peer(1): self}, 2.0)
        self.barrier = barrier
        self.first = HostsFirst(barrier, 2.0)
        self.first.number = lambda: self.number
        self.first.lacks = lambda number: self.known < number

    def outstanding(self) -> int:
        return 0

    def lacks(self, number: int) -> bool:  # noqa: ARG002
        return False

    def acknowledge_interest(self, number: int) -> None:
        self.acknowledged.append(number)

    def flush(self, now: float) -> bool:  # noqa: ARG002
        return False


def test_interest_that_hosts_know_passes_at_once() -> None:
    waiter = Waiter()
    waiter.first.interest_arrived(Peer(0), 4, 0.0)
    waiter.barrier.submitted(0.0)
    assert waiter.acknowledged == [4]


def test_interest_waits_for_hosts() -> None:
    """What arrives meanwhile waits for its own number of the host's interest."""
    waiter = Waiter()
    waiter.number = 1
    waiter.first.interest_arrived(Peer(0), 4, 0.0)
    waiter.number = 2
    waiter.first.interest_arrived(Peer(0), 5, 0.0)
    waiter.barrier.submitted(0.0)
    assert waiter.acknowledged == []
    waiter.known = 1
    waiter.first.check(0.1)
    waiter.barrier.submitted(0.1)
    assert waiter.acknowledged == [4]
    waiter.known = 2
    waiter.first.check(0.2)
    waiter.barrier.submitted(0.2)
    assert waiter.acknowledged == [4, 5]


def test_no_host_is_waited_for_for_ever() -> None:
    waiter = Waiter()
    waiter.number = 1
    waiter.first.interest_arrived(Peer(0), 4, 0.0)
    waiter.first.check(1.9)
    waiter.barrier.submitted(1.9)
    assert waiter.acknowledged == []
    waiter.first.check(2.0)
    waiter.barrier.submitted(2.0)
    assert waiter.acknowledged == [4]


def test_a_dead_sibling_is_forgotten() -> None:
    waiter = Waiter()
    waiter.number = 1
    waiter.first.interest_arrived(Peer(0), 4, 0.0)
    waiter.first.interest_arrived(Peer(0), 5, 0.0)
    waiter.first.forget(Peer(0))
    waiter.known = 1
    waiter.first.check(9.0)
    waiter.barrier.submitted(9.0)
    assert waiter.acknowledged == []

"""Peers are (host, worker) in all data stored or sent: a worker of another host beside those of this one."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from broker.persistence.handoff_log import StoredHandoff
from leveldb_store.format import schema
from leveldb_store.format.schema import SchemaError
from pyx.core.peer import (
    HOSTS_MAX,
    OWN_HOST,
    WORKERS_MAX,
    Peer,
    host_of,
    is_sibling,
    peer_of,
    publisher_of,
    sibling,
    siblings,
    worker_of,
)
from pyx.mesh.contract import EnvelopeError
from pyx.mesh.link import Link
from pyx.protocol.message import Message
from pyx.storage.entries import pack_messages
from tests import mesh_messages
from tests.kept_store import KeptStore
from tests.sansio import Host
from zmq_mesh.contract import LinkLimits
from zmq_mesh.interest import Publisher

HOSTS = (0, 1, 2, 255, 256, HOSTS_MAX - 2, HOSTS_MAX - 1)
WORKERS = (0, 1, 63, 254, WORKERS_MAX - 1)
PEERS = [peer_of(host, worker) for host in HOSTS for worker in WORKERS]


def test_a_peer_is_a_host_and_a_worker() -> None:
    assert [(host_of(peer), worker_of(peer)) for peer in PEERS] == [(host, each) for host in HOSTS for each in WORKERS]
    assert len(set(PEERS)) == len(PEERS)
    assert max(PEERS) < 1 << 32
    assert [peer for peer in PEERS if is_sibling(peer)] == [peer_of(OWN_HOST, worker) for worker in WORKERS]


@pytest.mark.parametrize(("host", "worker"), [(-1, 0), (HOSTS_MAX, 0), (0, -1), (0, WORKERS_MAX)])
def test_there_is_no_other(host: int, worker: int) -> None:
    with pytest.raises(ValueError, match=f"^there is no worker {worker} of host {host}$"):
        peer_of(host, worker)


def test_siblings_are_the_others_of_the_own_host() -> None:
    assert list(siblings(0, 1)) == []
    assert list(siblings(2, 4)) == [0, 1, 3]
    assert all(map(is_sibling, siblings(2, 4)))


def test_the_publisher_is_in_a_message_number() -> None:
    router = Host(workers=4).nodes[3].router
    assert {publisher_of(router.state.next_number()) for _ in range(300)} == {sibling(3)}


# ---------------------------------------------------------------- in batches


@pytest.mark.parametrize("peer", PEERS)
def test_a_prefix_names_both(peer: Peer) -> None:
    frame = mesh_messages.pack_prefix(peer, sibling(1), 5, 6) + bytes(mesh_messages.HEAD.size)
    assert mesh_messages.unpack_prefix(frame) == (peer, sibling(1), 5, 6)
    frame = mesh_messages.pack_prefix(sibling(1), peer, 5, 6) + bytes(mesh_messages.HEAD.size)
    assert mesh_messages.unpack_prefix(frame)[:2] == (sibling(1), peer)


class Heard:
    """A link that records what it sends and accepts everything."""

    def __init__(self) -> None:
        self.batches: list[tuple[Peer, bytes]] = []
        self.told: list[tuple[str, Peer]] = []
        self.link: Link | None = None

    def batch(self, peer: Peer, _volatile: Any, sequenced: Any, _payloads: Any, sequence: int) -> None:
        assert self.link is not None
        if sequenced is not None:
            self.batches.append((peer, bytes(sequenced)))
            self.link.commit(sequence)

    def __getattr__(self, name: str) -> Any:
        return lambda peer, *_, **__: self.told.append((name, peer))


def test_workers_of_two_hosts_have_a_link() -> None:
    """Greeting, interest, batch and ack, both ways; a message of another worker of that host is refused."""
    ends = [peer_of(1, 3), peer_of(HOSTS_MAX - 1, 0)]
    sent: list[list[list[bytes]]] = [[], []]
    heard = [Heard(), Heard()]
    links = []
    for at, (own, peer) in enumerate(permutations(ends)):

        def send(frames: list[Any], to: list[list[bytes]] = sent[at]) -> bool:
            to.append([bytes(frame) for frame in frames])
            return True

        events: Any = heard[at]
        links.append(Link(own, peer, 1, Publisher(), events, send, LinkLimits(), 1.0))
        heard[at].link = links[at]
    part = pack_messages([Message.create(b"t", b"body", qos=1, number=7)])
    now = 1.0
    for turn in range(20):
        now += 0.05
        for at, link in enumerate(links):
            link.tick(now)
            if turn == 10:
                link.submit(None, part, [], [], 1)
                link.flush(now)
            for frames in sent[1 - at]:
                link.receive(frames, now)
            sent[1 - at].clear()
    assert [each.batches for each in heard] == [[(ends[1], part)], [(ends[0], part)]]
    for at, each in enumerate(heard):
        assert {peer for _, peer in each.told} == {ends[1 - at]}
        assert {"ready", "acknowledged"} <= {name for name, _ in each.told}
    stranger = mesh_messages.pack_prefix(peer_of(1, 2), ends[1], 1, 1) + bytes(mesh_messages.HEAD.size)
    with pytest.raises(EnvelopeError, match=f"^{peer_of(1, 2)} to {ends[1]} came"):
        links[1].receive([stranger], now)


# ---------------------------------------------------------------- in a store


@pytest.mark.parametrize("peer", PEERS)
def test_a_key_tells_its_peer(peer: Peer) -> None:
    for number in (0, 1, 2**64 - 1):
        assert schema.peer_of_key(schema.handoff_key(peer, number)) == peer
        assert schema.key_position(schema.handoff_key(peer, number)) == number
        assert schema.peer_of_key(schema.refusals_key(peer, number)) == peer
        assert schema.is_refusals(schema.refusals_key(peer, number))
    assert schema.peer_of_key(schema.peer_key(peer)) == peer
    assert not schema.is_refusals(schema.peer_key(peer))


def test_no_peer_has_keys_in_the_range_of_another() -> None:
    for one, other in permutations(PEERS, 2):
        assert not schema.handoff_key(one, 0).startswith(schema.handoff_prefix(other))
        assert not schema.refusals_key(one, 0).startswith(schema.peer_key(other))


def test_a_key_that_is_cut_off_is_damaged() -> None:
    whole = schema.peer_key(peer_of(1, 0))
    for end in range(1, len(whole)):
        with pytest.raises(SchemaError, match=r"^a key is cut off within its peer$"):
            schema.peer_of_key(whole[:end])


def test_hand_off_logs_of_a_sibling_and_of_another_host_lie_side_by_side() -> None:
    store = KeptStore()
    host = Host(workers=2, stores=[store, KeptStore()])
    part = pack_messages([Message.create(b"t", b"body", qos=2, number=7)])
    peers = [sibling(1), peer_of(1, 1), peer_of(257, 1)]
    for number, peer in enumerate(peers):
        log = StoredHandoff(host.node.router, store, peer, host.node.set_aside.take)
        log.reserve(10)
        log.append(11 + number, part, [], 1)
    host.settle()
    crashed = store.after_crash()
    found = [StoredHandoff(host.node.router, crashed, peer, host.node.set_aside.take).found() for peer in peers]
    assert [[sequence for sequence, _, _ in each] for each in found] == [[11], [12], [13]]

"""Entries for share groups that the chosen worker refuses: however many there are, each is reported once, chosen again,
and kept by a persistent store for as long as the sender may not know of it. No field width limits their number, and a
link never stops because of them.
"""

from __future__ import annotations

from collections import Counter

import pytest

from leveldb_store.format import link_schema, schema
from pyx.core.peer import sibling
from pyx.protocol.message import Message
from shards.placement import home
from tests import wire
from tests.kept_store import KeptStore
from tests.sansio import Host, Peer
from tests.unit.zmq_mesh.link_world import World
from zmq_mesh.contract import LinkLimits
from zmq_mesh.envelope import Refusal

WIDE = LinkLimits(peer_outbox_bytes_max=1 << 28, handoff_log_bytes_max=1 << 28)
MANY = 70_000  # more than 16 bits can count


@pytest.mark.parametrize("entries", [1, 999, 1000, 1001, 4096, 65_535])
def test_all_entries_of_a_batch_are_refused(entries: int) -> None:
    """The ack of a batch carries all its refusals, and the link continues."""
    world = World(2, limits=WIDE)
    sender, receiver = world.workers
    world.run(0.5)
    receiver.refuse = lambda _: [(i, Refusal.NO_MEMBER) for i in range(entries)]
    first = world.submit(0, 1, entries=entries)
    world.run(0.3)
    assert sender.acked[1] == first
    assert Counter(refusal[1:] for refusal in sender.refusals) == {
        (first, i, Refusal.NO_MEMBER): 1 for i in range(entries)
    }
    receiver.refuse = lambda _: []
    assert world.submit(0, 1) == first + 1
    world.run(0.3)
    assert sender.acked[1] == first + 1
    assert not receiver.links[0].incoming.refusals


@pytest.mark.parametrize("lost", [False, True])
def test_more_refusals_than_one_message_carries(lost: bool) -> None:
    """Refusals of many batches travel with the acks of their batches, also over a transport that loses messages."""
    world = World(2, limits=WIDE)
    sender, receiver = world.workers
    world.run(0.5)
    refused: dict[int, int] = {}

    def refuse(sequence: int) -> list[tuple[int, int]]:
        refused[sequence] = len(refused) * 37 % 700
        return [(i, Refusal.OFFLINE) for i in range(refused[sequence])]

    receiver.refuse = refuse
    world.network.loss = 0.3 if lost else 0.0
    tickets = [world.submit(0, 1, entries=700) for _ in range(40)]
    world.run(20.0)
    assert sender.acked[1] == tickets[-1]
    assert max(Counter(sender.refusals).values()) == 1
    assert len(sender.refusals) == sum(refused.values()) > 1000
    assert not receiver.links[0].incoming.refusals
    assert receiver.known[0] >= max(refused)


class Left:
    """Worker 0 believes that worker 1 has a member of a share group, but it has none."""

    def __init__(self, keeps: bool) -> None:
        stores = [KeptStore(), KeptStore()] if keeps else None
        self.host = Host(2, stores=stores, limits={"queue_messages_max": 2 * MANY, "queue_bytes_max": 1 << 30})
        self.publishers = [self.client(f"publisher-{i}-", 0) for i in range(2)]
        self.here = self.client("here", 0)
        self.member = self.client("member", 1)
        self.member.subscribe(("$share/g/s", 1))
        self.host.held.add((1, 0))
        self.member.send(wire.unsubscribe(4, 9, "$share/g/s"))
        self.host.settle()

    def client(self, name: str, worker: int) -> Peer:
        return self.host.connect(next(each for each in (f"{name}{i}" for i in range(99)) if home(each, 2) == worker))

    def publish(self, messages: int) -> None:
        """Publish at QoS 1, the publishers in turn; their acks wait."""
        for i in range(messages):
            self.publishers[i % 2].publish("s", b"%d" % i, 1)
            if i % 997 == 0:
                self.host.turn()
        self.host.settle()

    def stored(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """Return worker 1's stored refusals."""
        store = self.host.stores[1]
        store.sync()
        return [
            (schema.key_position(key), link_schema.decode_refusals(value))
            for key, value in sorted(store.records.items())
            if key[:1] == schema.PEER and schema.is_refusals(key)
        ]


@pytest.mark.parametrize("keeps", [False, True], ids=["memory", "kept"])
def test_more_entries_are_refused_than_16_bits_count(keeps: bool) -> None:
    """Scenario: the members of a group leave, and the publisher's worker does not learn it for 70,000 messages."""
    left = Left(keeps)
    left.publish(MANY)
    for publisher in left.publishers:
        assert not publisher.packets, "nobody has them, so they are not acknowledged"
    if keeps:
        kept = left.stored()
        assert sum(len(refused) for _, refused in kept) == MANY
        assert left.host.nodes[1].links[sibling(0)].incoming.refusals == kept
    left.here.send(wire.subscribe(4, 9, ("$share/g/s", 1)))
    left.host.held.clear()
    got = left.here.receive()
    assert Counter(packet.payload for packet in got) == {b"%d" % i: 1 for i in range(MANY)}
    for publisher in left.publishers:
        assert [packet.reason for packet in publisher.packets] == [0] * (MANY // 2)
    assert not left.host.nodes[1].links[sibling(0)].incoming.refusals
    if keeps:
        assert not left.stored()
    left.host.check_books()


def test_a_batch_is_as_long_as_its_refusals_can_be_told() -> None:
    """One tick's entries for a sibling make several batches; an ack of the first acknowledges none of the others."""
    host = Host(2)
    router = host.node.router
    router.siblings.set_interest(1, b"t", 1)
    for _ in range(3):
        for number in range(4096):
            router.publish_message(Message.create(b"t", b"%d" % number, qos=1, number=number + 1))
    router.publish_message(Message.create(b"t", b"last", qos=1, number=9999))
    taken = []
    while (batch := router.peers.take(1)) is not None:
        taken.append(batch)
    assert [part.entry_count for _, part, *_ in taken if part is not None] == [4096, 4096, 4096, 1]
    ticks = [batch[4] for batch in taken]
    assert ticks == sorted(set(ticks))

"""Random operations, with counters that balance after each of them; bounded backlogs."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import wire
from tests.sansio import Host, Peer

TOPICS = ["a", "b", "a/b", "big/c"]
FILTERS = ["a", "b", "a/+", "#", "+", "$share/g/a", "$share/g/#", "$share/h/a"]


class Crowd:
    """Clients that act at random."""

    def __init__(self, seed: int, workers: int, **options: Any) -> None:
        self.numbers = random.Random(seed)
        self.host = Host(workers, **options)
        self.clients: dict[str, Peer | None] = {f"c{i}": None for i in range(5)}
        self.version = {name: self.numbers.choice([4, 5, 5]) for name in self.clients}
        self.sent = 0
        self.unanswered: dict[str, deque[wire.Packet]] = defaultdict(deque)

    def step(self) -> None:
        name = self.numbers.choice(list(self.clients))
        peer = self.clients[name]
        if peer is None or peer.closed:
            self.connect(name)
        else:
            self.numbers.choice([
                self.publish, self.publish, self.publish, self.publish, self.subscribe, self.unsubscribe, self.read,
                self.read, self.read, self.stall, self.lose, self.leave, self.wait,
            ])(peer)  # fmt: skip
        if self.numbers.random() < 0.7:
            self.host.settle()
            self.host.check_books()

    def connect(self, name: str) -> None:
        clean = self.numbers.random() < 0.2
        options: dict[str, Any] = {"clean": clean}
        if self.version[name] == 5:
            options["expiry"] = self.numbers.choice([0, 5, 1000])
            options["properties"] = {"receive_maximum": self.numbers.choice([1, 3, 50])}
            if self.numbers.random() < 0.2:
                options["properties"]["maximum_packet_size"] = 200
        if self.numbers.random() < 0.3:
            options["will"] = wire.Will("a", b"will", self.numbers.randrange(3), False)
        peer = self.clients[name] = self.host.connect(name, self.version[name], **options)
        self.unanswered[peer.client_id].clear()

    def publish(self, peer: Peer) -> None:
        for _ in range(self.numbers.choice([1, 1, 5, 30])):
            qos, topic = self.numbers.randrange(3), self.numbers.choice(TOPICS)
            body = b"%s.%d" % (peer.client_id.encode(), self.sent)
            if topic.startswith("big"):
                body += b"." + b"x" * 3000
            self.sent += 1
            options: dict[str, Any] = {}
            if self.version[peer.client_id] == 5 and self.numbers.random() < 0.2:
                options["properties"] = {"message_expiry_interval": self.numbers.choice([1, 1000])}
            packet_id = peer.publish(topic, body, qos, retain=self.numbers.random() < 0.1, **options)
            if qos == 2:
                peer.ack("PUBREL", packet_id)

    def subscribe(self, peer: Peer) -> None:
        topic_filter = self.numbers.choice(FILTERS)
        options = self.numbers.randrange(3)
        if peer.version == 5 and not topic_filter.startswith("$share"):
            options |= self.numbers.choice([0, 0x04, 0x08, 0x10, 0x20])
        peer.send(wire.subscribe(peer.version, peer.packet_id(), (topic_filter, options)))

    def unsubscribe(self, peer: Peer) -> None:
        peer.send(wire.unsubscribe(peer.version, peer.packet_id(), self.numbers.choice(FILTERS)))

    def read(self, peer: Peer) -> None:
        """Read the packets that arrived and acknowledge some of them."""
        while peer.packets:
            packet = peer.packets.popleft()
            if packet.kind == "PUBLISH":
                if packet.qos:
                    self.unanswered[peer.client_id].append(packet)
            elif packet.kind == "PUBREL":
                peer.ack("PUBCOMP", packet.packet_id)
        waiting = self.unanswered[peer.client_id]
        for _ in range(self.numbers.choice([0, 1, len(waiting), len(waiting)])):
            if waiting:
                packet = waiting.popleft()
                refused = 0x80 if peer.version == 5 and self.numbers.random() < 0.05 else 0
                peer.ack("PUBACK" if packet.qos == 1 else "PUBREC", packet.packet_id, refused)

    def stall(self, peer: Peer) -> None:
        peer.stalled = not peer.stalled
        if not peer.stalled:
            peer.take()

    def lose(self, peer: Peer) -> None:
        self.host.lose(peer)

    def leave(self, peer: Peer) -> None:
        peer.disconnect()

    def wait(self, _: Peer) -> None:
        self.host.pass_time(self.numbers.choice([0.1, 2.0, 6.0]))

    def quiet(self) -> bool:
        """Return whether all are connected and nothing waits (one may be closed again because its queue was full)."""
        return self.host.waiting() == 0 and not any(
            peer is None or peer.closed or peer.session.is_behind for peer in self.clients.values()
        )

    def finish(self) -> None:
        """Connect every client, let it take everything, and disconnect it: nothing waits any more."""
        for _ in range(20):
            if self.quiet():
                break
            for name in self.clients:
                peer = self.clients[name]
                if peer is None or peer.closed:
                    self.connect(name)
                peer = self.clients[name]
                assert peer is not None
                peer.stalled = False
                if peer.conn.pending:
                    peer.take()
                while self.unanswered[peer.client_id]:
                    packet = self.unanswered[peer.client_id].popleft()
                    peer.ack("PUBACK" if packet.qos == 1 else "PUBREC", packet.packet_id)
                peer.receive()
        self.host.check_books()
        assert self.host.waiting() == 0
        for node in self.host.nodes:
            assert not any(session.is_behind for session in node.sessions)
            node.router.sweeping.sweep()
        assert sum(store.messages_held() for store in self.host.stores) == 0
        for peer in self.clients.values():
            assert peer is not None
            self.host.lose(peer)
        self.host.pass_time(10)
        assert self.host.counters()["internal_errors"] == 0


@pytest.mark.parametrize("many", [1, 2, 3])
@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest", "disconnect"])
@pytest.mark.parametrize("seed", range(8))
def test_books_add_up_whatever_happens(seed: int, many: int, policy: str) -> None:
    crowd = Crowd(
        seed, many, queue_full=policy, queue_qos0=seed % 2 == 1,
        limits={"queue_messages_max": 40, "outbox_bytes_max": 8192, "inflight_max": 10},
    )  # fmt: skip
    for _ in range(250):
        crowd.step()
    crowd.finish()


@given(
    limit=st.integers(1, 40),
    steps=st.lists(st.tuples(st.sampled_from(["publish", "read", "lose", "come"]), st.integers(1, 30)), max_size=30),
)
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest"])
@pytest.mark.parametrize("filters", [1, 2, 70])
def test_a_backlog_with_drops_is_a_list_with_holes(
    policy: str, filters: int, limit: int, steps: list[tuple[str, int]]
) -> None:
    """Received messages equal the published ones, in order, less the counted drops, and never more than the limit."""
    host = Host(queue_full=policy, limits={"queue_messages_max": limit, "inflight_max": 3})
    subscriber, publisher = host.connect("s", 5, expiry=100), host.connect("p")
    subscriber.subscribe(*((f"t/{i}", 1) for i in range(filters)))
    published = 0
    got: list[int] = []

    def read(most: int) -> None:
        host.settle()
        while subscriber.packets and most:
            packet = subscriber.packets.popleft()
            if packet.kind == "PUBLISH":
                if int(packet.payload) not in got:
                    got.append(int(packet.payload))
                subscriber.ack("PUBACK", packet.packet_id)
                most -= 1
            host.settle()

    for what, count in steps:
        if what == "publish":
            for _ in range(count):
                publisher.publish(f"t/{published % filters}", b"%d" % published, 1)
                published += 1
            host.settle()
            host.node.router.sweeping.sweep()
            assert host.node.router.bounding.backlog(subscriber.session)[0] <= limit
        elif what == "read":
            read(count)
        elif what == "lose":
            host.lose(subscriber)
        elif subscriber.closed:
            subscriber = host.connect("s", 5, clean=False, expiry=100)
    if subscriber.closed:
        subscriber = host.connect("s", 5, clean=False, expiry=100)
    read(100_000)
    host.check_books()
    row = host.counters()
    assert got == sorted(got)
    assert len(got) == published - row["dropped_queue_full"] == row["delivered_qos1"]

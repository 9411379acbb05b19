"""Replays over hosts without sockets: hosts that are cut off, of an earlier release, full, damaged, or begin anew."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from broker.replay.host_messages import HostMessage
from broker.replay.offsets import HostPosition, tag_of, write_positions
from pyx.core.peer import peer_of
from tests import wire
from tests.kept_archive import KeptArchive
from tests.kept_store import KeptStore
from tests.sansio import Host, Peer
from tests.unit.broker.replay.test_replaying import archive_of, offset_of, payloads, publish, subscriber

CANNOT, QUOTA = 0x83, 0x97
HEAD_BYTES = len(HostMessage(b"i", peer_of(1, 0), peer_of(1, 0), b"0" * 8, 0, b"").encode())
LOST = "mqttd-offset-lost"


class Way:
    """The way of one worker to other hosts."""

    def __init__(self, cluster: Cluster, number: int, worker: int) -> None:
        self._cluster = cluster
        self.number = number
        self._worker = worker

    def known_hosts(self) -> dict[int, int]:
        cluster = self._cluster
        return {at: len(host.nodes) * (at not in cluster.left) for at, host in cluster.hosts.items()}

    def node_of(self, number: int) -> str:
        return f"n{number}" if number in self._cluster.hosts else ""

    def link_of(self, number: int) -> Any:
        return None if self._cluster.is_cut(self.number, number) else self._cluster.links[number]

    def send(self, number: int, payload: bytes) -> None:
        self._cluster.sent.append((self.number, self._worker, number, payload))


class Cluster:
    """Hosts with an archive each, numbered from 1, linked by a queue."""

    def __init__(self, *workers: int, filters: tuple[bytes, ...] = (b"a/#",), **limits: int) -> None:
        self.sent: deque[tuple[int, int, int, bytes]] = deque()
        self.cut: set[frozenset[int]] = set()
        self.left: set[int] = set()
        """Hosts that are no members now."""
        self.silent: set[int] = set()
        """Hosts of an earlier release: they do not know these messages."""
        self.change: Callable[[bytes], bytes] = lambda payload: payload
        """Changes each message on its way."""
        self.hosts: dict[int, Host] = {}
        self.links = {number: SimpleNamespace(full=False, outbox_bytes=0) for number in range(1, len(workers) + 1)}
        for number, count in enumerate(workers, 1):
            self.run(number, count, [KeptArchive(filters, f"archive {number}") for _ in range(count)], **limits)
        self.pass_time(1.1)

    def run(self, number: int, count: int, archives: list[KeptArchive], **limits: int) -> None:
        """Run a host, also in place of a former one."""
        start = {"start_ms": max(host.now_ms for host in self.hosts.values())} if self.hosts else {}
        host = Host(count, stores=[KeptStore(archive=each) for each in archives], limits=limits, **start)
        self.hosts[number] = host
        for node in host.nodes:
            node.replaying.hosts.way = Way(self, number, node.index)

    def is_cut(self, one: int, other: int) -> bool:
        return frozenset((one, other)) in self.cut or bool({one, other} & self.left)

    def settle(self) -> None:
        for host in self.hosts.values():
            host.settle()
        while self.sent:
            sender, worker, receiver, payload = self.sent.popleft()
            if not self.is_cut(sender, receiver) and not {sender, receiver} & self.silent:
                host = self.hosts[receiver]
                node = host.nodes[worker % len(host.nodes)]
                node.replaying.hosts.heard_of_host(sender, self.change(payload))
                if len(host.nodes) > 1:
                    node.forward()  # what it passes on
                node.router.finish_tick()
                host.settle()

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            for host in self.hosts.values():
                host.pass_time(0.1)
            self.settle()

    def look(self) -> None:
        """Let all notice which hosts are linked."""
        for host in self.hosts.values():
            for node in host.nodes:
                node.replaying.hosts.look()
        self.settle()

    def archive(self, number: int, *numbers: int, worker: int = 0) -> list[bytes]:
        """Publish on a host; return the payloads."""
        found = [b"%d %d" % (number, each) for each in numbers]
        publish(self.hosts[number], "a/b", found, worker=worker)
        self.pass_time(0.3)
        return found

    def ask(self, peer: Peer, offset: str, *filters: tuple[str, int]) -> wire.Packet:
        """Send SUBSCRIBE with mqttd-offset and return its SUBACK, which is there without any time passing."""
        properties: dict[str, Any] = {"user_property": [("mqttd-offset", offset)]}
        peer.send(wire.subscribe(5, peer.packet_id(), *(filters or (("a/#", 0),)), properties=properties))
        self.settle()
        suback = next(packet for packet in peer.packets if packet.kind == "SUBACK")
        peer.packets.remove(suback)
        return suback

    def got(self, peer: Peer, seconds: float = 0.5) -> list[Any]:
        self.pass_time(seconds)
        return peer.receive()

    def sound(self) -> None:
        for host in self.hosts.values():
            assert host.counters()["internal_errors"] == 0
            host.check_books()


def told(packet: Any, name: str) -> str | None:
    return dict(packet.properties.get("user_property", [])).get(name)


@pytest.mark.parametrize("workers_of_hosts", [(1, 1), (1, 3), (3, 2), (2, 2, 2)], ids=str)
def test_all_hosts_are_read_and_a_position_goes_on_anywhere(workers_of_hosts: tuple[int, ...]) -> None:
    cluster = Cluster(*workers_of_hosts)
    expected = [cluster.archive(number, at)[0] for at in range(3) for number in cluster.hosts]
    peer = subscriber(cluster.hosts[1])
    assert cluster.ask(peer, "earliest").codes == (0,)
    packets = cluster.got(peer)
    assert payloads(packets) == expected
    assert not any(told(each, LOST) for each in packets)
    for number in cluster.hosts:
        other = subscriber(cluster.hosts[number], f"other{number}")
        assert cluster.ask(other, offset_of(packets[4])).codes == (0,)
        assert payloads(cluster.got(other)) == expected[5:]
    live = cluster.archive(len(cluster.hosts), 7)
    assert payloads(peer.receive()) == live
    cluster.sound()


def test_latest_is_what_is_published_after_the_suback_on_any_host() -> None:
    cluster = Cluster(1, 2)
    cluster.archive(2, 1, worker=1)
    peer = subscriber(cluster.hosts[1])
    assert cluster.ask(peer, "latest").codes == (0,)
    assert payloads(cluster.got(peer)) == []
    assert cluster.archive(2, 2, worker=1) + cluster.archive(1, 3) == payloads(peer.receive())


def test_a_position_of_the_former_form_is_of_its_host_alone() -> None:
    """It is read where it was made, other hosts from its time on; elsewhere it is refused."""
    cluster = Cluster(1, 1)
    cluster.archive(1, 1)
    number = cluster.hosts[1].node.router.state.next_number()
    text = f"{tag_of('archive 1').decode()}{number:016x}"
    expected = cluster.archive(2, 2) + cluster.archive(1, 3)
    peer = subscriber(cluster.hosts[1])
    assert cluster.ask(peer, text).codes == (0,)
    assert payloads(cluster.got(peer)) == expected
    refused = cluster.ask(subscriber(cluster.hosts[2]), text)
    assert refused.codes == (CANNOT,)
    assert refused.properties["reason_string"] == "mqttd-offset is a position of another archive"


def test_a_host_that_is_gone_is_refused_with_a_position_that_waits_for_it() -> None:
    cluster = Cluster(1, 1, 1)
    first = [each for number in cluster.hosts for each in cluster.archive(number, 1)]
    peer = subscriber(cluster.hosts[1])
    cluster.ask(peer, "earliest")
    packets = cluster.got(peer)
    assert payloads(packets) == first
    late = cluster.archive(3, 2)
    cluster.left.add(3)
    cluster.look()
    refused = cluster.ask(subscriber(cluster.hosts[2], "other"), offset_of(packets[-1]))
    assert refused.codes == (CANNOT,)
    assert refused.properties["reason_string"] == ("mqttd-offset names the archive of host n3, which cannot be reached")
    ((name, without),) = refused.properties["user_property"]
    assert name == "mqttd-offset-without"
    waiting = subscriber(cluster.hosts[2], "waiting")
    assert cluster.ask(waiting, without).codes == (0,)
    second = cluster.archive(1, 3)
    (packet,) = waiting.receive()
    assert payloads([packet]) == second
    assert told(packet, LOST) is None  # it knows
    assert offset_of(packet).count("-") == 1
    cluster.left.clear()
    cluster.look()
    assert payloads(cluster.got(waiting)) == late
    assert offset_of(waiting_packet(cluster, waiting)).count("-") == 0
    cluster.sound()


def waiting_packet(cluster: Cluster, peer: Peer) -> Any:
    cluster.archive(1, 9)
    return peer.receive()[-1]


def test_a_host_of_an_earlier_release_does_not_answer() -> None:
    """Who asks for everything is told that something is missing; it comes when that host has been upgraded. A position
    that names the host is refused at once.
    """
    cluster = Cluster(1, 1)
    cluster.silent.add(2)
    cluster.cut.add(frozenset((1, 2)))
    cluster.look()
    cluster.cut.clear()
    cluster.look()
    there, here = cluster.archive(2, 1), cluster.archive(1, 1)
    peer = subscriber(cluster.hosts[1])
    assert cluster.ask(peer, "earliest").codes == (0,)
    (packet,) = cluster.got(peer)
    assert payloads([packet]) == here
    assert told(packet, LOST) is not None
    position = write_positions([HostPosition(tag_of("archive 2"), 2, 5)])
    refused = cluster.ask(subscriber(cluster.hosts[1], "other"), position)
    assert refused.codes == (CANNOT,)
    assert refused.properties["reason_string"].endswith("does not answer: it may be of an earlier release")
    again = subscriber(cluster.hosts[1], "again")
    assert cluster.ask(again, offset_of(packet)).codes == (0,)
    cluster.silent.clear()
    assert payloads(cluster.got(peer, 2)) == there
    assert payloads(cluster.got(again)) == there
    cluster.sound()


def test_the_suback_waits_five_seconds_for_a_host_that_falls_silent() -> None:
    cluster = Cluster(1, 1)
    cluster.archive(2, 1)
    peer = subscriber(cluster.hosts[1])
    cluster.ask(peer, "earliest")
    position = offset_of(cluster.got(peer)[-1])
    cluster.silent.add(2)
    other = subscriber(cluster.hosts[1], "other")
    properties: dict[str, Any] = {"user_property": [("mqttd-offset", position)]}
    other.send(wire.subscribe(5, other.packet_id(), ("a/#", 0), properties=properties))
    cluster.pass_time(4.8)
    assert not other.packets
    cluster.pass_time(0.4)
    (suback,) = other.packets
    assert suback.codes == (CANNOT,)
    assert suback.properties["reason_string"].endswith("host n2, which does not answer")
    cluster.sound()


def test_a_host_that_begins_anew_is_another_archive() -> None:
    cluster = Cluster(1, 1)
    cluster.archive(2, 1)
    peer = subscriber(cluster.hosts[1])
    cluster.ask(peer, "earliest")
    packets = cluster.got(peer)
    cluster.left.add(2)
    cluster.look()
    cluster.run(2, 2, [KeptArchive((b"a/#",), "another") for _ in range(2)])
    cluster.left.clear()
    cluster.look()
    refused = cluster.ask(subscriber(cluster.hosts[1], "other"), offset_of(packets[-1]))
    assert refused.codes == (CANNOT,)
    assert "which has another archive now" in refused.properties["reason_string"]
    assert cluster.archive(2, 5, worker=1) == payloads(cluster.got(peer))


def test_a_host_that_was_away_comes_back_with_other_workers() -> None:
    """Nothing is there twice: numbers are of the workers that gave them out."""
    cluster = Cluster(1, 2)
    expected = cluster.archive(2, 1, 2, 3, worker=0) + cluster.archive(2, 4, 5, worker=1)
    peer = subscriber(cluster.hosts[1])
    cluster.ask(peer, "earliest")
    assert payloads(cluster.got(peer)) == expected
    messages = sorted(
        (each for worker in range(2) for each in archive_of(cluster.hosts[2], worker).messages),
        key=lambda each: each.number,
    )
    cluster.left.add(2)
    cluster.look()
    archive = KeptArchive((b"a/#",), "archive 2")
    for each in messages:
        archive.add(each)
    archive.highest = archive.last
    cluster.run(2, 1, [archive])
    cluster.left.clear()
    cluster.look()
    assert cluster.archive(2, 6) == payloads(cluster.got(peer))
    cluster.sound()


def test_retention_of_another_host() -> None:
    """A position before its start is refused, and offered is one from which nothing is missing; a reader that is passed
    is told.
    """
    cluster = Cluster(1, 1)
    cluster.archive(2, 1)
    peer = subscriber(cluster.hosts[1])
    cluster.ask(peer, "earliest")
    position = offset_of(cluster.got(peer)[-1])
    peer.disconnect()
    cluster.archive(2, 2)
    cluster.pass_time(1)
    archive = archive_of(cluster.hosts[2])
    archive.remove(archive.last)
    left = cluster.archive(2, 3)
    other = subscriber(cluster.hosts[1], "other")
    refused = cluster.ask(other, position)
    assert refused.codes == (CANNOT,)
    assert refused.properties["reason_string"] == "mqttd-offset lies before the start of the archive"
    ((name, earliest),) = refused.properties["user_property"]
    assert name == "mqttd-offset-earliest"
    assert cluster.ask(other, earliest).codes == (0,)
    (packet,) = cluster.got(other)
    assert payloads([packet]) == left
    assert told(packet, LOST) is None


@pytest.mark.parametrize("most", [0, 1, 3])
def test_replays_for_hosts_max(most: int) -> None:
    cluster = Cluster(1, 1, replays_for_hosts_max=most)
    peers = [subscriber(cluster.hosts[1], f"r{at}") for at in range(most + 1)]
    for peer in peers[:most]:
        assert cluster.ask(peer, "latest").codes == (0,)
        cluster.pass_time(0.1)
    assert cluster.ask(peers[most], "latest").codes == (QUOTA,)
    if most:
        cluster.hosts[1].lose(peers[0])
        cluster.pass_time(0.3)
        assert cluster.ask(peers[most], "latest").codes == (0,)
    sent = cluster.archive(2, 1)
    for peer in peers[1:] if most else ():
        assert payloads(cluster.got(peer)) == sent
    cluster.sound()


def test_questions_beyond_the_bound_wait_and_are_counted() -> None:
    """A SUBSCRIBE that came while there was room, and whose questions came too late."""
    cluster = Cluster(1, 1, replays_for_hosts_max=1)
    peer = subscriber(cluster.hosts[1])
    sent = cluster.archive(2, 1)
    filters = (("a/b", 0), ("a/+", 0))
    assert cluster.ask(peer, "earliest", *filters).codes == (0, 0)
    assert payloads(cluster.got(peer, 4)) == sent * 2
    assert cluster.hosts[2].counters()["replay_questions_refused"] >= 1
    late = cluster.archive(2, 2)
    assert payloads(cluster.got(peer, 8)) == late
    peer.send(wire.unsubscribe(5, peer.packet_id(), "a/b"))
    assert payloads(cluster.got(peer, 4)) == late
    peer.send(wire.unsubscribe(5, peer.packet_id(), "a/+"))
    assert cluster.hosts[2].node.replaying.sources is not None
    cluster.pass_time(0.5)
    assert cluster.hosts[2].node.replaying.sources.of_hosts == 0


def test_no_page_is_read_for_a_host_whose_link_is_full() -> None:
    cluster = Cluster(1, 1)
    sent = cluster.archive(2, 1)
    archive = archive_of(cluster.hosts[2])
    cluster.links[1].outbox_bytes = (1 << 20) + 1
    peer = subscriber(cluster.hosts[1])
    assert cluster.ask(peer, "earliest").codes == (0,)
    assert payloads(cluster.got(peer, 2)) == []
    assert archive.reads == 0
    cluster.links[1].outbox_bytes = 1 << 20
    assert payloads(cluster.got(peer, 1)) == sent
    cluster.links[1].full = True
    late = cluster.archive(2, 2)
    assert payloads(cluster.got(peer)) == []
    cluster.links[1].full = False
    assert payloads(cluster.got(peer, 4)) == late


@pytest.mark.parametrize("seed", range(40))
def test_damaged_messages_harm_nobody(seed: int) -> None:
    """Of the messages between hosts some are changed, cut off, lengthened, repeated as another kind, or lost. None
    is an internal error, and when the damage ends everything arrives, once and in order.
    """
    chance = random.Random(seed)
    cluster = Cluster(2, 2, replay_page_bytes=4096)
    sent = cluster.archive(2, *range(40)) + cluster.archive(2, *range(40, 60), worker=1)

    def change(payload: bytes) -> bytes:
        fate = chance.random()
        data = bytearray(payload)
        if fate < 0.2:
            data[chance.choice([0, 1, chance.randrange(HEAD_BYTES)])] ^= 1 << chance.randrange(8)
        elif fate < 0.4:
            del data[chance.randrange(len(data)) :]
        elif fate < 0.5:
            data += chance.randbytes(chance.randrange(1, 30))
        elif fate < 0.6:
            data[1] = chance.choice(b"rRsbcoOiI")
        elif fate < 0.8:
            return payload
        return bytes(data)

    peer = subscriber(cluster.hosts[1])
    assert cluster.ask(peer, "earliest").codes == (0,)
    cluster.change = change
    cluster.archive(1, 1)
    cluster.pass_time(5)
    cluster.change = lambda payload: payload
    cluster.pass_time(8)
    got = payloads(peer.receive())
    assert [each for each in got if each.startswith(b"2 ")] == sent
    assert sum(host.counters()["internal_errors"] for host in cluster.hosts.values()) == 0


def test_a_host_speaks_for_itself_alone() -> None:
    """In the name of another host, for another host, and for a worker that there is not."""
    cluster = Cluster(1, 1, 1)
    archives = cluster.hosts[1].node.replaying.hosts
    message = HostMessage(b"i", peer_of(3, 0), peer_of(1, 0), b"0" * 8, 0, b"")
    for sender, changed in (
        (2, message),
        (3, message._replace(receiver=peer_of(2, 0))),
        (3, message._replace(receiver=peer_of(1, 9))),
    ):
        before = cluster.hosts[1].counters()["archive_messages_refused"]
        archives.heard_of_host(sender, changed.encode())
        assert cluster.hosts[1].counters()["archive_messages_refused"] == before + 1
        assert not cluster.sent
    archives.heard_of_host(3, message.encode())
    assert cluster.sent
    cluster.settle()


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (b"r", bytes(29) + b"a/#/b"),
        (b"r", b"\1"),
        (b"o", bytes(8) + b"\xff\xff"),
        (b"c", b"1"),
        (b"o", bytes(8)),
    ],
)
def test_damaged_questions(kind: bytes, content: bytes) -> None:
    cluster = Cluster(1, 1)
    tag = tag_of("archive 1")[1:]
    message = HostMessage(kind, peer_of(2, 0), peer_of(1, 0), tag, 0, content)
    cluster.hosts[1].node.replaying.hosts.heard_of_host(2, message.encode())
    assert cluster.hosts[1].counters()["archive_messages_refused"] == 1
    cluster.sound()


def test_a_copied_archive_is_not_read() -> None:
    cluster = Cluster(1)
    cluster.links[2] = SimpleNamespace(full=False, outbox_bytes=0)
    cluster.run(2, 1, [KeptArchive((b"a/#",), "archive 1")])
    cluster.look()
    assert [event for _, event, _ in cluster.hosts[1].logs[0].events].count("archive_copied") == 1
    assert cluster.hosts[1].node.replaying.hosts.by_tag == {}


def test_a_host_without_an_archive_reads_that_of_another() -> None:
    cluster = Cluster(1, 1)
    sent = cluster.archive(1, 1, 2)
    host = Host(1, start_ms=max(each.now_ms for each in cluster.hosts.values()))
    cluster.left.add(2)
    cluster.look()
    cluster.hosts[2] = host
    cluster.left.clear()
    host.node.replaying.hosts.way = Way(cluster, 2, 0)
    cluster.look()
    peer = subscriber(host)
    assert cluster.ask(peer, "earliest").codes == (0,)
    packets = cluster.got(peer)
    assert payloads(packets) == sent
    other = subscriber(cluster.hosts[1], "other")
    assert cluster.ask(other, offset_of(packets[0])).codes == (0,)
    assert payloads(cluster.got(other)) == sent[1:]
    assert cluster.ask(peer, "earliest", ("b/#", 0)).codes == (CANNOT,)
    cluster.sound()

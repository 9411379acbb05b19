"""Subscriptions that replay the archive: SUBSCRIBE, deliveries, going live, what is kept, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from broker.config.limits import Limits
from broker.replay.offsets import tag_of
from leveldb_store.contract import StoreError
from leveldb_store.format import schema
from pyx.delivery.replay import write_position
from pyx.protocol.message import Message
from tests import wire
from tests.kept_archive import KeptArchive
from tests.kept_host import NEVER, store_of
from tests.kept_store import KeptStore
from tests.sansio import Host, Peer
from tests.unit.pyx.delivery.test_router import client_at

TAG = tag_of("an archive")
BEAT_SECONDS = 0.3
LIMITS = Limits()


def archived(workers: int = 1, filters: Sequence[bytes] = (b"a/#",), **options: Any) -> Host:
    """Return workers that archive."""
    stores = [KeptStore(archive=KeptArchive(filters)) for _ in range(workers)]
    return Host(workers, stores=stores, **options)


def archive_of(host: Host, worker: int = 0) -> KeptArchive:
    archive = host.stores[worker].archive
    assert isinstance(archive, KeptArchive)
    return archive


def publish(host: Host, topic: str, payloads: Sequence[bytes], qos: int = 1, worker: int = 0) -> None:
    """Publish from a client of that worker; the message is archived."""
    peer = host.connect(client_at(worker, len(host.nodes)))
    for payload in payloads:
        peer.publish(topic, payload, qos)
    host.settle()
    peer.receive()
    peer.disconnect()
    host.pass_time(0.1)


def ask(peer: Peer, offset: str | Sequence[str], *filters: tuple[str, int], identifier: int = 0) -> wire.Packet:
    """Send SUBSCRIBE with mqttd-offset and return its SUBACK; packets that arrive with it wait."""
    offsets = [offset] if isinstance(offset, str) else offset
    properties: dict[str, Any] = {"user_property": [("mqttd-offset", each) for each in offsets]}
    if identifier:
        properties["subscription_identifier"] = identifier
    peer.send(wire.subscribe(5, peer.packet_id(), *filters, properties=properties))
    peer.host.settle()
    suback = next(packet for packet in peer.packets if packet.kind == "SUBACK")
    peer.packets.remove(suback)
    return suback


def offset_of(packet: Any) -> str:
    found: str = dict(packet.properties["user_property"])["mqttd-offset"]
    return found


def payloads(packets: list[Any]) -> list[bytes]:
    return [bytes(packet.payload) for packet in packets]


def subscriber(host: Host, client_id: str = "subscriber", **options: Any) -> Peer:
    return host.connect(client_id, 5, **options)


def lasting(host: Host, client_id: str = "subscriber", **options: Any) -> Peer:
    return host.connect(client_id, 5, clean=False, expiry=NEVER, **options)


@pytest.mark.parametrize("many", [1, 3])
def test_from_the_earliest_and_on(many: int) -> None:
    """The archives of all workers are delivered in the order of their numbers, followed by new messages."""
    host = archived(many)
    for number in range(6):
        publish(host, "a/b", [b"%d" % number], worker=number % many)
    peer = subscriber(host)
    assert ask(peer, "earliest", ("a/+", 1)).codes == (1,)
    assert payloads(peer.receive()) == [b"%d" % number for number in range(6)]
    host.pass_time(BEAT_SECONDS)
    for worker in range(many):
        publish(host, "a/c", [b"live %d" % worker], qos=0, worker=worker)
        got = peer.receive()
        assert payloads(got) == [b"live %d" % worker]
        assert got[0].qos == 0
    host.check_books()


@pytest.mark.parametrize("many", [1, 3])
def test_latest_is_what_is_published_after_the_suback(many: int) -> None:
    host = archived(many)
    for worker in range(many):
        publish(host, "a/b", [b"before"], worker=worker)
    peer = subscriber(host)
    assert ask(peer, "latest", ("a/#", 2)).codes == (2,)
    for worker in range(many):
        publish(host, "a/b", [b"after"], qos=2, worker=worker)
    assert payloads(peer.receive()) == [b"after"] * many


@pytest.mark.parametrize("many", [1, 3])
def test_from_each_position_that_was_given(many: int) -> None:
    """No later message is skipped, and merged messages are not repeated."""
    host = archived(many)
    for number in range(9):
        publish(host, "a/b", [b"%d" % number], worker=number % many)
    peer = subscriber(host)
    ask(peer, "earliest", ("a/b", 1))
    got = peer.receive()
    assert len(got) == 9
    for number, packet in enumerate(got):
        ask(peer, offset_of(packet), ("a/b", 1))
        assert payloads(peer.receive()) == [b"%d" % later for later in range(number + 1, 9)]


def test_from_a_time() -> None:
    host = archived()
    publish(host, "a/b", [b"1"])
    host.pass_time(5)
    moment = host.node.router.state.wall_ms
    publish(host, "a/b", [b"2"])
    peer = subscriber(host)
    text = _rfc3339(moment)
    ask(peer, text, ("a/b", 1))
    assert payloads(peer.receive()) == [b"2"]


def _rfc3339(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat().replace("+00:00", "Z")


def test_a_position_survives_a_crash_and_the_session_goes_on() -> None:
    """QoS 1: messages sent and not acknowledged are sent again, unsent ones are sent, and nothing else."""
    host = archived(limits={"inflight_max": 3})
    publish(host, "a/b", [b"%d" % number for number in range(10)])
    peer = lasting(host)
    ask(peer, "earliest", ("a/b", 1), identifier=7)
    first = [packet for packet in peer.packets if packet.kind == "PUBLISH"]
    assert payloads(first) == [b"0", b"1", b"2"]
    peer.packets.clear()
    peer.ack("PUBACK", first[0].packet_id)
    host.settle()
    host.pass_time(0.2)
    host.check_books()
    after = host.crash()
    again = lasting(after)
    assert again.session_present
    got = again.receive()
    assert payloads(got) == [b"%d" % number for number in range(1, 10)]
    assert [packet.dup for packet in got[:2]] == [True, True]
    assert all(packet.properties["subscription_identifier"] == [7] for packet in got)
    publish(after, "a/b", [b"live"])
    assert payloads(again.receive()) == [b"live"]
    after.check_books()


def test_qos_2_comes_once_over_a_crash_at_any_time() -> None:
    host = archived()
    publish(host, "a/b", [b"%d" % number for number in range(5)], qos=2)
    peer = lasting(host)
    ask(peer, "earliest", ("a/b", 2))
    host.settle()
    got: list[bytes] = []
    taken: set[int] = set()
    for _ in range(12):
        for packet in list(peer.packets):
            peer.packets.popleft()
            if packet.kind == "PUBLISH":
                if packet.packet_id not in taken:
                    got.append(packet.payload)
                taken.add(packet.packet_id)
                peer.ack("PUBREC", packet.packet_id)
            elif packet.kind == "PUBREL":
                taken.discard(packet.packet_id)
                peer.ack("PUBCOMP", packet.packet_id)
            break
        host.settle()
        host = host.crash()
        peer = lasting(host)
        host.settle()
    while peer.packets:
        got += payloads([packet for packet in peer.receive() if packet.packet_id not in taken])
    assert got == [b"%d" % number for number in range(5)]


def test_offline_it_rests_and_goes_on() -> None:
    host = archived()
    peer = lasting(host)
    ask(peer, "latest", ("a/b", 1))
    host.lose(peer)
    publish(host, "a/b", [b"1", b"2"])
    reads = archive_of(host).reads
    host.pass_time(5)
    assert archive_of(host).reads == reads
    peer = lasting(host)
    assert payloads(peer.receive()) == [b"1", b"2"]


def test_a_session_that_ends_ends_them() -> None:
    host = archived()
    peer = subscriber(host)
    ask(peer, "latest", ("a/b", 1), ("a/c", 1))
    assert host.node.replaying.count == 2
    host.lose(peer)
    assert host.node.replaying.count == 0
    peer = lasting(host)
    ask(peer, "latest", ("a/b", 1))
    assert _records(host) == 1
    host.connect("subscriber", 5, clean=True)
    host.settle()
    assert host.node.replaying.count == _records(host) == 0


def _records(host: Host) -> int:
    return len(list(store_of(host).scan(schema.REPLAY)))


def test_unsubscribe_and_subscribe_otherwise() -> None:
    host = archived(limits={"inflight_max": 1})
    publish(host, "a/b", [b"%d" % number for number in range(5)])
    peer = lasting(host)
    ask(peer, "earliest", ("a/b", 1))
    assert peer.session.subscribed() == []
    peer.send(wire.unsubscribe(5, 50, "a/b"))
    host.settle()
    (first,) = (packet for packet in peer.packets if packet.kind == "PUBLISH")
    assert [packet.codes for packet in peer.packets if packet.kind == "UNSUBACK"] == [(0,)]
    peer.packets.clear()
    peer.ack("PUBACK", first.packet_id)
    peer.silent()
    assert host.counters()["dropped_unsubscribed"] == 4
    assert _records(host) == 0
    peer.send(wire.unsubscribe(5, 51, "a/b"))
    host.settle()
    assert peer.next("UNSUBACK").codes == (0x11,)
    # first as an ordinary subscription, then as a replay again
    assert peer.subscribe(("a/b", 1)) == [1]
    publish(host, "a/b", [b"5"])
    assert payloads(peer.receive()) == [b"5"]
    ask(peer, "earliest", ("a/b", 1))
    assert payloads(peer.receive()) == [b"%d" % number for number in range(6)]
    assert peer.session.subscribed() == []
    assert peer.subscribe(("a/b", 0)) == [0]
    assert host.node.replaying.count == 0
    publish(host, "a/b", [b"6"])
    assert payloads(peer.receive()) == [b"6"]
    host.check_books()


def test_what_is_refused() -> None:
    host = archived()
    publish(host, "a/b", [b"1"])
    peer = subscriber(host)
    ask(peer, "earliest", ("a/b", 1))
    (packet,) = peer.receive()
    position = offset_of(packet)
    for offset, text, why in [
        ("nonsense", "a/b", "is no position"),
        (["latest", "latest"], "a/b", "2 times"),
        (write_position(tag_of("another"), 5).decode(), "a/b", "of another archive"),
        (write_position(TAG, 1 << 63).decode(), "a/b", "behind the end"),
        ("latest", "$share/g/a/b", "is shared"),
        ("latest", "b", "no [[archive]] table"),
        ("latest", "#", "no [[archive]] table"),
    ]:
        suback = ask(peer, offset, (text, 1))
        assert suback.codes == (0x83,)
        assert why in suback.properties["reason_string"]
    suback = ask(peer, position, ("b", 1), ("a/+", 1), ("/" * 200, 1))
    assert suback.codes == (0x83, 1, 0x8F)
    assert suback.properties["reason_string"].startswith("filter 1 is not archived")
    assert host.counters()["replays_refused"] == 9
    assert host.node.replaying.count == 2


@pytest.mark.parametrize("many", [1, 3])
def test_a_position_before_the_start_is_refused(many: int) -> None:
    """The SUBACK gives the position where the log begins: it can be used, and no message behind it is missing."""
    host = archived(many)
    for number in range(6):
        publish(host, "a/b", [b"%d" % number], worker=number % many)
    peer = subscriber(host)
    ask(peer, "earliest", ("a/b", 1))
    got = peer.receive()
    removed = int(offset_of(got[3])[len(TAG) :], 16)
    for worker in range(many):
        archive_of(host, worker).remove(removed)
    suback = ask(peer, offset_of(got[2]), ("a/b", 1))
    assert suback.codes == (0x83,)
    assert suback.properties["reason_string"] == "mqttd-offset lies before the start of the archive"
    ((name, earliest),) = suback.properties["user_property"]
    assert name == "mqttd-offset-earliest"
    assert earliest == offset_of(got[3])
    peer.silent()  # the former subscription continues: it is live
    assert ask(peer, earliest, ("a/b", 1)).codes == (1,)
    assert payloads(peer.receive()) == [b"4", b"5"]
    ask(peer, "earliest", ("a/b", 1))
    assert payloads(peer.receive()) == [b"4", b"5"]
    assert host.counters()["replays_fallen_behind"] == 0


def test_retention_passes_a_reader() -> None:
    """The replay continues at the start of the archive, and the next message reports the gap."""
    host = archived(limits={"inflight_max": 1, "replay_page_bytes": 4096})
    publish(host, "a/b", [b"%03d" % number + bytes(500) for number in range(60)])
    peer = lasting(host)
    ask(peer, "earliest", ("a/b", 1))
    (first,) = (packet for packet in peer.packets if packet.kind == "PUBLISH")
    archive = archive_of(host)
    archive.remove(archive.messages[49].number)
    got = [first]
    peer.packets.clear()
    peer.ack("PUBACK", first.packet_id)
    got += peer.receive()
    numbers = [int(packet.payload[:3]) for packet in got]
    assert numbers[-10:] == list(range(50, 60))
    gap = next(at for at in range(1, len(numbers)) if numbers[at] != numbers[at - 1] + 1)
    assert numbers[gap] == 50
    told = [at for at, packet in enumerate(got) if len(packet.properties["user_property"]) == 2]
    assert told == [gap]
    lost = dict(got[gap].properties["user_property"])["mqttd-offset-lost"]
    assert offset_of(got[gap - 1]) <= lost < offset_of(got[gap])
    assert host.counters()["replays_fallen_behind"] == 1
    assert [fields["client"] for fields in host.logs[0].named("replay_fallen_behind")] == ["subscriber"]


def test_retention_passes_one_that_waits_for_nothing() -> None:
    """No removed message matched the subscription: it has not fallen behind."""
    host = archived()
    peer = subscriber(host)
    ask(peer, "latest", ("a/b", 1))
    publish(host, "a/c", [b"1", b"2"])
    host.pass_time(1)
    archive_of(host).remove(archive_of(host).last)
    host.pass_time(1)
    publish(host, "a/b", [b"3"])
    assert payloads(peer.receive()) == [b"3"]
    assert host.counters()["replays_fallen_behind"] == 0


@pytest.mark.parametrize("how", ["earliest", "a time"])
def test_after_a_crash_it_knows_what_was_gone_when_it_began(how: str) -> None:
    """One worker's log goes back further than another's: that is no loss, before or after a restart."""
    host = archived(2, limits={"inflight_max": 1, "replay_page_bytes": 4096})
    for worker in range(2):
        publish(host, "a/b", [b"%03d" % (60 * worker + number) + bytes(500) for number in range(60)], worker=worker)
    archive_of(host, 1).remove(archive_of(host, 1).messages[9].number)
    offset = how if how == "earliest" else "2001-01-01T00:00:00Z"
    peer = lasting(host, client_at(0, 2))
    ask(peer, offset, ("a/b", 1))
    peer.packets.clear()
    for expected in (*range(60), *range(70, 120)):
        if expected % 7 == 0:
            host = host.crash()
        else:
            host.lose(peer)
        peer = lasting(host, peer.client_id)
        host.pass_time(0.5)
        first = next(packet for packet in peer.packets if packet.kind == "PUBLISH")
        assert int(first.payload[:3]) == expected
        assert dict(first.properties["user_property"]).keys() == {"mqttd-offset"}
        assert host.counters()["replays_fallen_behind"] == 0
        peer.packets.clear()
        peer.ack("PUBACK", first.packet_id)
        host.settle()
        host.pass_time(0.2)
    host = host.crash()
    peer = lasting(host, peer.client_id)
    host.pass_time(1)
    archive = archive_of(host, 1)
    host.lose(peer)
    publish(host, "a/b", [b"6", b"7"], worker=1)
    archive.remove(archive.messages[-2].number)
    peer = lasting(host, peer.client_id)
    host.pass_time(1)
    (last,) = (packet for packet in peer.packets if packet.kind == "PUBLISH")
    assert (last.payload, len(last.properties["user_property"])) == (b"7", 2)  # this one gets the report


@pytest.mark.parametrize("many", [1, 2])
def test_what_cannot_be_read_ends_no_worker(many: int) -> None:
    """The error is logged once, the read is tried again, and the messages arrive when they can be read."""
    host = archived(many)
    publish(host, "a/b", [b"1"], worker=many - 1)
    archive = archive_of(host, many - 1)
    archive.fails = StoreError("no")
    peer = subscriber(host, client_at(0, many))
    assert ask(peer, "earliest", ("a/b", 1)).codes == (1,)
    peer.silent()
    host.pass_time(10)
    assert archive.reads > 1
    assert [entry["error"] for entry in host.logs[many - 1].named("replay_read_failed")] == ["no"]
    archive.fails = None
    host.pass_time(5)
    assert payloads(peer.receive()) == [b"1"]


@pytest.mark.parametrize("many", [1, 2])
def test_a_reader_is_told_of_what_cannot_be_read(many: int) -> None:
    """So is one that began with the earliest message, for which messages that retention has removed are no loss."""
    host = archived(many)
    publish(host, "a/b", [b"%d" % number for number in range(5)], worker=many - 1)
    archive = archive_of(host, many - 1)
    peer = subscriber(host, client_at(0, many))
    archive.damage(archive.messages[1].number)
    ask(peer, "earliest", ("a/b", 1))
    got = peer.receive()
    assert payloads(got) == [b"2", b"3", b"4"]
    assert ["mqttd-offset-lost" in dict(packet.properties["user_property"]) for packet in got] == [True, False, False]
    (said,) = host.logs[0].named("replay_fallen_behind")
    assert said["damage"]


class Aside:
    """A stand-in for the reading thread: the test decides when it reads."""

    def __init__(self, host: Host, worker: int) -> None:
        self._host = host
        self._waiting: list[tuple[Any, Any]] = []
        self.sources = host.nodes[worker].replaying.sources
        assert self.sources is not None
        self.sources.background = lambda work, then: self._waiting.append((work, then))

    def turn(self) -> bool:
        """Read one page; return False if none was requested."""
        if not self._waiting:
            return False
        work, then = self._waiting.pop(0)
        work()
        then()
        self._host.settle()
        return True


@pytest.mark.parametrize("worker", [0, 1])
def test_what_a_rare_filter_has_come_to_is_told_and_kept(worker: int) -> None:
    """Pages without a match, one second each: nothing is read twice, even when the client reconnects."""
    host = archived(2, limits={"replay_page_bytes": 6144})
    publish(host, "a/b", [bytes(400)] * 200, worker=worker)
    publish(host, "a/rare", [b"found"], worker=worker)
    archive, aside = archive_of(host, worker), Aside(host, worker)
    peer = lasting(host, client_at(0, 2))
    ask(peer, "earliest", ("a/rare", 1))
    for _ in range(15):
        host.pass_time(1)
        assert aside.turn()
        peer.silent()
    assert archive.afters == sorted(set(archive.afters))
    assert len(archive.afters) == 15
    host.lose(peer)
    host.settle()
    assert aside.sources is not None
    assert aside.sources.open == 0  # no replay waits for it
    aside.turn()
    assert not aside.turn()
    reached = archive.afters[-1]
    peer = lasting(host, client_at(0, 2))
    host.settle()
    while aside.turn():
        host.pass_time(0.1)
    assert payloads(peer.receive()) == [b"found"]
    again = archive.afters[16:]
    assert again[0] > archive.afters[12]
    assert again[0] <= reached


def test_questions_of_readers_that_have_gone_end_though_the_word_was_lost() -> None:
    host = archived(2, limits={"replay_page_bytes": 6144})
    publish(host, "a/b", [bytes(400)] * 200, worker=1)
    aside = Aside(host, 1)
    peer = subscriber(host, client_at(0, 2))
    ask(peer, "earliest", ("a/rare", 1))
    assert aside.turn()
    router = host.nodes[0].router
    tell, router.peers.forward_now = router.peers.forward_now, lambda: [router.peers.take(1), None][1]
    host.lose(peer)
    router.peers.forward_now = tell
    for _ in range(4):
        host.pass_time(1)
        aside.turn()
    assert not aside.turn()
    assert aside.sources is not None
    assert aside.sources.open == 0


@pytest.mark.parametrize("many", [1, 2])
def test_a_silent_replay_is_kept_up_to_date(many: int) -> None:
    """After a crash it gets no report of a loss that did not happen, and does not read everything again."""
    host = archived(many)
    peer = lasting(host, client_at(0, many, "reader"))
    ask(peer, "latest", ("a/b", 1))
    for worker in range(many):
        publish(host, "a/c", [b"1", b"2"], worker=worker)
    host.pass_time(30)
    for worker in range(many):
        archive_of(host, worker).remove(archive_of(host, worker).last)
    host = host.crash()
    peer = lasting(host, client_at(0, many, "reader"))
    host.pass_time(1)
    for worker in range(many):
        assert archive_of(host, worker).afters[0] > archive_of(host, worker).last
    publish(host, "a/b", [b"3"], worker=many - 1)
    (packet,) = peer.receive()
    assert dict(packet.properties["user_property"]).keys() == {"mqttd-offset"}
    assert host.counters()["replays_fallen_behind"] == 0


@pytest.mark.parametrize("many", [1, 3])
def test_readers_of_what_does_not_come_are_not_read_for(many: int) -> None:
    """Readers at the end cost no page for messages that they do not match, and miss none that they do."""
    host = archived(many, limits={"replays_per_session_max": 200})
    silent, live = subscriber(host), subscriber(host, "live")
    ask(silent, "latest", *((f"a/silent/{number}" if number % 2 else f"a/+/{number}", 1) for number in range(100)))
    ask(live, "earliest", ("a/b", 1))
    host.pass_time(1)
    before = sum(archive_of(host, worker).reads for worker in range(many))
    for number in range(40):
        publish(host, "a/b", [b"%d" % number], worker=number % many)
    assert sum(archive_of(host, worker).reads for worker in range(many)) - before <= 2 * 40
    assert payloads(live.receive()) == [b"%d" % number for number in range(40)]
    silent.silent()
    for number in range(100):
        publish(host, f"a/silent/{number}", [b"%d" % number], worker=number % many)
    assert payloads(silent.receive()) == [b"%d" % number for number in range(100)]
    silent.disconnect()
    live.disconnect()
    host.pass_time(1)
    assert not any(archive_of(host, worker).is_watched for worker in range(many))


@pytest.mark.parametrize("many", [1, 2])
def test_nothing_that_a_client_names_moves_the_clock(many: int) -> None:
    host = archived(many)
    publish(host, "a/b", [b"1"])
    peer = subscriber(host)
    router = host.nodes[0].router
    for seconds in (1, 30, 59):
        ahead = router.state.wall_ms + seconds * 1000
        suback = ask(peer, write_position(TAG, ahead * 1000 << 8).decode(), ("a/b", 1))
        assert suback.codes == (0x83,)
        assert "behind the end" in suback.properties["reason_string"]
        moment = datetime.fromtimestamp(ahead / 1000, UTC).isoformat()
        assert ask(peer, moment, ("a/b", 1)).codes == (1,)  # as `latest`
        for node in host.nodes:
            assert node.router.state.next_number() >> 8 < router.state.wall_ms * 1000 + 1000
        publish(host, "a/b", [b"after"], worker=many - 1)
        assert payloads(peer.receive()) == [b"after"]


def test_other_subscriptions_are_served_between() -> None:
    """A session that reads a long archive gets the messages of its other subscriptions before that is finished."""
    host = archived(limits={"inflight_max": 10, "replay_page_bytes": 4096})
    publish(host, "a/b", [b"%d" % number + bytes(300) for number in range(400)])
    peer = subscriber(host)
    assert peer.subscribe(("other", 1)) == [1]
    ask(peer, "earliest", ("a/b", 1))
    publish(host, "other", [b"now"])
    topics = [packet.topic for packet in peer.receive()]
    assert topics.count("a/b") == 400
    assert topics.index("other") < 380
    host.check_books()


def test_memory_is_bounded_by_pages() -> None:
    """A client takes nothing: about two pages wait for it."""
    host = archived(limits={"inflight_max": 1, "replay_page_bytes": 8192})
    publish(host, "a/b", [bytes(1000)] * 200)
    peer = subscriber(host)
    ask(peer, "earliest", ("a/b", 1))
    host.pass_time(1)
    assert peer.session.replays is not None
    replay = peer.session.replays[b"a/b"]
    assert peer.session.queued + replay.merge.waiting(0) < 40
    host.check_books()


def test_a_sibling_that_is_away_is_not_waited_for() -> None:
    """The SUBACK is sent once the sibling is known to be away; its messages arrive when it is back."""
    host = archived(2)
    publish(host, "a/b", [b"far"], worker=1)
    peer = subscriber(host, client_at(0, 2))
    host.held |= {(0, 1), (1, 0)}
    peer.send(wire.subscribe(5, 9, ("a/b", 1), properties={"user_property": [("mqttd-offset", "latest")]}))
    peer.silent()
    host.pass_time(4)
    assert peer.next("SUBACK").codes == (1,)
    host.held.clear()
    host.pass_time(5)
    publish(host, "a/b", [b"after"], worker=1)
    assert payloads(peer.receive()) == [b"after"]


def test_words_that_are_lost_are_said_again() -> None:
    host = archived(2)
    publish(host, "a/b", [b"far"], worker=1)
    peer = subscriber(host, client_at(0, 2))
    node = host.nodes[1]
    tell, node.router.peers.forward_now = node.router.peers.forward_now, lambda: [node.router.peers.take(0), None][1]
    ask(peer, "earliest", ("a/b", 1))
    peer.silent()
    node.router.peers.forward_now = tell
    host.pass_time(5)
    assert payloads(peer.receive()) == [b"far"]


def test_without_an_archive() -> None:
    host = Host()
    peer = subscriber(host)
    suback = ask(peer, "latest", ("a/b", 1))
    assert suback.codes == (0x83,)
    assert suback.properties["reason_string"] == "filter 1 nothing is archived here"


def test_a_client_of_version_3_goes_on() -> None:
    """The session is resumed by a client without properties: it gets the messages without positions."""
    host = archived()
    publish(host, "a/b", [b"1"])
    peer = lasting(host)
    ask(peer, "latest", ("a/b", 1))
    host.lose(peer)
    publish(host, "a/b", [b"2"])
    old = host.connect("subscriber", 4, clean=False)
    assert payloads(old.receive()) == [b"2"]


def test_no_record_is_damaged_by_a_message_of_no_one() -> None:
    """A message whose publisher is unknown (a will of the broker, say) is delivered with No Local, too."""
    host = archived()
    archive_of(host).add(Message.create(b"a/b", b"1", qos=1, number=host.node.router.state.next_number()))
    peer = subscriber(host)
    ask(peer, "earliest", ("a/b", 1 | 4))
    assert payloads(peer.receive()) == [b"1"]

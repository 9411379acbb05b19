"""Sessions of a persistent store: what waits for the disk, and what a new worker recovers."""

from __future__ import annotations

import pytest

from leveldb_store.format import schema, windows
from pyx.delivery.restoring import unpack_queued, window_positions
from tests import wire
from tests.sansio import Host, Peer
from tests.unit.pyx.delivery.test_commit import Ledger, commit, host_with

Filters = tuple[tuple[str, int], ...]


class Durable:
    """One worker, one subscriber with a lasting session, and a publisher."""

    def __init__(self, *filters: tuple[str, int], version: int = 4, publisher_lasts: bool = False) -> None:
        self.filters = filters
        self.version = version
        self.store = Ledger()
        self.host = host_with(self.store)
        self.subscriber = self._subscriber(self.host)
        self.subscriber.send(wire.subscribe(version, 1, *filters))
        self.sync()
        self.subscriber.next("SUBACK")
        self.publisher = self.host.connect("publisher", 4, clean=not publisher_lasts)
        self.sync()

    def _subscriber(self, host: Host) -> Peer:
        options = {"clean": False} if self.version < 5 else {"clean": False, "expiry": 1000}
        return host.connect("subscriber", self.version, **options)

    def sync(self) -> None:
        """Make everything durable, lazy records included."""
        self.host.pass_time(0.3)
        commit(self.host, self.store)

    def publish(self, body: bytes, qos: int, topic: str = "t", **options: bool) -> int:
        """Publish; the ack leaves unless it waits for the disk."""
        packet_id = self.publisher.publish(topic, body, qos, **options)
        self.host.settle()
        return packet_id

    def restart(self, ticket: int | None = None, *lasting: str) -> Peer:
        """SIGKILL with `ticket` the last durable one (None: all are); return the subscriber on a new worker."""
        store = self.store.crashed(self.store.ticket if ticket is None else ticket)
        self.store, self.host = store, host_with(store)
        node = self.host.node
        for name in ("subscriber", *lasting):
            session = node.sessions.new(name, self.version)
            session.durable = True
            session.details.expiry_interval = 1000
            if name == "subscriber":
                for text, qos in self.filters:
                    group, _, topic_filter = text.removeprefix("$share/").partition("/")
                    if text.startswith("$share/"):
                        node.router.subscribing.restore_subscription(
                            session, topic_filter.encode(), qos, 0, group.encode(), 0
                        )
                    else:
                        node.router.subscribing.restore_subscription(session, text.encode(), qos, 0, None, 0)
            queued = {
                schema.split_queued(key)[1]: unpack_queued(value)
                for key, value in store.scan(schema.QUEUED + name.encode() + b"\0")
            }
            window = store.records.get(schema.window_key(name))
            positions = [] if window is None else window_positions(window)
            node.router.restoring.restore(session, window, queued, store.messages_at(positions))
        self.host.check_books()
        again = self._subscriber(self.host)
        assert again.session_present
        self.sync()
        self.subscriber = again
        return again


def got(peer: Peer) -> list[tuple[bytes, int, bool, int]]:
    """Return every PUBLISH that waits at the client; none is acknowledged."""
    peer.host.settle()
    found = [(p.payload, p.qos, p.dup, p.packet_id) for p in peer.packets if p.kind == "PUBLISH"]
    peer.packets.clear()
    return found


def test_qos_1_leaves_at_once_and_its_publisher_is_told_when_the_disk_has_it() -> None:
    world = Durable(("t", 1))
    world.publish(b"1", 1)
    assert [payload for payload, *_ in got(world.subscriber)] == [b"1"]
    world.publisher.silent()
    commit(world.host, world.store)
    world.publisher.next("PUBACK")


def test_qos_2_leaves_when_its_packet_identifier_is_on_the_disk() -> None:
    world = Durable(("t", 2), publisher_lasts=True)
    packet_id = world.publish(b"1", 2)
    world.subscriber.silent()
    world.publisher.silent()
    commit(world.host, world.store)
    publish = world.subscriber.next("PUBLISH")
    assert (publish.payload, publish.qos, publish.dup) == (b"1", 2, False)
    world.publisher.next("PUBREC")
    world.publisher.ack("PUBREL", packet_id)
    world.publisher.silent()
    world.subscriber.ack("PUBREC", publish.packet_id)
    world.subscriber.silent()
    commit(world.host, world.store)
    world.publisher.next("PUBCOMP")
    world.subscriber.next("PUBREL")
    world.subscriber.ack("PUBCOMP", publish.packet_id)
    world.sync()
    world.host.check_books()
    assert world.host.waiting() == 0


def test_a_second_pubrec_is_not_answered_before_the_first_is_on_the_disk() -> None:
    world = Durable(("t", 2))
    world.publish(b"1", 2)
    commit(world.host, world.store)
    packet_id = world.subscriber.next("PUBLISH").packet_id
    world.subscriber.ack("PUBREC", packet_id)
    world.host.settle()
    world.subscriber.ack("PUBREC", packet_id)
    world.subscriber.silent()
    commit(world.host, world.store)
    assert [world.subscriber.next("PUBREL").packet_id for _ in range(2)] == [packet_id, packet_id]


@pytest.mark.parametrize("version", [4, 5])
def test_what_was_in_flight_comes_again_under_its_packet_identifier(version: int) -> None:
    world = Durable(("t", 1), version=version)
    for body in (b"1", b"2", b"3"):
        world.publish(body, 1)
    sent = got(world.subscriber)
    world.subscriber.ack("PUBACK", sent[1][3])
    world.host.settle()
    world.sync()
    again = world.restart()
    assert got(again) == [(b"1", 1, True, sent[0][3]), (b"3", 1, True, sent[2][3])]
    for body, *_, packet_id in (sent[0], sent[2]):
        assert body
        again.ack("PUBACK", packet_id)
    world.sync()
    assert got(world.restart()) == []
    assert world.host.waiting() == 0


def test_what_was_never_sent_comes_after_the_restart() -> None:
    world = Durable(("t", 2))
    world.host.lose(world.subscriber)
    bodies = [b"%d" % number for number in range(300)]
    for body in bodies:
        world.publish(body, 1)
    world.sync()
    again = world.restart()
    assert [packet.payload for packet in again.receive()] == bodies


def test_a_crash_before_the_commit_of_a_window_repeats_qos_1_and_loses_nothing() -> None:
    world = Durable(("t", 1))
    before = world.store.ticket
    world.publish(b"1", 1)
    assert world.store.ticket > before
    world.subscriber.ack("PUBACK", got(world.subscriber)[0][3])
    world.host.settle()
    again = world.restart()
    assert [body for body, *_ in got(again)] == [b"1"]


@pytest.mark.parametrize("state", ["PUBLISH", "PUBREL", "PUBCOMP"])
def test_qos_2_goes_on_where_the_disk_has_it(state: str) -> None:
    world = Durable(("t", 2))
    world.publish(b"1", 2)
    commit(world.host, world.store)
    packet_id = world.subscriber.next("PUBLISH").packet_id
    if state != "PUBLISH":
        world.subscriber.ack("PUBREC", packet_id)
        world.host.settle()
        commit(world.host, world.store)
        world.subscriber.next("PUBREL")
    if state == "PUBCOMP":
        world.subscriber.ack("PUBCOMP", packet_id)
        world.sync()
    again = world.restart()
    if state == "PUBLISH":
        publish = again.next("PUBLISH")
        assert (publish.payload, publish.dup, publish.packet_id) == (b"1", True, packet_id)
    elif state == "PUBREL":
        assert again.next("PUBREL").packet_id == packet_id
    again.silent()


def test_a_qos_2_message_that_is_sent_again_after_the_restart_is_known() -> None:
    world = Durable(("t", 2), publisher_lasts=True)
    packet_id = world.publish(b"1", 2)
    commit(world.host, world.store)
    again = world.restart(None, "publisher")
    publisher = world.host.connect("publisher", 4, clean=False)
    publisher.send(wire.publish(4, "t", b"1", qos=2, packet_id=packet_id, dup=True))
    world.sync()
    assert publisher.next("PUBREC").packet_id == packet_id
    assert [body for body, *_ in got(again)] == [b"1"]
    publisher.ack("PUBREL", packet_id)
    world.sync()
    publisher.next("PUBCOMP")
    publisher.send(wire.publish(4, "t", b"2", qos=2, packet_id=packet_id))
    world.sync()
    assert [body for body, *_ in got(again)] == [b"2"]


def test_qos_2_of_a_backlog_leaves_after_its_commit_too() -> None:
    world = Durable(("t", 2))
    world.host.lose(world.subscriber)
    world.publish(b"1", 2)
    world.sync()
    again = world._subscriber(world.host)
    again.silent()
    commit(world.host, world.store)
    publish = again.next("PUBLISH")
    assert (publish.payload, publish.dup) == (b"1", False)
    world.subscriber = again
    again = world.restart()
    assert got(again) == [(b"1", 2, True, publish.packet_id)]


def test_a_client_that_is_back_before_the_commit_gets_nothing_earlier() -> None:
    world = Durable(("t", 2))
    world.publish(b"1", 2)
    world.host.lose(world.subscriber)
    again = world._subscriber(world.host)
    again.silent()
    commit(world.host, world.store)
    assert [(body, qos) for body, qos, *_ in got(again)] == [(b"1", 2)]


def test_shares_that_wait_or_are_in_flight_survive() -> None:
    world = Durable(("$share/g/t", 2))
    world.publish(b"1", 2)
    world.publish(b"2", 1)
    world.sync()
    sent = got(world.subscriber)
    assert [body for body, *_ in sent] == [b"2", b"1"]  # QoS 2 waited for the disk
    world.host.lose(world.subscriber)
    world.publish(b"3", 1)
    world.sync()
    again = world.restart()
    assert {(body, dup) for body, _, dup, _ in got(again)} == {(b"1", True), (b"2", True), (b"3", False)}
    world.host.check_books()
    for *_, packet_id in sent:
        again.ack("PUBACK" if packet_id == sent[0][3] else "PUBREC", packet_id)
    world.sync()
    again.ack("PUBCOMP", sent[1][3])
    again.ack("PUBACK", 3)
    world.sync()
    assert [key for key in world.store.records if key.startswith(b"Q")] == []


def test_a_retained_message_that_was_asked_for_survives() -> None:
    world = Durable(("t", 1))
    world.publish(b"1", 1, "r", retain=True)
    world.sync()
    world.subscriber.send(wire.subscribe(4, 2, ("r", 1)))
    world.sync()
    world.subscriber.next("SUBACK")
    world.sync()
    sent = got(world.subscriber)
    assert [body for body, *_ in sent] == [b"1"]
    world.filters = (("t", 1), ("r", 1))
    assert got(world.restart()) == [(b"1", 1, True, sent[0][3])]


def test_what_is_in_flight_of_a_subscription_that_has_ended_survives() -> None:
    world = Durable(("t", 1), ("u", 1))
    world.publish(b"1", 1, "u")
    sent = got(world.subscriber)
    world.subscriber.send(wire.unsubscribe(4, 2, "u"))
    world.sync()
    world.subscriber.next("UNSUBACK")
    world.host.node.router.sweeping.sweep()
    world.filters = (("t", 1),)
    assert got(world.restart()) == [(b"1", 1, True, sent[0][3])]


def test_a_new_subscription_gets_nothing_that_was_published_before() -> None:
    world = Durable(("t", 1))
    other = world.host.connect("other", clean=False)
    other.send(wire.subscribe(4, 1, ("u", 1)))
    world.sync()
    world.host.lose(other)
    world.publish(b"before", 1, "u")
    world.subscriber.send(wire.subscribe(4, 2, ("u", 1)))
    world.sync()
    world.filters = (("t", 1), ("u", 1))
    assert got(world.restart()) == []


def test_the_log_is_trimmed_behind_what_is_in_flight() -> None:
    world = Durable(("t", 1))
    for number in range(20):
        world.publish(b"%d" % number, 1)
    sent = got(world.subscriber)
    for *_, packet_id in sent[:5] + sent[6:]:
        world.subscriber.ack("PUBACK", packet_id)
    world.sync()
    world.host.node.router.sweeping.sweep()
    assert next(position for position, _ in world.store.read(b"t", 0, 1 << 20).items()) == 6
    world.subscriber.ack("PUBACK", sent[5][3])
    world.sync()
    world.host.node.router.sweeping.sweep()
    assert world.store.messages_held() == 0


def test_a_session_that_ends_leaves_nothing() -> None:
    world = Durable(("t", 1), ("$share/g/u", 1))
    world.publish(b"1", 1)
    world.publish(b"2", 1, "u")
    world.host.lose(world.subscriber)
    world.publish(b"3", 1, "u")
    world.sync()
    assert {key[:1] for key in world.store.records} == {b"V", b"Q"}
    world.host.connect("subscriber", clean=True)
    world.sync()
    assert {key: value for key, value in world.store.records.items() if b"subscriber" in key} == {}
    world.host.check_books()


def test_a_window_is_what_the_schema_says() -> None:
    world = Durable(("t", 2))
    world.publish(b"1", 1)
    world.publish(b"2", 2)
    world.sync()
    world.subscriber.send(wire.publish(4, "nobody", b"", qos=2, packet_id=77))
    world.sync()
    record = world.store.records[schema.window_key("subscriber")]
    window = windows.decode_window(record)
    assert window.next_packet_id == 3
    assert window.out == [(1, 1, 1, 1), (2, 2, 2, 2)]
    assert window.arrived == [77]
    assert window.cursor == 2, "it has been sent the log up to here"
    assert windows.encode_window(window) == record


@pytest.mark.parametrize("cut", range(39))
def test_a_damaged_window_is_refused(cut: int) -> None:
    world = Durable(("t", 2))
    world.publish(b"1", 2)
    world.sync()
    record = world.store.records[b"Vsubscriber"]
    assert len(record) == 39
    session = world.host.node.sessions.new("another", 4)
    with pytest.raises(ValueError, match=r"cut off|twice"):
        world.host.node.router.restoring.restore(session, record[:cut] if cut else record[:1], {}, {})

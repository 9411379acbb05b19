"""Sessions and subscriptions across the death of a worker, and answers that wait for the disk."""

from __future__ import annotations

import random

import pytest

from broker.worker.core import Node
from leveldb_store.contract import StoreError
from leveldb_store.format import schema
from tests import wire
from tests.kept_host import NEVER, VERSIONS, WILL, commit, families, kept, lasting, sent, session, store_of
from tests.sansio import START_WALL_MS, Host, KeptLog, Peer

# ------------------------------------------------------------------------------------------- sessions, subscriptions


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_and_its_subscriptions_are_there_after_a_crash(version: int) -> None:
    host, _ = kept()
    client = lasting(host, "c", version)
    assert not client.session_present
    assert client.subscribe(("a/+", 1), ("b", 0), ("c", 2)) == [1, 0, 2]
    client.unsubscribe("b")
    for payload in (b"1", b"2"):  # a recovered session works like a new one
        host = host.crash()
        assert sorted(session(host, "c").filters()) == [b"a/+", b"c"]
        publisher = host.connect("p")
        publisher.publish("a/1", payload, qos=1)
        publisher.publish("b", b"not wanted", qos=1)
        client = lasting(host, "c", version)
        assert client.session_present is (version != 3)
        assert [packet.payload for packet in client.receive()] == [payload]
        publisher.publish("c", b"live", qos=2)
        assert [(packet.payload, packet.qos) for packet in client.receive()] == [(b"live", 2)]
        host.pass_time(0.2)  # a window may lag behind acks by 100 ms


def test_the_options_of_a_subscription_are_those_of_its_last_subscribe() -> None:
    host, _ = kept()
    client = lasting(host, "c", 5)
    client.subscribe(("t", 2), identifier=7)
    client.subscribe(("t", 1 | wire.RETAIN_AS_PUBLISHED), identifier=9)
    client.subscribe(("own", 1 | wire.NO_LOCAL))
    host = host.crash()
    client = lasting(host, "c", 5)
    client.publish("own", b"", qos=1)
    host.connect("p").publish("t", b"x", qos=2, retain=True)
    host.settle()
    (packet,) = (packet for packet in client.receive())
    assert (packet.topic, packet.qos, packet.retain) == ("t", 1, True)
    assert packet.properties["subscription_identifier"] == [9]


def test_a_subscription_does_not_reach_back_over_a_crash() -> None:
    """Messages published before the subscription are in the log for another session; this one does not get them."""
    host, _ = kept()
    other = lasting(host, "other")
    other.subscribe(("t", 1))
    client = lasting(host, "c")
    host.lose(other)
    publisher = host.connect("p")
    publisher.publish("t", b"before", qos=1)
    host.settle()
    client.subscribe(("t", 1))
    client.subscribe(("t", 2))  # replaced: it keeps its beginning
    host = host.crash()
    host.connect("p").publish("t", b"after", qos=1)
    assert [packet.payload for packet in lasting(host, "c").receive()] == [b"after"]
    assert [packet.payload for packet in lasting(host, "other").receive()] == [b"before", b"after"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_that_ends_with_its_connection_leaves_nothing(version: int) -> None:
    host, store = kept()
    client = host.connect("c", version)
    client.subscribe(("t", 1))
    assert not families(host)
    host = host.crash()
    assert not len(host.node.sessions)
    assert not store.records


def test_what_was_logged_for_sessions_that_ended_with_the_worker_is_forgotten() -> None:
    host, store = kept()
    slow = host.connect("slow", 5, properties={"receive_maximum": 1})
    slow.subscribe(("t", 1), ("both", 1))
    stays = lasting(host, "stays")
    stays.subscribe(("both", 1))
    host.lose(stays)
    publisher = host.connect("p")
    for topic in ("t", "both"):
        for payload in (b"1", b"2", b"3"):
            publisher.publish(topic, payload, qos=1)
            publisher.next("PUBACK")
    host.settle()
    assert set(store.names()) == {b"t", b"both"}
    host = host.crash()
    assert list(store_of(host).names()) == [b"both"]
    assert [packet.payload for packet in lasting(host, "stays").receive()] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("version", VERSIONS)
def test_clean_start_deletes_what_is_stored(version: int) -> None:
    host, _ = kept()
    lasting(host, "c", version).subscribe(("t", 1), ("$share/g/t", 1))
    host.lose(host.peers[-1])
    assert families(host) == {b"S", b"T"}
    host.connect("c", version)
    assert not families(host)


def test_disconnect_with_session_expiry_0_deletes_what_is_stored() -> None:
    host, _ = kept()
    client = lasting(host, "c", 5)
    client.subscribe(("t", 1))
    client.send(wire.disconnect(5, 0, {"session_expiry_interval": 0}))
    host.settle()
    assert not families(host)


def test_a_share_of_a_group_is_a_subscription_too() -> None:
    host, _ = kept()
    lasting(host, "c", 5).subscribe(("$share/group/a/#", 1))
    host = host.crash()
    assert session(host, "c").subscribed() == [b"$share/group/a/#"]
    client = lasting(host, "c", 5)
    host.connect("p").publish("a/b", b"x", qos=1)
    assert [packet.payload for packet in client.receive()] == [b"x"]
    client.unsubscribe("$share/group/a/#")
    assert families(host) == {b"S"}


def test_the_version_of_a_resumed_session_is_that_of_its_last_connection() -> None:
    host, _ = kept()
    lasting(host, "c", 4)
    host.lose(host.peers[-1])
    lasting(host, "c", 5)
    assert session(host.crash(), "c").version == 5


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("answered", ["", "PUBREC", "PUBCOMP"])
def test_a_qos_2_message_in_flight_goes_on_where_it_was(version: int, answered: str) -> None:
    """Whatever its receiver had answered when the worker died, each message is delivered once."""
    host, _ = kept()
    client = lasting(host, "c", version)
    client.subscribe(("t", 2))
    host.connect("p").publish("t", b"x", qos=2)
    sent_first = client.next("PUBLISH")
    if answered:
        client.ack("PUBREC", sent_first.packet_id)
        client.next("PUBREL")
    if answered == "PUBCOMP":
        client.ack("PUBCOMP", sent_first.packet_id)
        host.settle()
        host.pass_time(0.2)
    host = host.crash()
    client = lasting(host, "c", version)
    if not answered:
        again = client.next("PUBLISH")
        assert (again.packet_id, again.dup, again.payload) == (sent_first.packet_id, True, b"x")
        client.ack("PUBREC", again.packet_id)
    if answered != "PUBCOMP":
        assert client.next("PUBREL").packet_id == sent_first.packet_id
        client.ack("PUBCOMP", sent_first.packet_id)
    client.silent()
    assert not client.session.unacknowledged


@pytest.mark.parametrize("version", VERSIONS)
def test_a_qos_2_publish_that_was_taken_is_not_taken_again(version: int) -> None:
    host, _ = kept()
    reader = lasting(host, "reader", version)
    reader.subscribe(("t", 2))
    publisher = lasting(host, "p", version)
    publish = wire.publish(version, "t", b"x", qos=2, packet_id=7)
    publisher.send(publish)
    publisher.next("PUBREC")
    host = host.crash()
    publisher = lasting(host, "p", version)
    publisher.send(publish)
    publisher.next("PUBREC")
    publisher.ack("PUBREL", 7)
    publisher.next("PUBCOMP")
    assert [packet.payload for packet in lasting(host, "reader", version).receive()] == [b"x"]


def test_what_belonged_to_a_session_that_expired_is_deleted() -> None:
    """The window is deleted, and so are messages in no index: retained ones that the session had asked for."""
    host, _ = kept()
    host.connect("p").publish("t", b"x", qos=1, retain=True)
    host.settle()
    client = lasting(host, "c", 5, expiry=10)
    client.stalled = True
    client.send(wire.subscribe(5, 1, ("t", 1)))
    host.settle()
    host = host.crash()
    assert {b"S", b"T", b"V"} <= {key[:1] for key in store_of(host).records}
    host = host.crash(seconds=11)
    assert {key[:1] for key in store_of(host).records} == {b"R"}


def test_shares_of_a_session_that_expired_while_the_broker_was_down_go_to_another_member() -> None:
    host, _ = kept()
    first = lasting(host, "first", 5, expiry=10)
    first.subscribe(("$share/g/t", 1))
    publisher = host.connect("p")
    publisher.publish("t", b"x", qos=1)
    assert first.next("PUBLISH").payload == b"x"
    lasting(host, "second", 5, expiry=1000).subscribe(("$share/g/t", 1))
    host.pass_time(1)
    host = host.crash(seconds=1)
    host.lose(lasting(host, "first", 5, expiry=10))
    host = host.crash(seconds=11)
    assert host.node.sessions.get("first") is None
    assert [packet.payload for packet in lasting(host, "second", 5, expiry=1000).receive()] == [b"x"]
    host.check_books()


# ------------------------------------------------------------------------------------------------------------ expiry


def test_no_session_expires_before_siblings_can_be_reached() -> None:
    """Shares of groups and the will go to the workers that are reachable by then."""
    host, store = kept()
    host.lose(lasting(host, "c", 5, expiry=10))
    node = Node(0, 1, host.settings, store.after_crash(), KeptLog(), host.now_ms, START_WALL_MS)
    recovered = node.recovery.run()
    node.router.state.set_time(host.now_ms + 20_000, START_WALL_MS + 20_000)
    node.timers.advance(host.now_ms + 20_000)
    assert node.sessions.get("c") is not None
    for _ in recovered.begin():
        pass
    node.timers.advance(host.now_ms + 20_100)
    assert node.sessions.get("c") is None
    node.router.abandon()


def test_expiry_counts_from_the_disconnection_while_the_broker_is_down() -> None:
    host, _ = kept()
    client = lasting(host, "c", 5, expiry=100)
    client.subscribe(("t", 1))
    client.disconnect()
    host.pass_time(40)
    host = host.crash(seconds=59)
    assert host.node.sessions.get("c") is not None
    later = host.crash(seconds=2)
    assert later.node.sessions.get("c") is None
    assert not families(later)
    host.pass_time(2)
    assert host.node.sessions.get("c") is None
    assert not families(host)


def test_expiry_of_a_connected_session_counts_from_recovery_and_only_once() -> None:
    host, _ = kept()
    lasting(host, "c", 5, expiry=100)
    host.pass_time(500)
    host = host.crash(seconds=1000)
    host = host.crash(seconds=60)
    assert host.node.sessions.get("c") is not None
    host.pass_time(41)
    assert host.node.sessions.get("c") is None
    assert not families(host)


def test_a_session_that_never_expires_does_not() -> None:
    host, _ = kept(limits={"session_expiry_seconds_max": NEVER})
    lasting(host, "c", 5)
    host = host.crash(seconds=10_000_000)
    host.pass_time(1)
    assert host.node.sessions.get("c") is not None


def test_the_expiry_of_disconnect_is_stored() -> None:
    host, _ = kept()
    client = lasting(host, "c", 5, expiry=10)
    client.send(wire.disconnect(5, 0, {"session_expiry_interval": 1000}))
    host.settle()
    assert host.crash(seconds=100).node.sessions.get("c") is not None


# ---------------------------------------------------------------------------------------------- waiting for the disk


@pytest.mark.parametrize("version", VERSIONS)
def test_connack_of_a_new_session_waits_for_the_disk(version: int) -> None:
    """All answers to packets that the client sent behind its CONNECT wait, too [MQTT-3.2.0-1]."""
    host, _ = kept(manual=True)
    properties = {"session_expiry_interval": 100} if version == 5 else {}
    client = sent(host, "c", version, clean=False, properties=properties)
    client.send(wire.subscribe(version, 1, ("t", 1)) + wire.publish(version, "u", b"x", qos=1, packet_id=2))
    client.silent()
    assert host.crash().node.sessions.get("c") is None  # no CONNACK was sent
    commit(host)
    assert client.next("CONNACK").reason == 0
    commit(host)
    assert [client.next(kind).kind for kind in ("SUBACK", "PUBACK")]
    assert session(host.crash(), "c").filters() == [b"t"]


def test_connack_waits_for_nothing_where_nothing_is_promised() -> None:
    host, _ = kept(manual=True)
    host.connect("clean")
    client = sent(host, "c", clean=False)
    commit(host)
    client.next("CONNACK")
    host.lose(client)
    assert lasting(host, "c").session_present  # resumed unchanged


@pytest.mark.parametrize("version", VERSIONS)
def test_connack_that_says_that_a_session_has_ended_waits_for_the_disk(version: int) -> None:
    host, _ = kept()
    lasting(host, "c", version).subscribe(("t", 1))
    host.lose(host.peers[-1])
    store_of(host).manual = True
    client = sent(host, "c", version)
    client.silent()
    assert host.crash().node.sessions.get("c") is not None
    host.lose(client)
    client = sent(host, "c", version)  # the same for a connection that finds it ended
    client.silent()
    commit(host)
    assert not client.next("CONNACK").session_present
    assert host.crash().node.sessions.get("c") is None


def test_another_expiry_waits_for_the_disk() -> None:
    host, _ = kept()
    lasting(host, "c", 5, expiry=10).disconnect()
    store_of(host).manual = True
    client = sent(host, "c", 5, clean=False, properties={"session_expiry_interval": 1000})
    client.silent()
    commit(host)
    assert client.next("CONNACK").session_present
    assert host.crash(seconds=100).node.sessions.get("c") is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_suback_and_unsuback_wait_for_the_disk(version: int) -> None:
    host, _ = kept()
    client = lasting(host, "c", version)
    store_of(host).manual = True
    client.send(wire.subscribe(version, 1, ("t", 1)))
    client.silent()
    assert not session(host.crash(), "c").filters()
    commit(host)
    client.next("SUBACK")
    client.send(wire.unsubscribe(version, 2, "t"))
    client.silent()
    assert session(host.crash(), "c").filters() == [b"t"]
    commit(host)
    client.next("UNSUBACK")
    assert not session(host.crash(), "c").filters()


def test_subscriptions_of_a_session_that_is_not_stored_wait_for_nothing() -> None:
    host, _ = kept(manual=True)
    client = host.connect("c")
    assert client.subscribe(("t", 1)) == [1]


# -------------------------------------------------------------------------------- two connections of one client id


@pytest.mark.parametrize("clean", [True, False])
def test_a_second_connect_takes_the_place_of_one_that_waits(clean: bool) -> None:
    """One session; the first connection gets no answer [MQTT-3.2.0-1], the second one Session Present 0."""
    host, _ = kept(manual=True)
    properties = {"session_expiry_interval": 100}
    first = sent(host, "c", 5, clean=False, properties=properties)
    second = sent(host, "c", 5, clean=clean, properties=properties)
    assert first.closed
    assert not second.closed
    assert len(host.node.sessions) == 1
    commit(host)
    assert not first.packets
    assert not second.next("CONNACK").session_present
    assert session(host, "c").connection is second.conn
    assert families(host) == {b"S"}


def test_a_second_connect_that_finds_a_session_says_so() -> None:
    host, _ = kept()
    lasting(host, "c", 5, expiry=10).subscribe(("t", 1))
    host.lose(host.peers[-1])
    store_of(host).manual = True
    first = sent(host, "c", 5, clean=False, properties={"session_expiry_interval": 100})
    second = sent(host, "c", 5, clean=False, properties={"session_expiry_interval": 100})
    second.silent()
    commit(host)
    assert first.closed
    assert not first.packets
    assert second.next("CONNACK").session_present
    assert session(host, "c").filters() == [b"t"]


def test_a_second_connect_takes_over_and_waits() -> None:
    """The first connection is open; the second one asks for a different expiry."""
    host, _ = kept()
    first = lasting(host, "c", 5, expiry=10)
    store_of(host).manual = True
    second = sent(host, "c", 5, clean=False, properties={"session_expiry_interval": 100})
    assert first.next("DISCONNECT").reason == 0x8E
    third = sent(host, "c", 5, clean=False, properties={"session_expiry_interval": 1000})
    commit(host)
    assert second.closed
    assert not second.packets
    assert third.next("CONNACK").session_present


def test_a_connection_that_is_lost_while_it_waits_leaves_no_session_it_made() -> None:
    host, _ = kept(manual=True)
    client = sent(host, "c", 5, clean=False, properties={"session_expiry_interval": 100}, will=WILL)
    host.lose(client)
    commit(host)
    assert not len(host.node.sessions)
    assert not families(host)
    assert not client.packets


def test_a_connection_that_is_lost_while_it_waits_leaves_the_session_it_found() -> None:
    host, _ = kept()
    lasting(host, "c", 5, expiry=10).subscribe(("t", 1))
    host.lose(host.peers[-1])
    store_of(host).manual = True
    client = sent(host, "c", 5, clean=False, properties={"session_expiry_interval": 0})
    host.lose(client)
    commit(host)
    assert not client.packets
    host.pass_time(9)  # its last CONNACK determines the expiry
    assert host.node.sessions.get("c") is not None
    host.pass_time(2)
    assert host.node.sessions.get("c") is None


def test_one_that_is_not_stored_in_time_is_told_so() -> None:
    host, _ = kept(manual=True)
    client = sent(host, "c", 5, clean=False, properties={"session_expiry_interval": 100})
    host.node.connect_timeout(client.conn)
    assert client.next("CONNACK").reason == 0x88
    host.settle()
    assert not len(host.node.sessions)


def test_those_that_wait_count_for_connections_max() -> None:
    host, _ = kept(manual=True, limits={"connections_max": 1})
    sent(host, "c", 4, clean=False)
    assert sent(host, "d", 5).next("CONNACK").reason == 0x97


def test_the_number_of_connections_is_exact_over_take_overs_of_those_that_wait() -> None:
    """Each take-over gives a place back, and the newest connection has one of its own."""
    host, _ = kept(manual=True, limits={"connections_max": 2})
    for _ in range(5):
        last = sent(host, "c", 5, clean=False, properties={"session_expiry_interval": 100})
    assert sent(host, "d", 5).next("CONNACK").reason == 0
    assert sent(host, "e", 5).next("CONNACK").reason == 0x97
    commit(host)
    last.next("CONNACK")
    last.disconnect()
    assert sent(host, "e", 5).next("CONNACK").reason == 0
    assert sent(host, "f", 5).next("CONNACK").reason == 0x97


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("fails", [False, True])
def test_a_clean_client_that_comes_again_waits_for_nothing(version: int, fails: bool) -> None:
    """The client has no records in the store, whatever the disk does."""
    host, store = kept(manual=True)
    sent(host, "other", 4, clean=False)  # a record waits for the disk
    if fails:
        store.failed = "no space left on device since 1"
    for _ in range(3):
        client = sent(host, "c", version)
        assert client.next("CONNACK").reason == 0
        host.lose(client)


# ----------------------------------------------------------------------------------------- a disk that stores nothing


def test_while_nothing_can_be_stored_nothing_is_promised() -> None:
    host, store = kept()
    client = lasting(host, "c", 5, expiry=100)
    client.subscribe(("t", 1))
    host.lose(client)
    store.failed = "no space left on device since 1"
    assert sent(host, "new", 5, properties={"session_expiry_interval": 100}).next("CONNACK").reason == 0x88
    assert sent(host, "new", 4, clean=False).next("CONNACK").reason == 3
    assert sent(host, "willing", 5, will=WILL).next("CONNACK").reason == 0x88
    assert sent(host, "c", 5, clean=True).next("CONNACK").reason == 0x88
    client = lasting(host, "c", 5, expiry=100)  # stored sessions can be read
    assert client.session_present
    assert client.subscribe(("u", 1)) == [0x97]
    assert host.connect("clean", 5).subscribe(("u", 1)) == [1]
    store.failed = None
    assert client.subscribe(("u", 1)) == [1]
    assert lasting(host, "new").subscribe(("t", 1)) == [1]


# ------------------------------------------------------------------------------------------------ crashes at any moment


class Client:
    """One client id, and the state that it expects of its session."""

    def __init__(self, host: Host, client_id: str) -> None:
        self.host = host
        self.client_id = client_id
        self.peer: Peer | None = None
        self.told: set[bytes] | None = None
        """Filters that were confirmed; None: no session was confirmed."""
        self.doubtful: set[bytes] = set()
        """Filters whose SUBSCRIBE or UNSUBSCRIBE is not answered yet."""
        self.ending = False
        """A clean start was requested and is not answered yet."""
        self._asked: list[tuple[bytes, bool]] = []

    def connect(self, clean: bool) -> None:
        self.lose()
        self.ending |= clean
        properties = {"session_expiry_interval": NEVER}
        self.peer = sent(self.host, self.client_id, 5, clean=clean, properties=properties)
        self.hear()

    def lose(self) -> None:
        self.hear()
        self.doubtful |= {text for text, _ in self._asked}
        self._asked.clear()
        if self.peer is not None:
            self.host.lose(self.peer)

    def change(self, text: bytes, there: bool) -> None:
        if self.peer is None or self.peer.closed:
            return
        identifier, name = self.peer.packet_id(), text.decode()
        self._asked.append((text, there))
        packet = wire.subscribe(5, identifier, (name, 1)) if there else wire.unsubscribe(5, identifier, name)
        self.peer.send(packet)

    def hear(self) -> None:
        self.host.settle()
        while self.peer is not None and self.peer.packets:
            packet = self.peer.packets.popleft()
            if packet.kind == "CONNACK":
                if not packet.session_present:
                    self.told, self.doubtful = set(), set()
                self.ending = False
            elif packet.kind in ("SUBACK", "UNSUBACK"):
                text, there = self._asked.pop(0)
                assert self.told is not None
                self.told = self.told | {text} if there else self.told - {text}
                self.doubtful.discard(text)

    def check(self, host: Host) -> None:
        """Check the session after the worker has died."""
        session = host.node.sessions.get(self.client_id)
        self.doubtful |= {text for text, _ in self._asked}
        if session is None:
            assert self.told is None or self.ending
        elif self.told is not None and not self.ending:
            assert set(session.filters()) ^ self.told <= self.doubtful


@pytest.mark.parametrize("seed", range(50))
def test_what_was_acknowledged_is_there_whenever_the_worker_dies(seed: int) -> None:
    """Clients connect with and without a clean start, subscribe, unsubscribe and lose their connections; the disk is
    late; the worker dies. Everything that CONNACK, SUBACK and UNSUBACK confirmed holds; unanswered requests may or may
    not hold.
    """
    dice = random.Random(seed)
    host, _ = kept(manual=True, limits={"takeovers_per_minute_max": 0})
    told: dict[str, set[bytes] | None] = {}
    for _ in range(5):
        clients = [Client(host, f"c{number}") for number in range(4)]
        for client in clients:
            client.told = told.get(client.client_id)
        for _ in range(dice.randrange(80)):
            client, what = dice.choice(clients), dice.random()
            if what < 0.2:
                client.connect(clean=dice.random() < 0.3)
            elif what < 0.25:
                client.lose()
            elif what < 0.7:
                client.change(b"f%d" % dice.randrange(3), dice.random() < 0.6)
            else:
                host.node.router.journal.durable(store_of(host).sync(dice.randrange(3)))
                host.settle()
            for each in clients:
                each.hear()
        host = host.crash(seconds=1)
        for client in clients:
            client.check(host)
            session = host.node.sessions.get(client.client_id)
            told[client.client_id] = None if session is None else set(session.filters())


def test_a_store_that_is_another_ones_is_refused() -> None:
    host, _ = kept()
    host.node.recovery.identify("epoch")
    host.settle()
    host.node.recovery.identify("epoch")
    after = host.crash()
    after.node.recovery.identify("epoch")
    with pytest.raises(StoreError, match="the store of worker 0 says that it is another one"):
        after.node.recovery.identify("another")


def test_a_record_that_cannot_be_read_is_set_aside() -> None:
    """Each record in turn is damaged: the host starts, keeps it under another key, and logs which one; everything else
    works. The next start finds nothing wrong.
    """
    host, store = kept(workers=1)
    will = wire.Will("will", b"gone", qos=1)
    client = lasting(host, "c", 5, will=will)
    client.subscribe(("t", 1), ("$share/g/s", 1))
    lasting(host, "d", 5).subscribe(("t", 1))
    publisher = host.connect("p")
    for topic in ("t", "s", "r"):
        publisher.publish(topic, b"x", qos=1, retain=topic == "r")
    host.pass_time(1)
    assert {key[:1] for key in store.records} >= {b"S", b"T", b"V", b"Q", b"R", b"W"}
    for key in list(store.records):
        value = store.records[key]
        for damaged in (b"", value[:-1], value + b"\0"):
            crashed = store.after_crash()
            crashed.records[key] = damaged
            after = Host(stores=[crashed])
            after.node.set_aside.tell()
            aside = {each for each in crashed.records if each[:1] == schema.SET_ASIDE}
            assert crashed.records[schema.set_aside_key(key)] == damaged
            assert key not in crashed.records or key[:1] == schema.WINDOW  # the session has a new window
            belongs = {schema.SET_ASIDE + each for each in store.records if each[1:2] == key[1:2]}
            assert aside == {schema.set_aside_key(key)} or (key[:1] == schema.SESSION and aside <= belongs)
            assert after.counters()["records_set_aside"] == len(aside) == len(after.logs[0].named("record_set_aside"))
            lasting(after, "d", 5)
            again = after.crash()
            again.node.set_aside.tell()
            assert not again.logs[0].named("record_set_aside")
            strict = store.after_crash()
            strict.records[key] = damaged
            with pytest.raises(StoreError, match="cannot be read"):
                Host(stores=[strict], strict_store=True)

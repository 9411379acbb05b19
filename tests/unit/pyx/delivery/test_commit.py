"""Answers, acks and callbacks that wait for the store, by the ticket of the batch gathered in their tick."""

from __future__ import annotations

from collections.abc import Iterator

from leveldb_store.memory import MemoryStore
from pyx.delivery.connection import Connection
from tests import wire
from tests.sansio import Host, Peer


class Ledger(MemoryStore):
    """A persistent store whose tickets are durable when the test says so."""

    immediate = False
    keeps = True

    def __init__(self) -> None:
        super().__init__()
        self.records: dict[bytes, bytes] = {}
        self.ticket = 0
        self.synced: list[bool] = []
        """For each batch: whether it was synced to the disk."""
        self._at: list[dict[bytes, bytes]] = [{}]
        self._gathered_records = False

    def put(self, key: bytes, value: bytes) -> None:
        """See the contract."""
        self.records[key] = value
        self._gathered_records = True

    def delete(self, key: bytes) -> None:
        """See the contract."""
        self.records.pop(key, None)
        self._gathered_records = True

    def flush(self, sync: bool = True) -> int:
        """See the contract."""
        if super().flush() + self._gathered_records:
            self._ticket = 0
            self._gathered_records = False
            self.ticket += 1
            self.synced.append(sync)
            self._at.append(dict(self.records))
        return self.ticket

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See the contract."""
        return iter(sorted((key, value) for key, value in self.records.items() if key.startswith(prefix)))

    def crashed(self, ticket: int) -> Ledger:
        """Return the store that a new worker finds after this last durable ticket; its log may hold more."""
        after = Ledger()
        after._indexes = self._indexes
        after.last_position = self.last_position
        after.records = dict(self._at[ticket])
        return after


def host_with(store: MemoryStore) -> Host:
    host = Host()
    host.node.router.journal.store = host.node.store = store
    host.node.router.state.keeps = store.keeps
    host.node.router.windows.go_on_behind(store.last_position)
    return host


def commit(host: Host, store: Ledger) -> None:
    """Make everything that was flushed durable."""
    host.node.router.journal.durable(store.ticket)
    host.settle()


def offline_subscriber(host: Host, store: Ledger) -> Peer:
    """Return an offline session that must get the messages it misses."""
    subscriber = host.connect("subscriber", clean=False)
    subscriber.send(wire.subscribe(4, 1, ("t", 1)))
    subscriber.silent()
    commit(host, store)
    subscriber.next("SUBACK")
    host.lose(subscriber)
    return subscriber


def test_a_puback_leaves_when_what_was_logged_is_durable() -> None:
    store = Ledger()
    host = host_with(store)
    offline_subscriber(host, store)
    publisher = host.connect("publisher")
    commit(host, store)
    publisher.publish("t", b"1", 1)
    publisher.silent()
    before = store.ticket
    publisher.publish("t", b"2", 1)
    publisher.silent()
    host.node.router.journal.durable(before)
    publisher.next("PUBACK")
    publisher.silent()
    commit(host, store)
    publisher.next("PUBACK")


def test_a_rule_says_for_which_topics_a_batch_is_for_the_disk_itself() -> None:
    store = Ledger()
    host = host_with(store)
    router = host.node.router
    router.journal.set_durabilities([(b"t/alarm/#", True), (b"t/#", False)], True)
    subscriber = host.connect("subscriber", clean=False)
    subscriber.send(wire.subscribe(4, 1, ("#", 2)))
    commit(host, store)
    host.lose(subscriber)
    publisher = host.connect("publisher")
    commit(host, store)

    def batches_of(topic: str, qos: int = 1, retain: bool = False) -> list[bool]:
        store.synced.clear()
        publisher.publish(topic, b"1", qos, retain=retain)
        publisher.silent()
        commit(host, store)
        publisher.next("PUBREC" if qos == 2 else "PUBACK")
        return store.synced

    assert batches_of("t/temperature") == [False]
    assert batches_of("t/alarm/fire") == [True], "the first rule that matches"
    assert batches_of("other") == [True], "no rule matches"
    assert batches_of("t/temperature", retain=True) == [False]
    assert batches_of("t/alarm/fire", retain=True) == [True]
    # a publish that needs the disk makes those of the same tick durable, too
    store.synced.clear()
    publisher.send(wire.publish(4, "t/1", qos=1, packet_id=7) + wire.publish(4, "t/alarm/1", qos=1, packet_id=8))
    publisher.silent()
    assert store.synced == [True]
    commit(host, store)
    assert [publisher.next("PUBACK").packet_id for _ in range(2)] == [7, 8]
    # confirmations about a session are as durable as the most durable topic
    store.synced.clear()
    another = host.connect("another", clean=False)
    another.send(wire.subscribe(4, 1, ("t/1", 1)))
    another.silent()
    assert store.synced == [True]


def test_a_rule_may_ask_for_more_than_the_others_have() -> None:
    store = Ledger()
    host = host_with(store)
    host.node.router.journal.set_durabilities([(b"alarm/+", True)], False)
    offline_subscriber(host, store)
    publisher = host.connect("publisher")
    commit(host, store)
    store.synced.clear()
    publisher.publish("t", b"1", 1)
    publisher.silent()
    commit(host, store)
    publisher.next("PUBACK")
    assert store.synced == [False]


def test_a_publish_that_nobody_needs_waits_for_nothing() -> None:
    host = host_with(Ledger())
    publisher = host.connect("publisher")
    publisher.publish("t", b"1", 1)
    publisher.next("PUBACK")


def test_a_packet_that_answers_waits_for_the_records_of_its_tick() -> None:
    store = Ledger()
    host = host_with(store)
    router = host.node.router
    client = host.connect("client")
    router.journal.put_record(b"Tclient", b"1")
    called: list[int] = []
    router.answering.answer_packet(client.conn, wire.ack(4, "PUBACK", 1), 0, lambda: called.append(store.ticket))
    client.silent()
    assert store.records == {b"Tclient": b"1"}
    router.answering.answer_packet(
        client.conn, wire.ack(4, "PUBACK", 2)
    )  # behind it, with nothing of its own to wait for
    client.silent()
    assert not called
    commit(host, store)
    assert [client.next("PUBACK").packet_id for _ in range(2)] == [1, 2]
    assert called == [store.ticket]
    router.journal.delete_record(b"Tclient")
    host.settle()
    assert not store.records


def test_when_durable_calls_once_everything_until_now_is() -> None:
    store = Ledger()
    host = host_with(store)
    router = host.node.router
    called: list[str] = []
    router.journal.when_durable(lambda: called.append("nothing to wait for"))
    assert called == ["nothing to wait for"]
    router.journal.put_record(b"a", b"")
    router.journal.when_durable(lambda: called.append("a"))
    host.settle()
    router.journal.when_durable(lambda: called.append("a, too"))
    first = store.ticket
    router.journal.put_record(b"b", b"")
    router.journal.when_durable(lambda: called.append("b"))
    host.settle()
    assert called == ["nothing to wait for"]
    router.journal.durable(first)
    assert called[1:] == ["a", "a, too"]
    router.journal.durable(store.ticket)
    assert called[3:] == ["b"]


def test_what_a_callback_waits_for_comes_after_those_that_wait_already() -> None:
    store = Ledger()
    host = host_with(store)
    journal = host.node.router.journal
    called: list[str] = []

    def first() -> None:
        called.append("first")
        journal.when_durable(lambda: called.append("asked for by the first"))

    journal.put_record(b"a", b"")
    journal.when_durable(first)
    journal.when_durable(lambda: called.append("second"))
    host.settle()
    journal.durable(store.ticket)
    assert called == ["first", "second", "asked for by the first"]
    journal.when_durable(lambda: called.append("at once"))
    assert called[-1] == "at once"


def test_what_a_callback_stores_is_flushed_by_the_tick_that_follows() -> None:
    store = Ledger()
    host = host_with(store)
    router = host.node.router
    router.journal.put_record(b"a", b"")
    router.journal.when_durable(lambda: router.journal.put_record(b"b", b""))
    host.settle()
    router.journal.durable(store.ticket)
    host.settle()
    assert store.ticket == 2
    assert set(store.records) == {b"a", b"b"}


def test_without_a_disk_nothing_is_recorded_and_nothing_waits() -> None:
    host = Host()
    router = host.node.router
    assert not router.state.keeps
    called: list[int] = []
    router.journal.put_record(b"a", b"")
    router.journal.when_durable(lambda: called.append(1))
    assert called == [1]
    conn = Connection()
    router.answering.answer_packet(conn, b"\xd0\0")
    assert router.state.take_output(conn) == b"\xd0\0"

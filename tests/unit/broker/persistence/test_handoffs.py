"""A worker's records of its links: the hand-off log, positions, and messages that leave only when stored."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

import pytest

from broker.persistence.handoff_log import StoredHandoff, StoredLinks, kept_links
from broker.worker.core import Node
from leveldb_store.format import link_schema, schema
from pyx.core.peer import sibling
from pyx.mesh.link import Link
from pyx.protocol.message import Message
from pyx.storage.entries import pack_messages, without_sibling_messages
from tests.kept_store import KeptStore
from tests.sansio import Host
from zmq_mesh.contract import HandoffLog, LinkLimits
from zmq_mesh.envelope import decode_entries
from zmq_mesh.interest import Publisher

PEER_OF_VERSION_1 = Struct("<QQH")
REFUSAL_OF_VERSION_1 = Struct("<QIB")


def host_with(store: KeptStore) -> Host:
    return Host(workers=2, stores=[store, KeptStore()])


def kept_links_of(node: Node) -> StoredLinks:
    return kept_links(node.context, node.set_aside, node.peering)


def test_a_hand_off_log_is_found_again_as_it_was() -> None:
    store = KeptStore()
    host = host_with(store)
    log = StoredHandoff(host.node.router, store, sibling(3), host.node.set_aside.take)
    part = pack_messages([Message.create(b"t", b"body", qos=2, number=7)])
    log.reserve(100)
    log.append(101, part, [b"large"], 1)
    log.append(102, memoryview(part), [], -1)
    log.append(103, part, [], 1)
    host.settle()
    again = StoredHandoff(host.node.router, store.after_crash(), sibling(3), host.node.set_aside.take)
    assert (again.stream, again.reserved, again.acknowledged) == (log.stream, 100, 0)
    size = len(part)
    assert list(again.found()) == [(101, size + 5, 1), (102, size, -1), (103, size, 1)]
    assert again.read(101) == (part, [b"large"])
    assert again.read(102) == again.read(103) == (part, [])
    again.reserve(200)
    assert not list(again.found()), "the link has it"
    assert again.read(103) == (part, [])
    log.trim(102)
    host.settle()
    again = StoredHandoff(host.node.router, store.after_crash(), sibling(3), host.node.set_aside.take)
    assert [each[0] for each in again.found()] == [103]
    assert not list(
        StoredHandoff(host.node.router, store, sibling(2), host.node.set_aside.take).found()
    )  # another peer's


def test_what_is_stored_says_so_when_the_disk_has_it() -> None:
    store = KeptStore(manual=True)
    host = host_with(store)
    log = StoredHandoff(host.node.router, store, sibling(1), host.node.set_aside.take)
    log.append(1, b"", [], 0)
    called: list[bool] = []
    log.when_stored(lambda: called.append(True))
    host.settle()
    assert not called
    store.sync()
    host.settle()
    assert called == [True]


def test_words_for_a_siblings_broker_are_not_said_again() -> None:
    host = Host(workers=2)
    router = host.node.router
    router.peers.tell(1, b"?", b"question")
    taken = router.peers.take(1)
    assert taken is not None
    part: Any = taken[1]
    before, after = (list(decode_entries(memoryview(each), [])) for each in (part, without_sibling_messages(part)))
    assert [(each.topic, bytes(each.payload)) for each in before] == [(b"?", b"question")]
    assert [(each.topic, bytes(each.payload)) for each in after] == [(b".", b"question")]
    log = StoredHandoff(router, KeptStore(), sibling(1), host.node.set_aside.take)
    assert not log.append(1, part, [], 1), "the link must keep what cannot be read back"
    assert log.append(2, without_sibling_messages(part), [], 1)
    message = pack_messages([Message.create(b"?", b"no word", qos=1)])
    assert without_sibling_messages(message) == message
    assert without_sibling_messages(b"") == b""
    with pytest.raises(ValueError, match="cut off"):
        without_sibling_messages(message[:-1])


def test_links_begin_where_the_store_says() -> None:
    store = KeptStore()
    host = Host(workers=2, stores=[store, KeptStore()])
    router = host.node.router
    router.journal.put_record(schema.peer_key(sibling(1)), link_schema.encode_peer(77, 5))
    router.journal.put_record(schema.refusals_key(sibling(1), 4), link_schema.encode_refusals([(0, 1), (7, 4)]))
    router.journal.put_record(schema.refusals_key(sibling(1), 5), link_schema.encode_refusals([(2, 1)]))
    host.settle()
    kept = kept_links_of(host.node)
    assert kept.received == {1: (77, 5)}
    assert kept.refusals == {1: [(4, [(0, 1), (7, 4)]), (5, [(2, 1)])]}
    assert set(kept.handoffs) == {1}
    assert kept_links_of(Host(workers=2).node) == ({}, {}, {})


def test_refusals_of_version_1_stand_in_the_record_of_the_position() -> None:
    """The refusals become separate records before the next position overwrites that one."""
    store = KeptStore()
    host = Host(workers=2, stores=[store, KeptStore()])
    inside = [(3, 9, 1), (4, 0, 1), (4, 2, 4)]
    record = PEER_OF_VERSION_1.pack(77, 5, len(inside)) + b"".join(REFUSAL_OF_VERSION_1.pack(*each) for each in inside)
    assert link_schema.decode_peer(record) == (77, 5, 0, (), inside)
    host.node.router.journal.put_record(schema.peer_key(sibling(1)), record)
    host.settle()
    for _ in range(2):
        kept = kept_links_of(host.node)
        assert kept.received == {1: (77, 5)}
        assert kept.refusals == {1: [(3, [(9, 1)]), (4, [(0, 1), (2, 4)])]}
        host.settle()
        store.sync()
    assert {key for key in store.records if key[:1] == schema.PEER} == {
        schema.peer_key(sibling(1)), schema.refusals_key(sibling(1), 3), schema.refusals_key(sibling(1), 4)
    }  # fmt: skip


def test_the_records_of_links_are_decoded_or_refused() -> None:
    head = link_schema.encode_handoff_head(1, 2)
    assert link_schema.decode_handoff_head(head) == (1, 2)
    entry = link_schema.encode_handoff(-1, b"part", [b"a", b""])
    assert link_schema.decode_handoff(entry) == (-1, b"part", [b"a", b""])
    peer = link_schema.encode_peer(1, 2)
    assert link_schema.decode_peer(peer) == (1, 2, 0, (), ())
    begun = link_schema.encode_peer(1, 2, 9, [(3, 4), (8, 1)])
    assert link_schema.decode_peer(begun) == (1, 2, 9, [(3, 4), (8, 1)], ())
    old = PEER_OF_VERSION_1.pack(1, 2, 1) + REFUSAL_OF_VERSION_1.pack(3, 4, 5)
    assert link_schema.decode_peer(old) == (1, 2, 0, (), [(3, 4, 5)])
    refusals = link_schema.encode_refusals([(0xFFFFFFFF, 1)])
    assert link_schema.decode_refusals(refusals) == [(0xFFFFFFFF, 1)]
    for decode, record in (
        (link_schema.decode_handoff_head, head), (link_schema.decode_handoff, entry), (link_schema.decode_peer, peer),
        (link_schema.decode_peer, old), (link_schema.decode_refusals, refusals),
    ):  # fmt: skip
        for cut in range(len(record)):
            with pytest.raises(schema.SchemaError):
                decode(record[:cut])
        with pytest.raises(schema.SchemaError):
            decode(record + b"\0")


class Delayed(HandoffLog):
    """A store that stores when the test says so."""

    def __init__(self) -> None:
        super().__init__(stream=5)
        self.waiting: list[Callable[[], None]] = []

    def when_stored(self, callback: Callable[[], None]) -> None:
        """See HandoffLog."""
        self.waiting.append(callback)


class Deaf:
    """A listener that receives the events of a link and does nothing."""

    def __getattr__(self, name: str) -> Any:
        return self._nothing

    def _nothing(self, *arguments: Any) -> None:
        """Do nothing, for any arguments."""


def test_a_batch_that_is_held_leaves_when_it_is_stored_and_what_goes_before_it_is_stored_too() -> None:
    """If the worker dies, no batch may be sent again without the preceding ones: that would change the order."""
    sent: list[list[bytes]] = []
    back: list[list[bytes]] = []

    def wire_of(messages: list[list[bytes]]) -> Callable[[list[Any]], bool]:
        def send(frames: list[Any]) -> bool:
            messages.append([bytes(frame) for frame in frames])
            return True

        return send

    log = Delayed()
    link = Link(sibling(0), sibling(1), 1, Publisher(), Deaf(), wire_of(sent), LinkLimits(), 1.0, handoff=log)
    peer = Link(sibling(1), sibling(0), 1, Publisher(), Deaf(), wire_of(back), LinkLimits(), 1.0)
    link.tick(1.0)
    for _ in range(4):
        for messages, to in ((sent, peer), (back, link)):
            while messages:
                to.receive(messages.pop(0), 1.0)
    assert link.ready

    def submit(number: int, hold: bool) -> None:
        part = pack_messages([Message.create(b"t", b"%d" % number, qos=1 + hold)])
        link.submit(None, part, [], [], number, 0, 1, hold)

    submit(1, False)
    assert len(sent) == 1
    submit(2, True)
    submit(3, False)
    assert len(sent) == 1, "neither the held one nor what follows it"
    assert [entry[0] for entry in log.entries] == [link.stream.sequence - 2, link.stream.sequence - 1]
    link.flush(1.0)
    assert len(sent) == 1
    for callback in log.waiting:
        callback()
    link.flush(1.0)
    assert len(sent) == 3

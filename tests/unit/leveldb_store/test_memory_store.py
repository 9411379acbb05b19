"""The memory store fulfils the contract: readable at once, each message held once, deleted when no session needs it."""

from __future__ import annotations

import gc
import sys

from leveldb_store.contract import Store
from leveldb_store.memory import MemoryStore
from pyx.protocol.message import Message
from pyx.storage.records import Block, LogKey
from tests.unit.adapters import records_adapter as adapter


class Writer:
    """A writer that appends as the router does: positions without gap."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.next = 1
        self.keys: dict[bytes, LogKey] = {}

    def append(self, *records: tuple[Message, tuple[bytes, ...]]) -> int:
        block = Block(self.next)
        for message, names in records:
            record = adapter.add(block, message)
            self.next += 1
            for name in names:
                adapter.index(block, self.keys.setdefault(name, LogKey(name)), record)
        ticket = self.store.append(block)
        assert self.store.flush() == ticket == self.store.collect()
        return ticket


def message(body: bytes) -> Message:
    return Message.create(b"t", body, qos=1)


def read(store: Store, name: bytes, after: int = 0, bytes_max: int = 1 << 20) -> list[tuple[int, bytes]]:
    return [(position, bytes(kept.payload)) for position, kept in store.read(name, after, bytes_max).items()]


def test_what_was_appended_can_be_read_at_once() -> None:
    writer = Writer()
    store: Store = writer.store
    assert store.immediate
    assert writer.append((message(b"1"), (b"a",)), (message(b"2"), (b"a", b"b"))) == 1
    assert writer.append((message(b"3"), (b"b",))) == 2
    assert read(store, b"a") == [(1, b"1"), (2, b"2")]
    assert read(store, b"b") == [(2, b"2"), (3, b"3")]
    assert read(store, b"b", 2) == [(3, b"3")]
    assert read(store, b"nobody") == []
    assert store.backlog(b"a", 1) == (1, 2)
    assert store.backlog(b"nobody", 0) == (0, 0)
    assert store.position_of_last(b"a", 1, 1 << 20) == 1
    assert store.position_of_last(b"nobody", 1, 1) == 0


def test_a_reader_advances_while_others_append_and_trim() -> None:
    writer = Writer()
    got: list[bytes] = []
    after = 0
    for i in range(500):
        writer.append(*((message(b"%d.%d" % (i, k)), (b"a",)) for k in range(3)))
        for position, body in read(writer.store, b"a", after, 100)[:2]:
            after = position
            got.append(body)
        writer.store.trim(b"a", after)
    while rows := read(writer.store, b"a", after, 1000):
        after = rows[-1][0]
        got += [body for _, body in rows]
    assert got == [b"%d.%d" % (i, k) for i in range(500) for k in range(3)]


def test_a_message_is_held_once_and_let_go() -> None:
    writer = Writer()
    kept = message(b"x" * 100)
    before = sys.getrefcount(kept)
    writer.append((kept, (b"a", b"b", b"c")))
    gc.collect()
    assert sys.getrefcount(kept) == before + 3
    assert writer.store.messages_held() == 3
    writer.store.trim(b"a", 1)
    writer.store.forget(b"b")
    writer.store.drop(b"c", 0, 10)
    assert sys.getrefcount(kept) == before
    assert writer.store.messages_held() == 0
    for name in (b"a", b"b", b"nobody"):
        writer.store.trim(name, 10)
        writer.store.drop(name, 0, 10)
        writer.store.forget(name)


def test_drop_keeps_what_is_before_and_behind() -> None:
    writer = Writer()
    writer.append(*((message(b"%d" % i), (b"a",)) for i in range(5)))
    writer.store.drop(b"a", 2, 4)
    writer.append((message(b"later"), (b"a",)))
    assert read(writer.store, b"a") == [(1, b"0"), (2, b"1"), (5, b"4"), (6, b"later")]
    assert writer.store.backlog(b"a", 0) == (4, 2 + 2 + 2 + 6)
    assert writer.store.backlog(b"a", 2) == (2, 2 + 6)
    assert writer.store.held() == (4, 2 + 2 + 2 + 6)

"""Delivers hand-off logs during repartitioning: the messages that old worker A kept for C are matched with the
subscriptions of C and placed at the end of C's segment; those that C has already taken are left out. Share groups: a
member at C, else any other.

Links start anew, without numbers, under a new epoch: hand-off logs and link positions are not carried over.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from broker.repartition.new_store import Moved, NewStore
from broker.repartition.old_store import OldMember, OldStore, OldStores, TakenUpTo
from broker.repartition.retained import OldRetained
from leveldb_store.format import link_schema, queued_messages, schema
from pyx.core.peer import sibling
from pyx.core.placement import group_number, owner
from zmq_mesh.envelope import PUBLISHER, Entry, decode_entries

__all__ = ["HandoffLogs"]

_BLOCK_MESSAGES: Final = 512  # messages of hand-off logs per block
_BLOCK_BYTES: Final = 1 << 20
_PROPERTY_IDENTIFIER: Final = 0x0B  # Subscription Identifier [MQTT 5, 2.2.2.2]
_NO_WORKER: Final = 0xFF  # low byte of the message numbers drawn here


class HandoffLogs:
    """The hand-off logs of all old workers."""

    def __init__(self, old: OldStores, new: Sequence[NewStore], moved: Moved, retained: OldRetained) -> None:
        self._old = old
        self._new = new
        self._moved = moved
        self._retained = retained
        self._groups = _ShareGroups(old, new, moved)

    def give_out(self) -> None:
        """Deliver all of them to the sessions of the workers that they are for."""
        for source in self._old.stores:
            if source.expected:
                _HandOff(source, self._old, self._new, self._moved, self._retained, self._groups).run()


class _ShareGroups:
    """Share groups over all old workers: members take turns."""

    def __init__(self, old: OldStores, new: Sequence[NewStore], moved: Moved) -> None:
        self._old = old
        self._new = new
        self._moved = moved
        self._turn = 0
        self._number = 0

    def give(self, label: bytes, message: schema.StoredMessage, source: OldStore) -> bool:
        """Queue a message for a member, of this old worker if there is one. Return False if no member takes it."""
        everywhere = (other.members.get(label, ()) for other in self._old.stores if other is not source)
        for members in (source.members.get(label, ()), *everywhere):
            able = [member for member in members if member.options & schema.QOS]
            if able:
                self._turn += 1
                self._queue(able[self._turn % len(able)], label, message)
                return True
        return False

    def _queue(self, member: OldMember, label: bytes, message: schema.StoredMessage) -> None:
        flags = min(member.options & schema.QOS, message.qos) | schema.SHARED_COPY
        if message.retain and member.options & 8:  # Retain As Published
            flags |= schema.RETAIN
        identifiers = b""
        if member.identifier:
            identifiers = bytes((_PROPERTY_IDENTIFIER,)) + _varint(member.identifier)
        queued = queued_messages.StoredQueued(flags, group_number(label), identifiers, message)
        self._number = max(self._number + 1, time.time_ns() // 1000)
        key = schema.queued_key(member.client_id, self._number << 8 | _NO_WORKER)
        target = self._old.stores[member.source].target_of[member.client_id]
        self._new[target].put(key, queued_messages.encode_queued(queued))
        self._moved.queued += 1


class _HandOff:
    """The messages of all hand-off logs for one old worker."""

    def __init__(
        self,
        source: OldStore,
        old: OldStores,
        new: Sequence[NewStore],
        moved: Moved,
        retained: OldRetained,
        groups: _ShareGroups,
    ) -> None:
        self._source = source
        self._old = old
        self._new = new
        self._moved = moved
        self._retained = retained
        self._groups = groups
        self._position = source.log.last
        self._messages: list[schema.StoredMessage] = []
        self._names: list[list[bytes]] = []
        self._bytes = 0

    def run(self) -> None:
        """Deliver all of it to the worker's sessions."""
        for other in self._old.stores:
            self._from(other)
        self._put_block()

    def _from(self, other: OldStore) -> None:
        taken = self._source.taken.get(other.index, TakenUpTo())
        for key, value in self._old.scan(other, schema.handoff_prefix(sibling(self._source.index))):
            sequence = schema.key_position(key)
            if sequence == 0:
                if link_schema.decode_handoff_head(value)[0] != taken.stream:
                    taken = TakenUpTo()
                continue
            _, part, payloads = link_schema.decode_handoff(value)
            publisher: str | None = None
            for position, entry in enumerate(decode_entries(part, payloads)):
                if entry.control:
                    if entry.topic == PUBLISHER:
                        publisher = entry.payload.decode("utf-8", "surrogatepass")
                    continue
                if not taken.has(sequence, position):
                    self._take(entry, publisher)
                elif (sequence, position) in taken.refused:
                    self._share(entry)
                publisher = None

    def _take(self, entry: Entry, publisher: str | None) -> None:
        source = self._source
        message = _message(entry, publisher)
        is_first = not (entry.shared is not None and entry.retained_only)  # else another entry has delivered it
        if entry.retain and is_first and owner(entry.topic, len(self._old.stores)) == source.index:
            self._retained.hand_on(message)
        if not entry.retained_only and entry.qos:
            names = source.filters.match(entry.topic)
            if names:
                self._append(message, names)
        self._share(entry)

    def _share(self, entry: Entry) -> None:
        if entry.shared is not None and entry.qos and self._groups.give(entry.shared, _message(entry), self._source):
            self._moved.handed_on += 1

    def _append(self, message: schema.StoredMessage, names: list[bytes]) -> None:
        self._messages.append(message)
        self._names.append(names)
        self._bytes += message.content_bytes
        self._moved.handed_on += 1
        if len(self._messages) == _BLOCK_MESSAGES or self._bytes >= _BLOCK_BYTES:
            self._put_block()

    def _put_block(self) -> None:
        if not self._messages:
            return
        first, block = self._position + 1, schema.encode_block(self._messages)
        listed: dict[bytes, list[int]] = {}
        for at, names in enumerate(self._names):
            for name in names:
                listed.setdefault(name, []).append(at)
        for index, wanted in self._source.wanted.items():
            target = self._new[index]
            lists = [(name, places) for name, places in listed.items() if name in wanted]
            start = target.segments[self._source.index].place(first)
            for name, places in lists:
                sizes = [self._messages[at].content_bytes for at in places]
                entries = zip((at - places[0] for at in places), sizes, strict=True)
                packed = b"".join(schema.PART_ENTRY.pack(*entry) for entry in entries)
                target.put_part(name, start + places[0], places[0], len(lists), packed, sum(sizes))
            if lists:
                target.put(schema.block_key(start), block)
                self._moved.blocks += 1
        self._position += len(self._messages)
        self._messages, self._names, self._bytes = [], [], 0


def _message(entry: Entry, publisher: str | None = None) -> schema.StoredMessage:
    return schema.StoredMessage(
        entry.topic, entry.payload, entry.number, entry.qos, entry.retain, entry.properties, entry.expires, publisher
    )


def _varint(value: int) -> bytes:
    """Encode a Variable Byte Integer [MQTT 5, 1.5.5]."""
    digits = bytearray()
    while True:
        value, digit = value >> 7, value & 0x7F
        digits.append(digit | (0x80 if value else 0))
        if not value:
            return bytes(digits)

"""Stored state of a worker's links: the hand-off log for each sibling, and the position in each sibling's stream.

A hand-off log (family H of `leveldb_store.format.schema`) has the messages for a sibling that is away or gone. It also
has, before they are sent at all, messages that must not be lost with this worker although their publisher will not send
them again: QoS 2 of lasting sessions, wills. Sequence 0 is the log's head: the number of its stream, which stays the
same over all incarnations of the worker, and the first number of the present one. The position in a sibling's stream
(family P) is stored by `broker.worker.peering` together with the messages that arrived.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from broker.persistence.set_aside import UNREADABLE
from leveldb_store.format import link_schema, schema
from pyx.core.peer import Peer
from pyx.storage.entries import without_sibling_messages
from zmq_mesh.contract import HandoffLog

if TYPE_CHECKING:
    from broker.context.context import Context
    from broker.persistence.set_aside import SetAside
    from pyx.delivery.router import Router

__all__ = ["StoredHandoff", "StoredLinks", "kept_links"]


class StoredHandoff(HandoffLog):
    """The log for one peer. Its messages are read back when they are sent; only the store bounds its size."""

    lasts = True

    def __init__(
        self, router: Router, store: Any, peer: Peer, set_aside: Callable[[bytes, bytes, object], None]
    ) -> None:
        """`set_aside` takes unreadable records: (key, value, error)."""
        super().__init__(0)
        self._router = router
        self._peer = peer
        self._store = store
        self._sequences: deque[int] = deque()
        self._found: list[tuple[int, int, int]] = []  # records found at the start, until the link has taken them
        for key, value in store.scan(schema.handoff_prefix(peer)):
            try:
                sequence = schema.key_position(key)
                if sequence == 0:
                    self.stream, self.reserved = link_schema.decode_handoff_head(value)
                    continue
                entries, part, payloads = link_schema.decode_handoff(value)
            except UNREADABLE as error:
                set_aside(key, value, error)
                continue
            self._found.append((sequence, len(part) + sum(map(len, payloads)), entries))
            self._sequences.append(sequence)
        # `acknowledged` is not stored: the peer states what it has, and numbers missing here become SKIPs
        if not self.stream:
            self.stream = secrets.randbits(63) | 1

    @property
    def full(self) -> bool:  # type: ignore[override]  # evaluated on each access
        """Implements HandoffLog."""
        return self._store.full is not None

    @property
    def failed(self) -> bool:  # type: ignore[override]  # evaluated on each access
        """Implements HandoffLog."""
        return self._store.failed is not None

    def found(self) -> Iterator[tuple[int, int, int]]:
        """Implements HandoffLog."""
        return iter(self._found)

    def read(self, sequence: int) -> tuple[Any, list[Any]]:
        """Implements HandoffLog. Raises StoreError and schema.SchemaError if it cannot be read."""
        ((_, value),) = self._store.scan(schema.handoff_key(self._peer, sequence))
        _, part, payloads = link_schema.decode_handoff(value)
        return part, payloads

    def reserve(self, number: int) -> None:
        """Implements HandoffLog. The link has taken the records found at the start."""
        super().reserve(number)
        self._found = []
        head = link_schema.encode_handoff_head(self.stream, number)
        self._router.journal.put_record(schema.handoff_key(self._peer, 0), head)

    def when_stored(self, callback: Callable[[], None]) -> None:
        """Implements HandoffLog."""

        def stored() -> None:
            callback()
            self._router.peers.links_due = True

        self._router.journal.when_durable(stored)

    def append(self, sequence: int, part: Any, payloads: list[Any], entries: int) -> bool:
        """Implements HandoffLog. Messages of this worker's broker are not stored: its successor sends its own."""
        self._sequences.append(sequence)
        bodies = [bytes(memoryview(payload)) for payload in payloads]
        stored = without_sibling_messages(part)
        value = link_schema.encode_handoff(entries, stored, bodies)
        self._router.journal.put_record(schema.handoff_key(self._peer, sequence), value)
        return stored == bytes(part)

    def trim(self, acknowledged: int) -> None:
        """Implements HandoffLog."""
        self.acknowledged = max(self.acknowledged, acknowledged)
        while self._sequences and self._sequences[0] <= acknowledged:
            self._router.journal.delete_record(schema.handoff_key(self._peer, self._sequences.popleft()))


class StoredLinks(NamedTuple):
    """The initial state of the links, by peer."""

    handoffs: dict[Peer, HandoffLog]
    received: dict[Peer, tuple[int, int]]
    """(stream, number) up to which a sibling's stream was taken."""
    refusals: dict[Peer, list[tuple[int, list[tuple[int, int]]]]]
    """(number, [(position, reason), ...]) of batches of a sibling's stream with refused entries, in order."""


class ReceivesBatches(Protocol):
    """The receiver of siblings' batches (`broker.worker.peering`)."""

    def began(self, peer: Peer, taken: link_schema.PeerPosition) -> None:
        """The store has the first entries of the batch after this one."""

    def refusals_kept(self, peer: Peer, numbers: list[int]) -> None:
        """The store has refusals of these batches, in order."""


def kept_links(context: Context, set_aside: SetAside, batches: ReceivesBatches) -> StoredLinks:
    """Read the state of this worker's links from the store; empty for a store in memory. `batches` gets its part."""
    kept = StoredLinks({}, {}, {})
    router, store = context.router, context.store
    if not store.keeps:
        return kept
    for peer in context.siblings:
        kept.handoffs[peer] = StoredHandoff(router, store, peer, set_aside.take)
        refused: dict[int, list[tuple[int, int]]] = {}
        for key, value in store.scan(schema.peer_key(peer)):
            try:
                if schema.is_refusals(key):
                    refused[schema.key_position(key)] = link_schema.decode_refusals(value)
                else:
                    _take_position(router, batches, kept, peer, refused, key, value)
            except UNREADABLE as error:
                set_aside.take(key, value, error)
        kept.refusals[peer] = sorted(refused.items())
        batches.refusals_kept(peer, [number for number, _ in kept.refusals[peer]])
    return kept


def _take_position(
    router: Router,
    batches: ReceivesBatches,
    kept: StoredLinks,
    peer: Peer,
    refused: dict[int, list[tuple[int, int]]],
    key: bytes,
    value: bytes,
) -> None:
    # a record of family P without refusals of its own
    taken = link_schema.decode_peer(value)
    kept.received[peer] = taken.stream, taken.number
    if taken.taken:
        batches.began(peer, taken)
    if taken.inside:  # of version 1: the next stored position has none
        for at, position, reason in taken.inside:
            refused.setdefault(at, []).append((position, reason))
        for at, each in refused.items():
            router.journal.put_record(schema.refusals_key(peer, at), link_schema.encode_refusals(each))
        router.journal.put_record(key, link_schema.encode_peer(taken.stream, taken.number))

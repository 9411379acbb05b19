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
from pyx.core.peer import Peer, is_sibling
from pyx.storage.entries import without_sibling_messages
from zmq_mesh.contract import HandoffLog

if TYPE_CHECKING:
    from broker.context.context import Context
    from broker.persistence.set_aside import SetAside
    from pyx.delivery.router import Router

__all__ = ["NOTHING_RECEIVED", "KeptLink", "StoredHandoff", "StoredLinks", "kept_hosts", "kept_links", "tell_receiver"]

NOTHING_RECEIVED = (0, 0)


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


class KeptLink(NamedTuple):
    """The initial state of one link."""

    handoff: HandoffLog
    received: tuple[int, int]
    """(stream, number) up to which the peer's stream was taken."""
    begun: link_schema.PeerPosition | None
    """The same, if the first entries of the next batch were taken, too."""
    refusals: list[tuple[int, list[tuple[int, int]]]]
    """(number, [(position, reason), ...]) of batches of the peer's stream with refused entries, in order."""


def kept_link(context: Context, set_aside: SetAside, peer: Peer) -> KeptLink:
    """Read the state of this worker's link with a peer from a store that keeps it."""
    router, store = context.router, context.store
    received, begun = NOTHING_RECEIVED, None
    refused: dict[int, list[tuple[int, int]]] = {}
    for key, value in store.scan(schema.peer_key(peer)):
        try:
            if schema.is_refusals(key):
                refused[schema.key_position(key)] = link_schema.decode_refusals(value)
                continue
            taken = link_schema.decode_peer(value)
            received = taken.stream, taken.number
            begun = taken if taken.taken else None
            _take_inside(router, peer, refused, key, taken)
        except UNREADABLE as error:
            set_aside.take(key, value, error)
    handoff = StoredHandoff(router, store, peer, set_aside.take)
    return KeptLink(handoff, received, begun, sorted(refused.items()))


def kept_hosts(context: Context, set_aside: SetAside) -> dict[Peer, KeptLink]:
    """Read the state of all links with workers of other hosts; none for a store in memory."""
    store = context.store
    if not store.keeps:
        return {}
    peers = set()
    for family in (schema.HANDOFF, schema.PEER):
        for key, value in store.scan(family):
            try:
                peers.add(schema.peer_of_key(key))
            except UNREADABLE as error:
                set_aside.take(key, value, error)
    return {peer: kept_link(context, set_aside, peer) for peer in sorted(peers) if not is_sibling(peer)}


class StoredLinks(NamedTuple):
    """The initial state of the links to siblings, by peer; see `KeptLink`."""

    handoffs: dict[Peer, HandoffLog]
    received: dict[Peer, tuple[int, int]]
    refusals: dict[Peer, list[tuple[int, list[tuple[int, int]]]]]


class ReceivesBatches(Protocol):
    """The receiver of siblings' batches (`broker.worker.peering`)."""

    def began(self, peer: Peer, taken: link_schema.PeerPosition) -> None:
        """The store has the first entries of the batch after this one."""

    def refusals_kept(self, peer: Peer, numbers: list[int]) -> None:
        """The store has refusals of these batches, in order."""


def kept_links(context: Context, set_aside: SetAside, batches: ReceivesBatches) -> StoredLinks:
    """Read the state of the links to siblings; empty for a store in memory. `batches` gets its part."""
    links = StoredLinks({}, {}, {})
    for peer in context.siblings if context.store.keeps else ():
        kept = kept_link(context, set_aside, peer)
        links.handoffs[peer], links.refusals[peer] = kept.handoff, kept.refusals
        if kept.received != NOTHING_RECEIVED:
            links.received[peer] = kept.received
        tell_receiver(batches, peer, kept)
    return links


def tell_receiver(batches: ReceivesBatches, peer: Peer, kept: KeptLink) -> None:
    """Give the receiver of batches its part of what is kept."""
    if kept.begun is not None:
        batches.began(peer, kept.begun)
    batches.refusals_kept(peer, [number for number, _ in kept.refusals])


def _take_inside(
    router: Router, peer: Peer, refused: dict[int, list[tuple[int, int]]], key: bytes, taken: link_schema.PeerPosition
) -> None:
    # a position of version 1 has refusals in it: the next stored one has none
    if taken.inside:
        for at, position, reason in taken.inside:
            refused.setdefault(at, []).append((position, reason))
        for at, each in refused.items():
            router.journal.put_record(schema.refusals_key(peer, at), link_schema.encode_refusals(each))
        router.journal.put_record(key, link_schema.encode_peer(taken.stream, taken.number))

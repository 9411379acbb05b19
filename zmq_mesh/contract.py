"""The interface between a link (`pyx.mesh.link`) and its node: the events, and the log that a store may keep for it."""

import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from pyx.core.peer import Peer
from pyx.mesh.contract import WHOLE_BATCH, Buffer, LinkLimits, Payload, Undelivered
from pyx.mesh.receiver import Receiver
from zmq_mesh.interest import Change

__all__ = [
    "WHOLE_BATCH", "Buffer", "HandoffLog", "LinkEvents", "LinkLimits", "Outlet", "Payload", "Transport", "Undelivered",
]  # fmt: skip


class Outlet(NamedTuple):
    """The way to one peer. send: takes the frames of one message and returns whether they will be sent, all or none.
    reconnect: connects anew at once; what waits in the old connection is lost. flush: sends what was gathered; None
    if nothing is gathered, or if `send` is a `Push`, which `Links` flushes itself. close: ends it.
    """

    send: Callable[[list[Buffer]], bool]
    reconnect: Callable[[], object]
    flush: Callable[[], object] | None
    close: Callable[[], object] = lambda: None


class Transport(Protocol):
    """Carries messages between this worker and its peers, in order for each peer. A message may be lost with its
    connection. It watches its own descriptors.
    """

    @property
    def is_immediate(self) -> bool:
        """Whether the receiver's `receive` can read a message as soon as it was sent, unless it waits for room."""

    @property
    def malformed(self) -> int:
        """Number of connections that were closed for what their peer had sent."""

    def listen(self, receiver: Receiver) -> None:
        """Receive messages from now on, for this receiver."""

    def connect(self, peer: Peer, when_writable: Callable[[], object]) -> Outlet:
        """Return the way to a peer. when_writable: called when messages may be taken again, after one was refused."""

    def receive(self) -> bool:
        """Read what is there, without waiting for an event. Return whether that, and what was read since
        `Receiver.trust`, was all that the peers have sent: each is connected, and none waited for room. False: that is
        not known.
        """

    def go_on(self) -> None:
        """Continue with messages left because the receiver wanted no more."""

    def tick(self) -> None:
        """Connect again, and close connections that are silent."""

    def close(self) -> None:
        """Close everything."""


class LinkEvents(Protocol):
    """The events of a link for its node. Each occurs once per batch or more rarely.

    Buffers and payloads passed to `batch` and interest own their memory: they may be kept.
    """

    def batch(
        self,
        peer: Peer,
        volatile: memoryview | None,
        sequenced: memoryview | None,
        payloads: list[Payload],
        sequence: int,
    ) -> None:
        """A batch has arrived. sequence: 0 without a sequenced part, else rising over the link's life, for `commit`."""

    def acknowledged(self, peer: Peer, ticket: int) -> None:
        """The peer (or the hand-off log) has taken responsibility for every batch with a ticket <= this one."""

    def refused(self, peer: Peer, batch: Undelivered, refusals: Sequence[tuple[int, int]]) -> None:
        """The entries at these positions of the sequenced part were refused, rising, each with its reason
        (envelope.Refusal); called before the ack of its ticket. WHOLE_BATCH alone: every entry, because the hand-off
        log is full.
        """

    def refusals_known(self, peer: Peer, number: int) -> None:
        """The peer knows the refusals of its batches up to this number (`Link.position`), or will not ask any more."""

    def lost(self, peer: Peer, batches: list[Undelivered], ticket: int) -> None:
        """The peer is gone; batches with a ticket <= this one are done, these were not acknowledged (peer_lost)."""

    def interest(self, peer: Peer, changes: list[Change]) -> None:
        """Changes of the peer's interest; they count as taken when this returns."""

    def interest_snapshot(self, peer: Peer, entries: list[Change], first: bool, last: bool) -> None:
        """A part of the peer's complete interest. After the last part it counts as taken, and everything that no part
        has named is not wanted any more. A first part may come before the last one of an earlier snapshot, which is
        then discarded.
        """

    def interest_taken(self, peer: Peer, number: int) -> None:
        """The peer routes by our interest table up to this number."""

    def answered(self, peer: Peer) -> None:
        """The peer greeted, and was sent our present interest: it may serve by that before it is `ready` here. SUBACKs
        wait for it from now on, until `away` or `gone`.
        """

    def ready(self, peer: Peer) -> None:
        """First heard since our start, or back from away, or confirmed after `greet`: its interest is complete here."""

    def away(self, peer: Peer) -> None:
        """The peer is silent or stalled: SUBACKs do not wait for it. Its interest stays in force (hand-off log)."""

    def unconfirmed(self, peer: Peer) -> None:
        """The peer was silent when asked after a pause of our own (`greet`): before that it may have sent SUBACKs that
        did not wait for us, so its interest may be larger than known here. Until it is `ready`, or `gone`.
        """

    def incompatible(self, peer: Peer, oldest: int, newest: int) -> None:
        """The peer speaks these versions of the mesh and none of ours: it counts as absent. Once per incarnation."""

    def gone(self, peer: Peer, incarnation: int) -> None:
        """That incarnation is dead; once per incarnation. With the memory store its interest ends here."""


class HandoffLog:
    """The log of entries for one peer. `broker.persistence.handoff_log` keeps it in the store, so that it outlives the
    worker.

    Only with such a log does a link survive the peer's death without `lost`, and its own with the log's entries. A log
    that `lasts` can read its stored entries back: then the link keeps none of them in memory, and needs no bound for
    it.
    """

    lasts = False
    full = False
    """Whether little room is left, so that only entries that cannot stay in memory should be appended."""
    failed = False
    """Whether nothing can be stored at present."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.acknowledged = 0
        self.reserved = 0  # first number of the worker's present incarnation
        self.entries: deque[tuple[int, Buffer, list[Payload], int]] = deque()  # (sequence, part, payloads, entries)

    def found(self) -> Iterator[tuple[int, int, int]]:
        """Yield (sequence, bytes, entries) left by a former incarnation, rising."""
        for sequence, part, payloads, entries in self.entries:
            yield sequence, len(part) + sum(memoryview(payload).nbytes for payload in payloads), entries

    def read(self, sequence: int) -> tuple[Buffer, list[Payload]]:
        """Return (part, payloads) of an entry that was found or stored."""
        return next((part, payloads) for at, part, payloads, _ in self.entries if at == sequence)

    def reserve(self, number: int) -> None:
        """Store the first number of the worker's present incarnation; the next one continues above it."""
        self.reserved = number

    def renew(self) -> int:
        """Give the stream another number; return that."""
        former = self.stream
        while self.stream & 0xFFFF == former & 0xFFFF:  # the bits by which messages show it (`envelope.pack_prefix`)
            self.stream = secrets.randbits(63) | 1
        self.reserve(self.reserved)
        return self.stream

    def when_stored(self, callback: Callable[[], None]) -> None:
        """Call it when everything appended until now is as safe as this log makes it."""
        callback()

    def append(self, sequence: int, part: Buffer, payloads: list[Payload], entries: int) -> bool:
        """Append an entry; sequences rise. Return True if `read` will return it unchanged as soon as it is stored."""
        self.entries.append((sequence, part, payloads, entries))
        return False

    def trim(self, acknowledged: int) -> None:
        """Delete everything up to this number, which the peer has."""
        self.acknowledged = max(self.acknowledged, acknowledged)
        while self.entries and self.entries[0][0] <= acknowledged:
            self.entries.popleft()

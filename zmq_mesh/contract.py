"""What a link and its node say to each other: the events, the limits, and the log that a store may keep for a link."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from pyx.core.peer import Peer
from zmq_mesh.envelope import Buffer
from zmq_mesh.interest import Change

# Anything with the buffer protocol (a pyx message body, zmq.Frame, bytes): collections.abc.Buffer comes with 3.12 only.
Payload = Any

# `position` of a refusal that means every entry of the batch.
WHOLE_BATCH: Final = -1


class Undelivered(NamedTuple):
    """A batch that a peer did not take, or not all of it: its sequenced part. ticket: -1 when its publishers were
    answered by a former incarnation of this worker. sent: it may have arrived.
    """

    ticket: int
    part: Buffer
    payloads: Sequence[Payload]
    entries_count: int
    sent: bool


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Bounds of one link."""

    peer_outbox_bytes_max: int = 8 * 1024 * 1024
    handoff_log_bytes_max: int = 64 * 1024 * 1024
    link_silence_seconds_max: float = 1.5
    peer_stall_seconds_max: float = 2.0


@dataclass(slots=True)
class Traffic:
    """What a link counts, since its start."""

    batches_sent: int = 0
    messages_sent: int = 0
    """Entries that were submitted with their number."""
    bytes_sent: int = 0
    bytes_received: int = 0
    resent: int = 0
    duplicates: int = 0
    frames_refused: int = 0
    """Of or for a former incarnation."""
    volatile_dropped: int = 0
    """Entries of QoS 0 that were not sent: peer away or gone, outbox far over its limit."""
    batches_behind: int = 0
    """Batches that went to the hand-off log although the peer is there: it is behind."""


class Events(Protocol):
    """What a link tells the node. Once per batch or rarer.

    Buffers and payloads given to `batch` and interest own their memory: they may be kept.
    """

    def batch(
        self,
        peer: Peer,
        volatile: memoryview | None,
        sequenced: memoryview | None,
        payloads: list[Payload],
        sequence: int,
    ) -> None:
        """A batch. sequence: 0 without a sequenced part, else rising over the link's life: give it to `commit`."""

    def acknowledged(self, peer: Peer, ticket: int) -> None:
        """Every batch with a ticket <= this one is in the peer's custody (or in the hand-off log)."""

    def refused(self, peer: Peer, batch: Undelivered, refusals: Sequence[tuple[int, int]]) -> None:
        """The entries at these positions of the sequenced part were refused, rising, each with its reason
        (envelope.Refusal); comes before the ack of its ticket. WHOLE_BATCH alone: every entry, the hand-off log is
        full.
        """

    def refusals_known(self, peer: Peer, number: int) -> None:
        """The peer knows what was refused of its batches up to this number (`Link.position`), or asks no more."""

    def lost(self, peer: Peer, batches: list[Undelivered], ticket: int) -> None:
        """The peer is gone; batches with a ticket <= this one are done, these were not acknowledged (peer_lost)."""

    def interest(self, peer: Peer, changes: list[Change]) -> None:
        """Changes of the peer's interest; they count as taken when this returns."""

    def interest_snapshot(self, peer: Peer, entries: list[Change], first: bool, last: bool) -> None:
        """A part of all that the peer wants. After the last one it counts as taken, and what none of them has named is
        not wanted any more. A first one may come before the last one of the snapshot before: of that nothing counts.
        """

    def interest_taken(self, peer: Peer, number: int) -> None:
        """The peer routes by our interest table up to this number."""

    def answered(self, peer: Peer) -> None:
        """The peer greeted, and was told of our interest as of now: it may serve by that before it is `ready` here.
        SUBACKs wait for it from now on, until `away` or `gone`.
        """

    def ready(self, peer: Peer) -> None:
        """First heard since own start, or back from away, or confirmed after `greet`: its interest is complete here."""

    def away(self, peer: Peer) -> None:
        """Silent or stalled: SUBACKs do not wait for it. Its interest stays in force (hand-off log)."""

    def unconfirmed(self, peer: Peer) -> None:
        """Asked after a pause of our own (`greet`) it was silent: before it fell so it may have given SUBACKs that did
        not wait for us, so it may want more than is known here. Until it is `ready`, or `gone`.
        """

    def incompatible(self, peer: Peer, oldest: int, newest: int) -> None:
        """It speaks these versions of the mesh and none of ours: it counts as not there. Once per incarnation."""

    def gone(self, peer: Peer, incarnation: int) -> None:
        """That incarnation is dead; once per incarnation. With the memory store its interest ends here."""


class HandoffLog:
    """What is logged for one peer, where it outlives the worker (`broker.persistence.handoff_log` has it in the store).

    Only a link that was given one survives the peer's death without `lost`, and its own with the log's entries. One
    that `lasts` can read back what it has stored: then the link keeps none of it in memory, and knows no bound for it.
    """

    lasts = False
    full = False
    """Whether there is little room left, and only what cannot stay in memory should come."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.acknowledged = 0
        self.reserved = 0  # where the numbers of the worker's present incarnation began
        self.entries: deque[tuple[int, Buffer, list[Payload], int]] = deque()  # (sequence, part, payloads, entries)

    def found(self) -> Iterator[tuple[int, int, int]]:
        """(sequence, bytes, entries) of what a former incarnation has left, rising."""
        for sequence, part, payloads, entries in self.entries:
            yield sequence, len(part) + sum(memoryview(payload).nbytes for payload in payloads), entries

    def read(self, sequence: int) -> tuple[Buffer, list[Payload]]:
        """(part, payloads) of what was found or stored."""
        return next((part, payloads) for at, part, payloads, _ in self.entries if at == sequence)

    def reserve(self, number: int) -> None:
        """The present incarnation of the worker numbers from here on; the next one goes on beyond."""
        self.reserved = number

    def when_stored(self, callback: Callable[[], None]) -> None:
        """Call it when all that was appended until now is as safe as this log makes it."""
        callback()

    def append(self, sequence: int, part: Buffer, payloads: list[Payload], entries: int) -> bool:
        """Sequences rise. -> True: as soon as it is stored, `read` gives it as it is."""
        self.entries.append((sequence, part, payloads, entries))
        return False

    def trim(self, acknowledged: int) -> None:
        """The peer has everything up to this number."""
        self.acknowledged = max(self.acknowledged, acknowledged)
        while self.entries and self.entries[0][0] <= acknowledged:
            self.entries.popleft()

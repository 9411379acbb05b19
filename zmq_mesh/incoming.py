"""The receiving side of a link: the position in the peer's stream, and the acks and refusals that are due to it.

- `received` is the number up to which the stream was passed to the node; `committed` is the cumulative ack. When a peer
  begins a new stream, its numbers start again: `_offset` is the difference to the node's numbers.
- Refused entries are repeated until the peer's `acknowledged` has passed their batch, and are sent with the ack of
  their batch or before it: so an entry is never acked because its refusal was lost.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final

from pyx.core.peer import Peer
from pyx.core.work import STEP, spend
from zmq_mesh.barrier import Barrier
from zmq_mesh.contract import LinkEvents, LinkTraffic, Payload
from zmq_mesh.envelope import BATCH, INTEREST, LAST, REFUSAL, SKIP, SNAPSHOT, U64, WELCOME, EnvelopeError, Head
from zmq_mesh.interest import decode_changes

__all__ = ["Incoming"]

_HIGHEST: Final = (1 << 64) - 1
# Refusals per message if they are of more than one batch: the ack of a batch must include all of its refusals.
REFUSALS_MAX: Final = 1000
_REFUSED: Final = Struct("<IB")  # position, reason


def _packed(refused: Iterable[tuple[int, int]]) -> bytes:
    """Pack (position, reason) of entries of one batch."""
    return b"".join(_REFUSED.pack(*each) for each in refused)


class Incoming:
    """The receiving side of one link. See `Link` for the arguments; `unsaid_bytes_max`: unnumbered bytes received until
    their receipt is reported.
    """

    def __init__(
        self,
        peer: Peer,
        events: LinkEvents,
        traffic: LinkTraffic,
        unsaid_bytes_max: int,
        barrier: Barrier | None,
        received: tuple[int, int],
        refusals: Iterable[tuple[int, list[tuple[int, int]]]],
    ) -> None:
        self._peer = peer
        self._events = events
        self._traffic = traffic
        self._unsaid_bytes_max = unsaid_bytes_max
        self.stream, self.received = received
        self.committed = self.received
        self.highest = self.received  # highest number of the stream known to have been sent
        self._last_batch = self.received
        self._offset = 0  # number for the node - number of the stream
        self._floor = 0  # numbers for the node up to here belong to a former stream
        self.frames_seen = 0
        self.acknowledged = 0  # the peer has received our acks of these numbers
        self.unsaid_bytes = 0
        self.owe = False  # an ack that the peer waits for is due
        self._barrier = barrier
        self.interest_heard = 0
        self.interest_acked = 0  # not before what was sent before it has arrived
        self._in_snapshot = False  # its last part has not arrived
        self.refused = deque((number, _packed(refused)) for number, refused in refusals)  # by batch

    # ------------------------------------------------------------ calls of the node

    def commit(self, sequence: int, refused: Sequence[tuple[int, int]] = ()) -> None:
        """Note that the batch with this number (from events.batch), and all before it, are committed in full.

        refused: (position, reason) of entries of this batch that were not accepted. A number of a peer that is gone is
        ignored. The ack is sent with the next message, at the latest with `flush`.
        """
        if sequence <= self._floor:
            return
        number = sequence - self._offset
        if refused:
            spend(len(refused) * STEP // 4)
            self.refused.append((number, _packed(refused)))
        if number > self.committed:
            # Interest after the last batch needs no commit of its own.
            self.committed = self.received if number >= self._last_batch else number
            self.owe = True

    def position(self, sequence: int) -> tuple[int, int]:
        """Return (stream, number) of events.batch's `sequence`: stored with the records, `received` after a restart."""
        return self.stream, sequence - self._offset

    @property
    def refusals(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """Return (number, [(position, reason), ...]) of batches with refused entries that the peer may not know yet.

        A store keeps them (until `LinkEvents.refusals_known`), because they would count as taken after a restart.
        """
        return [
            (number, [(position, reason) for position, reason in _REFUSED.iter_unpack(packed)])
            for number, packed in self.refused
        ]

    # ------------------------------------------------------------ acks

    def news(self, kind: int) -> tuple[int, int, bytes]:
        """Return (ack, number of refusals, packed) for the next message of this kind; there are `refused`."""
        committed = self.committed
        if kind <= WELCOME:  # a greeting has no room for refusals: it must not ack their entries
            return min(committed, self.refused[0][0] - 1), 0, b""
        count = 0
        refused: list[tuple[int, bytes]] = []
        for number, packed in self.refused:
            many = len(packed) // _REFUSED.size
            if count and count + many > REFUSALS_MAX:  # the rest is sent with the acks that belong to it
                committed = number - 1
                break
            count += many
            refused.append((number, packed))
        spend(count * STEP // 2)
        return (
            committed,
            count,
            b"".join(
                REFUSAL.pack(number, *each) for number, packed in refused for each in _REFUSED.iter_unpack(packed)
            ),
        )

    def forget_refusals(self, acknowledged: int) -> None:
        """Forget refusals up to this number, which the peer knows."""
        self.acknowledged = acknowledged
        if self.refused and self.refused[0][0] <= acknowledged:
            while self.refused and self.refused[0][0] <= acknowledged:
                self.refused.popleft()
            self.owe = self.owe or bool(self.refused)  # the next ones are due, with the acks that wait for them
            self._events.refusals_known(self._peer, acknowledged)

    # ------------------------------------------------------------ messages received

    def count(self, frames: Sequence[Payload], volatile: bool) -> None:
        """Count a message; `volatile`: it has a part without a number."""
        nbytes = len(frames[0])
        for i in range(1, len(frames)):
            nbytes += memoryview(frames[i]).nbytes
        self._traffic.bytes_received += nbytes
        if volatile:
            self.unsaid_bytes += nbytes
            if self.unsaid_bytes > self._unsaid_bytes_max:
                self.owe = True

    def deliver(
        self,
        kind: int,
        flags: int,
        sequence: int,
        volatile: memoryview | None,
        part: memoryview | None,
        payloads: list[Payload],
        now: float,
    ) -> bool:
        """Pass the next number of the stream on (or a SKIP, which may be a range that includes the next). Return
        whether interest was taken. Raises EnvelopeError.
        """
        if kind == BATCH:
            self.received = self._last_batch = sequence
            self._events.batch(self._peer, volatile, part, payloads, sequence + self._offset)
            return False
        if part is None or len(part) < U64.size:
            raise EnvelopeError(f"kind {kind} without its number")
        number = U64.unpack_from(part)[0]
        if kind == SKIP and not number <= self.received + 1 <= sequence:
            self.owe = True
            return False
        if self.committed == self.received:
            self.committed = sequence
        self.received = sequence
        self.owe = True
        return kind == INTEREST and self._take_interest(number, flags, part[U64.size :], now)

    def _take_interest(self, number: int, flags: int, part: memoryview, now: float) -> bool:
        changes = list(decode_changes(part))
        if flags & SNAPSHOT:
            first, last = not self._in_snapshot, bool(flags & LAST)
            self._in_snapshot = not last
            self._events.interest_snapshot(self._peer, changes, first, last)
            if not last:
                return False
        else:
            self._events.interest(self._peer, changes)
        self.interest_heard = number
        if self._barrier is None:
            self.interest_acked = number
        else:
            self._barrier.interest_arrived(self._peer, number, now)
        return True

    # ------------------------------------------------------------ the peer's incarnation

    def end_incarnation(self) -> None:
        """Note that the incarnation is dead: nothing is due to it."""
        self.owe = False
        self.interest_heard = self.interest_acked = 0
        if self._barrier is not None:
            self._barrier.forget(self._peer)
        self._in_snapshot = False

    def greeted(self, stream: int, head: Head) -> bool:
        """Take in a greeting's position in its stream. Return whether the stream is new: the peer has a new numbering,
        or its numbering was not known here.
        """
        self.frames_seen = max(self.frames_seen, head.frame)
        is_new = stream != self.stream
        if is_new:
            self._begin_stream(stream, head.acknowledged)
        elif head.acknowledged > self.received:
            # Acked by a former incarnation of this worker: interest after the last batch in its store.
            self.received = self.committed = head.acknowledged
        self.highest = max(self.highest, self.received, head.sequence)
        return is_new

    def _begin_stream(self, stream: int, acknowledged: int) -> None:
        self._floor = self.received + self._offset
        self._offset = self._floor - acknowledged
        self.stream = stream
        self.received = self.committed = self.highest = self._last_batch = acknowledged
        self.acknowledged = acknowledged
        if self.refused:
            self.refused.clear()
            self._events.refusals_known(self._peer, _HIGHEST)

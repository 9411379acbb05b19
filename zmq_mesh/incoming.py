"""What has come of a peer's stream, and what the peer has not been told of that.

- `received` is the number up to which the stream was handed over; `committed` is the cumulative ack. A peer whose
  stream is a new one begins to count anew: `_offset` lies between its numbers and those that the node is given.
- Refused entries are repeated until the peer's `acknowledged` has passed their batch, and are said with the ack of
  their batch or before it: an entry is never acked by a lost refusal.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final

from pyx.core.peer import Peer
from pyx.core.work import STEP, spend
from zmq_mesh.contract import Events, Payload, Traffic
from zmq_mesh.envelope import BATCH, INTEREST, LAST, REFUSAL, SKIP, SNAPSHOT, U64, WELCOME, EnvelopeError, Head
from zmq_mesh.interest import decode_changes

__all__ = ["Incoming"]

_HIGHEST: Final = (1 << 64) - 1
# Refusals one message carries, if they are of more than one batch: an ack of a batch must carry all that are of it.
REFUSALS_MAX: Final = 1000
_REFUSED: Final = Struct("<IB")  # position, reason


def _packed(refused: Iterable[tuple[int, int]]) -> bytes:
    """(position, reason) of entries of one batch."""
    return b"".join(_REFUSED.pack(*each) for each in refused)


class Incoming:
    """Of one link. See `Link` for the arguments; `unsaid_bytes_max`: of what has no number, until it is said that it
    has come.
    """

    def __init__(
        self,
        peer: Peer,
        events: Events,
        traffic: Traffic,
        unsaid_bytes_max: int,
        received: tuple[int, int],
        refusals: Iterable[tuple[int, list[tuple[int, int]]]],
    ) -> None:
        self._peer = peer
        self._events = events
        self._traffic = traffic
        self._unsaid_bytes_max = unsaid_bytes_max
        self.stream, self.received = received
        self.committed = self.received
        self.highest = self.received  # number of the stream known to have been sent
        self._last_batch = self.received
        self._offset = 0  # number for the node - number of the stream
        self._floor = 0  # numbers for the node up to here belong to a former stream
        self.frames_seen = 0
        self.acknowledged = 0  # the peer knows that it was told of these numbers
        self.unsaid_bytes = 0
        self.owe = False  # something the peer waits for is unsaid
        self.interest_heard = 0
        self._in_snapshot = False  # its last part has not come
        self.refused = deque((number, _packed(refused)) for number, refused in refusals)  # of batches

    # ------------------------------------------------------------ what the node says

    def commit(self, sequence: int, refused: Sequence[tuple[int, int]] = ()) -> None:
        """The last record of the batch with this number (from events.batch), and of all before it, is committed.

        refused: (position, reason) of entries of this very batch that were not accepted. A number of a peer that is
        gone is ignored. The ack leaves with the next message, at the latest with `flush`.
        """
        if sequence <= self._floor:
            return
        number = sequence - self._offset
        if refused:
            spend(len(refused) * STEP // 4)
            self.refused.append((number, _packed(refused)))
        if number > self.committed:
            # What follows the last batch (interest) needs no commit of its own.
            self.committed = self.received if number >= self._last_batch else number
            self.owe = True

    def position(self, sequence: int) -> tuple[int, int]:
        """(stream, number) of events.batch's `sequence`: a store writes it with the records; `received` at restart."""
        return self.stream, sequence - self._offset

    @property
    def refusals(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """(number, [(position, reason), ...]) of batches with refused entries of which the peer may not know yet.

        A store has them (`Events.refusals_known` says how long), or they would count as taken after a restart.
        """
        return [
            (number, [(position, reason) for position, reason in _REFUSED.iter_unpack(packed)])
            for number, packed in self.refused
        ]

    # ------------------------------------------------------------ what the peer is told

    def news(self, kind: int) -> tuple[int, int, bytes]:
        """(the ack, how many refusals, packed) that the next message of this kind is to say; there are `refused`."""
        committed = self.committed
        if kind <= WELCOME:  # a greeting has no room for them: their entries must not be acked by it
            return min(committed, self.refused[0][0] - 1), 0, b""
        count = 0
        refused: list[tuple[int, bytes]] = []
        for number, packed in self.refused:
            many = len(packed) // _REFUSED.size
            if count and count + many > REFUSALS_MAX:  # the rest goes with the acks that belong to it
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
        """The peer knows of those up to this number."""
        self.acknowledged = acknowledged
        if self.refused and self.refused[0][0] <= acknowledged:
            while self.refused and self.refused[0][0] <= acknowledged:
                self.refused.popleft()
            self.owe = self.owe or bool(self.refused)  # the next ones, and the acks that wait for them
            self._events.refusals_known(self._peer, acknowledged)

    # ------------------------------------------------------------ what comes

    def saw(self, frame: int, sequence: int) -> bool:
        """A message with this frame number, when so much of the stream was sent. -> Whether it is none of before."""
        if sequence > self.highest:
            self.highest = sequence
        if frame <= self.frames_seen:
            return False
        self.frames_seen = frame
        return True

    def count(self, frames: Sequence[Payload], volatile: bool) -> None:
        """A message, with something in it that has no number or without."""
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
    ) -> bool:
        """The next number of the stream (or a SKIP, which may be a range that covers the next). -> Whether interest
        was taken. Raises EnvelopeError.
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
        return kind == INTEREST and self._take_interest(number, flags, part[U64.size :])

    def _take_interest(self, number: int, flags: int, part: memoryview) -> bool:
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
        return True

    # ------------------------------------------------------------ who the peer is

    def end_incarnation(self) -> None:
        """That one is dead: it waits for nothing."""
        self.owe = False
        self.interest_heard = 0
        self._in_snapshot = False

    def greeted(self, stream: int, head: Head) -> bool:
        """A greeting says what was acked of its stream. -> Whether that is another one: the peer numbers anew, or we
        know nothing of its numbering. It keeps what follows.
        """
        self.frames_seen = max(self.frames_seen, head.frame)
        is_new = stream != self.stream
        if is_new:
            self._begin_stream(stream, head.acknowledged)
        elif head.acknowledged > self.received:
            # Acked by a former incarnation of this worker: interest behind the last batch its store knows of.
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

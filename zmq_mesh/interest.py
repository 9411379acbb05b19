"""The interest of this worker in its siblings' messages (Publisher), and the format in which its peers get it.

Every state of the table has a number, rising by one per sealed delta and starting at 1 (the table at start). A peer
that has been sent number n gets the deltas n+1, n+2, ...; one that has been sent nothing, or a number whose deltas are
no longer kept, gets a snapshot. Changes are collected until `seal`, once per tick: a storm of SUBSCRIBEs costs one
delta (or a few: none has more than CHANGES_MAX changes), whose bytes are made once for all peers.

A snapshot of a large table is made in pieces, and has the number at which it was begun: the deltas since then follow.
Its parts are no larger than deltas, so that a receiver can process them one by one.

    change      u16 filter bytes | u16 group bytes (0xFFFF = no group) | u32 members, 0 = withdrawn | u32 online
                | u8 flags (1 = durable, 2 = full, 4 = of one member) | u64 member | u64 since, if 4 | filter | group

A plain filter, each share group of that filter, and (where the group's strategy needs them) each member of such a group
are separate entries, keyed by (filter, group, member). A member is identified by a 64-bit hash of its client id and has
the time since which it is online; so a member that joins or leaves costs a change of fixed size, however many there
are.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from pyx.core.work import STEP, spend
from pyx.mesh.contract import Buffer, EnvelopeError

CHANGE: Final = struct.Struct("<HHIIB")
MEMBER: Final = struct.Struct("<QQ")
NO_GROUP: Final = 0xFFFF
DURABLE: Final = 0x01
FULL: Final = 0x02
OF_MEMBER: Final = 0x04
# Deltas above this size are not kept: a peer that missed so much gets a snapshot.
HISTORY_BYTES_MAX: Final = 1024 * 1024
# Changes of one delta, and of one part of a snapshot, which are processed at once.
CHANGES_MAX: Final = 1000
# Python's memory for a delta beside its bytes: connections that come and go make millions of very small ones.
TOLD_BYTES: Final = 256
# A part of a snapshot; one frame each.
SNAPSHOT_PART_BYTES_MAX: Final = 1024 * 1024
# Parts made at once.
PARTS_AT_ONCE: Final = 4


class Change(NamedTuple):
    """The new state of one (filter, group), or of one member of a group.

    filter: without $share and group. group: None = a plain filter. members: subscribers of the group on this worker
    (also of a plain filter), 0 = not wanted any more. durable: some of them are lasting sessions. online: number of
    connected members of a group. full: none of those can take a message now.

    member: 0, or the hash of a member's client id, whose state this is: members is 1, or 0 when it has left; since: a
    number that rises with time, 0 = it is offline.
    """

    filter: bytes
    group: bytes | None
    members: int
    durable: bool
    online: int = 0
    full: bool = False
    member: int = 0
    since: int = 0


def encode_change(change: Change) -> bytes:
    """Encode a change (see the top of this file); EnvelopeError for a group whose length would mean "no group"."""
    group = change.group
    if group is not None and len(group) >= NO_GROUP:
        raise EnvelopeError(f"a share group of {len(group)} bytes")
    group_bytes = NO_GROUP if group is None else len(group)
    flags = (DURABLE if change.durable else 0) | (FULL if change.full else 0) | (OF_MEMBER if change.member else 0)
    head = CHANGE.pack(len(change.filter), group_bytes, change.members, change.online, flags)
    if change.member:
        head += MEMBER.pack(change.member, change.since)
    return head + change.filter + (group or b"")


def decode_changes(part: Buffer) -> Iterator[Change]:
    """Decode the changes of a delta or of a part of a snapshot; EnvelopeError where the bytes end early."""
    at, size = 0, len(part)
    while at < size:
        spend(2 * STEP)
        if size - at < CHANGE.size:
            raise EnvelopeError(f"change at {at}: its head is cut off")
        filter_bytes, group_bytes, members, online, flags = CHANGE.unpack_from(part, at)
        filter_at = at + CHANGE.size
        member = since = 0
        if flags & OF_MEMBER:
            if size - filter_at < MEMBER.size:
                raise EnvelopeError(f"change at {at}: its member is cut off")
            member, since = MEMBER.unpack_from(part, filter_at)
            filter_at += MEMBER.size
        group_at = filter_at + filter_bytes
        at = group_at + (0 if group_bytes == NO_GROUP else group_bytes)
        if at > size:
            raise EnvelopeError(f"change before {filter_at}: {at - size} bytes are missing")
        group = None if group_bytes == NO_GROUP else bytes(part[group_at:at])
        yield Change(
            bytes(part[filter_at:group_at]), group, members, bool(flags & DURABLE), online, bool(flags & FULL),
            member, since,
        )  # fmt: skip


class InterestUpdate(NamedTuple):
    """One update for a peer, which is at `number` after these parts (a delta has one, a snapshot may have none)."""

    number: int
    snapshot: bool
    parts: list[bytes]


class Publisher:
    """The numbered interest table of this worker. Pure; one per worker, read by all its links.

    source: the entries of a snapshot. By default the table is kept here (about 300 bytes per filter); a router that can
    enumerate its filters passes a callable, and only the deltas are kept. It may take as long as the snapshot does; the
    changes meanwhile are told as well.

    in_pieces: takes the rest of a snapshot whose first piece is made: an iterator of which each step is another piece.
    The last step forgets the snapshot: callers of `since` before that get it. None: the rest is made at once.
    """

    decode = staticmethod(decode_changes)
    """Decodes the interest of peers, which is in the same format."""

    def __init__(
        self,
        source: Callable[[], Iterable[Change]] | None = None,
        in_pieces: Callable[[Iterator[None]], None] | None = None,
    ) -> None:
        self.number = 1
        self._table: dict[tuple[bytes, bytes | None, int], Change] = {}
        self._source: Callable[[], Iterable[Change]] = self._entries if source is None else source
        self._keeps_table = source is None
        self._in_pieces = in_pieces
        self._pending: dict[tuple[bytes, bytes | None, int], Change] = {}
        self._history: deque[InterestUpdate] = deque()  # numbers without gaps, the last is self.number
        self._history_bytes = 0
        self._is_touched = False  # the next number is given out even without a change
        self.unsealed = False
        """Whether `seal` has anything to do."""
        self._asked = False  # whether any peer has asked: nobody needs deltas before that
        self._snapshot: InterestUpdate | None = None  # kept while several peers ask for it
        self._being_made = False  # a snapshot: the deltas since its number are kept, however many there are

    def _entries(self) -> list[Change]:
        spend(len(self._table) * STEP // 100)
        return list(self._table.values())

    def change(
        self,
        filter: bytes,
        group: bytes | None = None,
        members: int = 1,
        durable: bool = False,
        online: int = 0,
        full: bool = False,
    ) -> int:
        """Set the state of (filter, group); members 0 withdraws it. Return the number by which peers will know it.

        A SUBACK may wait for the number at once: the change is sent with the next `seal`.
        """
        return self._set(Change(filter, group, members, durable, online, full))

    def member(self, filter: bytes, group: bytes, member: int, present: bool, since: int) -> int:
        """Set the state of one member of a group. Returns the same as `change`."""
        return self._set(Change(filter, group, int(present), False, 0, False, member, since))

    def _set(self, change: Change) -> int:
        key = (change.filter, change.group, change.member)
        if self._keeps_table:
            if change.members:
                self._table[key] = change
            else:
                self._table.pop(key, None)
        self._pending[key] = change
        self.unsealed = True
        return self.next

    def touch(self) -> int:
        """Give out another number even if nothing has changed, because peers acknowledge one only when what they had
        sent before has arrived (`zmq_mesh.barrier`). Returns the same as `change`.
        """
        self._is_touched = self.unsealed = True
        return self.next

    @property
    def next(self) -> int:
        """Return the number by which peers will know every change until now."""
        return self.number - (-max(len(self._pending), self._is_touched) // CHANGES_MAX)

    def seal(self) -> int:
        """Give the changes since the last seal the next number, or numbers. Return the table's number now."""
        self.unsealed = False
        if not self._asked:  # changes during the start go into the first snapshot
            self.number = self.next
            self._pending.clear()
            self._is_touched = False
        if self._pending or self._is_touched:
            spend((1 + len(self._pending)) * STEP)
            changes = iter(self._pending.values())
            if not self._being_made:
                self._snapshot = None
            for _ in range(self.next - self.number):
                delta = b"".join(map(encode_change, islice(changes, CHANGES_MAX)))
                self.number += 1
                self._history.append(InterestUpdate(self.number, False, [delta]))
                self._history_bytes += len(delta) + TOLD_BYTES
            self._pending.clear()
            self._is_touched = False
            self._trim()
        return self.number

    def _trim(self) -> None:
        while self._history_bytes > HISTORY_BYTES_MAX and len(self._history) > 1 and not self._being_made:
            self._history_bytes -= len(self._history.popleft().parts[0]) + TOLD_BYTES

    def since(self, number: int) -> list[InterestUpdate]:
        """Return the updates for a peer that was sent `number` (0 = nothing), in order: deltas, or one snapshot and the
        deltas after it. Nothing while the snapshot is being made.
        """
        if number == self.number:
            return []
        behind = self.number - number
        if number and 0 < behind <= len(self._history):
            return self._last(behind)
        if self._snapshot is None and not self._being_made:
            self._make_snapshot()
            self._asked = True
        if self._snapshot is None:
            return []
        return [self._snapshot, *self._last(self.number - self._snapshot.number)]

    def _last(self, deltas: int) -> list[InterestUpdate]:
        return [self._history[i] for i in range(len(self._history) - deltas, len(self._history))]

    def _make_snapshot(self) -> None:
        self.seal()  # a source can only provide its present state
        parts: list[bytes] = []
        pieces = self._make_parts(self.number, parts)
        for _ in pieces:
            if self._in_pieces is not None:
                self._being_made = True
                self._in_pieces(self._make_rest(pieces))
                return

    def _make_rest(self, pieces: Iterator[None]) -> Iterator[None]:
        try:
            yield from pieces
            yield  # all that wait for it get it now
        finally:
            self._being_made = False
            self._snapshot = None
            self._trim()

    def _make_parts(self, number: int, parts: list[bytes]) -> Iterator[None]:
        """Make some parts per step. After the last step the snapshot is complete."""
        part: list[bytes] = []
        size = 0
        for entry in self._source():
            spend(STEP)
            encoded = encode_change(entry)
            if part and (size + len(encoded) > SNAPSHOT_PART_BYTES_MAX or len(part) == CHANGES_MAX):
                parts.append(b"".join(part))
                part, size = [], 0
                if len(parts) % PARTS_AT_ONCE == 0:
                    yield
            part.append(encoded)
            size += len(encoded)
        parts.append(b"".join(part))
        self._snapshot = InterestUpdate(number, True, parts)

"""What one replay reads: the archives of which hosts, by which workers, and up to where.

A replay has a *source* for each worker of each host that it reads, own ones first. Of a host that is not there it has
none, and keeps the position alone; so of one whose archive was never heard of (`broker.replay.offsets.UNKNOWN`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.replay.offsets import FORM_OF_HOSTS, HostPosition, head_of, write_positions
from leveldb_store.format.replay_schema import ALL, StoredHost, StoredReplay
from pyx.core.peer import Peer, host_of, worker_of
from pyx.delivery.replay import Merge, write_position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyx.delivery.session import Session

__all__ = ["HostRead", "Replay", "Start", "one_host_alone", "written"]


class Start(NamedTuple):
    """Where a replay begins with the archive of one host, and by which workers it reads it; see `HostPosition`."""

    position: HostPosition
    peers: Sequence[Peer] = ()
    """Its sources: the workers of this host."""
    after: Sequence[int] = ()
    """By source, if they differ: the number behind which it begins."""
    floors: dict[int, int] = {}  # noqa: RUF012  never changed
    """By worker that gave out the numbers: everything up to this one was delivered."""
    is_fresh: bool = False
    """It begins with all that there is: nothing can be missing before the first page."""
    gone: Sequence[int] = ()
    """By source: the number up to which messages may be missing, as its client knows; ALL: it is fresh."""


class HostRead:
    """The archive of one host, as one replay reads it."""

    __slots__ = ("count", "first", "host", "is_away", "tag", "waits")

    def __init__(self, position: HostPosition, first: int, count: int) -> None:
        self.tag = position.tag
        self.host = position.host
        self.waits = position.waits
        self.first = first
        """Index of its first source."""
        self.count = count
        self.is_away = False

    @property
    def sources(self) -> range:
        """The indexes of its sources."""
        return range(self.first, self.first + self.count)


def one_host_alone(starts: Sequence[Start], tag: bytes, in_cluster: bool) -> bool:
    """Return whether positions have the first form (`broker.replay.offsets`)."""
    return not in_cluster and len(starts) == 1 and starts[0].position.tag == tag


def written(positions: Sequence[HostPosition], tag: bytes, in_cluster: bool) -> str:
    """Return a position as text, in the form that this host gives out."""
    if not in_cluster and len(positions) == 1 and positions[0].tag == tag:
        return write_position(tag, positions[0].number).decode()
    return write_positions(positions)


class Replay:
    """One subscription that replays. begins: where it begins with hosts that it does not know yet."""

    __slots__ = (
        "asked", "begins", "fresh", "gone", "heard", "hosts", "identifier", "is_dirty", "is_of_hosts", "is_queued",
        "is_resting", "merge", "noted", "peers", "sizes", "starts", "text", "whole",
    )  # fmt: skip

    def __init__(
        self,
        session: Session,
        text: bytes,
        options: int,
        identifier: int,
        number: int,
        begins: int,
        starts: Sequence[Start],
        is_of_hosts: bool,
    ) -> None:
        self.text = text
        """Topic Filter."""
        self.identifier = identifier
        self.begins = begins
        self.is_of_hosts = is_of_hosts
        """Whether its positions have the second form."""
        self.read(session, options, number, starts)
        self.whole = self.merge.state()
        """By host: the position delivered when its session's queue was last seen empty, ..."""
        self.gone: list[list[int]] = []
        """... and by host and source the number up to which its client knows by then that messages may be missing."""
        self.emptied()
        self.noted = self.reached()
        """The position that is stored or about to be."""
        self.is_resting = True
        self.is_queued = False
        self.is_dirty = False
        """Whether the stored record is out of date."""

    def read(self, session: Session, options: int, number: int, starts: Sequence[Start]) -> None:
        """Read these hosts from now on; nothing is asked yet."""
        self.hosts: list[HostRead] = []
        self.peers: list[Peer] = []
        """By source: the worker that is asked."""
        self.starts: list[int] = []
        """By source: the number up to which messages may be missing, as announced by it."""
        self.fresh: set[int] = set()
        """Sources that were asked for all they have: nothing can be missing before their first page."""
        merged: list[tuple[bytes, int, list[int]]] = []
        for start in starts:
            position, first, count = start.position, len(self.peers), len(start.peers)
            self.hosts.append(HostRead(position, first, count))
            after = list(start.after) if len(start.after) == count else [position.number] * count
            gone = list(start.gone) if len(start.gone) == count else [ALL if start.is_fresh else 0] * count
            self.fresh |= {first + at for at, each in enumerate(gone) if each == ALL}
            self.starts += [0 if each == ALL else each for each in gone]
            self.peers += start.peers
            head = position.tag
            if self.is_of_hosts:
                head = (b"" if merged else FORM_OF_HOSTS.encode()) + head_of(position)
            merged.append((head, position.number, after))
        self.merge = Merge(session, options, self.identifier, number, merged, [dict(start.floors) for start in starts])
        count = len(self.peers)
        self.asked = [0] * count
        """By source: the number of the open question, or 0."""
        self.heard = [0] * count
        """By source: monotonic ms of its last sign of life."""
        self.sizes = [0] * count
        """By source: messages of the last page."""

    def read_anew(self, starts: Sequence[Start]) -> None:
        """Read these hosts instead, the former ones first and in their order. Pages that wait are dropped before."""
        former, sizes = self.merge, [host.count for host in self.hosts]
        self.read(former.session, former.options, former.number, starts)
        self.merge.lost = former.lost
        self.whole += [(start.position.number, start.floors) for start in starts[len(self.whole) :]]
        for at, start in enumerate(starts):
            if at >= len(self.gone):
                self.gone.append(list(start.gone))
            elif len(start.peers) != sizes[at]:  # gaps are announced again
                self.gone[at] = []

    def source_of(self, peer: Peer) -> int | None:
        """Return the index of a source; None: this worker is not asked."""
        for host in self.hosts:
            if host.count and host_of(self.peers[host.first]) == host_of(peer) and worker_of(peer) < host.count:
                return host.first + worker_of(peer)
        return None

    def now(self) -> list[Start]:
        """Return where it would begin now, by host; its pages were dropped."""
        starts = []
        for at, (number, floors) in enumerate(self.merge.state()):
            host = self.hosts[at]
            gone = [ALL if source in self.fresh else self.starts[source] for source in host.sources]
            starts.append(
                Start(
                    HostPosition(host.tag, host.host, number, host.waits),
                    self.peers[host.first : host.first + host.count],
                    [self.merge.delivered(source) for source in host.sources],
                    floors,
                    gone=gone,
                )
            )
        return starts

    def emptied(self) -> None:
        """Note that its session has taken all messages queued so far."""
        self.whole = self.merge.state()
        if self.merge.lost is None:  # else the client has not been told of a gap yet
            self.gone = [
                [ALL if source in self.fresh else self.starts[source] for source in each.sources] for each in self.hosts
            ]

    def reached(self) -> int:
        """Return the lowest number of `whole`, of the hosts that are waited for; if none is, of all."""
        reached = zip(self.whole, self.hosts, strict=True)
        there = [number for (number, _), host in reached if host.count and not host.is_away]
        return min(there) if there else min(number for number, _ in self.whole)

    def record(self, tag: bytes) -> StoredReplay:
        """Return what is stored of it. tag: of this host's archive."""
        merge, lost, others = self.merge, self.merge.lost or b"", []
        position, floors, gone, is_read = 0, {}, [], False
        for host, (number, of_host), known in zip(self.hosts, self.whole, self.gone, strict=True):
            of_gone = known if max(known, default=0) > number else []  # else the position alone says it
            if host.tag == tag:
                position, floors, gone, is_read = number, of_host, of_gone, True
            else:
                others.append(StoredHost(host.tag[1:], host.host, number, host.waits, of_host, of_gone))
        head = merge.options, self.identifier, merge.number, position
        if not self.is_of_hosts:
            return StoredReplay(*head, int(lost[len(tag) :], 16) if lost else 0, floors, gone)
        return StoredReplay(*head, 0, floors, gone, self.begins, is_read, lost, others)

    @property
    def session(self) -> Session:
        """The session that it belongs to."""
        return self.merge.session

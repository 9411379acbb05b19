"""Where the replays of one SUBSCRIBE begin with the archives of which hosts, or why they cannot.

Each host archives what is published there. `earliest`, `latest` and a time hold for all hosts. A position has a number
for each host that it names. With others (one that has joined since, or did not exist) a replay begins a minute before
the position: as far as the clocks of hosts may be apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.replay.offsets import EARLIEST_NAME, HOSTS_MAX, NAME, UNKNOWN, WITHOUT_NAME, HostPosition, before
from broker.replay.reading import Start
from pyx.core.peer import OWN_HOST, host_of
from pyx.protocol.reasons import ReasonCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.replay.offsets import RequestedStart
    from broker.replay.replaying import Replaying
    from pyx.core.peer import Peer

__all__ = ["Beginning", "Found", "beginning_of"]

_CANNOT = int(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)


class Found:
    """What workers have answered to a SUBSCRIBE. number: the highest number of this host when it came."""

    __slots__ = ("full", "last", "number", "silent")

    def __init__(self) -> None:
        self.number = 0
        self.last: dict[Peer, int] = {}
        """By worker: the last number that it had given out."""
        self.silent: set[int] = set()
        """Hosts of which a worker has not answered."""
        self.full: set[int] = set()
        """Hosts that take no further replay."""


class Beginning(NamedTuple):
    """Where replays begin. code, why: of a refusal; 0: there is none."""

    starts: Sequence[Start] = ()
    begins: int = 0
    """Where they begin with hosts that are not known yet."""
    lacks: bool = False
    """Whether an archive is missing that the client does not know of."""
    code: int = 0
    why: str = ""
    positions: Sequence[HostPosition] = ()
    """The requested position, as far as it is one."""
    own_tag: bytes = b""
    without: Sequence[HostPosition] = ()
    """If hosts are away: the position that takes what they have later."""

    def before_start(self, starts: Mapping[int, int]) -> list[HostPosition]:
        """Return the parts of the position before the start of their archives, each as far as nothing is missing.
        starts: by host, the highest removed number.
        """
        return [
            each._replace(number=start)
            for each in self.positions
            if each.number < (start := starts.get(OWN_HOST if each.tag == self.own_tag else each.host, 0))
        ]

    def offered(self, earliest: Mapping[bytes, HostPosition]) -> tuple[str, list[HostPosition]]:
        """Return (user property, the position that the client may take instead; empty: there is none)."""
        if self.without:
            return WITHOUT_NAME, list(self.without)
        if earliest:
            return EARLIEST_NAME, [earliest.get(each.tag, each) for each in self.positions]
        return "", []


def beginning_of(replaying: Replaying, requested: RequestedStart, found: Found) -> Beginning:
    """Return where replays begin, once all workers have answered that do."""
    own = replaying.tag
    if not requested.is_position:
        number = found.number if requested.is_latest else requested.after
        starts, lacks = _of_all(replaying, {}, number, found, requested.is_latest)
        return _within(Beginning(starts, number, lacks), replaying, found)
    positions = [_known(replaying, each) for each in requested.positions]
    away = [each for each in positions if not each.waits and not _is_read(replaying, each, found)]
    if away:
        state = "which does not answer" if away[0].host in found.silent else replaying.hosts.state_of(away[0].host)
        why = f"{NAME} names the archive of host {replaying.hosts.name_of(away[0].host)}, {state}"
        without = [each._replace(waits=True) if each in away else each for each in positions]
        return Beginning(code=_CANNOT, why=why, without=without)
    for each in positions:
        last = [number for peer, number in found.last.items() if host_of(peer) == each.host]
        if each.tag != own and last and each.number > max(last):
            return Beginning(code=_CANNOT, why=f"{NAME} lies behind the end of the archive")
    unread = {each.host for each in requested.positions if each.tag == UNKNOWN}  # its client was told that they lack
    named = {(each.tag, each.host if each.tag == UNKNOWN else 0): each for each in positions}
    begins = before(min(each.number for each in positions))
    starts, lacks = _of_all(replaying, named, begins, found, is_latest=False)
    starts = [each._replace(is_fresh=each.is_fresh or each.position.host in unread) for each in starts]
    read = [each for each in positions if each.host not in unread]
    return _within(Beginning(starts, begins, lacks, positions=read, own_tag=own), replaying, found)


def _within(beginning: Beginning, replaying: Replaying, found: Found) -> Beginning:
    """Refuse what is beyond a bound."""
    if found.full:
        names = ", ".join(replaying.hosts.name_of(host) for host in sorted(found.full))
        why = f"is beyond replays_for_hosts_max of {names}"
        return Beginning(code=int(ReasonCode.QUOTA_EXCEEDED), why=why)
    if len(beginning.starts) > HOSTS_MAX:
        return Beginning(code=_CANNOT, why=f"{NAME} and the hosts that are there are more than {HOSTS_MAX} hosts")
    if not beginning.starts:
        return Beginning(code=_CANNOT, why="is not archived: no host that can be reached has an archive")
    return beginning


def _known(replaying: Replaying, position: HostPosition) -> HostPosition:
    """Return a part of a position with the present number of its host, and its archive if that is known by now."""
    hosts = replaying.hosts
    if position.tag == replaying.tag:
        return position._replace(host=hosts.own_number() or position.host, waits=False)
    archive = hosts.of_host(position.host) if position.tag == UNKNOWN else hosts.by_tag.get(position.tag)
    if archive is None:
        return position
    return HostPosition(archive.tag, archive.host, position.number)


def _is_read(replaying: Replaying, position: HostPosition, found: Found) -> bool:
    if position.tag == replaying.tag:
        return True
    return position.tag in replaying.hosts.by_tag and position.host not in found.silent


def _of_all(
    replaying: Replaying, named: Mapping[tuple[bytes, int], HostPosition], number: int, found: Found, is_latest: bool
) -> tuple[list[Start], bool]:
    """Return the starts with all hosts, the own one first, and whether an archive of those that were not named lacks.
    number: where a replay begins with these.
    """
    hosts, own = replaying.hosts, replaying.tag
    others = dict(named)
    starts = []

    def add(tag: bytes, host: int, peers: Sequence[Peer]) -> None:
        position = others.pop((tag, 0), None)
        if position is not None:
            starts.append(Start(position, peers))
            return
        after = [found.last.get(peer, number) for peer in peers] if is_latest else ()
        starts.append(Start(HostPosition(tag, host, number), peers, after, is_fresh=not is_latest))

    if own:
        add(own, hosts.own_number(), hosts.own_peers)
    for archive in hosts.by_tag.values():
        add(archive.tag, archive.host, archive.peers)
    starts += [Start(position) for position in others.values()]
    away = {position.host for position in named.values()}
    unknown = [host for host in hosts.unknown() if host not in away]
    starts += [Start(HostPosition(UNKNOWN, host, number, waits=True)) for host in unknown]
    return starts, bool(unknown)

"""Where a replay goes on with the hosts whose archives can be read now: hosts come, go, and change their workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.replay.offsets import HOSTS_MAX, UNKNOWN, HostPosition
from broker.replay.reading import Replay, Start

if TYPE_CHECKING:
    from broker.replay.host_archives import HostArchives
    from leveldb_store.format.replay_schema import StoredReplay

__all__ = ["reads_others", "starts_now", "stored_starts"]


def reads_others(replay: Replay, hosts: HostArchives, tag: bytes) -> bool:
    """Return whether a replay reads other archives than those that can be read, or by other workers. tag: of this
    host's archive.
    """
    named = set()
    for host in replay.hosts:
        named.add(host.tag)
        archive = hosts.by_tag.get(host.tag)
        if host.tag == tag:
            if hosts.own_number() not in (0, host.host) or host.waits:
                return True
        elif archive is not None and (archive.workers, archive.host, False) != (host.count, host.host, host.waits):
            return True
    return len(replay.hosts) < HOSTS_MAX and any(each not in named for each in hosts.by_tag)


def starts_now(replay: Replay, hosts: HostArchives, tag: bytes) -> list[Start]:
    """Return where it goes on: with its hosts in their order, then with those that it does not read yet. Its pages were
    dropped.
    """
    starts = [_start_now(each, hosts, tag) for each in replay.now()]
    named = {each.position.tag for each in starts}
    for archive in hosts.by_tag.values():
        if archive.tag not in named and len(starts) < HOSTS_MAX:
            position = HostPosition(archive.tag, archive.host, replay.begins)
            starts.append(Start(position, archive.peers, is_fresh=True))
    return starts


def _start_now(start: Start, hosts: HostArchives, tag: bytes) -> Start:
    position = start.position
    if position.tag == tag:
        number = hosts.own_number() or position.host
        return start._replace(position=position._replace(host=number, waits=False))
    archive = hosts.by_tag.get(position.tag)
    if archive is None and position.tag == UNKNOWN:  # it may be known by now
        archive = hosts.of_host(position.host)
    if archive is None:
        return start
    is_fresh = position.tag == UNKNOWN
    position = HostPosition(archive.tag, archive.host, position.number)
    if len(start.peers) == archive.workers:
        return start._replace(position=position, peers=archive.peers)
    return Start(position, archive.peers, floors=start.floors, is_fresh=is_fresh)


def stored_starts(stored: StoredReplay, hosts: HostArchives, tag: bytes) -> list[Start]:
    """Return where a stored replay goes on; none if there is nothing that it could read. After repartitioning an
    archive has numbers of several workers, and gaps are announced again.
    """
    starts = []
    if tag and stored.is_read:
        position = HostPosition(tag, hosts.own_number(), stored.position)
        starts.append(Start(position, hosts.own_peers, (), stored.floors, stored.position == 0, stored.gone))
    for each in stored.hosts or ():
        position = HostPosition(b"1" + each.tag, each.host, each.position, each.waits)
        archive = hosts.by_tag.get(position.tag)
        peers = archive.peers if archive is not None else ()
        starts.append(Start(position, peers, (), each.floors, each.position == 0, each.gone))
    return starts

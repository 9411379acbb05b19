"""Members of a share group over the hosts of a cluster: how many each host is to have, and who sends how many where.

A pure function of the group's name and of how many members are online on each host, so that all hosts, and all their
workers, get the same answer without a word between them:

    g members over n hosts    each has g // n, and g % n of them one more
    who has one more          first hosts that have so many already, which saves a move; then those that draw highest
                              for this group (rendezvous hashing), so that the extra members of many groups do not meet
                              on one host
    who sends where           hosts with too many, and hosts with too few, both in the order of their names: the first
                              with too many fills the first with too few. A host is sent what it lacks, by all together

No fewer moves would do, and after them there is nothing to move. The order by names is the same for all groups, so that
a client that is a member of several has the same way in each, where they have the same members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import NamedTuple

__all__ = ["Move", "moves_of", "part_of", "targets_of"]

_PERSON = b"mqttd spread"
"""Separates these digests from those of any other use (BLAKE2b's `person`)."""


class Move(NamedTuple):
    """So many members go from one host to another. Hosts are node ids."""

    source: str
    target: str
    members: int


def _draw(group: bytes, node: str) -> bytes:
    """Return what a host draws for a group: 8 bytes, compared as they are."""
    return blake2b(group, key=node.encode(), person=_PERSON, digest_size=8).digest()


def targets_of(group: bytes, online: Mapping[str, int]) -> dict[str, int]:
    """Return how many members of a group each host is to have. group: b"ShareName/Topic Filter". online: members by
    node id, of all hosts that count. Raises ValueError for less than 0.
    """
    if not online:
        return {}
    if min(online.values()) < 0:
        raise ValueError("a host has less than 0 members")
    each, extra = divmod(sum(online.values()), len(online))
    if not extra:
        return dict.fromkeys(online, each)
    ranked = sorted(online, key=lambda node: (online[node] > each, _draw(group, node), node), reverse=True)
    more = set(ranked[:extra])
    return {node: each + (node in more) for node in online}


def moves_of(group: bytes, online: Mapping[str, int]) -> list[Move]:
    """Return the moves after which each host has its target. Arguments and errors: as `targets_of`."""
    targets = targets_of(group, online)
    takers = iter([node for node in sorted(online) if online[node] < targets[node]])
    moves: list[Move] = []
    target, lacks = "", 0
    for source in sorted(online):
        surplus = online[source] - targets[source]
        while surplus > 0:
            if not lacks:
                target = next(takers)
                lacks = targets[target] - online[target]
            members = min(surplus, lacks)
            moves.append(Move(source, target, members))
            surplus -= members
            lacks -= members
    return moves


def part_of(moves: Iterable[Move], source: str, workers: Sequence[int], worker: int) -> dict[str, int]:
    """Return how many members one worker of a host sends to each other host. workers: members online on each worker of
    the host. The parts of all workers make up the moves from this host, and none has to send more than it has.
    """
    before, all_ = sum(workers[:worker]), sum(workers)
    own = [move for move in moves if move.source == source]
    surplus = sum(move.members for move in own)
    if not surplus:
        return {}
    first, end = surplus * before // all_, surplus * (before + workers[worker]) // all_
    part: dict[str, int] = {}
    for move, until in zip(own, accumulate(move.members for move in own), strict=True):
        members = min(until, end) - max(until - move.members, first)
        if members > 0:
            part[move.target] = members
    return part

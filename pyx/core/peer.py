"""Peers: workers to which a worker has links, identified by one number in batches, links and records.

    peer    u32: host << 8 | worker

Host 0 is the own one, whatever number other hosts use for it. So the number of a sibling is the index of that worker,
and stored records about siblings stay valid when a host is given a number (docs/adr/0036-peers-are-host-and-worker.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NewType

__all__ = [
    "HOSTS_MAX",
    "OWN_HOST",
    "WORKERS_MAX",
    "Peer",
    "host_of",
    "is_sibling",
    "peer_of",
    "publisher_of",
    "sibling",
    "siblings",
    "worker_of",
]

Peer = NewType("Peer", int)

OWN_HOST: Final = 0
HOSTS_MAX: Final = 1 << 24
"""Numbers of hosts, 0 included."""
WORKERS_MAX: Final = 1 << 8
"""Numbers of workers of one host; the configuration allows fewer."""


def peer_of(host: int, worker: int) -> Peer:
    """Return the peer. Raises ValueError for numbers out of range."""
    if not (0 <= host < HOSTS_MAX and 0 <= worker < WORKERS_MAX):
        raise ValueError(f"there is no worker {worker} of host {host}")
    return Peer(host << 8 | worker)


def host_of(peer: Peer) -> int:
    """Return the host of a peer; OWN_HOST: it is a sibling."""
    return peer >> 8


def worker_of(peer: Peer) -> int:
    """Return the index of a peer among the workers of its host."""
    return peer & 0xFF


def is_sibling(peer: Peer) -> bool:
    """Return whether a peer is a worker of the own host."""
    return peer < WORKERS_MAX


def sibling(worker: int) -> Peer:
    """Return a worker of the own host as a peer."""
    return peer_of(OWN_HOST, worker)


def publisher_of(number: int) -> Peer:
    """Return the worker of this host that has given a message this number (pyx.delivery.router_state)."""
    return Peer(number & 0xFF)


def siblings(worker: int, workers: int) -> Iterator[Peer]:
    """Yield the other workers of the own host."""
    return (sibling(each) for each in range(workers) if each != worker)

"""Hosts with stores that survive a crash (`tests.kept_store`), and their clients: for tests of restarts.

`Host.crash` returns the host after a kill of its worker at that moment. The disk of a `manual` store has nothing until
the test calls `commit`.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leveldb_store.format import schema
from leveldb_store.store import LevelStore
from pyx.delivery.session import Session
from tests import wire
from tests.kept_store import KeptStore
from tests.sansio import Host, Peer

VERSIONS = [3, 4, 5]
DISK_SECONDS_MAX = 10.0
WILL = wire.Will("will", b"gone", qos=1)
NEVER = 0xFFFFFFFF


def kept(manual: bool = False, **options: Any) -> tuple[Host, KeptStore]:
    store = KeptStore(manual)
    return Host(stores=[store], **options), store


def store_of(host: Host) -> KeptStore:
    store = host.stores[0]
    assert isinstance(store, KeptStore)
    return store


def lasting(host: Host, client_id: str, version: int = 4, **options: Any) -> Peer:
    """Connect a client whose session outlives its connection; an existing session is resumed."""
    if version == 5:
        options.setdefault("expiry", NEVER)
    return host.connect(client_id, version, clean=False, **options)


def commit(host: Host) -> None:
    """Make everything durable that was flushed."""
    host.node.router.journal.durable(store_of(host).sync())
    host.settle()


def sent(host: Host, client_id: str, version: int = 4, **options: Any) -> Peer:
    """Return a client that has sent its CONNECT; CONNACK is not taken."""
    peer = host.open(version)
    peer.client_id = client_id
    peer.send(wire.connect(version, client_id, **options))
    host.settle()
    return peer


def session(host: Host, client_id: str) -> Session:
    found = host.node.sessions.get(client_id)
    assert found is not None
    return found


def families(host: Host) -> set[bytes]:
    """Return the families of the durable records, except windows."""
    return {key[:1] for key in store_of(host).records} - {schema.WINDOW}


class OnDisk(LevelStore):
    """A store on disk for a Host: `collect` waits until everything is written."""

    def collect(self) -> int:
        ticket, durable = self.flush(), super().collect()
        while durable < ticket:
            assert select.select([self.fileno()], [], [], DISK_SECONDS_MAX)[0], self.failed
            durable = super().collect()
        return durable


def on_disk(paths: Sequence[Path], **options: Any) -> Host:
    """Return a host with a worker for each path, without fsync. Call `let_go` before others open the stores."""
    return Host(len(paths), stores=[OnDisk(path, fsync=False) for path in paths], **options)


def let_go(host: Host) -> None:
    """Close the stores with everything that the workers have stored."""
    host.settle()
    for store in host.stores:
        store.close()

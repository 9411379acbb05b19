"""Snapshots of all hosts of a cluster: each host writes its own, and a manifest says which there are.

    DIR/ID/host-NODE        a snapshot of that host (`leveldb_store.snapshots.snapshot`), on its disk
    DIR/ID/cluster-snapshot.json     `ClusterManifest`, on every host that took part; written last

The directories ID of all hosts have different contents and the same manifest. So to have them together, they are copied
into one, or DIR is the same directory of a shared file system on all hosts.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from leveldb_store.snapshots.snapshot import NAME as SNAPSHOT_NAME
from leveldb_store.snapshots.snapshot import SnapshotError

__all__ = ["NAME", "ClusterManifest", "HostPart", "MissingHost", "directory_of", "read_cluster_manifest"]

NAME: Final = "cluster-snapshot.json"
_FORMAT: Final = 1
_HOST: Final = "host-"


def directory_of(node: str) -> str:
    """Return the name of the directory that has the snapshot of a host."""
    return f"{_HOST}{node}"


@dataclass(frozen=True, slots=True)
class HostPart:
    """The snapshot of one host."""

    node: str
    path: str
    """Where the host has written it."""
    release: str
    workers: int
    taken_ms: int
    """Unix time when its cloning began: everything acknowledged on this host until then is included."""
    cloned_ms: int
    """Unix time when its cloning ended: nothing acknowledged later is."""
    sessions: int
    messages: int
    """Messages in the logs of its stores."""
    retained: int
    bytes: int

    @property
    def directory(self) -> str:
        """Its name beside the manifest."""
        return directory_of(self.node)


@dataclass(frozen=True, slots=True)
class MissingHost:
    """A host of which there is no snapshot, and why."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class ClusterManifest:
    """The content of cluster-snapshot.json."""

    id: str
    cluster: str
    """Name of the cluster."""
    asked_ms: int
    """Unix time when the first host was asked: what was acknowledged before is included on all."""
    hosts: tuple[HostPart, ...]
    """By node id."""
    missing: tuple[MissingHost, ...] = ()

    def encode(self) -> str:
        """Return it as JSON."""
        return json.dumps({"format": _FORMAT, **dataclasses.asdict(self)}, indent=1) + "\n"

    @classmethod
    def decode(cls, text: str | bytes) -> ClusterManifest:
        """Return a manifest. Raises SnapshotError: it is damaged, or of a newer format."""
        try:
            found = json.loads(text)
            known = int(found["format"])
            if not 1 <= known <= _FORMAT:
                raise SnapshotError(f"it has format {known}, this mqttd reads format {_FORMAT}")
            return cls(
                str(found["id"]), str(found["cluster"]), int(found["asked_ms"]),
                tuple(_part(each) for each in found["hosts"]),
                tuple(MissingHost(str(each["node"]), str(each["reason"])) for each in found["missing"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, RecursionError):
            raise SnapshotError("it is damaged") from None


def _part(found: Any) -> HostPart:
    node = str(found["node"])
    if directory_of(node) != os.path.basename(directory_of(node)):
        raise ValueError(node)
    return HostPart(
        node, str(found["path"]), str(found["release"]), int(found["workers"]), int(found["taken_ms"]),
        int(found["cloned_ms"]), int(found["sessions"]), int(found["messages"]), int(found["retained"]),
        int(found["bytes"]),
    )  # fmt: skip


def read_cluster_manifest(directory: Path) -> ClusterManifest | None:
    """Read the manifest in a directory; None: there is none. Raises SnapshotError: it is damaged, of a newer format, or
    the snapshot of one of its hosts is not there.
    """
    try:
        text = (directory / NAME).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SnapshotError(f"{directory / NAME}: {error.strerror or error}") from None
    try:
        manifest = ClusterManifest.decode(text)
    except SnapshotError as error:
        raise SnapshotError(f"{directory / NAME}: {error}") from None
    for host in manifest.hosts:
        if not (directory / host.directory / SNAPSHOT_NAME).is_file():
            raise SnapshotError(
                f"{directory}: the snapshot of host {host.node} is not here: copy {host.path} of that host"
            )
    return manifest

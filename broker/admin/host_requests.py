"""The requests that a control process answers about its own host, or passes on to another one: their form as JSON, and
the answers. They go over the supervisor's control socket to the number after the last worker's, and between hosts
(`broker.cluster.host_channel`).

    HostStates      {"hosts": "states"}                     {"hosts": [{"node": N, "state": ..., "release": ...,
                                                            "workers": ..., and what OwnState says, or "error": why},
                                                            ...]}
    OnHost          a request, "node": N, "worker": I       {"answer": {...}}, of worker I of that host, or of its
                                                            control process (null); or {"silent": why}
    OwnState        {"host": "state"}                       {"clients": N, "sessions": N}
    TakeSnapshot    {"snapshot": "take", "id": ID}          {"begun": true}, or {"refused": why}
    SnapshotState   {"snapshot": "state", "id": ID}         {"state": "running", "progress": "..."}, or "failed" with a
                                                            "reason", or "taken" with "facts": {...}
    EndSnapshot     {"snapshot": "end", "id": ID}           {"ended": true}: it is given up, if it is not taken yet
    KeepManifest    {"snapshot": "keep", "id": ID,          {"kept": directory}, or {"refused": why}
                     "manifest": "..."}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.admin import requests
from broker.admin.requests import Drain, Request

__all__ = [
    "MANIFEST_CHARACTERS_MAX",
    "SNAPSHOT_ID",
    "EndSnapshot",
    "HostRequest",
    "HostStates",
    "KeepManifest",
    "OfHost",
    "OnHost",
    "OwnRequest",
    "OwnState",
    "SnapshotState",
    "TakeSnapshot",
    "decode",
    "decode_own",
    "encode",
]

SNAPSHOT_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""It is the name of a directory."""
MANIFEST_CHARACTERS_MAX: Final = 128 << 10
_WORKERS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class HostStates:
    """Asks for the state of all hosts. Those that do not answer are named."""


@dataclass(frozen=True, slots=True)
class OwnState:
    """Asks for the state of a host."""


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Asks a host to begin a snapshot of its stores."""

    id: str


@dataclass(frozen=True, slots=True)
class SnapshotState:
    """Asks a host how far it is with that."""

    id: str


@dataclass(frozen=True, slots=True)
class EndSnapshot:
    """Asks a host to give it up."""

    id: str


@dataclass(frozen=True, slots=True)
class KeepManifest:
    """Asks a host to write the manifest of a snapshot of several hosts beside its own part of it."""

    id: str
    manifest: str


OfHost = OwnState | TakeSnapshot | SnapshotState | EndSnapshot | KeepManifest


@dataclass(frozen=True, slots=True)
class OnHost:
    """Asks a host, or a worker of it, for something. worker: None: its control process."""

    node: str
    worker: int | None
    request: Request | OfHost


HostRequest = HostStates | OnHost | Drain
OwnRequest = tuple[int | None, Request | OfHost]
"""The worker that is asked (None: the control process), and what for."""


def encode(request: HostStates | OnHost) -> dict[str, Any]:
    """Return a request as JSON."""
    match request:
        case HostStates():
            return {"hosts": "states"}
        case OnHost(node, worker, of):
            return {**_encode_own(of), "node": node, "worker": worker}


def _encode_own(request: Request | OfHost) -> dict[str, Any]:
    match request:
        case OwnState():
            return {"host": "state"}
        case TakeSnapshot(id_):
            return {"snapshot": "take", "id": id_}
        case SnapshotState(id_):
            return {"snapshot": "state", "id": id_}
        case EndSnapshot(id_):
            return {"snapshot": "end", "id": id_}
        case KeepManifest(id_, manifest):
            return {"snapshot": "keep", "id": id_, "manifest": manifest}
    return requests.encode(request)


def decode(said: object) -> HostRequest | None:
    """Return the request to a control process in a JSON object, or None if it is none of these."""
    match said:
        case {"hosts": "states"}:
            return HostStates()
        case {"node": str(node), **rest}:
            own = decode_own(rest)
            return None if own is None else OnHost(node, *own)
    request = requests.decode(said)
    return request if isinstance(request, Drain) else None


def decode_own(said: object) -> OwnRequest | None:
    """Return what a host is asked for itself, or None if it is none of these requests."""
    match said:
        case {"worker": None, **rest}:
            request = _decode_of_host(rest)
            return None if request is None else (None, request)
        case {"worker": int(worker), **rest} if type(worker) is int and 0 <= worker < _WORKERS_MAX:
            asked = requests.decode(rest)
            return None if asked is None else (worker, asked)
    return None


def _decode_of_host(said: Mapping[object, object]) -> OfHost | None:
    match said:
        case {"host": "state"}:
            return OwnState()
        case {"snapshot": str(what), "id": str(id_)} if SNAPSHOT_ID.fullmatch(id_):
            match what, said.get("manifest"):
                case "take", None:
                    return TakeSnapshot(id_)
                case "state", None:
                    return SnapshotState(id_)
                case "end", None:
                    return EndSnapshot(id_)
                case "keep", str(manifest) if len(manifest) <= MANIFEST_CHARACTERS_MAX:
                    return KeepManifest(id_, manifest)
    return None

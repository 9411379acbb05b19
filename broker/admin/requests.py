"""The requests that workers answer: their form as JSON, and the answers (`broker.worker.administration`).

`broker.admin.host_requests` has those that the control process answers, and other hosts by way of it.

    ListSessions    {"sessions": "list", "from": N}              {"sessions": [...], "next": N or null}
    ShowSession     {"sessions": "show", "client": C, "from": N} {"session": {...} or null, "subscriptions": [...],
                                                                  "next": N or null}
    DeleteSession   {"sessions": "delete", "client": C}          {"deleted": true or false}, when the store has it
    ListEvents      {"events": "list", "from": N}                {"events": [[number, value], ...], "next": N or null}
    StoreStats      {"store": "stats"}                           {"store": {...}}
    Drain           {"drain": "begin", "end" or null}            {"drain": {"state": S}}, or {"refused": why}, of the
                                                                 control process (the number after the last worker's)
                    {"drain": null}                              {"drain": {"on": ..., "connected": N, "sessions": N,
                                                                 "left_behind": N, "coming": N}}, of a worker
    BridgeStates    {"bridges": "states"}                        {"bridges": [{...}]}, the connections of the worker
    MoveClients     {"move": N, "to": [[address, N], ...], "per_second": N}
                                                                 {"moving": N}, how many clients the worker will send
                                                                 away for this plan; none: it does so no longer
    WorkDone        {"work": "highest"}                          {"work": {kind of callback: ns}}, in test builds
                                                                 (pyx/core/work.pxd)

Events (`leveldb_store.format.events`) are returned as they are stored, in base 64: those after number N that are on the
disk. Requests with N are answered in pages that fit into a message: `next` is the N of the next page, or null after the
last. A list of sessions stays as it was at its first page; it is kept until LISTS_MAX others have been begun. An
unknown request, perhaps of another release, is answered {"unknown": true}; a request that fails {"error": "..."}.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

__all__ = [
    "LISTS_MAX",
    "UNKNOWN",
    "BridgeStates",
    "DeleteSession",
    "Drain",
    "ListEvents",
    "ListSessions",
    "MoveClients",
    "NoAnswer",
    "Paged",
    "Request",
    "ShowSession",
    "StoreStats",
    "WorkDone",
    "decode",
    "encode",
    "page_at",
    "understood",
]

UNKNOWN = {"unknown": True}
"""The answer to an unknown request."""
LISTS_MAX = 4
"""Lists of sessions that a worker keeps for clients that ask for them page by page."""
_AT_END = 1 << 64
_FILTERS_END = 1 << 32


class NoAnswer(Exception):
    """A worker has not answered. The text is one line."""


@dataclass(frozen=True, slots=True)
class ListSessions:
    """Asks for all sessions of the worker, as they were when the first page was asked for."""

    at: int = 0


@dataclass(frozen=True, slots=True)
class ShowSession:
    """Asks for one session, with its Topic Filters."""

    client: str
    at: int = 0


@dataclass(frozen=True, slots=True)
class DeleteSession:
    """Ends a session; its connection is closed, too."""

    client: str


@dataclass(frozen=True, slots=True)
class ListEvents:
    """Asks for the events after this number."""

    at: int = 0


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Asks for the size and contents of the worker's store."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Asks the control process to change whether the host drains (`change`: "begin", "end", None: nothing), or a worker
    (None) what is left on it.
    """

    change: str | None


@dataclass(frozen=True, slots=True)
class BridgeStates:
    """Asks for the state of the worker's bridges."""


@dataclass(frozen=True, slots=True)
class MoveClients:
    """Asks the worker to send clients to other hosts. plan: its number (`broker.cluster.leadership`). to: addresses of
    hosts, as clients are told them, each with how many clients; none: the plan is taken back. per_second: how many at
    most.
    """

    plan: int
    to: tuple[tuple[str, int], ...]
    per_second: float


@dataclass(frozen=True, slots=True)
class WorkDone:
    """Asks for the highest cost of each kind of callback."""


Paged = ListSessions | ShowSession | ListEvents
Request = Paged | DeleteSession | StoreStats | Drain | BridgeStates | MoveClients | WorkDone


def encode(request: Request) -> dict[str, Any]:
    """Return a request as JSON."""
    match request:
        case ListSessions(at):
            return {"sessions": "list", "from": at}
        case ShowSession(client, at):
            return {"sessions": "show", "client": client, "from": at}
        case DeleteSession(client):
            return {"sessions": "delete", "client": client}
        case ListEvents(at):
            return {"events": "list", "from": at}
        case StoreStats():
            return {"store": "stats"}
        case Drain(change):
            return {"drain": change}
        case BridgeStates():
            return {"bridges": "states"}
        case MoveClients(plan, to, per_second):
            return {"move": plan, "to": [list(each) for each in to], "per_second": per_second}
        case WorkDone():
            return {"work": "highest"}


def decode(said: object) -> Request | None:
    """Return the request in a JSON object, or None if it is not one of these."""
    match said:
        case {"sessions": "list", "from": int(at)} if 0 <= at < _AT_END:
            return ListSessions(at)
        case {"sessions": "show", "client": str(client), "from": int(at)} if 0 <= at < _FILTERS_END:
            return ShowSession(client, at)
        case {"sessions": "delete", "client": str(client)}:
            return DeleteSession(client)
        case {"events": "list", "from": int(at)} if 0 <= at < _AT_END:
            return ListEvents(at)
        case {"store": "stats"}:
            return StoreStats()
        case {"drain": ("begin" | "end" | None) as change}:
            return Drain(change)
        case {"bridges": "states"}:
            return BridgeStates()
        case {"move": int(plan), "to": list(to), "per_second": int(pace) | float(pace)}:
            return _move_clients(plan, to, float(pace))
        case {"work": "highest"}:
            return WorkDone()
    return None


def _move_clients(plan: int, to: list[Any], per_second: float) -> MoveClients | None:
    places: list[tuple[str, int]] = []
    if not 0 <= plan < _AT_END or not 0 <= per_second < math.inf:
        return None
    for each in to:
        match each:
            case [str(address), int(count)] if address and count > 0:
                places.append((address, count))
            case _:
                return None
    return MoveClients(plan, tuple(places), per_second)


def understood(worker: int, answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answer, if it is one to the request. Raises NoAnswer."""
    if "error" in answer:
        raise NoAnswer(f"worker {worker}: {answer['error']}")
    if answer == UNKNOWN:
        raise NoAnswer(f"worker {worker} does not know this request: the broker is of another release")
    return answer


def page_at(request: Paged, at: int) -> Paged:
    """Return the same request for another page."""
    return replace(request, at=at)

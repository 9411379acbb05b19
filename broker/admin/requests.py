"""What workers can be asked: the requests, their form as JSON, and the answers (`broker.worker.administration`).

    ListSessions    {"sessions": "list", "from": N}              {"sessions": [...], "next": N or null}
    ShowSession     {"sessions": "show", "client": C, "from": N} {"session": {...} or null, "subscriptions": [...],
                                                                  "next": N or null}
    DeleteSession   {"sessions": "delete", "client": C}          {"deleted": true or false}, when the store has it
    ListEvents      {"events": "list", "from": N}                {"events": [[number, value], ...], "next": N or null}
    StoreStats      {"store": "stats"}                           {"store": {...}}
    WorkDone        {"work": "highest"}                          {"work": {kind of callback: ns}}, in test builds
                                                                 (pyx/core/work.pxd)

Events (`leveldb_store.format.events`) come as they are stored, in base 64, those behind number N that are on the disk.
Those with N are answered in pages that fit into a message: `next` is the N of the next page, null: that was the last.
A list of sessions stays as it was at its first page, and is kept while LISTS_MAX others have not been begun. What is
none of them, as another release may ask it, is answered {"unknown": true}; what cannot be answered {"error": "..."}.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

__all__ = [
    "LISTS_MAX",
    "UNKNOWN",
    "DeleteSession",
    "ListEvents",
    "ListSessions",
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
"""The answer to what is no request."""
LISTS_MAX = 4
"""Lists of sessions that a worker keeps, for those who ask for them page by page."""
_AT_END = 1 << 64
_FILTERS_END = 1 << 32


class NoAnswer(Exception):
    """A worker has not answered. Its text is one line."""


@dataclass(frozen=True, slots=True)
class ListSessions:
    """All sessions of the worker, as they were when the first page was asked for."""

    at: int = 0


@dataclass(frozen=True, slots=True)
class ShowSession:
    """One, with its Topic Filters."""

    client: str
    at: int = 0


@dataclass(frozen=True, slots=True)
class DeleteSession:
    """End it; its connection is closed, too."""

    client: str


@dataclass(frozen=True, slots=True)
class ListEvents:
    """Those behind this number."""

    at: int = 0


@dataclass(frozen=True, slots=True)
class StoreStats:
    """How much the worker's store has."""


@dataclass(frozen=True, slots=True)
class WorkDone:
    """The most that each kind of callback has cost."""


Paged = ListSessions | ShowSession | ListEvents
Request = Paged | DeleteSession | StoreStats | WorkDone


def encode(request: Request) -> dict[str, Any]:
    """As JSON."""
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
        case WorkDone():
            return {"work": "highest"}


def decode(said: object) -> Request | None:
    """The other way. None: it is none of them."""
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
        case {"work": "highest"}:
            return WorkDone()
    return None


def understood(worker: int, answer: dict[str, Any]) -> dict[str, Any]:
    """The answer, if it is one to the request. Raises NoAnswer."""
    if "error" in answer:
        raise NoAnswer(f"worker {worker}: {answer['error']}")
    if answer == UNKNOWN:
        raise NoAnswer(f"worker {worker} does not know this request: the broker is of another release")
    return answer


def page_at(request: Paged, at: int) -> Paged:
    """The same, of another page."""
    return replace(request, at=at)

"""Answers of a worker to the operator's requests (`broker.admin.requests`), which `shards.console` and the control
process forward.

Lists are sent in pages that fit into a message. A list contains the sessions as they were when it began: the number of
a page has the number of its list in the upper half.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.admin.requests import (
    LISTS_MAX,
    UNKNOWN,
    BridgeStates,
    DeleteSession,
    Drain,
    ListEvents,
    ListSessions,
    MoveClients,
    Request,
    ShowSession,
    StoreStats,
    WorkDone,
    decode,
)
from pyx.core import counters as count
from pyx.core import work
from pyx.core.work import STEP, spend

if TYPE_CHECKING:
    from broker.clients.closing import Closing
    from broker.context.context import Context
    from broker.context.sessions import Details, Sessions
    from pyx.delivery.session import Session

__all__ = ["Administration"]

_PAGE_BYTES_MAX = 24_576
"""Size of a page as JSON: with its envelope and a shortened name of 65,535 bytes it fits into 64 KB."""
_EVENTS_BYTES_MAX = _PAGE_BYTES_MAX * 3 // 4
_PAGE_ROWS_MAX = 500
_LIST = 1 << 32
_TEXT_MAX = 2000
"""Characters shown of a name."""
_STORED = (
    "sessions", "subscriptions", "retained_messages", "retained_bytes", "log_messages", "log_bytes", "archive_bytes",
    "events_bytes", "records_set_aside",
)  # fmt: skip
"""Counters of the store's contents; gauges, which the worker sets once a second."""

Answer = Callable[[dict[str, Any]], None]


class Administration:
    """Answers the requests to one worker."""

    def __init__(self, context: Context, sessions: Sessions, closing: Closing) -> None:
        self._context = context
        self._sessions = sessions
        self._closing = closing
        self.drain_report: Callable[[], dict[str, Any]] | None = None
        """Returns what is left of a host that drains; None: it is in no cluster."""
        self.move_clients: Callable[[MoveClients], int] | None = None
        """Sends clients to other hosts (`broker.worker.moving_clients`); None: it is in no cluster."""
        self.bridges_report: Callable[[], list[dict[str, Any]]] = list
        """Returns the state of each connection of a bridge."""
        self._lists: dict[int, list[str]] = {}  # oldest first
        self._list_number = 0

    def asked(self, ask: object, answer: Answer) -> None:
        """Answer a request: `answer` is called once, now or when the store has confirmed."""
        try:
            self._asked(decode(ask), answer)
        except Exception as error:  # noqa: BLE001  a failed request does not end the worker
            self._context.counters.add(count.INTERNAL_ERRORS)
            self._context.defect(None, error)
            answer({"error": "the request has failed: the log of the broker has the details"})

    def _asked(self, request: Request | None, answer: Answer) -> None:
        match request:
            case ListSessions(at):
                answer(self._list(at))
            case ShowSession(client_id, at):
                answer(self._show(client_id, at))
            case DeleteSession(client_id):
                deleted = self._closing.delete(client_id)
                self._context.router.journal.when_durable(lambda: answer({"deleted": deleted}))
            case ListEvents(after):
                answer(self._events(after))
            case StoreStats():
                answer({"store": self._store()})
            case Drain(None) if self.drain_report is not None:
                answer({"drain": self.drain_report()})
            case MoveClients() if self.move_clients is not None:
                answer({"moving": self.move_clients(request)})
            case BridgeStates():
                answer({"bridges": self.bridges_report()})
            case WorkDone() if work.COUNTED:
                answer({"work": work.highest(), "over": work.over()})
            case _:
                answer(UNKNOWN)

    def _store(self) -> dict[str, Any]:
        store, row = self._context.store, self._context.counters
        return {
            "worker": self._context.index,
            "kept": store.keeps,
            "last_position": store.last_position,
            "full": store.full,
            "failed": store.failed,
            **{name: row[name] for name in _STORED},
        }

    def _events(self, after: int) -> dict[str, Any]:
        found, is_all = self._context.store.events(after, _EVENTS_BYTES_MAX)
        rows = [(number, base64.b64encode(value).decode()) for number, value in found]
        return {"events": rows, "next": None if is_all else found[-1][0]}

    def _list(self, first: int) -> dict[str, Any]:
        number, at = divmod(first, _LIST)
        if first == 0:
            self._list_number = number = self._list_number + 1
            self._lists[number] = self._sessions.clients()
            if len(self._lists) > LISTS_MAX:
                del self._lists[next(iter(self._lists))]
        listed = self._lists.get(number)
        if listed is None:
            return {"error": f"this list is not kept any more: {LISTS_MAX} others were begun"}
        rows: list[dict[str, Any]] = []
        size = 0
        while at < len(listed) and len(rows) < _PAGE_ROWS_MAX:
            spend(STEP)
            session = self._sessions.get(listed[at])
            row = None if session is None else self._row(session)
            size += len(json.dumps(row))
            if rows and size > _PAGE_BYTES_MAX:
                break
            if row is not None:
                rows.append(row)
            at += 1
        over = at >= len(listed)
        if over:
            del self._lists[number]
        return {"sessions": rows, "next": None if over else number * _LIST + at}

    def _show(self, client_id: str, first: int) -> dict[str, Any]:
        session = self._sessions.get(client_id)
        if session is None:
            return {"session": None, "subscriptions": [], "next": None}
        messages, size = self._context.router.bounding.backlog(session)
        details: Details = session.details
        shown = self._row(session) | {
            "backlog_messages": messages,
            "backlog_bytes": size,
            "created": details.created or None,
            "will": _text(details.will.topic.decode()) if details.will is not None else None,
        }
        at = first
        replays = list(session.replays or ())
        filters = session.subscribed(at, _PAGE_ROWS_MAX)
        filters += replays[max(0, at - session.subscriptions) :]
        told: list[str] = []
        room = _PAGE_BYTES_MAX
        for each in filters[:_PAGE_ROWS_MAX]:
            text = _text(each.decode())
            room -= len(json.dumps(text)) + 2
            if told and room < 0:
                break
            told.append(text)
            at += 1
        last = session.subscriptions + len(replays)
        return {"session": shown, "subscriptions": told, "next": at if at < last else None}

    def _row(self, session: Session) -> dict[str, Any]:
        details: Details = session.details
        conn = session.connection
        return {
            "client": _text(session.client_id),
            "worker": self._context.index,
            "connected": conn is not None,
            "address": None if conn is None else conn.address,
            "username": None if details.username is None else _text(details.username),
            "version": session.version,
            "expiry_seconds": details.expiry_interval,
            "subscriptions": session.subscriptions + len(session.replays or ()),
            "replays": len(session.replays or ()),
            "inflight": session.unacknowledged,
            "queued": session.queued,
        }


def _text(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else text[:_TEXT_MAX] + "…"

"""What a worker is given at its fork, and the words it exchanges with the supervisor.

The control socket is SOCK_SEQPACKET, one JSON object per packet:
    worker -> supervisor   {"event": "ready"}
                           {"event": "failed", "reason": "..."}
                           {"event": "answer", "number": n, "answer": ...}           to an "ask" (shards.console)
    supervisor -> worker   {"event": "sibling_up", "worker": i, "incarnation": k}    it was forked, or was there first
                           {"event": "sibling_down", "worker": i, "incarnation": k}  it was reaped
                           {"event": "reload", "settings": {...}}
                           {"event": "ask", "number": n, "ask": ...}                 an operator's question
                           {"event": "stop", "seconds": s}                           be gone within s seconds
    supervisor -> control  {"event": "state", "broker": "starting"|"serving"|"stopping", "workers":
                            [{"state": "starting"|"ready"|"down", "pid": p, "restarts": n}, ...]}
                           {"event": "reload", ...}, {"event": "stop", ...}          as for workers
    seen by either side    {"event": "closed"}                                       the other one is gone
SIGTERM means the same as "stop" and may come as well, or twice: a fallback for a worker that does not read its
control socket.
"""

from __future__ import annotations

import contextlib
import json
import socket
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]

HEARTBEAT_SECONDS = 0.5
"""How often a worker should tick its heartbeat when nothing else happens."""

_MESSAGE_BYTES_MAX = 65536


class _Seated:
    """What everybody whom the supervisor forks can say to it, and hear."""

    __slots__ = ()
    control: socket.socket

    def tell(self, event: str, **fields: Any) -> None:
        """Send one message to the supervisor."""
        with contextlib.suppress(OSError):  # a supervisor that is gone has taken this process with it
            self.control.send(json.dumps({"event": event, **fields}).encode()[:_MESSAGE_BYTES_MAX])

    def ready(self) -> None:
        """Say that this process serves."""
        self.tell("ready")

    def failed(self, reason: str) -> None:
        """Say, in one line, why this process cannot serve; then return from `run` with a status other than 0."""
        self.tell("failed", reason=reason[:4096])

    def messages(self) -> list[Message]:
        """What the supervisor has said since the last call, oldest first; for when `control` is readable."""
        return messages(self.control)


@dataclass(slots=True)
class Seat(_Seated):
    """Everything a worker is given at its fork.

    Closing any of it is harmless to others: the supervisor keeps a copy of every descriptor but the control socket's.
    """

    index: int
    workers: int
    incarnation: int
    """Microseconds since the epoch at the fork; rises with every fork of this worker whatever the clock does."""
    incarnations: list[int]
    """Of all workers at the moment of the fork, 0 for one that does not run. Later changes come as sibling_up/_down."""
    listeners: list[socket.socket]
    """This worker's own, one per address, non-blocking, listening, TCP_NODELAY set (accepted sockets inherit it)."""
    row: memoryview
    """This worker's counter row: bytes in shared memory, 64-byte aligned, outliving restarts. Written by it alone."""
    rows: list[memoryview]
    """The rows of all workers."""
    heartbeat: memoryview
    """One u64 (format "Q") of `row`, to change at least every HEARTBEAT_SECONDS from the loop itself, also in a long
    start."""
    handoff_receive: socket.socket
    """Where connections for this worker arrive (`shards.handoff.receive`), non-blocking."""
    handoff_send: list[socket.socket]
    """Where connections for worker i are sent (`shards.handoff.send`), index i; its own is among them. Non-blocking."""
    control: socket.socket
    """Non-blocking; see `tell` and `messages`."""
    runtime_dir: str
    settings: Any
    began: float = 0.0
    """When the broker was started, by time.monotonic()."""


@dataclass(slots=True)
class ControlSeat(_Seated):
    """What the control process is given at its fork."""

    index: int
    workers: int
    listeners: list[socket.socket]
    """Of the admin interface: listening, non-blocking; what waits in their backlog outlives this process."""
    rows: list[memoryview]
    """The counter rows of all workers, to be read."""
    heartbeat: memoryview
    """One u64 (format "Q"), to change at least every HEARTBEAT_SECONDS from the loop itself."""
    supervisor_heartbeat: memoryview
    """One u64 that the supervisor changes every second at least."""
    control: socket.socket
    runtime_dir: str
    settings: Any
    began: float
    """When the broker was started, by time.monotonic()."""
    supervisor_pid: int


def messages(control: socket.socket) -> list[Message]:
    """What waits in a control socket, oldest first; {"event": "closed"} last when the other side is gone."""
    heard: list[Message] = []
    while True:
        try:
            packet = control.recv(_MESSAGE_BYTES_MAX)
        except BlockingIOError:
            return heard
        except ConnectionResetError:
            # The other side ended with something of ours unread. Said once, before what it had sent: go on reading.
            continue
        if not packet:
            heard.append({"event": "closed"})
            return heard
        try:
            heard.append(json.loads(packet))
        except ValueError:  # the other side is broken; this one goes on
            heard.append({"event": "unintelligible"})

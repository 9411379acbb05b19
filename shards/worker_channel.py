"""What a worker is given at its fork, and the words it exchanges with the supervisor.

The control socket is SOCK_SEQPACKET, one JSON object per packet; one that is longer than INLINE_BYTES_MAX lies in a
memfd that comes with a packet of one byte:
    worker -> supervisor   {"event": "ready"}
                           {"event": "failed", "reason": "..."}
                           {"event": "answer", "number": n, "answer": ...}           to an "ask" (shards.questions)
                           {"event": "reloaded", "number": n, "reason": null | "..."}       to a "reload"; why not
    supervisor -> worker   {"event": "sibling_up", "worker": i, "incarnation": k}    it was forked, or was there first
                           {"event": "sibling_down", "worker": i, "incarnation": k}  it was reaped
                           {"event": "reload", "number": n, "settings": {...}}
                           {"event": "ask", "number": n, "ask": ...}                 an operator's question
                           {"event": "stop", "seconds": s}                           be gone within s seconds
    supervisor -> control  {"event": "state", "broker": "starting"|"serving"|"stopping", "workers":
                            [{"state": "starting"|"ready"|"down", "pid": p, "restarts": n}, ...]}
                           {"event": "reload", ...}, {"event": "stop", ...}          as for workers
                           {"event": "answered", "number": n, "worker": i, "answer": ...}   or "error": "...", to its
    control -> supervisor  {"event": "ask", "number": n, "worker": i, "ask": ...}    a question for a worker
    seen by either side    {"event": "closed"}                                       the other one is gone
SIGTERM means the same as "stop" and may come as well, or twice: a fallback for a worker that does not read its
control socket.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
from dataclasses import dataclass
from typing import Any

from shards.clock import HostClock
from shards.listening import Listener

Message = dict[str, Any]

HEARTBEAT_SECONDS = 0.5
"""How often a worker should tick its heartbeat when nothing else happens."""

INLINE_BYTES_MAX = 60_000
_MESSAGE_BYTES_MAX = 65536
_IN_MEMFD = b"@"


class _Channel:
    """What everybody whom the supervisor forks can say to it, and hear."""

    __slots__ = ()
    control: socket.socket

    def tell(self, event: str, **fields: Any) -> None:
        """Send one message to the supervisor."""
        with contextlib.suppress(OSError):  # a supervisor that is gone has taken this process with it
            send_message(self.control, {"event": event, **fields})

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
class WorkerChannel(_Channel):
    """Everything a worker is given at its fork.

    Closing any of it is harmless to others: the supervisor keeps a copy of every descriptor but the control socket's.
    """

    index: int
    workers: int
    incarnation: int
    """Microseconds since the epoch at the fork; rises with every fork of this worker whatever the clock does."""
    incarnations: list[int]
    """Of all workers at the moment of the fork, 0 for one that does not run. Later changes come as sibling_up/_down."""
    listeners: list[Listener]
    """This worker's part of each; their order is their number. TCP_NODELAY is set (accepted sockets inherit it)."""
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
    clock: HostClock
    """The same for all workers, also for those that are forked later."""
    began: float = 0.0
    """When the broker was started, by time.monotonic()."""


@dataclass(slots=True)
class ControlChannel(_Channel):
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


def send_message(control: socket.socket, message: Message) -> None:
    """One message, of any length. Raises OSError."""
    data = json.dumps(message).encode()
    if len(data) <= INLINE_BYTES_MAX:
        control.send(data)
        return
    memfd = os.memfd_create("mqttd-message", os.MFD_CLOEXEC)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(memfd, left) :]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memfd]))]
        control.sendmsg([_IN_MEMFD], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    finally:
        os.close(memfd)


def messages(control: socket.socket) -> list[Message]:
    """What waits in a control socket, oldest first; {"event": "closed"} last when the other side is gone."""
    heard: list[Message] = []
    while True:
        try:
            packet = _receive(control)
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
        except (ValueError, RecursionError):  # the other side is broken; this one goes on
            heard.append({"event": "unintelligible"})


def _receive(control: socket.socket) -> bytes:
    packet, rights, _, _ = control.recvmsg(
        _MESSAGE_BYTES_MAX, socket.CMSG_SPACE(array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for _, _, descriptor in rights:
        (memfd,) = array.array("i", descriptor)
        with os.fdopen(memfd, "rb") as file:
            file.seek(0)
            packet = file.read()
    return packet

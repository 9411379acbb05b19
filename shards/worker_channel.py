"""The channel of a worker: the resources that it gets at its fork, and its messages from and to the supervisor.

The control socket is SOCK_SEQPACKET, one JSON object per packet; one longer than INLINE_BYTES_MAX is in a memfd that is
sent with a packet of one byte:
    worker -> supervisor   {"event": "ready"}
                           {"event": "failed", "reason": "..."}
                           {"event": "answer", "number": n, "answer": ...}      to an "ask" (shards.worker_requests)
                           {"event": "reloaded", "number": n, "reason": null | "..."}       to a "reload"; an error
                           {"event": "linked", "linked": true | false, "hosts": [...]}    to "hosts", and when it
                            changes: whether with all hosts, and with which ones
    supervisor -> worker   {"event": "hosts", ...}   of the control process, now or earlier
                           {"event": "sibling_up", "worker": i, "incarnation": k}    it was forked, now or earlier
                           {"event": "sibling_down", "worker": i, "incarnation": k}  it was reaped
                           {"event": "reload", "number": n, "settings": {...}}
                           {"event": "ask", "number": n, "ask": ...}                 an operator's question
                           {"event": "stop", "seconds": s}                           end within s seconds
    supervisor -> control  {"event": "state", "broker": "starting"|"serving"|"stopping", "workers":
                            [{"state": "starting"|"ready"|"down", "pid": p, "restarts": n}, ...]}
                           {"event": "reload", ...}, {"event": "stop", ...}          as for workers
                           {"event": "answered", "number": n, "worker": i, "answer": ...}   or "error": "...", to its
    control -> supervisor  {"event": "ask", "number": n, "worker": i, "ask": ...}    a question for a worker
                           {"event": "hosts", ...}     the hosts of the cluster, for all workers (broker.cluster.host)
    supervisor -> control  {"event": "linked", "worker": i, ...}    what a worker says; of one that has gone: with none
    seen by either side    {"event": "closed"}                                       the other side is gone
SIGTERM means the same as "stop" and may come as well, or twice: a fallback for a worker that does not read its
control socket.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shards.clock import HostClock
from shards.listening import Listener

Message = dict[str, Any]

HEARTBEAT_SECONDS = 2.0
"""Longest interval between two changes of a process's heartbeat."""

INLINE_BYTES_MAX = 60_000
_MESSAGE_BYTES_MAX = 65536
_IN_MEMFD = b"@"


class _Channel:
    """The control socket of a forked process: messages to and from the supervisor."""

    __slots__ = ()
    control: socket.socket

    def tell(self, event: str, **fields: Any) -> None:
        """Send one message to the supervisor."""
        with contextlib.suppress(OSError):  # a supervisor that is gone takes this process with it
            send_message(self.control, {"event": event, **fields})

    def ready(self) -> None:
        """Report that this process serves."""
        self.tell("ready")

    def failed(self, reason: str) -> None:
        """Report, in one line, why this process cannot serve; then return from `run` with a status other than 0."""
        self.tell("failed", reason=reason[:4096])

    def messages(self) -> list[Message]:
        """Return the supervisor's messages since the last call, oldest first; for when `control` is readable."""
        return messages(self.control)


@dataclass(slots=True)
class WorkerChannel(_Channel):
    """Everything that a worker gets at its fork.

    Closing any of it is harmless to others: the supervisor keeps a copy of every descriptor but the control socket's.
    """

    index: int
    workers: int
    incarnation: int
    """Microseconds since the epoch at the fork; rises with every fork of this worker, whatever the clock does."""
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
    """Receives connections for this worker (`pyx.io.handing_over`), non-blocking."""
    handoff_send: list[socket.socket]
    """Sends connections to worker i (likewise), index i; its own is included. Non-blocking."""
    control: socket.socket
    """Non-blocking; see `tell` and `messages`."""
    runtime_dir: str
    settings: Any
    clock: HostClock
    """The broker's time, the same for all workers, also for those that are forked later."""
    identity: Any = None
    """Who this host is in its cluster, as the supervisor was given it; None: it is alone."""
    owner_socket: socket.socket | None = None
    """Non-blocking, to the control process of a host in a cluster: who owns which client id."""
    began: float = 0.0
    """Start time of the broker, by time.monotonic()."""


@dataclass(slots=True)
class ControlChannel(_Channel):
    """Everything that the control process gets at its fork."""

    index: int
    workers: int
    listeners: list[socket.socket]
    """Of the admin interface: listening, non-blocking; connections in their backlog outlive this process."""
    rows: list[memoryview]
    """The counter rows of all workers, for reading."""
    heartbeat: memoryview
    """One u64 (format "Q"), to change at least every HEARTBEAT_SECONDS from the loop itself."""
    supervisor_heartbeat: memoryview
    """One u64 that the supervisor changes at least every HEARTBEAT_SECONDS."""
    control: socket.socket
    runtime_dir: str
    settings: Any
    began: float
    """Start time of the broker, by time.monotonic()."""
    supervisor_pid: int
    identity: Any = None
    """As for workers."""
    owner_sockets: Sequence[socket.socket] = ()
    """The other ends of the workers' `owner_socket`."""
    hosts: Message = field(default_factory=dict)
    """What the former control process has said last of the cluster; empty: nothing yet."""


def send_message(control: socket.socket, message: Message) -> None:
    """Send one message, of any length. Raises OSError."""
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
    """Return the messages in a control socket, oldest first; {"event": "closed"} last when the other side is gone."""
    heard: list[Message] = []
    while True:
        try:
            packet = _receive(control)
        except BlockingIOError:
            return heard
        except ConnectionResetError:
            # The other side ended without reading all of ours. Reported once, before what it had sent: go on reading.
            continue
        if not packet:
            heard.append({"event": "closed"})
            return heard
        try:
            heard.append(json.loads(packet))
        except (ValueError, RecursionError):  # the other side is broken; this one continues
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

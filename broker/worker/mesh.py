"""The mesh of one worker on its reactor: watches its sockets, drains and routes arriving batches, and times sending.

Arriving batches are treated like packets of clients: drained within a budget, routed, committed, acknowledged.

Messages for siblings go one way: the router calls `forward_now` at the end of a tick that has some, and they leave when
`zmq_mesh.coalescing` says so, at once or by a timerfd (the loop's own timers are too coarse).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import time
from functools import partial
from typing import TYPE_CHECKING

from broker.persistence.handoff_log import kept_links
from pyx.core import counters as count
from pyx.core.work import callback
from zmq_mesh.coalescing import Coalescing
from zmq_mesh.contract import LinkLimits
from zmq_mesh.sockets import PAUSE_SHARE, Mesh

if TYPE_CHECKING:
    import asyncio

    from broker.worker.core import Node
    from pyx.core.peer import Peer
    from pyx.io.reactor import Reactor
    from shards.worker_channel import WorkerChannel

__all__ = ["WorkerMesh"]

_SPEC = struct.Struct("qqqq")
_libc = ctypes.CDLL(None, use_errno=True)
_TFD_NONBLOCK = 0o4000
_TFD_CLOEXEC = 0o2000000


class WorkerMesh:
    """The mesh of a worker that has siblings, from its start on."""

    def __init__(self, channel: WorkerChannel, node: Node, reactor: Reactor, loop: asyncio.AbstractEventLoop) -> None:
        context, peering, set_aside = node.context, node.peering, node.set_aside
        self._context, self._peering, self._peers = context, peering, context.router.peers
        self._reactor = reactor
        self._loop = loop
        self.acknowledges = True
        """Set once the clients are gone: a sibling must not tell its publishers that messages have been taken here."""
        self._is_open = True
        self._drain_soon = False
        self._coalescing = Coalescing(0.0)
        self.reload()
        self._timerfd = _libc.timerfd_create(1, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self._timerfd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        reactor.watch(self._timerfd, self._on_timerfd)
        kept = kept_links(context, set_aside, peering)
        set_aside.tell()
        limits = context.settings.limits
        assert node.interest is not None
        self._mesh = Mesh(
            context.own,
            node.siblings,
            channel.runtime_dir,
            channel.incarnation,
            node.interest,
            peering,
            LinkLimits(
                peer_outbox_bytes_max=limits.peer_outbox_bytes_max,
                handoff_log_bytes_max=limits.handoff_log_bytes_max,
                link_silence_seconds_max=limits.link_silence_seconds_max,
                peer_stall_seconds_max=limits.peer_stall_seconds_max,
            ),
            time.monotonic(),
            handoffs=kept.handoffs,
            received=kept.received,
            refusals=kept.refusals,
            drain_bytes_max=limits.tick_peer_bytes_max,
        )
        self.is_awake = self._mesh.awake
        """Whether clients may be served at this time: not after a pause, until siblings have answered (`receive`)."""
        node.links = self._mesh.links
        reactor.pause_ns = int(limits.link_silence_seconds_max * PAUSE_SHARE * 1e9)
        self._mesh.is_busy = context.router.state.is_round_over
        self._mesh.is_full = peering.is_full
        self._peers.forward_now = self._forward_soon
        node.flush_mesh = self._flush
        for fd in self._mesh.filenos():
            reactor.watch(fd, partial(self._readable, fd))

    def reload(self) -> None:
        """Apply other settings."""
        self._coalescing.seconds = self._context.settings.limits.mesh_coalesce_microseconds_max * 1e-6

    @property
    def ready(self) -> bool:
        """Whether every sibling was heard."""
        return all(link.ready for link in self._mesh.links.values())

    @property
    def frames_malformed(self) -> int:
        """Number of malformed frames from siblings, since the start."""
        return self._mesh.frames_malformed

    def receive(self) -> None:
        """Hear siblings out of turn."""
        self._readable(self._mesh.fileno)

    def tick(self, now: float) -> None:
        """Advance the time."""
        self._mesh.tick(now)
        self._tell_router()

    def down(self, peer: Peer, incarnation: int) -> None:
        """Note that the supervisor has reaped that incarnation of a sibling."""
        self._mesh.down(peer, incarnation)
        self._reactor.finish()

    def close(self) -> None:
        """Detach from the loop, which still runs for a moment."""
        for fd in (self._timerfd, *self._mesh.filenos()):
            self._reactor.unwatch(fd)
        self._mesh.close()
        self._is_open = False

    # ------------------------------------------------------------ receiving

    @callback("mesh")
    def _readable(self, fd: int) -> None:
        now = time.monotonic()
        if self._mesh.readable(fd, now) and not self._drain_soon:
            self._drain_soon = True
            self._context.counters.add(count.TICK_PEER_CARRIED)
            self._reactor.leave = True
            self._loop.call_soon(self._drain_again)
        self._tell_router()
        if self.acknowledges and self._peering.commit():
            self._peers.links_due = True
        self._reactor.finish()

    def _drain_again(self) -> None:
        self._drain_soon = False
        if self._is_open:
            self._readable(self._mesh.fileno)

    def _tell_router(self) -> None:
        for peer, link in self._mesh.links.items():
            self._peers.peer_full(peer, link.full)

    # ------------------------------------------------------------ sending

    def _forward_soon(self) -> None:
        """Send the tick's entries for siblings, now or together with later ones.

        Under load the ticks themselves come often enough, and each new deadline replaces the timer's last: it fires
        only in a lull.
        """
        seconds = self._coalescing.wait(time.monotonic())
        if seconds == 0:
            self._peering.forward()
        elif seconds is not None:
            _libc.timerfd_settime(self._timerfd, 0, _SPEC.pack(0, 0, 0, max(1000, int(seconds * 1e9))), None)

    @callback("forward")
    def _on_timerfd(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._timerfd, 8)
        if self._coalescing.end_wait():
            self._peering.forward()

    def _flush(self) -> None:
        now = time.monotonic()
        self._coalescing.left(now)
        self._mesh.flush(now)

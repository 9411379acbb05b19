"""The mesh of one worker on its reactor. Batches of siblings are treated like packets of clients: read in the rounds of
the reactor within a budget, routed, committed, acknowledged. What a round has for siblings leaves at its end
(`pyx.delivery.batches`); time and the rare events are here.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.persistence.handoff_log import kept_links
from pyx.core import counters as count
from shards.heartbeats import Heartbeats
from shards.worker_channel import HEARTBEAT_SECONDS
from zmq_mesh.contract import LinkLimits
from zmq_mesh.mesh import PAUSE_SHARE, Mesh
from zmq_mesh.unix_sockets import UnixSockets

if TYPE_CHECKING:
    from broker.worker.core import Node
    from broker.worker.other_hosts import OtherHosts
    from pyx.core.peer import Peer
    from pyx.io.reactor import Reactor
    from shards.worker_channel import WorkerChannel

__all__ = ["WorkerMesh"]

_HEARTBEAT_SECONDS_MAX = 1.5 * HEARTBEAT_SECONDS


class WorkerMesh:
    """The mesh of a worker that has siblings, or other hosts, from its start on."""

    def __init__(self, channel: WorkerChannel, node: Node, reactor: Reactor) -> None:
        context, peering, set_aside = node.context, node.peering, node.set_aside
        self._batches = peering.batches
        self._reactor = reactor
        self._state = context.router.state
        self._siblings = node.siblings
        rows = [count.Row(channel.rows[worker]) for worker in range(channel.workers) if worker != channel.index]
        self._heartbeats = Heartbeats([partial(row.get, count.HEARTBEAT) for row in rows], time.monotonic())
        kept = kept_links(context, set_aside, peering)
        set_aside.tell()
        limits = context.settings.limits
        assert node.interest is not None
        self._mesh = Mesh(
            context.own,
            node.siblings,
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
            UnixSockets(context.own, channel.runtime_dir, reactor),
            handoffs=kept.handoffs,
            received=kept.received,
            refusals=kept.refusals,
            drain_bytes_max=limits.tick_peer_bytes_max,
            batches=peering.batches,
        )
        node.links = self._mesh.together.by_peer
        self._batches.together = self._mesh.together
        self._mesh.together.defect = peering.malformed
        reactor.pause_ns = int(limits.link_silence_seconds_max * PAUSE_SHARE * 1e9)
        reactor.when_paused = self.is_awake
        reactor.part = self._batches
        self._others: OtherHosts | None = None
        if context.settings.cluster.is_on:
            from broker.worker.other_hosts import OtherHosts  # only there: it loads ZeroMQ

            self._others = OtherHosts(channel, node, self._mesh, reactor)

    @property
    def ready(self) -> bool:
        """Whether every sibling was heard, and hosts that can be reached."""
        return self._mesh.ready and (self._others is None or self._others.has_begun)

    @property
    def frames_malformed(self) -> int:
        """Number of malformed frames from siblings, since the start."""
        return self._mesh.frames_malformed

    @property
    def is_idle(self) -> bool:
        """Whether `tick` may be called rarely: see `zmq_mesh.mesh`."""
        return self._mesh.is_idle and not (self._others is not None and self._others.drains)

    def ask_late_siblings(self, now: float) -> bool:
        """Look at the heartbeats of siblings, because an idle link does not show that one is stopped: the next `tick`
        asks those that are late for a sign of life. Return whether there are any.
        """
        late = [
            peer
            for peer, age in zip(self._siblings, self._heartbeats.ages(now), strict=True)
            if age > _HEARTBEAT_SECONDS_MAX
        ]
        for peer in late:
            self._mesh.links[peer].is_asked = True
        return bool(late)

    def stop_acknowledging(self) -> None:
        """Acknowledge nothing more: the clients are gone, and siblings must not tell their publishers that messages
        have been taken here.
        """
        self._batches.acknowledges = False

    def is_awake(self) -> bool:
        """Whether clients may be served now: not after a pause, until siblings have answered; else they are heard."""
        now = time.monotonic()
        awake = self._mesh.awake(now)
        if not awake:
            self._mesh.receive(now)
        self._after_hearing()
        if not awake:
            self._reactor.finish()
        return awake

    def _after_hearing(self) -> None:
        self._reactor.trusted_until_ns = int(self._mesh.awake_until * 1e9)
        if self._mesh.heard:
            self._mesh.heard = False
            self._batches.heard()
            self._reactor.finish()

    def tick(self, now: float) -> None:
        """Advance the time."""
        self.ask_late_siblings(now)
        self._mesh.tick(now)
        if self._others is not None:
            self._others.tick(now)
        self._batches.tell_full()
        self._after_hearing()

    def hosts(self, message: dict[str, Any]) -> None:
        """Take the hosts of the cluster, as the control process has them (`broker.cluster.host`)."""
        if self._others is not None:
            self._others.hosts_changed(message, time.monotonic())
            self._state.needs_timer = True
            self._reactor.finish()

    def down(self, peer: Peer, incarnation: int) -> None:
        """Note that the supervisor has reaped that incarnation of a sibling."""
        self._mesh.down(peer, incarnation)
        self._state.needs_timer = True  # its successor is greeted
        self._reactor.finish()

    def close(self) -> None:
        """Detach from the reactor, which still runs for a moment."""
        self._reactor.part = self._reactor.when_paused = None
        self._mesh.close()
        if self._others is not None:
            self._others.close()

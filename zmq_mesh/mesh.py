"""All links of one worker over a transport: their making, their time, and what follows a pause of the worker itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from pyx.core.peer import Peer
from pyx.mesh.link import Link
from pyx.mesh.links import Links
from pyx.mesh.receiver import BatchReceiver
from zmq_mesh.barrier import Barrier, HostsFirst
from zmq_mesh.contract import HandoffLog, LinkEvents, LinkLimits, Transport
from zmq_mesh.interest import Publisher

__all__ = ["GREETINGS_MAX", "PAUSE_SHARE", "Mesh"]

# Of link_silence_seconds_max: a worker that has not looked at its siblings for so long looks, or asks, whether they
# have given up waiting for it, and reads clients for as long without looking. Two such times and the interval of
# heartbeats are less than it.
PAUSE_SHARE: Final = 1 / 3
# A worker that is stopped again before the answers have come asks again. One whose every tick is a pause gives up.
GREETINGS_MAX: Final = 5


class Mesh:
    """All links of one worker inside its host. Made after the fork; used by one thread.

    peers: all configured siblings. incarnation: greater than every earlier one of this worker. The node

    - begins every tick with `awake(now)` and reads clients only while it returns True,
    - ends every tick with `flush(now)`,
    - calls `tick(now)` at least every link_silence_seconds_max / 10, or more rarely while the mesh `is_idle`.
    """

    _confirming = False  # greeted after a pause, and some link has not confirmed yet
    _confirming_since = 0.0
    _greetings = 0  # since then
    when_paused: Callable[[float], object] = staticmethod(lambda _now: None)
    """Called when `tick` was not called for so long that peers may have given up waiting for this worker."""
    heard = False
    """Whether `receive` has heard anything; the node resets it."""

    def __init__(
        self,
        own: Peer,
        peers: Iterable[Peer],
        incarnation: int,
        publisher: Publisher,
        events: LinkEvents,
        limits: LinkLimits,
        now: float,
        transport: Transport,
        *,
        handoffs: dict[Peer, HandoffLog] | None = None,
        received: dict[Peer, tuple[int, int]] | None = None,
        refusals: dict[Peer, list[tuple[int, list[tuple[int, int]]]]] | None = None,
        drain_bytes_max: int = 1024 * 1024,
        batches: BatchReceiver | None = None,
    ) -> None:
        self.own = own
        self.limits = limits
        self.transport = transport
        self.together = Links(publisher, drain_bytes_max, batches)
        self.links: dict[Peer, Link] = {}
        """The links to siblings."""
        self._pause_seconds = limits.link_silence_seconds_max * PAUSE_SHARE
        self._publisher = publisher
        self._barrier = Barrier(self.links, limits.link_silence_seconds_max)
        self.hosts_first = HostsFirst(self._barrier, limits.link_silence_seconds_max)
        self._ticked_at = now
        transport.listen(self.together)
        self.together.go_on = transport.go_on
        for peer in peers:
            outlet = transport.connect(peer, self.when_writable(peer))
            link = Link(
                own,
                peer,
                incarnation,
                publisher,
                events,
                outlet.send,
                limits,
                now,
                reconnect=outlet.reconnect,
                handoff=(handoffs or {}).get(peer),
                received=(received or {}).get(peer, (0, 0)),
                refusals=(refusals or {}).get(peer, ()),
                barrier=self.hosts_first,
                rests=transport.is_immediate,
                batches=batches,
            )
            self.links[peer] = link
            self.together.add(link, self._barrier, outlet.flush)

    def when_writable(self, peer: Peer) -> Callable[[], None]:
        """Return what the transport of a link calls."""

        def writable() -> None:
            self.together.by_peer[peer].writable(time.monotonic())
            self.together.send()

        return writable

    @property
    def frames_malformed(self) -> int:
        """Number of malformed messages, and of connections that were closed for what their peer had sent."""
        return self.together.malformed + self.transport.malformed

    @property
    def is_idle(self) -> bool:
        """Whether no sibling waits for this worker, and this worker for none: nothing has to happen before one of them
        has something to say.
        """
        return self.together.look_idle(time.monotonic()) and not self._confirming and not self._barrier.waiting

    def receive(self, now: float) -> bool:
        """Hear siblings out of turn. Return whether surely all that they have sent since the last time without a pause
        was read, also in rounds, no greeting was among it, and all links are ready.
        """
        links = self.together
        links.begin(now)
        all_was_read = self.transport.receive()
        self.heard = links.end_reading() or self.heard
        return all_was_read and not links.stopped and links.greetings == links.greetings_trusted and self.ready

    def _trust(self) -> None:
        self.together.trust()
        self.together.trusted_until_ns = int(self.awake_until * 1e9)

    def flush(self, now: float) -> None:
        """End a tick, when the links have all of it: seal its interest, then send what each link has."""
        self.together.flush(now)

    def tick(self, now: float) -> None:
        """Check heartbeats, silence and stalls."""
        self.awake(now)
        if self.transport.is_immediate:
            self.receive(now)  # so that what it says of a sibling's silence is true, however rarely there is a round
        self.transport.tick()
        self.together.tick(now)
        self._ticked_at = now
        self.hosts_first.check(now)
        self._barrier.check(now)
        self.together.send()

    def awake(self, now: float) -> bool:
        """Return whether clients may be read, for PAUSE_SHARE of link_silence_seconds_max from `now` on. Call it at the
        beginning of every tick, before anything else of the mesh.

        If `tick` was not called for longer than that (one pause, or several with little between them), siblings may
        have given up waiting for this worker. With a transport that is immediate it first reads what they have sent: a
        sibling that gives up waiting has by then sent everything that this worker should know, and greets after it. If
        surely all was read, and no greeting was among it, it goes on.

        Otherwise it greets each, and reads no client before all that are not silent have answered and their interest
        was taken. Where that is never so because each tick is as long, it goes on after link_silence_seconds_max and
        GREETINGS_MAX greetings, as with siblings that are silent.
        """
        if now - self._ticked_at <= self._pause_seconds and not self._confirming:
            self._trust()
            return True
        if now - self._ticked_at > self._pause_seconds:
            self.when_paused(now)
        if not self._confirming and self.transport.is_immediate and self.receive(now):
            self._ticked_at = now
            for link in self.links.values():
                link.heard_at = now  # it was not silent: this worker did not listen
            self._trust()
            return True
        if now - self._ticked_at > self._pause_seconds:
            self._ticked_at = now  # the greetings are as good as heartbeats
            if not self._confirming:
                self._confirming_since, self._greetings = now, 0
            self._confirming = True
            self.together.trusted_until_ns = 0
            self._greetings += 1
            for link in self.links.values():
                link.greet(now)
            self.together.send()
        silence = self.limits.link_silence_seconds_max
        if now - self._confirming_since > silence and self._greetings >= GREETINGS_MAX:
            for link in self.links.values():
                link.confirm_no_longer()
        self._confirming = any(link.confirming for link in self.links.values())
        if not self._confirming:
            self._trust()
        return not self._confirming

    @property
    def awake_until(self) -> float:
        """The time until which `awake` returns True, if nothing happens before; 0.0: it returns False now."""
        return 0.0 if self._confirming else self._ticked_at + self._pause_seconds

    @property
    def ready(self) -> bool:
        """Whether every sibling has been heard since our start and is neither away nor gone now."""
        return all(link.ready for link in self.links.values())

    def down(self, peer: Peer, incarnation: int) -> None:
        """Note that the supervisor has reaped that incarnation of a sibling."""
        self.links[peer].down(incarnation)

    def close(self) -> None:
        """Close the transport."""
        self.transport.close()

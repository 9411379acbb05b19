"""ZeroMQ transport of one worker's links: one bound PULL for all incoming messages, one PUSH to each sibling.

PUSH and PULL, not DEALER: a message names its sender itself (no identity frame), the two directions have separate
descriptors (reading one never swallows the edge of the other), and PULL takes one message of each sibling in turn,
which makes the tick fair. PUSH with IMMEDIATE raises Again while the sibling is down or its high-water mark is reached;
the link keeps the refused message. Messages lost with a broken connection are the links' business (frame numbers).

ZeroMQ's descriptors are edge-triggered: readable means "look", and looking until Again (or at EVENTS) arms them again.
So `receive` ends with Again or EVENTS, or returns True: then it must be called again without waiting for an edge.
Contexts are made here, after the fork: an inherited one accepts messages and loses them.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

import zmq
from pyx.mesh.link import Link

from pyx.core.peer import Peer
from zmq_mesh.barrier import Barrier
from zmq_mesh.contract import HandoffLog, LinkEvents, LinkLimits, Payload
from zmq_mesh.envelope import MORE, PREFIX_BYTES, Buffer, EnvelopeError, unpack_prefix
from zmq_mesh.interest import Publisher

# Of link_silence_seconds_max: a worker that has been silent for so long asks whether its siblings have given up waiting
# for it, and reads clients for as long without looking. Two such times and the interval of heartbeats are less than it.
PAUSE_SHARE: Final = 1 / 3
# A worker that is stopped again before the answers have come asks again. One whose every tick is a pause gives up.
GREETINGS_MAX: Final = 5
# Messages (batches) in each of the two pipes; bytes are bounded by the links' outboxes.
HIGH_WATER: Final = 64
# From this size on ZeroMQ gets a reference instead of a copy. The call alone is cheaper from 8 KB on (2-4 us), but
# releasing a reference wakes pyzmq's collector thread: in CPU of both processes a copy wins up to about 64 KB (see
# INLINE_BYTES_MAX).
REFERENCE_BYTES_MIN: Final = 64 * 1024
# linux/un.h: sun_path with its terminating zero.
SOCKET_PATH_BYTES_MAX: Final = 107

_FLAGS_AT: Final = PREFIX_BYTES + 1
_NOBLOCK: Final = zmq.NOBLOCK
_MORE_NOBLOCK: Final = zmq.NOBLOCK | zmq.SNDMORE


def endpoint(runtime_dir: str, worker: int) -> str:
    """Return the endpoint where that worker listens. ValueError when the path is too long for a unix socket."""
    path = os.path.join(runtime_dir, f"mesh.{worker}")
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise ValueError(f"{path}: longer than {SOCKET_PATH_BYTES_MAX} bytes, choose a shorter --runtime-dir")
    return f"ipc://{path}"


class _Outlet:
    """The PUSH socket to one sibling."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str) -> None:
        self._address = address
        socket = context.socket(zmq.PUSH)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        socket.setsockopt(zmq.SNDHWM, HIGH_WATER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.copy_threshold = REFERENCE_BYTES_MIN
        socket.connect(address)
        self.socket = socket
        self.refused = 0  # times of Again: nothing was sent

    def send(self, frames: list[Buffer]) -> bool:
        """Send all frames of one message, or none."""
        socket = self.socket
        last = len(frames) - 1
        try:
            if not last:
                socket.send(frames[0], _NOBLOCK)
                return True
            # The first frame chooses the pipe. When that breaks in between, ZeroMQ either drops the rest with it
            # (detected by the frame numbers) or rolls back and raises Again.
            socket.send(frames[0], _MORE_NOBLOCK)
            for i in range(1, last):
                socket.send(frames[i], _MORE_NOBLOCK, False)
            socket.send(frames[last], _NOBLOCK, False)
        except zmq.Again:
            self.refused += 1
            return False
        return True

    def reconnect(self) -> None:
        """Reconnect at once; messages in the old pipe are lost (they were for a dead incarnation)."""
        self.socket.disconnect(self._address)
        self.socket.connect(self._address)


class Mesh:
    """All links of one worker inside its host. Made after the fork; used by one thread.

    peers: indexes of all configured siblings. runtime_dir: holds the sockets `mesh.<i>`. incarnation: greater than
    every earlier one of this worker. The node

    - adds `filenos()` to its loop (readable -> `readable(fd, now)`),
    - begins every tick with `awake(now)` and reads clients only while it returns True,
    - ends every tick with `flush(now)`, and calls `tick(now)` at least every link_silence_seconds_max / 10.
    """

    _confirming = False  # greeted after a pause, and some link has not confirmed yet
    _confirming_since = 0.0
    _greetings = 0  # since then

    def __init__(
        self,
        own: Peer,
        peers: Iterable[Peer],
        runtime_dir: str,
        incarnation: int,
        publisher: Publisher,
        events: LinkEvents,
        limits: LinkLimits,
        now: float,
        *,
        handoffs: dict[Peer, HandoffLog] | None = None,
        received: dict[Peer, tuple[int, int]] | None = None,
        refusals: dict[Peer, list[tuple[int, list[tuple[int, int]]]]] | None = None,
        drain_bytes_max: int = 1024 * 1024,
    ) -> None:
        self.drain_bytes_max = drain_bytes_max
        self.own = own
        self.limits = limits
        self._pause_seconds = limits.link_silence_seconds_max * PAUSE_SHARE
        self._publisher = publisher
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._inlet = self._context.socket(zmq.PULL)
        self._inlet.setsockopt(zmq.RCVHWM, HIGH_WATER)
        self._inlet.setsockopt(zmq.LINGER, 0)
        self._inlet.bind(endpoint(runtime_dir, own))  # takes the path over from a dead predecessor
        self.fileno = cast(int, self._inlet.getsockopt(zmq.FD))
        self.links: dict[Peer, Link] = {}
        self._barrier = Barrier(self.links, limits.link_silence_seconds_max)
        self._outlets: dict[int, _Outlet] = {}
        self._by_fileno: dict[int, Peer] = {}
        self._routes: dict[bytes, Link] = {}  # by the prefix of their messages
        for peer in peers:
            outlet = _Outlet(self._context, endpoint(runtime_dir, peer))
            self._outlets[peer] = outlet
            self._by_fileno[cast(int, outlet.socket.getsockopt(zmq.FD))] = peer
            self.links[peer] = Link(
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
                barrier=self._barrier,
            )
        self._ticked_at = now
        self.frames_malformed = 0
        self.is_busy: Callable[[], bool] = lambda: False
        """Whether processing has taken so long that further messages wait for the next tick."""
        self.is_full: Callable[[], bool] = lambda: False
        """Whether so much received work is still unfinished that nothing more should be received."""

    def filenos(self) -> list[int]:
        """Return the descriptors to watch for reading (never for writing): the bound socket's, then one per sibling."""
        return [self.fileno, *self._by_fileno]

    def readable(self, fileno: int, now: float) -> bool:
        """Handle a readable descriptor. Return True if `receive` must be called in the next tick, without an edge."""
        if fileno == self.fileno:
            may_be_more = self.receive(now)
            if self._barrier.waiting:
                self._barrier.check(now)
            return may_be_more
        self.look_again(now, self._by_fileno[fileno])
        return False

    def receive(self, now: float) -> bool:
        """Process incoming messages, until drain_bytes_max of any one sibling, or `is_busy`. Return True if there may
        be more: call again next tick.

        PULL takes one message of each sibling in turn and cannot skip one: so a sibling with more than its share ends
        the round for all, and the next round continues after it.
        """
        if self.is_full():
            for each in self.links.values():
                each.heard_at = now  # a sibling that is not read is not silent
            return True
        socket = self._inlet
        recv: Callable[[int], bytes] = socket.recv  # small frames: a copy is cheaper than a zmq.Frame
        routes = self._routes
        drained: dict[Link | None, int] = {}  # bytes by sender; None: unknown
        looked = False
        try:
            while True:
                first = recv(_NOBLOCK)
                frames: list[Payload]
                if len(first) > _FLAGS_AT and first[_FLAGS_AT] & MORE:
                    frames = self._rest(first)
                    size = sum(len(frame) for frame in frames)
                else:
                    frames = [first]
                    size = len(first)
                link = routes.get(first[:PREFIX_BYTES])
                try:
                    if link is None:
                        link = self._route(first)
                    link.receive(frames, now)
                except EnvelopeError:
                    self.frames_malformed += 1
                drained[link] = size = drained.get(link, 0) + size
                if size >= self.drain_bytes_max or self.is_busy() or self.is_full():
                    return True
                if not looked:
                    # One message per wake-up is the usual case without load: EVENTS costs half of an Again.
                    looked = True
                    if not cast(int, socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                        return False
        except zmq.Again:
            return False

    def look_again(self, now: float, peer: Peer) -> None:
        """Send again to a sibling whose socket's descriptor was readable: it may take messages again."""
        self._outlets[peer].socket.getsockopt(zmq.EVENTS)  # arms the descriptor
        self.links[peer].writable(now)

    def flush(self, now: float) -> None:
        """End a tick, when the links have all of it: seal its interest, then send what each link has. Sibling sockets
        that refuse are tried again when their descriptor is readable.
        """
        self._publisher.seal()
        if self._barrier.waiting:
            self._barrier.submitted(now)
        for link in self.links.values():
            link.flush(now)

    def tick(self, now: float) -> None:
        """Check heartbeats, silence and stalls."""
        self.awake(now)
        self._publisher.seal()
        for link in self.links.values():
            link.tick(now)
        self._ticked_at = now
        self._barrier.check(now)

    def awake(self, now: float) -> bool:
        """Return whether clients may be read, for PAUSE_SHARE of link_silence_seconds_max from `now` on. Call it at the
        beginning of every tick, before anything else of the mesh.

        If no `tick` has sent its heartbeats for longer than that (one pause, or several with little between them),
        siblings may have given up waiting for this worker: it greets each, and reads no client before all that are not
        silent have answered and their interest was taken. Where that is never so because each tick is as long, it goes
        on after link_silence_seconds_max and GREETINGS_MAX greetings, as with siblings that are silent.
        """
        if now - self._ticked_at <= self._pause_seconds and not self._confirming:
            return True
        if now - self._ticked_at > self._pause_seconds:
            self._ticked_at = now  # the greetings are as good as heartbeats
            if not self._confirming:
                self._confirming_since, self._greetings = now, 0
            self._confirming = True
            self._greetings += 1
            for link in self.links.values():
                link.greet(now)
        silence = self.limits.link_silence_seconds_max
        if now - self._confirming_since > silence and self._greetings >= GREETINGS_MAX:
            for link in self.links.values():
                link.confirm_no_longer()
        self._confirming = any(link.confirming for link in self.links.values())
        return not self._confirming

    @property
    def ready(self) -> bool:
        """Whether every sibling has been heard since our start and is neither away nor gone now."""
        return all(link.ready for link in self.links.values())

    def down(self, peer: Peer, incarnation: int) -> None:
        """Note that the supervisor has reaped that incarnation of a sibling."""
        self.links[peer].down(incarnation)

    def close(self, linger_seconds: float = 0.0) -> None:
        """Close the sockets and the context; blocks for at most linger_seconds per sibling that does not read."""
        for outlet in self._outlets.values():
            outlet.socket.close(int(linger_seconds * 1000))
        self._inlet.close(0)
        self._context.term()

    def _rest(self, first: bytes) -> list[Payload]:
        """Receive the frames after the first, by reference."""
        frames: list[Any] = [first]
        if self._inlet.getsockopt(zmq.RCVMORE):
            frames += self._inlet.recv_multipart(_NOBLOCK, copy=False)
        return frames

    def _route(self, first: bytes) -> Link:
        """Return the link of a message whose prefix was not seen before."""
        sender = unpack_prefix(first).sender
        link = self.links.get(sender)
        if link is None:
            raise EnvelopeError(f"no sibling has the number {sender}")
        if len(self._routes) > 16 * len(self.links):  # one per incarnation of a sibling
            self._routes.clear()
        self._routes[first[:PREFIX_BYTES]] = link
        return link

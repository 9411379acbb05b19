"""The transport of ZeroMQ's own library: one bound PULL for all incoming messages, one PUSH to each peer.

PUSH and PULL, not DEALER: a message names its sender itself (no identity frame), the two directions have separate
descriptors (reading one never swallows the edge of the other), and PULL takes one message of each peer in turn,
which makes the tick fair. PUSH with IMMEDIATE raises Again while the peer is down or its high-water mark is reached;
the link keeps the refused message. Messages lost with a broken connection are the links' business (frame numbers).
With keys (`zmq_mesh.curve`) it carries messages between hosts.

ZeroMQ's descriptors are edge-triggered: readable means "look", and looking until Again (or at EVENTS) arms them again.
So a round that ends before that must be followed by `go_on`, without waiting for an edge. Contexts are made here, after
the fork: an inherited one accepts messages and loses them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

import zmq

from pyx.core.peer import Peer, host_of
from pyx.mesh.contract import Watcher
from pyx.mesh.receiver import Receiver
from zmq_mesh.contract import Buffer, Outlet
from zmq_mesh.curve import Curve, Door
from zmq_mesh.envelope import MORE, PREFIX_BYTES

__all__ = ["ZeroMq"]

# Messages (batches) in each of the two pipes; bytes are bounded by the links' outboxes.
HIGH_WATER: Final = 64
# Time in which a host must accept a connection, and acknowledge what was sent over one; then there is a new one. After
# a network has lost packets for seconds TCP itself tries again only after as many seconds as it has lost them.
_TIMEOUT_MS: Final = 1500
# From this size on ZeroMQ gets a reference instead of a copy. The call alone is cheaper from 8 KB on (2-4 us), but
# releasing a reference wakes pyzmq's collector thread: in CPU of both processes a copy wins up to about 64 KB (see
# INLINE_BYTES_MAX).
REFERENCE_BYTES_MIN: Final = 64 * 1024

_FLAGS_AT: Final = PREFIX_BYTES + 1
_NOBLOCK: Final = zmq.NOBLOCK
_MORE_NOBLOCK: Final = zmq.NOBLOCK | zmq.SNDMORE


class _Push:
    """The PUSH socket to one peer."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        peer: Peer,
        endpoint: Callable[[Peer], str],
        curve: Curve | None,
        when_writable: Callable[[], object],
    ) -> None:
        self._peer = peer
        self._endpoint = endpoint
        self._curve = curve
        self._when_writable = when_writable
        self._address = ""
        """Where it is connected to; empty: nowhere."""
        socket = context.socket(zmq.PUSH)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, _TIMEOUT_MS)
        socket.setsockopt(zmq.TCP_MAXRT, _TIMEOUT_MS)
        socket.setsockopt(zmq.SNDHWM, HIGH_WATER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.copy_threshold = REFERENCE_BYTES_MIN
        self.socket = socket
        try:
            self._connect()
        except BaseException:
            socket.close(0)
            raise
        self.fileno = cast(int, socket.getsockopt(zmq.FD))

    def _connect(self) -> None:
        if self._curve is not None:
            self._curve.secure_outlet(self.socket, host_of(self._peer))
        address = self._endpoint(self._peer)
        self.socket.connect(address)
        self._address = address

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
            return False
        return True

    def reconnect(self) -> None:
        """Reconnect at once, to where the peer is now; messages in the old pipe are lost (they were for a dead
        incarnation).
        """
        address, self._address = self._address, ""
        if address:  # else the peer had no key when it was last tried
            self.socket.disconnect(address)
        self._connect()

    def look(self) -> None:
        """Arm the descriptor, and say that messages may be taken again."""
        self.socket.getsockopt(zmq.EVENTS)
        self._when_writable()


class ZeroMq:
    """Implements `zmq_mesh.contract.Transport`. `endpoint`: where a peer listens now. `curve`: between hosts."""

    malformed = 0
    """With keys: the number of messages whose sender is none of the host that has sent them."""
    is_immediate = False

    def __init__(
        self, own: Peer, endpoint: Callable[[Peer], str], watcher: Watcher, curve: Curve | None = None
    ) -> None:
        self._own = own
        self._curve = curve
        self._door: Door | None = None
        self._endpoint = endpoint
        self._watcher = watcher
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._pushes: list[_Push] = []
        self._inlet: zmq.Socket[bytes] | None = None
        self._fileno = -1

    def listen(self, receiver: Receiver) -> None:
        """Implements Transport."""
        self._receiver = receiver
        inlet = self._context.socket(zmq.PULL)
        inlet.setsockopt(zmq.IPV6, 1)
        inlet.setsockopt(zmq.RCVHWM, HIGH_WATER)
        inlet.setsockopt(zmq.LINGER, 0)
        if self._curve is not None:
            self._door = Door(self._context, self._curve, self._watcher)
            self._curve.secure_inlet(inlet)
        try:
            inlet.bind(self._endpoint(self._own))  # takes the path over from a dead predecessor
        except BaseException:
            inlet.close(0)  # else the context would wait for it for ever
            raise
        self._inlet = inlet
        self._fileno = cast(int, inlet.getsockopt(zmq.FD))
        self._watcher.watch_in_round(self._fileno, self.go_on)

    def connect(self, peer: Peer, when_writable: Callable[[], object]) -> Outlet:
        """Implements Transport."""
        push = _Push(self._context, peer, self._endpoint, self._curve, when_writable)
        self._pushes.append(push)
        self._watcher.watch_in_round(push.fileno, push.look)
        return Outlet(push.send, push.reconnect, None, partial(self._disconnect, push))

    def _disconnect(self, push: _Push) -> None:
        self._pushes.remove(push)
        self._watcher.unwatch(push.fileno)
        push.socket.close(0)

    def receive(self) -> bool:
        """Implements Transport."""
        self.go_on()
        return False

    def go_on(self) -> None:
        """Implements Transport.

        PULL takes one message of each peer in turn and cannot skip one: so a peer with more than its share ends the
        round for all, and the next round continues after it.
        """
        if self._inlet is None or not self._receiver.may_receive():
            return
        socket, curve = self._inlet, self._curve
        looked = False
        try:
            while True:
                if curve is None:
                    first = socket.recv(_NOBLOCK)
                else:
                    frame = socket.recv(_NOBLOCK, False)
                    first = frame.bytes
                frames: list[Any] = [first]
                if len(first) > _FLAGS_AT and first[_FLAGS_AT] & MORE and socket.getsockopt(zmq.RCVMORE):
                    frames += socket.recv_multipart(_NOBLOCK)
                if curve is not None and not curve.is_from(frame, first):
                    self.malformed += 1
                elif self._receiver.received(frames):
                    return
                if not looked:
                    # One message per wake-up is the usual case without load: EVENTS costs half of an Again.
                    looked = True
                    if not cast(int, socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                        return
        except zmq.Again:
            return

    def tick(self) -> None:
        """Implements Transport: ZeroMQ has its own thread for that."""

    def close(self) -> None:
        """Implements Transport."""
        for push in self._pushes:
            self._watcher.unwatch(push.fileno)
            push.socket.close(0)
        if self._door is not None:
            self._door.close()
        if self._inlet is not None:
            self._watcher.unwatch(self._fileno)
            self._inlet.close(0)
        self._context.term()

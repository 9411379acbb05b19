"""How messages of peers travel: ZeroMQ over TCP, with CURVE keys made of the secret that all hosts of a cluster have.

Each peer has one PULL that is bound, and one PUSH to each other peer. A message that cannot be sent now is lost: peers
say everything again that matters. Whoever does not have the secret does not get a connection; ZeroMQ's monitors say so.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Collection
from typing import Final, Protocol, cast

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from zmq_mesh.curve import Curve, Door, KeyPair
from zmq_mesh.loop_watcher import LoopWatcher

__all__ = ["PeerSockets", "PeerTransport", "TransportEvents", "keys_of_secret"]

_HIGH_WATER: Final = 256
_TIMEOUT_MS: Final = 1500  # as between the workers of hosts (zmq_mesh.zeromq)
_RECONNECT_MS: Final = 500
_ROUND: Final = 64
"""Messages that are taken before others have their turn."""
_FAILED: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_SCRYPT: Final = {"n": 1 << 14, "r": 8, "p": 1, "dklen": 32}


def keys_of_secret(secret: bytes, cluster: str) -> KeyPair:
    """Return the keys that all peers of a cluster share. It takes some 50 ms, so that a secret is hard to guess."""
    private = hashlib.scrypt(secret, salt=b"mqttd peers of " + cluster.encode(), **_SCRYPT)
    encoded = z85.encode(private)
    return KeyPair(zmq.curve_public(encoded), encoded)


class TransportEvents(Protocol):
    """What a transport tells, in its event loop."""

    def arrived(self, packet: bytes) -> None:
        """A message of somebody who has the secret."""

    def not_let_in(self, address: str) -> None:
        """The peer at an address did not let this one in; "": somebody was not let in here."""


class PeerTransport(Protocol):
    """Carries messages between peers."""

    def listen(self, events: TransportEvents) -> None:
        """Take messages from now on. Raises OSError; then it may be tried again."""

    def connect(self, addresses: Collection[str]) -> None:
        """Connect to these addresses, and to no others."""

    def send(self, address: str, packet: bytes) -> None:
        """Send a message, or lose it."""

    def close(self) -> None:
        """Close everything."""


class _Monitor:
    """Says when handshakes of a socket fail."""

    def __init__(self, socket: zmq.Socket[bytes], failed: Callable[[], None]) -> None:
        self._watched = socket
        self._failed = failed
        self._socket = socket.get_monitor_socket(_FAILED)
        self._fileno = cast(int, self._socket.getsockopt(zmq.FD))
        asyncio.get_running_loop().add_reader(self._fileno, self.look)
        self.look()

    def look(self) -> None:
        while cast(int, self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            recv_monitor_message(self._socket)
            self._failed()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fileno)
        self._watched.disable_monitor()
        self._socket.close(0)


class PeerSockets:
    """Implements PeerTransport. listen: "HOST:PORT" of this host. Used in one event loop, after the fork."""

    def __init__(self, listen: str, keys: KeyPair, message_bytes_max: int) -> None:
        self._address = listen
        self._curve = Curve(keys, {keys.public: 1}, message_bytes_max)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._door: Door | None = None
        self._inlet: zmq.Socket[bytes] | None = None
        self._monitors: dict[str, _Monitor] = {}
        self._outlets: dict[str, zmq.Socket[bytes]] = {}
        self._events: TransportEvents | None = None
        self._fileno = -1
        self._reads_on = False

    def listen(self, events: TransportEvents) -> None:
        """Implements PeerTransport."""
        self._events = events
        if self._context is None:
            self._context = zmq.Context(io_threads=1)
            self._door = Door(self._context, self._curve, LoopWatcher())
        inlet = self._context.socket(zmq.PULL)
        try:
            inlet.setsockopt(zmq.IPV6, 1)
            inlet.setsockopt(zmq.RCVHWM, _HIGH_WATER)
            inlet.setsockopt(zmq.LINGER, 0)
            self._curve.secure_inlet(inlet)
            inlet.bind(f"tcp://{self._address}")
        except zmq.ZMQError as error:
            inlet.close(0)
            raise OSError(error.errno, str(error)) from None
        self._inlet = inlet
        self._monitors[""] = _Monitor(inlet, lambda: events.not_let_in(""))
        self._fileno = cast(int, inlet.getsockopt(zmq.FD))
        asyncio.get_running_loop().add_reader(self._fileno, self._read)
        self._read()

    def connect(self, addresses: Collection[str]) -> None:
        """Implements PeerTransport."""
        for address in self._outlets.keys() - set(addresses):
            self._monitors.pop(address).close()
            self._outlets.pop(address).close(0)
        for address in set(addresses) - self._outlets.keys():
            self._open(address)

    def _open(self, address: str) -> None:
        context, events = self._context, self._events
        assert context is not None
        assert events is not None
        outlet = context.socket(zmq.PUSH)
        try:
            for option, value in (
                (zmq.IPV6, 1),
                (zmq.IMMEDIATE, 1),
                (zmq.RECONNECT_IVL, _RECONNECT_MS),
                (zmq.CONNECT_TIMEOUT, _TIMEOUT_MS),
                (zmq.TCP_MAXRT, _TIMEOUT_MS),
                (zmq.SNDHWM, _HIGH_WATER),
                (zmq.LINGER, 0),
            ):
                outlet.setsockopt(option, value)
            self._curve.secure_outlet(outlet, 1)
            monitor = _Monitor(outlet, lambda: events.not_let_in(address))
            outlet.connect(f"tcp://{address}")
        except BaseException:
            outlet.close(0)
            raise
        self._monitors[address], self._outlets[address] = monitor, outlet

    def send(self, address: str, packet: bytes) -> None:
        """Implements PeerTransport."""
        outlet = self._outlets.get(address)
        if outlet is not None:
            try:
                outlet.send(packet, zmq.NOBLOCK)
            except zmq.Again:
                return  # it is away, or behind

    def _read(self) -> None:
        """Take what is there. ZeroMQ's descriptor says only once that there is something."""
        self._reads_on = False
        inlet, events = self._inlet, self._events
        if inlet is None or events is None:
            return
        try:
            for _ in range(_ROUND):
                packets = inlet.recv_multipart(zmq.NOBLOCK)
                events.arrived(packets[0] if len(packets) == 1 else b"")
        except zmq.Again:
            return
        if not self._reads_on:
            self._reads_on = True
            asyncio.get_running_loop().call_soon(self._read)

    def close(self) -> None:
        """Implements PeerTransport."""
        loop = asyncio.get_running_loop()
        for monitor in self._monitors.values():
            monitor.close()
        for outlet in self._outlets.values():
            outlet.close(0)
        self._monitors, self._outlets = {}, {}
        if self._inlet is not None:
            loop.remove_reader(self._fileno)
            self._inlet.close(0)
            self._inlet = None
        if self._door is not None:
            self._door.close()
        if self._context is not None:
            self._context.term()
            self._context = None

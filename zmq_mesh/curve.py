"""Who may speak to a worker from another host: CURVE keys, checked against those of the cluster's hosts.

Each host has a pair of keys. ZeroMQ encrypts with them (CurveZMQ, RFC 26) and asks for each new connection whether its
key may come in (ZAP, RFC 27); the answer is given here, in the worker's own thread. A key that no host has is refused
for now, not for ever: the record of a host that has just joined may still be on its way. ZeroMQ answers that with
silence, and the other side tries again when its time for a handshake is over.

Every message says over which key it came (its User-Id), so that a host speaks for its own workers alone, and nobody
any more once it has left the cluster, however long its connections last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, cast

import zmq
from zmq.utils import z85

from pyx.core.peer import Peer, host_of
from pyx.mesh.contract import Watcher
from zmq_mesh.contract import Buffer

__all__ = ["Curve", "Door", "KeyPair", "new_keys"]

_ZAP: Final = "inproc://zeromq.zap.01"
_VERSION: Final = b"1.0"
_DOMAIN: Final = b"mqttd"
_HANDSHAKE_MS: Final = 2000
"""For connecting and being let in: four times over the line."""
_SENDER: Final = slice(4, 8)
"""Of a message: the worker that has sent it (`zmq_mesh.envelope`)."""


class KeyPair(NamedTuple):
    """A public and a secret key, 40 characters of Z85 (RFC 32) each."""

    public: bytes
    secret: bytes


def new_keys() -> KeyPair:
    """Return a pair that nobody has had before."""
    return KeyPair(*zmq.curve_keypair())


class Curve:
    """The keys of this host and the public ones of the others. `hosts`: by key, the number of its host; whoever changes
    what it has decides who is heard from then on. `frame_bytes_max`: of a message's frames; somebody without a key can
    make ZeroMQ take as much memory for each of its connections, for _HANDSHAKE_MS.
    """

    def __init__(self, own: KeyPair, hosts: Mapping[bytes, int], frame_bytes_max: int) -> None:
        self.own = own
        self.frame_bytes_max = frame_bytes_max
        self.hosts = hosts
        self.refused = 0
        """Number of connections that were refused because no host has their key."""

    def is_from(self, frame: zmq.Frame, first: Buffer) -> bool:
        """Return whether the sender that a message names is a worker of the host over whose connection it came."""
        host = self.hosts.get(str(frame.get("User-Id")).encode())
        sender = int.from_bytes(memoryview(first)[_SENDER], "little")
        return host is not None and host == host_of(Peer(sender))

    def secure_inlet(self, socket: zmq.Socket[bytes]) -> None:
        """Let a socket that is not bound yet accept hosts of the cluster alone. A `Door` answers for it."""
        socket.setsockopt(zmq.MAXMSGSIZE, self.frame_bytes_max)
        socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.own.secret)
        socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a door nobody comes in

    def secure_outlet(self, socket: zmq.Socket[bytes], host: int) -> None:
        """Let a socket connect to that host alone from now on. Raises LookupError if it has no key."""
        key = next((key for key, number in self.hosts.items() if number == host), None)
        if key is None:
            raise LookupError(f"host {host} has no key")
        socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        socket.setsockopt(zmq.CURVE_SERVERKEY, key)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.own.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.own.secret)


class Door:
    """Answers ZeroMQ's questions about new connections of a context."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], curve: Curve, watcher: Watcher) -> None:
        self._curve = curve
        self._watcher = watcher
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(_ZAP)
        self._fileno = cast(int, self._socket.getsockopt(zmq.FD))
        watcher.watch_in_round(self._fileno, self._answer)

    def _answer(self) -> None:
        while True:
            try:
                asked = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            # version, request, domain, address, identity, mechanism, and what that has: the key
            version, request = asked[0], asked[1]
            key = z85.encode(asked[6]) if asked[5] == b"CURVE" and len(asked) == 7 else b""
            if version == _VERSION and asked[2] == _DOMAIN and key in self._curve.hosts:
                answer = [_VERSION, request, b"200", b"", key, b""]
            else:
                self._curve.refused += 1
                answer = [_VERSION, request, b"300", b"no host of this cluster", b"", b""]
            self._socket.send_multipart(answer)

    def close(self) -> None:
        """Answer no more."""
        self._watcher.unwatch(self._fileno)
        self._socket.close(0)

"""Many clients of one thread that follow a Server Reference, or do not: members of share groups of a cluster."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from typing import Self

from tests import wire
from tests.wire import KINDS, Packet

__all__ = ["CLIENTS_AT_ONCE", "Follower", "Followers"]

CLIENTS_AT_ONCE = 200
"""CONNECTs that wait for their CONNACK."""
_RECEIVED_AT_ONCE = 65_536
_CONNECT_SECONDS = 30.0


class Follower:
    """A client. `at`: where it connects next, or is connected. `follows`: it goes where it is told to. `expiry`: its
    Session Expiry Interval, 0: its session ends with the connection.
    """

    def __init__(
        self,
        client_id: str,
        at: tuple[str, int],
        filters: Iterable[str],
        version: int = 5,
        follows: bool = True,
        expiry: int = 600,
    ) -> None:
        self.client_id = client_id
        self.at = at
        self.filters = tuple(filters)
        self.version = version
        self.follows = follows
        self.expiry = expiry
        self.got: list[bytes] = []
        """Payloads of what it has been sent, each as often."""
        self.again: list[bytes] = []
        """Payloads of what it has been sent with the DUP flag."""
        self.ends: list[int | None] = []
        """Why its connections have ended: Reason Codes, None: without a word."""
        self.is_subscribed = False
        self.acknowledges = True
        self.connected_at = 0.0
        self.socket: socket.socket | None = None
        self.received = bytearray()


class Followers(threading.Thread):
    """Clients, connected and served until the end of `with`."""

    def __init__(self, clients: Iterable[Follower]) -> None:
        super().__init__(name="followers")
        self.clients = list(clients)
        self.failed: BaseException | None = None
        self._others: list[tuple[str, int]] = []
        """Where those connect whose host does not answer."""
        self._selector = selectors.DefaultSelector()
        self._wanting = deque(self.clients)
        """Those that connect next."""
        self._connecting: set[Follower] = set()
        self._over = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End all connections. Raises what has gone wrong."""
        self._over.set()
        self.join()
        for each in self.clients:
            if each.socket is not None:
                each.socket.close()
        self._selector.close()
        if self.failed is not None:
            raise self.failed

    def others_are(self, addresses: Iterable[tuple[str, int]]) -> None:
        """Let clients whose host does not answer connect to the first of these addresses."""
        self._others = list(addresses)

    def where(self) -> Counter[tuple[str, int]]:
        """Return how many are connected, and members, at each address."""
        assert self.failed is None, self.failed
        return Counter(each.at for each in self.clients if each.is_subscribed and each.socket is not None)

    def got(self) -> Counter[bytes]:
        """Return how often each payload has come, to all together."""
        assert self.failed is None, self.failed
        return Counter(payload for each in self.clients for payload in each.got[:])

    def run(self) -> None:
        try:
            while not self._over.is_set():
                self._turn()
        except BaseException as error:  # noqa: BLE001  told by `stop`
            self.failed = error

    def _turn(self) -> None:
        while self._wanting and len(self._connecting) < CLIENTS_AT_ONCE:
            self._connect(self._wanting.popleft())
        late = time.monotonic() - _CONNECT_SECONDS
        for client in [each for each in self._connecting if each.connected_at < late]:
            raise TimeoutError(f"{client.client_id}: no CONNACK from {client.at}")
        for key, _ in self._selector.select(0.05):
            self._receive(key.data)

    def _connect(self, client: Follower) -> None:
        client.received.clear()
        client.connected_at = time.monotonic()
        try:
            client.socket = socket.create_connection(client.at, timeout=10.0)
        except OSError:
            client.at = next((each for each in self._others if each != client.at), client.at)
            self._wanting.append(client)
            return
        client.socket.setblocking(False)
        self._selector.register(client.socket, selectors.EVENT_READ, client)
        self._connecting.add(client)
        is_clean = client.expiry == 0
        properties = {"session_expiry_interval": client.expiry} if client.version == 5 else {}
        self._send(client, wire.connect(client.version, client.client_id, clean=is_clean, properties=properties))

    def _send(self, client: Follower, data: bytes) -> None:
        assert client.socket is not None
        try:
            sent = client.socket.send(data)
            assert sent == len(data), "its socket is full"
        except OSError:
            self._ended(client, None)

    def _ended(self, client: Follower, reason: int | None) -> None:
        if client.socket is not None:
            self._selector.unregister(client.socket)
            client.socket.close()
            client.socket = None
            self._connecting.discard(client)
            client.ends.append(reason)
            self._wanting.append(client)

    def _receive(self, client: Follower) -> None:
        if client.socket is None:
            return
        try:
            data = client.socket.recv(_RECEIVED_AT_ONCE)
        except OSError:
            data = b""
        if not data:
            self._ended(client, None)
            return
        client.received += data
        while client.socket is not None and (packet := self._next_packet(client)) is not None:
            self._take(client, packet)

    @staticmethod
    def _next_packet(client: Follower) -> Packet | None:
        data, length, size = client.received, 0, 1
        while True:
            if len(data) <= size:
                return None
            length |= (data[size] & 0x7F) << 7 * (size - 1)
            size += 1
            if not data[size - 1] & 0x80:
                break
        if len(data) < size + length:
            return None
        body = bytes(data[size : size + length])
        first = data[0]
        del data[: size + length]
        return wire.decode(client.version, first & 0x0F, KINDS[first >> 4], body)

    def _take(self, client: Follower, packet: Packet) -> None:
        if packet.kind == "CONNACK":
            self._connecting.discard(client)
            if packet.reason:
                self._ended(client, packet.reason)
                return
            if packet.session_present:
                client.is_subscribed = True
            else:
                client.is_subscribed = False
                filters = [(each, 1) for each in client.filters]
                self._send(client, wire.subscribe(client.version, 1, *filters))
        elif packet.kind == "SUBACK":
            assert packet.codes == (1,) * len(client.filters), packet
            client.is_subscribed = True
        elif packet.kind == "PUBLISH":
            (client.again if packet.dup else client.got).append(packet.payload)
            if packet.qos and client.acknowledges:
                self._send(client, wire.ack(client.version, "PUBACK", packet.packet_id))
        elif packet.kind == "DISCONNECT":
            reference = packet.properties.get("server_reference")
            if reference is not None and client.follows:
                host, _, port = reference.split()[0].rpartition(":")
                client.at = host, int(port)
            self._ended(client, packet.reason)

"""A broker on 127.0.0.1 that a test plays itself, packet by packet."""

from __future__ import annotations

import socket

from tests.wire import DEADLINE_SECONDS, NOTHING, Client, Packet, Properties, decode, encode_properties, packet

__all__ = ["Accepted", "ScriptedBroker"]


class Accepted(Client):
    """A client that has connected: the other end of a `Client`. Its CONNECT is taken, and not answered."""

    def __init__(self, accepted: socket.socket, version: int) -> None:
        self.version = version
        self.socket = accepted
        self.received = bytearray()
        self.kept: list[Packet] = []
        self.last_packet_id = 0
        self.expect("CONNECT")

    def _decode(self, flags: int, kind: str, body: bytes) -> Packet:
        if kind in ("CONNECT", "PINGREQ", "DISCONNECT"):
            return Packet(kind, flags, body)
        if kind in ("SUBSCRIBE", "UNSUBSCRIBE"):
            return Packet(kind, flags, body, packet_id=int.from_bytes(body[:2], "big"))
        return decode(self.version, flags, kind, body)

    def welcome(self, session_present: bool = False, properties: Properties = NOTHING) -> None:
        """Send CONNACK."""
        flags = bytes([session_present, 0])
        self.send(packet("CONNACK", 0, flags, encode_properties(properties) if self.version == 5 else b""))

    def grant(self, count: int = 1) -> None:
        """Take so many SUBSCRIBE, each of one filter, and answer them."""
        for _ in range(count):
            asked = self.await_packet("SUBSCRIBE")
            number = asked.packet_id.to_bytes(2, "big")
            self.send(packet("SUBACK", 0, number, b"\0" if self.version == 5 else b"", b"\2"))


class ScriptedBroker:
    """Listens for a `with` block. receive_bytes: of the kernel's receive buffer of a connection; 0: as usual."""

    def __init__(self, version: int = 5, receive_bytes: int = 0) -> None:
        self._version = version
        self._listening = socket.create_server(("127.0.0.1", 0))
        if receive_bytes:
            self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._listening.settimeout(DEADLINE_SECONDS)
        self._accepted: list[Accepted] = []
        self.url = f"mqtt://127.0.0.1:{self._listening.getsockname()[1]}"

    def __enter__(self) -> ScriptedBroker:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._accepted:
            each.close()
        self._listening.close()

    def accept(self) -> Accepted:
        """Return the next client."""
        self._accepted.append(Accepted(self._listening.accept()[0], self._version))
        return self._accepted[-1]

"""Attacks of hostile clients, one function each, with the required reaction of the broker.

A *refusal* is success: the connection is closed, or a packet has a reason code of failure. An attack that must be
survived succeeds when the same broker still answers. Anything else is `NotRefused`. The attacks write bytes that no
library would, to a blocking socket (in a greenlet, under locust).
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from loadtest.target import Target
from pyx.protocol.codec import Decoder, encode_connect, encode_publish, encode_subscribe
from pyx.protocol.encoders import PINGREQ_BYTES
from pyx.protocol.packets import Ack, Connack, Disconnect, Packet, Pingresp, Suback
from pyx.protocol.reasons import MqttError

_FAILURE: Final = 0x80
_READ_BYTES: Final = 65_536
_FLOOD_SECONDS: Final = 1.0
_FLOOD_CONNECTIONS: Final = 200
_SLOW_BYTES: Final = 16 << 20
_FILTERS: Final = 2000


class NotRefused(Exception):
    """The broker did not react as required."""


class Wire:
    """A connection without protocol checks. patience: the broker's time limit for anything, in seconds."""

    def __init__(self, target: Target, patience: float) -> None:
        self.target = target
        self.patience = patience
        sock = socket.create_connection((target.host, target.port), timeout=patience)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = target.tls().wrap_socket(sock, server_hostname=target.host) if target.is_tls else sock
        self._decoder = Decoder(target.version, from_server=True)

    def close(self) -> None:
        """Close the socket without DISCONNECT."""
        self._socket.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def hello(self, client_id: str, keep_alive: int = 60) -> bytes:
        """Return a valid CONNECT."""
        password = self.target.password
        return encode_connect(
            self.target.version, client_id, keep_alive=keep_alive, username=self.target.username,
            password=None if password is None else password.encode(),
        )  # fmt: skip

    def connect(self, client_id: str, keep_alive: int = 60) -> None:
        """Send CONNECT and wait for its CONNACK. NotRefused: it was refused."""
        self.send(self.hello(client_id, keep_alive))
        packet = self.read()
        if not isinstance(packet, Connack) or packet.reason_code:
            raise NotRefused(f"the broker does not let us in: {type(packet).__name__}")

    def answers_come_in(self, version: int) -> None:
        """Parse answers in this version of MQTT instead of the target's."""
        self._decoder = Decoder(version, from_server=True)

    def send(self, data: bytes) -> bool:
        """Send bytes; return False if it is closed. NotRefused: the socket takes nothing."""
        try:
            self._socket.sendall(data)
        except TimeoutError:
            raise NotRefused(f"nothing is taken for {self.patience:g} s") from None
        except OSError:
            return False
        return True

    def send_end(self) -> None:
        """Send FIN; further data is still read."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return  # it is already closed

    def read(self) -> Packet | None:
        """Return the next packet, None at the end. NotRefused: neither within the patience."""
        deadline = time.monotonic() + self.patience
        while (packet := self._next()) is None:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                data = self._socket.recv(_READ_BYTES)
            except TimeoutError:
                raise NotRefused(f"no answer for {self.patience:g} s") from None
            except OSError:
                return None
            finally:
                self._socket.settimeout(self.patience)
            if not data:
                return None
            self._decoder.feed(data)
        return packet

    def _next(self) -> Packet | None:
        try:
            return self._decoder.next_packet()
        except MqttError as error:
            raise NotRefused(f"the broker's answer is malformed: {error}") from None

    def refused(self) -> None:
        """Return when the broker sends a reason code of failure, or closes. NotRefused: see `read`."""
        while (packet := self.read()) is not None:
            if isinstance(packet, Connack) and packet.reason_code:
                return
            if isinstance(packet, Ack | Disconnect) and packet.reason_code >= _FAILURE:
                return
            if isinstance(packet, Suback) and all(code >= _FAILURE for code in packet.codes):
                return

    def alive(self) -> None:
        """Return when a PINGREQ is answered, or the broker has closed. NotRefused: see `read`."""
        if self.send(PINGREQ_BYTES):
            while not isinstance(self.read(), Pingresp | None):
                pass


@dataclass(frozen=True)
class Attack:
    """One attack."""

    name: str
    is_refusal: bool
    """Whether it must be refused at once, or only survived."""
    run: Callable[[Wire, str], None]
    """Gets a new connection and a unique client id. NotRefused: the broker reacted otherwise."""


ATTACKS: Final[dict[str, Attack]] = {}


def _attack(name: str, is_refusal: bool = True) -> Callable[[Callable[[Wire, str], None]], Callable[[Wire, str], None]]:
    def noted(run: Callable[[Wire, str], None]) -> Callable[[Wire, str], None]:
        ATTACKS[name] = Attack(name, is_refusal, run)
        return run

    return noted


def _malformed(name: str, packet: Callable[[int], bytes], connects: bool = True) -> None:
    """Register an attack: bytes (by the version of MQTT) after a CONNECT, or instead of one."""

    def run(wire: Wire, client_id: str) -> None:
        if connects:
            wire.connect(client_id)
        wire.send(packet(wire.target.version))
        wire.refused()

    ATTACKS[name] = Attack(name, True, run)


def _publish(version: int, flags: int, topic: bytes, packet_id: bytes = b"") -> bytes:
    """Encode a short PUBLISH as no encoder would."""
    body = struct.pack(">H", len(topic)) + topic + packet_id + (b"\0" if version == 5 else b"") + b"hi"
    return bytes([0x30 | flags, len(body)]) + body


_malformed("length-of-five-bytes", lambda _: b"\x30\xff\xff\xff\xff\x7f")
_malformed("reserved-packet-type", lambda _: b"\x00\x00")
_malformed("qos-3", lambda version: _publish(version, 6, b"a/b", b"\0\1"))
_malformed("topic-not-utf-8", lambda version: _publish(version, 0, b"a/\xff\xfe"))
_malformed("wildcard-in-topic", lambda version: _publish(version, 0, b"a/#"))
_malformed("packet-id-0", lambda version: _publish(version, 2, b"a/b", b"\0\0"))
_malformed("string-beyond-the-packet", lambda _: b"\x30\x04\xff\xffab")
_malformed("flags-of-subscribe", lambda version: b"\x80" + encode_subscribe(version, 1, [("a", 0)])[1:])
_malformed("publish-before-connect", lambda version: _publish(version, 0, b"a/b"), connects=False)
_malformed("http", lambda _: b"GET / HTTP/1.1\r\nHost: broker\r\nAccept: */*\r\n\r\n" * 2, connects=False)
_malformed("noise", lambda _: b"\x20" + random.Random(5).randbytes(511), connects=False)
_malformed("claims-200-megabytes", lambda _: b"\x30\x80\x80\x80\x64\x00\x03a/b" + bytes(100_000))
_malformed("deep-topic", lambda version: encode_publish(version, b"/" * 65_535, qos=1, packet_id=1))


@_attack("protocol-name")
def _protocol_name(wire: Wire, client_id: str) -> None:
    """[MQTT-3.1.2-1]; the answer, if there is one, is that of 3.1.1, because the version is unknown."""
    wire.send(encode_connect(4, client_id).replace(b"MQTT", b"XXTT"))
    wire.answers_come_in(4)
    wire.refused()


@_attack("second-connect")
def _second_connect(wire: Wire, client_id: str) -> None:
    """[MQTT-3.1.0-2]"""
    wire.connect(client_id)
    wire.send(wire.hello(client_id))
    wire.refused()


@_attack("long-topic")
def _long_topic(wire: Wire, client_id: str) -> None:
    """A topic of the greatest length in the standard."""
    wire.connect(client_id)
    wire.send(encode_publish(wire.target.version, b"a" * 65_535, qos=1, packet_id=1))
    wire.refused()


@_attack("wrong-password")
def _wrong_password(wire: Wire, client_id: str) -> None:
    """A guessed password."""
    wire.send(encode_connect(wire.target.version, client_id, username=wire.target.username, password=b"123456"))
    wire.refused()


@_attack("silence")
def _silence(wire: Wire, client_id: str) -> None:  # noqa: ARG001
    """A connection that never sends anything: the broker must not wait forever."""
    wire.refused()


@_attack("half-a-connect")
def _half_connect(wire: Wire, client_id: str) -> None:
    """Half a CONNECT, and nothing more."""
    hello = wire.hello(client_id)
    wire.send(hello[: len(hello) // 2])
    wire.refused()


@_attack("half-open")
def _half_open(wire: Wire, client_id: str) -> None:
    """A half-open connection: we have closed our side, the broker has not yet."""
    wire.connect(client_id)
    wire.send_end()
    wire.refused()


@_attack("keep-alive")
def _keep_alive(wire: Wire, client_id: str) -> None:
    """A silent connection that was not closed: ends after one and a half times its Keep Alive [MQTT-3.1.2-22]."""
    wire.connect(client_id, keep_alive=1)
    wire.refused()


@_attack("publish-flood", is_refusal=False)
def _publish_flood(wire: Wire, client_id: str) -> None:
    """Publishes as fast as the socket takes it."""
    wire.connect(client_id)
    burst = encode_publish(wire.target.version, f"flood/{client_id}", bytes(64)) * 200
    until = time.monotonic() + _FLOOD_SECONDS
    while time.monotonic() < until and wire.send(burst):
        pass
    wire.alive()


@_attack("subscribe-flood", is_refusal=False)
def _subscribe_flood(wire: Wire, client_id: str) -> None:
    """Thousands of filters."""
    wire.connect(client_id)
    for first in range(0, _FILTERS, 100):
        filters = [(f"flood/{client_id}/{n}/+/#", 0) for n in range(first, first + 100)]
        if not wire.send(encode_subscribe(wire.target.version, 1 + first, filters)):
            break
    wire.alive()


@_attack("connect-flood", is_refusal=False)
def _connect_flood(wire: Wire, client_id: str) -> None:
    """Many connections that close at once; some have sent CONNECT."""
    for number in range(_FLOOD_CONNECTIONS):
        try:
            with Wire(wire.target, wire.patience) as other:
                if number % 2:
                    other.send(other.hello(f"{client_id}-{number}"))
        except OSError:
            continue  # refused, as is allowed
    with Wire(wire.target, wire.patience) as later:
        later.connect(client_id)
        later.alive()


@_attack("slow-reader", is_refusal=False)
def _slow_reader(wire: Wire, client_id: str) -> None:
    """A subscriber that does not read while much is published to it: the publisher must not wait for it."""
    wire.connect(client_id)
    topic = f"slow/{client_id}"
    wire.send(encode_subscribe(wire.target.version, 1, [(topic, 0)]))
    packet = encode_publish(wire.target.version, topic, bytes(65_536))
    with Wire(wire.target, wire.patience) as other:
        other.connect(f"{client_id}-publisher")
        for _ in range(_SLOW_BYTES // len(packet)):
            if not other.send(packet):
                raise NotRefused("the publisher was closed, not the reader")
        other.alive()
    wire.alive()


def chosen(names: str, has_user: bool) -> list[Attack]:
    """Parse --attacks: names with commas, or `all` and -NAME. Passwords are guessed if the broker has users.
    ValueError: an unknown name.
    """
    found: dict[str, Attack] = {}
    for name in filter(None, (each.strip() for each in names.split(","))):
        if name == "all":
            found |= {name: each for name, each in ATTACKS.items() if has_user or name != "wrong-password"}
        elif name.removeprefix("-") not in ATTACKS:
            raise ValueError(f"--attacks: {name} is none of {', '.join(ATTACKS)}")
        elif name.startswith("-"):
            found.pop(name[1:], None)
        else:
            found[name] = ATTACKS[name]
    if not found:
        raise ValueError(f"--attacks {names}: none is left")
    return list(found.values())

"""Hostile clients, or clients that behave like hostile ones: one attack per process, until a signal ends it.

Started by ``python -m tests.chaos.hostile ATTACK PORT``; prints ``attacking`` after its first round. From then on it
runs at low priority, so that the delays of a well-behaved client come from the broker and not from a generator that
takes the processor.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

from tests import wire
from tests.waiting import let_pass

Rounds = Iterator[None]
_SOURCES = [f"127.0.0.{n}" for n in range(2, 10)]
_RESET = struct.pack("ii", 1, 0)
_CHUNK_BYTES = 1 << 16


class Attacker:
    """A careless socket: bytes that the kernel does not take are not sent; received bytes are discarded or left."""

    def __init__(self, port: int, *, source: str = "127.0.0.2", receive_buffer: int = 0) -> None:
        self.port = port
        self.source = source
        self.receive_buffer = receive_buffer
        self.socket = self._dial()
        self.unsent = b""

    def _dial(self) -> socket.socket:
        dialled = socket.socket()
        dialled.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        dialled.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT: the port is chosen by connect
        if self.receive_buffer:
            dialled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer)
        dialled.bind((self.source, 0))
        dialled.settimeout(5.0)
        with suppress(OSError):  # refused, reset, or no answer in time: the next send shows it
            dialled.connect(("127.0.0.1", self.port))
        dialled.setblocking(False)
        return dialled

    def again(self) -> None:
        """Replace this connection with a new one."""
        self.socket.close()
        self.socket = self._dial()
        self.unsent = b""

    def send(self, data: bytes) -> bool:
        """Send what the kernel takes, earlier bytes first. False: the connection has ended."""
        data = self.unsent or data
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        self.unsent = data[sent:]
        return True

    def say(self, *packets: bytes) -> None:
        """Send all packets, waiting for the kernel; nothing if the connection has ended."""
        self.socket.settimeout(5.0)
        with suppress(OSError):
            self.socket.sendall(b"".join(packets))
        self.socket.setblocking(False)

    def hear(self) -> bool:
        """Discard received bytes. False: the broker has closed."""
        try:
            while got := self.socket.recv(_CHUNK_BYTES):
                if len(got) < _CHUNK_BYTES:
                    return True
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False


def never_reads(port: int) -> Rounds:
    """Subscribe to everything, never read, and send 20,000 PINGREQ and SUBSCRIBE a second; 800 messages too."""
    deaf = [Attacker(port, receive_buffer=4096) for _ in range(20)]
    asking = wire.PINGREQ * 500 + wire.subscribe(4, 7, ("more", 0)) * 50
    for number, each in enumerate(deaf):
        each.say(wire.connect(4, f"deaf{number}"), wire.subscribe(4, 1, ("#", number % 3)))
    loud = Attacker(port)
    loud.say(wire.connect(4, "loud"))
    noise = wire.publish(4, "noise", bytes(1000)) * 20 + wire.publish(4, "noise", bytes(1000), qos=1, packet_id=1) * 20
    while True:
        for each in deaf:
            if not each.send(asking):
                each.again()
                each.say(wire.connect(4, f"deaf{deaf.index(each)}"), wire.subscribe(4, 1, ("#", 1)))
        loud.hear()
        loud.send(noise)
        yield
        let_pass(0.05)


def drips(port: int) -> Rounds:
    """Send a byte per second on 300 connections: CONNECTs that never become whole, and PUBLISHes that take minutes."""
    slow = [Attacker(port, source=_SOURCES[n % 8]) for n in range(300)]
    whole = wire.connect(5, "slow" * 100, will=wire.Will("w", bytes(1000)))
    for number, each in enumerate(slow):
        if number % 3 == 0:
            each.say(wire.connect(4, f"slow{number}"))
    data = [wire.publish(4, "slow", bytes(1000)) if number % 3 == 0 else whole for number in range(len(slow))]
    for second in itertools.count():
        for number, each in enumerate(slow):
            at = second % len(data[number])
            if not each.send(data[number][at : at + 1]) and not each.hear():
                each.again()
        yield
        let_pass(1.0)


def announces(port: int) -> Rounds:
    """Announce 256 MB, or what packet_bytes_max allows, then stay silent: a length field must not cost memory."""
    silent = [Attacker(port, source=_SOURCES[n % 8]) for n in range(200)]
    lengths = [(1 << 28) - 1, 16_000_000, 1_000_000]
    while True:
        for number, each in enumerate(silent):
            length = wire.varint(lengths[number % len(lengths)])
            head = wire.connect(4 + number % 2, f"announces{number}") if number % 4 else b""
            each.say(head + (b"\x30" if number % 4 else b"\x10") + length + b"\0\1a" + bytes(100))
        yield
        let_pass(1.0)
        for each in silent:
            if not each.hear():
                each.again()


def subscribes(port: int) -> Rounds:
    """Send 100,000 SUBSCRIBEs from ten clients, each with a filter of its own; then the same, over and over."""
    many = [Attacker(port) for _ in range(10)]
    for number, each in enumerate(many):
        each.say(wire.connect(4, f"subscribes{number}"))
    for turn in itertools.count():
        for number, each in enumerate(many):
            first = turn % 100 * 100
            each.say(b"".join(
                wire.subscribe(4, 1 + n % 60_000, (f"s/{number}/{n}/{'+/' * (n % 3)}#", n % 3))
                for n in range(first, first + 100)
            ))  # fmt: skip
            if not each.hear():
                each.again()
                each.say(wire.connect(4, f"subscribes{number}"))
        yield


def connects(port: int) -> Rounds:
    """Open and drop connections as fast as possible, from eight addresses: some silent, some with half a CONNECT."""
    half = wire.connect(5, "half")[:8]
    while True:
        for n in range(200):
            each = Attacker(port, source=_SOURCES[n % 8])
            if n % 2:
                each.send(half)
            each.socket.close()
        yield


def stays_silent(port: int) -> Rounds:
    """Open 2,000 silent connections from eight addresses; open those that are closed again."""
    silent = [Attacker(port, source=_SOURCES[n % 8]) for n in range(2000)]
    while True:
        yield
        let_pass(0.5)
        for each in silent:
            if not each.hear():
                each.again()


def never_releases(port: int) -> Rounds:
    """Publish at QoS 2 and never send PUBREL: every Packet Identifier there is, v3 and v5."""
    many = [Attacker(port) for _ in range(20)]
    for number, each in enumerate(many):
        each.say(wire.connect(4 + number % 2, f"unreleased{number}", clean=True))
    for turn in itertools.count():
        for number, each in enumerate(many):
            first = turn * 500 % 65_000
            version = 4 + number % 2
            each.say(b"".join(
                wire.publish(version, "unreleased", b"x", qos=2, packet_id=1 + n) for n in range(first, first + 500)
            ))  # fmt: skip
            if not each.hear():
                each.again()
                each.say(wire.connect(version, f"unreleased{number}"))
        yield


def properties(port: int) -> Rounds:
    """Send PUBLISHes and wills that consist of User Properties, up to what packet_bytes_max allows."""
    many = [Attacker(port) for _ in range(4)]
    pairs = [("k" * 1000, "v" * 60_000)] * 10 + [("", "")] * 2000
    large = wire.publish(5, "properties", b"x", qos=1, packet_id=1, properties={"user_property": pairs})
    will = wire.Will("properties", b"x", 1, False, {"user_property": pairs})
    greetings = [wire.connect(5, f"properties{number}", will=will) for number in range(len(many))]
    while True:
        for greeting, each in zip(greetings, many, strict=True):
            each.again()
            each.say(greeting, *[large] * 3)
            each.hear()
        yield


def aliases(port: int) -> Rounds:
    """Reassign Topic Aliases with every PUBLISH, to topics of the greatest length."""
    many = [Attacker(port) for _ in range(10)]
    for number, each in enumerate(many):
        each.say(wire.connect(5, f"aliases{number}"))
    for turn in itertools.count():
        for number, each in enumerate(many):
            each.say(b"".join(
                wire.publish(5, f"{number}/{turn}/{n}/".ljust(4000, "x"), properties={"topic_alias": 1 + n % 10})
                for n in range(20)
            ))  # fmt: skip
            if not each.hear():
                each.again()
                each.say(wire.connect(5, f"aliases{number}"))
        yield


def deep(port: int) -> Rounds:
    """Use topics and filters of 65,536 levels, of as many as are allowed, and filters of nothing but wildcards."""
    many = [Attacker(port) for _ in range(8)]
    while True:
        for number, each in enumerate(many):
            each.again()
            each.say(
                wire.connect(4, f"deep{number}"),
                wire.subscribe(4, 1, ("/" * 65_535, 0), ("+/" * 32_767 + "+", 0), ("a/" * 127 + "#", 0)),
                *(wire.subscribe(4, 2, ("+/" * n + "#", 0)) for n in range(1, 127)),
                *(wire.subscribe(4, 3, ("+/" * n + "a", 0)) for n in range(1, 127)),
                wire.publish(4, "/".join("a" * 127), b"x") * 20,
                wire.publish(4, "/" * 65_535, b"x"),
            )
            each.hear()
        yield


ATTACKS: dict[str, Callable[[int], Rounds]] = {
    each.__name__: each
    for each in (
        never_reads, drips, announces, subscribes, connects, stays_silent, never_releases, properties, aliases, deep,
    )
}  # fmt: skip


def main(attack: str, port: str) -> None:
    """Run the attack; print ``attacking`` after the first round."""
    for round_number, _ in enumerate(ATTACKS[attack](int(port))):
        if round_number == 0:
            os.nice(10)
            print("attacking", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

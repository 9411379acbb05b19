"""Many clients in one thread, for tests that disturb the broker while traffic flows.

A ``Crowd`` turns over all its clients until a condition holds (``until``) or for a time (``let_run``); nothing happens
in between, so a test is a sequence of steps: run, kill a worker, run, check. Payloads are ``publisher number, sequence
number, padding``; every subscriber keeps the sequence numbers of each publisher in the order of arrival, every
publisher those that it sent and those that were acknowledged. Losses, repetitions and wrong order are computed from
these. Packets are encoded and decoded by ``tests.wire``; only the few kinds that arrive in masses are parsed here.
"""

from __future__ import annotations

import itertools
import selectors
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from shards.placement import home
from tests import wire

RECEIVE_BYTES = 1 << 18
CHUNK_BYTES = 1 << 16
DEADLINE_SECONDS = 30.0

_STAMP = struct.Struct(">II")
_U16 = struct.Struct(">H")


def ids_on(worker: int, workers: int, prefix: str) -> Iterator[str]:
    """Return client ids whose home is that worker."""
    return (each for n in itertools.count() if home(each := f"{prefix}{n}", workers) == worker)


class Member:
    """A connection of a crowd. ``closed``: why it has ended, or empty; ``packets``: those received, without CONNACK and
    those that a subscriber or publisher handles itself.
    """

    def __init__(
        self, crowd: Crowd, client_id: str, *, version: int = 4, receive_buffer: int = 0, **options: Any
    ) -> None:
        self.crowd = crowd
        self.client_id = client_id
        self.version = version
        self.packets: list[wire.Packet] = []
        self.bytes_in = 0
        self._receive_buffer = receive_buffer
        self._connect = wire.connect(version, client_id, **options)
        self.open()
        crowd.add(self)

    def open(self) -> None:
        """Connect and send CONNECT, also again after a close. OSError if nobody listens."""
        self.connack: wire.Packet | None = None
        self.closed = ""
        self.reading = True
        self._in = bytearray()
        self._out = bytearray()
        self._watching = selectors.EVENT_READ
        self.socket = socket.socket()
        if self._receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        try:
            self.socket.connect(self.crowd.address)
        except OSError as error:
            self.socket.close()
            self.closed = f"connect: {error.strerror}"
            raise
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.crowd.selector.register(self.socket, selectors.EVENT_READ, self)
        self.send(self._connect)

    # -- out

    def send(self, data: bytes) -> None:
        """Send, or keep the bytes until the kernel takes them."""
        if self.closed:
            return
        if not self._out:
            try:
                sent = self.socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._lost(f"send: {error.strerror}")
                return
            if sent == len(data):
                return
            data = data[sent:]
        self._out += data
        self._watch()

    @property
    def unsent(self) -> int:
        """The number of bytes that the kernel has not taken yet."""
        return len(self._out)

    def _watch(self) -> None:
        wanted = (selectors.EVENT_READ if self.reading else 0) | (selectors.EVENT_WRITE if self._out else 0)
        if wanted != self._watching and not self.closed:
            if not self._watching:
                self.crowd.selector.register(self.socket, wanted, self)
            elif not wanted:
                self.crowd.selector.unregister(self.socket)
            else:
                self.crowd.selector.modify(self.socket, wanted, self)
            self._watching = wanted

    def read_on(self, reading: bool) -> None:
        """Stop reading, or start again."""
        self.reading = reading
        self._watch()

    # -- in

    def ready(self, events: int) -> None:
        """Handle a socket that is readable or writable."""
        if events & selectors.EVENT_WRITE and self._out:
            try:
                del self._out[: self.socket.send(self._out)]
            except BlockingIOError:
                pass
            except OSError as error:
                self._lost(f"send: {error.strerror}")
                return
            self._watch()
        if events & selectors.EVENT_READ:
            try:
                data = self.socket.recv(RECEIVE_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                self._lost(f"recv: {error.strerror}")
                return
            if not data:
                self._lost("closed by the broker")
                return
            self.bytes_in += len(data)
            self.take(data)

    def take(self, data: bytes) -> None:
        """Handle the whole packets in the received bytes, keep the rest."""
        self._in += data
        buffer, at, end = bytes(self._in), 0, len(self._in)
        while end - at >= 2:
            length, shift, body = 0, 0, at + 1
            while body < end:
                digit = buffer[body]
                body += 1
                length |= (digit & 0x7F) << shift
                shift += 7
                if not digit & 0x80:
                    break
            else:
                break
            if body + length > end:
                break
            first = buffer[at]
            at = body + length
            self.packet(first, buffer, body, at)
            if self.closed:
                return
        del self._in[:at]

    def packet(self, first: int, buffer: bytes, body: int, end: int) -> None:
        """Handle one packet: ``buffer[body:end]`` follows its fixed header."""
        packet = wire.decode(self.version, first & 0x0F, wire.KINDS[first >> 4], buffer[body:end])
        if packet.kind == "CONNACK":
            self.connack = packet
            if packet.reason == 0:
                self.accepted()
        else:
            self.packets.append(packet)

    def accepted(self) -> None:
        """Called when CONNACK 0 has arrived."""

    def _lost(self, why: str) -> None:
        self.closed = why
        if self._watching:
            self.crowd.selector.unregister(self.socket)
        self._watching = 0
        self.socket.close()

    def close(self) -> None:
        """Close the socket without DISCONNECT."""
        if not self.closed:
            self._lost("closed by the test")

    @property
    def accepted_by_broker(self) -> bool:
        """Whether CONNACK 0 has arrived."""
        return self.connack is not None and self.connack.reason == 0


class Subscriber(Member):
    """Subscribes once it is connected. ``received``: by publisher, the sequence numbers in the order of arrival."""

    def __init__(
        self,
        crowd: Crowd,
        client_id: str,
        *filters: str,
        qos: int = 0,
        asked: wire.Properties = wire.NOTHING,
        **options: Any,
    ) -> None:
        self.filters = filters
        self.asked = asked  # properties of SUBSCRIBE
        self.qos = qos
        self.subscribed = False
        self.received: dict[int, list[int]] = defaultdict(list)
        self.count = 0
        self.gap_max = 0.0
        self.arrived_at = 0.0
        self.delays: list[float] | None = None  # a list: seconds from the time a message was due to its arrival
        self.held: dict[int, tuple[int, int]] = {}  # Packet Identifier of QoS 2 between PUBREC and PUBREL: its message
        super().__init__(crowd, client_id, **options)

    def accepted(self) -> None:
        if self.filters:
            filters = ((each, self.qos) for each in self.filters)
            self.send(wire.subscribe(self.version, 1, *filters, properties=self.asked))
        else:
            self.subscribed = True

    def take(self, data: bytes) -> None:
        before = self.count
        super().take(data)
        if self.count > before:
            now = time.monotonic()
            if self.arrived_at:
                self.gap_max = max(self.gap_max, now - self.arrived_at)
            self.arrived_at = now

    def watch_gaps(self) -> None:
        """Start to measure the longest pause between two arrivals."""
        self.gap_max, self.arrived_at = 0.0, time.monotonic()

    def gap(self) -> float:
        """The longest pause since ``watch_gaps``, including the current one."""
        return max(self.gap_max, time.monotonic() - self.arrived_at)

    def packet(self, first: int, buffer: bytes, body: int, end: int) -> None:
        kind = first >> 4
        if kind == 3:
            qos = first >> 1 & 3
            at = body + 2 + (buffer[body] << 8 | buffer[body + 1])
            packet_id = 0
            if qos:
                packet_id = buffer[at] << 8 | buffer[at + 1]
                at += 2
            if self.version == 5:
                at += 1 + buffer[at]  # fewer than 128 bytes of properties
            if qos == 2 and packet_id in self.held:
                same = self.held[packet_id] == _STAMP.unpack_from(buffer, at)
                assert (same, first & 0x08) == (True, 0x08), f"{self.client_id}: {packet_id} is in use"
            else:
                publisher, sequence = _STAMP.unpack_from(buffer, at)
                self.received[publisher].append(sequence)
                self.count += 1
                if self.delays is not None:
                    self.delays.append(time.monotonic() - struct.unpack_from(">d", buffer, at + 8)[0])
            if qos == 1:
                self.send(b"\x40\x02" + _U16.pack(packet_id))
            elif qos == 2:
                self.held.setdefault(packet_id, _STAMP.unpack_from(buffer, at))
                self.send(b"\x50\x02" + _U16.pack(packet_id))
        elif kind == 6:
            packet_id = buffer[body] << 8 | buffer[body + 1]
            self.held.pop(packet_id, None)
            self.send(b"\x70\x02" + _U16.pack(packet_id))
        else:
            super().packet(first, buffer, body, end)
            if kind == 9:
                assert max(self.packets[-1].codes) < 3, f"{self.client_id}: {self.packets[-1]}"
                self.subscribed = True


_numbers = itertools.count(1)


class Publisher(Member):
    """Publishes to one topic, after ``begin``.

    ``rate``: messages per second, 0: as fast as ``window`` (unacknowledged ones at QoS 1 and 2) and ``room`` (how many
    more may be sent now) allow. ``count``: how many in all. ``acknowledged``: the sequence numbers that the broker has
    acknowledged, in the order of its answers.
    """

    def __init__(
        self, crowd: Crowd, client_id: str, topic: str, *, qos: int = 0, rate: float = 0.0, window: int = 50,
        payload_bytes: int = 16, count: int = 1 << 31, retain: bool = False,
        room: Callable[[], int] | None = None, packet_ids: int = 65535, **options: Any,
    ) -> None:  # fmt: skip
        self.number = next(_numbers)
        self.topic = topic
        self.qos = qos
        self.rate = rate
        self.window = window
        self.count = count
        self.room = room
        self.sent = 0
        self.acknowledged: list[int] = []
        self.refused: list[tuple[int, int]] = []
        self.late_max = 0.0
        self._due = float("inf")
        self._open: dict[int, int] = {}  # Packet Identifier -> sequence number
        self._sent_at: dict[int, float] = {}
        self.ack_seconds_max = 0.0
        self._next_id = 0
        self._packet_ids = packet_ids
        self._open_max = min(60_000, packet_ids // 2)  # the bound of publishers with a rate, instead of the window
        self._head = wire.binary(topic)
        self._padding = bytes(max(0, payload_bytes - 16))
        super().__init__(crowd, client_id, **options)
        length = len(self._head) + (2 if qos else 0) + (1 if self.version == 5 else 0) + 16 + len(self._padding)
        self._fixed = bytes([0x30 | qos << 1 | retain]) + wire.varint(length) + self._head
        self.packet_bytes = len(self._fixed) + length - len(self._head)

    def begin(self) -> None:
        """Start to publish."""
        self._due = time.monotonic()

    def stop(self) -> None:
        """Send no new messages."""
        self.count = self.sent

    @property
    def done(self) -> bool:
        """Whether all messages are sent and answered."""
        return self.sent >= self.count and not self._open and not self.unsent

    @property
    def unanswered(self) -> int:
        """The number of messages sent whose handshake is open."""
        return len(self._open)

    def longest_ack(self) -> float:
        """Seconds until the slowest ack since ``ack_seconds_max`` was set to 0, including acks not yet received."""
        return max(self.ack_seconds_max, *(time.monotonic() - sent for sent in self._sent_at.values()), 0.0)

    def room_before(self, reader: Subscriber, lag: int) -> int:
        """Return how many more may be sent so that the reader is at most ``lag`` messages behind."""
        return lag - (self.sent - len(reader.received[self.number]))

    def _message(self, now: float) -> bytes:
        packet_id = b""
        if self.qos:
            self._next_id = self._next_id % self._packet_ids + 1
            assert self._next_id not in self._open, f"{self.client_id}: all Packet Identifiers are in use"
            packet_id = _U16.pack(self._next_id)
            self._open[self._next_id] = self.sent
            self._sent_at[self._next_id] = now
        message = self._packet(self._fixed, packet_id, self.sent, now)
        self.sent += 1
        return message

    def _packet(self, fixed: bytes, packet_id: bytes, sequence: int, now: float) -> bytes:
        stamp = _STAMP.pack(self.number, sequence) + struct.pack(">d", now)
        properties = b"\0" if self.version == 5 else b""
        return b"".join((fixed, packet_id, properties, stamp, self._padding))

    def again(self, packet_id: int, sequence: int) -> bytes:
        """Return a message that was sent before, with DUP set."""
        fixed = bytes([self._fixed[0] | 0x08]) + self._fixed[1:]
        return self._packet(fixed, _U16.pack(packet_id), sequence, time.monotonic())

    def pump(self, now: float) -> float:
        """Send the messages that are due; return when the next is due (inf: not before a packet arrives)."""
        if now < self._due or self.closed or not self.accepted_by_broker or self.sent >= self.count:
            return self._due if self._due > now and not self.closed else float("inf")
        if self.rate:
            self.late_max = max(self.late_max, now - self._due)
            while self._due <= now and self.sent < self.count and (not self.qos or len(self._open) < self._open_max):
                self.send(self._message(self._due))
                self._due += 1.0 / self.rate
            return self._due
        if self.unsent > 4 * CHUNK_BYTES:
            return float("inf")
        allowed = self.window - len(self._open) if self.qos else 1 << 30
        if self.room is not None:
            allowed = min(allowed, self.room())
        allowed = min(allowed, self.count - self.sent, max(1, CHUNK_BYTES // self.packet_bytes))
        if allowed > 0:
            self.send(b"".join([self._message(now) for _ in range(allowed)]))
            return now
        return float("inf")

    def packet(self, first: int, buffer: bytes, body: int, end: int) -> None:
        kind = first >> 4
        if kind not in (4, 5, 7):
            super().packet(first, buffer, body, end)
            return
        packet_id = buffer[body] << 8 | buffer[body + 1]
        reason = buffer[body + 2] if end - body > 2 else 0
        assert packet_id in self._open, f"{self.client_id}: an answer to {packet_id}, which is not open"
        if kind == 7:
            del self._open[packet_id]
            return
        sequence = self._open[packet_id]
        self.ack_seconds_max = max(self.ack_seconds_max, time.monotonic() - self._sent_at.pop(packet_id))
        if reason >= 0x80:
            self.refused.append((sequence, reason))
            del self._open[packet_id]
            return
        self.acknowledged.append(sequence)
        if kind == 4:
            del self._open[packet_id]
        else:
            self.send(b"\x62\x02" + _U16.pack(packet_id))


class Crowd:
    """All clients of a test; a context manager that closes them at the end."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.selector = selectors.DefaultSelector()
        self.members: list[Member] = []
        self.publishers: list[Publisher] = []
        self.on_turn: list[Callable[[float], None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.members:
            member.close()
        self.selector.close()

    def add(self, member: Member) -> None:
        """Add a member; each member calls this itself."""
        self.members.append(member)
        if isinstance(member, Publisher):
            self.publishers.append(member)

    def turn(self, seconds_max: float = 0.05) -> None:
        """Run one round: pump the publishers, then handle the sockets that are ready."""
        now = time.monotonic()
        due = now + seconds_max
        for member in self.publishers:
            due = min(due, member.pump(now))
        for key, events in self.selector.select(max(0.0, due - time.monotonic())):
            key.data.ready(events)
        for call in self.on_turn:
            call(now)

    def until(self, condition: Callable[[], object], what: str, seconds: float = DEADLINE_SECONDS) -> float:
        """Turn until ``condition()``; return the seconds it took. TimeoutError naming ``what`` after ``seconds``."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > seconds:
                raise TimeoutError(f"not within {seconds} s: {what}")
            self.turn()
        return time.monotonic() - began

    def let_run(self, seconds: float) -> None:
        """Let the traffic run for so many seconds."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.turn(min(0.05, left))

    def settle(self) -> None:
        """Wait until every connection is accepted and every subscription answered."""
        self.until(
            lambda: all(
                each.closed or (each.subscribed if isinstance(each, Subscriber) else each.accepted_by_broker)
                for each in self.members
            ),
            "everybody is connected and has subscribed",
        )
        assert not [each.client_id for each in self.members if each.closed], "somebody was not let in"

    def begin(self) -> None:
        """Let all publishers publish."""
        for each in self.publishers:
            each.begin()

    def finish(self, seconds: float = DEADLINE_SECONDS) -> None:
        """Stop the publishers, and wait until all their messages are answered."""
        for each in self.publishers:
            each.stop()
        self.until(
            lambda: all(each.done or each.closed for each in self.publishers),
            f"all is answered: {[(each.client_id, each.unanswered) for each in self.publishers if not each.done]}",
            seconds,
        )


def missing(subscriber: Subscriber, publisher: Publisher) -> set[int]:
    """Return the sequence numbers that were acknowledged (QoS 0: sent) and did not arrive."""
    told = set(publisher.acknowledged) if publisher.qos else set(range(publisher.sent))
    return told - set(subscriber.received[publisher.number])


def repeated(subscriber: Subscriber, publisher: Publisher) -> int:
    """Return the number of repeated arrivals."""
    got = subscriber.received[publisher.number]
    return len(got) - len(set(got))


def in_order(subscriber: Subscriber, publisher: Publisher) -> bool:
    """Whether the first arrivals are in the order of sending."""
    first_arrivals = list(dict.fromkeys(subscriber.received[publisher.number]))
    return first_arrivals == sorted(first_arrivals)

"""One of the two brokers of a bridge: its connection, and what comes from it."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from contextlib import suppress
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import Any, Final, cast

from pyx.bridge.crossing import Crossing
from pyx.core.work import callback
from pyx.protocol.codec import decode
from pyx.protocol.packets import Auth, Connack, Disconnect, Packet, Suback, Unsuback
from pyx.protocol.reasons import MqttError

__all__ = ["BridgeError", "BrokerSide"]

_ANSWERS_BYTES_MAX: Final = 1 << 20
"""That wait to be sent when the bridge answers a message: a broker that sends more, and takes nothing, is given up."""
_CLOSE_SECONDS: Final = 1.0
_BLAMES: Final = frozenset({0x81, 0x82, 0x90, 0x95, 0x99, 0x9A, 0x9B})
"""Reason Codes of a DISCONNECT about what was sent: malformed, protocol error, topic, size, payload, retain, QoS."""
_CONNACK: Final = 0
"""Number under which CONNACK is waited for; Packet Identifiers begin at 1."""


class BridgeError(Exception):
    """A bridge cannot be made, or has ended. The text is why, in one line."""


class BrokerSide(asyncio.Protocol):
    """One broker, as the bridge that is its client sees it. crossing: of its packets. defect: reports internal errors.

    What comes for the other broker before that takes packets (`join`) is held back, and no more of it is read.
    """

    def __init__(self, crossing: Crossing, version: int, defect: Callable[[Exception], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._crossing = crossing
        self._version = version
        self._defect = defect
        self._transport: asyncio.Transport | None = None
        self._other: BrokerSide | None = None
        self._held: list[bytes] = []
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._reads = True
        self._is_other_full = False
        self._goes_on = False
        self.discards = False
        """Whether messages are neither passed on nor acknowledged."""
        self.heard_at = self._loop.time()
        self._written = self._taken = self._answer_bytes = 0
        self.blame = 0
        """Whether the broker has ended the connection over what it was sent: 2: it has said so; 1: perhaps; 0: no."""
        self.ended: asyncio.Future[str] = self._loop.create_future()
        """Done with the reason when the connection has ended."""

    # ------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the connection."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are like it, and no subclasses

    def connection_lost(self, error: Exception | None) -> None:
        """Note that the connection has ended."""
        if not self.ended.done():
            self.blame = 1
        self._end("the connection was closed" if error is None else f"the connection has failed: {error}")

    @callback("watched")
    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        self.heard_at = self._loop.time()
        self._take(data)

    def pause_writing(self) -> None:
        """Read no more of the other broker: this one is slower."""
        if self._other is not None:
            self._other.set_other_full(True)

    def resume_writing(self) -> None:
        """Read the other broker again."""
        if self._other is not None:
            self._other.set_other_full(False)

    # ------------------------------------------------------------ what comes

    def _take(self, data: bytes) -> None:
        try:
            packets = self._crossing.feed(data)
            answers = self._crossing.answers()
            if answers and not self.discards:
                self._answer(answers)
            for packet in self._crossing.own_packets():
                self._own(decode(packet, self._version, from_server=True))
            self._pass_on(b"" if self.discards else packets)
            self._read_or_not()
        except MqttError as error:
            self._end(f"it has sent what is not MQTT: {error}")
        except Exception as error:  # noqa: BLE001  a bridge ends, and not its worker
            self._defect(error)
            self._end("an internal error: the log has the details")

    def _answer(self, answers: bytes) -> None:
        """Send what the bridge itself answers; see from time to time whether the broker takes it."""
        self.write(answers)
        self._answer_bytes += len(answers)
        if self._answer_bytes > _ANSWERS_BYTES_MAX // 4:
            self._answer_bytes = 0
            if self._unsent_bytes() > _ANSWERS_BYTES_MAX:
                self._end("it does not take the answers to what it sends")

    def _pass_on(self, packets: bytes) -> None:
        if self._other is not None:
            self._other.write(packets)
        elif packets:
            self._held.append(packets)

    def _read_or_not(self) -> None:
        """Read on unless the other broker is slower, or has to be waited for; soon, if there is more at hand."""
        if self._transport is None or self._transport.is_closing():
            return
        reads = not (self._held or self._is_other_full or self._crossing.is_behind)
        if reads != self._reads:
            self._reads = reads
            if reads:
                self.heard_at = self._loop.time()
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
        if self._crossing.is_behind and not (self._held or self._is_other_full or self._goes_on):
            self._goes_on = True
            self._loop.call_soon(self._go_on)

    @callback("watched")
    def _go_on(self) -> None:
        self._goes_on = False
        if not self.ended.done():
            self._take(b"")

    def _own(self, packet: Packet) -> None:
        if isinstance(packet, Disconnect):
            self.blame = 2 if packet.reason_code in _BLAMES else 0
            self._end(f"it has ended the connection: {_reason(packet)}")
        elif isinstance(packet, Auth):
            self._end("it asks for an authentication that bridges do not have")
        elif isinstance(packet, Connack):
            self._answered(_CONNACK, packet)
        elif isinstance(packet, Suback | Unsuback):
            self._answered(packet.packet_id, packet)

    def _answered(self, number: int, packet: Packet) -> None:
        waits = self._waiting.pop(number, None)
        if waits is not None and not waits.done():
            waits.set_result(packet)

    def _end(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_result(why)
        for waits in self._waiting.values():
            if not waits.done():
                waits.set_exception(BridgeError(why))
        self._waiting.clear()
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------ for the bridge

    def join(self, other: BrokerSide) -> None:
        """Pass on what comes to the other broker from now on, and what is held back."""
        self._other = other
        held, self._held = self._held, []
        for packets in held:
            other.write(packets)
        self._read_or_not()

    def set_other_full(self, is_full: bool) -> None:
        """Read, or do not read, for the time being."""
        self._is_other_full = is_full
        self._read_or_not()

    def write(self, packets: bytes) -> None:
        """Send packets to this broker."""
        if packets and self._transport is not None and not self._transport.is_closing():
            self._written += len(packets)
            self._transport.write(packets)

    async def connect(self, packet: bytes) -> Connack:
        """Send CONNECT; return the CONNACK. Raises BridgeError."""
        connack: Connack = await self._ask(_CONNACK, packet)
        return connack

    async def ask(self, number: int, packet: bytes, seconds: float) -> Suback | Unsuback:
        """Send SUBSCRIBE or UNSUBSCRIBE with this Packet Identifier; return the answer, which comes behind the messages
        that wait. Raises BridgeError; TimeoutError: for so long neither it nor a message has come.
        """
        answer = self._ask(number, packet)
        while True:
            come = self._crossing.publish_bytes()
            done, _ = await asyncio.wait((answer,), timeout=seconds)
            if done:
                found: Suback | Unsuback = answer.result()
                return found
            if self._reads and self._crossing.publish_bytes() == come:
                raise TimeoutError

    def _ask(self, number: int, packet: bytes) -> asyncio.Future[Any]:
        if self.ended.done():
            raise BridgeError(self.ended.result())
        waits = self._waiting[number] = self._loop.create_future()
        self.write(packet)
        return waits

    def is_silent(self, now: float, seconds: float) -> bool:
        """Whether for so long nothing has come, although it was read, and nothing was taken of what it is sent."""
        taken = self._written - self._unsent_bytes()
        if not self._reads or taken > self._taken:
            self.heard_at = now
        self._taken = taken
        return now - self.heard_at > seconds

    def _unsent_bytes(self) -> int:
        """Bytes that it has not taken yet, those in the kernel included."""
        if self._transport is None or self._transport.is_closing():
            return 0
        unsent = array("i", [0])
        with suppress(OSError):  # it is just being closed
            ioctl(self._transport.get_extra_info("socket").fileno(), TIOCOUTQ, unsent)
        return self._transport.get_write_buffer_size() + unsent[0]

    def give_up(self, why: str) -> None:
        """End the connection."""
        self._end(why)

    def close(self, last: bytes = b"") -> None:
        """Send this, if possible, and close the connection: within _CLOSE_SECONDS in any case."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            with suppress(RuntimeError):  # uvloop's: it is closed already, and says later that it is
                self.write(last)
                transport.close()
                self._loop.call_later(_CLOSE_SECONDS, transport.abort)


def _reason(packet: Disconnect) -> str:
    text = packet.properties.get("reason_string", "")
    return f"reason 0x{packet.reason_code:02x}{f' ({text})' if text else ''}"

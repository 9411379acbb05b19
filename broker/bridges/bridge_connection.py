"""One connection of a bridge: a client of this broker and of another one, joined.

    connect     to the other broker, then to this one: with the Receive Maximum that the other one takes
    join        what either broker sends goes to the other one (`pyx.bridge.crossing`)
    subscribe   here to what goes out, there to what comes in; retained messages are sent each time
    end         when one of the two connections ends, the other one is closed, and it begins anew after a pause

The session here is there from the beginning, whether or not the other broker is: it is the queue of what goes out. Both
sessions last, so what one broker has not acknowledged the other one sends again under its Packet Identifier.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from broker.bridges.broker_side import BridgeError, BrokerSide
from broker.config.bridges import tls_of
from broker.context.sessions import NEVER
from pyx.bridge.crossing import Crossing, TopicMap
from pyx.protocol.codec import PINGREQ_BYTES, encode_connect, encode_subscribe, encode_unsubscribe
from pyx.protocol.packets import Connack, Suback, Subscription
from pyx.protocol.reasons import MqttError, ReasonCode

if TYPE_CHECKING:
    from broker.config.bridges import Bridge
    from broker.config.settings import Settings
    from broker.logs import Log
    from pyx.core.limits import Limits

__all__ = ["BridgeConnection", "BridgeStatus", "ThisBroker"]

_CONNECT_SECONDS: Final = 10.0
"""Time for each step until the two brokers are joined."""
_STEADY_SECONDS: Final = 10.0
"""A connection that has lasted so long is tried again at once."""
_PAUSE_SECONDS: Final = 1.0
"""Between the first two attempts; doubled each time."""
_PACKET_BYTES_MAX: Final = 268_435_460
"""The largest packet of MQTT: what is larger than a broker takes is refused, and not the connection ended."""
_PRIVATE: Final = 0x80
"""Flag of the protocol version of a client before MQTT 5 that is a bridge: it does not get its own messages back, and
retained ones as such. A convention of mosquitto's, which other brokers understand, or refuse."""
_WINDOW: Final = 100
_WINDOW_V4: Final = 20
"""Before MQTT 5 a broker does not say how many it takes: mosquitto refuses more by default."""
_BLAMES_MAX: Final = 6
"""Three connections in a row that the other broker ends over the same message, or six if it does not say so, until the
window is one message; twice as many until it is given up. Three, or six, over retained messages, until these are."""
_SUBSCRIBE_SECONDS: Final = 30.0
"""Time for a SUBACK behind the last message: it comes behind all that waits for the bridge."""
_LAST_ID: Final = 65535
"""SUBSCRIBE have the highest Packet Identifiers: brokers begin with the lowest ones."""
_NO_LOCAL: Final = 0x04
_AS_PUBLISHED: Final = 0x08
_NOT_RETAINED: Final = 0x20
_FAILED: Final = 0x80
_REASON_MAX: Final = 100
"""Characters that are shown of a reason."""
_DISCONNECT: Final = b"\xe0\x00"
"""Of all versions."""
_UNACCEPTABLE_VERSION: Final = 1


class ThisBroker(Protocol):
    """What a bridge needs of the worker that it runs in."""

    @property
    def settings(self) -> Settings:
        """The present settings."""

    @property
    def limits(self) -> Limits:
        """What it takes of clients."""

    def adopt(self, connected: socket.socket) -> None:
        """Serve this socket: the client at its other end may have a client id that only bridges have."""

    def subscribed(self, client_id: str) -> Sequence[bytes]:
        """Return the Topic Filters of a session; none if there is no such session."""

    def defect(self, client_id: str, error: Exception) -> None:
        """Report an internal error."""


class BridgeStatus(NamedTuple):
    """What is known of a connection. Numbers are since the start of the worker."""

    is_connected: bool
    reason: str
    """Why it is not; "": it was not tried yet."""
    connects: int
    messages_out: int
    messages_in: int
    refused: int
    """Messages that one of the two brokers has refused, or that do not fit there."""


class BridgeConnection:
    """The connection with this number of the bridge `name`, which passes on its share of the topics. local_id: its
    client id here; remote_id: at the other broker.
    """

    def __init__(
        self,
        broker: ThisBroker,
        log: Log,
        name: str,
        number: int,
        bridge: Bridge,
        local_id: str,
        remote_id: str,
    ) -> None:
        self._broker = broker
        self._bridge = bridge
        self._log = log.bind(bridge=name, connection=number, address=bridge.address)
        self.name, self.number, self.local_id, self._remote_id = name, number, local_id, remote_id
        self._version = 5 if bridge.version == "5" else 4
        topics = [(each, at % bridge.connections == number) for at, each in enumerate(bridge.topic)]
        self._out_topics = [each for each, is_ours in topics if is_ours and each.direction != "in"]
        self._in_topics = [each for each, is_ours in topics if is_ours and each.direction != "out"]
        self._out = Crossing(
            [
                _map(each.local_filter, each.local_prefix, each.remote_prefix, is_ours)
                for each, is_ours in topics
                if each.direction != "in"
            ],
            _PACKET_BYTES_MAX,
        )
        self._in = Crossing(
            [
                _map(each.remote_filter, each.remote_prefix, each.local_prefix, is_ours)
                for each, is_ours in topics
                if each.direction != "out"
            ],
            _PACKET_BYTES_MAX,
        )
        self._out.pair(self._in)
        self._in.judge(broker.limits)
        self._window = bridge.inflight_max or (_WINDOW if self._version == 5 else _WINDOW_V4)
        self._is_new_here = False
        """Whether the session here has begun since the last connection."""
        self._blamed, self._blames = 0, 0
        """The message over which the other broker has ended the connection, and how often in a row."""
        self._retained_at: float | None = None
        """When retained messages were asked for, at this connection; None: they were not."""
        self._retained_blames = 0
        """How often in a row the other broker has ended the connection soon after that."""
        self._is_private = self._version == 4
        self._reason = ""
        self._connects = 0
        self._joined: list[tuple[BrokerSide, float]] = []
        """The two brokers, while they are joined, and the Keep Alive of each."""
        self._pinged_at = 0.0
        self._is_connected = False
        """Whether they are joined, and know what each is to send."""

    def status(self) -> BridgeStatus:
        """Return what is known."""
        ways = self._out, self._in
        return BridgeStatus(
            self._is_connected,
            self._reason[:_REASON_MAX],
            self._connects,
            self._out.messages,
            self._in.messages,
            sum(each.unmapped + each.too_large + each.refused for each in ways),
        )

    async def run(self) -> None:
        """Connect again and again, until this is cancelled."""
        pause, loop = _PAUSE_SECONDS, asyncio.get_running_loop()
        while True:
            reason, steady_at = "", loop.time() + _STEADY_SECONDS
            try:
                reason = await self._connected()
            except (BridgeError, OSError, ValueError, MqttError) as error:
                reason = str(error) or type(error).__name__
            except Exception as error:  # noqa: BLE001  a bridge ends, and not its worker
                self._broker.defect(self.local_id, error)
                reason = "an internal error"
            if loop.time() >= steady_at:
                pause = _PAUSE_SECONDS
            seconds = pause * random.uniform(0.75, 1.25)
            if reason != self._reason:
                self._log.warning("bridge_disconnected", reason=reason, seconds=round(seconds, 1))
            self._reason = reason
            await asyncio.sleep(seconds)
            pause = min(2 * pause, float(self._bridge.reconnect_seconds_max))

    async def _connected(self) -> str:
        """Connect the two brokers; return why that has ended. Raises BridgeError, OSError."""
        sides: list[BrokerSide] = []
        try:
            await self._enrol(sides)
            remote, connack = await self._connect_remote(sides)
            offers = connack.properties
            window = min(self._window, offers.get("receive_maximum", 65535)) if self._blames < _BLAMES_MAX else 1
            self._out.begin(
                5,
                self._version,
                offers.get("maximum_packet_size", _PACKET_BYTES_MAX),
                offers.get("retain_available", 1) != 0,
                offers.get("maximum_qos", 2),
            )
            local, here = await self._connect_local(sides, self._out, window)
            self._end_unreleased(local, here, remote, connack)
            kept_alive = offers.get("server_keep_alive") or self._bridge.keep_alive_seconds
            self._joined = [(remote, kept_alive), (local, here.properties.get("server_keep_alive", 0))]
            self._pinged_at = remote.heard_at
            remote.join(local)
            local.join(remote)
            await self._subscribe(local, remote, connack)
            self._connects += 1
            self._reason, self._is_connected = "", True
            self._log.info("bridge_connected", session_present=connack.session_present)
            ended = {remote.ended: "", local.ended: "this broker: "}
            if 0 < self._retained_blames < _BLAMES_MAX:
                done, _ = await asyncio.wait(ended, timeout=_STEADY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    await self._subscribe_local(local, connack, are_retained_sent=True)
            await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
            return next(whose + each.result() for each, whose in ended.items() if each.done())
        finally:
            if self._joined:
                self._note_blame(self._joined[0][0].blame)
                self._note_retained(self._joined[0][0].blame)
            self._joined, self._is_connected = [], False
            for each in sides:
                each.close(_DISCONNECT)

    def _note_blame(self, blame: int) -> None:
        """Give up a message over which the other broker ends the connection again and again: it would be sent for ever,
        and all others wait behind it. It is found with a window of one message.
        """
        first = self._out.first_id
        if self._out.answered or not blame or not first:
            if self._out.answered:
                self._blames = 0
            return
        self._blames = self._blames + blame if first == self._blamed else blame
        self._blamed = first
        if self._blames >= 2 * _BLAMES_MAX:
            self._blames = 0
            self._out.refuse(first)
            self._log.error("bridge_message_refused", packet_id=first)

    def _note_retained(self, blame: int) -> None:
        """Send retained messages later if the other broker ends the connection soon after them, for it may be one of
        these; give them up if that goes on. What is retained is sent anew each time, whether or not it is refused.
        """
        if self._retained_at is None or self._retained_blames >= _BLAMES_MAX:
            return
        if asyncio.get_running_loop().time() - self._retained_at >= _STEADY_SECONDS:
            self._retained_blames = 0
        else:
            self._retained_blames += blame
            if self._retained_blames >= _BLAMES_MAX:
                self._log.error("bridge_retained_given_up")

    # ------------------------------------------------------------ this broker

    async def _enrol(self, sides: list[BrokerSide]) -> None:
        """Let the session here have the subscriptions of the configuration, and no others, before the other broker is
        there: it queues what is published until then.
        """
        wanted = {each.local_filter.encode() for each in self._out_topics}
        former = set(self._broker.subscribed(self.local_id))
        if former == wanted:
            return
        local, connack = await self._connect_local(sides, None, 1)
        self._is_new_here |= not connack.session_present
        if former - wanted:
            packet = encode_unsubscribe(5, _LAST_ID, sorted(former - wanted))
            await _in_time(local.ask(_LAST_ID, packet, _CONNECT_SECONDS), "this broker")
        await self._subscribe_local(local, None, are_retained_sent=False)
        local.close(_DISCONNECT)
        await _in_time(local.ended, "this broker")

    async def _connect_local(
        self, sides: list[BrokerSide], crossing: Crossing | None, window: int
    ) -> tuple[BrokerSide, Connack]:
        """Return a connection, and its CONNACK. crossing: None: what comes stays in the session. window: its Receive
        Maximum.
        """
        side = BrokerSide(crossing or Crossing([], _PACKET_BYTES_MAX), 5, self._defect)
        side.discards = crossing is None
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            theirs.setblocking(False)
            self._broker.adopt(theirs)
            await asyncio.get_running_loop().create_connection(lambda: side, sock=ours)
        except BaseException:
            ours.close()
            raise
        sides.append(side)
        connect = encode_connect(
            5,
            self.local_id,
            clean_start=False,
            properties={"session_expiry_interval": NEVER, "receive_maximum": window},
        )
        connack = await _in_time(side.connect(connect), "this broker")
        if connack.reason_code:
            raise BridgeError(f"this broker refuses it: {_refusal(connack)}")
        return side, connack

    async def _subscribe_local(self, local: BrokerSide, there: Connack | None, *, are_retained_sent: bool) -> None:
        """Subscribe to what goes out. there: what the other broker has said, if it is there."""
        filters: dict[bytes, int] = {}
        qos_max = 2 if there is None else there.properties.get("maximum_qos", 2)
        if are_retained_sent:
            self._retained_at = asyncio.get_running_loop().time()
        for topic in self._out_topics:
            text = topic.local_filter.encode()
            filters[text] = max(filters.get(text, 0), min(topic.qos, qos_max))
        options = _NO_LOCAL | _AS_PUBLISHED | (0 if are_retained_sent else _NOT_RETAINED)
        await self._subscribe_to(local, 5, {text: qos | options for text, qos in filters.items()}, "this broker")

    # ------------------------------------------------------------ the other broker

    async def _connect_remote(self, sides: list[BrokerSide]) -> tuple[BrokerSide, Connack]:
        host, port = self._bridge.endpoint
        limits, protocol = self._broker.settings.limits, self._broker.settings.protocol
        self._in.begin(self._version, 5, limits.packet_bytes_max, protocol.retain_available, protocol.maximum_qos)
        side = BrokerSide(self._in, self._version, self._defect)
        context = tls_of(self._bridge) if self._bridge.is_tls else None
        loop = asyncio.get_running_loop()
        connecting = loop.create_connection(
            lambda: side, host, port, ssl=context, server_hostname=host if context else None
        )
        await _in_time(connecting, "the other broker")
        sides.append(side)
        try:
            connack = await _in_time(side.connect(self._connect_packet()), "the other broker")
        except BridgeError:
            if side.ended.done():  # perhaps because of the version
                self._change_version()
            raise
        if connack.reason_code:
            if self._version == 4 and connack.reason_code == _UNACCEPTABLE_VERSION:
                self._change_version()
            raise BridgeError(f"the other broker refuses it: {_refusal(connack)}")
        return side, connack

    def _change_version(self) -> None:
        """Try it without the flag of bridges the next time, or with it again: not every broker takes that."""
        self._is_private = self._version == 4 and not self._is_private

    def _connect_packet(self) -> bytes:
        bridge, limits = self._bridge, self._broker.settings.limits
        properties: dict[str, Any] = {}
        if self._version == 5:
            properties = {
                "session_expiry_interval": 0 if bridge.clean_start else NEVER,
                "receive_maximum": min(self._window, limits.receive_maximum),
                "maximum_packet_size": limits.packet_bytes_max,
            }
        password = None
        if bridge.password_file is not None:
            password = Path(bridge.password_file).read_bytes().rstrip(b"\r\n")
        packet = encode_connect(
            self._version,
            self._remote_id,
            clean_start=bridge.clean_start,
            keep_alive=bridge.keep_alive_seconds,
            username=bridge.username,
            password=password,
            properties=properties or None,
        )
        if self._is_private:
            at = packet.index(b"MQTT") + 4
            packet = packet[:at] + bytes([packet[at] | _PRIVATE]) + packet[at + 1 :]
        return packet

    def _end_unreleased(self, local: BrokerSide, here: Connack, remote: BrokerSide, there: Connack) -> None:
        """End what the session that is gone would have ended: a Packet Identifier of QoS 2 that it uses anew would be
        taken for a repeated message.
        """
        for is_gone, from_gone, back, other in (
            (not there.session_present, self._in, self._out, local),
            (self._is_new_here or not here.session_present, self._out, self._in, remote),
        ):
            if is_gone:
                packets, numbers = from_gone.release()
                back.end(numbers)
                other.write(packets)
        self._is_new_here = False

    async def _subscribe(self, local: BrokerSide, remote: BrokerSide, connack: Connack) -> None:
        """Subscribe at both brokers."""
        self._retained_at = None
        await self._subscribe_local(local, connack, are_retained_sent=not self._retained_blames)
        options = _NO_LOCAL | _AS_PUBLISHED if self._version == 5 else 0
        most = self._broker.settings.protocol.maximum_qos
        filters: dict[bytes, int] = {}
        for topic in self._in_topics:
            text = topic.remote_filter.encode()
            filters[text] = max(filters.get(text, 0), min(topic.qos, most))
        filters = {text: qos | options for text, qos in filters.items()}
        await self._subscribe_to(remote, self._version, filters, "the other broker")

    async def _subscribe_to(self, side: BrokerSide, version: int, filters: dict[bytes, int], who: str) -> None:
        for at, (text, options) in enumerate(filters.items()):
            number = _LAST_ID - at
            packet = encode_subscribe(version, number, [Subscription(text, options)])
            try:
                answer = await side.ask(number, packet, _SUBSCRIBE_SECONDS)
            except TimeoutError:
                raise BridgeError(f"{who} does not answer SUBSCRIBE for {_SUBSCRIBE_SECONDS:.0f} s") from None
            if isinstance(answer, Suback) and answer.codes[0] >= _FAILED:
                code = answer.codes[0]
                self._log.error("bridge_subscription_refused", by=who, filter=text, code=code)

    # ------------------------------------------------------------ time

    def tick(self, now: float) -> None:
        """Tell both brokers that the bridge is there as often as they want to hear it; give up one that is silent."""
        kept_alive = [seconds for _, seconds in self._joined if seconds]
        if not kept_alive:
            return
        is_due = now - self._pinged_at >= min(kept_alive) / 2
        for side, seconds in list(self._joined):
            if seconds and side.is_silent(now, 1.5 * seconds):
                side.give_up("it is silent")
            elif is_due:
                side.write(PINGREQ_BYTES)
        if is_due:
            self._pinged_at = now

    def _defect(self, error: Exception) -> None:
        self._broker.defect(self.local_id, error)


def _map(topic_filter: str, prefix: str, other_prefix: str, is_ours: bool) -> TopicMap:
    return TopicMap(topic_filter.encode(), prefix.encode(), other_prefix.encode(), is_ours)


async def _in_time(waits: Awaitable[Any], who: str) -> Any:
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            return await waits
    except TimeoutError:
        raise BridgeError(f"{who} does not answer within {_CONNECT_SECONDS:.0f} s") from None


def _refusal(connack: Connack) -> str:
    try:
        name = ReasonCode(connack.reason_code).name.replace("_", " ").lower()
    except ValueError:  # of MQTT 3
        name = ""
    text = connack.properties.get("reason_string", "")
    return f"0x{connack.reason_code:02x}{f' {name}' if name else ''}{f' ({text})' if text else ''}"

"""Simulated clients: they follow MQTT 3.1.1 and 5 with real bytes (by tests.wire, not the broker's codec).

A client wants one connection; when it ends, the client reconnects after a while. It keeps its half of the session
as the standards say: its unanswered publishes are sent again on a resumed session and given up on a new
one; QoS 2 messages are accepted once per Packet Identifier until their PUBREL. It answers when it reads, in order.

A connection that is given up before its CONNACK may still reach its home, later than the next one, and begin a session
there. A client that cannot know whose session it found cleans it (`_foreign`).

"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests import wire
from tests.simulation.history import Delivery, Period, Publish, Violation

if TYPE_CHECKING:
    from tests.simulation.network import Line
    from tests.simulation.world import World

CONNACK_SECONDS = 6.0
SLOW_SECONDS = 0.4


class Plan:
    """Properties of a client, fixed for the run."""

    def __init__(
        self, version: int, expiry: int, receive_maximum: int, slow: bool, refusing: bool, no_local: bool = False
    ) -> None:
        self.version = version
        self.expiry = expiry
        """Session Expiry Interval in seconds; a v3 client has 0 (clean) or forever."""
        self.receive_maximum = receive_maximum
        self.slow = slow
        self.refusing = refusing
        """The client now and then refuses a message by a reason code (v5)."""
        self.no_local = no_local
        """All its plain subscriptions have the No Local option (v5)."""


class Client:
    """One client id."""

    def __init__(self, world: World, name: str, home: int, plan: Plan) -> None:
        self.world = world
        self.clock = world.clock
        self.name = name
        self.home = home
        self.plan = plan
        self.version = plan.version
        self.line: Line | None = None
        self.left: list[tuple[Line, bool]] = []
        """Connections that the client itself took over; True: the new connection had its CONNACK."""
        self.connected = False
        self.wants_connection = False
        self.clean_next = False
        self.lines_count = 0
        self.aliases: dict[int, str] = {}
        """Topic Aliases that the broker has set on this connection."""
        # session state that the broker should still have
        self.expect_present: bool | None = False
        self.session_number = 1
        self.wanted: dict[str, tuple[int, int]] = {}
        """Topic Filter as sent -> (QoS, Subscription Identifier)"""
        self.periods: list[Period] = []
        self.uncertain = False
        """The state of the session can no longer be predicted."""
        self._doomed: Line | None = None
        self._strays: list[Line] = []
        self._foreign = False
        """The home may have another session than the one this client remembers."""
        self._lasting = False
        """The session of this connection outlives it."""
        self._connecting_clean = True
        # the client's half of the session
        self.outgoing: dict[int, tuple[Publish, str]] = {}
        self.incoming: dict[int, Publish | None] = {}
        self.requests: dict[int, tuple[str, list[tuple[str, int, int]]]] = {}
        self.unsent: deque[Publish] = deque()
        self._last_id = 0
        self._window = 20
        self._buffer = bytearray()
        self._answers: deque[tuple[str, int]] = deque()
        self._reading = False
        self._closed_at = self._connected_at = 0.0
        self._will: tuple[Publish, float] | None = None
        """The will of this connection, with its delay in seconds."""
        self._pending_will: tuple[Publish, float] | None = None
        """The will of the connection before, and until when a resumption cancels it [MQTT-3.1.3-9]."""
        self._aliases_max = 0
        self._aliases: dict[str, int] = {}
        """Topic Aliases set by this client on this connection."""
        self._connections: list[tuple[float, float]] = []

    # ------------------------------------------------------------ connections

    def connect(self) -> None:
        """Open a connection; an existing one is left to be taken over."""
        world, clock = self.world, self.clock
        self.wants_connection = True
        if self.line is not None:
            self.left.append((self.line, False))
            self._lost()
        self.lines_count += 1
        line = self.line = world.open_line(self)
        clean = self.clean_next or self.plan.expiry == 0
        self.clean_next = False
        if clean:
            self._end_session(False)
        self._connecting_clean = clean
        properties: dict[str, Any] = {}
        self.aliases = {}
        if self.version == 5:
            properties = {"receive_maximum": self.plan.receive_maximum, "topic_alias_maximum": self.lines_count % 4}
            if self.plan.expiry:
                properties["session_expiry_interval"] = self.plan.expiry
        will = None
        if clock.chance(0.2):
            publish = world.history.publish(self, world.plain_topic(), clock.random.randrange(3), False)
            publish.will = True
            delay = clock.random.choice([0, 1, 3]) if self.version == 5 else 0
            will = wire.Will(
                publish.topic, publish.payload, publish.qos, properties={"will_delay_interval": delay} if delay else {}
            )
            self._will = publish, min(delay, self.plan.expiry)
        line.send(wire.connect(self.version, self.name, clean=clean, will=will, properties=properties))
        clock.after(CONNACK_SECONDS, lambda: self._connack_late(line))

    def _connack_late(self, line: Line) -> None:
        if self.line is line and not self.connected:
            self.world.tell(f"{self.name}: no CONNACK")
            line.close()
            self._lost()
            self._come_back()

    def close(self, how: str) -> None:
        """End the connection: 'disconnect', 'close' or 'reset'."""
        line = self.line
        if line is None:
            return
        if how == "disconnect" and self.connected:
            line.send(wire.disconnect(self.version))
        line.close(reset=how == "reset")
        self._lost()

    def _lost(self) -> None:
        """Handle a connection that has ended, as far as this client can tell."""
        if self.line is not None and not self.connected and self.plan.expiry:
            self._strays.append(self.line)
            if not self.expect_present or self.plan.expiry < 100:
                self.expect_present, self._foreign = None, True
            if self._connecting_clean:
                self.uncertain = True  # that CONNECT may still arrive at its home, after a later one
        if self.connected:
            self._pending_will = None
            if self._will is not None and self._will[1]:
                self._pending_will = self._will[0], self.clock.now + self._will[1]
            self._closed_at = self.clock.now
            self._connections.append((self._connected_at, self.clock.now))
        self.line = self._will = None
        self.connected = False
        self._aliases.clear()
        self._buffer.clear()
        self._answers.clear()
        if self.plan.expiry < 100 or not self._lasting:
            self._end_periods()
            if not self._lasting and self.expect_present:
                self.expect_present = False

    def _come_back(self) -> None:
        if self.wants_connection:
            self.clock.after(self.clock.between(0.02, 0.6), self.reconnect)

    def reconnect(self) -> None:
        """Connect unless a connection exists."""
        if self.line is None and self.wants_connection:
            self.connect()

    def session_lost(self) -> None:
        """Handle the death of the worker that held the session, in memory only: the session is lost."""
        # a CONNECT that was given up may still arrive at its home and begin a session
        self._foreign = any(not line.closed_by_worker for line in self._strays)
        self.expect_present = None if self._foreign else False
        self._end_periods()
        if self.line is not None and self.line.closed_by_worker:
            self._doomed = self.line  # packets that still arrive on it belong to a session that no longer exists

    def _end_periods(self) -> None:
        for period in self.periods:
            if period.end is None:
                period.end = self.clock.now

    def _end_session(self, present: bool | None) -> None:
        """Begin a new session; `present`: the Session Present that the broker may still send."""
        self.expect_present = present
        self._end_periods()
        self.session_number += 1
        for publish, _ in self.outgoing.values():
            publish.given_up = True
        self.outgoing.clear()
        self.incoming.clear()
        self.requests.clear()

    # ------------------------------------------------------------ actions of the driver

    def publish(self, topic: str, qos: int, retain: bool) -> None:
        """Publish as soon as the connection and the window allow it."""
        publish = self.world.history.publish(self, topic, qos, retain)
        if self.version == 5 and not retain and self.clock.chance(0.03):
            publish.expiry = self.clock.random.randrange(1, 3)
        self.unsent.append(publish)
        self._pump()

    def subscribe(self, filters: list[tuple[str, int]]) -> None:
        """Add these subscriptions, and send them when connected."""
        items = [(text, qos, self.clock.random.randrange(0, 5)) for text, qos in filters]
        for text, qos, identifier in items:
            self.wanted[text] = (qos, identifier)
        if self.connected:
            self._send_subscribe(items)

    def unsubscribe(self, text: str) -> None:
        """Remove this subscription, and send it when connected."""
        if self.connected and text in self.wanted and not self.requests:
            del self.wanted[text]
            self._end_period(text)
            packet_id = self._next_id()
            self.requests[packet_id] = ("UNSUBSCRIBE", [(text, 0, 0)])
            self._send(wire.unsubscribe(self.version, packet_id, text), ("UNSUBACK", packet_id))

    def _end_period(self, text: str) -> None:
        for period in self.periods:
            if period.end is None and period.text == text:
                period.end = self.clock.now

    def _send_subscribe(self, items: list[tuple[str, int, int]]) -> None:
        packet_id = self._next_id()
        self.requests[packet_id] = ("SUBSCRIBE", items)
        for text, qos, _ in items:
            if qos == 0:
                self._end_period(text)  # messages queued at QoS 1 and 2 are no longer promised
            for period in self.periods:
                if period.end is None and period.text == text:
                    period.qos = min(period.qos, qos)
        identifier = max(item[2] for item in items) if self.version == 5 else 0
        properties = {"subscription_identifier": identifier} if identifier else {}
        no_local = 0x04 if self.plan.no_local else 0
        asked = ((text, qos if text.startswith("$share/") else qos | no_local) for text, qos, _ in items)
        packet = wire.subscribe(self.version, packet_id, *asked, properties=properties)
        self._send(packet, ("SUBACK", packet_id))

    def connected_during(self, start: float, end: float) -> bool:
        """Return whether one connection lasted from `start` to `end`."""
        now = [(self._connected_at, self.clock.now)] if self.connected else []
        return any(opened <= start and closed >= end for opened, closed in self._connections + now)

    @property
    def quiet(self) -> bool:
        """Whether all its requests and messages were answered."""
        return self.connected and not (self.outgoing or self.requests or self.unsent or self.incoming)

    # ------------------------------------------------------------ out

    def _send(self, data: bytes, answer: tuple[str, int] | None = None) -> None:
        if self.line is not None:
            if answer is not None:
                self._answers.append(answer)
            self.line.send(data)

    def _next_id(self) -> int:
        while True:
            self._last_id = self._last_id % 65535 + 1
            if self._last_id not in self.outgoing and self._last_id not in self.requests:
                return self._last_id

    def _pump(self) -> None:
        while self.connected and self.unsent:
            publish = self.unsent[0]
            if publish.qos and len(self.outgoing) >= self._window:
                return
            self.unsent.popleft()
            packet_id = 0
            if publish.qos:
                packet_id = self._next_id()
                self.outgoing[packet_id] = (publish, "PUBLISH")
            self._send_publish(publish, packet_id, dup=False)

    def _send_publish(self, publish: Publish, packet_id: int, dup: bool) -> None:
        if publish.qos != 2 or publish.started is None:
            # a QoS 1 message that is sent again is a new one for the broker
            publish.started = self.clock.now
        publish.sends += 1
        publish.line = self.lines_count
        self.world.history.turns += 1
        publish.turn = self.world.history.turns
        properties: dict[str, Any] = {} if publish.expiry is None else {"message_expiry_interval": publish.expiry}
        packet = wire.publish(
            self.version,
            self._alias(publish.topic, properties),
            publish.payload,
            qos=publish.qos,
            packet_id=packet_id,
            retain=publish.retain,
            dup=dup,
            properties=properties,
        )
        answer = ("PUBACK" if publish.qos == 1 else "PUBREC", packet_id) if publish.qos else None
        self._send(packet, answer)

    def _alias(self, topic: str, properties: dict[str, Any]) -> str:
        """Return the Topic Name to send, after adding its Topic Alias to the properties [MQTT 5, 3.3.2.3.4]."""
        alias = self._aliases.get(topic)
        if alias is not None:
            properties["topic_alias"] = alias
            return ""
        if self._aliases_max and self.clock.chance(0.3):
            alias = properties["topic_alias"] = self.clock.random.randrange(1, min(self._aliases_max, 3) + 1)
            self._aliases = {other: number for other, number in self._aliases.items() if number != alias}
            self._aliases[topic] = alias
        return topic

    # ------------------------------------------------------------ in

    def line_readable(self, line: Line) -> None:
        """Handle arrived bytes or the end of a connection."""
        if line is self.line and not self._reading:
            self._reading = True
            slow = SLOW_SECONDS if self.plan.slow and not self.world.calming else 0.004
            self.clock.after(self.clock.between(0.0001, slow), self._read)

    def _read(self) -> None:
        self._reading = False
        line = self.line
        if line is None:
            return
        self._buffer += line.read()
        while self.line is line:
            packet = self._packet()
            if packet is None:
                break
            self._take(packet)
        if self.line is line and line.down_ended:
            line.close()
            self._lost()
            self._come_back()

    def _packet(self) -> wire.Packet | None:
        buffer = self._buffer
        length = shift = 0
        at = 1
        while True:
            if len(buffer) <= at:
                return None
            digit = buffer[at]
            at += 1
            length |= (digit & 0x7F) << shift
            shift += 7
            if not digit & 0x80:
                break
        if len(buffer) < at + length:
            return None
        body = bytes(buffer[at : at + length])
        first = buffer[0]
        del buffer[: at + length]
        return wire.decode(self.version, first & 15, wire.KINDS[first >> 4], body)

    def _take(self, packet: wire.Packet) -> None:
        if packet.kind != "CONNACK" and not self.connected:
            raise Violation(f"{self.name}: {packet.kind} before CONNACK")
        handlers: dict[str, Callable[[wire.Packet], None]] = {
            "CONNACK": self._connack, "PUBLISH": self._publish_came, "PUBACK": self._puback, "PUBREC": self._pubrec,
            "PUBREL": self._pubrel, "PUBCOMP": self._pubcomp, "SUBACK": self._suback, "UNSUBACK": self._unsuback,
            "DISCONNECT": self._disconnect_came,
        }  # fmt: skip
        handlers[packet.kind](packet)

    def _connack(self, packet: wire.Packet) -> None:
        if packet.reason:
            if packet.reason not in (3, 0x88):
                raise Violation(f"{self.name}: CONNACK {packet.reason:#x}")
            self.world.tell(f"{self.name}: refused {packet.reason:#x}")
            return
        expected = False if self._connecting_clean else self.expect_present
        if expected is False and self._strays and not self._connecting_clean:
            expected, self._foreign = None, True
        if self.line is self._doomed or (self.plan.expiry < 100 and self.clock.now - self._closed_at > 1.0):
            expected = None
        if expected is not None and packet.session_present != expected and not self.uncertain:
            raise Violation(f"{self.name}: Session Present {packet.session_present}, expected {expected}")
        if (self._foreign or self.uncertain) and packet.session_present:
            # begun by a connection that this client gave up before its CONNACK: not the session it remembers
            assert self.line is not None
            self.clean_next = True
            self._send(wire.disconnect(self.version))
            self.line.close()
            self._lost()
            self._come_back()
            return
        self._foreign = False
        if packet.session_present and self._pending_will is not None and not self._strays:
            publish, due = self._pending_will
            publish.taken_back = self.clock.now < due
        self._pending_will = None
        self._aliases_max = packet.properties.get("topic_alias_maximum", 0)
        self.connected = True
        self._connected_at = self.clock.now
        self.left = [(line, True) for line, _ in self.left]
        self._lasting = self.plan.expiry > 0 and not (self.version == 4 and self._connecting_clean)
        self.expect_present = self._lasting and self.line is not self._doomed
        self._window = packet.properties.get("receive_maximum", self.world.settings.limits.receive_maximum)
        if not packet.session_present:
            if not self._connecting_clean:
                self._end_session(self.expect_present)
        else:
            for packet_id, (publish, state) in list(self.outgoing.items()):
                if state == "PUBLISH":
                    self._send_publish(publish, packet_id, dup=True)
                else:
                    self._send(wire.ack(self.version, "PUBREL", packet_id))
        self.requests.clear()
        if self.wanted and (not packet.session_present or self.clock.chance(0.5) or self.plan.expiry < 100):
            self._send_subscribe([(text, qos, identifier) for text, (qos, identifier) in self.wanted.items()])
        elif packet.session_present:
            known = {period.text for period in self.periods if period.end is None}
            missing = [(text, *options) for text, options in self.wanted.items() if text not in known]
            if missing:
                self._send_subscribe(missing)
        self._pump()

    def _publish_came(self, packet: wire.Packet) -> None:
        publish = self.world.history.by_payload.get(packet.payload)
        topic, alias = packet.topic, packet.properties.get("topic_alias", 0)
        if alias > self.lines_count % 4:
            raise Violation(f"{self.name}: Topic Alias {alias} above its maximum")
        if alias:
            topic = self.aliases[alias] = topic or self.aliases.get(alias, "")
        if publish is None or publish.topic != topic:
            raise Violation(f"{self.name}: nobody published {packet.payload!r} to {topic!r}")
        refuse = self.version == 5 and self.plan.refusing and not self.world.calming and self.clock.chance(0.1)
        reason = 0x80 if refuse else 0
        if packet.qos == 2:
            if packet.packet_id not in self.incoming:
                self._delivered(publish, packet, refused=bool(reason))
                if not reason:
                    self.incoming[packet.packet_id] = publish
            else:
                reason = 0
                if self.incoming[packet.packet_id] is not publish:
                    raise Violation(f"{self.name}: Packet Identifier {packet.packet_id} used twice: {packet}")
            self._send(wire.ack(self.version, "PUBREC", packet.packet_id, reason))
        else:
            self._delivered(publish, packet)
            if packet.qos == 1:
                self._send(wire.ack(self.version, "PUBACK", packet.packet_id, reason))
        most = self.plan.receive_maximum if self.version == 5 else self.world.settings.limits.inflight_max
        if len(self.incoming) > most:
            raise Violation(f"{self.name}: more than Receive Maximum {most} under way")

    def _delivered(self, publish: Publish, packet: wire.Packet, refused: bool = False) -> None:
        assert self.line is not None
        self._check_expiry(publish, packet)
        delivery = Delivery(
            self, self.session_number, publish, packet.qos, packet.retain, packet.dup, refused, self.clock.now,
            self.line.opened_at,
        )  # fmt: skip
        self.world.history.deliveries.append(delivery)
        self.world.tell(f"{self.name}: got {publish} qos={packet.qos} dup={packet.dup} retain={packet.retain}")

    def _check_expiry(self, publish: Publish, packet: wire.Packet) -> None:
        """Check that the remaining Message Expiry Interval fits the time that has passed [MQTT-3.3.2-6]."""
        if self.version != 5 or publish.expiry is None or publish.sends != 1 or packet.dup:
            return
        assert publish.started is not None
        left, passed = packet.properties["message_expiry_interval"], self.clock.now - publish.started
        if not publish.expiry - passed - 0.01 <= left <= publish.expiry:
            raise Violation(f"{self.name}: {publish} has {left} s left of {publish.expiry} after {passed:.3f} s")

    def _answered(self, kind: str, packet_id: int) -> None:
        """Check that acks of a connection arrive in the order of the packets that they answer."""
        if not self._answers or self._answers[0] != (kind, packet_id):
            raise Violation(f"{self.name}: {kind} {packet_id} came, but {list(self._answers)[:3]} was next")
        self._answers.popleft()

    def _puback(self, packet: wire.Packet) -> None:
        self._answered("PUBACK", packet.packet_id)
        publish, _ = self.outgoing.pop(packet.packet_id)
        self._acknowledged(publish, packet.reason)

    def _acknowledged(self, publish: Publish, reason: int) -> None:
        publish.acknowledged = self.clock.now
        publish.reason = reason
        self.world.tell(f"{self.name}: {publish} acknowledged {reason:#x}")
        self._pump()

    def _pubrec(self, packet: wire.Packet) -> None:
        self._answered("PUBREC", packet.packet_id)
        publish, _ = self.outgoing[packet.packet_id]
        if packet.reason >= 0x80:
            del self.outgoing[packet.packet_id]
        else:
            self.outgoing[packet.packet_id] = (publish, "PUBREL")
            self._send(wire.ack(self.version, "PUBREL", packet.packet_id))
        self._acknowledged(publish, packet.reason)

    def _pubrel(self, packet: wire.Packet) -> None:
        self.incoming.pop(packet.packet_id, None)
        self._send(wire.ack(self.version, "PUBCOMP", packet.packet_id))

    def _pubcomp(self, packet: wire.Packet) -> None:
        if self.outgoing.pop(packet.packet_id, None) is None:
            raise Violation(f"{self.name}: PUBCOMP {packet.packet_id} for nothing")
        self._pump()

    def _suback(self, packet: wire.Packet) -> None:
        self._answered("SUBACK", packet.packet_id)
        _, items = self.requests.pop(packet.packet_id)
        for (text, qos, _), code in zip(items, packet.codes, strict=True):
            if code != qos:
                raise Violation(f"{self.name}: SUBACK {code:#x} for {text} at QoS {qos}")
            if self.line is not self._doomed:
                self._begin_period(text, qos)
        self.world.tell(f"{self.name}: subscribed {[item[0] for item in items]}")

    def _begin_period(self, text: str, qos: int) -> None:
        for _, items in self.requests.values():  # later requests may be in force already
            qos = min([qos, *(item[1] for item in items if item[0] == text)])
        for period in self.periods:
            if period.end is None and period.text == text:
                if period.qos >= qos:
                    return
                period.end = self.clock.now
        self.periods.append(Period(text, qos, self.clock.now))

    def _unsuback(self, packet: wire.Packet) -> None:
        self._answered("UNSUBACK", packet.packet_id)
        del self.requests[packet.packet_id]

    def _disconnect_came(self, packet: wire.Packet) -> None:
        self.world.tell(f"{self.name}: DISCONNECT {packet.reason:#x}")
        full = self.world.disconnects_when_full and packet.reason == 0x97
        if packet.reason != 0x8E and not full:
            raise Violation(f"{self.name}: DISCONNECT {packet.reason:#x}")

"""An MQTT client for greenlets: `MqttClient`, used by `loadtest.user.MqttUser`.

Methods wait in their own greenlet and never raise for anything that a broker does: they report a failed request to
locust, and return False. Received bytes are processed by the hub (`loadtest.connection`, `pyx.loadgen.client`), and
messages wait in `loadtest.inbox`.
"""

from __future__ import annotations

import random
import ssl
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import gevent
from gevent.hub import Waiter

from loadtest.connection import Connection
from loadtest.inbox import Inbox
from loadtest.payloads import Payloads
from loadtest.reporting import MqttFailure, Reporter
from loadtest.settings import Settings
from loadtest.target import Target
from pyx.loadgen.client import Client, Flight, Message
from pyx.protocol.packets import Connack, Disconnect, Suback, Unsuback
from pyx.protocol.properties import pack
from pyx.protocol.reasons import MqttError

__all__ = ["Message", "MqttClient"]

_PUBLISH: Final = 3
UNSENT_BYTES_MAX: Final = 65_536
"""Output beyond which a publisher waits for its socket."""
RESTLESS_MAX: Final = 32
"""Publishes of one client in a row, before other greenlets have their turn."""
RECONNECT_SECONDS_MAX: Final = 30.0
_CONNECT: Final = 0
"""Used as Packet Identifier when the answer is CONNACK."""


@lru_cache(maxsize=16)
def _context(target: Target) -> ssl.SSLContext | None:
    # one for all clients, because it holds the trusted certificates
    return target.tls() if target.is_tls else None


class MqttClient:
    """One client: `connect`, `subscribe`, `publish`, `receive`, `disconnect`; `MqttUser` makes it.

    reporter: of the locust environment. name: of CONNECT and DISCONNECT in the statistics. payloads: defaults of
    `publish`: sizes, or contents, in turn. reconnect_seconds: pause before it connects again after a connection failed
    or was lost, doubling up to 30 s, randomised by half; None: it does not. answer_seconds: timeout of answers.
    inbox_messages_max: messages that wait for `receive`.
    """

    def __init__(
        self,
        reporter: Reporter,
        target: Target,
        settings: Settings,
        *,
        name: str = "client",
        number: int = 0,
        qos: int = 0,
        payloads: tuple[int | bytes, ...] = (64,),
        reconnect_seconds: float | None = 1.0,
        answer_seconds: float = 30.0,
        inbox_messages_max: int = 0,
        is_wall: bool = False,
    ) -> None:
        self.settings = settings
        self.name = name
        self.qos = qos
        self.session_present = False
        """The last CONNACK."""
        self._reporter, self._target, self._number = reporter, target, number
        self._filters: dict[str, tuple[int, str]] = {}
        self._context = _context(target)
        self._payloads = Payloads(payloads, first=number)
        self._reconnect_seconds, self._answer_seconds = reconnect_seconds, answer_seconds
        self.is_wall = is_wall
        """Whether stamps are of the wall clock, because the subscribers are on another host."""
        self._inbox = Inbox(inbox_messages_max, self._wake, self._read)
        self._engine = self._new_engine()
        self._connection: Connection | None = None
        self._answers: dict[int, Waiter[Any]] = {}
        self._waiting: deque[Waiter[None]] = deque()
        self._reconnecting: gevent.Greenlet[..., Any] | None = None
        self._is_wanted = self._is_flushing = False
        self._restless = 0
        self._keep_alive = settings.keep_alive
        self._hub = gevent.get_hub()

    def _new_engine(self) -> Client:
        other = "not subscribed here"
        tallies = self._reporter.tally("DELIVERY", other), self._reporter.tally("RECEIVED", other)
        engine = Client(self.settings.version, tallies, self.is_wall)
        engine.keeps_messages = self._inbox.keeps
        for topic_filter, (_, label) in self._filters.items():
            self._expect(engine, topic_filter, label)
        return engine

    # ---------------------------------------------------------------- the connection

    @property
    def client_id(self) -> str:
        """The client id given, or assigned by the broker."""
        return self.settings.client_id

    @property
    def is_connected(self) -> bool:
        """Whether a CONNACK was received, and the connection has not ended."""
        return self._engine.is_connected

    @property
    def inflight(self) -> int:
        """Number of QoS 1 and 2 PUBLISHes whose last ack has not arrived."""
        return self._engine.inflight

    @property
    def inbox_messages(self) -> int:
        """Number of messages that wait for `on_message` or `receive`."""
        return len(self._inbox)

    def connect(self, **overrides: Any) -> bool:
        """Send CONNECT, and wait for the answer. overrides: fields of Settings, from now on."""
        self.close()
        before, self.settings = self.settings, replace(self.settings, **overrides)
        if (before.version, before.client_id) != (self.settings.version, self.settings.client_id):
            self._engine = self._new_engine()
        self._is_wanted = True
        self._reporter.enter(self)
        if self._attempt():
            return True
        self._come_back()
        return False

    def disconnect(self, reason_code: int = 0) -> None:
        """Send DISCONNECT, and close. Unacknowledged publishes are not counted."""
        if self._connection is not None and self.is_connected:
            self._engine.disconnect(reason_code)
            self._flush()
            self._connection.finish()
        self.close()

    def close(self) -> None:
        """Close without DISCONNECT: the broker publishes the Will."""
        self._is_wanted = False
        if self._reconnecting is not None and self._reconnecting is not gevent.getcurrent():
            self._reconnecting.kill()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        for flight in self._engine.lost():
            self._wake(flight.waiter, flight)
        self._answer_all(MqttFailure("closed by the client"))
        self._reporter.leave(self)

    def _attempt(self) -> bool:
        begun = time.perf_counter()
        failure: MqttFailure | None = None
        settings = self.settings
        try:
            self._connection = Connection(
                self._target, self._context, self._number, received=self._fed, written=self._written, ended=self._ended
            )
        except OSError as error:
            failure = MqttFailure(error.strerror or str(error))
        else:
            self._engine.connect(
                settings.client_id,
                clean_start=settings.clean_start,
                keep_alive=settings.keep_alive,
                username=settings.username,
                password=None if settings.password is None else settings.password.encode(),
                will=settings.will,
                properties=settings.packed(),
            )
            answer = self._ask(_CONNECT)
            failure = self._welcomed(answer)
        ms = (time.perf_counter() - begun) * 1e3
        if failure is None:
            self._reporter.tally("CONNECT", self.name).add(ms, 0)
            self._make_room()
            return True
        if self._is_wanted:
            self._reporter.failed("CONNECT", self.name, failure, ms)
        self._drop()
        return False

    def _welcomed(self, answer: Connack | MqttFailure) -> MqttFailure | None:
        # returns the error, or None
        if isinstance(answer, MqttFailure):
            return answer
        if answer.reason_code:
            return MqttFailure.of(answer.reason_code, self.settings.version < 5)
        self.session_present = answer.session_present
        assigned = answer.properties.get("assigned_client_identifier")
        if assigned:
            self.settings = replace(self.settings, client_id=assigned)
        self._keep_alive = answer.properties.get("server_keep_alive", self.settings.keep_alive)
        return None

    def _come_back(self) -> None:
        if self._reconnect_seconds is not None and self._reconnecting is None:
            self._reconnecting = gevent.spawn(self._reconnect, self._reconnect_seconds)

    def _reconnect(self, pause: float) -> None:
        try:
            while self._is_wanted and not self.is_connected:
                gevent.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(pause * 2, RECONNECT_SECONDS_MAX)
                if self._is_wanted and self._attempt() and not self.session_present:
                    for topic_filter, (options, label) in list(self._filters.items()):
                        self.subscribe((topic_filter, options), name=label)
        finally:
            self._reconnecting = None

    # ---------------------------------------------------------------- subscriptions

    def subscribe(self, *filters: str | tuple[str, int], name: str | None = None) -> bool:
        """Send SUBSCRIBE, and wait for the answer; each a filter, or one with its QoS or Subscription Options byte.

        name: in the statistics, for this and for deliveries; default: the filter with %c for the client id.
        """
        wanted = [(each, self.qos) if isinstance(each, str) else each for each in filters]
        for topic_filter, options in wanted:
            label = self._label(topic_filter) if name is None else name
            self._filters[topic_filter] = options, label
            self._expect(self._engine, topic_filter, label)
        label = ", ".join(dict.fromkeys(self._filters[each][1] for each, _ in wanted))
        answer = self._request("SUBSCRIBE", label, lambda: self._engine.subscribe(wanted))
        return isinstance(answer, Suback)

    def unsubscribe(self, *filters: str, name: str | None = None) -> bool:
        """Send UNSUBSCRIBE, and wait for the answer."""
        for each in filters:
            self._filters.pop(each, None)
        label = ", ".join(map(self._label, filters)) if name is None else name
        answer = self._request("UNSUBSCRIBE", label, lambda: self._engine.unsubscribe(list(filters)))
        return isinstance(answer, Unsuback)

    def _expect(self, engine: Client, topic_filter: str, label: str) -> None:
        tallies = self._reporter.tally("DELIVERY", label), self._reporter.tally("RECEIVED", label)
        engine.expect(topic_filter.encode(), *tallies)

    def _request(self, request_type: str, label: str, put: Callable[[], int]) -> Suback | Unsuback | MqttFailure:
        begun = time.perf_counter()
        answer: Suback | Unsuback | MqttFailure
        if self._is_ready(0):
            answer = self._ask(put())
            if not isinstance(answer, MqttFailure):
                refused = next((code for code in answer.codes if code >= 0x80), 0)
                answer = MqttFailure.of(refused) if refused else answer
        else:
            answer = MqttFailure("not connected")
        ms = (time.perf_counter() - begun) * 1e3
        if isinstance(answer, MqttFailure):
            if self._is_wanted:
                self._reporter.failed(request_type, label, answer, ms)
        else:
            self._reporter.tally(request_type, label).add(ms, 0)
        return answer

    def _ask(self, packet_id: int) -> Any:
        # sends pending output, and waits for the answer
        waiter: Waiter[Any] = Waiter()
        self._answers[packet_id] = waiter
        self._flush()
        late = MqttFailure(f"no answer within {self._answer_seconds:g} s")
        try:
            return gevent.with_timeout(self._answer_seconds, waiter.get, timeout_value=late)
        finally:
            if self._answers.get(packet_id) is waiter:
                del self._answers[packet_id]

    def _label(self, topic: str) -> str:
        return topic.replace(self.settings.client_id, "%c") if self.settings.client_id else topic

    # ---------------------------------------------------------------- publishing

    def publish(
        self,
        topic: str,
        payload: bytes | None = None,
        qos: int | None = None,
        retain: bool = False,
        name: str | None = None,
        wait: bool = True,
        size: int | None = None,
        properties: dict[str, Any] | None = None,
        content: bytes | None = None,
    ) -> bool:
        """Send PUBLISH. wait: until PUBACK or PUBCOMP; else it returns as soon as the broker's Receive Maximum and the
        socket have room, and the result is reported when the ack arrives.

        Without a payload it sends `content` between the two parts of a stamp, which gives its delivery a latency; or
        `size` bytes, or the next of the client's `payloads`, stamped too. name: in the statistics; default: the topic
        with %c for the client id.
        """
        since = time.monotonic_ns()
        engine = self._engine
        qos = self.qos if qos is None else qos
        label = self._label(topic) if name is None else name
        is_stamped = False
        if payload is None:
            payload, is_stamped = self._payloads.next(size) if content is None else (content, True)
        if not self._has_room(qos) and not self._is_ready(qos):
            if self._is_wanted:
                why = "no room within the Receive Maximum" if self.is_connected else "not connected"
                ms = (time.monotonic_ns() - since) / 1e6
                self._reporter.failed("PUBLISH", label, MqttFailure(why), ms, len(payload))
            return False
        waiter: Waiter[Flight] | None = Waiter() if wait and qos else None
        engine.publish(
            topic.encode(),
            payload,
            self._reporter.tally("PUBLISH", label),
            qos=qos,
            retain=retain,
            properties=pack(properties, _PUBLISH) if properties else b"",
            stamped=is_stamped,
            waiter=waiter,
            since=since,
        )
        if wait:
            self._flush()
        elif not self._is_flushing:
            self._is_flushing = True
            self._hub.loop.run_callback(self._flush)
        if waiter is not None:
            flight = waiter.get()
            return not flight.is_lost and flight.reason_code < 0x80
        self._restless += 1
        if self._restless >= RESTLESS_MAX:
            self._restless = 0
            gevent.sleep(0)
        return True

    def _has_room(self, qos: int) -> bool:
        return (
            self._engine.is_connected
            and self._connection is not None
            and (qos == 0 or self._engine.inflight < self._engine.window)
            and self._connection.unsent_bytes < UNSENT_BYTES_MAX
        )

    def _is_ready(self, qos: int) -> bool:
        # waits until there is room
        end = time.monotonic() + self._answer_seconds
        while not self._has_room(qos):
            left = end - time.monotonic()
            if left <= 0 or not self._is_wanted or (self._connection is None and self._reconnecting is None):
                return False
            waiter: Waiter[None] = Waiter()
            self._waiting.append(waiter)
            try:
                gevent.with_timeout(left, waiter.get, timeout_value=None)
            finally:
                with suppress(ValueError):
                    self._waiting.remove(waiter)
        return True

    # ---------------------------------------------------------------- messages

    @property
    def on_message(self) -> Callable[[Message], None] | None:
        """Called with each received message, in a greenlet of its own: it may wait, and publish."""
        return self._inbox.on_message

    @on_message.setter
    def on_message(self, called: Callable[[Message], None] | None) -> None:
        self._inbox.on_message = called
        self._engine.keeps_messages = self._inbox.keeps

    def receive(self, seconds: float) -> Message | None:
        """Return the next message, or None if none arrives within that time. It needs `inbox_messages_max`; when so
        many wait, the oldest is dropped.
        """
        return self._inbox.receive(seconds)

    def _read(self, is_read: bool) -> None:
        if self._connection is not None:
            if is_read:
                self._connection.resume()
            else:
                self._connection.pause()

    # ---------------------------------------------------------------- calls of the hub and the pulse

    def _fed(self, data: bytes) -> None:
        connection = self._connection
        events = self._engine.feed(data)
        self._flush()
        for event in events:
            if isinstance(event, Flight):
                self._landed(event)
            elif isinstance(event, Message):
                self._inbox.put(event)
            elif isinstance(event, Connack):
                self._wake(self._answers.get(_CONNECT), event)
            elif isinstance(event, Suback | Unsuback):
                self._wake(self._answers.get(event.packet_id), event)
            elif connection is not self._connection:
                continue  # a greenlet that was woken has closed it
            elif isinstance(event, Disconnect):
                self._lose(MqttFailure.of(event.reason_code))
            elif isinstance(event, MqttError):
                self._lose(MqttFailure(f"the broker broke the protocol: {event}"))
        if self._waiting:
            self._make_room()

    def _written(self) -> None:
        self._engine.written()
        if self._waiting:
            self._make_room()

    def _ended(self, connection: Connection, why: str) -> None:
        if connection is self._connection:
            self._lose(MqttFailure(why))

    def _lose(self, failure: MqttFailure) -> None:
        was_connected = self.is_connected
        self._drop()
        self._answer_all(failure)
        if was_connected:
            self._reporter.failed("DISCONNECT", self.name, failure)
            if self._is_wanted:
                self._come_back()
        self._make_room()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        for flight in self._engine.lost():
            self._landed(flight)

    def _answer_all(self, failure: MqttFailure) -> None:
        for waiter in list(self._answers.values()):
            self._wake(waiter, failure)

    def _landed(self, flight: Flight) -> None:
        if flight.is_lost or flight.reason_code >= 0x80:
            failure = MqttFailure("connection lost") if flight.is_lost else MqttFailure.of(flight.reason_code)
            self._reporter.failed("PUBLISH", flight.tally.name, failure, flight.ms, flight.payload_bytes)
        self._wake(flight.waiter, flight)

    def _make_room(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            self._wake(waiter, None)

    def _flush(self) -> None:
        self._is_flushing = False
        if self._connection is not None and self._engine.output_bytes:
            self._connection.send(self._engine.take_output())

    def beat(self) -> None:
        """Once a second: send PINGREQ when it is due, and fail publishes that were not acknowledged in time."""
        if self._keep_alive and not self._engine.ping(self._keep_alive * 0.75):
            self._lose(MqttFailure("no PINGRESP"))
            return
        for flight in self._engine.give_up(self._answer_seconds):
            failure = MqttFailure(f"no acknowledgement within {self._answer_seconds:g} s")
            self._reporter.failed("PUBLISH", flight.tally.name, failure, flight.ms, flight.payload_bytes)
            self._wake(flight.waiter, flight)
        self._flush()

    def _wake(self, waiter: Waiter[Any] | None, value: object) -> None:
        if waiter is None:
            return
        if gevent.getcurrent() is self._hub:
            waiter.switch(value)
        else:
            self._hub.loop.run_callback(waiter.switch, value)

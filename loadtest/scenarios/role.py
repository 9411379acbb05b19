"""What the users of all scenarios have: who runs beside them, a pace, an orderly end, a way to say what is missing."""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from typing import Any, ClassVar, Final

import gevent
from gevent.event import Event

from loadtest.options import payloads
from loadtest.payloads import filler
from loadtest.scenario import filter_for
from loadtest.scenarios.sequences import Sequences
from loadtest.user import Message, MqttUser
from loadtest.verdict import Duplicate, Lost
from pyx.loadgen.client import STAMP_BYTES

QUIET_SECONDS: Final = 2.0
"""Who listens leaves when nothing has come for so long: a busy machine may be silent for a second."""
_LOOK_SECONDS: Final = 0.05
_ACK_SECONDS_MAX: Final = 15.0
_EARLY_SECONDS: Final = 0.002
"""Timers may be."""
_READY_SECONDS_MAX: Final = 30.0
"""Who is to hear us has so long."""
_READY_SECONDS_ELSEWHERE: Final = 3.0
"""The same in a distributed run, where it may be in another process and cannot be seen from here."""


class Role(MqttUser):
    """A user of a scenario. --rate is shared evenly among all who publish; without it each does at its own pace."""

    abstract = True
    beside: ClassVar[tuple[type[Role], ...]] = ()
    """Who runs with it; each has a `fixed_count`."""
    users: ClassVar[int] = 50
    """How many, when -u says nothing."""
    publishes: ClassVar[bool] = True
    """Whether it takes part in --rate."""
    period_seconds: float = 1.0
    """From one task to the next, when --rate says nothing."""
    drain_seconds: ClassVar[float] = 0.0
    """Who waits for messages does so for so long at most when the run ends."""
    is_ready: ClassVar[Event]
    """One of this process listens."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.is_ready = Event()

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.own_topic = self.filled()
        self._payloads = itertools.cycle(payloads(self._option("payload", self.payload)))
        self._due = 0.0
        self._last = 0.0

    @classmethod
    def configure(cls, options: argparse.Namespace) -> None:
        """Take from the options what is of the class: how many of `beside`. ValueError: they do not fit."""

    @property
    def all_topics(self) -> str:
        """A filter for the topics of all publishers."""
        return filter_for(self.topic_template)

    @property
    def is_v5(self) -> bool:
        """Whether there are properties."""
        return self.client.settings.version == 5

    @property
    def has_session(self) -> bool:
        """Whether the broker had one when we connected; MQTT 3.1 does not say."""
        return self.client.session_present or self.client.settings.version == 3

    def wait_time(self) -> float:
        """Seconds until the next task is due: by a schedule, so that a slow answer does not make the next one late.
        A schedule that is behind begins anew.
        """
        rate = self.options.rate
        period = self.options.publishers / rate if rate and self.publishes else self.period_seconds
        now = time.monotonic()
        if now >= self._due - _EARLY_SECONDS:  # else it was woken for something else
            self._due = max(self._due + period, now) if self._due else now + period
        return max(0.0, self._due - now)

    def keep_session(self) -> None:
        """Before MQTT 5 a session that began with Clean Session 1 ends with its connection: begin one that does not."""
        if not self.is_v5:
            self.client.connect(clean_start=False)

    def content(self, head: bytes = b"") -> bytes:
        """The next payload of --payload, without its stamp: `head`, and what fills it up."""
        what = next(self._payloads)
        if isinstance(what, bytes):
            return head + what
        return head + filler(max(0, what - STAMP_BYTES - len(head)))

    def say(self, topic: str, head: bytes = b"", *, name: str | None = None, wait: bool = False, **more: Any) -> bool:
        """Publish the next payload, with `head` first in it."""
        return self.client.publish(
            topic, content=self.content(head), name=name or self.topic_template, wait=wait, **more
        )

    def hear(self, topic_filter: str, called: Callable[[Message], None] | None = None, name: str | None = None) -> None:
        """Subscribe. called: with each message; the deliveries are counted in any case."""

        def came(message: Message) -> None:
            self._last = time.monotonic()
            called(message)  # type: ignore[misc]

        if called is not None:
            self.client.on_message = came
        self.client.subscribe(topic_filter, name=name or self.topic_template)
        self.is_ready.set()

    def fire(self, kind: str, name: str, ms: float | None, length: int = 0, exception: Exception | None = None) -> None:
        """Tell locust of a request. ms: None when it has no duration."""
        self.environment.events.request.fire(
            request_type=kind, name=name, response_time=ms, response_length=length, exception=exception, context={}
        )

    def check(self, heard: Sequences, message: Message) -> None:
        """Tell of what was lost before this message. What comes twice is a failure where it may not, at QoS 0 and 2."""
        lost = heard.heard(message.topic, message.content, message.dup)
        for _ in range(lost):
            self.fire("DELIVERY", self.topic_template, None, exception=Lost("a later message came"))
        if lost < 0 and self.client.qos != 1:
            self.fire("DELIVERY", self.topic_template, None, exception=Duplicate("it was there already"))

    def on_start(self) -> None:
        """Connect, and let those go first who are to hear us."""
        super().on_start()
        seconds = _READY_SECONDS_ELSEWHERE if self._is_worker else _READY_SECONDS_MAX
        for each in self.beside:
            if issubclass(each, Listener):
                each.is_ready.wait(seconds)

    def on_stop(self) -> None:
        """Wait for acks and for what is still to come, then leave."""
        self._until(lambda: not self.client.inflight, _ACK_SECONDS_MAX)
        self._last = time.monotonic()
        self._until(self.is_drained, self.drain_seconds)
        self.leave()

    def is_drained(self) -> bool:
        """Whether nothing more is to come."""
        return time.monotonic() - self._last >= QUIET_SECONDS

    def leave(self) -> None:
        """Disconnect."""
        super().on_stop()

    def _until(self, is_done: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not is_done() and time.monotonic() < end:
            gevent.sleep(_LOOK_SECONDS)


class Listener(Role):
    """A user that only listens."""

    abstract = True
    publishes = False
    period_seconds = 60.0
    drain_seconds = 30.0

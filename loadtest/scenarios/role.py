"""The base of all scenarios' users: companions, a pace, an orderly end, reports of missing messages."""

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
"""Silence after which a listener leaves at the end: a busy machine may be silent for a second."""
_LOOK_SECONDS: Final = 0.05
_ACK_SECONDS_MAX: Final = 15.0
_EARLY_SECONDS: Final = 0.002
"""Earliness tolerated of timers."""
_READY_SECONDS_MAX: Final = 30.0
"""Time until the listeners are connected."""
_READY_SECONDS_ELSEWHERE: Final = 3.0
"""The same in a distributed run, where a listener may be in another process and cannot be seen from here."""


class Role(MqttUser):
    """A user of a scenario. --rate is shared evenly among all publishers; without it each has its own pace."""

    abstract = True
    beside: ClassVar[tuple[type[Role], ...]] = ()
    """Classes that run with it; each has a `fixed_count`."""
    users: ClassVar[int] = 50
    """Number of users without -u."""
    publishes: ClassVar[bool] = True
    """Whether it takes part in --rate."""
    period_seconds: float = 1.0
    """Time from one task to the next, without --rate."""
    drain_seconds: ClassVar[float] = 0.0
    """Longest wait for missing messages when the run ends."""
    is_ready: ClassVar[Event]
    """Set when a listener of this process has subscribed."""

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
        """Apply options of the class: the numbers of `beside`. ValueError: they are invalid."""

    @property
    def all_topics(self) -> str:
        """Return a filter for the topics of all publishers."""
        return filter_for(self.topic_template)

    @property
    def is_v5(self) -> bool:
        """Whether there are properties."""
        return self.client.settings.version == 5

    @property
    def has_session(self) -> bool:
        """Whether the broker had a session when we connected; MQTT 3.1 does not tell."""
        return self.client.session_present or self.client.settings.version == 3

    def wait_time(self) -> float:
        """Return the seconds until the next task is due: by a schedule, so that a slow answer does not delay the next
        one. A schedule that is behind starts again.
        """
        rate = self.options.rate
        period = self.options.publishers / rate if rate and self.publishes else self.period_seconds
        now = time.monotonic()
        if now >= self._due - _EARLY_SECONDS:  # else it was woken for something else
            self._due = max(self._due + period, now) if self._due else now + period
        return max(0.0, self._due - now)

    def keep_session(self) -> None:
        """Make the session last. Before MQTT 5 one that began with Clean Session 1 ends with its connection."""
        if not self.is_v5:
            self.client.connect(clean_start=False)

    def content(self, head: bytes = b"") -> bytes:
        """Return the next payload of --payload, without its stamp: `head`, and filler."""
        what = next(self._payloads)
        if isinstance(what, bytes):
            return head + what
        return head + filler(max(0, what - STAMP_BYTES - len(head)))

    def say(self, topic: str, head: bytes = b"", *, name: str | None = None, wait: bool = False, **more: Any) -> bool:
        """Publish the next payload, with `head` at its beginning."""
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
        """Report a request to locust. ms: None when it has no duration."""
        self.environment.events.request.fire(
            request_type=kind, name=name, response_time=ms, response_length=length, exception=exception, context={}
        )

    def check(self, heard: Sequences, message: Message) -> None:
        """Report messages lost before this one. Duplicates are a failure at QoS 0 and 2."""
        lost = heard.heard(message.topic, message.content, message.dup)
        for _ in range(lost):
            self.fire("DELIVERY", self.topic_template, None, exception=Lost("a later message came"))
        if lost < 0 and self.client.qos != 1:
            self.fire("DELIVERY", self.topic_template, None, exception=Duplicate("it was there already"))

    def on_start(self) -> None:
        """Connect, after the users that listen to it."""
        super().on_start()
        seconds = _READY_SECONDS_ELSEWHERE if self._is_worker else _READY_SECONDS_MAX
        for each in self.beside:
            if issubclass(each, Listener):
                each.is_ready.wait(seconds)

    def on_stop(self) -> None:
        """Wait for acks and for missing messages, then leave."""
        self._until(lambda: not self.client.inflight, _ACK_SECONDS_MAX)
        self._last = time.monotonic()
        self._until(self.is_drained, self.drain_seconds)
        self.leave()

    def is_drained(self) -> bool:
        """Whether no more messages are expected."""
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

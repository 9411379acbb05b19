"""Scenario of clients that come and go, whose messages wait meanwhile."""

from __future__ import annotations

import time
from typing import Any

import gevent
from gevent.event import Event
from locust import task

from loadtest.scenarios.role import Role
from loadtest.scenarios.sequences import head, parsed
from loadtest.user import Message
from loadtest.verdict import Duplicate, Lost


class Phones(Role):
    """A phone, and a client that writes to it while it is away. docs/scenarios/phones.md

    Its session lasts; --qos 0 is taken as 1, because QoS 0 messages need not be queued.
    """

    weight = 10
    publishes = False
    period_seconds = 2.0
    qos = 1
    topic = "phone/%i/inbox"
    session_expiry = 3600

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.client.qos = max(1, self.client.qos)
        self.sequence = 0
        self.missing: set[int] = set()
        self.is_whole = Event()
        self.writer = self.new_client("writer")

    def on_start(self) -> None:
        """Connect, with a new session."""
        super().on_start()
        self.keep_session()
        self.hear(self.own_topic, self.take)
        self.writer.connect(clean_start=True, session_expiry=0)

    def take(self, message: Message) -> None:
        """Process a message sent to it."""
        sequence = parsed(message.content)
        if sequence in self.missing:
            self.missing.discard(sequence)
            if not self.missing:
                self.is_whole.set()
        elif self.client.qos == 2:
            self.fire("BACKLOG", self.topic_template, None, exception=Duplicate("came twice at QoS 2"))

    @task
    def come_and_go(self) -> None:
        """Disconnect, send messages, reconnect, and check that all of them arrive."""
        self.client.disconnect()
        self.is_whole.clear()
        for _ in range(self.options.backlog):
            self.missing.add(self.sequence)
            self.writer.publish(self.own_topic, content=self.content(head(self.sequence)), name=self.topic_template)
            self.sequence += 1
        gevent.sleep(self.options.away)
        begun = time.monotonic()
        self.client.connect(clean_start=False)
        if not self.has_session:
            self.fire("BACKLOG", self.topic_template, None, exception=Lost("the session"))
            self.hear(self.own_topic, self.take)
        elif self.is_whole.wait(self.options.patience):
            self.fire("BACKLOG", self.topic_template, (time.monotonic() - begun) * 1e3)
        for _ in self.missing:
            self.fire("BACKLOG", self.topic_template, None, exception=Lost("what came while away"))
        self.missing.clear()

    def leave(self) -> None:
        """End the session."""
        self.writer.disconnect()
        self.client.connect(clean_start=True, session_expiry=0)
        super().leave()

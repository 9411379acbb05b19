"""Scenario of a back end: a few consumers share the messages of thousands of devices."""

from __future__ import annotations

import argparse
import time
from typing import Any

from locust import task

from loadtest.scenarios.role import Listener, Role
from loadtest.scenarios.sequences import HEAD_BYTES, head, parsed
from loadtest.user import Message
from loadtest.verdict import Duplicate, Lost

_ANSWER = "/done"


class Consumer(Listener):
    """A member of the share group: answers each message to its device."""

    fixed_count = 3
    qos = 1
    topic = "backend/%i/work"

    def on_start(self) -> None:
        """Connect and join the group."""
        super().on_start()
        self.hear(f"$share/backend/{self.all_topics}", self.work)

    def work(self, message: Message) -> None:
        """Process a message at once: the answer has the number of the request."""
        self.say(message.topic + _ANSWER, message.content[:HEAD_BYTES], name=self.topic_template + _ANSWER)

    @task
    def listen(self) -> None:
        """Do nothing but listen."""


class SharedBackend(Role):
    """The devices, each of whose messages must be processed once. docs/scenarios/shared-backend.md"""

    beside = (Consumer,)
    users = 4000
    weight = 10
    period_seconds = 10.0
    drain_seconds = 30.0
    qos = 1
    topic = Consumer.topic

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.sequence = 0
        self.open: dict[int, float] = {}
        """Sequence number -> time of publishing, for messages not processed yet."""

    @classmethod
    def configure(cls, options: argparse.Namespace) -> None:
        """Apply --members and --consumers."""
        cls.users = options.members
        Consumer.fixed_count = options.consumers

    def on_start(self) -> None:
        """Connect, and listen for answers."""
        super().on_start()
        self.hear(self.own_topic + _ANSWER, self.done, name=self.topic_template + _ANSWER)

    @task
    def ask(self) -> None:
        """Publish one message."""
        self.open[self.sequence] = time.monotonic()
        self.say(self.own_topic, head(self.sequence))
        self.sequence += 1
        self.expire(self.options.patience)

    def done(self, message: Message) -> None:
        """Process an answer."""
        sequence = parsed(message.content)
        asked = self.open.pop(sequence, None)
        if asked is None:
            self.fire("WORK", self.topic_template, None, exception=Duplicate("done twice, or too late"))
        else:
            self.fire("WORK", self.topic_template, (time.monotonic() - asked) * 1e3, len(message.payload))

    def expire(self, seconds: float) -> None:
        """Count messages published before that and not processed as lost."""
        until = time.monotonic() - seconds
        for sequence in [each for each, asked in self.open.items() if asked <= until]:
            del self.open[sequence]
            self.fire("WORK", self.topic_template, None, exception=Lost("never done"))

    def is_drained(self) -> bool:
        """Whether no message is open."""
        return not self.open

    def leave(self) -> None:
        """Count open messages as lost, and leave."""
        self.expire(0.0)
        super().leave()

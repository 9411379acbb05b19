"""Scenario of one heavy subscriber to everything."""

from __future__ import annotations

from typing import Any

from locust import task

from loadtest.scenarios.role import Listener, Role
from loadtest.scenarios.sequences import Sequences, head
from loadtest.user import Message


class Star(Listener):
    """Subscribes to all topics of the fleet, and counts missing messages."""

    fixed_count = 1
    qos = 1
    topic = "star/%i/state"

    def on_start(self) -> None:
        """Connect and subscribe."""
        super().on_start()
        self.heard = Sequences()
        self.hear(self.all_topics, self.arrived)

    def arrived(self, message: Message) -> None:
        """Process a message."""
        self.check(self.heard, message)

    @task
    def listen(self) -> None:
        """Do nothing but listen."""


class StarConsumer(Role):
    """The devices whose messages one subscriber receives. docs/scenarios/star-consumer.md"""

    beside = (Star,)
    users = 100
    weight = 10
    qos = 1
    topic = Star.topic

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.sequence = 0

    @task
    def report(self) -> None:
        """Publish one message."""
        self.say(self.own_topic, head(self.sequence))
        self.sequence += 1

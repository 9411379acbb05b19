"""Scenario of an update: one publisher to all, large, and retained for late clients."""

from __future__ import annotations

import struct
import time
from typing import Any

from locust import task

from loadtest.scenarios.role import Listener, Role
from loadtest.user import Message
from loadtest.verdict import Lost

_CHUNK = struct.Struct("<QHH")
"""Version, chunk, number of chunks."""


class UpdateServer(Role):
    """Publishes one version after the other, in chunks."""

    fixed_count = 1
    publishes = False
    period_seconds = 10.0
    qos = 1
    payload = "65536"
    topic = "update"

    def on_start(self) -> None:
        """Connect."""
        super().on_start()
        self.period_seconds = self.options.every or self.period_seconds

    @task
    def publish_version(self) -> None:
        """Publish all chunks; versions rise from run to run, because the last run's may be retained."""
        version = time.time_ns() // 1_000_000
        for chunk in range(self.options.chunks):
            head = _CHUNK.pack(version, chunk, self.options.chunks)
            self.say(f"{self.own_topic}/{chunk}", head, retain=True, wait=True)

    def leave(self) -> None:
        """Clear all retained messages."""
        for chunk in range(self.options.chunks):
            self.client.publish(f"{self.own_topic}/{chunk}", b"", retain=True, name="end of the update")
        super().leave()


class OverTheAirUpdate(Listener):
    """The devices, each of which must get every version completely. docs/scenarios/over-the-air-update.md"""

    beside = (UpdateServer,)
    users = 100
    weight = 10
    qos = 1
    topic = UpdateServer.topic

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.present = 0
        self.missing: set[int] = set()
        self.since = 0.0
        self.was_there = False
        """Whether it was connected when this version began."""

    def on_start(self) -> None:
        """Connect and subscribe; the present version arrives at once."""
        super().on_start()
        self.hear(f"{self.own_topic}/+", self.take)

    def take(self, message: Message) -> None:
        """Process a chunk."""
        if not message.payload:
            return  # the end of the update
        version, chunk, chunks = _CHUNK.unpack_from(message.content)
        if version < self.present:
            return  # retained chunks arrive in any order
        if version > self.present:
            self.give_up()
            self.present, self.missing = version, set(range(chunks))
            self.was_there = not message.retain and chunk == 0
            self.since = time.monotonic() - (message.latency_ms or 0.0) / 1e3 * self.was_there
        had = len(self.missing)
        self.missing.discard(chunk)
        if had and not self.missing:
            ms = (time.monotonic() - self.since) * 1e3
            self.fire("UPDATE", self.topic_template, ms, len(message.payload) * chunks)

    def give_up(self) -> None:
        """Count an incomplete version as lost, because a newer one is published."""
        if self.missing and self.was_there:
            self.fire("UPDATE", self.topic_template, None, exception=Lost("chunks of a version"))

    @task
    def listen(self) -> None:
        """Do nothing but listen."""

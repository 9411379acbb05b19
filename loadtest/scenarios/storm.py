"""Scenario of a reconnect storm: all clients lose the connection at once, and return at once."""

from __future__ import annotations

import time
from typing import Any

from locust import task

from loadtest.scenarios.role import Role
from loadtest.scenarios.sequences import Sequences, head
from loadtest.user import Message
from loadtest.verdict import Lost


class Persistent(Role):
    """Hears itself, with a lasting session: nothing may be missing when it returns."""

    drain_seconds = 30.0
    qos = 1
    session_expiry = 300

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.sequence = 0
        self.heard = Sequences()

    def on_start(self) -> None:
        """Connect, with a new session, and listen."""
        super().on_start()
        self.keep_session()
        self.hear(self.own_topic, self.arrived)

    def arrived(self, message: Message) -> None:
        """Process one of its own messages."""
        self.check(self.heard, message)

    def speak(self) -> None:
        """Publish one message."""
        self.say(self.own_topic, head(self.sequence))
        self.sequence += 1

    def returned(self, name: str, since: float) -> None:
        """Report how long the reconnection took, and whether the session was kept."""
        if self.has_session:
            self.fire("RETURN", name, (time.monotonic() - since) * 1e3)
            return
        self.fire("RETURN", name, None, exception=Lost("the session"))
        self.hear(self.own_topic, self.arrived)

    def is_drained(self) -> bool:
        """Whether all messages have arrived."""
        return self.sequence == self.heard.next.get(self.own_topic, 0)

    def leave(self) -> None:
        """End the session."""
        self.client.connect(clean_start=True, session_expiry=0)
        super().leave()


class ReconnectStorm(Persistent):
    """Clients behind a gateway that fails now and then. docs/scenarios/reconnect-storm.md"""

    users = 200
    topic = "storm/%i"
    storm_seconds = 20.0

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.storms = self._storms()

    def _storms(self) -> int:
        # by the wall clock: the same moment for all processes
        return int(time.time() / (self.options.every or self.storm_seconds))

    def wait_time(self) -> float:
        """Return the time until the next message, or the storm."""
        until = (self.storms + 1) * (self.options.every or self.storm_seconds) - time.time()
        return max(0.0, min(super().wait_time(), until))

    @task
    def live(self) -> None:
        """Publish a message, or reconnect for the storm."""
        storms = self._storms()
        if storms == self.storms:
            self.speak()
            return
        self.storms = storms
        self.client.close()
        begun = time.monotonic()
        if self.client.connect(clean_start=False):
            self.returned("storm", begun)

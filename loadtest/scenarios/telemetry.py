"""Scenario of many cheap publishers, and of payloads of which a few are large."""

from __future__ import annotations

from typing import ClassVar

from locust import task

from loadtest.scenarios.role import Role


class TelemetryFleet(Role):
    """Devices that publish small messages now and then, and do not subscribe. docs/scenarios/telemetry-fleet.md"""

    users = 200
    weight = 40
    topic = "fleet/%i/telemetry"
    listening: ClassVar[int] = 10
    """One device in this many subscribes to its own topic, as a sample of the delivery time."""

    def on_start(self) -> None:
        """Connect."""
        super().on_start()
        if self.number % self.listening == 0:
            self.hear(self.own_topic)

    @task
    def report(self) -> None:
        """Publish one message; the next does not wait for its acknowledgement."""
        self.say(self.own_topic)


class PayloadMix(TelemetryFleet):
    """Mostly small payloads, every fifth large, and each publisher hears itself. docs/scenarios/payload-mix.md"""

    users = 50
    weight = 5
    qos = 1
    payload = "80:64,20:4096"
    topic = "mix/%i"
    listening = 1

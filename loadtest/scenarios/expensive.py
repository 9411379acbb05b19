"""Scenario of one publisher that costs as much as thousands, beside cheap ones."""

from __future__ import annotations

from locust import task

from loadtest.scenarios.role import Role
from loadtest.scenarios.telemetry import TelemetryFleet


class Expensive(Role):
    """A camera and its viewer: large payloads at QoS 2, one after the other."""

    fixed_count = 1
    publishes = False
    period_seconds = 0.05
    qos = 2
    payload = "262144"
    topic = "camera/%i"

    def on_start(self) -> None:
        """Connect and subscribe."""
        super().on_start()
        self.hear(self.own_topic)

    @task
    def show(self) -> None:
        """Publish a picture, and wait until it has arrived at the broker."""
        self.say(self.own_topic, wait=True)


class ExpensivePublisher(TelemetryFleet):
    """The cheap ones, whose latency is the figure. docs/scenarios/expensive-publisher.md"""

    beside = (Expensive,)
    users = 50
    qos = 1
    topic = "cheap/%i"
    listening = 1

"""A locustfile for tests: each user receives its own publishes, and leaves when all of them have come back."""

from __future__ import annotations

from typing import ClassVar

import gevent
from locust import task
from locust.exception import StopUser
from locust.runners import LocalRunner

from loadtest.user import Message, MqttUser

MESSAGES = 10
ARRIVAL_SECONDS_MAX = 60


class Echo(MqttUser):
    """Publishes MESSAGES at each QoS up to its own, waiting for every second one, and one message without a stamp."""

    reconnect_seconds = None
    qos = 2
    topic = "echo/%c"
    left: ClassVar[int] = 0
    """Number of users that have stopped."""

    @task
    def speak(self) -> None:
        """Publish all messages, wait for all deliveries, then leave."""
        came: list[Message] = []
        self.client.on_message = came.append
        if not self.client.subscribe((self.filled(), 2), name="echo"):
            raise StopUser
        self.client.publish(self.filled(), b"of somebody else", name="echo")
        for qos in range(self.client.qos + 1):
            for number in range(MESSAGES):
                self.client.publish(self.filled(), qos=qos, name="echo", wait=number % 2 == 0)
        expected = 1 + (self.client.qos + 1) * MESSAGES
        with gevent.Timeout(ARRIVAL_SECONDS_MAX, False):
            while len(came) < expected or self.client.inflight:  # a delivery may arrive before the ack of its publish
                gevent.sleep(0.02)
        assert len(came) == expected
        assert all(self.is_in_order(came, qos) for qos in range(3))
        raise StopUser

    def on_stop(self) -> None:
        """Count the user; the last one ends a local run. A distributed run ends by its time."""
        super().on_stop()
        Echo.left += 1
        runner = self.environment.runner
        if isinstance(runner, LocalRunner) and Echo.left == runner.target_user_count:
            gevent.spawn(runner.quit)

    def is_in_order(self, came: list[Message], qos: int) -> bool:
        """Return whether the deliveries of this QoS arrived in the order of their stamps."""
        stamps = [message.payload[4:8] for message in came if message.qos == qos and message.latency_ms is not None]
        return stamps == sorted(stamps, key=lambda each: int.from_bytes(each, "little"))

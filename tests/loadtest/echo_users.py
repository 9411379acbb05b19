"""A locustfile for tests: each user hears what it publishes, and stays until all of it has come back."""

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
    """MESSAGES at each QoS up to its own: waiting, not waiting, and one that has no stamp."""

    reconnect_seconds = None
    qos = 2
    topic = "echo/%c"
    left: ClassVar[int] = 0
    """Of the users."""

    @task
    def speak(self) -> None:
        """All of it, then leave."""
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
            while len(came) < expected or self.client.inflight:  # a copy may come back before its ack
                gevent.sleep(0.02)
        assert len(came) == expected
        assert all(self.is_in_order(came, qos) for qos in range(3))
        raise StopUser

    def on_stop(self) -> None:
        """Whoever is the last ends the run; of a distributed one its time does."""
        super().on_stop()
        Echo.left += 1
        runner = self.environment.runner
        if isinstance(runner, LocalRunner) and Echo.left == runner.target_user_count:
            gevent.spawn(runner.quit)

    def is_in_order(self, came: list[Message], qos: int) -> bool:
        """Whether those of this QoS came in the order of their stamps."""
        stamps = [message.payload[4:8] for message in came if message.qos == qos and message.latency_ms is not None]
        return stamps == sorted(stamps, key=lambda each: int.from_bytes(each, "little"))

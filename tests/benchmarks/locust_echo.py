"""A locustfile for tests.benchmarks.locust_users: each user subscribes to a topic of its own and publishes there."""

from __future__ import annotations

import os
import random
from typing import Any

import gevent
from locust import constant, constant_pacing, events, task

from loadtest.user import MqttUser

PERIOD_SECONDS = float(os.environ["ECHO_PERIOD_SECONDS"])
WAITS = os.environ["ECHO_WAITS"] == "1"
BURST = 1 if WAITS or PERIOD_SECONDS else 100

if os.environ["ECHO_LISTENS"] == "1":

    def listen(**_: Any) -> None:
        """Listen to every single request, and do nothing."""

    events.request.add_listener(listen)


class Echo(MqttUser):
    """A user that receives its own publishes."""

    wait_time = constant_pacing(PERIOD_SECONDS) if PERIOD_SECONDS else constant(0)

    def on_start(self) -> None:
        """Connect and subscribe after a random delay: locust starts users in bursts, but they should publish evenly."""
        gevent.sleep(random.uniform(0, PERIOD_SECONDS))
        super().on_start()
        self.own_topic = self.filled("echo/%c")
        self.client.subscribe(self.own_topic, name="echo")

    @task
    def say(self) -> None:
        """Publish one message, or many in a row if the user waits for nothing."""
        for _ in range(BURST):
            self.client.publish(self.own_topic, name="echo", wait=WAITS)

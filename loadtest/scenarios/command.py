"""Scenario of commands to devices, each with its response."""

from __future__ import annotations

import time
from typing import Any

from locust import task

from loadtest.scenarios.role import Role
from loadtest.scenarios.sequences import HEAD_BYTES, head
from loadtest.user import Message
from loadtest.verdict import Duplicate, Lost

_RESPONSE = "/response"


class CommandAndResponse(Role):
    """An app and the device it commands, two connections. docs/scenarios/command-and-response.md

    MQTT 5: Response Topic and Correlation Data [MQTT 5, 4.10]. Before it both sides know the topic, and the correlation
    is in the payload.
    """

    weight = 10
    inbox_messages_max = 10
    qos = 1
    topic = "command/%i"

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.sequence = 0
        self.device = self.new_client("device")

    def on_start(self) -> None:
        """Connect both."""
        super().on_start()
        self.hear(self.own_topic + _RESPONSE, name=self.topic_template + _RESPONSE)
        self.device.connect()
        self.device.on_message = self.obey
        self.device.subscribe(self.own_topic, name=self.topic_template)

    def obey(self, message: Message) -> None:
        """Answer a command, as the device."""
        if self.is_v5:
            topic = message.properties["response_topic"]
            properties = {"correlation_data": message.properties["correlation_data"]}
        else:
            topic, properties = self.own_topic + _RESPONSE, None
        self.device.publish(
            topic, content=message.content[:HEAD_BYTES], name=self.topic_template + _RESPONSE, wait=False,
            properties=properties,
        )  # fmt: skip

    @task
    def command(self) -> None:
        """Send one command, and wait for its response."""
        correlation = head(self.sequence)
        self.sequence += 1
        properties = {"response_topic": self.own_topic + _RESPONSE, "correlation_data": correlation}
        begun = time.monotonic()
        self.say(self.own_topic, correlation, properties=properties if self.is_v5 else None)
        while (left := begun + self.options.patience - time.monotonic()) > 0:
            response = self.client.receive(left)
            if response is None:
                break
            answered = response.properties.get("correlation_data") if self.is_v5 else response.content
            if answered == correlation:
                self.fire("COMMAND", self.topic_template, (time.monotonic() - begun) * 1e3, len(response.payload))
                return
            self.fire("COMMAND", self.topic_template, None, exception=Duplicate("a response to another command"))
        self.fire("COMMAND", self.topic_template, None, exception=Lost("no response"))

    def leave(self) -> None:
        """Disconnect both."""
        self.device.disconnect()
        super().leave()

"""Scenario of users at dashboards: wildcard subscriptions that change with every page."""

from __future__ import annotations

import random
import time
from typing import Any

from gevent.event import Event
from locust import task

from loadtest.scenarios.role import Role
from loadtest.user import Message
from loadtest.verdict import Lost

SITES = 10
VALUES = 20
READY = "dashboard/ready"
_TOPIC = "dashboard/%s/%s"


class Plant(Role):
    """The source of the data: values of some sites, retained."""

    fixed_count = 1
    period_seconds = 0.02
    qos = 1

    def on_start(self) -> None:
        """Connect; publish all values once before anybody looks."""
        super().on_start()
        self.turn = 0
        for _ in range(SITES * VALUES):
            self.change()
        self.client.publish(READY, self.content(), qos=1, retain=True, name=READY)

    @task
    def change(self) -> None:
        """Publish the next value."""
        self.say(self._topic(), name=_TOPIC % ("+", "+"), retain=True, wait=True)
        self.turn += 1

    def _topic(self) -> str:
        return _TOPIC % (self.turn // VALUES % SITES, self.turn % VALUES)

    def leave(self) -> None:
        """Clear all retained messages."""
        for self.turn in range(SITES * VALUES):
            self.client.publish(self._topic(), b"", qos=0, retain=True, name="end of the plant", wait=False)
        self.client.publish(READY, b"", qos=1, retain=True, name="end of the plant")
        super().leave()


class Dashboards(Role):
    """Opens a page, looks at it, opens the next. docs/scenarios/dashboards.md"""

    beside = (Plant,)
    weight = 5
    publishes = False
    period_seconds = 2.0
    qos = 0

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.page = ""
        self.missing: set[str] = set()
        self.is_whole = Event()

    def on_start(self) -> None:
        """Connect, and wait until there are values."""
        super().on_start()
        self.client.on_message = self.show
        self._open(READY, {READY})

    @task(3)
    def one_site(self) -> None:
        """Show all values of a site."""
        site = random.randrange(SITES)
        self._open(_TOPIC % (site, "#"), {_TOPIC % (site, value) for value in range(VALUES)})

    @task(2)
    def one_value(self) -> None:
        """Show a value of all sites."""
        value = random.randrange(VALUES)
        self._open(_TOPIC % ("+", value), {_TOPIC % (site, value) for site in range(SITES)})

    @task
    def everything(self) -> None:
        """Show the overview."""
        everything = {_TOPIC % (site, value) for site in range(SITES) for value in range(VALUES)}
        self._open("dashboard/#", everything)

    def show(self, message: Message) -> None:
        """Process a value."""
        self.missing.discard(message.topic)
        if not self.missing:
            self.is_whole.set()

    def _open(self, topic_filter: str, topics: set[str]) -> None:
        """Open a page, which is complete when each of its topics has shown a value."""
        name = "/".join("N" if level.isdecimal() else level for level in topic_filter.split("/"))
        if self.page:
            self.client.unsubscribe(self.page, name="the page before")
        self.page = topic_filter
        self.missing = topics
        self.is_whole.clear()
        begun = time.monotonic()
        self.client.subscribe(topic_filter, name=name)
        if self.is_whole.wait(self.options.patience):
            self.fire("PAGE", name, (time.monotonic() - begun) * 1e3)
        else:
            self.fire("PAGE", name, None, exception=Lost("values of a page"))

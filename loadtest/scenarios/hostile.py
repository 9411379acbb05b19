"""Scenario of hostile clients, and a pair that must not notice them."""

from __future__ import annotations

import argparse
import itertools
import time
from typing import Any

from locust import task

from loadtest.scenarios.attacks import NotRefused, Wire, chosen
from loadtest.scenarios.role import Role
from loadtest.scenarios.sequences import Sequences, head
from loadtest.target import Target
from loadtest.user import Message


class ControlPair(Role):
    """Publishes and hears itself: the service that all other clients get meanwhile."""

    fixed_count = 2
    publishes = False
    period_seconds = 0.05
    drain_seconds = 30.0
    qos = 1
    topic = "control/%i"

    def on_start(self) -> None:
        """Connect and listen."""
        super().on_start()
        self.sequence = 0
        self.heard = Sequences()
        self.hear(self.own_topic, self.arrived)

    def arrived(self, message: Message) -> None:
        """Process one of its own messages."""
        self.check(self.heard, message)

    @task
    def speak(self) -> None:
        """Publish one message."""
        self.say(self.own_topic, head(self.sequence))
        self.sequence += 1

    def is_drained(self) -> bool:
        """Whether all messages have arrived."""
        return self.sequence == self.heard.next.get(self.own_topic, 0)


class HostileClients(Role):
    """Makes one attack after the other. docs/scenarios/hostile-clients.md"""

    beside = (ControlPair,)
    users = 20
    publishes = False
    period_seconds = 0.2

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        attacks = chosen(self.options.attacks, bool(self.options.user))
        first = self.number % len(attacks)
        self._turn = itertools.cycle(attacks[first:] + attacks[:first])
        self._attacked = self._target()
        self._count = itertools.count()

    @classmethod
    def configure(cls, options: argparse.Namespace) -> None:
        """Apply --attacks."""
        chosen(options.attacks, bool(options.user))
        if Target.parse(options.host or cls.host or "").is_websocket:
            raise ValueError("HostileClients speaks mqtt:// and mqtts://, not WebSocket")

    def on_start(self) -> None:
        """Do nothing: each attack has connections of its own."""

    @task
    def attack(self) -> None:
        """Make the next attack."""
        attack = next(self._turn)
        kind = "REFUSAL" if attack.is_refusal else "SURVIVAL"
        begun = time.monotonic()
        error: Exception | None = None
        try:
            with Wire(self._attacked, self.options.patience) as wire:
                attack.run(wire, f"{self.client.client_id}-{next(self._count)}")
        except (NotRefused, OSError) as failed:
            error = failed
        self.fire(kind, attack.name, (time.monotonic() - begun) * 1e3, exception=error)

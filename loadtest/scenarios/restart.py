"""Scenario of a rolling restart: the workers of an mqttd end, one after the other, under load."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import gevent
from locust import task

from loadtest.reporting import Reporter
from loadtest.scenarios.role import Role
from loadtest.scenarios.storm import Persistent
from loadtest.verdict import Lost

_LOOK_SECONDS = 0.05
_PAUSE_SECONDS = 0.2
_PAUSE_SECONDS_MAX = 2.0
_TITLE = b"mqttd: worker "


def by_process(supervisor: int) -> dict[int, int]:
    """Return worker -> process id of a supervisor's children, from their titles. ValueError: there are none."""
    found = {}
    try:
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    except OSError:
        raise ValueError(f"--pid {supervisor}: there is no such process") from None
    for pid in children:
        try:
            title = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")
        except OSError:
            continue  # it has just ended
        if title.startswith(_TITLE):
            found[int(title.removeprefix(_TITLE))] = int(pid)
    return found


def by_admin(url: str, patience: float) -> dict[int, int]:
    """Do the same for serving workers, from the admin interface of a local broker. ValueError: it is none."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        try:
            answer = urllib.request.urlopen(f"{parts.scheme}://{parts.netloc}/health", timeout=patience)
        except urllib.error.HTTPError as unhealthy:
            answer = unhealthy  # 503 has the same body
        with answer:
            health = json.loads(answer.read())
        return {each["worker"]: each["pid"] for each in health["workers"] if each["state"] == "ready"}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--metrics {url}: {error}") from None


class Restarter(Role):
    """An operator: ends one worker, and the next when its successor serves."""

    fixed_count = 1
    publishes = False
    period_seconds = 10.0

    def on_start(self) -> None:
        """Do nothing: it needs no connection."""
        self.period_seconds = self.options.every or self.period_seconds
        self.turn = 0
        gevent.sleep(self.period_seconds)  # until the fleet is connected

    @staticmethod
    def workers(options: argparse.Namespace) -> dict[int, int]:
        """Return the running workers."""
        return by_process(options.pid) if options.pid else by_admin(options.metrics, options.patience)

    @task
    def restart(self) -> None:
        """Restart the next worker."""
        before = self.workers(self.options)
        worker = sorted(before)[self.turn % len(before)]
        self.turn += 1
        begun = time.monotonic()
        os.kill(before[worker], signal.Signals[f"SIG{self.options.signal}"])
        while time.monotonic() - begun < self.options.patience:
            gevent.sleep(_LOOK_SECONDS)
            if self.workers(self.options).get(worker, before[worker]) != before[worker]:
                self.fire("RESTART", f"worker {worker}", (time.monotonic() - begun) * 1e3)
                return
        self.fire("RESTART", f"worker {worker}", None, exception=Lost("the worker"))


class Forgiving(Reporter):
    """Does not report lost connections and failed attempts to reconnect: only the return counts."""

    def __init__(self, environment: Any, ended: Callable[[], None]) -> None:
        super().__init__(environment)
        self._ended = ended

    def failed(self, request_type: str, name: str, failure: Exception, ms: float = 0.0, length: int = 0) -> None:
        """Report a failure, except DISCONNECT, which is expected, and CONNECT, which is one more attempt."""
        if request_type == "DISCONNECT":
            self.tally("ENDED", name).add(None, 0)
            self._ended()
        elif request_type == "CONNECT":
            self.tally("RETRY", name).add(None, 0)
        else:
            super().failed(request_type, name, failure, ms, length)


class RollingRestart(Persistent):
    """The fleet, which must return each time and miss nothing. docs/scenarios/rolling-restart.md"""

    beside = (Restarter,)
    users = 50
    period_seconds = 0.5
    reconnect_seconds = None
    topic = "restart/%i"

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.client = self.new_client(reporter=Forgiving(environment, self.ended))
        self.coming: gevent.Greenlet[..., Any] | None = None

    @classmethod
    def configure(cls, options: argparse.Namespace) -> None:
        """Apply --pid or --metrics."""
        if not options.pid and not options.metrics:
            raise ValueError("RollingRestart needs --pid (of mqttd's supervisor) or --metrics (its admin interface)")
        if not Restarter.workers(options):
            raise ValueError(f"{options.pid or options.metrics}: no worker of an mqttd is there")

    @task
    def live(self) -> None:
        """Publish a message, if connected."""
        if self.client.is_connected:
            self.speak()

    def ended(self) -> None:
        """Reconnect after a lost connection, as devices do: after a random pause, which then grows."""
        self.coming = gevent.spawn(self.come_back, time.monotonic())

    def come_back(self, since: float) -> None:
        """Try until the broker accepts it, or the patience is over."""
        pause = _PAUSE_SECONDS
        while time.monotonic() - since < self.options.patience:
            gevent.sleep(pause * random.uniform(0.5, 1.5))
            if self.client.connect(clean_start=False):
                self.returned("restart", since)
                return
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)
        self.fire("RETURN", "restart", None, exception=Lost("the broker"))

    def is_drained(self) -> bool:
        """Whether it is back, and all messages have arrived."""
        return self.client.is_connected and super().is_drained()

    def leave(self) -> None:
        """Leave for good."""
        if self.coming is not None:
            self.coming.kill()
        super().leave()

"""Realistic fleets: locust -f loadtest/locustfile.py --host mqtt://HOST:PORT [SCENARIO ...]

Without a name a mixed fleet runs, in which no request may fail. docs/load-testing.md
"""

from __future__ import annotations

from loadtest import fleets
from loadtest.scenarios.backend import SharedBackend
from loadtest.scenarios.command import CommandAndResponse
from loadtest.scenarios.dashboards import Dashboards
from loadtest.scenarios.expensive import ExpensivePublisher
from loadtest.scenarios.hostile import HostileClients
from loadtest.scenarios.phones import Phones
from loadtest.scenarios.restart import RollingRestart
from loadtest.scenarios.star import StarConsumer
from loadtest.scenarios.storm import ReconnectStorm
from loadtest.scenarios.telemetry import PayloadMix, TelemetryFleet
from loadtest.scenarios.update import OverTheAirUpdate

__all__ = [
    "CommandAndResponse", "Dashboards", "ExpensivePublisher", "HostileClients", "OverTheAirUpdate", "PayloadMix",
    "Phones", "ReconnectStorm", "RollingRestart", "SharedBackend", "StarConsumer", "TelemetryFleet",
]  # fmt: skip

MIX = (
    TelemetryFleet, StarConsumer, OverTheAirUpdate, CommandAndResponse, SharedBackend, Phones, PayloadMix, Dashboards,
)  # fmt: skip

fleets.install(MIX, users=100)

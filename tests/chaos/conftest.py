"""Fixtures: brokers that a test may kill, and crowds of clients for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.broker_process import BrokerProcess
from tests.chaos.crowd import Crowd

StartBroker = Callable[..., BrokerProcess]
OpenCrowd = Callable[[BrokerProcess], Crowd]
Record = Callable[[str, object], None]
"""The fixture ``record_property``: figures for the report, whether the test passes or not."""


@pytest.fixture
def start_broker() -> Iterator[StartBroker]:
    """``start_broker(workers, *arguments, **limits)``. After a test that passed, running brokers must stop cleanly."""
    started: list[BrokerProcess] = []

    def start(workers: int = 4, *arguments: str, **limits: float) -> BrokerProcess:
        environment = {f"MQTTD_LIMITS__{name.upper()}": str(value) for name, value in limits.items()}
        environment["MQTTD_STORE"] = "memory"  # the default here; a test that needs another store names it
        started.append(BrokerProcess(workers, ["--log-format", "json", *arguments], environment))
        return started[-1].start()

    yield start
    try:
        for each in started:
            if each.alive():
                status = each.stop()
                assert status == 0, f"the broker ended with status {status}:\n{each.stderr()[-20000:]}"
            each.assert_sound()
    finally:
        for each in started:
            each.kill()
            each.forget()


@pytest.fixture
def crowd_of() -> Iterator[OpenCrowd]:
    """``crowd_of(broker)``: return a crowd whose clients are closed at the end of the test."""
    with ExitStack() as open_crowds:
        yield lambda broker: open_crowds.enter_context(Crowd(broker.address))

"""Pytest plugin: gives every test suite in whose environment mqttd is installed the fixture `mqttd`.

    def test_it(mqttd):                                  # a broker of this test alone, on a free port
        client.connect(mqttd.host, mqttd.port)

    @pytest.mark.mqttd(workers=4, config={"limits": {"inflight_max": 10}})
    def test_with_settings(mqttd): ...

    @pytest.fixture(scope="session")                     # one for many tests
    def broker(mqttd_factory):
        return mqttd_factory(workers=2)

The fixtures return `broker.testing.Mqttd`. When a test fails, its report includes what the brokers logged during it.
`mqttd_workers` and `mqttd_config` in pytest's configuration (or `-o mqttd_workers=4`) are the defaults.
Loaded by its entry point; `-p no:mqttd` turns it off. docs/testing-with-mqttd.md has examples.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from broker.testing import BrokerFailed, Mqttd

__all__ = ["BrokerFailed", "Mqttd", "mqttd", "mqttd_factory"]

_LOG_CHARACTERS_MAX = 20_000
"""Length of the end of a broker's log that a report shows."""

_RUNNING = pytest.StashKey[dict[Mqttd, int]]()
"""Brokers made by the fixtures -> characters of their log before the current test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the two defaults to pytest's configuration."""
    kind: Any = "int" if pytest.version_tuple >= (8, 4) else "string"
    parser.addini("mqttd_workers", "default number of worker processes of a broker", type=kind, default="1")
    parser.addini("mqttd_config", "default configuration file of a broker, relative to the root directory", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and start the bookkeeping."""
    config.addinivalue_line(
        "markers", "mqttd(workers=1, config=None): number of workers and configuration of the fixture mqttd"
    )
    config.stash[_RUNNING] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note where each log ends, so that the test's report shows only what is logged from here on."""
    running = item.config.stash[_RUNNING]
    for broker in running:
        running[broker] = len(broker.logs)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the brokers' logs to the report of a test that fails."""
    report = yield
    if report.failed:
        for broker, before in item.config.stash[_RUNNING].items():
            report.sections.append((f"log of mqttd at {broker.url}", broker.logs[before:][-_LOG_CHARACTERS_MAX:]))
    return report


@pytest.fixture
def mqttd(request: pytest.FixtureRequest) -> Iterator[Mqttd]:
    """A running broker for this test alone; the marker `mqttd` takes the arguments of `broker.testing.Mqttd`."""
    marker = request.node.get_closest_marker("mqttd")
    if marker is not None and marker.args:
        raise pytest.UsageError("@pytest.mark.mqttd takes its arguments by name: workers=..., config=...")
    with ExitStack() as stack:
        yield _started(request.config, stack, marker.kwargs if marker is not None else {})


@pytest.fixture(scope="session")
def mqttd_factory(request: pytest.FixtureRequest) -> Iterator[Callable[..., Mqttd]]:
    """`mqttd_factory(workers=1, config=None)` starts a broker that runs until `close()` or the end of the session."""
    with ExitStack() as stack:
        yield lambda **settings: _started(request.config, stack, settings)


def _started(config: pytest.Config, stack: ExitStack, settings: Mapping[str, Any]) -> Mqttd:
    defaults: dict[str, Any] = {"workers": int(config.getini("mqttd_workers"))}
    if config.getini("mqttd_config"):
        defaults["config"] = config.rootpath / config.getini("mqttd_config")
    running = config.stash[_RUNNING]
    broker = Mqttd(**{**defaults, **settings})
    stack.callback(running.pop, broker, None)
    stack.callback(broker.close)
    running[broker] = 0
    return broker.start()

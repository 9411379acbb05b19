"""MQTT versions that a scenario runs with, and brokers configured for one file of scenarios.

Most scenarios use ``version``; ``any_version`` adds v3.1. A file whose scenarios need settings of their own has a
fixture ``broker`` that returns ``configured(workers, {...})``; ``connect`` and ``open_connection`` then use it. Both
that broker and the shared one run each scenario on every ``store``, unless it is marked ``one_store``: in `make test`
one worker with the store in memory and four with the store on disk, as users have them; the other two in
`make test-all`. MQTT 3.1 has the same code path as 3.1.1: scenarios that start their ``own_brokers`` run with it in
`make test-all`.

A scenario that lets seconds pass, because MQTT counts in seconds, is a function that ``everywhere`` runs with all
brokers and versions at the same time: it waits once, not eight times.

"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.broker_process import STORES, BrokerProcess, usual_store
from tests.conftest import WORKERS, SharedBroker
from tests.wire import Client, Connect

Configured = Callable[[int, Mapping[str, object]], BrokerProcess]
OpenTo = Callable[[BrokerProcess, int], Client]
Scenario = Callable[[Connect, int, str], None]
"""A scenario on its own: a function that opens connections, the version, and a unique name."""
FOLDER = Path(__file__).parent
NAMES = {3: "v3.1", 4: "v3.1.1", 5: "v5"}


class Everywhere(Protocol):
    """Runs a scenario with these versions, each number of workers and each store, all at the same time."""

    def __call__(self, scenario: Scenario, versions: Sequence[int] = ...) -> None: ...


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store" in metafunc.fixturenames:
        anyone = metafunc.definition.get_closest_marker("one_store")
        metafunc.parametrize("store", STORES[:1] if anyone else STORES)


@pytest.hookimpl(tryfirst=True)  # before those marked `long` are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is None or not item.path.is_relative_to(FOLDER):
            continue
        if callspec.params.get("any_version") == 3 and item.get_closest_marker("own_brokers"):
            item.add_marker(pytest.mark.long)
        if len(STORES) < 2:
            continue
        store, workers = callspec.params.get("store"), callspec.params.get("workers")
        anyone = item.get_closest_marker("one_store")
        if store and workers and not anyone and store != usual_store(workers):
            item.add_marker(pytest.mark.long)


@pytest.fixture(params=[4, 5], ids=NAMES.get)
def version(request: pytest.FixtureRequest) -> int:
    """MQTT 3.1.1 and 5."""
    chosen: int = request.param
    return chosen


@pytest.fixture(params=[3, 4, 5], ids=NAMES.get)
def any_version(request: pytest.FixtureRequest) -> int:
    """MQTT 3.1, 3.1.1 and 5."""
    chosen: int = request.param
    return chosen


@pytest.fixture(scope="module")
def configured_brokers() -> Iterator[dict[tuple[object, ...], BrokerProcess]]:
    """The brokers of ``configured``; they run until the scenarios of the file are done."""
    running: dict[tuple[object, ...], BrokerProcess] = {}
    yield running
    for broker in running.values():
        status = broker.stop()
        said = broker.stderr()
        broker.forget()
        assert status == 0, f"the broker ended with status {status}:\n{said[-20000:]}"
        assert "Traceback" not in said, f"the broker wrote a traceback:\n{said[-20000:]}"


@pytest.fixture
def configured(store: str, configured_brokers: dict[tuple[object, ...], BrokerProcess]) -> Configured:
    """``configured(workers, settings)``: a running broker with these settings, by their names in the environment
    without the prefix (PROTOCOL__MAXIMUM_QOS). Scenarios with the same settings share it.
    """

    def start(workers: int, settings: Mapping[str, object]) -> BrokerProcess:
        key = (workers, store, *sorted(settings.items()))
        running = configured_brokers.get(key)
        if running is None or not running.alive():
            environment = {f"MQTTD_{name}": str(value) for name, value in settings.items()}
            running = BrokerProcess(workers, ["--log-format", "json"], environment, store).start()
            configured_brokers[key] = running
        return running

    return start


@pytest.fixture
def everywhere(shared_broker: SharedBroker, open_to: OpenTo, name: str) -> Everywhere:
    """Runs a scenario with all brokers and versions at the same time: see the module docstring."""

    def run(scenario: Scenario, versions: Sequence[int] = (4, 5)) -> None:
        def one(workers: int, store: str, version: int) -> None:
            numbers = itertools.count(1)
            own = f"{name}{'abc'[version - 3]}{workers}"
            broker = brokers[workers, store]

            def connect(version: int, client_id: str | None = None, **options: Any) -> Client:
                client = open_to(broker, version)
                client.connect(f"{own}x{next(numbers)}" if client_id is None else client_id, **options)
                return client

            try:
                scenario(connect, version, own)
            except BaseException as error:
                error.add_note(f"with {workers} workers, store {store!r} and {NAMES[version]}")
                raise
            assert broker.alive(), "the broker has ended during this test"

        brokers = {case: shared_broker(*case) for case in itertools.product(WORKERS, STORES)}
        cases = [(*broker, version) for broker in brokers for version in versions]
        with ThreadPoolExecutor(len(cases)) as pool:
            for done in [pool.submit(one, *case) for case in cases]:
                done.result()

    return run


def error_line(broker: BrokerProcess, event: str, since: int, address: str) -> dict[str, Any]:
    """Return the log line of this event about the client at this address: the only one from byte ``since`` on."""
    found = [line for line in broker.logged(event, since) if line["address"] == address]
    assert len(found) == 1, f"{len(found)} lines {event} about {address}:\n{broker.stderr(since)}"
    return found[0]

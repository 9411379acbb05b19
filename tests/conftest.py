"""Fixtures for every kind of test: running brokers, fresh names, connections that are closed with the test."""

from __future__ import annotations

import gc
import itertools
import signal
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from tests.broker_process import KIND, BrokerProcess
from tests.groups import arrange, scheduling
from tests.wire import Client, Connect, OpenConnection

#: Every wire-level scenario runs with one worker and over the mesh of four.
WORKERS = (1,) if KIND == "mosquitto" else (1, 4)

#: Shared brokers log every line, and allow any number of take-overs
SHARED = {"MQTTD_LIMITS__LOG_LINES_PER_SECOND_MAX": "1000000", "MQTTD_LIMITS__TAKEOVERS_PER_MINUTE_MAX": "0"}

SharedBroker = Callable[[int, str], BrokerProcess]

_numbers = itertools.count(1)


def pytest_collection(session: pytest.Session) -> None:  # noqa: ARG001
    """Switch the collector off: collecting makes thousands of tests and no garbage."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:  # noqa: ARG001
    """Exempt the collected tests from garbage collection: all of them live until the end."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    from hypothesis import HealthCheck, settings  # not before pytest has it as a plugin

    # no deadline: on a busy machine, or under a sanitizer, the duration of an example proves nothing
    settings.register_profile("mqttd", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("mqttd")
    # a shell ignores Ctrl-C for background jobs, and processes started by these would inherit that
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "one_store: what the test waits for comes before any store, one is enough")
    config.addinivalue_line("markers", "own_brokers: the test starts brokers itself, with MQTT 3.1 in `make test-all`")
    config.addinivalue_line("markers", "mosquitto_differs(how): mosquitto 2.0.11 does not do as the standard says here")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return scheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one of several processes
        arrange(items)
    for item in items:
        differs = item.get_closest_marker("mosquitto_differs")
        if differs is not None and KIND == "mosquitto":
            item.add_marker(pytest.mark.skip(reason=f"mosquitto {differs.args[0]}"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "workers" in metafunc.fixturenames:
        metafunc.parametrize("workers", WORKERS, ids=[f"workers={count}" for count in WORKERS])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    broker = getattr(item, "funcargs", {}).get("broker")
    if report.failed and isinstance(broker, BrokerProcess):
        since = getattr(item, "stderr_before", 0)
        report.sections.append(("stderr of the broker during this test", broker.stderr(since)[-20000:]))
    return report


@pytest.fixture(scope="session")
def running_brokers() -> Iterator[dict[tuple[int, str], BrokerProcess]]:
    """The broker processes by number of workers and store, shared by all tests that do not kill them."""
    running: dict[tuple[int, str], BrokerProcess] = {}
    yield running
    for broker in running.values():
        status = broker.stop()
        try:
            assert status == 0, f"the broker ended with status {status}:\n{broker.stderr()[-20000:]}"
            broker.assert_sound()
        finally:
            broker.forget()


@pytest.fixture
def shared_broker(running_brokers: dict[tuple[int, str], BrokerProcess]) -> SharedBroker:
    """``shared_broker(workers, store)``: a broker that other tests use too: do not kill it, and use fresh names."""

    def with_workers(workers: int, store: str) -> BrokerProcess:
        key = workers, store
        found = running_brokers.get(key)
        if found is None or not found.alive():
            found = running_brokers[key] = BrokerProcess(workers, ["--log-format", "json"], SHARED, store).start()
        return found

    return with_workers


@pytest.fixture
def store() -> str:
    """The store of the `broker`: the usual one, unless a suite runs on every store."""
    return ""


@pytest.fixture
def broker(
    workers: int, store: str, shared_broker: SharedBroker, request: pytest.FixtureRequest
) -> Iterator[BrokerProcess]:
    """The `shared_broker` with the number of workers and the store of the test."""
    found = shared_broker(workers, store)
    request.node.stderr_before = found.stderr_size()
    yield found
    assert found.alive(), "the broker has ended during this test"


@pytest.fixture
def own_broker() -> Iterator[Callable[..., BrokerProcess]]:
    """``own_broker(workers, arguments, environment)``: starts a broker for this test alone."""
    started: list[BrokerProcess] = []

    def start(*arguments: Any, **named: Any) -> BrokerProcess:
        started.append(BrokerProcess(*arguments, **named))
        return started[-1].start()

    yield start
    for each in started:
        if each.alive():
            each.stop()
        each.kill()
        each.forget()


@pytest.fixture
def name() -> str:
    """A fresh name of at most 10 letters and digits: the root of this test's topics and client ids."""
    return f"n{next(_numbers):x}"


@pytest.fixture
def open_to() -> Iterator[Callable[[BrokerProcess, int], Client]]:
    """``open_to(broker, version)``: opens a connection to any broker and sends nothing; closed with the test."""
    opened: list[Client] = []

    def open_one(broker: BrokerProcess, version: int) -> Client:
        opened.append(Client(broker.address, version))
        return opened[-1]

    yield open_one
    for client in opened:
        client.close()


@pytest.fixture
def open_connection(broker: BrokerProcess, open_to: Callable[[BrokerProcess, int], Client]) -> OpenConnection:
    """``open_connection(version)``: opens a connection to the `broker` and sends nothing."""
    return lambda version: open_to(broker, version)


@pytest.fixture
def connect(open_connection: OpenConnection, name: str) -> Connect:
    """``connect(version, client_id=..., **options)``: connects a client, with a fresh id by default; takes CONNACK."""
    numbers = itertools.count(1)

    def connect_one(version: int, client_id: str | None = None, **options: Any) -> Client:
        client = open_connection(version)
        client.connect(f"{name}x{next(numbers)}" if client_id is None else client_id, **options)
        return client

    return connect_one

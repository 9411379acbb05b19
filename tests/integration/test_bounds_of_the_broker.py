"""Bounds on the sum over all workers: exact, wherever clients connect and whichever worker dies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.testing import wait_until
from tests import wire
from tests.broker_process import KIND
from tests.chaos.crowd import ids_on
from tests.counted import CountedBroker
from tests.wire import Client

pytestmark = pytest.mark.skipif(KIND != "mqttd", reason="bounds and counters are mqttd's own")

SECONDS = 60.0
QUOTA_EXCEEDED = 0x97

Start = Callable[..., CountedBroker]


@pytest.fixture
def started() -> Iterator[Start]:
    brokers: list[CountedBroker] = []

    def start(workers: int, *arguments: str, full: str = "end_oldest", **limits: float) -> CountedBroker:
        brokers.append(CountedBroker(workers, arguments, {"MQTTD_SESSIONS_FULL": full}, **limits))
        return brokers[-1].start()

    yield start
    for broker in brokers:
        broker.stop()
        broker.forget()


@pytest.fixture
def came() -> Iterator[Callable[..., Client]]:
    """Return a client that has sent CONNECT and read the CONNACK, with any reason code."""
    clients: list[Client] = []

    def come(broker: CountedBroker, client_id: str, expiry: int = 0, clean: bool = True) -> Client:
        clients.append(Client(broker.address, 5))
        properties = {"session_expiry_interval": expiry} if expiry else {}
        clients[-1].send(wire.connect(5, client_id, clean=clean, properties=properties))
        clients[-1].connack = clients[-1].expect("CONNACK")
        return clients[-1]

    yield come
    for client in clients:
        client.close()


Come = Callable[..., Client]


def reasons(clients: list[Client]) -> list[int]:
    return [client.connack.reason for client in clients]


@pytest.mark.parametrize("many", [2, 4])
def test_connections_max_is_exact(started: Start, came: Come, many: int) -> None:
    """Exactly ten, even if all have the same home; each one that leaves makes room for one."""
    broker = started(many, connections_max=10)
    ids = ids_on(0, many, "a")
    first = [came(broker, next(ids)) for _ in range(7)]
    assert reasons(first) == [0] * 7
    rest = [came(broker, f"b{number}") for number in range(8)]
    assert reasons(rest) == [0] * 3 + [QUOTA_EXCEEDED] * 5
    first[0].disconnect()
    wait_until(lambda: came(broker, "c").connack.reason == 0, SECONDS, "its place is free")
    assert came(broker, "d").connack.reason == QUOTA_EXCEEDED
    assert came(broker, "c").connack.reason == 0, "it takes its own place"


@pytest.mark.parametrize("many", [2, 4])
def test_connections_max_when_all_come_at_once(started: Start, many: int) -> None:
    """Many at the same moment, on all workers: neither more than the bound nor fewer."""
    broker = started(many, connections_max=10)
    clients = [Client(broker.address, 5) for _ in range(40)]

    def connect(part: int) -> None:
        for number in range(part, 40, 4):
            clients[number].send(wire.connect(5, f"e{number}"))

    threads = [threading.Thread(target=connect, args=(part,)) for part in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [client.expect("CONNACK").reason for client in clients].count(0) == 10
    finally:
        for client in clients:
            client.close()


@pytest.mark.parametrize("many", [2, 4])
def test_a_worker_that_is_killed_gives_its_connections_back(started: Start, came: Come, many: int) -> None:
    broker = started(many, connections_max=10)
    ids = ids_on(1, many, "f")
    others = ids_on(0, many, "g")
    assert reasons([came(broker, next(ids)) for _ in range(6)]) == [0] * 6
    assert reasons([came(broker, next(others)) for _ in range(4)]) == [0] * 4
    broker.kill_worker(1)
    assert reasons([came(broker, next(others)) for _ in range(8)]) == [0] * 6 + [QUOTA_EXCEEDED] * 2


# ------------------------------------------------------------------------------------------------------------ sessions


@pytest.fixture(params=["memory", "leveldb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    return ["--store", request.param, "--data-dir", str(tmp_path / "data")]


def leave(came: Come, broker: CountedBroker, *client_ids: str) -> list[bool]:
    """Make lasting sessions, offline; return whether each was there before."""
    present = []
    for client_id in client_ids:
        client = came(broker, client_id, 600, False)
        assert client.connack.reason == 0
        present.append(client.connack.session_present)
        client.disconnect()
    return present


@pytest.mark.parametrize("many", [1, 2, 4])
def test_the_oldest_offline_session_ends(started: Start, came: Come, store: list[str], many: int) -> None:
    """At max - 1, max, max + 1; a client that resumes its session takes no more room; no connected session ends."""
    broker = started(many, *store, sessions_max=3)
    leave(came, broker, "a", "b")
    assert broker.counter("sessions_ended_for_room") == 0
    stays = came(broker, "c", 600, False)
    assert broker.counter("sessions_ended_for_room") == 0
    leave(came, broker, "a", "b", "d")
    assert broker.counter("sessions_ended_for_room") == 1
    stays.send(wire.PINGREQ)
    stays.expect("PINGRESP")
    if many == 1:
        assert leave(came, broker, "b", "d") == [True, True]
        assert leave(came, broker, "a") == [False]
    stays.disconnect()
    line = broker.logged("session_ended_for_room")[0]
    assert line["client"] == "a" or many > 1


@pytest.mark.parametrize("many", [1, 2])
def test_sessions_max_with_refusal(started: Start, came: Come, store: list[str], many: int) -> None:
    """A new session is refused and none ends; an existing one is resumed; one that ends makes room."""
    broker = started(many, *store, full="refuse", sessions_max=2)
    leave(came, broker, "a", "b")
    assert reasons([came(broker, "c", 600), came(broker, "d")]) == [QUOTA_EXCEEDED] * 2
    assert broker.counter("sessions_over_max") == 2
    assert leave(came, broker, "a", "b") == [True, True]
    came(broker, "a").disconnect()  # a clean start, of a session that ends with its connection
    wait_until(lambda: came(broker, "c").connack.reason == 0, SECONDS, "there is room")
    assert came(broker, "e").connack.reason == QUOTA_EXCEEDED


@pytest.mark.parametrize("many", [1, 2])
def test_sessions_max_one(started: Start, came: Come, many: int) -> None:
    """The smallest bound: each new client takes the place of the last one that has left, and of no other."""
    broker = started(many, sessions_max=1)
    leave(came, broker, *(f"c{number}" for number in range(6)))
    connected = came(broker, "x")
    assert reasons([connected, came(broker, "y")]) == [0, QUOTA_EXCEEDED]
    assert broker.logged("sessions_max_reached")
    old = Client(broker.address, 4)
    old.send(wire.connect(4, "z"))
    assert old.expect("CONNACK").reason == 3
    old.close()


@pytest.mark.parametrize("full", ["end_oldest", "refuse"])
def test_a_restart_with_a_smaller_bound(started: Start, came: Come, tmp_path: Path, full: str) -> None:
    """The broker starts. Excess sessions end, oldest first, down to the bound; or stay, and new ones are refused."""
    arguments = ["--store", "leveldb", "--data-dir", str(tmp_path / "data")]
    broker = started(2, *arguments, full=full, sessions_max=0)
    leave(came, broker, *(f"c{number}" for number in range(20)))
    broker.stop()
    broker.environment["MQTTD_LIMITS__SESSIONS_MAX"] = "5"
    broker.start()
    if full == "refuse":
        assert came(broker, "new").connack.reason == QUOTA_EXCEEDED
        assert leave(came, broker, *(f"c{number}" for number in range(20))) == [True] * 20
    else:
        wait_until(lambda: sum(row["sessions"] for row in broker.rows()) == 5, SECONDS, "it has ended what is too much")
        assert broker.counter("sessions_ended_for_room") == 15
        assert leave(came, broker, "c19") == [True]


def test_a_worker_that_is_killed_keeps_the_sessions_of_its_store(started: Start, came: Come, tmp_path: Path) -> None:
    broker = started(2, "--store", "leveldb", "--data-dir", str(tmp_path / "data"), full="refuse", sessions_max=4)
    leave(came, broker, *(next(ids_on(worker, 2, f"h{at}")) for worker in range(2) for at in range(2)))
    broker.kill_worker(1)
    assert came(broker, "i").connack.reason == QUOTA_EXCEEDED
    assert leave(came, broker, *(next(ids_on(1, 2, f"h{at}")) for at in range(2))) == [True] * 2


@pytest.mark.parametrize("size", [0, 1])
def test_session_bytes_max(started: Start, came: Come, size: int) -> None:
    """The sum counts user name, will and client id at CONNECT; then filters, each with the client id."""
    broker = started(1, session_bytes_max=100)
    will = wire.Will("w" * 10, b"p" * 20)
    with_will = Client(broker.address, 5)
    with_will.send(wire.connect(5, "i" * 30, username="u" * (40 + size), will=will))
    assert with_will.expect("CONNACK").reason == (QUOTA_EXCEEDED if size else 0)
    with_will.close()
    client = came(broker, "k" * 10)
    assert client.subscribe(("f" * (80 + size), 0)) == ((QUOTA_EXCEEDED,) if size else (0,))
    assert broker.counter("sessions_too_large") == 2 * size

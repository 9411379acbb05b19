"""SIGKILL of a worker, of all workers and of the supervisor: sessions, subscriptions, retained messages and wills are
as acknowledged, and messages sent to the clients meanwhile are there.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import wire
from tests.broker_process import BrokerProcess
from tests.chaos.conftest import StartBroker
from tests.chaos.crowd import ids_on
from tests.waiting import wait_until
from tests.wire import Client, Will

Kill = Callable[[BrokerProcess], None]
Dial = Callable[[int], Client]


def kill_worker(broker: BrokerProcess) -> None:
    """Kill the first worker, which serves the clients of these tests."""
    broker.kill_worker(0)


def kill_workers(broker: BrokerProcess) -> None:
    """Kill all workers at once; return when all successors serve."""
    since = broker.stderr_size()
    pids = broker.worker_pids().values()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: {line["worker"] for line in broker.logged("worker_ready", since)} == set(range(broker.workers)),
        10.0,
        "all workers are ready again",
    )


def kill_all(broker: BrokerProcess) -> None:
    """Kill the supervisor, so that the kernel kills the workers; start the broker again at once."""
    os.kill(broker.pid, signal.SIGKILL)
    broker.kill()
    broker.start()


def stop(broker: BrokerProcess) -> None:
    """Restart the broker without a kill."""
    broker.restart()


KILLS = [(kill_worker, 4), (kill_worker, 5), (kill_workers, 5), (kill_all, 4), (stop, 5)]
SOAK_KILLS = [(kill_workers, 4), (kill_all, 5), (stop, 4)]


@pytest.fixture
def keeper(workers: int, tmp_path: Path, start_broker: StartBroker) -> BrokerProcess:
    """A broker whose store is on the disk."""
    return start_broker(workers, "--store", "leveldb", "--data-dir", str(tmp_path / "data"))


@pytest.fixture
def dial(keeper: BrokerProcess) -> Iterator[Dial]:
    """``dial(version)``: return a connection to the broker, closed with the test."""
    opened: list[Client] = []

    def connection(version: int) -> Client:
        opened.append(Client(keeper.address, version))
        return opened[-1]

    yield connection
    for each in opened:
        each.close()


def names(workers: int) -> Iterator[str]:
    """Return client ids whose home is the first worker."""
    return ids_on(0, workers, "client")


def take(client: Client) -> wire.Packet:
    """Read the next PUBLISH, complete its handshake, and return it."""
    packet = client.await_packet("PUBLISH")
    if packet.qos == 1:
        client.ack("PUBACK", packet.packet_id)
    elif packet.qos == 2:
        client.ack("PUBREC", packet.packet_id)
        client.await_packet("PUBREL", packet.packet_id)
        client.ack("PUBCOMP", packet.packet_id)
    return packet


def expect_nothing_new(client: Client) -> None:
    """Check that nothing is repeated but what was finished less than 100 ms before the worker died: at QoS 1 the
    message, at QoS 2 the PUBREL, and at QoS 0 retained messages, once: the store records their sending afterwards.
    """
    retained: list[str] = []
    client.send(wire.PINGREQ)
    while (packet := client.read()).kind != "PINGRESP":
        assert (packet.kind, packet.qos) in (("PUBLISH", 1), ("PUBREL", 0)) or packet.retain, packet
        if packet.kind == "PUBREL":
            client.ack("PUBCOMP", packet.packet_id)
        elif packet.retain:
            retained.append(packet.topic)
    assert len(set(retained)) == len(retained)


@pytest.mark.parametrize(
    ("kill", "version"), [*KILLS, *(pytest.param(*each, marks=pytest.mark.soak) for each in SOAK_KILLS)]
)
def test_what_clients_were_told_is_so(
    keeper: BrokerProcess, dial: Dial, workers: int, version: int, kill: Kill
) -> None:
    name = names(workers)
    lasting: dict[str, object] = {"clean": False}
    if version == 5:
        lasting["properties"] = {"session_expiry_interval": 3600}
    ids = {who: next(name) for who in ("away", "online", "watcher", "doomed", "publisher")}

    def connected(who: str, present: bool | None = None, **options: object) -> Client:
        client = dial(version)
        client.connect(ids[who], **options)
        if present is not None:
            assert client.connack.session_present is present
        return client

    def loses_its_network(client: Client) -> None:
        """Close, and wait until the broker has noticed."""
        since = keeper.stderr_size()
        client.close()
        wait_until(lambda: keeper.logged("connection_closed", since), 60.0, "the broker sees that the client has gone")

    away = connected("away", False, **lasting)
    away.subscribe(("away/#", 2))
    loses_its_network(away)
    watcher = connected("watcher", False, **lasting)
    watcher.subscribe(("wills", 2))
    watcher.disconnect()
    online = connected("online", False, **lasting)
    online.subscribe(("live", 2), ("was", 1))
    online.unsubscribe("was")
    connected("doomed", will=Will("wills", b"doomed", qos=2))
    publisher = connected("publisher")
    for number in range(10):
        publisher.publish("away/x", b"%d" % number, qos=1 + number % 2)
    publisher.publish("kept/1", b"old", qos=1, retain=True)
    publisher.publish("kept/1", b"new", qos=1, retain=True)
    publisher.publish("kept/2", b"cleared", qos=1, retain=True)
    publisher.publish("kept/2", b"", qos=1, retain=True)

    kill(keeper)

    for client in (online, publisher):
        client.close()
    publisher = connected("publisher")
    online = connected("online", True, **lasting)
    publisher.publish("live", b"again", qos=2)
    publisher.publish("was", b"not any more", qos=2)
    online.receive("live", b"again", qos=2)
    online.expect_silence()
    away = connected("away", True, **lasting)
    came: dict[int, list[bytes]] = {1: [], 2: []}
    for _ in range(10):
        packet = take(away)
        came[packet.qos].append(packet.payload)
    assert came == {1: [b"0", b"2", b"4", b"6", b"8"], 2: [b"1", b"3", b"5", b"7", b"9"]}  # in order per QoS
    away.expect_silence()
    watcher = connected("watcher", True, **lasting)
    watcher.receive("wills", b"doomed")
    watcher.expect_silence()
    away.subscribe("kept/#")
    away.receive("kept/1", b"new", retain=True)
    away.expect_silence()
    for client in (away, watcher, online, publisher):
        client.disconnect()

    kill(keeper)  # what was acknowledged since then holds, too

    for who in ("away", "watcher"):
        expect_nothing_new(connected(who, True, **lasting))


def test_a_clean_start_stays_clean(keeper: BrokerProcess, dial: Dial, workers: int) -> None:
    client_id = next(names(workers))
    for clean, present in ((False, False), (False, True), (True, False), (False, False)):
        client = dial(4)
        client.connect(client_id, clean=clean)
        assert client.connack.session_present is present
        kill_worker(keeper)
        client.close()


def test_connections_that_come_while_the_worker_starts_find_their_sessions(
    keeper: BrokerProcess, dial: Dial, workers: int
) -> None:
    """The listening socket outlives the worker: connections accepted meanwhile are served from the recovered state."""
    ids = [next(each) for each in [names(workers)] for _ in range(50)]
    for client_id in ids:
        client = dial(4)
        client.connect(client_id, clean=False)
        client.subscribe(("t", 1))
        client.close()
    os.kill(keeper.worker_pids()[0], signal.SIGKILL)
    clients = [dial(4) for _ in ids]
    for client, client_id in zip(clients, ids, strict=True):
        client.send(wire.connect(4, client_id, clean=False))
    for client in clients:
        assert client.expect("CONNACK", reason=0).session_present
        client.close()

"""An operation that begins after another's ack is newer, on any two workers and over steps of the wall clock."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyx.core.placement import owner
from tests import wire
from tests.broker_process import BrokerProcess
from tests.chaos.conftest import StartBroker
from tests.chaos.crowd import ids_on
from tests.stepped_clock import SteppedClock
from tests.waiting import wait_until
from tests.wire import Client

WORKERS = 4
ROUNDS = 400
OpenTo = Callable[[BrokerProcess, int], Client]


def client_on(broker: BrokerProcess, open_to: OpenTo, worker: int, prefix: str, version: int = 5) -> Client:
    """Return a client whose home is that worker."""
    client = open_to(broker, version)
    client.send(wire.connect(version, next(ids_on(worker, WORKERS, prefix))))
    client.expect("CONNACK", reason=0)
    return client


def topics_of(worker: int, prefix: str) -> Iterator[str]:
    """Return topics that the worker owns."""
    return (
        each for number in itertools.count() if owner((each := f"kept/{prefix}{number}").encode(), WORKERS) == worker
    )


LAST = [next(topics_of(worker, "z")) for worker in range(WORKERS)]
"""One topic of each worker, last in its answer to a subscription to kept/#."""


def retained(client: Client) -> dict[str, bytes]:
    """Return the retained messages sent to a new subscription to kept/#, without those of LAST, which are there."""
    client.subscribe("kept/#")
    found: dict[str, bytes] = {}
    while not found.keys() >= set(LAST):
        packet = client.expect("PUBLISH", retain=True)
        assert packet.topic not in found
        found[packet.topic] = packet.payload
    client.unsubscribe("kept/#")
    return {topic: payload for topic, payload in found.items() if topic not in LAST}


def kill(broker: BrokerProcess, worker: int) -> None:
    """SIGKILL a worker; return when its successor is ready."""
    before = len(broker.logged("worker_ready"))
    os.kill(broker.worker_pids()[worker], signal.SIGKILL)
    wait_until(lambda: len(broker.logged("worker_ready")) > before, 60.0, "its successor is ready")


@pytest.mark.mqtt("5:3.3.1-5", "5:3.3.1-6", "311:3.3.1-5", "311:3.3.1-10")
def test_the_owner_of_a_topic_answers_in_the_order_in_which_it_was_asked(
    start_broker: StartBroker, open_to: OpenTo
) -> None:
    """A client of one worker retains, replaces or clears a message; as soon as that is acknowledged, a client of
    another worker subscribes and is sent what is retained now, and nothing else.
    """
    broker = start_broker(WORKERS)
    publishers = [client_on(broker, open_to, worker, "p") for worker in range(WORKERS)]
    seekers = [client_on(broker, open_to, worker, "s") for worker in range(WORKERS)]
    wrong = []
    for number in range(40):
        home = f"order/{number}"
        there = owner(f"{home}/a".encode(), WORKERS)
        last = next(
            each for k in itertools.count() if owner((each := f"{home}/z{k}").encode(), WORKERS) == there
        )  # behind the other one in the answer
        publishers[number % WORKERS].publish(last, b"last", qos=1, retain=True)
        for step, payload in enumerate((b"first", b"second", b"", b"third")):
            publisher = publishers[(number + step) % WORKERS]
            publisher.publish(f"{home}/a", payload, qos=1 + number % 2, retain=True)
            seeker = seekers[(number + step + 1 + number // WORKERS % 3) % WORKERS]
            seeker.subscribe(f"{home}/#")
            found: list[bytes] = []
            while not found or found[-1] != b"last":
                found.append(seeker.expect("PUBLISH", retain=True).payload)
            if found != [each for each in (payload, b"last") if each]:
                wrong.append((number, payload, found))
            seeker.unsubscribe(f"{home}/#")
    assert wrong == []


@pytest.mark.mqtt("5:3.3.1-5", "5:3.3.1-6", "311:3.3.1-5", "311:3.3.1-10")
@pytest.mark.parametrize("steps", [2, 3, 4])
def test_the_owner_of_a_topic_has_what_was_acknowledged_last(
    start_broker: StartBroker, open_to: OpenTo, steps: int
) -> None:
    """Retained, replaced, cleared, retained again: by clients of different workers, each as soon as the previous step
    is acknowledged, without delay. Then a client of another worker subscribes and gets the last state.
    """
    broker = start_broker(WORKERS)
    publishers = [client_on(broker, open_to, worker, "p") for worker in range(WORKERS)]
    seekers = [client_on(broker, open_to, worker, "s") for worker in range(WORKERS)]
    payloads = (b"first", b"second", b"", b"third")[:steps]
    wrong = []
    for number in range(100):
        home = f"last/{number}"
        there = owner(f"{home}/a".encode(), WORKERS)
        last = next(
            each for k in itertools.count() if owner((each := f"{home}/z{k}").encode(), WORKERS) == there
        )  # behind the other one in the answer
        publishers[number % WORKERS].publish(last, b"last", qos=1, retain=True)
        for step, payload in enumerate(payloads):
            publisher = publishers[(number + step) % WORKERS]
            publisher.publish(f"{home}/a", payload, qos=1 + number % 2, retain=True)
        seeker = seekers[(number + steps + number // WORKERS % 3) % WORKERS]
        seeker.subscribe(f"{home}/#")
        found: list[bytes] = []
        while not found or found[-1] != b"last":
            found.append(seeker.expect("PUBLISH", retain=True).payload)
        if found != [each for each in (payloads[-1], b"last") if each]:
            wrong.append((number, found))
        seeker.unsubscribe(f"{home}/#")
    assert wrong == []


@pytest.mark.mqtt("5:3.3.1-5", "311:3.3.1-5")
def test_of_two_retained_messages_the_one_that_began_later_is_kept(start_broker: StartBroker, open_to: OpenTo) -> None:
    """One client is acknowledged by its worker, then another one publishes to another worker: 400 times."""
    broker = start_broker(WORKERS)
    clients = [client_on(broker, open_to, worker, "c") for worker in range(WORKERS)]
    seeker = client_on(broker, open_to, 0, "seeker", 4)
    wrong = []
    for number in range(ROUNDS):
        topic = f"round/{number}"
        first, second = clients[number % WORKERS], clients[(number + 1 + number // WORKERS % 3) % WORKERS]
        first.publish(topic, b"old", qos=1, retain=True)
        second.publish(topic, b"new", qos=1, retain=True)
    for number in range(ROUNDS):
        seeker.send(wire.subscribe(4, 1, (f"round/{number}", 0)))
        seeker.expect("SUBACK")
        if seeker.expect("PUBLISH").payload != b"new":
            wrong.append(number)
    assert not wrong, f"the older message was kept in {len(wrong)} of {ROUNDS} rounds"


@pytest.mark.mqtt("5:3.3.1-5", "5:3.3.1-6", "311:3.3.1-5", "311:3.3.1-10")
@pytest.mark.parametrize(
    ("seconds", "store"),
    [
        (-3600, "memory"),
        pytest.param(-3600, "leveldb", marks=pytest.mark.long),
        pytest.param(3600, "memory", marks=pytest.mark.long),
        (3600, "leveldb"),
    ],
)
def test_a_step_of_the_wall_clock_and_a_new_worker_make_nothing_older(
    open_to: OpenTo, tmp_path: Path, store: str, seconds: int
) -> None:
    """After the clock is set and one worker replaced, updates and clears through it count as before, and so do later
    ones through the others.
    """
    clock = SteppedClock(tmp_path)
    broker = BrokerProcess(WORKERS, ["--log-format", "json"], {**clock.environment, "MQTTD_STORE": store}).start()
    try:
        clients = [client_on(broker, open_to, worker, "c") for worker in range(WORKERS)]
        updated, cleared, last = itertools.islice(topics_of(1, "a"), 3)
        for topic in (updated, cleared, last, *LAST):
            clients[2].publish(topic, b"before", qos=1, retain=True)
        clock.step(seconds)
        kill(broker, 0)
        clients[0] = client_on(broker, open_to, 0, "again")
        clients[0].publish(updated, b"after", qos=1, retain=True)
        clients[0].publish(cleared, b"", qos=1, retain=True)
        clients[0].publish(last, b"after", qos=1, retain=True)
        clients[3].publish(last, b"at last", qos=1, retain=True)
        for topic in LAST:
            clients[3].publish(topic, b"after", qos=1, retain=True)
        assert retained(clients[2]) == {updated: b"after", last: b"at last"}
        clock.step(-seconds / 2)
        assert broker.stop() == 0
        broker.start()
        seeker = client_on(broker, open_to, 2, "seeker")
        for topic in LAST:
            seeker.publish(topic, b"again", qos=1, retain=True)
        assert retained(seeker) == ({} if store == "memory" else {updated: b"after", last: b"at last"})
    finally:
        broker.kill()
        broker.forget()

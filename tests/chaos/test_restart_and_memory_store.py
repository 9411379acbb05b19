"""With the memory store a killed worker loses its own sessions, wills and retained messages, not the others'."""

from __future__ import annotations

import itertools
import os
import signal

from pyx.core.placement import owner
from tests.broker_process import BrokerProcess
from tests.chaos.conftest import OpenCrowd, StartBroker
from tests.chaos.crowd import Crowd, Publisher, Subscriber, ids_on, missing
from tests.wire import Will

WORKERS = 4
VICTIM = 2


def kill_and_wait(broker: BrokerProcess, crowd: Crowd) -> None:
    """SIGKILL the victim; return when its successor is ready."""
    ready = len(broker.logged("worker_ready"))
    os.kill(broker.worker_pids()[VICTIM], signal.SIGKILL)
    crowd.until(lambda: len(broker.logged("worker_ready")) > ready, "its successor is ready", 60.0)


def test_retained_messages_of_the_others_survive(start_broker: StartBroker, crowd_of: OpenCrowd) -> None:
    """A dead owner's retained messages are lost and can be set again; others are found from every worker."""
    broker = start_broker(WORKERS)
    crowd = crowd_of(broker)
    by_owner: dict[int, list[str]] = {worker: [] for worker in range(WORKERS)}
    for number in itertools.count():
        topic = f"kept/{number}"
        topics = by_owner[owner(topic.encode(), WORKERS)]
        if len(topics) < 5:
            topics.append(topic)
        if all(len(topics) == 5 for topics in by_owner.values()):
            break
    publish_retained(crowd, [topic for topics in by_owner.values() for topic in topics])
    assert found_from_everywhere(crowd, 20) == [20] * WORKERS
    kill_and_wait(broker, crowd)
    assert found_from_everywhere(crowd, 15) == [15] * WORKERS
    publish_retained(crowd, by_owner[VICTIM])
    assert found_from_everywhere(crowd, 20) == [20] * WORKERS


def publish_retained(crowd: Crowd, topics: list[str]) -> None:
    """Publish one retained message for each topic, from all workers."""
    publishers = []
    for number, topic in enumerate(topics):
        client_id = next(ids_on(number % WORKERS, WORKERS, f"keeper{len(crowd.members)}x"))
        publishers.append(Publisher(crowd, client_id, topic, qos=1, count=1, retain=True))
        publishers[-1].begin()
    crowd.until(lambda: all(each.done for each in publishers), "the retained messages are acknowledged")


def found_from_everywhere(crowd: Crowd, expected: int) -> list[int]:
    """Return how many retained messages a new subscriber gets, on each worker."""
    number = len(crowd.members)
    names = [next(ids_on(worker, WORKERS, f"seek{number}x")) for worker in range(WORKERS)]
    seekers = [Subscriber(crowd, name, "kept/#") for name in names]
    crowd.until(lambda: all(each.subscribed and each.count >= expected for each in seekers), f"{expected} messages")
    # Live messages take the same paths as the owners' answers, and follow them.
    markers = [
        Publisher(crowd, next(ids_on(worker, WORKERS, f"mark{number}x")), "kept/marker", qos=1, count=1)
        for worker in range(WORKERS)
    ]
    for marker in markers:
        marker.begin()
    crowd.until(lambda: all(marker.done for marker in markers), "markers are acknowledged")
    crowd.until(lambda: not any(missing(s, m) for s in seekers for m in markers), "markers have come")
    return [each.count - WORKERS for each in seekers]


def test_wills_of_the_others_survive(start_broker: StartBroker, crowd_of: OpenCrowd) -> None:
    """The wills of the killed worker's clients are lost, as documented; those of the others are published when due."""
    broker = start_broker(WORKERS)
    crowd = crowd_of(broker)
    watchers = [Subscriber(crowd, next(ids_on(worker, WORKERS, "watch")), "will/#", qos=1) for worker in (0, 1, 3)]
    # The payload is read as (publisher, sequence number): here, the number of the worker that publishes the will.
    mortals = [
        Subscriber(
            crowd, next(ids_on(worker, WORKERS, "mortal")), "none", qos=1,
            will=Will(f"will/{worker}", worker.to_bytes(4, "big") + bytes(12), 1),
        )
        for worker in range(WORKERS)
    ]  # fmt: skip
    crowd.settle()
    kill_and_wait(broker, crowd)
    crowd.until(lambda: mortals[VICTIM].closed, "the connection is gone with its worker")
    for worker in (0, 1, 3):
        mortals[worker].close()
    crowd.until(lambda: all(sum(map(len, each.received.values())) == 3 for each in watchers), "three wills")
    assert all(sorted(each.received) == [0, 1, 3] for each in watchers)
    back = Subscriber(
        crowd, mortals[VICTIM].client_id, "none", qos=1,
        will=Will("will/2", VICTIM.to_bytes(4, "big") + bytes(12), 1),
    )  # fmt: skip
    crowd.until(lambda: back.subscribed, "it is back")
    back.close()
    crowd.until(lambda: all(len(each.received[VICTIM]) == 1 for each in watchers), "the new will is published, once")


def test_sessions_of_the_others_survive(start_broker: StartBroker, crowd_of: OpenCrowd) -> None:
    """Offline sessions on the others keep their queues; those of the killed worker are gone and start from nothing."""
    broker = start_broker(WORKERS)
    crowd = crowd_of(broker)
    names = [next(ids_on(worker, WORKERS, "durable")) for worker in range(WORKERS)]
    for name in names:
        Subscriber(crowd, name, "queue/#", qos=1, clean=False)
    crowd.settle()
    for member in crowd.members:
        member.close()
    publisher = Publisher(crowd, next(ids_on(0, WORKERS, "pub")), "queue/x", qos=1, count=30)
    publisher.begin()
    crowd.until(lambda: publisher.done, "all is acknowledged")
    kill_and_wait(broker, crowd)
    back = [Subscriber(crowd, name, clean=False) for name in names]
    crowd.until(lambda: all(each.connack for each in back), "they are back")
    assert [bool(each.connack and each.connack.session_present) for each in back] == [True, True, False, True]
    kept = [each for worker, each in enumerate(back) if worker != VICTIM]
    crowd.until(lambda: not any(missing(each, publisher) for each in kept), "what was queued is delivered")
    assert [each.count for each in back] == [30, 30, 0, 30]

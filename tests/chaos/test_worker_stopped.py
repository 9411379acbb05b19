"""SIGSTOP of one of four workers for 14 s: it is away, not dead. A worker that does not return is hung."""

from __future__ import annotations

import itertools
import os
import signal
import time

from tests import wire
from tests.broker_process import BrokerProcess
from tests.chaos.conftest import OpenCrowd, Record, StartBroker
from tests.chaos.crowd import Crowd, Member, Publisher, Subscriber, ids_on, in_order, missing, repeated

WORKERS = 4
STOPPED = 3
STOP_SECONDS = 14.0
AWAY_SECONDS = 4.0
"""A silent worker counts as away after this; the longer, the clearer the difference from a busy machine."""
UNTOUCHED_SECONDS_MAX = 3.0
"""Less than the time that others would wait for it."""
SLOWED_SECONDS_MAX = 10.0
"""Less than the time until it is back."""
WAIT_SECONDS_MAX = 60.0


class Pair:
    """A publisher on one worker and, on another, a subscriber whose session outlives its connection."""

    def __init__(self, crowd: Crowd, source: int, target: int, qos: int) -> None:
        self.source, self.target, self.qos = source, target, qos
        name = f"p{source}{target}{qos}"
        self.subscriber_id = next(ids_on(target, WORKERS, f"{name}s"))
        self.subscriber = Subscriber(crowd, self.subscriber_id, f"stop/{name}", qos=qos, clean=False)
        self.publisher = Publisher(
            crowd, next(ids_on(source, WORKERS, f"{name}p")), f"stop/{name}", qos=qos, rate=30.0, clean=False
        )

    @property
    def touched(self) -> bool:
        """Whether one end is on the stopped worker."""
        return STOPPED in (self.source, self.target)


def test_a_stopped_worker_is_not_waited_for_and_loses_nothing(
    start_broker: StartBroker, crowd_of: OpenCrowd, record_property: Record
) -> None:
    """No disconnect; other pairs continue; after SIGCONT all arrives, once at QoS 2, sessions included."""
    broker = start_broker(
        WORKERS, worker_hang_seconds_max=60, link_silence_seconds_max=AWAY_SECONDS, peer_stall_seconds_max=AWAY_SECONDS
    )
    crowd = crowd_of(broker)
    pairs = [Pair(crowd, *where) for where in itertools.product(range(WORKERS), range(WORKERS), (0, 1, 2))]
    crowd.settle()
    crowd.begin()
    crowd.let_run(1.0)
    untouched = [pair for pair in pairs if not pair.touched]
    publishing_to_it = [pair for pair in pairs if pair.target == STOPPED != pair.source and pair.qos]
    for pair in untouched:
        pair.subscriber.watch_gaps()
    for each in crowd.publishers:
        each.ack_seconds_max = 0.0
    pid = broker.worker_pids()[STOPPED]
    os.kill(pid, signal.SIGSTOP)
    try:
        crowd.let_run(STOP_SECONDS)
        # Read while it is stopped: no ack waits for its return.
        waiting = {pair.publisher.client_id: pair.publisher.unanswered for pair in publishing_to_it}
    finally:
        os.kill(pid, signal.SIGCONT)
    gap = max(pair.subscriber.gap() for pair in untouched)
    slowed = max(pair.publisher.ack_seconds_max for pair in publishing_to_it)
    unslowed = max(pair.publisher.ack_seconds_max for pair in untouched)
    record_property("gap of the untouched", gap)
    record_property("acks of publishers to it", slowed)
    record_property("acks of the untouched", unslowed)
    crowd.let_run(1.0)
    crowd.finish()
    crowd.until(
        lambda: not any(missing(pair.subscriber, pair.publisher) for pair in pairs if pair.qos),
        "all that was acknowledged is there",
    )
    assert not [member.client_id for member in crowd.members if member.closed]
    assert gap < UNTOUCHED_SECONDS_MAX
    assert unslowed < UNTOUCHED_SECONDS_MAX
    assert slowed < SLOWED_SECONDS_MAX
    assert max(waiting.values()) < 30 * SLOWED_SECONDS_MAX
    for pair in pairs:
        assert pair.qos == 1 or not repeated(pair.subscriber, pair.publisher), pair.subscriber_id
        assert in_order(pair.subscriber, pair.publisher), pair.subscriber_id
    for pair in untouched:
        assert not missing(pair.subscriber, pair.publisher), "QoS 0 that did not touch it"
    assert not broker.logged("worker_died")
    check_sessions(crowd, pairs)


def check_sessions(crowd: Crowd, pairs: list[Pair]) -> None:
    """Check that every session is still there, and nothing is queued in it."""
    for pair in pairs:
        pair.subscriber.close()
    back = [Subscriber(crowd, pair.subscriber_id, clean=False) for pair in pairs]
    crowd.until(lambda: all(each.connack for each in back), "they are back")
    assert all(each.connack.session_present for each in back if each.connack)
    publishers = [Publisher(crowd, f"{pair.subscriber_id}q", pair.publisher.topic, qos=2, count=1) for pair in pairs]
    for each in publishers:
        each.begin()
    crowd.until(
        lambda: all(to.received.get(of.number) for to, of in zip(back, publishers, strict=True)),
        "the subscriptions are in force",
    )
    for pair, subscriber in zip(pairs, back, strict=True):
        assert subscriber.count == 1, f"{pair.subscriber_id}: something waited in its session"


def subscribe_beside_a_stopped_worker(broker: BrokerProcess, crowd: Crowd, name: str) -> None:
    """Check that SUBACKs come while a worker is stopped, and that it knows of them when it is back."""
    pid = broker.worker_pids()[STOPPED]
    os.kill(pid, signal.SIGSTOP)
    try:
        # The kernel gives a quarter of the connections to the stopped worker's backlog: those have to wait for it.
        wanted = [Subscriber(crowd, next(ids_on(n % 3, WORKERS, f"{name}{n}x")), f"{name}/#", qos=1) for n in range(16)]
        crowd.until(
            lambda: sum(each.subscribed for each in wanted) >= 4, "subscribed beside a stopped worker", WAIT_SECONDS_MAX
        )
    finally:
        os.kill(pid, signal.SIGCONT)
    crowd.until(lambda: all(each.subscribed for each in wanted), "those in its backlog are served as well")
    publisher = Publisher(crowd, next(ids_on(STOPPED, WORKERS, "after")), f"{name}/x", qos=1, count=10)
    publisher.begin()
    crowd.until(lambda: publisher.done, "the worker that was stopped knows who subscribed meanwhile")
    crowd.until(lambda: not any(missing(each, publisher) for each in wanted), "all that was acknowledged is there")


def test_clients_of_a_stopped_worker_wait_and_new_ones_are_refused_in_time(
    start_broker: StartBroker, crowd_of: OpenCrowd
) -> None:
    """A SUBACK elsewhere waits at most link_silence_seconds_max; a session on the stopped worker returns with it."""
    broker = start_broker(WORKERS, worker_hang_seconds_max=60)
    subscribe_beside_a_stopped_worker(broker, crowd_of(broker), "during")


def test_a_short_silence(start_broker: StartBroker, crowd_of: OpenCrowd) -> None:
    """A silence as short as the usual interval of a worker's timer: a stopped sibling is away, others are not."""
    broker = start_broker(WORKERS, worker_hang_seconds_max=60, link_silence_seconds_max=0.1)
    subscribe_beside_a_stopped_worker(broker, crowd_of(broker), "short")


def test_a_client_whose_home_does_not_run_is_refused_in_time(start_broker: StartBroker, crowd_of: OpenCrowd) -> None:
    """After handoff_seconds_max without its home: Server unavailable; once the home runs again it is accepted."""
    broker = start_broker(WORKERS, handoff_seconds_max=1.0, worker_hang_seconds_max=60)
    crowd = crowd_of(broker)
    names = ids_on(STOPPED, WORKERS, "homeless")
    pid = broker.worker_pids()[STOPPED]
    os.kill(pid, signal.SIGSTOP)
    try:
        crowd.until(
            lambda: len(broker.logged("peer_away")) == WORKERS - 1, "its siblings have noticed", WAIT_SECONDS_MAX
        )
        # A quarter of them are in the stopped worker's own backlog: those have to wait.
        clients = [Subscriber(crowd, next(names), version=4 + number % 2) for number in range(40)]
        seconds = crowd.until(
            lambda: sum(bool(each.connack) for each in clients) >= 20, "they are refused", WAIT_SECONDS_MAX
        )
        assert seconds > 0.9
        crowd.until(lambda: all(each.closed for each in clients if each.connack), "and closed")
        for each in clients:
            assert each.connack is None or each.connack.reason == (0x88 if each.version == 5 else 3)
    finally:
        os.kill(pid, signal.SIGCONT)
    back = [Subscriber(crowd, next(names)) for _ in range(20)]
    crowd.until(lambda: all(each.accepted_by_broker for each in back), "they are let in")


def test_a_worker_that_woke_up_acks_nothing_before_it_knows_the_interest(
    start_broker: StartBroker, crowd_of: OpenCrowd
) -> None:
    """A publish that waited in a stopped worker's socket reaches a client that subscribed elsewhere before it."""
    broker = start_broker(WORKERS, worker_hang_seconds_max=60)
    crowd = crowd_of(broker)
    publisher = Publisher(crowd, next(ids_on(STOPPED, WORKERS, "stopped")), "wake/x", qos=1, count=20)
    others = [Subscriber(crowd, next(ids_on(n, WORKERS, f"sub{n}x")), "other", qos=1) for n in range(3)]
    crowd.settle()
    pid = broker.worker_pids()[STOPPED]
    os.kill(pid, signal.SIGSTOP)
    try:
        for each in others:
            each.send(bytes.fromhex("82 0b 00 07 00 06") + b"wake/#" + b"\x01")
        crowd.until(
            lambda: all(len(each.packets) == 2 for each in others),
            "SUBACK while a sibling is stopped",
            WAIT_SECONDS_MAX,
        )
        publisher.begin()
        crowd.turn()
    finally:
        os.kill(pid, signal.SIGCONT)
    crowd.until(lambda: publisher.done, "it answers")
    crowd.until(lambda: not any(missing(each, publisher) for each in others), "the SUBACKs were true")


def test_a_worker_that_woke_up_hears_its_clients_first(start_broker: StartBroker, crowd_of: OpenCrowd) -> None:
    """One that pinged all the time is not closed. The will of one that was silent reaches who subscribed meanwhile."""
    broker = start_broker(WORKERS, worker_hang_seconds_max=60)
    crowd = crowd_of(broker)
    names = ids_on(STOPPED, WORKERS, "stopped")
    will = wire.Will("will/x", (0).to_bytes(8, "big") * 2, 1, False)
    pings = Member(crowd, next(names), keep_alive=3)  # it may be silent for 4.5 s: so long may the tests have no CPU
    silent = Member(crowd, next(names), keep_alive=2, will=will)
    pauses = [0.0]
    last = [time.monotonic()]
    others = [Subscriber(crowd, next(ids_on(n, WORKERS, f"sub{n}x")), "other", qos=1) for n in range(3)]
    crowd.settle()

    def ping(_now: float) -> None:
        pauses.append(time.monotonic() - last[0])
        last[0] += pauses[-1]
        if not pings.closed:
            pings.send(wire.PINGREQ)

    crowd.on_turn.append(ping)
    pid = broker.worker_pids()[STOPPED]
    os.kill(pid, signal.SIGSTOP)
    try:
        for each in others:
            each.send(wire.subscribe(each.version, 7, ("will/#", 1)))
        crowd.until(
            lambda: all(len(each.packets) == 2 for each in others),
            "SUBACK while a sibling is stopped",
            WAIT_SECONDS_MAX,
        )
        crowd.let_run(6.0)
    finally:
        os.kill(pid, signal.SIGCONT)
    crowd.until(lambda: silent.closed, "the silent one is closed")
    crowd.until(lambda: all(each.count for each in others), "its will has come")
    assert not pings.closed, f"the longest pause of the tests was {max(pauses):.1f} s"


def test_a_hung_worker_is_killed_and_restarted_with_its_state_in_the_log(
    start_broker: StartBroker, crowd_of: OpenCrowd
) -> None:
    """After worker_hang_seconds_max without a heartbeat: logged with stack and state, killed; its successor serves."""
    broker = start_broker(2, worker_hang_seconds_max=4.0)
    crowd = crowd_of(broker)
    stays = Subscriber(crowd, next(ids_on(0, 2, "stays")), "hang/#", qos=1)
    crowd.settle()
    former = broker.worker_pids()[1]
    os.kill(former, signal.SIGSTOP)
    crowd.until(lambda: len(broker.logged("worker_ready")) == 3, "it was replaced", 60.0)
    hung = broker.logged("worker_hung")
    assert [line["worker"] for line in hung] == [1]
    assert hung[0]["state"].startswith("T")  # stopped: it cannot write its stack, and the line says why
    assert "stack" in hung[0]
    assert broker.logged("worker_died")[0]["reason"] == "hung"
    assert broker.worker_pids()[1] != former
    publisher = Publisher(crowd, next(ids_on(1, 2, "new")), "hang/x", qos=1, count=10)
    publisher.begin()
    crowd.until(lambda: publisher.done and not missing(stays, publisher), "messages flow")
    assert not stays.closed

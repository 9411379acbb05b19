"""Links over simulated transports: seeded delay, loss, reordering, refusal, stopped and killed workers. No sockets, no
clock.

A world has a few workers. Each sends numbered entries to the others; the checkers compare received with submitted
entries: no gap, no duplicate, order; acks only for committed (or logged) entries; counters add up when all is quiet.
"""

import random
from collections import deque
from typing import Any

import pytest

from pyx.mesh.contract import EnvelopeError
from tests.unit.zmq_mesh.link_world import LIMITS, World, both, is_away, is_full
from zmq_mesh import envelope
from zmq_mesh.contract import WHOLE_BATCH, HandoffLog
from zmq_mesh.envelope import Refusal
from zmq_mesh.interest import Change


def test_batches_arrive_in_order_and_are_acknowledged_after_their_commit() -> None:
    world = World(2)
    world.run(0.5)
    world.workers[1].commit_delay = 0.0
    ticket = world.submit(0, 1, entries=3, volatile=2)
    world.workers[1].commits[0] = deque()
    world.run(0.02)
    assert world.workers[1].sequenced[0] == [0, 1, 2]
    assert world.workers[1].volatile[0] == [3, 4]
    assert world.workers[0].acked[1] == ticket
    world.check_quiet()


def test_no_ack_before_commit() -> None:
    world = World(2)
    world.run(0.5)
    world.workers[1].commit_delay = 1e9
    world.submit(0, 1)
    world.run(1.0)
    assert world.workers[1].sequenced[0] == [0, 1, 2]
    assert world.workers[0].acked[1] == -1
    assert world.workers[0].links[1].unacknowledged == 1


def test_ready_once_interest_is_complete_and_subscribe_waits_for_taken() -> None:
    world = World(3)
    world.workers[0].publisher.change(b"a/+", None, 2, True)
    world.workers[0].publisher.change(b"a/+", b"g", 5)
    world.run(0.5)
    for worker in world.workers:
        assert sorted(worker.log) == sorted(("ready", peer) for peer in worker.links)
    assert set(world.workers[1].wants[0].values()) == {Change(b"a/+", None, 2, True), Change(b"a/+", b"g", 5, False)}
    number = world.workers[0].publisher.change(b"b")
    assert world.workers[0].taken[1] < number
    world.run(0.03)
    assert world.workers[0].taken == {1: number, 2: number}
    assert (b"b", None) in world.workers[2].wants[0]
    number = world.workers[0].publisher.change(b"a/+", b"g", 0)
    world.run(0.03)
    assert set(world.workers[2].wants[0]) == {(b"a/+", None), (b"b", None)}
    assert world.workers[0].taken == {1: number, 2: number}


@pytest.mark.parametrize("seed", range(20))
def test_lossy_duplicating_reordering_network(seed: int) -> None:
    """No sequenced message is lost, doubled or out of order; no volatile one is doubled."""
    world = World(3, seed)
    world.run(0.5)
    net = world.network
    net.loss, net.duplication, net.reordering, net.delay = 0.05, 0.02, 0.05, 0.03
    for worker in world.workers:
        worker.commit_delay = 0.05

    def each() -> None:
        for source, target in both(world):
            if net.random.random() < 0.3:
                size = net.random.choice((20, 5000))
                world.submit(source, target, net.random.randrange(4), net.random.randrange(3), size)
        if net.random.random() < 0.02:
            net.channels[net.random.choice(both(world))].clear()
        if net.random.random() < 0.1:
            publisher = world.workers[net.random.randrange(3)].publisher
            publisher.change(b"%d" % net.random.randrange(50), None, net.random.randrange(3))

    world.run(2.0, each)
    net.loss = net.duplication = net.reordering = 0.0
    world.run(4.0)
    # Volatile-only batches have tickets that are never acknowledged.
    for source, target in both(world):
        world.submit(source, target)
    world.run(1.0)
    for source, target in both(world):
        assert world.workers[target].sequenced[source] == world.submitted[source, target]
        got = world.workers[target].volatile[source]
        assert len(set(got)) == len(got)
        assert set(got) <= set(world.submitted_volatile[source, target])
        table = world.workers[source].publisher._table.values()
        assert set(world.workers[target].wants[source].values()) == set(table)
    world.check_quiet()


def test_lost_tail_is_sent_again_after_a_heartbeat() -> None:
    world = World(2)
    world.run(0.5)
    world.network.loss = 1.0
    world.submit(0, 1)
    world.network.loss = 0.0
    world.run(0.6)
    assert world.workers[1].sequenced[0] == [0, 1, 2]
    assert world.workers[0].links[1].traffic.resent == 1
    world.check_quiet()


def test_nothing_is_resent_while_it_may_be_under_way() -> None:
    """Many heartbeats with a gap flag cause one resend."""
    world = World(2)
    world.run(0.5)
    world.network.delay = 0.0
    world.network.loss = 1.0
    world.submit(0, 1)
    world.network.loss = 0.0
    for _ in range(20):
        world.submit(0, 1)
        world.network.now += 0.001
    world.run(1.0)
    assert world.workers[1].sequenced[0] == world.submitted[0, 1]
    assert world.workers[0].links[1].traffic.resent == 21
    assert world.workers[1].links[0].traffic.duplicates == 0


def test_stopped_worker_gets_everything_when_it_is_back() -> None:
    """SIGSTOP for 5 s: away after 1.5 s, publishers acked from the log, all delivered once, in order, after SIGCONT."""
    world = World(3)
    world.run(0.5)
    world.workers[2].stopped = True
    world.network.capacity = 20

    def each() -> None:
        world.submit(0, 2, entries=1)
        world.submit(0, 1, entries=1)

    world.run(3.0, each)
    link = world.workers[0].links[2]
    assert link.away
    assert ("away", 2) in world.workers[0].log
    assert ("away", 1) not in world.workers[0].log
    assert world.workers[0].acked[2] == world.tickets[0, 2] - 1
    assert link.handoff_bytes > 0
    world.workers[0].publisher.change(b"while/away")
    world.run(2.0, each)
    # Its own clock jumped: the node greets every sibling before it reads clients.
    woken = world.workers[2]
    woken.stopped = False
    for woken_link in woken.links.values():
        woken_link.greet(world.network.now)
    assert all(woken_link.confirming for woken_link in woken.links.values())
    world.run(0.6, each)  # its interest queues behind the log
    assert not any(woken_link.confirming for woken_link in woken.links.values())
    assert (b"while/away", None) in woken.wants[0]
    assert ("away", 0) not in woken.log
    world.run(1.0, each)
    world.run(0.5)
    assert world.workers[2].sequenced[0] == world.submitted[0, 2]
    assert world.workers[1].sequenced[0] == world.submitted[0, 1]
    world.check_quiet()


def test_after_a_pause_a_peer_that_was_away_before_it_is_confirmed_too() -> None:
    """The peer may have returned during the pause, and its subscribers may rely on interest still in the socket."""
    world = World(2)
    world.run(0.5)
    one, two = world.workers
    world.network.cut.add((1, 0))
    world.run(2.0)
    assert one.links[1].away
    one.stopped = True
    world.network.cut.clear()
    world.run(2.0)
    two.publisher.change(b"since/then")
    world.run(0.1)
    one.stopped = False
    one.links[1].greet(world.network.now)
    assert all(link.confirming for link in one.links.values())
    world.run(0.3)
    assert not any(link.confirming for link in one.links.values())
    assert (b"since/then", None) in one.wants[1]


def test_a_peer_that_stays_away_is_waited_for_no_longer_than_its_silence() -> None:
    world = World(2)
    world.run(0.5)
    one, two = world.workers
    two.stopped = True
    world.run(2.0)
    link = one.links[1]
    assert link.away
    link.greet(world.network.now)
    assert all(each.confirming for each in one.links.values())
    world.run(LIMITS.link_silence_seconds_max + 0.2)
    assert not any(each.confirming for each in one.links.values())
    assert one.log.count(("away", 1)) == 1
    assert one.log[-1] == ("unconfirmed", 1)  # its interest may be larger than known
    two.stopped = False
    two.links[0].greet(world.network.now)
    world.run(0.5)
    world.check_quiet()


def test_a_dead_peer_whose_sessions_outlive_it_is_waited_for_no_longer_either() -> None:
    """The successor may never start; clients of this worker must not wait for it."""
    world = World(2)
    world.workers = [world.start(i, 1, handoffs={1 - i: HandoffLog(stream=10 + i)}) for i in range(2)]
    world.run(0.5)
    one = world.workers[0]
    link = one.links[1]
    world.kill(1)
    link.down(1)
    link.greet(world.network.now)
    assert [each.confirming for each in one.links.values()] == [True]
    world.run(LIMITS.link_silence_seconds_max + 0.2)
    assert [each.confirming for each in one.links.values()] == [False]
    assert one.log[-1] == ("unconfirmed", 1)
    world.workers[1] = world.start(1, 2, handoffs={0: HandoffLog(stream=12)})
    world.run(0.5)
    assert link.ready


def test_handoff_log_refuses_the_newest_above_its_limit() -> None:
    world = World(2)
    world.run(0.5)
    world.workers[1].stopped = True
    world.run(2.0)
    for _ in range(40):
        world.submit(0, 1, entries=2, size=4000)
    world.run(0.02)
    link = world.workers[0].links[1]
    assert link.handoff_bytes <= LIMITS.handoff_log_bytes_max
    refused = [ticket for _, ticket, position, reason in world.workers[0].refusals]
    assert all(r[2:] == (WHOLE_BATCH, Refusal.HANDOFF_FULL) for r in world.workers[0].refusals)
    assert refused == list(range(40 - len(refused), 40))
    assert refused
    assert world.workers[0].acked[1] == 39  # refused first, see Worker.refused
    world.workers[1].stopped = False
    world.workers[1].links[0].greet(world.network.now)
    world.run(2.0)
    kept = 2 * (40 - len(refused))
    assert world.workers[1].sequenced[0] == world.submitted[0, 1][:kept]


def test_many_small_batches_for_a_peer_that_is_away_have_a_bound() -> None:
    """Each costs more than it contains, and a peer may be away for minutes."""
    world = World(2)
    world.run(0.5)
    world.workers[1].stopped = True
    world.run(2.0)
    many = LIMITS.handoff_log_bytes_max // 512
    for _ in range(2 * many):
        world.submit(0, 1, entries=1, size=1)
    world.run(0.02)
    link = world.workers[0].links[1]
    kept = 2 * many - len(world.workers[0].refusals)
    assert many // 2 < kept < many
    assert 512 * kept < link.handoff_bytes <= LIMITS.handoff_log_bytes_max
    world.workers[1].stopped = False
    world.workers[1].links[0].greet(world.network.now)
    world.run(5.0)
    assert world.workers[1].sequenced[0] == world.submitted[0, 1][:kept]
    assert link.handoff_bytes == 0


def test_killed_worker_memory_store() -> None:
    """Messages that waited for it are lost and counted, their publishers get acks; its successor starts clean."""
    world = World(3)
    world.run(0.5)
    world.workers[1].publisher.change(b"old", None, 1, True)
    world.run(0.1)
    world.workers[1].commit_delay = 1e9
    for _ in range(5):
        world.submit(0, 1, entries=3)
    world.run(0.05)
    stale = [bytes(frame) for frame in _capture(world, 1, 0)]
    world.kill(1)
    world.workers[0].links[1].down(1)
    world.workers[2].links[1].down(1)
    assert world.workers[0].losses == [(1, 15, 4)]
    assert ("gone", 1, 1) in world.workers[0].log
    link = world.workers[0].links[1]
    assert link.outbox_bytes == 0
    assert link.unacknowledged == 0
    world.submit(0, 1, entries=2)
    world.run(0.02)
    assert world.workers[0].losses[-1] == (1, 2, 5)
    refused = link.traffic.frames_refused
    link.receive(stale, world.network.now)
    assert link.traffic.frames_refused == refused + 1
    world.workers[1] = world.start(1, 2)
    world.workers[1].publisher.change(b"new")
    world.run(0.3)
    assert world.workers[0].log[-1] == ("ready", 1)
    assert set(world.workers[0].wants[1]) == {(b"new", None)}
    first = len(world.submitted[0, 1])
    world.submit(0, 1)
    world.submit(1, 0)
    world.run(0.1)
    assert world.workers[1].sequenced[0] == world.submitted[0, 1][first:]
    assert world.workers[0].acked[1] == 6
    link.receive(stale, world.network.now)
    assert link.traffic.frames_refused == refused + 2
    link.down(1)  # the supervisor's message arrives late
    assert link.ready


def _capture(world: World, source: int, target: int) -> list[Any]:
    """Return a heartbeat of that link, taken off the wire."""
    taken: list[Any] = []
    link = world.workers[source].links[target]
    send = link.out.send

    def tap(frames: list[Any]) -> bool:
        taken.extend(frames)
        return True

    link.out.send = tap
    link.out.acknowledge()
    link.out.send = send
    return taken


def test_new_incarnation_before_the_supervisors_word() -> None:
    world = World(2)
    world.run(0.5)
    world.workers[1].commit_delay = 1e9
    world.submit(0, 1)
    world.run(0.05)
    world.kill(1)
    world.workers[1] = world.start(1, 2)
    world.run(0.3)
    assert world.workers[0].log == [("ready", 1), ("gone", 1, 1), ("ready", 1)]
    assert world.workers[0].losses == [(1, 3, 0)]


def test_late_commit_of_a_dead_peers_batch_acks_nothing() -> None:
    world = World(2)
    world.run(0.5)
    world.workers[1].commit_delay = 1e9
    world.submit(0, 1)
    world.run(0.05)
    late = world.workers[1].commits[0].popleft()[1]
    world.kill(0)
    world.workers[0] = world.start(0, 2)
    world.workers[1].links[0].down(1)
    world.run(0.3)
    world.submit(0, 1)
    world.run(0.05)
    world.workers[1].links[0].commit(late)
    world.run(0.3)
    assert world.workers[0].acked[1] == -1
    sequence = world.workers[1].commits[0].popleft()[1]
    assert sequence > late
    world.workers[1].links[0].commit(sequence)
    world.run(0.05)
    assert world.workers[0].acked[1] == 1


def test_refused_entries_arrive_before_the_ack_even_when_messages_are_lost() -> None:
    world = World(2, 7)
    world.run(0.5)
    world.workers[1].refuse = lambda sequence: [(1, Refusal.NO_MEMBER)] if sequence % 3 == 0 else []
    world.network.loss = 0.3
    for _ in range(60):
        world.submit(0, 1)
        world.run(0.02)
    world.network.loss = 0.0
    world.run(2.0)
    assert world.workers[1].sequenced[0] == world.submitted[0, 1]
    assert len(world.workers[0].refusals) == len({r[1] for r in world.workers[0].refusals})
    assert len(world.workers[0].refusals) in (20, 21)
    world.check_quiet()
    assert not world.workers[1].links[0].incoming.refusals


@pytest.mark.parametrize("kept", [True, False])
def test_a_refusal_survives_its_worker_as_the_position_does(kept: bool) -> None:
    """The sender gets it from the successor; otherwise the entry would count as taken."""
    world = World(2)
    sender = world.workers[0] = world.start(0, 1, handoffs={1: HandoffLog(7)})
    receiver = world.workers[1]
    world.run(0.5)
    receiver.refuse = lambda _: [(0, Refusal.NO_MEMBER)]
    world.network.cut.add((1, 0))
    world.submit(0, 1, entries=1)
    world.run(0.3)
    assert receiver.sequenced[0] == world.submitted[0, 1]
    assert sender.refusals == []
    dead = world.kill(1)
    sender.links[1].down(1)
    world.network.cut.clear()
    world.workers[1] = world.start(
        1, 2, received=dead.committed, kept_refusals={0: dead.links[0].incoming.refusals} if kept else {}
    )
    world.run(1.0)
    assert world.workers[1].sequenced[0] == []
    assert sender.acked[1] == 0
    assert [refusal[3] for refusal in sender.refusals] == ([Refusal.NO_MEMBER] if kept else [])


def test_back_pressure_has_hysteresis_and_counts_volatile_bytes() -> None:
    world = World(2)
    world.run(0.5)
    link = world.workers[0].links[1]
    world.workers[1].stopped = True
    while not is_full(link):
        world.submit(0, 1, entries=0, volatile=1, size=3000)
    assert link.outbox_bytes >= LIMITS.peer_outbox_bytes_max
    world.workers[1].stopped = False
    world.run(0.1)
    assert not is_full(link)
    assert link.outbox_bytes <= LIMITS.peer_outbox_bytes_max // 2
    assert world.workers[1].volatile[0] == world.submitted_volatile[0, 1]


def test_transport_that_refuses_loses_nothing_and_keeps_order() -> None:
    world = World(2)
    world.run(0.5)
    world.network.capacity = 2
    for _ in range(30):
        world.submit(0, 1, entries=2, volatile=1)
    link = world.workers[0].links[1]
    assert link.flush(world.network.now)
    world.run(1.0)
    assert world.workers[1].sequenced[0] == world.submitted[0, 1]
    assert world.workers[1].volatile[0] == world.submitted_volatile[0, 1]
    world.check_quiet()


def test_stall_counts_as_away_and_ends_when_the_log_is_empty() -> None:
    """The peer sends but takes nothing for longer than peer_stall_seconds_max."""
    world = World(2)
    world.run(0.5)
    world.workers[1].commit_delay = 1e9  # its disk hangs
    link = world.workers[0].links[1]
    while not is_full(link):
        world.submit(0, 1, entries=1, size=3000)
    world.run(1.0)
    assert is_full(link)
    assert not is_away(link)
    world.run(1.5)
    assert is_away(link)
    assert not is_full(link)
    assert world.workers[0].acked[1] == world.tickets[0, 1] - 1
    world.submit(0, 1)
    world.run(0.1)
    assert link.handoff_bytes
    worker = world.workers[1]
    worker.commit_delay = 0.0
    worker.commits[0] = deque((0.0, sequence) for _, sequence in worker.commits[0])
    world.run(0.6)
    assert worker.sequenced[0] == world.submitted[0, 1]
    assert world.workers[0].log == [("ready", 1), ("away", 1), ("ready", 1)]
    world.check_quiet()


def test_two_workers_that_flood_each_other_do_not_lock() -> None:
    world = World(2)
    world.run(0.5)
    world.network.capacity = 4

    def each() -> None:
        for source, target in ((0, 1), (1, 0)):
            while not world.workers[source].links[target].full:
                world.submit(source, target, entries=8, volatile=2, size=1000)

    world.run(2.0, each)
    world.run(2.0)
    assert len(world.submitted[0, 1]) > 2000
    for source, target in both(world):
        assert world.workers[target].sequenced[source] == world.submitted[source, target]
        assert world.workers[target].volatile[source] == world.submitted_volatile[source, target]
        assert not world.workers[source].links[target].traffic.volatile_dropped
    world.check_quiet()


@pytest.mark.parametrize("seed", range(20))
def test_volatile_stores_kills_and_stops(seed: int) -> None:
    """Memory store: between surviving workers everything acked is received once, in order; limits hold throughout."""
    world = World(3, seed)
    rand = world.network.random
    world.run(0.5)
    incarnation = 1

    def each() -> None:
        for source, target in both(world):
            worker = world.workers[source]
            if not worker.stopped and not worker.links[target].full and rand.random() < 0.3:
                world.submit(source, target, rand.randrange(4), rand.randrange(2), rand.choice((20, 5000)))
            for link in worker.links.values():
                assert link.handoff_bytes <= LIMITS.handoff_log_bytes_max + LIMITS.peer_outbox_bytes_max + 40000

    for _ in range(5):
        world.run(rand.random(), each)
        if rand.random() < 0.5:
            world.kill(2)
            for index in (0, 1):
                if rand.random() < 0.7:
                    world.workers[index].links[2].down(incarnation)
            world.run(rand.random() * 2.0, each)
            incarnation += 1
            world.workers[2] = world.start(2, incarnation)
            for pair in ((2, 0), (2, 1)):
                world.submitted[pair] = []
                world.tickets[pair] = 0
                world.workers[pair[1]].sequenced[2] = []
        else:
            world.workers[1].stopped = True
            world.run(rand.random() * 2.5, each)
            world.workers[1].stopped = False
            for link in world.workers[1].links.values():
                link.greet(world.network.now)
    world.run(4.0)
    for source, target in ((0, 1), (1, 0)):
        refused = {r[1] for r in world.workers[source].refusals if r[0] == target}
        if not refused:
            assert world.workers[target].sequenced[source] == world.submitted[source, target], f"seed {seed}"
    for source, target in ((2, 0), (2, 1)):
        got = world.workers[target].sequenced[source]
        assert got == sorted(set(got)), f"seed {seed}"
    for source, target in both(world):
        assert world.workers[source].links[target].unacknowledged == 0, f"seed {seed}"
        assert world.workers[source].links[target].ready, f"seed {seed}"


def test_wrong_bytes_are_an_envelope_error_and_change_nothing() -> None:
    world = World(2, 3)
    world.run(0.5)
    rand = random.Random(5)
    captured: list[list[Any]] = []
    link = world.workers[0].links[1]
    send = link.out.send

    def capture(frames: list[Any]) -> bool:
        captured.append([bytes(frame) for frame in frames])
        return True

    link.out.send = capture
    world.submit(0, 1, entries=2, volatile=1, size=5000)
    link.out.send = send
    target = world.workers[1].links[0]
    good = captured[0]
    for _ in range(3000):
        frames = [bytearray(frame) for frame in good]
        mutation = rand.randrange(3)
        if mutation == 0:
            frames[0] = frames[0][: rand.randrange(len(frames[0]))]
        elif mutation == 1:
            at = rand.randrange(envelope.PREFIX_BYTES + 20)
            frames[0][at] ^= 1 << rand.randrange(8)
            if at in (envelope.PREFIX_BYTES, envelope.PREFIX_BYTES + 1):
                continue  # kind and flags: another valid message
        else:
            frames = frames[: rand.randrange(1, len(frames))] if len(frames) > 1 else [*frames, bytearray(b"x")]
        before = world.workers[1].sequenced[0][:]
        try:
            target.receive([bytes(frame) for frame in frames], world.network.now)
        except EnvelopeError:
            assert world.workers[1].sequenced[0] == before
    target.receive(good, world.network.now)
    assert world.workers[1].sequenced[0] == world.submitted[0, 1]

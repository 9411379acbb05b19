"""Links with a hand-off log that outlives its worker, over the simulated transports of test_links."""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pyx.mesh.stream import NUMBERS_PER_MICROSECOND, RESTART_SKIP
from tests import mesh_messages
from tests.unit.zmq_mesh.link_world import LIMITS, Lasting, Worker, World, both, is_full
from zmq_mesh.contract import HandoffLog


def test_what_is_held_takes_along_what_goes_before_it() -> None:
    """Otherwise the log of a dead worker would deliver a message without those its publisher had sent earlier."""
    world = World(2)
    log = HandoffLog(7)
    world.workers[0] = world.start(0, 1, handoffs={1: log})
    world.run(0.5)
    world.network.cut.add((0, 1))
    for hold in (False, False, True, False, True, False):
        world.submit(0, 1, entries=1, hold=hold)
    assert len(log.entries) == 5
    world.kill(0)
    world.workers[1].links[0].down(1)
    world.network.cut.clear()
    world.workers[0] = world.start(0, 2, handoffs={1: log})
    world.run(1.0)
    assert world.workers[1].sequenced[0] == world.submitted[0, 1][:5]
    world.submit(0, 1, entries=1)
    world.run(0.5)
    world.check_quiet()
    assert not log.entries


def test_what_a_lasting_log_has_is_not_kept_in_memory_and_read_back_a_little_at_a_time() -> None:
    """Nothing is refused, whatever the amount, and the part under way is bounded."""
    world = World(2)
    log = Lasting(7)
    sender = world.workers[0] = world.start(0, 1, handoffs={1: log})
    link = sender.links[1]
    world.run(0.5, log.store)
    world.workers[1].stopped = True
    world.submit(0, 1, size=5000)  # sent, not acked
    world.run(LIMITS.link_silence_seconds_max + 0.5, log.store)
    assert link.away
    for _ in range(200):
        world.submit(0, 1, size=5000)
    assert link.handoff_bytes > 10 * LIMITS.handoff_log_bytes_max
    kept = [item for item in link.stream.kept if item.kind == mesh_messages.Kind.BATCH]
    assert not any(item.unloaded for item in kept[-200:]), "not stored yet"
    world.run(0.02)
    log.store()
    assert len(kept) == 201
    assert all(item.unloaded and not item.part and not item.payloads for item in kept)
    assert not sender.refusals
    assert not log.reads
    most = 0

    def look() -> None:
        nonlocal most
        log.store()
        most = max(most, sum(item.nbytes for item in link.stream.kept if item.read))
        assert most == 0 or link.stream.read_bytes == sum(item.nbytes for item in link.stream.kept if item.read)

    world.workers[1].stopped = False
    world.run(3.0, look)
    assert world.workers[1].sequenced[0] == world.submitted[0, 1]
    assert 0 < most <= LIMITS.peer_outbox_bytes_max // 8 + 20_000
    assert log.reads <= 201 + 5, "each once, but for what was under way when the peer spoke again"
    world.check_quiet()
    # the next incarnation finds the messages not taken, with as few in memory
    world.network.cut.add((0, 1))
    for _ in range(20):
        world.submit(0, 1, size=5000, hold=True)
    world.run(0.1, log.store)
    world.kill(0)
    world.workers[1].links[0].down(1)
    world.network.cut.clear()
    sender = world.workers[0] = world.start(0, 2, handoffs={1: log})
    assert not any(item.part for item in sender.links[1].stream.kept if item.kind == mesh_messages.Kind.BATCH)
    world.run(2.0, log.store)
    assert world.workers[1].sequenced[0] == world.submitted[0, 1]


def stall(world: World, log: Lasting) -> None:
    """The sibling reads and takes nothing, until it counts as away."""
    link = world.workers[0].links[1]
    world.workers[1].commit_delay = 1000.0
    while not link.full:
        world.submit(0, 1, size=3000)
    world.run(LIMITS.peer_stall_seconds_max + 0.5, log.store)
    assert link.away
    log.store()


def leave(world: World, log: Lasting) -> None:
    world.workers[1].stopped = True
    world.submit(0, 1)
    world.run(LIMITS.link_silence_seconds_max + 0.5, log.store)
    assert world.workers[0].links[1].away


def end(world: World, log: Lasting) -> None:
    world.kill(1)
    world.workers[0].links[1].down(1)
    log.store()


@pytest.mark.parametrize("lose", [stall, leave, end])
def test_what_must_be_stored_first_is_not_sent_before(lose: Callable[[World, Lasting], None]) -> None:
    """A QoS 2 message of a lasting session, for a sibling that is stalled, or comes back: its publisher sends it again
    if this worker dies before it was stored, and then it must not have been delivered.
    """
    log = Lasting(7)
    world = World(2)
    world.workers[0] = world.start(0, 1, handoffs={1: log})
    world.run(0.5, log.store)
    lose(world, log)
    world.submit(0, 1, hold=True)
    held = world.submitted[0, 1][-1]
    if lose is end:
        world.workers[1] = world.start(1, 2)
    world.workers[1].stopped = False
    world.run(0.5)
    assert held not in world.workers[1].sequenced[0]
    world.workers[1].commit_delay = 0.0
    world.run(3.0, log.store)
    assert world.workers[1].sequenced[0].count(held) == 1


def behind(log: HandoffLog, commit_delay: float = 0.5) -> World:
    """Worker 1 runs, but takes longer than the input allows, and our memory has no room for all of it."""
    world = World(2)
    world.workers[0] = world.start(0, 1, handoffs={1: log})
    world.run(0.5)
    world.workers[1].commit_delay = commit_delay
    return world


def test_a_sibling_that_is_there_and_behind_is_sent_from_the_log() -> None:
    """Memory holds a window; publishers get the sibling's acks, and back-pressure counts everything that waits."""
    log = Lasting(7)
    world = behind(log)
    link = world.workers[0].links[1]
    most = tickets = 0

    def submit() -> None:
        nonlocal most, tickets
        log.store()
        if tickets < 300 and not link.full:
            tickets += 1
            world.submit(0, 1, entries=2, size=400, volatile=1)
        in_memory = [item for item in link.stream.kept if item.kind == mesh_messages.Kind.BATCH and not item.unloaded]
        assert link.stream.loaded_bytes == sum(item.nbytes for item in in_memory)
        assert link.outbox_bytes >= sum(item.nbytes for item in link.stream.kept)
        assert link.stream.read_bytes == sum(item.nbytes for item in link.stream.kept if item.read)
        assert world.workers[0].acked[1] < link.stream.kept[0].ticket if link.stream.kept else True
        assert not link.away
        most = max(most, link.stream.loaded_bytes)

    world.network.capacity = 4
    world.run(8.0, submit)
    assert tickets == 300
    assert most <= LIMITS.peer_outbox_bytes_max // 8 + 2 * 1000, "and what a tick adds before it is stored"
    assert link.traffic.batches_behind > 10
    assert not link.handoff_bytes, "the log of those who are away is another account"
    assert world.workers[1].sequenced[0] == world.submitted[0, 1]
    world.run(3.0, log.store)
    world.check_quiet()
    assert not log.entries
    behind_before, reads = link.traffic.batches_behind, log.reads
    world.workers[1].commit_delay = 0.0
    for _ in range(50):
        world.submit(0, 1, entries=2, size=400)
        world.run(0.05, log.store)
    assert (link.traffic.batches_behind, log.reads) == (behind_before, reads), "in sync: nothing is stored nor read"
    assert link.outbox_bytes == 0


def test_what_is_sent_from_the_log_and_refused_by_the_transport_is_not_read_again() -> None:
    log = Lasting(7)
    world = behind(log, 1e9)
    link = world.workers[0].links[1]
    world.network.cut.add((0, 1))
    for _ in range(20):
        world.submit(0, 1, entries=2, size=1000)
    world.run(1.0, log.store)
    assert link.traffic.batches_behind
    assert not link.stream.loaded_bytes
    assert log.reads == 1


def test_a_log_without_room_is_left_alone_while_the_sibling_is_there() -> None:
    log = Lasting(7)
    log.full = True
    world = behind(log)
    link = world.workers[0].links[1]
    for _ in range(20):
        world.submit(0, 1, entries=2, size=1000)
    world.run(0.1, log.store)
    assert link.stream.loaded_bytes > LIMITS.peer_outbox_bytes_max // 8
    assert not log.entries
    log.full = False
    world.submit(0, 1, entries=2, size=1000)
    assert len(log.entries) == link.unacknowledged
    world.run(3.0, log.store)
    assert world.workers[1].sequenced[0] == world.submitted[0, 1]
    world.check_quiet()


@pytest.mark.parametrize("leaves", ["away", "gone", "own death"])
def test_a_sibling_that_is_behind_may_leave(leaves: str) -> None:
    """The own worker may die, too: then the next incarnation continues with the log, which has no gaps."""
    log = Lasting(7)
    world = behind(log)
    link = world.workers[0].links[1]
    for round_ in range(40):
        world.submit(0, 1, entries=2, size=400)
        if round_ % 2:
            world.run(0.01, log.store)
    assert link.traffic.batches_behind
    if leaves == "own death":
        has = len(log.entries)
        world.kill(0)
        world.workers[1].links[0].down(1)
        world.workers[0] = world.start(0, 2, handoffs={1: log})
        world.run(3.0, log.store)
        got = world.workers[1].sequenced[0]
        assert got == world.submitted[0, 1][: len(got)]
        assert len(got) >= 2 * has > 60
        return
    world.workers[1].stopped = True
    if leaves == "gone":
        position = world.workers[1].committed.get(0, (0, 0))
        taken = world.workers[1].sequenced[0]
        world.kill(1)
        link.down(1)
        world.run(0.1, log.store)
        world.workers[1] = world.start(1, 2, received={0: position})
        world.run(3.0, log.store)
        again = world.workers[1].sequenced[0]
        assert again == sorted(again)
        assert sorted(set(taken + again)) == world.submitted[0, 1]
    else:
        world.run(LIMITS.link_silence_seconds_max + 0.5, log.store)
        assert link.away
        assert link.stream.loaded_bytes == 0
        assert link.handoff_bytes == sum(item.nbytes for item in link.stream.kept)
        world.workers[1].stopped = False
        world.run(3.0, log.store)
        assert world.workers[1].sequenced[0] == world.submitted[0, 1]
    world.check_quiet()
    assert link.stream.read_bytes == link.stream.loaded_bytes == 0


@pytest.mark.parametrize("seed", range(20))
def test_surviving_logs_no_loss_after_ack(seed: int) -> None:
    """Both workers are killed and stopped at random; logs and stores outlive them: each acked entry is stored once."""
    world = World(2, seed)
    rand = world.network.random
    kind = (HandoffLog, Lasting)[seed % 2]
    handoffs = {(a, b): kind(a * 10 + b + 1) for a, b in both(world)}
    stores: dict[tuple[int, int], list[int]] = {(a, b): [] for a, b in both(world)}
    marks: dict[tuple[int, int], tuple[int, int]] = {}
    acked: dict[tuple[int, int], set[int]] = defaultdict(set)
    in_ticket: dict[tuple[int, int, int], list[int]] = {}

    def start(index: int, incarnation: int) -> Worker:
        peer = 1 - index
        worker = world.start(
            index,
            incarnation,
            handoffs={peer: handoffs[index, peer]},
            received={peer: marks.get((index, peer), (0, 0))},
        )
        worker.acked[peer] = world.tickets[index, peer] - 1  # earlier tickets get no ack any more
        _persist(worker, peer, stores[index, peer], marks, acked, in_ticket)
        return worker

    world.workers = [start(0, 1), start(1, 1)]
    world.run(0.5)
    incarnations = [1, 1]

    def store() -> None:
        for log in handoffs.values():
            if isinstance(log, Lasting):
                log.store()

    def each() -> None:
        store()
        for source, target in both(world):
            if not world.workers[source].stopped and rand.random() < 0.3:
                number = world.number
                size = rand.choice((20, 20, 2000))
                ticket = world.submit(source, target, rand.randrange(1, 4), size=size, hold=rand.random() < 0.1)
                in_ticket[source, target, ticket] = list(range(number, world.number))

    for _ in range(8):
        world.run(rand.random() * 2.0, each)
        victim = rand.randrange(2)
        if rand.random() < 0.5:
            world.kill(victim)
            if rand.random() < 0.5:
                world.workers[1 - victim].links[victim].down(incarnations[victim])
            world.run(rand.random() * 3.0, each)
            incarnations[victim] += 1
            world.workers[victim] = start(victim, incarnations[victim])
            world.workers[1 - victim].links[victim].down(incarnations[victim] - 1)
        else:
            world.workers[victim].stopped = True
            world.run(rand.random() * 4.0, each)
            world.workers[victim].stopped = False
            world.workers[victim].links[1 - victim].greet(world.network.now)
    world.run(5.0, store)
    for source, target in both(world):
        stored = stores[target, source]
        assert len(stored) == len(set(stored)), f"seed {seed}: stored twice"
        assert stored == sorted(stored), f"seed {seed}: order"
        assert acked[source, target] <= set(stored), f"seed {seed}: acked and lost"
        assert world.workers[source].links[target].unacknowledged == 0
        assert not handoffs[source, target].entries


def _persist(
    worker: Worker,
    peer: int,
    store: list[int],
    marks: dict[tuple[int, int], tuple[int, int]],
    acked: dict[tuple[int, int], set[int]],
    in_ticket: dict[tuple[int, int, int], list[int]],
) -> None:
    """A store that outlives the worker: entries and the link's position are written together."""
    seen = 0

    def refuse(sequence: int) -> list[tuple[int, int]]:
        nonlocal seen
        numbers = worker.sequenced[peer]
        taken = batches.popleft()
        assert taken[0] == sequence
        store.extend(numbers[seen : taken[1]])
        seen = taken[1]
        marks[worker.index, peer] = worker.links[peer].position(sequence)
        return []

    batches: deque[tuple[int, int]] = deque()
    batch = worker.batch

    def note(peer: int, volatile: Any, sequenced: Any, payloads: Any, sequence: int) -> None:
        batch(peer, volatile, sequenced, payloads, sequence)
        if sequence:
            batches.append((sequence, len(worker.sequenced[peer])))

    def acknowledged(peer: int, ticket: int) -> None:
        refused = {ticket for _, ticket, _, _ in worker.refusals}
        for t in set(range(worker.acked[peer] + 1, ticket + 1)) - refused:
            acked[worker.index, peer].update(in_ticket.get((worker.index, peer, t), ()))
        worker.acked[peer] = ticket

    worker.batch = note  # type: ignore[method-assign]
    worker.acknowledged = acknowledged  # type: ignore[method-assign]
    worker.refuse = refuse


def test_incarnations_have_numbers_of_their_own_although_nothing_of_the_former_one_was_stored() -> None:
    """An incarnation is a time in microseconds (shards.supervisor)."""
    log = HandoffLog(7)
    world = World(2)
    first = world.start(0, 1_000_000_000_000_000, handoffs={1: log}).links[1].stream.sequence
    lost = HandoffLog(7)  # as it was before
    second = world.start(0, 1_000_000_000_000_001, handoffs={1: lost}).links[1].stream.sequence
    assert second - first == NUMBERS_PER_MICROSECOND, "however short the first one has lived"
    kept = HandoffLog(7)
    kept.reserved = second + 10
    third = world.start(0, 999_999_999_999_999, handoffs={1: kept}).links[1].stream.sequence
    assert third == second + 10 + RESTART_SKIP, "the clock was set back"


@pytest.mark.parametrize("handoff", [None, Lasting])
def test_how_many_batches_wait_for_a_sibling_is_bounded(handoff: type[Lasting] | None) -> None:
    """However small they are: when it is silent, or dies, they are logged, or reported, in one callback."""
    most = 8192
    world = World(2, limits=replace(LIMITS, peer_outbox_bytes_max=64 * 1024 * 1024))
    log = None if handoff is None else handoff(7)
    world.workers[0] = world.start(0, 1, handoffs={} if log is None else {1: log})
    world.run(0.5)
    link = world.workers[0].links[1]
    world.network.cut.add((0, 1))
    for _ in range(most - 1):
        world.submit(0, 1, entries=1)
    assert not is_full(link)
    world.submit(0, 1, entries=1)
    assert is_full(link)
    world.network.cut.clear()
    world.run(3.0, lambda: None if log is None else log.store())
    assert world.workers[1].sequenced[0] == world.submitted[0, 1]
    assert not is_full(link)

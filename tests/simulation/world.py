"""One simulated host: workers, their links, clients, and faults, all by a seed.

`World(seed, mode).run()` raises Violation or ends at rest. The seed decides everything: how many workers and clients,
the limits, each action and its time, each fault. A phase of traffic with faults is followed by calm (everything heals,
all clients reconnect and read fast) until there is no more activity; the world must come to rest. Then the final checks
run (tests.simulation.checkers).

Faults: killed workers (the supervisor restarts them), stopped ones (SIGSTOP, SIGCONT), links that break and lose
messages in transit, slow links, connections that are reset, clients that read slowly, take over themselves, or give up
waiting.

Not modelled: TLS and WebSocket, keep-alive (its timers are the reactor's), authentication, more than one host, clocks
that step, a full or failing disk, malformed bytes (tests/fuzz), and time spent inside a tick.

"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Literal

from broker.config.settings import Limits, Settings
from broker.config.share_groups import ShareGroupRule
from pyx.core.peer import Peer
from pyx.core.placement import owner
from pyx.delivery.router import STRATEGIES
from shards.placement import home
from tests.simulation import checkers, readers
from tests.simulation.clients import Client, Plan
from tests.simulation.clock import Clock
from tests.simulation.history import History, Publish, Violation
from tests.simulation.network import Channel, Line
from tests.simulation.workers import Worker
from zmq_mesh.contract import LinkLimits

__all__ = ["Mode", "World"]

Mode = Literal["survives", "volatile"]

FOREVER = 0xFFFFFFFF
REST_SECONDS = 60.0
EVENTS = 500
"""Number of events of one run, before it calms down."""
SILENCE_SECONDS = 1.5
CHECK_EVERY = 12
PLAIN = [f"t/{a}/{b}" for a in range(3) for b in "xy"]
FILTERS = ["t/#", "t/+/x", "t/0/+", "t/1/#", "+/2/y", *PLAIN]
RETAINED = ["r/0", "r/1", "r/2"]
GROUPS = {name: f"$share/{name}/s/{name}/#" for name in STRATEGIES}
"""One share group for each strategy, with topics of its own."""
RANKED = ("hash_topic", "hash_client", "sticky")
SHARED = [f"s/{name}/{number}" for name in GROUPS for number in range(2)]


class World:
    """The state of one run."""

    def __init__(self, seed: int, mode: Mode, say: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.mode = mode
        self.survives = mode == "survives"
        self.say = say
        self.clock = clock = Clock(seed)
        self.history = History()
        chance, pick = clock.chance, clock.random.choice
        self.workers_count = pick([1, 2, 3, 3, 4])
        self.small_links = chance(0.2)
        self.small_queues = chance(0.25)
        self.large_payloads = chance(0.2)
        self.loop_seconds = pick([0.0001, 0.001, 0.005])
        self.disk_seconds = pick([0.0001, 0.002, 0.02]) if self.survives else 0.0
        self.hurry = clock.between(0.3, 1.0)
        self.settings = Settings(
            workers=self.workers_count,
            queue_full=pick(["drop_oldest", "drop_newest", "disconnect", "hold"]),
            shared=[
                ShareGroupRule.model_validate(
                    {"group": name, "strategy": name, "when_full": pick(["next", "wait"]) if name in RANKED else "next"}
                )
                for name in GROUPS
            ],
            limits=Limits(
                inflight_max=pick([1, 3, 10, 100]),
                receive_maximum=pick([2, 10, 100]),
                queue_messages_max=pick([5, 20]) if self.small_queues else 20_000,
                outbox_bytes_max=pick([4096, 1 << 20]),
                share_large_bytes=pick([64, 2048]),
                tick_connection_packets_max=pick([1, 5, 1000]),
                takeovers_per_minute_max=0,
            ),
        )
        self.archives = self.survives and seed % 4 == 0
        """Whether some topics are archived, and some clients replay them."""
        self.disconnects_when_full = self.settings.queue_full == "disconnect"
        self.link_limits = LinkLimits(
            peer_outbox_bytes_max=pick([2000, 20_000]) if self.small_links else 8 << 20,
            link_silence_seconds_max=SILENCE_SECONDS,
        )
        self.tick_messages_max = 2000
        self.tick_bytes_max = 4 << 20
        self.clock_cell = memoryview(bytearray(8))
        self.workers = [Worker(self, index) for index in range(self.workers_count)]
        high_water = pick([4, 64])
        self.channels = {
            (a, b): Channel(clock, self.workers[a], self.workers[b], high_water)
            for a in range(self.workers_count)
            for b in range(self.workers_count)
            if a != b
        }
        self.clients: dict[str, Client] = {}
        self.anchors: list[str] = []
        """Clients that stay in their groups for the whole run; others join and leave."""
        self.calming = False
        self.faults: list[tuple[float, float]] = []
        self.kills: list[tuple[float, int]] = []
        self.cuts: list[tuple[int, int, float, float]] = []
        self.losses_booked = 0
        """Losses of workers that were killed: see `checkers.booked_losses`."""
        self._ticks = 0
        self.events = 0
        """Number of clients' actions and faults so far."""
        for number in range(clock.random.randrange(5, 12)):
            self._new_client(f"c{number}", self._plan())
        if self.archives:
            self.clients.update((reader.name, reader) for reader in readers.make(self, seed))

    def _plan(self) -> Plan:
        clock = self.clock
        version = clock.random.choice([4, 5])
        expiry = clock.random.choice([0, FOREVER, FOREVER] if version == 4 else [0, 2, FOREVER, FOREVER])
        window, no_local = clock.random.choice([1, 3, 50]), version == 5 and clock.chance(0.15)
        return Plan(version, expiry, window, clock.chance(0.15), clock.chance(0.1), no_local)

    def _new_client(self, name: str, plan: Plan) -> Client:
        client = self.clients[name] = Client(self, name, home(name, self.workers_count), plan)
        return client

    # ------------------------------------------------------------ services for the parts

    def tell(self, text: str) -> None:
        """Print an event of the run, for `-v`."""
        if self.say is not None:
            self.say(f"{self.clock.now:9.4f} {text}")

    def channels_to(self, worker: int) -> list[Channel]:
        """Return all channels that end at this worker."""
        return [channel for (_, target), channel in self.channels.items() if target == worker]

    def open_line(self, client: Client) -> Line:
        """Open a TCP connection: the kernel gives it to any of the listening sockets."""
        delay = self.clock.between(0.0001, 0.01)
        line = Line(self.clock, client, client.lines_count, delay, 2000 if client.plan.slow else 1 << 30)
        worker = self.clock.random.choice(self.workers)
        self.tell(f"{client.name}: connects (connection {line.number}, worker {worker.index}, home {client.home})")
        self.clock.after(delay, lambda: worker.connected(line))
        return line

    def plain_topic(self) -> str:
        """Return one of the topics of plain subscriptions."""
        return self.clock.random.choice(PLAIN)

    def padding(self) -> int:
        """Return how many bytes a payload has beyond its number."""
        if not self.large_payloads:
            return 0
        return self.clock.random.choice([0, 0, 100, 3000, 9000])

    def queue_dropped(self, client_id: str, dropped: int) -> None:
        """Record messages dropped by a full queue."""
        drops = self.history.queue_drops
        drops[client_id] = drops.get(client_id, 0) + dropped

    def after_tick(self, worker: Worker) -> None:
        """Check a worker between two ticks."""
        self._ticks += 1
        if self._ticks % CHECK_EVERY == 0:
            checkers.check_worker(worker)

    def worker_killed(self, index: int, lost: dict[Peer, list[bytes]], shares: list[bytes], booked: int) -> None:
        """Record losses that the clients cannot know yet; `lost`: payloads that only this worker's memory held for a
        peer; `shares`: those that it held for members of groups; `booked`: see `checkers.booked_losses`.
        """
        self.kills.append((self.clock.now, index))
        self.losses_booked += booked
        for payload in shares:
            if (publish := self.history.by_payload.get(payload)) is not None:
                publish.share_lost = True
        if self.survives:
            return
        for client in self.clients.values():
            if client.home == index:
                client.session_lost()
        for peer, payloads in lost.items():
            for payload in payloads:
                if (publish := self.history.by_payload.get(payload)) is not None:
                    publish.lost_for.add(peer)

    def cut_off(self, client: Client, publish: Publish, since: float, shared: bool = False) -> bool:
        """Return whether the SUBACK promise is void: subscribed while the links between two running workers were broken
        for longer than link_silence_seconds_max (inside a host that does not happen to running workers). A worker that
        is stopped meanwhile may be notified only when it continues. A message for a group may have reached the member's
        worker through any other worker: one whose member had it and left.
        """
        pair = {client.home, publish.publisher.home}
        assert publish.started is not None
        return any(
            (client.home in (a, b) if shared else pair == {a, b})
            and start <= since <= end + 1.0
            and publish.started <= end + 6.0
            for a, b, start, end in self.cuts
        )

    def calm(self, client: Client, publish: Publish) -> bool:
        """Return whether even QoS 0 must have arrived: no fault near, and an outbox with room for a tick's messages."""
        at = publish.started
        assert at is not None
        return (
            not self.small_links
            and self.settings.limits.outbox_bytes_max > 100_000
            and not client.plan.slow
            and all(end < at - 3.0 or start > at + 3.0 for start, end in self.faults)
            and client.connected_during(at, at + 3.0)
            and publish.publisher.connected_during(at, at + 3.0)
        )

    # ------------------------------------------------------------ life

    def run(self) -> str:
        """Run traffic, calm down, and make the final checks. Returns a digest of the run."""
        for worker in self.workers:
            worker.start()
        self._start_clients()
        if self.workers_count > 1 or self.clock.chance(0.7):
            self.clock.after(self.clock.between(1.0, 3.0), self._fault)
        while self.events < EVENTS:
            self.clock.run_until(self.clock.now + 0.1)
        self._calm_down()
        self._rest("after the faults")
        for worker in self.workers:
            checkers.check_worker(worker)
        checkers.check_history(self)
        readers.check_readers(self)
        self._check_retained()
        checkers.check_numbers(self)
        for worker in self.workers:
            worker.node.router.abandon()
        story = "".join(f"{each.client.name} {each.publish.number} {each.at:.6f}\n" for each in self.history.deliveries)
        return hashlib.sha256(story.encode()).hexdigest()[:16]

    def _start_clients(self) -> None:
        clock = self.clock
        others = [each for each in self.clients.values() if not isinstance(each, readers.Reader)]
        lasting = [each for each in others if each.plan.expiry > 100][:3]
        self.anchors = [each.name for each in lasting if clock.chance(0.7)]
        for client in self.clients.values():
            if isinstance(client, readers.Reader):
                client.start()
        for client in others:
            if client.name in self.anchors or clock.chance(0.3):
                groups = clock.random.sample(list(GROUPS.values()), clock.random.randrange(1, len(GROUPS) + 1))
                client.subscribe([(text, clock.random.randrange(1, 3)) for text in groups])
            filters = clock.random.sample(FILTERS, clock.random.randrange(0, 4))
            if filters:
                client.subscribe([(text, clock.random.randrange(3)) for text in filters])
            if clock.chance(0.05):
                client.subscribe([(f"t/{number}/#", 1) for number in range(70)])
            clock.after(clock.between(0.0, 1.0), client.connect)
            clock.after(clock.between(0.5, 2.0), lambda client=client: self._act(client))  # type: ignore[misc]

    def _act(self, client: Client) -> None:
        if self.calming:
            return
        self.events += 1
        clock = self.clock
        fate = clock.random.random()
        if client.line is None:
            if fate < 0.3:
                client.connect()
        elif fate < 0.70:
            for _ in range(clock.random.choice([1, 1, 2, 5, 15])):
                self._publish(client)
        elif fate < 0.76:
            client.subscribe([(clock.random.choice(FILTERS), clock.random.randrange(3))])
        elif fate < 0.83:
            self._join_or_leave(client)
        elif fate < 0.88:
            client.unsubscribe(clock.random.choice(FILTERS))
        elif fate < 0.96:
            client.close(clock.random.choice(["disconnect", "close", "reset"]))
            client.wants_connection = clock.chance(0.7)
            client.clean_next = clock.chance(0.05) and client.name not in self.anchors
            if client.wants_connection:
                clock.after(clock.between(0.0, 1.0), client.reconnect)
        elif client.connected:
            client.connect()  # taken over by itself
        clock.after(clock.between(0.02, 0.5) * self.hurry, lambda: self._act(client))

    def _join_or_leave(self, client: Client) -> None:
        if client.name in self.anchors:
            return
        text = self.clock.random.choice(list(GROUPS.values()))
        if text in client.wanted:
            client.unsubscribe(text)
        else:
            client.subscribe([(text, self.clock.random.randrange(1, 3))])

    def _publish(self, client: Client) -> None:
        clock = self.clock
        qos = clock.random.choice([0, 1, 1, 2, 2])
        fate = clock.random.random()
        if fate < 0.6:
            client.publish(self.plain_topic(), qos, False)
        elif fate < 0.9:
            client.publish(clock.random.choice(SHARED), qos, False)
        else:
            client.publish(clock.random.choice(RETAINED), qos, True)

    # ------------------------------------------------------------ faults

    def _fault(self) -> None:
        if self.calming:
            return
        self.events += 1
        clock = self.clock
        worker = clock.random.choice(self.workers)
        fate = clock.random.random()
        if clock.chance(0.3):
            seconds = worker.wall_clock.step()
            self.tell(f"--- the wall clock of worker {worker.index} is set by {seconds} s")
        if fate < 0.3:
            self._kill(worker)
        elif fate < 0.55 and worker.running:
            seconds = clock.random.choice([0.1, 0.5, 1.0, 2.0, 3.0]) * clock.between(0.7, 1.3)
            self.tell(f"--- stop worker {worker.index} for {seconds:.2f} s")
            self.faults.append((clock.now, clock.now + seconds))
            worker.stop()
            clock.after(seconds, lambda: self._proceed(worker))
        elif self.channels:
            a, b = clock.random.choice(list(self.channels))
            if fate < 0.85:
                self._cut(a, b)
            else:
                self.channels[a, b].delay = clock.random.choice([0.0001, 0.0003, 0.01, 0.1])
        clock.after(clock.between(0.2, 2.5), self._fault)

    def _proceed(self, worker: Worker) -> None:
        self.tell(f"--- continue worker {worker.index}")
        worker.proceed()

    def _cut(self, a: int, b: int) -> None:
        clock = self.clock
        seconds = clock.between(0.01, 1.0) if clock.chance(0.8) else clock.between(1.0, 3.0)
        self.tell(f"--- cut link {a} -> {b} for {seconds:.2f} s")
        self.faults.append((clock.now, clock.now + seconds))
        if seconds > SILENCE_SECONDS / 2:
            self.cuts.append((a, b, clock.now, clock.now + seconds))
        self.channels[a, b].break_off(seconds)

    def _kill(self, worker: Worker) -> None:
        if not worker.alive:
            return
        clock = self.clock
        self.tell(f"--- kill worker {worker.index}, incarnation {worker.incarnation}")
        self.faults.append((clock.now, clock.now + 2.0))
        incarnation = worker.incarnation
        worker.kill()
        reaped = clock.between(0.0, 0.01)
        for sibling in self.workers:
            if sibling is not worker:
                clock.after(
                    reaped,
                    lambda sibling=sibling: sibling.sibling_down(worker.index, incarnation),  # type: ignore[misc]
                )
        clock.after(reaped + clock.between(0.0, 0.5), lambda: self._restart(worker))

    def _restart(self, worker: Worker) -> None:
        self.tell(f"--- start worker {worker.index}")
        worker.start()

    # ------------------------------------------------------------ rest

    def _calm_down(self) -> None:
        self.tell("--- calm")
        self.calming = True
        for channel in self.channels.values():
            channel.delay = 0.0003
        if self.disconnects_when_full:
            # a client that publishes to its own full queue would be disconnected again and again
            self.settings = self.settings.reloaded({"queue_full": "drop_newest"})
        for worker in self.workers:
            worker.node.reload(self.settings)
            worker.proceed()
        for client in self.clients.values():
            client.wants_connection = True
            client.reconnect()

    def _rest(self, when: str) -> None:
        end = self.clock.now + REST_SECONDS
        quiet_since = self.clock.now
        while True:
            self.clock.run_until(self.clock.now + 0.1)
            for worker in self.workers:
                worker.proceed()
            moving = next(self._moving(), None)
            if moving is not None:
                quiet_since = self.clock.now
            elif self.clock.now - quiet_since > 0.5:
                return
            if self.clock.now > end:
                raise Violation(f"no rest {when}: " + "; ".join(self._moving()))

    def _moving(self) -> Iterator[str]:
        for worker in self.workers:
            if not worker.running or not worker.listening:
                yield f"worker {worker.index} does not serve"
                continue
            for peer, link in worker.mesh.links.items():
                if not link.ready or link.unacknowledged:
                    yield (
                        f"link {worker.index} -> {peer}: ready {link.ready}, away {link.away}, full {link.full}, "
                        f"{link.unacknowledged} unacknowledged"
                    )
            for session in worker.node.sessions:
                backlog = worker.node.router.bounding.backlog(session)[0]
                if session.unacknowledged or session.queued or backlog:
                    yield (
                        f"session {session.client_id}: {session.unacknowledged} in flight, {session.queued} queued, "
                        f"backlog {backlog}, connected {session.connection is not None}"
                    )
        yield from readers.behind(self)
        for client in self.clients.values():
            if not client.quiet:
                yield (
                    f"{client.name}: connected {client.connected}, unanswered {list(client.outgoing)}, "
                    f"requests {list(client.requests)}, unsent {len(client.unsent)}, unreleased {list(client.incoming)}"
                )

    def _links_stand(self, killed: float) -> float:
        """Return the latest time when the links of a killed worker are up again: a restart takes up to a second, and
        longer if other faults overlap. Messages of its siblings for it until then are lost.
        """
        stands = killed + 1.5
        for begun, ended in sorted(self.faults):
            if begun < stands:
                stands = max(stands, ended + 1.5)
        return stands

    def _check_retained(self) -> None:
        """Check that every worker has the last retained message of each topic."""
        probes = []
        for worker in self.workers:
            names = (f"probe{number}" for number in range(1000))
            name = next(name for name in names if home(name, self.workers_count) == worker.index)
            probe = self._new_client(name, Plan(5, 0, 50, False, False))
            probe.subscribe([("r/#", 1)])
            probe.connect()
            probes.append(probe)
        self._rest("after the probes")
        ends = checkers.ends(self)
        for topic in RETAINED:
            sent = [each for each in self.history.publishes if each.topic == topic and each.sends]
            sure = [each for each in sent if self._is_surely_kept(each)]
            # any publish that ended before the last of these began was replaced by it
            last = max((each.started or 0.0 for each in sure), default=0.0)
            allowed = {each.number for each in sent if ends.get(each.number, float("inf")) >= last}
            for probe in probes:
                got = [
                    each.publish.number
                    for each in self.history.deliveries
                    if each.client is probe and each.publish.topic == topic
                ]
                if len(got) > 1 or (got and got[0] not in allowed) or (not got and sure):
                    raise Violation(f"{probe.name} (home {probe.home}) got {got} of {topic}, allowed {sorted(allowed)}")

    def _is_surely_kept(self, publish: Publish) -> bool:
        """Return whether its owner has received it and still has it, or a newer one."""
        keeper = owner(publish.topic.encode(), self.workers_count)
        if publish.acknowledged is None or publish.reason >= 0x80:
            return False
        if self.survives:
            return True
        # it was not in the memory of a killed worker, its publisher's or its owner's
        return keeper not in publish.lost_for and not any(
            index == keeper and self._links_stand(at) > (publish.started or 0.0) for at, index in self.kills
        )

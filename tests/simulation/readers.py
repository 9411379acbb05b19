"""Clients that replay the archive, and the invariants that hold for them.

A reader subscribes to some archived topics from the earliest message on. One kind holds its own position and a session
that ends with the connection: on every connection it asks for the messages after the last one it got. The other kind
has a lasting session: it subscribes once, and the broker keeps its position.

At rest each has everything that was acknowledged, each publisher's messages of a topic in order, and duplicates only of
messages that arrived shortly before a connection ended or a worker was killed.

"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from shards.placement import home
from tests import wire
from tests.simulation.clients import Client, Plan
from tests.simulation.history import Publish, Violation, matches

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["ARCHIVED", "Reader", "behind", "check_readers", "make"]

ARCHIVED = "t/#"
FILTERS = ["t/#", "t/+/x", "t/1/y"]
FOREVER = 0xFFFFFFFF
MOMENTS_SECONDS = 3.0
"""Longest time whose messages may be repeated where nothing was cut, stopped or killed."""
LAG_SECONDS = 0.8
"""Longest time from sending a message to its record on the disk."""


class Read(NamedTuple):
    """A message that arrived."""

    publish: Publish
    qos: int
    dup: bool
    at: float
    is_former: bool
    """Whether it arrived while a new subscription was requested, which begins before it."""


class Reader(Client):
    """A client that replays."""

    def __init__(self, world: World, name: str, plan: Plan, text: str, qos: int) -> None:
        super().__init__(world, name, home(name, world.workers_count), plan)
        self.text = text
        self.qos = qos
        self.position = "earliest"
        self.reads: list[Read] = []
        self.resumes: list[float] = []
        """Times when it asked for the messages after its position, and when that was answered."""
        self.asked_in = 0
        """The session in which its subscription was answered."""
        self._asks = False
        self._present = False

    def start(self) -> None:
        """Subscribe, connect, and begin to disconnect and reconnect at random."""
        self.subscribe([(self.text, self.qos)])
        self.clock.after(self.clock.between(0.0, 2.0), self.connect)
        self.clock.after(self.clock.between(1.0, 3.0), self._live)

    def _live(self) -> None:
        if self.world.calming:
            return
        if self.line is not None and self.clock.chance(0.5):
            self.close(self.clock.random.choice(["disconnect", "close", "reset"]))
            self.clock.after(self.clock.between(0.0, 1.5), self.connect)
        elif self.line is None:
            self.connect()
        self.clock.after(self.clock.between(0.5, 4.0), self._live)

    def _connack(self, packet: wire.Packet) -> None:
        self._present = packet.session_present
        super()._connack(packet)

    def _send_subscribe(self, items: list[tuple[str, int, int]]) -> None:
        if self._present and self.asked_in == self.session_number:
            return
        packet_id = self._next_id()
        self.requests[packet_id] = ("SUBSCRIBE", items)
        self.resumes.append(self.clock.now)
        self._asks = True
        asked = [(text, qos) for text, qos, _ in items]
        properties = {"user_property": [("mqttd-offset", self.position)]}
        self._send(wire.subscribe(5, packet_id, *asked, properties=properties), ("SUBACK", packet_id))

    def _begin_period(self, text: str, qos: int) -> None:  # noqa: ARG002
        self.asked_in = self.session_number
        self._asks = False
        self.resumes.append(self.clock.now)  # messages since the request arrived by the subscription before

    def _delivered(self, publish: Publish, packet: wire.Packet, refused: bool = False) -> None:  # noqa: ARG002
        properties = dict(packet.properties["user_property"])
        if not matches(self.text, publish.topic):
            raise Violation(f"{self.name} got {publish}, which is not for {self.text}")
        if "mqttd-offset-lost" in properties:
            raise Violation(f"{self.name} is told that something is lost")
        self.position = properties["mqttd-offset"]
        self.reads.append(Read(publish, packet.qos, packet.dup, self.clock.now, self._asks))
        self.world.tell(f"{self.name}: got {publish} qos={packet.qos} dup={packet.dup} at {self.position}")


def make(world: World, seed: int) -> list[Reader]:
    """Return the readers of a world; with randomness of their own, so that worlds without them do not change."""
    chance = random.Random(seed)
    readers = []
    for number in range(chance.randrange(1, 4)):
        plan = Plan(5, chance.choice([0, FOREVER]), chance.choice([1, 5, 50]), chance.random() < 0.2, refusing=False)
        readers.append(Reader(world, f"reader{number}", plan, chance.choice(FILTERS), chance.randrange(3)))
    return readers


def behind(world: World) -> Iterator[str]:
    """Yield a description of each replay that has not read to the end."""
    for worker in world.workers:
        for session in worker.node.sessions:
            for text, replay in (session.replays or {}).items():
                lasts = [each.disk.archive.last for each in world.workers if each.disk.archive is not None]
                reached = [replay.merge.delivered(source) for source in range(len(lasts))]
                if any(a < b for a, b in zip(reached, lasts, strict=True)):
                    yield f"replay {session.client_id} {text!r} has read to {reached} of {lasts}"


def check_readers(world: World) -> None:
    """Check the invariants in the module docstring."""
    for client in world.clients.values():
        if isinstance(client, Reader):
            _check_complete(world, client)
            _check_order(client)
            _check_repeats(world, client)


def _check_complete(world: World, reader: Reader) -> None:
    lasting = reader.plan.expiry > 0
    if reader.uncertain:
        return
    got = {read.publish.number for read in reader.reads}
    for publish in world.history.publishes:
        if publish.number in got or not matches(reader.text, publish.topic) or publish.will:
            continue
        if publish.qos == 0 or publish.expiry is not None or publish.acknowledged is None or publish.reason >= 0x80:
            continue
        if lasting and reader.qos == 0:
            continue  # QoS 0 messages in transit are lost with a connection
        raise Violation(
            f"{reader.name} (home {reader.home}) misses {publish}, acknowledged {publish.acknowledged}; it has resumed "
            f"at {reader.resumes[-3:]} and is at {reader.position}"
        )


def _check_order(reader: Reader) -> None:
    last: dict[tuple[str, str, int], int] = {}
    seen: set[int] = set()
    for publish, _, _, at, is_former in reader.reads:
        if is_former or publish.number in seen or publish.will or publish.sends > 1:
            continue
        seen.add(publish.number)
        who = (publish.publisher.name, publish.topic, publish.qos)
        if last.get(who, 0) > publish.number:
            raise Violation(f"{reader.name} got {publish} after #{last[who]} at {at}")
        last[who] = publish.number


def _check_repeats(world: World, reader: Reader) -> None:
    copies: dict[int, list[Read]] = defaultdict(list)
    for read in reader.reads:
        copies[read.publish.number].append(read)
    for every in copies.values():
        if every[0].publish.sends > 1:
            continue  # published again: several messages that cannot be told apart
        for former, copy in itertools.pairwise(every):
            if copy.dup or _is_excused(world, reader, former, copy):
                continue
            raise Violation(f"{reader.name} got {copy.publish} at {former.at} and again at {copy.at}, QoS {copy.qos}")


def _is_excused(world: World, reader: Reader, former: Read, copy: Read) -> bool:
    resumed = [at for at in reader.resumes if former.at <= at <= copy.at]
    if resumed:
        # its position may have stood still while some worker sent nothing
        begun = former.at - MOMENTS_SECONDS
        return resumed[0] - former.at <= MOMENTS_SECONDS or any(
            start <= resumed[0] and end >= begun for start, end in world.faults
        )
    killed = any(index == reader.home and former.at - LAG_SECONDS <= at <= copy.at for at, index in world.kills)
    return killed and copy.qos < 2

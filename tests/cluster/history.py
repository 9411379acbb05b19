"""Clients that roam between hosts while a test breaks things, and what they have seen, to be checked in the end.

Each roamer has a session that lasts and a topic of its own; each publisher publishes numbered messages to the topics of
all roamers, one after the other. A message counts as acknowledged when its PUBACK or PUBCOMP has come. What is checked:

- no acknowledged message is lost: in the end each roamer has all that came to its topic after its first SUBACK
- no message of QoS 2 comes twice (`twice`), where nothing was killed

The publishers and roamers are threads, because each waits for its own broker.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.cluster.hosts import ClusteredHost
from tests.waiting import let_pass
from tests.wire import PINGREQ, Client, Closed, Packet, connect

__all__ = ["History", "Publisher", "Roamer"]

_ANSWER_SECONDS = 20.0
_SESSION: dict[str, object] = {"session_expiry_interval": 3600}


class History:
    """What was acknowledged and what was delivered, by all threads of a test."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._acknowledged: dict[str, set[bytes]] = {}
        self._delivered: dict[str, Counter[bytes]] = {}
        self._mistaken: dict[str, set[bytes]] = {}

    def acknowledged(self, roamer: str, payload: bytes) -> None:
        """Note that a host has acknowledged a message to a roamer."""
        with self._lock:
            self._acknowledged.setdefault(roamer, set()).add(payload)

    def delivered(self, roamer: str, payload: bytes) -> None:
        """Note that a roamer has got a message."""
        with self._lock:
            self._delivered.setdefault(roamer, Counter())[payload] += 1

    def mistaken(self, roamer: str, payload: bytes) -> None:
        """Note that a message had the Packet Identifier of another one, which the roamer had of another session: one
        that it was given while hosts did not reach each other.
        """
        with self._lock:
            self._mistaken.setdefault(roamer, set()).add(payload)

    def missing(self, roamer: str) -> list[bytes]:
        """Return the acknowledged messages that no session has delivered to a roamer."""
        with self._lock:
            got = set(self._delivered.get(roamer, Counter())) | self._mistaken.get(roamer, set())
            return sorted(self._acknowledged.get(roamer, set()) - got)

    def twice(self, roamer: str, kind: bytes) -> list[bytes]:
        """Return the messages of a kind that a roamer has got more than once."""
        with self._lock:
            got = self._delivered.get(roamer, Counter())
            return sorted(payload for payload, times in got.items() if times > 1 and payload.startswith(kind))

    def count(self) -> int:
        """Return how many messages were acknowledged."""
        with self._lock:
            return sum(map(len, self._acknowledged.values()))


@dataclass
class Publisher:
    """Publishes to roamers through one host. `retains`: topics that it sets as retained, too."""

    host: ClusteredHost
    history: History
    roamers: Sequence[Roamer]
    retains: Sequence[str] = ()
    qos2: bool = True
    ended: threading.Event = field(default_factory=threading.Event)
    chance: random.Random = field(default_factory=lambda: random.Random(7))

    def run(self) -> None:
        """Publish until `ended`, with a new connection after each failure."""
        number = 0
        while not self.ended.is_set():
            try:
                client = Client(self.host.address, 5)
            except OSError:
                let_pass(0.05)
                continue
            try:
                client.send(connect(5, f"publisher-{self.host.node}"))
                if client.expect("CONNACK").reason:
                    let_pass(0.05)
                    continue
                while not self.ended.is_set():
                    number += 1
                    self._publish(client, number)
                    let_pass(0.003)
            except (Closed, OSError):
                pass
            finally:
                client.close()

    def _publish(self, client: Client, number: int) -> None:
        roamer = self.chance.choice(self.roamers)
        qos = self.chance.choice((1, 2)) if self.qos2 else 1
        payload = b"%d-%s-%d" % (qos, self.host.node.encode(), number)
        counts = roamer.subscribed.is_set()
        reason = client.publish(roamer.topic, payload, qos=qos)
        if counts and reason < 0x80:
            self.history.acknowledged(roamer.name, payload)
        if self.retains and self.chance.random() < 0.2:
            client.publish(self.chance.choice(self.retains), payload, qos=1, retain=True)


@dataclass
class Roamer:
    """A client that connects to one host after the other. `may_use` says which host it may connect to now."""

    name: str
    hosts: Sequence[ClusteredHost]
    history: History
    may_use: Callable[[ClusteredHost], bool] = ClusteredHost.alive
    subscribed: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    left_open: list[Client] = field(default_factory=list)
    sessions_lost: int = 0

    def __post_init__(self) -> None:
        self.topic = f"history/{self.name}"
        self._chance = random.Random(self.name)
        self._unreleased: dict[int, bytes] = {}

    def run(self) -> None:
        """Roam until `ended`."""
        while not self.ended.is_set():
            host = self._chance.choice([each for each in self.hosts if self.may_use(each)] or [None])
            if host is None:
                let_pass(0.05)
                continue
            client = self.connected(host)
            if client is None:
                let_pass(0.05)
                continue
            stays = self._chance.uniform(0.1, 1.0)
            if not self._take(client, stays):
                client.close()
                continue
            how = self._chance.choice(("disconnects", "closes", "leaves it open"))
            if how == "disconnects":
                self._disconnect(client)
            elif how == "closes":
                client.close()
            else:
                self.left_open.append(client)
        for client in self.left_open:
            client.close()

    def connected(self, host: ClusteredHost) -> Client | None:
        """Return a connection with the session and the subscription, or None if the host refuses or has gone."""
        try:
            client = Client(host.address, 5)
        except OSError:
            return None
        try:
            client.send(connect(5, self.name, clean=False, properties=_SESSION))
            connack = client.expect("CONNACK")
            if connack.reason:
                client.close()
                return None
            if not connack.session_present:
                self._unreleased.clear()
                self.sessions_lost += self.subscribed.is_set()
                client.subscribe((self.topic, 2))
            self.subscribed.set()
        except (Closed, OSError):
            client.close()
            return None
        return client

    def _take(self, client: Client, seconds: float) -> bool:
        """Take what comes for some seconds. False: the connection has ended."""
        try:
            client.send(PINGREQ)
            answered = False
            while True:
                packet = client.read(seconds if answered else _ANSWER_SECONDS)
                if packet.kind == "PINGRESP":
                    answered = True
                elif packet.kind == "DISCONNECT":
                    return False
                else:
                    self._answer(client, packet)
        except TimeoutError:
            return True
        except (Closed, OSError):
            return False

    def _answer(self, client: Client, packet: Packet) -> None:
        if packet.kind == "PUBREL":
            self._unreleased.pop(packet.packet_id, None)
            client.ack("PUBCOMP", packet.packet_id)
        elif packet.qos == 2:
            if packet.packet_id not in self._unreleased:
                self._unreleased[packet.packet_id] = packet.payload
                self.history.delivered(self.name, packet.payload)
            elif self._unreleased[packet.packet_id] != packet.payload:  # a client takes it for repeated [MQTT-4.3.3-10]
                self.history.mistaken(self.name, packet.payload)
            client.ack("PUBREC", packet.packet_id)
        else:
            self.history.delivered(self.name, packet.payload)
            client.ack("PUBACK", packet.packet_id)

    def _disconnect(self, client: Client) -> None:
        try:
            client.disconnect()
        except OSError:  # its host was stopped, killed, or has closed the connection first
            client.close()

    def take_rest(self, host: ClusteredHost) -> bool:
        """Connect and take what comes. Return whether no acknowledged message is missing."""
        client = self.connected(host)
        if client is None:
            return False
        self._take(client, 0.5)
        self._disconnect(client)
        return not self.history.missing(self.name)

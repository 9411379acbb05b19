"""Record of the publishes, subscriptions and deliveries of one run: the clients write it, the checkers read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tests.simulation.clients import Client


class Violation(AssertionError):
    """The broker broke a promise."""


class Publish:
    """One message, with a unique payload."""

    def __init__(self, number: int, publisher: Client, topic: str, qos: int, retain: bool, payload: bytes) -> None:
        self.number = number
        self.publisher = publisher
        self.topic = topic
        self.qos = qos
        self.retain = retain
        self.payload = payload
        self.will = False
        self.taken_back = False
        """A will whose client was back, with its session, before the Will Delay Interval had passed."""
        self.expiry: int | None = None
        """Message Expiry Interval in seconds: the message need not arrive."""
        self.started: float | None = None
        """Start of the transmission that the ack answers (at QoS 2: the first one)."""
        self.sends = 0
        self.line = 0
        """The number of the connection on which it was sent (last)."""
        self.turn = 0
        """Its place among all messages sent in the run (last time): many are sent in one instant."""
        self.acknowledged: float | None = None
        """When PUBACK or PUBREC arrived."""
        self.reason = 0
        self.given_up = False
        """Its publisher lost the session before the answer."""
        self.share_lost = False
        """A copy of it for a share group was in the RAM of a worker that was killed (volatile)."""
        self.lost_for: set[int] = set()
        """Workers whose share was in the RAM of a worker that was killed (volatile)."""

    def __str__(self) -> str:
        return f"#{self.number} {self.topic} q{self.qos} of {self.publisher.name}"


class Period:
    """A subscription, from its SUBACK until it may have ended."""

    def __init__(self, text: str, qos: int, start: float) -> None:
        self.text = text
        self.qos = qos
        """The lowest QoS requested meanwhile."""
        self.start = start
        self.end: float | None = None
        self.group = ""
        self.filter = text
        if text.startswith("$share/"):
            _, self.group, self.filter = text.split("/", 2)


class Delivery(NamedTuple):
    """A PUBLISH that a client received."""

    client: Client
    session: int
    publish: Publish
    qos: int
    retain: bool
    dup: bool
    refused: bool
    """Refused by PUBREC: the Packet Identifier is free, and the message was not accepted."""
    at: float
    opened_at: float
    """When the connection began on which it arrived."""


class History:
    """All events that the checkers need."""

    def __init__(self) -> None:
        self.publishes: list[Publish] = []
        self.by_payload: dict[bytes, Publish] = {}
        self.deliveries: list[Delivery] = []
        self.queue_drops: dict[str, int] = {}
        """By client id: messages dropped because its queue was full."""
        self.padding = 0
        self.turns = 0

    def publish(self, publisher: Client, topic: str, qos: int, retain: bool) -> Publish:
        """Record a new message."""
        number = len(self.publishes) + 1
        payload = b"%d." % number
        made = Publish(number, publisher, topic, qos, retain, payload + b"x" * publisher.world.padding())
        self.publishes.append(made)
        self.by_payload[made.payload] = made
        return made


def matches(topic_filter: str, topic: str) -> bool:
    """Return whether the Topic Filter matches the Topic Name [MQTT 5, 4.7]."""
    wanted, levels = topic_filter.split("/"), topic.split("/")
    for at, level in enumerate(wanted):
        if level == "#":
            return True
        if at >= len(levels) or level not in ("+", levels[at]):
            return False
    return len(wanted) == len(levels)

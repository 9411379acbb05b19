"""Model of clients for `tests.machine.states`: their sessions, and the messages in transit to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from shards.placement import home
from tests.sansio import Peer
from tests.wire import Packet

WORKERS = 2
NAMES = [next(f"{letter}{number}" for number in range(99) if home(f"{letter}{number}", WORKERS) == worker)
         for worker, letter in enumerate("ab")]  # fmt: skip
TOPICS = ["t/0", "t/1", "u"]
MANY = ["t/0", "t/1", "t/2", "t/3", "t/4"]
"""More topics than a page of retained messages of each worker."""
SHARED_TOPIC = "shared/topic"
GROUP = "$share/group/shared/+"
FILTERS = ["t/0", "t/+", "t/#", "u", "+"]
WITNESS = "witness"
OUR_RECEIVE_MAXIMUM = 3
LARGE_BYTES = 300
PACKET_BYTES = 200
"""A Maximum Packet Size that only a large message exceeds."""
LASTING = 600
LIMITS = {
    "receive_maximum": OUR_RECEIVE_MAXIMUM,
    "session_expiry_seconds_default_v3": LASTING,
    "retained_walks_per_session_max": 1,
}

PAGE, QUEUED = 2, 2
"""Replacements for the constants of broker.clients.retaining."""


def matches(topic_filter: str, topic: str) -> bool:
    """Return whether a filter of FILTERS matches a topic of TOPICS."""
    return topic_filter == topic or topic_filter in {"u": ("+",), SHARED_TOPIC: ()}.get(topic, ("t/+", "t/#"))


@dataclass(frozen=True)
class Published:
    """A message. Its payload is its number, if it has a payload."""

    number: int
    topic: str
    qos: int
    publisher: str
    is_large: bool
    is_empty: bool
    is_to_retain: bool = False


@dataclass(frozen=True)
class Subscribed:
    """The options of a subscription."""

    qos: int
    no_local: bool
    handling: int

    @property
    def options(self) -> int:
        """The options byte of SUBSCRIBE."""
        return self.qos | self.no_local << 2 | self.handling << 4


@dataclass
class Copy:
    """A message that a session is owed."""

    filters: set[str]
    acknowledged: set[str]
    """Those of them with QoS 1 or 2 when it was published: one of QoS 0 owes nothing, even if it is raised later."""
    qoses: set[int]
    is_sure: bool = True
    """True: it must arrive; False: it may."""
    is_sent: bool = False


@dataclass
class Sent:
    """A message sent with a Packet Identifier whose handshake is not complete."""

    number: int
    qos: int
    is_retained: bool
    is_released: bool = False
    on_connection: int = 0


@dataclass
class Will:
    """A will to be published between these times; None: it waits for the end of a connection."""

    number: int
    delay: int
    qos: int
    is_sure: bool = True
    """A crash may lose one of QoS 0."""
    earliest: int | None = None
    latest: int | None = None


class Wills:
    """Wills to be published."""

    def __init__(self) -> None:
        self.pending: list[Will] = []
        self._may: set[int] = set()
        self._of_qos_1: set[int] = set()
        self._again: set[int] = set()
        self._seen: set[int] = set()

    def left(self, will: Will, expiry: int, now: int) -> None:
        """Handle the end of a connection without DISCONNECT."""
        will.earliest = will.latest = now + min(will.delay, expiry) * 1000
        self.pending.append(will)
        if will.qos == 1:
            self._of_qos_1.add(will.number)

    def crashed(self) -> None:
        """Handle a crash: one of QoS 0 may be lost, if its record was deleted before; one of QoS 1 may come again."""
        for will in self.pending:
            will.is_sure = will.qos > 0
        self._again |= self._of_qos_1

    def came_back(self, will: Will, goes_on: bool, now: int) -> None:
        """Handle a new connection of its client."""
        if not goes_on or (will.earliest is not None and will.earliest <= now):
            will.earliest = will.latest = now
        elif will.delay == 0:
            will.latest = now
        else:
            self.pending.remove(will)
            if will.latest != will.earliest:
                self._may.add(will.number)

    def came(self, number: int, now: int) -> None:
        """Handle its publication."""
        is_again = number in self._seen
        assert not is_again or number in self._again, f"the will {number} came twice"
        self._seen.add(number)
        self._again.discard(number)
        if number in self._may or is_again:
            return
        (will,) = (each for each in self.pending if each.number == number)
        assert will.earliest is not None
        assert will.earliest <= now, f"{will} came too soon"

    def due(self, now: int) -> None:
        """Check that wills whose time has passed were published."""
        for will in list(self.pending):
            if will.latest is not None and will.latest < now - 200:
                assert will.number in self._seen or not will.is_sure, f"the will {will} never came"
                self.pending.remove(will)


@dataclass
class State:
    """The state of a client id."""

    peer: Peer | None = None
    connection: int = 0
    is_there: bool = False
    expiry: int = 0
    expires: int | None = None
    receive_maximum: int = 65_535
    is_small: bool = False
    filters: dict[str, Subscribed] = field(default_factory=dict)
    joined: int | None = None
    """The QoS of its subscription to the group."""
    copies: dict[int, Copy] = field(default_factory=dict)
    retained: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(number, QoS) of retained messages that must arrive."""
    may_retained: set[int] = field(default_factory=set)
    """Numbers of retained messages that may arrive."""
    asked: int = 0
    """The last number before it asked for retained messages, or a look-up continued after a crash."""
    live: dict[str, int] = field(default_factory=dict)
    """Topic -> number of the last message with RETAIN that arrived live, and was published since."""
    sent: dict[int, Sent] = field(default_factory=dict)
    """Messages in flight by Packet Identifier."""
    done: set[int] = field(default_factory=set)
    """Numbers whose live copy was acknowledged."""
    again: set[int] = field(default_factory=set)
    """Numbers of acknowledged messages at QoS 1 that may be sent again after a crash."""
    unreleased: dict[int, tuple[int, int]] = field(default_factory=dict)
    """QoS 2 publishes of its own without PUBREL: Packet Identifier -> (message, connection)."""
    released: set[int] = field(default_factory=set)
    """Packet Identifiers of completed QoS 2 messages."""
    released_again: set[int] = field(default_factory=set)
    """The same from before a crash, which may have lost the PUBCOMP."""
    answers: list[Packet] = field(default_factory=list)
    will: Will | None = None

    def own_window_is_full(self) -> bool:
        own = sum(connection == self.connection for _, connection in self.unreleased.values())
        return own >= OUR_RECEIVE_MAXIMUM

    def drop_too_large(self, messages: Mapping[int, Published]) -> None:
        """Drop messages that are too large for this connection."""
        for number, copy in self.copies.items():
            copy.is_sure = copy.is_sure and not messages[number].is_large
        for number, qos in list(self.retained):
            if messages[number].is_large:
                self.may_retained.add(number)
                del self.retained[number, qos]
        self.sent = {each: sent for each, sent in self.sent.items() if not messages[sent.number].is_large}

    def asked_again(self, text: str, messages: Mapping[int, Published]) -> None:
        """Make unsent retained messages of an earlier SUBSCRIBE optional, after another one or an UNSUBSCRIBE."""
        for number, qos in list(self.retained):
            if matches(text, messages[number].topic):
                self.may_retained.add(number)
                del self.retained[number, qos]

    def without_payload(self, packet: Packet, messages: Mapping[int, Published]) -> int:
        """Return the number of a message without payload."""
        if packet.qos and packet.packet_id in self.sent:
            return self.sent[packet.packet_id].number
        fit = [
            number
            for number, copy in self.copies.items()
            if messages[number].is_empty and messages[number].topic == packet.topic
            if packet.qos in copy.qoses and all(each.number != number for each in self.sent.values())
        ]
        again = [
            number for number in self.again if messages[number].is_empty and messages[number].topic == packet.topic
        ]
        assert fit or again, f"{packet} is not for it, or came before"
        fit.sort(key=lambda number: not self.copies[number].is_sure)  # they look alike: sure ones first
        return (fit + again)[0]


@dataclass
class Share:
    """A message to the group."""

    is_sure: bool
    holder: str | None = None
    """The client to which it was sent, which has not completed the handshake."""
    is_done: bool = False
    may_repeat: bool = False
    """Whether it was acknowledged at QoS 1, before a crash."""


class Shares(dict[int, Share]):
    """Messages to the group, by number."""

    def came(self, name: str, packet: Packet, message: Published) -> None:
        """Record its arrival at that client."""
        share = self[message.number]
        assert share.holder is None, f"{name}: {packet} is with {share.holder} already"
        assert not share.is_done or (share.may_repeat and packet.qos == 1), f"{name}: {packet} came before"
        assert packet.qos <= message.qos
        assert packet.qos or not message.qos, f"{name}: {packet} instead of QoS {message.qos}"
        if packet.qos == 0:
            share.is_done = True
            return
        share.holder, share.may_repeat = name, False

    def answered(self, number: int) -> None:
        """Record the end of the handshake."""
        self[number].holder, self[number].is_done = None, True

    def given_back(self, sent: Sent) -> None:
        """Record that the session of its client ended without an ack."""
        share = self[sent.number]
        share.holder = None
        if sent.qos == 2:
            share.is_sure, share.is_done = False, True

    def without_members(self) -> None:
        """Record a group without members: only messages already sent are completed."""
        for share in self.values():
            share.is_sure = share.is_sure and share.holder is not None

    def crashed(self, loses: bool, messages: Mapping[int, Published]) -> None:
        """Record a crash; `loses`: a session ended by it, and the messages queued for it are lost."""
        for number, share in self.items():
            share.is_sure = share.is_sure and not loses
            share.may_repeat = share.is_done and messages[number].qos > 0

"""Scenarios of flood: publishers, subscribers, and the expected deliveries."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Scenario:
    """A run. Publisher i has the topic `topic` with %i = i and %c = its client id."""

    name: str
    publishers: int
    """0: none of ours; received messages of another flood are measured."""
    subscribers: int
    idle: int = 0
    topic: str = "t/%i"
    filter: str = "t/+"
    """Filter of every subscriber, %i = its number, %c = its client id."""
    pairs: bool = False
    """Whether subscriber i only hears publisher i."""
    group: bool = False
    """Whether the subscribers share: each message must reach one of them."""
    prefix: str = "flood-"

    @property
    def clients(self) -> int:
        """Number of all connections."""
        return self.publishers + self.subscribers + self.idle

    @property
    def copies(self) -> int:
        """Number of deliveries due per message."""
        if not self.publishers or not self.subscribers:
            return 0
        return 1 if self.pairs or self.group else self.subscribers

    @property
    def topics(self) -> list[bytes]:
        """Return one topic per publisher; for a run without publishers, those that another run may have."""
        return [filled(self.topic, i, self.publisher_id(i)).encode() for i in range(self.publishers or 1)]

    def publisher_id(self, number: int) -> str:
        """Return a publisher's client id."""
        return f"{self.prefix}p{number}"

    def subscriber_id(self, number: int) -> str:
        """Return a subscriber's client id."""
        return f"{self.prefix}s{number}"

    def idle_id(self, number: int) -> str:
        """Return an idle client's client id."""
        return f"{self.prefix}c{number}"

    def filter_of(self, number: int) -> str:
        """Return a subscriber's filter."""
        return filled(self.filter, number, self.subscriber_id(number))


def filled(template: str, number: int, client_id: str) -> str:
    """Fill a topic template: %i is the number, %c the client id."""
    return template.replace("%i", str(number)).replace("%c", client_id)


def filter_for(topic: str) -> str:
    """Return a filter that matches the topics of all publishers: + for each level with %i or %c."""
    return "/".join("+" if "%i" in level or "%c" in level else level for level in topic.split("/"))


def scenario(
    name: str, clients: int, publishers: int | None, subscribers: int | None, topic: str, prefix: str, idle: int = 0
) -> Scenario:
    """Return one of flood's scenarios by name, with additional idle connections. ValueError: it does not exist, or has
    no clients.
    """
    found = _named(name, clients, publishers, subscribers, topic, prefix)
    return replace(found, idle=found.idle + idle)


def _named(
    name: str, clients: int, publishers: int | None, subscribers: int | None, topic: str, prefix: str
) -> Scenario:
    common = filter_for(topic)
    many = "%i" in topic or "%c" in topic
    if min(clients, publishers or 1, subscribers or 1) < 1:
        raise ValueError("a run needs one client at least")
    if name == "pair":
        if not many:
            raise ValueError("the topic of pairs must have %i or %c in it")
        publishers, subscribers = publishers or clients, publishers or clients
        # a subscriber's %c is the publisher's
        own = topic.replace("%c", f"{prefix}p%i")
        return Scenario(name, publishers, subscribers, topic=topic, filter=own, pairs=True, prefix=prefix)
    if name == "fanin":
        return Scenario(name, publishers or clients, subscribers or 1, topic=topic, filter=common, prefix=prefix)
    if name == "fanout":
        return Scenario(name, publishers or 1, subscribers or clients, topic=topic, filter=common, prefix=prefix)
    if name == "shared":
        shared = f"$share/{prefix.strip('-') or 'flood'}/{common}"
        counts = publishers or clients, subscribers or clients
        return Scenario(name, *counts, topic=topic, filter=shared, group=True, prefix=prefix)
    if name == "pub":
        return Scenario(name, publishers or clients, 0, topic=topic, prefix=prefix)
    if name == "sub":
        return Scenario(name, 0, subscribers or clients, topic=topic, filter=common, prefix=prefix)
    if name == "conn":
        return Scenario(name, 0, 0, clients, prefix=prefix)
    raise ValueError(f"{name} is no scenario: pair, fanin, fanout, shared, pub, sub, conn")

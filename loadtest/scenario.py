"""Who publishes and who subscribes, and what is to come of it."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Scenario:
    """A run. Publisher i has the topic `topic` with %i = i and %c = its client id."""

    name: str
    publishers: int
    """0: none of ours; what comes is measured where it is a message of another flood."""
    subscribers: int
    idle: int = 0
    topic: str = "t/%i"
    filter: str = "t/+"
    """Of every subscriber, %i = its number, %c = its client id."""
    pairs: bool = False
    """Subscriber i hears publisher i and nobody else."""
    group: bool = False
    """The subscribers share: each message is to come to one of them."""
    prefix: str = "flood-"

    @property
    def clients(self) -> int:
        """All connections."""
        return self.publishers + self.subscribers + self.idle

    @property
    def copies(self) -> int:
        """Deliveries that each message is to have."""
        if not self.publishers or not self.subscribers:
            return 0
        return 1 if self.pairs or self.group else self.subscribers

    @property
    def topics(self) -> list[bytes]:
        """One per publisher; of a run that has none, of those that another run may have."""
        return [filled(self.topic, i, self.publisher_id(i)).encode() for i in range(self.publishers or 1)]

    def publisher_id(self, number: int) -> str:
        """A client id."""
        return f"{self.prefix}p{number}"

    def subscriber_id(self, number: int) -> str:
        """A client id."""
        return f"{self.prefix}s{number}"

    def idle_id(self, number: int) -> str:
        """A client id."""
        return f"{self.prefix}c{number}"

    def filter_of(self, number: int) -> str:
        """What a subscriber subscribes to."""
        return filled(self.filter, number, self.subscriber_id(number))


def filled(template: str, number: int, client_id: str) -> str:
    """A topic of a template: %i is the number, %c the client id."""
    return template.replace("%i", str(number)).replace("%c", client_id)


def filter_for(topic: str) -> str:
    """A filter that takes the topics of all publishers: + for each level with %i or %c."""
    return "/".join("+" if "%i" in level or "%c" in level else level for level in topic.split("/"))


def scenario(
    name: str, clients: int, publishers: int | None, subscribers: int | None, topic: str, prefix: str, idle: int = 0
) -> Scenario:
    """One of those that `flood` knows by name, with so many connections beside it that say nothing. ValueError: it is
    none, or has nobody.
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

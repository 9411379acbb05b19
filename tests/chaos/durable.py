"""Clients that outlive the broker: they keep their half of the session, reconnect, and continue where they were.

A publisher resends unanswered messages as MQTT requires (PUBLISH with DUP, or PUBREL, under the old Packet Identifiers,
in the old order); a subscriber knows which QoS 2 messages it holds. So a test can tell exactly which messages were
lost, repeated or out of order, whatever was killed and when.

Clients can also be made from their past: what they had sent and received until some moment (`Past`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from tests.chaos.crowd import Crowd, Member, Publisher, Subscriber, ids_on, missing

RETRY_SECONDS = 0.05
PUBLISH_RATE = 100.0
LAG_MAX = 300
"""Messages that a subscriber that does not rest may be behind a publisher: that waits for it. Else what is published
while a load waits for a backlog would be the next backlog, and on a slow machine a larger one each time."""
ROOM: dict[str, float] = {"queue_messages_max": 1 << 30, "queue_bytes_max": 1 << 33}
"""Limits for the broker of a load: no queue fills, even of a client that rests or falls behind on a busy machine."""
PACKET_IDS = 64
"""Few, so that Packet Identifiers are soon reused."""

Moment = Callable[[], int]
"""A clock in any unit that the test counts: later events of a journal have higher moments."""

Event = tuple[int, int, bytes]
"""(moment, first byte, body) of a packet received; (moment, 0, Packet Identifier and sequence number) of one sent."""

Past = Mapping[str, Sequence[Event]]
"""The journals of a load by client id."""


class Returning(Member):
    """A client whose session outlives its connections. `resting`: it is away, and stays so until `wake`."""

    def __init__(
        self,
        crowd: Crowd,
        client_id: str,
        *arguments: Any,
        past: Sequence[Event] = (),
        moment: Moment | None = None,
        version: int = 4,
        **options: Any,
    ) -> None:
        self.established = False
        self.resting = False
        self.returns = 0
        self.moment = moment
        self.journal: list[Event] = []
        self._past = past
        self._tried = 0.0
        if version == 5:
            options["properties"] = {"session_expiry_interval": 3600}
        super().__init__(crowd, client_id, *arguments, version=version, clean=False, **options)

    def open(self) -> None:
        past, self._past = self._past, ()
        if past:
            moment, self.moment = self.moment, None
            self.connack, self.closed = None, "replaying"
            for _, first, body in past:
                self.replay(first, body)
            self.moment = moment
        super().open()

    def replay(self, first: int, body: bytes) -> None:
        """Apply an event of the past; nothing is sent while the connection is closed."""
        if first >> 4 == 2:
            self.established |= body[1] == 0
        else:
            self.packet(first, body, 0, len(body))

    def packet(self, first: int, buffer: bytes, body: int, end: int) -> None:
        if self.moment is not None:
            self.journal.append((self.moment(), first, buffer[body:end]))
        super().packet(first, buffer, body, end)

    def accepted(self) -> None:
        assert self.connack is not None
        if self.established:
            self.returns += 1
            assert self.connack.session_present, f"{self.client_id}: its session is gone"
            self.resume()
        else:
            self.established = True
            super().accepted()

    def resume(self) -> None:
        """Called when the session has been resumed."""

    def rest(self) -> None:
        """Close without DISCONNECT, and stay away."""
        self.resting = True
        self.close()

    def wake(self) -> None:
        """Reconnect once the broker listens."""
        self.resting = False

    def look(self, now: float) -> None:
        """Reconnect if the client should and can."""
        if self.closed and not self.resting and now - self._tried >= RETRY_SECONDS:
            self._tried = now
            try:
                self.open()
            except OSError:
                assert self.closed

    @property
    def there(self) -> bool:
        """Whether the client is connected and its session is set up."""
        return not self.closed and self.accepted_by_broker


class DurableSubscriber(Returning, Subscriber):
    """A subscriber whose session outlives its connections."""

    def resume(self) -> None:
        if not self.subscribed:  # the SUBACK had not arrived
            Subscriber.accepted(self)

    @property
    def there(self) -> bool:
        return super().there and self.subscribed


class DurablePublisher(Returning, Publisher):
    """A publisher whose session outlives its connections. It keeps to its rate."""

    def __init__(self, crowd: Crowd, client_id: str, topic: str, **options: Any) -> None:
        super().__init__(crowd, client_id, topic, rate=PUBLISH_RATE, packet_ids=PACKET_IDS, **options)

    def pump(self, now: float) -> float:
        is_full = len(self._open) >= self._open_max or (self.room is not None and self.room() <= 0)
        if self._due <= now and is_full:
            self._due = now + 1 / self.rate  # wait for an answer, or a subscriber, first
        return super().pump(now)

    def _message(self, now: float) -> bytes:
        message = super()._message(now)
        if self.moment is not None:
            sent = self._next_id.to_bytes(2, "big") + (self.sent - 1).to_bytes(4, "big")
            self.journal.append((self.moment(), 0, sent))
        return message

    def replay(self, first: int, body: bytes) -> None:
        if first:
            super().replay(first, body)
            return
        self._next_id, sequence = int.from_bytes(body[:2], "big"), int.from_bytes(body[2:], "big")
        self._open[self._next_id] = sequence
        self._sent_at[self._next_id] = time.monotonic()
        self.sent = sequence + 1

    def resume(self) -> None:
        if self._due < float("inf"):
            self._due = time.monotonic()
        taken = set(self.acknowledged)
        for packet_id, sequence in self._open.items():
            if sequence in taken:
                self.send(b"\x62\x02" + packet_id.to_bytes(2, "big"))
            else:
                self.send(self.again(packet_id, sequence))


@dataclass
class Seen:
    """The messages that a subscriber had from a publisher at the last look: how many were checked, and which."""

    count: int = 0
    highest: int = -1
    numbers: set[int] = field(default_factory=set)


@dataclass
class Lacking:
    """What a subscriber lacks of a publisher's acknowledged messages. `received`: its list, which grows."""

    received: list[int]
    left: set[int]
    subscriber: DurableSubscriber
    publisher: DurablePublisher
    looked: int = 0

    def numbers(self) -> set[int]:
        """Return what is lacking now; looks at each message received once."""
        self.left.difference_update(self.received[self.looked :])
        self.looked = len(self.received)
        return self.left

    def __str__(self) -> str:
        lacking = sorted(self.numbers())
        return f"{self.subscriber.client_id}: {self.publisher.client_id} {lacking[:5]} of {len(lacking)}"


class Load:
    """Publishers and subscribers on every worker, at QoS 1 and 2, that reconnect whenever the broker is back."""

    def __init__(
        self,
        crowd: Crowd,
        workers: int,
        subscribers_each: int = 2,
        moment: Moment | None = None,
        past: Past = MappingProxyType({}),
        patience: float = 30.0,
        readers_each: int = 0,
    ) -> None:
        """`readers_each`: so many more subscribers on every worker, which replay the archive from its start."""
        self.crowd = crowd
        self._seen: dict[tuple[str, int], Seen] = {}
        self.patience = patience
        """Seconds to wait for the first of the expected messages, and for each next one."""
        self.moment = moment
        self.subscribers: list[DurableSubscriber] = []
        self.publishers: list[DurablePublisher] = []
        for worker, qos in itertools.product(range(workers), (1, 2)):
            names = ids_on(worker, workers, f"durable{qos}x")
            for number in range(subscribers_each):
                name = next(names)
                self.subscribers.append(
                    DurableSubscriber(
                        crowd, name, "load/#", qos=qos, version=4 + (number + worker) % 2, moment=moment,
                        past=past.get(name, ()),
                    )
                )  # fmt: skip
            for name in itertools.islice(ids_on(worker, workers, f"reader{qos}x"), readers_each):
                self.subscribers.append(
                    DurableSubscriber(
                        crowd, name, "load/#", qos=qos, version=5, moment=moment, past=past.get(name, ()),
                        asked={"user_property": [("mqttd-offset", "earliest")]},
                    )
                )  # fmt: skip
            name = next(names)
            publisher = DurablePublisher(
                crowd, name, f"load/{worker}/{qos}", qos=qos, version=4 + (worker + qos) % 2, moment=moment,
                past=past.get(name, ()),
            )  # fmt: skip
            self.publishers.append(publisher)
            publisher.number = len(self.publishers)  # the same in every load
            publisher.room = partial(self._room, publisher)
        crowd.on_turn.append(self._look)
        crowd.until(self.all_there, "everybody is connected and has subscribed", patience)

    def _room(self, publisher: DurablePublisher) -> int:
        """Return how many more it may send now, by the last messages that the subscribers had of it."""
        had = (each.received[publisher.number] for each in self.subscribers if not each.resting)
        return LAG_MAX - max((publisher.sent - (seen[-1] + 1 if seen else 0) for seen in had), default=0)

    def past(self) -> Past:
        """Return the journals of all clients until now."""
        return {each.client_id: list(each.journal) for each in self.members}

    @property
    def members(self) -> list[DurableSubscriber | DurablePublisher]:
        return [*self.subscribers, *self.publishers]

    def _look(self, now: float) -> None:
        for each in self.members:
            each.look(now)

    def all_there(self) -> bool:
        """Whether every client that is not resting is connected."""
        return all(each.there or each.resting for each in self.members)

    def begin(self) -> None:
        """Let the publishers publish."""
        for each in self.publishers:
            each.begin()

    def delivered(self, what: str) -> None:
        """Wait until everything acknowledged so far has reached all clients not resting, in order, at QoS 2 once."""
        self.crowd.until(self.all_there, f"{what}: everybody is back", self.patience)
        waiting = [
            Lacking(subscriber.received[publisher.number], set(publisher.acknowledged), subscriber, publisher)
            for subscriber in self.subscribers
            if not subscriber.resting
            for publisher in self.publishers
        ]

        def left() -> tuple[int, int]:
            """Return how many pairs lack messages, and how many messages the last of them lacks."""
            while waiting:
                if lacking := len(waiting[-1].numbers()):
                    return len(waiting), lacking
                waiting.pop()
            return 0, 0

        before, moved = left(), time.monotonic()
        while before != (0, 0):
            self.crowd.turn()
            if (now := left()) != before:
                before, moved = now, time.monotonic()
            elif time.monotonic() - moved > self.patience:
                shown = [str(each) for each in waiting if each.numbers()]
                raise AssertionError(f"{what}: acknowledged and not delivered to {shown}")
        self.look_back(what)

    def finish(self) -> None:
        """Stop the publishers and wait until everything is answered and every client is back and has everything."""
        for each in self.subscribers:
            each.wake()
        for publisher in self.publishers:
            publisher.stop()
        self.crowd.until(lambda: all(each.done for each in self.publishers), "all is answered", self.patience)
        self.delivered("at the end")

    def check(self) -> None:
        """Check that nothing was lost, QoS 2 arrived once, and the order was kept."""
        self.look_back("at the end")
        for subscriber in self.subscribers:
            for publisher in self.publishers:
                assert not missing(subscriber, publisher), f"{publisher.client_id} -> {subscriber.client_id}"
        assert not [each.refused for each in self.publishers if each.refused]

    def look_back(self, when: str) -> None:
        """Check the arrivals since the last look: in order (each for the first time), and at QoS 2 once."""
        for subscriber, publisher in itertools.product(self.subscribers, self.publishers):
            seen = self._seen.setdefault((subscriber.client_id, publisher.number), Seen())
            got = subscriber.received[publisher.number]
            for at in range(seen.count, len(got)):
                around = f"{got[max(0, at - 8) : at]} and then {got[at : at + 8]}"
                names = f"{publisher.client_id} -> {subscriber.client_id}, QoS {publisher.qos} -> {subscriber.qos}"
                if got[at] in seen.numbers:
                    assert min(publisher.qos, subscriber.qos) < 2, f"{when}: {names}: twice: {around}"
                else:
                    assert got[at] > seen.highest, f"{when}: {names}: out of order: {around}"
                    seen.numbers.add(got[at])
                    seen.highest = got[at]
            seen.count = len(got)

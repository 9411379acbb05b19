"""Two clients and their state, as rules of a state machine (hypothesis) over two workers in this process.

Each client has its home on another worker and both publish, so that messages, retained messages and wills cross the
mesh. There are no sockets, and the stores keep: a crash leaves what was durable. The expected state of sessions,
windows, retained messages, subscriptions and wills is known after each step:

    a session is there or not     Session Present, over resumption, take-over, expiry and crash
    QoS 1 at least once           a message published while a subscription of QoS 1 or 2 exists is owed until it is
                                  acknowledged, whatever happens to the connection and to the subscription's options
    QoS 2 exactly once            also when it is sent again, by either side, after any step
    retained messages             sent on SUBSCRIBE, by Retain Handling, whatever is published on the topic meanwhile
    windows have their bound      the Receive Maximum of this connection, and a client may use all of ours on each
    No Local holds                for live and for retained messages
    a will is published           once, when its delay or its session ends, and never otherwise
    a share goes to one member    of its group: it waits while a member lasts, and is passed on when one leaves; another
                                  one may get an unacknowledged message at QoS 1, at QoS 2 never
    packets have their bound      the Maximum Packet Size of this connection, for every packet

A client may use another version of MQTT on each connection. 3.1 and 3.1.1 have Clean Session instead of an
expiry, no Receive Maximum and no Maximum Packet Size, and 3.1 has no Session Present.

Limits are small where that makes steps overlap sooner: a Receive Maximum of 1, a Maximum Packet Size that some messages
exceed, pages of retained messages that hold two, one look-up of them at a time.

"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from shards.placement import home
from tests import wire
from tests.kept_store import KeptStore
from tests.machine.expected import (
    FILTERS,
    GROUP,
    LARGE_BYTES,
    LASTING,
    LIMITS,
    MANY,
    NAMES,
    PACKET_BYTES,
    SHARED_TOPIC,
    TOPICS,
    WITNESS,
    WORKERS,
    Copy,
    Published,
    Sent,
    Share,
    Shares,
    State,
    Subscribed,
    Will,
    Wills,
    matches,
)
from tests.sansio import Host, Peer
from tests.wire import Packet

__all__ = ["States"]

Filters = st.sampled_from(FILTERS)
Topics = st.sampled_from(TOPICS)
Clients = st.sampled_from(NAMES)
QoS = st.sampled_from([0, 1, 2])


class States(RuleBasedStateMachine):
    """The state machine: see the module docstring."""

    def __init__(self) -> None:
        super().__init__()
        stores = [KeptStore() for _ in range(WORKERS)]
        self.host = Host(WORKERS, stores=stores, limits=LIMITS)
        self.states = {name: State() for name in NAMES}
        self.messages: dict[int, Published] = {}
        self.shares = Shares()
        self.retained: dict[str, int] = {}
        self.wills = Wills()
        self.numbers = 0
        self._connect_witness()
        for name in NAMES:
            self._there(name)

    def _there(self, name: str) -> tuple[State, Peer]:
        # a client that is offline reconnects
        state = self.states[name]
        if state.peer is None:
            self.connect(
                name=name, version=5, clean=False, expiry=LASTING, receive_maximum=1, is_small=False, will=None
            )
        assert state.peer is not None
        return state, state.peer

    def _connect_witness(self) -> None:
        self.witness = self.host.connect(WITNESS, 5, clean=False, expiry=LASTING * 1000)
        if not self.witness.session_present:
            self.witness.subscribe(("will/#", 2))

    def _next(self) -> int:
        self.numbers += 1
        return self.numbers

    # ------------------------------------------------------------ connections

    @rule(
        name=Clients,
        version=st.sampled_from([5, 5, 5, 4, 3]),
        clean=st.booleans(),
        expiry=st.sampled_from([0, 5, LASTING, LASTING]),
        receive_maximum=st.sampled_from([1, 1, 2, 65_535]),
        is_small=st.booleans(),
        will=st.none() | st.tuples(st.sampled_from([0, 2, 8]), QoS),
    )
    def connect(
        self, name: str, version: int, clean: bool, expiry: int, receive_maximum: int, is_small: bool,
        will: tuple[int, int] | None,
    ) -> None:  # fmt: skip
        """Connect: a session begins, is resumed, or is taken over."""
        state = self.states[name]
        if version < 5:
            expiry, receive_maximum, is_small = 0 if clean else LASTING, 65_535, False
            will = None if will is None else (0, will[1])
        if version == 3 and not state.expiry:
            self.lose(name=name)  # v3.1 does not say whether a session without expiry is resumed by the take-over
        is_sure = state.peer is None or state.expiry > 0
        goes_on = state.is_there and not clean
        number = self._next()
        self._close(state)
        peer = self.host.open(version, home(name, WORKERS))
        peer.client_id = name
        properties: dict[str, Any] = {"receive_maximum": receive_maximum, "session_expiry_interval": expiry}
        if is_small:
            properties["maximum_packet_size"] = PACKET_BYTES
        said = None
        if will is not None:
            delayed = {"will_delay_interval": will[0]} if version == 5 else {}
            said = wire.Will(f"will/{name}", b"%d" % number, will[1], properties=delayed)
        peer.send(wire.connect(version, name, clean=clean, properties=properties if version == 5 else {}, will=said))
        self.host.settle()
        connack = peer.next("CONNACK")
        assert connack.reason == 0
        is_present = connack.session_present if version > 3 else goes_on
        if is_sure:
            assert is_present == goes_on, f"Session Present {is_present} for {name}"
        self._opened(state, peer, is_present)
        state.expiry, state.receive_maximum, state.is_small = expiry, receive_maximum, is_small
        state.will = None if will is None else Will(number, *will)
        if is_small:
            state.drop_too_large(self.messages)
        self._look()

    def _close(self, state: State) -> None:
        # take-over: the end of the old connection is processed before packets on the new one
        if state.peer is not None:
            self._look()
            self._ended(state)

    def _opened(self, state: State, peer: Peer, goes_on: bool) -> None:
        will = self._pending(state)
        if will is not None:
            self.wills.came_back(will, goes_on, self.host.now_ms)
        if not goes_on:
            self._forget(state)
        state.peer, state.is_there, state.expires = peer, True, None
        state.connection += 1

    def _pending(self, state: State) -> Will | None:
        return state.will if state.will in self.wills.pending else None

    def _forget(self, state: State) -> None:
        for sent in state.sent.values():
            if sent.number in self.shares:
                self.shares.given_back(sent)
        state.joined = None
        state.filters, state.copies, state.retained = {}, {}, Counter()
        state.sent, state.done, state.again, state.may_retained = {}, set(), set(), set()
        state.unreleased, state.live = {}, {}
        state.is_there = False
        self._left()

    def _left(self) -> None:
        if all(state.joined is None for state in self.states.values()):
            self.shares.without_members()

    def _ended(self, state: State) -> None:
        """Record the end of its connection, without DISCONNECT."""
        state.peer = None
        state.expires = self.host.now_ms + state.expiry * 1000
        for number, qos in list(state.retained):
            if qos == 0:
                state.may_retained.add(number)
                del state.retained[number, qos]
        if state.will is not None:
            self.wills.left(state.will, state.expiry, self.host.now_ms)
        if not state.expiry:
            self._forget(state)

    @rule(name=Clients)
    def lose(self, name: str) -> None:
        """Break the connection."""
        state = self.states[name]
        if state.peer is not None:
            self._look()
            self.host.lose(state.peer)
            self._ended(state)
            self._look()

    @rule(name=Clients)
    def leave(self, name: str) -> None:
        """Send DISCONNECT, which deletes the will."""
        state = self.states[name]
        if state.peer is not None:
            self._look()
            state.peer.disconnect()
            state.will = None
            self._ended(state)
            self._look()

    @rule(seconds=st.sampled_from([1, 3, 6]))
    def wait(self, seconds: int) -> None:
        """Let time pass: wills are published and sessions expire."""
        self._pass(seconds)
        self._look()

    def _pass(self, seconds: float) -> None:
        self.host.pass_time(seconds)
        for state in self.states.values():
            if state.is_there and state.peer is None and state.expires is not None:
                if state.expires <= self.host.now_ms - 1000:
                    self._forget(state)
                elif state.expires <= self.host.now_ms + 1000:
                    state.expires = None
                    self._close_call(state)
                    self._pass(0)  # the time has passed for the others, too
                    break

    def _close_call(self, state: State) -> None:
        # less than the timers' own step decides whether it has expired: another second later it has
        self.host.pass_time(2)
        self._forget(state)

    @rule()
    def crash(self) -> None:
        """Kill all workers; they start again with what was durable."""
        self._look()
        self._unsure_of_walks()
        loses = any(state.is_there and not state.expiry for state in self.states.values())
        self.shares.crashed(loses, self.messages)
        self.host = self.host.crash()
        for state in self.states.values():
            pending = self._pending(state)
            connected = state.peer is not None
            for number in state.done:
                if self.messages[number].qos >= 1:
                    state.again.add(number)
            if connected:
                self._ended(state)
            self._unsure_of_qos_1(state)
            state.released_again |= state.released
            if state.will is not None and (connected or pending is not None):
                state.will.latest = self.host.now_ms + state.will.delay * 1000
        self.wills.crashed()
        self._connect_witness()
        self._look()

    def _unsure_of_walks(self) -> None:
        # an unfinished look-up starts again, with the retained messages at that time
        for name, state in self.states.items():
            self._asks(state)
            if state.is_there and self._is_looking(name):
                for topic, number in self.retained.items():
                    if any(matches(text, topic) for text in state.filters):
                        state.may_retained.add(number)

    def _asks(self, state: State) -> None:
        # messages that arrived live before this are no answer
        state.asked, state.live = max(self.messages, default=0), {}

    def _is_looking(self, name: str) -> bool:
        session = self.host.nodes[home(name, WORKERS)].sessions.get(name)
        return session is not None and bool(session.details.walks or session.details.walks_waiting)

    def _unsure_of_qos_1(self, state: State) -> None:
        # it may be sent before it is durable: then it arrives as if it had never been sent
        for packet_id, sent in list(state.sent.items()):
            if sent.qos == 1:
                del state.sent[packet_id]
                if sent.number in self.shares:
                    self.shares[sent.number].holder = None
                if sent.number in state.copies and not sent.is_retained:
                    state.copies[sent.number].is_sent = False
                if sent.is_retained:
                    state.may_retained.add(sent.number)
                    if self.retained.get(self.messages[sent.number].topic) == sent.number:
                        state.retained[sent.number, 1] += 1

    # ------------------------------------------------------------ subscriptions

    @rule(
        name=Clients,
        text=Filters,
        subscribed=st.builds(Subscribed, QoS, st.booleans(), st.sampled_from([0, 1, 2])),
        passing=st.lists(st.tuples(Clients, Topics, QoS), max_size=4),
        turns=st.integers(0, 2),
    )
    def subscribe(
        self, name: str, text: str, subscribed: Subscribed, passing: Sequence[tuple[str, str, int]], turns: int
    ) -> None:
        """Send SUBSCRIBE, while messages without RETAIN are published."""
        state, peer = self._there(name)
        is_new = text not in state.filters
        if peer.version < 5:
            subscribed = Subscribed(subscribed.qos, False, 0)
        if self._is_looking(name):
            state.asked_again(text, self.messages)
        peer.send(wire.subscribe(peer.version, peer.packet_id(), (text, subscribed.options)))
        former = state.filters.get(text)
        state.filters[text] = subscribed
        # the options in force when a message is sent apply; a change of them loses no queued message
        for number, copy in state.copies.items():
            message = self.messages[number]
            if not copy.is_sent and matches(text, message.topic) and (qos := min(message.qos, subscribed.qos)):
                copy.qoses.add(qos)
        if subscribed.handling == 0 or (subscribed.handling == 1 and is_new):
            self._asks(state)
            for topic, number in self.retained.items():
                message = self.messages[number]
                if matches(text, topic) and not (subscribed.no_local and message.publisher == name):
                    self._owe_retained(state, number, min(message.qos, subscribed.qos))
        for publisher, topic, qos in passing:
            for _ in range(turns):
                self.host.turn()
            other = self.states[publisher]
            if other.peer is not None and qos < 2 and not (qos and other.own_window_is_full()):
                number = self._publish(publisher, topic, qos, False, False)
                self._unsure(state, number, former)
        self._look()
        for each in self.states.values():
            each.answers = [packet for packet in each.answers if packet.kind != "PUBACK"]
        assert self._answer(state, "SUBACK").codes == (subscribed.qos,)

    def _unsure(self, state: State, number: int, former: Subscribed | None) -> None:
        # published while the SUBSCRIBE is on its way to the other worker: the old options apply, or the new ones
        copy = state.copies.get(number)
        if copy is None:
            return
        message = self.messages[number]
        copy.qoses |= {min(message.qos, qos) for qos in range(3)}
        copy.is_sure = False
        if former is not None and not former.no_local and former.qos and message.qos:
            copy.is_sure = all(each.qos and not each.no_local for each in state.filters.values())

    def _owe_retained(self, state: State, number: int, qos: int) -> None:
        if state.is_small and self.messages[number].is_large:
            state.may_retained.add(number)
        else:
            state.retained[number, qos] += 1

    @rule(name=Clients, text=Filters)
    def unsubscribe(self, name: str, text: str) -> None:
        """Unsubscribe; its unsent messages need not arrive any more."""
        state, peer = self._there(name)
        if text not in state.filters:
            return
        peer.send(wire.unsubscribe(peer.version, peer.packet_id(), text))
        self._look()
        self._answer(state, "UNSUBACK")
        del state.filters[text]
        for number, copy in state.copies.items():
            if not copy.is_sent and text in copy.filters:
                left = {
                    min(self.messages[number].qos, state.filters[each].qos)
                    for each in copy.filters
                    if each in state.filters
                }
                copy.qoses |= left | {0}
                copy.acknowledged.discard(text)
                copy.is_sure = copy.is_sure and bool(copy.acknowledged) and max(left, default=0) > 0
        state.asked_again(text, self.messages)

    # ------------------------------------------------------------ the group

    @rule(name=Clients, qos=st.sampled_from([1, 2]))
    def join(self, name: str, qos: int) -> None:
        """Subscribe to the group."""
        state, peer = self._there(name)
        peer.send(wire.subscribe(peer.version, peer.packet_id(), (GROUP, qos)))
        self._look()
        assert self._answer(state, "SUBACK").codes == (qos,)
        state.joined = qos

    @rule(name=Clients)
    def part(self, name: str) -> None:
        """Unsubscribe from the group; unsent messages go to another member."""
        state, peer = self._there(name)
        if state.joined is None:
            return
        state.joined = None
        peer.send(wire.unsubscribe(peer.version, peer.packet_id(), GROUP))
        self._left()
        self._look()
        self._answer(state, "UNSUBACK")

    @rule(name=Clients, qoses=st.lists(QoS, min_size=1, max_size=4))
    def share(self, name: str, qoses: Sequence[int]) -> None:
        """Publish messages to the group."""
        for qos in qoses:
            self.publish(name=name, topic=SHARED_TOPIC, qos=qos, retain=False, is_large=False, again=False)

    # ------------------------------------------------------------ publishing

    @rule(name=Clients, topic=Topics, qos=QoS, retain=st.booleans(), is_large=st.booleans(), again=st.booleans())
    def publish(self, name: str, topic: str, qos: int, retain: bool, is_large: bool, again: bool) -> None:
        """Publish a message and complete its handshake. `again`: the client sends it twice before it continues."""
        state, peer = self._there(name)
        if qos and state.own_window_is_full():
            return
        number = self._publish(name, topic, qos, retain, is_large)
        if again and qos == 2:
            self.host.settle()
            peer.send(self._packet(peer, number, peer._packet_id, retain, dup=True))
        self._look()
        if qos == 1:
            self._answer(state, "PUBACK")
        elif qos == 2:
            for _ in range(1 + again):
                self._received(state)
            self._release(state, peer._packet_id)

    @rule(name=Clients)
    def retain_many(self, name: str) -> None:
        """Publish more retained messages than a page has."""
        for topic in MANY:
            self.publish(name=name, topic=topic, qos=1, retain=True, is_large=False, again=False)

    @rule(name=Clients, topic=Topics)
    def publish_without_end(self, name: str, topic: str) -> None:
        """Publish at QoS 2, without PUBREL."""
        state, peer = self._there(name)
        if state.own_window_is_full():
            return
        number = self._publish(name, topic, 2, False, False)
        state.unreleased[peer._packet_id] = number, state.connection
        self._look()
        self._received(state)

    @rule(name=Clients, again=st.booleans())
    def release(self, name: str, again: bool) -> None:
        """Send PUBREL for the oldest publish without one. `again`: the PUBLISH is sent once more before."""
        state, peer = self._there(name)
        if not state.unreleased:
            return
        packet_id = next(iter(state.unreleased))
        number, connection = state.unreleased.pop(packet_id)
        if again and (connection == state.connection or not state.own_window_is_full()):
            peer.send(self._packet(peer, number, packet_id, False, dup=True))
            self._look()
            self._received(state)
        self._release(state, packet_id)

    def _received(self, state: State) -> None:
        assert self._answer(state, "PUBREC").reason < 0x80

    def _release(self, state: State, packet_id: int) -> None:
        assert state.peer is not None
        state.peer.ack("PUBREL", packet_id)
        self._look()
        assert self._answer(state, "PUBCOMP").reason == 0

    @rule(topic=Topics, name=Clients)
    def clear(self, topic: str, name: str) -> None:
        """Clear the retained message."""
        state, _ = self._there(name)
        if state.own_window_is_full():
            return
        self._publish(name, topic, 1, True, False, is_empty=True)
        self._look()
        self._answer(state, "PUBACK")

    def _packet(self, peer: Peer, number: int, packet_id: int, retain: bool, dup: bool = False) -> bytes:
        message = self.messages[number]
        body = b"" if message.is_empty else b"%d" % number
        if message.is_large:
            body = body.ljust(LARGE_BYTES)
        flags: dict[str, Any] = {"qos": message.qos, "packet_id": packet_id, "retain": retain, "dup": dup}
        return wire.publish(peer.version, message.topic, body, **flags)

    def _publish(self, name: str, topic: str, qos: int, retain: bool, is_large: bool, is_empty: bool = False) -> int:
        # sent; the host has not processed it yet
        number = self._next()
        message = self.messages[number] = Published(number, topic, qos, name, is_large, is_empty, retain)
        peer = self.states[name].peer
        assert peer is not None
        packet_id = peer.packet_id() if qos else 0
        while packet_id in self.states[name].unreleased:
            packet_id = peer.packet_id()
        for other, state in self.states.items():
            self._owe(state, other, message)
        if topic == SHARED_TOPIC:
            is_sure = qos > 0 and any(state.joined is not None for state in self.states.values())
            self.shares[number] = Share(is_sure)
        if retain:
            self._overtaken(topic, number)
            self.retained[topic] = number
            if is_empty:
                del self.retained[topic]
        peer.send(self._packet(peer, number, packet_id, retain))
        return number

    def _owe(self, state: State, name: str, message: Published) -> None:
        found = {
            text: each
            for text, each in state.filters.items()
            if matches(text, message.topic) and not (each.no_local and name == message.publisher)
        }
        if not state.is_there or not found:
            return
        qoses = {min(message.qos, each.qos) for each in found.values()}
        too_large = state.is_small and message.is_large
        is_sure = max(qoses) > 0 and not too_large
        acknowledged = {text for text, each in found.items() if min(message.qos, each.qos)}
        state.copies[message.number] = Copy(set(found), acknowledged, {max(qoses)}, is_sure)

    def _overtaken(self, topic: str, newer: int) -> None:
        # a retained copy that has not arrived need not arrive: a newer one replaces it
        for name, state in self.states.items():
            # a look-up that continues may find it, too
            if self._is_looking(name) and any(matches(text, topic) for text in state.filters):
                state.may_retained.add(newer)
            for number, qos in list(state.retained):
                if self.messages[number].topic == topic:
                    state.may_retained.add(number)
                    del state.retained[number, qos]

    # ------------------------------------------------------------ arrivals

    @rule(name=Clients, count=st.integers(1, 3))
    def answer(self, name: str, count: int) -> None:
        """Acknowledge some of the messages in flight, in order."""
        self._acknowledge(self.states[name], count)

    @rule(name=Clients)
    def take_all(self, name: str) -> None:
        """Acknowledge everything until nothing more arrives: then nothing is owed."""
        state = self.states[name]
        if state.peer is None:
            return
        for _ in range(1000):
            if not self._acknowledge(state, 100):
                if not self._is_looking(name):
                    break
                self._pass(0.1)
        missing = [number for number, copy in state.copies.items() if copy.is_sure]
        assert not missing, f"{name} never got {[self.messages[number] for number in missing]}"
        assert not +state.retained, f"{name} never got the retained {state.retained}"
        state.copies.clear()
        state.may_retained.clear()

    def _acknowledge(self, state: State, count: int) -> int:
        self._look()
        if state.peer is None:
            return 0
        answered = 0
        for packet_id, sent in list(state.sent.items()):
            if answered == count:
                break
            if sent.on_connection != state.connection:
                continue
            answered += 1
            if sent.qos == 1:
                state.peer.ack("PUBACK", packet_id)
                self._answered(state, packet_id)
            elif not sent.is_released:
                state.peer.ack("PUBREC", packet_id)
                self.host.settle()
        self._look()
        return answered

    def _answered(self, state: State, packet_id: int) -> None:
        sent = state.sent.pop(packet_id)
        if sent.qos == 2:
            state.released.add(packet_id)
        if sent.number in self.shares:
            self.shares.answered(sent.number)
        elif not sent.is_retained:
            state.done.add(sent.number)
            state.copies.pop(sent.number, None)

    def _answer(self, state: State, kind: str) -> Packet:
        assert state.answers, f"no {kind} came"
        packet = state.answers.pop(0)
        assert packet.kind == kind, f"{kind} expected: {packet}"
        return packet

    def _look(self) -> None:
        """Process all packets that have arrived."""
        self.host.settle()
        moved = True
        while moved:
            moved = False
            for name, state in self.states.items():
                while state.peer is not None and state.peer.packets:
                    moved = True
                    self._came(name, state, state.peer.packets.popleft())
            self.host.settle()
        for packet in self.witness.receive():
            self.wills.came(int(packet.payload), self.host.now_ms)
        self.wills.due(self.host.now_ms)
        for name, state in self.states.items():
            own = [each for each in state.sent.values() if each.on_connection == state.connection]
            assert len(own) <= state.receive_maximum, f"{name}: {len(own)} unanswered"
            assert state.peer is None or not state.peer.closed, f"{name} was closed: {state.answers}"

    def _came(self, name: str, state: State, packet: Packet) -> None:
        size = len(packet.body) + 2 + (len(packet.body) > 127)
        assert not state.is_small or size <= PACKET_BYTES, f"{name}: {packet} has {size} bytes"
        if packet.kind == "PUBREL":
            assert state.peer is not None
            state.peer.ack("PUBCOMP", packet.packet_id)
            if packet.packet_id in state.sent:
                self._answered(state, packet.packet_id)
            else:
                assert packet.packet_id in state.released_again, f"{name}: {packet} of nothing"
        elif packet.kind == "PUBLISH":
            self._published(name, state, packet)
        else:
            state.answers.append(packet)

    def _published(self, name: str, state: State, packet: Packet) -> None:
        number = int(packet.payload) if packet.payload else state.without_payload(packet, self.messages)
        message = self.messages[number]
        assert packet.topic == message.topic
        if packet.qos and packet.packet_id in state.sent:
            self._sent_again(name, state, packet, number)
        elif number in self.shares:
            self.shares.came(name, packet, message)
            if packet.qos:
                self._keep(state, packet, number, False)
        elif packet.retain:
            self._came_retained(name, state, packet, number)
        else:
            self._came_live(name, state, packet, number)

    def _sent_again(self, name: str, state: State, packet: Packet, number: int) -> None:
        before = state.sent[packet.packet_id]
        assert before.on_connection != state.connection, f"{name}: {packet} came twice on one connection"
        assert (before.number, before.qos) == (number, packet.qos), f"{name}: {packet} in the place of {before}"
        assert packet.dup, f"{name}: {packet} comes again without DUP"
        before.on_connection = state.connection

    def _came_retained(self, name: str, state: State, packet: Packet, number: int) -> None:
        live = state.live.get(packet.topic, 0)
        assert number > live, f"{name}: {packet} is no newer than {live}, which came as it was"
        if state.retained[number, packet.qos] > 0:
            state.retained[number, packet.qos] -= 1
        else:
            assert number in state.may_retained, f"{name}: {packet} was not asked for"
        self._keep(state, packet, number, True)

    def _came_live(self, name: str, state: State, packet: Packet, number: int) -> None:
        copy = state.copies.get(number)
        if copy is None and number in state.again and packet.qos == 1:
            state.again.discard(number)
        else:
            assert copy is not None, f"{name}: {packet} is not for it, or came before"
            assert packet.qos in copy.qoses, f"{name}: {packet} instead of QoS {copy.qoses}"
            copy.is_sent = True
        if self.messages[number].is_to_retain and number > state.asked:
            state.live[packet.topic] = max(number, state.live.get(packet.topic, 0))
        if packet.qos == 0:
            state.copies.pop(number, None)
            state.done.add(number)
            return
        self._keep(state, packet, number, False)

    def _keep(self, state: State, packet: Packet, number: int, is_retained: bool) -> None:
        if packet.qos:
            held = [each for each in state.sent.values() if each.number == number and not each.is_retained]
            assert is_retained or not held, f"{packet} is in flight already"
            state.sent[packet.packet_id] = Sent(number, packet.qos, is_retained, False, state.connection)

    def teardown(self) -> None:
        """Deliver everything to the remaining sessions, then check that no message is missing and the books agree."""
        for name in [name for name in NAMES if self.states[name].is_there]:
            self._there(name)
        for name in NAMES * 2:
            self.take_all(name=name)
        missing = [number for number, share in self.shares.items() if share.is_sure and not share.is_done]
        assert not missing, f"no member got {[self.messages[number] for number in missing]}"
        self.host.check_books()

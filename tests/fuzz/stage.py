"""Plays a script of many clients against workers without sockets, and holds what must hold whatever they send.

A script is plain data, so that it can be written down, cut down and played again: `Script.to_json`. Its steps:

    ("open", line, worker)         a new connection, accepted by that worker; one that was there is lost
    ("send", line, hex)            the client sends these bytes
    ("answer", line, count, code)  it answers that many of the messages it got, as MQTT wants; v5: with this reason code
    ("lose", line)                 its end of the connection is gone
    ("stall", line, 0 or 1)        it takes nothing, or takes again
    ("turn", count)                so many ticks of every worker
    ("time", ms)                   time passes in small steps; everything comes to rest
    ("jump", ms)                   the clock makes a step, as after SIGSTOP
    ("hold", a, b), ("free", a, b) what worker a has for worker b waits, or goes on

Invariants: no exception leaves the broker and none of ours is caught inside it (`internal_errors`); what is sent is
right for each client (`tests.fuzz.watcher`) and was published by somebody; the books add up whenever everything has
come to rest; queues, windows and buffers keep their bounds; and when all clients are gone and their sessions have
expired, nothing of them is left.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from broker.worker.core import Node
from pyx.delivery.connection import Connection
from tests import wire
from tests.fuzz.watcher import Watcher
from tests.sansio import CLOSED, CLOSING, OPEN, Host, Peer

Step = Sequence[Any]

EXPIRY_SECONDS = 20
_LIMITS: dict[str, Any] = {
    "packet_bytes_max": 6000,
    "topic_bytes_max": 200,
    "topic_levels_max": 8,
    "topic_alias_max": 3,
    "receive_maximum": 4,
    "inflight_max": 4,
    "outbox_bytes_max": 4096,
    "share_large_bytes": 128,
    "filters_per_session_max": 8,
    "queue_messages_max": 12,
    "queue_bytes_max": 4096,
    "retained_messages_max": 6,
    "retained_bytes_max": 4096,
    "tick_connection_packets_max": 3,
    "session_expiry_seconds_max": EXPIRY_SECONDS,
    "session_expiry_seconds_default_v3": EXPIRY_SECONDS,
}
#: name -> (limits, settings): what the workers are started with
HOUSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tight": (_LIMITS, {}),
    "oldest": (_LIMITS, {"queue_full": "drop_oldest", "queue_qos0": True}),
    "disconnect": (_LIMITS, {"queue_full": "disconnect"}),
    "roomy": ({"session_expiry_seconds_max": EXPIRY_SECONDS, "session_expiry_seconds_default_v3": EXPIRY_SECONDS}, {}),
}
_STEP_MS = 400
_UNREAD_BYTES = 1 << 16  # of a connection, beyond the packet it waits for


@dataclass
class Script:
    """What happens."""

    workers: int
    house: str
    steps: list[Step] = field(default_factory=list)

    def to_json(self) -> str:
        """One step per line."""
        head = json.dumps({"workers": self.workers, "house": self.house})
        return "\n".join([head, *(json.dumps(list(step)) for step in self.steps)]) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Script:
        """The other way."""
        head, *steps = (json.loads(line) for line in text.splitlines())
        return cls(head["workers"], head["house"], steps)


class Line(Peer):
    """A connection of a script: what it is sent goes to its watcher."""

    def __init__(self, host: Host, node: Node) -> None:
        super().__init__(host, node, 0)
        self.watcher = Watcher()

    def take(self) -> bool:
        out = self.node.router.state.take_output(self.conn)
        self.watcher.came(out)
        return bool(out)


class Stage:
    """Workers, and the clients of one script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        limits, settings = HOUSES[script.house]
        self.host = Host(script.workers, limits, **settings)
        self.limits = self.host.settings.limits
        self.lines: dict[int, Line] = {}
        self.moving: list[tuple[Line, bytes]] = []
        self.seen: set[tuple[str, int]] = set()
        self._ids = 0
        for node in self.host.nodes:
            node.hand_over = self._hand_over

    def play(self) -> frozenset[object]:
        """All steps, then the end of everybody; AssertionError when something does not hold. Returns what was new to
        see: packets with their codes, and the counters that moved.
        """
        with mock.patch("broker.clients.connecting.secrets.token_hex", self._token):
            for step in self.script.steps:
                getattr(self, f"do_{step[0]}")(*step[1:])
                self._check_quick()
            self._end()
        moved = {name for name, value in self.host.counters().items() if value}
        return frozenset(self.seen | moved)

    def _token(self, size: int) -> str:
        # assigned client ids are the same each time a script is played
        self._ids += 1
        return f"{self._ids:0{2 * size}x}"

    # ------------------------------------------------------------ steps

    def do_open(self, number: int, worker: int) -> None:
        if number in self.lines:
            self.do_lose(number)
        node = self.host.nodes[worker % self.script.workers]
        line = Line(self.host, node)
        self.host.peers.append(line)
        self.lines[number] = line

    def do_send(self, number: int, data: str) -> None:
        line = self.lines.get(number)
        if line is None or line.conn.state >= CLOSING:
            return
        if line.conn.pending > 2 * self.limits.outbox_bytes_max:
            return  # the reactor does not read a client that does not take its answers
        self._feed(line, bytes.fromhex(data))

    def _feed(self, line: Line, data: bytes) -> None:
        line.watcher.sent(data)
        for at, (moving, unread) in enumerate(self.moving):
            if moving is line:
                self.moving[at] = (line, unread + data)
                return
        line.node.dispatch.feed(line.conn, data)

    def do_answer(self, number: int, count: int, code: int) -> None:
        line = self.lines.get(number)
        if line is None or line.conn.state != OPEN:
            return
        watcher = line.watcher
        for kind, packet_id in watcher.to_answer[:count]:
            reason = code if watcher.version == 5 and kind in ("PUBACK", "PUBREC") else 0
            self._feed(line, wire.ack(watcher.version, kind, packet_id, reason))
        del watcher.to_answer[:count]

    def do_lose(self, number: int) -> None:
        line = self.lines.get(number)
        if line is None:
            return
        self.moving = [each for each in self.moving if each[0] is not line]
        if line.conn.state < CLOSING:
            line.node.router.state.close(line.conn, 0, "lost")

    def do_stall(self, number: int, stalled: int) -> None:
        line = self.lines.get(number)
        if line is None:
            return
        line.stalled = bool(stalled)
        if not stalled:
            line.take()

    def do_turn(self, count: int) -> None:
        for _ in range(count):
            self._arrive()
            self.host.turn()

    def do_time(self, ms: int) -> None:
        while ms > 0:
            self.do_jump(min(ms, _STEP_MS))
            ms -= _STEP_MS
        self.rest()

    def do_jump(self, ms: int) -> None:
        host = self.host
        host.now_ms += ms
        for node in host.nodes:
            node.router.state.set_time(host.now_ms)
            node.timers.advance(host.now_ms)
            for link in node.links.values():
                link.tick(host.now)
        self.do_turn(1)

    def do_hold(self, a: int, b: int) -> None:
        if a != b and max(a, b) < self.script.workers:
            self.host.held.add((a, b))

    def do_free(self, a: int, b: int) -> None:
        self.host.held.discard((a, b))

    # ------------------------------------------------------------ between workers

    def _hand_over(self, conn: Connection, worker: int, raw: bytes) -> None:
        line = self.host.peer_of.pop(conn)
        assert isinstance(line, Line)
        self.moving.append((line, raw + conn.unread()))
        conn.state = CLOSED
        line.conn = Connection()
        self.host.peer_of[line.conn] = line
        line.node = self.host.nodes[worker]

    def _arrive(self) -> None:
        moving, self.moving = self.moving, []
        for line, unread in moving:
            line.node.dispatch.feed(line.conn, unread)

    def rest(self) -> None:
        """Until nothing moves; then the books must add up."""
        while True:
            self._arrive()
            self.host.settle()
            if not self.moving:
                break
        self._check_quick()
        self.host.check_books()
        self._check_bounds()
        self._check_messages()

    # ------------------------------------------------------------ what must hold

    def _check_quick(self) -> None:
        if any(row["internal_errors"] for row in (node.counters.as_dict() for node in self.host.nodes)):
            told = [each for log in self.host.logs for each in log.named("internal_error")]
            raise AssertionError(f"an exception of ours: {told[0]['traceback'] if told else '(not logged)'}")

    def _check_messages(self) -> None:
        """Nobody is sent what nobody published."""
        watchers = [line.watcher for line in self.host.peers if isinstance(line, Line)]
        if not any(watcher.lost_count for watcher in watchers):
            odd = set().union(*(each.received for each in watchers)) - set().union(
                *(each.published for each in watchers)
            )
            assert not odd, f"nobody published {odd}"

    def _check_bounds(self) -> None:
        limits = self.limits
        for line in self.host.peers:
            conn = line.conn
            assert len(conn.unread()) <= limits.packet_bytes_max + _UNREAD_BYTES, f"{len(conn.unread())} bytes unread"
            if conn.state == CLOSED:
                assert conn.pending == 0
        for node, store in zip(self.host.nodes, self.host.stores, strict=True):
            for session in node.sessions:
                assert session.subscriptions <= limits.filters_per_session_max, session.client_id
                assert session.unacknowledged <= limits.inflight_max, session.client_id
            held = limits.queue_messages_max * max(1, len(node.sessions))
            node.router.sweeping.sweep()
            assert store.messages_held() <= 8 * held, f"{store.messages_held()} messages in the log"
            row = node.counters.as_dict()
            assert row["retained_messages"] <= limits.retained_messages_max
            assert row["retained_bytes"] <= limits.retained_bytes_max

    def _end(self) -> None:
        host = self.host
        host.held.clear()
        for number in self.lines:
            self.do_stall(number, 0)
        self.do_time(1)
        for line in self.lines.values():
            if line.conn.state < CLOSING:
                line.watcher.at_end()
        for line in self.lines.values():
            self.seen |= line.watcher.seen
        for number in self.lines:
            self.do_lose(number)
        self.do_time(1000 * (EXPIRY_SECONDS + 2))
        assert host.waiting() == 0, f"{host.waiting()} copies wait for nobody"
        for node, store in zip(host.nodes, host.stores, strict=True):
            assert not list(node.sessions), [session.client_id for session in node.sessions]
            assert node.router.state.subscriptions.count == 0
            assert node.router.state.subscriptions.filters == 0
            assert store.messages_held() == 0, f"{store.messages_held()} messages in the log of nobody"
            assert len(node.retaining._questions) == 0
            row = node.counters.as_dict()
            gauges = {name: row[name] for name in ("sessions", "subscriptions", "filters")}
            assert not any(gauges.values()), f"gauges of nothing: {gauges}"

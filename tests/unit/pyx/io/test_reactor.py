"""The reactor over socket pairs: its own decisions (when to read, when to close), without a process around it."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from pyx.core import work
from pyx.core.work import spend
from pyx.delivery.connection import Connection
from pyx.io.epoll import Epoll
from pyx.io.poller import Poller
from pyx.io.reactor import Reactor
from tests import wire
from tests.kept_store import KeptStore
from tests.sansio import CLOSED, Host
from tests.unit.adapters.poller_adapter import Poll
from tests.unit.pyx.delivery.test_router import client_at


class Sockets:
    """A worker's reactor; each client is the other end of a socket pair. `poller`: None is the default one. `workers`:
    the others have no reactor (`Host.settle`).
    """

    def __init__(
        self, poller: Poller | None = None, workers: int = 1, stores: list[KeptStore] | None = None, **limits: int
    ) -> None:
        self.host = Host(workers, stores=stores, limits=limits)
        self.node = self.host.node
        self.again = False
        self.reactor = Reactor(self.node.router, self.node.dispatch, poller)
        self.reactor.schedule = self._schedule
        self.node.opened = self.reactor.start_keep_alive
        self._ends: list[socket.socket] = []

    def _schedule(self) -> None:
        self.again = True

    def open(self, *packets: bytes) -> tuple[socket.socket, Connection]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        self._ends.append(theirs)
        conn = self.reactor.adopt(ours.detach())
        if packets:
            theirs.sendall(b"".join(packets))
            self.poll()
        return theirs, conn

    def poll(self) -> None:
        self.again = True
        while self.again:
            self.again = False
            self.reactor.poll()

    def until(self, done: Callable[[], bool], seconds: float = 60.0) -> None:
        """Poll until the condition holds."""
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, "it never came"
            self.poll()

    def close(self) -> None:
        for end in self._ends:
            end.close()
        self.until(lambda: len(self.reactor) == 0 or self._expired())

    def _expired(self) -> bool:
        self.reactor.run_timers()
        return len(self.reactor) == 0


@contextlib.contextmanager
def no_more_descriptors() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.fixture(params=[Epoll, Poll])
def sockets(request: pytest.FixtureRequest) -> Iterator[Sockets]:
    """A reactor with each poller: its decisions do not depend on how ready sockets are reported."""
    it = Sockets(request.param())
    yield it
    it.close()


def taken(end: socket.socket) -> bytes:
    """Return all bytes that can be read now."""
    got = b""
    while True:
        try:
            part = end.recv(1 << 20)
        except BlockingIOError:
            return got
        if not part:
            return got
        got += part


def whole_packets(data: bytes) -> int:
    count = at = 0
    while at < len(data):
        length = shift = 0
        while True:
            at += 1
            length |= (data[at] & 0x7F) << shift
            shift += 7
            if not data[at] & 0x80:
                break
        at += 1 + length
        count += at <= len(data)
    return count


def test_more_small_packets_than_a_tick_handles(sockets: Sockets) -> None:
    """Packets that wait for the next tick stop the reading, which resumes after it."""
    end, _ = sockets.open(wire.connect(4, "client"))
    taken(end)
    data, sent, got = wire.PINGREQ * 100_000, 0, b""

    def all_answered() -> bool:
        nonlocal sent, got
        if sent < len(data):
            with contextlib.suppress(BlockingIOError):
                sent += end.send(data[sent : sent + 100_000])
        got += taken(end)
        return len(got) >= len(data)

    sockets.until(all_answered)
    assert got == b"\xd0\x00" * 100_000


def test_what_came_before_the_end_of_the_connection_counts(sockets: Sockets) -> None:
    """A client sends a burst and DISCONNECT, and closes: more packets than a tick handles, and no will."""
    witness, _ = sockets.open(wire.connect(4, "witness"), wire.subscribe(4, 1, ("#", 0)))
    end, conn = sockets.open(wire.connect(4, "client", will=wire.Will("will", b"x")))
    taken(end)
    end.setblocking(True)
    end.sendall(wire.publish(4, "t", b"") * 5000 + wire.disconnect(4))
    end.close()
    got = b""

    def all_there() -> bool:
        nonlocal got
        got += taken(witness)
        return conn.state == CLOSED

    sockets.until(all_there)
    got += taken(witness)
    assert got.count(wire.publish(4, "t", b"")) == 5000
    assert b"will" not in got


def test_a_client_that_takes_no_answers_is_not_read_without_end() -> None:
    sockets = Sockets(outbox_bytes_max=4096)
    end, conn = sockets.open(wire.connect(4, "client"))
    total = 0
    deadline = time.monotonic() + 60
    blocked = 0
    while blocked < 3 and time.monotonic() < deadline:
        try:
            total += end.send(wire.PINGREQ * 10_000)
            blocked = 0
        except BlockingIOError:
            blocked += 1
        sockets.poll()
    assert blocked == 3, "it was read on and on"
    assert conn.pending < 4096 * 2 + 2 * 65536
    answers = 0

    def all_answered() -> bool:
        nonlocal answers
        answers += len(taken(end))
        return answers >= total + 4

    sockets.until(all_answered)
    assert answers == total // 2 * 2 + 4
    sockets.close()


def test_a_paused_connection_with_packets_left_over_does_not_spin(sockets: Sockets) -> None:
    end, conn = sockets.open(wire.connect(4, "client"))
    taken(end)
    conn.paused = True
    end.sendall(wire.PINGREQ * 5000)
    sockets.poll()
    assert not sockets.again
    assert len(taken(end)) == 2000
    sockets.node.router.state.resumed.append(conn)
    sockets.reactor.finish()
    sockets.poll()
    assert len(taken(end)) == 8000


class Watching:
    """An object that counts its comparisons."""

    def __init__(self) -> None:
        self.comparisons = 0

    def __eq__(self, other: object) -> bool:
        self.comparisons += 1
        return self is other

    __hash__ = None  # type: ignore[assignment]


def test_connections_that_go_on_together_are_not_looked_for_among_each_other(sockets: Sockets) -> None:
    """Otherwise each is compared with all before it: the cost is the square of the connections that waited."""
    ends = []
    for number in range(50):
        end, conn = sockets.open(wire.connect(4, f"client{number}"))
        taken(end)
        conn.paused = True
        end.sendall(wire.PINGREQ * 1500)
        ends.append((end, conn))
    sockets.poll()
    assert all(len(taken(end)) == 2000 for end, _ in ends)
    others = [conn for _, conn in ends]
    waiting: list[Any] = sockets.node.dispatch.carried
    assert waiting == []
    first = Watching()
    waiting.append(first)
    sockets.node.router.state.resumed.extend([*others, others[0]])
    sockets.reactor.resume()
    assert waiting.pop(0) is first
    assert first.comparisons == 0
    assert waiting == others
    sockets.poll()
    assert all(len(taken(end)) == 1000 for end, _ in ends)


def test_our_end_is_closed_after_the_last_byte_left(sockets: Sockets) -> None:
    end, conn = sockets.open(wire.connect(5, "client"), b"\xf0\x00", wire.PINGREQ * 100)
    said = taken(end)
    assert b"\xe0" in said
    assert said.endswith(b"packet type 15 with Reason Code 0x00")
    assert conn.state != CLOSED
    end.close()
    sockets.until(lambda: conn.state == CLOSED)


@pytest.mark.parametrize("size", [1, 60_000, 65_536, 65_537, 200_000, 3_000_000])
@pytest.mark.parametrize("piece", [1000, 65_536, 500_000])
def test_packets_of_every_size(sockets: Sockets, size: int, piece: int) -> None:
    """Small packets pass through the shared buffer, large ones are read directly into their own."""
    witness, _ = sockets.open(wire.connect(4, "witness"), wire.subscribe(4, 1, ("t", 0)))
    taken(witness)
    end, _ = sockets.open(wire.connect(4, "client"))
    expected = wire.publish(4, "t", bytes(i * 7 & 255 for i in range(1000)) * (size // 1000) + b"x" * (size % 1000))
    data, sent, got = expected * 2, 0, b""

    def all_there() -> bool:
        nonlocal sent, got
        if sent < len(data):
            with contextlib.suppress(BlockingIOError):
                sent += end.send(data[sent : sent + piece])
        got += taken(witness)
        return len(got) >= len(data)

    sockets.until(all_there)
    assert got == data


def test_a_client_that_goes_while_its_end_is_asked_for_is_let_go(sockets: Sockets) -> None:
    """The session is detached although the question is never answered."""
    end, conn = sockets.open(wire.connect(4, "client", clean=False))
    sockets.node.router.state.close(conn, 0x97, "queue full")
    end.close()
    sockets.poll()
    session = sockets.node.sessions.get("client")
    assert session is not None
    assert session.connection is None
    assert len(sockets.reactor) == 0


@pytest.mark.parametrize("size", [30, 5000], ids=["copied", "shared"])
@pytest.mark.parametrize("reset", [False, True], ids=["closed by us", "lost"])
def test_a_qos_0_copy_is_delivered_when_the_kernel_has_it(sockets: Sockets, size: int, reset: bool) -> None:
    """A subscriber that does not read: bytes not in the kernel when its connection ends were not delivered."""
    end, conn = sockets.open(wire.connect(4, "slow"), wire.subscribe(4, 1, ("t", 0)))
    other, _ = sockets.open(wire.connect(4, "quick"))
    batch = 100_000 // size
    for _ in range(10):
        other.sendall(wire.publish(4, "t", b"x" * size) * batch)
        sockets.poll()
    row = sockets.host.counters()
    waiting = conn.pending_qos0
    assert 0 < waiting < row["matched"]
    assert row["delivered_qos0"] + waiting == row["matched"] - row["dropped_outbox_full"]
    if reset:
        end.close()
        sockets.until(lambda: conn.state == CLOSED)
        got = None
    else:
        sockets.node.router.state.close(conn, 0x100, "enough")
        sockets.poll()
        sockets.reactor.finish()
        got = whole_packets(taken(end))
    row = sockets.host.counters()
    assert row["dropped_connection_closed"] == waiting
    assert row["delivered_qos0"] == row["matched"] - row["dropped_outbox_full"] - waiting
    assert got is None or got == row["delivered_qos0"] + 2


# ---------------------------------------------------------------- listeners


@pytest.fixture
def listeners() -> Iterator[list[socket.socket]]:
    """Return three listeners, each with a client that waits."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        for each in opened:
            each.setblocking(False)
            stack.enter_context(socket.create_connection(each.getsockname()))
        yield opened


def test_a_connection_is_counted_under_the_number_of_its_listener(
    sockets: Sockets, listeners: list[socket.socket]
) -> None:
    numbers = (0, 7, 15)
    for number, each in zip(numbers, listeners, strict=True):
        sockets.reactor.acceptor.listen(each.fileno(), number)
    row = sockets.node.counters
    sockets.until(lambda: len(sockets.reactor) == 3)
    assert [row.listener(number) for number in numbers] == [[1, 1]] * 3
    assert row.listener(1) == [0, 0]
    for number in (-1, 16):
        with pytest.raises(ValueError, match=f"^there is no listener {number}$"):
            sockets.reactor.acceptor.listen(listeners[0].fileno(), number)
    with socket.create_connection(listeners[1].getsockname()):
        sockets.until(lambda: row.listener(7) == [2, 2])
    sockets.until(lambda: row.listener(7) == [2, 1])
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        assert sockets.reactor.adopt(ours.detach(), listener=7).listener == 7
        assert row.listener(7) == [2, 2], "it was accepted elsewhere"


def test_listeners_of_a_round_in_which_accepting_fails_are_asked_later(
    sockets: Sockets, listeners: list[socket.socket]
) -> None:
    """Listeners behind the one that failed were ready in the same round."""
    for each in listeners:
        sockets.reactor.acceptor.listen(each.fileno())
    row = sockets.node.counters
    with no_more_descriptors():
        sockets.poll()
    assert row["accept_errors"] == 1
    assert len(sockets.reactor) == 0

    def all_there() -> bool:
        sockets.reactor.run_timers()
        return len(sockets.reactor) == 3

    sockets.until(all_there)
    assert row["accept_errors"] == 1


def test_a_pause_that_ends_after_the_stop_opens_nothing(sockets: Sockets, listeners: list[socket.socket]) -> None:
    for each in listeners:
        sockets.reactor.acceptor.listen(each.fileno())
    with no_more_descriptors():
        sockets.poll()
    sockets.reactor.acceptor.stop()
    for each in listeners:
        each.close()
    since = time.monotonic()

    def is_over() -> bool:
        sockets.reactor.run_timers()
        return time.monotonic() - since > 0.3  # three pauses

    sockets.until(is_over)
    assert len(sockets.reactor) == 0


@pytest.mark.parametrize("ends", ["closed by the broker", "send fails"])
def test_the_will_of_a_client_that_ends_in_a_tick_leaves_with_it(ends: str) -> None:
    """Siblings get it at once, not with the next event."""
    sockets = Sockets(workers=2)
    here = sockets.node
    far = sockets.host.connect(client_at(1, 2, "far"))
    far.subscribe(("will", 0))
    name = client_at(0, 2, "near")
    client, conn = sockets.open(wire.connect(4, name, will=wire.Will("will", b"gone")))
    assert client.recv(100)
    sockets.host.settle()
    assert not here.router.peers.dirty_peers
    if ends == "send fails":
        client.close()
        here.router.state.write(conn, wire.publish(4, "t", b"x"))
    else:
        here.router.state.close(conn, 0, "closed by the broker")
    sockets.again = False
    sockets.reactor.run_timers()
    assert not here.router.peers.dirty_peers, "nothing waits for another tick"
    sockets.host.settle()
    assert far.next("PUBLISH").payload == b"gone"
    sockets.close()


def test_entries_that_wait_for_company_keep_no_loop_awake() -> None:
    """The mesh may send them later, and has a timer of its own for that."""
    sockets = Sockets(workers=2)
    here = sockets.node
    sockets.host.connect(client_at(1, 2, "far")).subscribe(("t", 0))
    client, _ = sockets.open(wire.connect(4, client_at(0, 2, "near")))
    assert client.recv(100)
    here.router.peers.forward_now = lambda: None
    client.sendall(wire.publish(4, "t", b"x"))
    before = here.counters["ticks"]
    while not here.router.peers.dirty_peers:
        sockets.reactor.poll()
    sockets.again = False
    sockets.reactor.poll()
    assert not sockets.again
    assert here.counters["ticks"] - before < 10
    sockets.close()


def test_callbacks_that_wait_for_the_next_slice_keep_the_loop_awake() -> None:
    store = KeptStore()
    sockets = Sockets(stores=[store])
    journal = sockets.node.router.journal
    called: list[int] = []

    def callback(number: int) -> None:
        spend(work.BOUND)
        called.append(number)

    store.manual = True
    journal.put_record(b"key", b"value")
    for number in range(5):
        journal.when_durable(partial(callback, number))
    sockets.reactor.finish()
    assert not called
    journal.durable(store.sync())
    assert called == [0]
    sockets.reactor.finish()
    assert sockets.again
    journal.when_durable(partial(callback, 5))
    sockets.poll()
    assert called == [0, 1, 2, 3, 4, 5]
    sockets.close()

"""Half-open connections and connection rate per source address, through a reactor with real sockets of 127.0.0.x."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from pyx.io.reactor import Reactor
from tests import wire
from tests.sansio import Host
from tests.waiting import wait_until


class Listening:
    """A reactor that listens on loopback addresses."""

    def __init__(self, family: int = socket.AF_INET) -> None:
        self.host = Host()
        self.reactor = Reactor(self.host.node.router, self.host.node.dispatch)
        self.host.node.opened = self.reactor.start_keep_alive
        self.listener = socket.socket(family)
        self.listener.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", 0))
        self.listener.listen(128)
        self.listener.setblocking(False)
        self.reactor.acceptor.listen(self.listener.fileno())
        self.clients: list[socket.socket] = []

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        """Return a client, accepted or refused."""
        client = socket.socket(socket.AF_INET6 if ":" in source else socket.AF_INET)
        client.bind((source, 0))
        client.connect((source if ":" in source else "127.0.0.1", self.listener.getsockname()[1]))
        self.clients.append(client)
        self.reactor.poll()
        return client

    def until(self, condition: Callable[[], bool]) -> None:
        """Poll until the condition holds."""

        def polled() -> bool:
            self.reactor.poll()
            return condition()

        wait_until(polled, 60.0, "the reactor has seen it")

    def counter(self, name: str) -> int:
        return self.host.counters()[name]


@pytest.fixture
def listening() -> Iterator[Listening]:
    made = Listening()
    yield made
    for client in made.clients:
        client.close()
    made.listener.close()


def test_half_open_connections_of_one_address(listening: Listening) -> None:
    listening.reactor.connections.sources.half_open_max = 2
    one, _, refused = (listening.connect() for _ in range(3))
    assert refused.recv(1) == b""
    assert listening.counter("half_open_refused") == 1
    listening.connect("127.0.0.2")
    assert len(listening.reactor.connections.sources) == 2
    # a connection is half open until it sends CONNECT or ends
    one.sendall(wire.connect(4, "one"))
    listening.until(lambda: listening.counter("connections_opened") == 1)
    two = listening.connect()
    assert listening.counter("half_open_refused") == 1
    two.close()
    listening.until(lambda: len(listening.reactor) == 3)
    listening.connect()
    assert listening.counter("half_open_refused") == 1
    for client in listening.clients:
        client.close()
    listening.until(lambda: len(listening.reactor) == 0)
    assert len(listening.reactor.connections.sources) == 0


def test_connection_rate_of_one_address(listening: Listening) -> None:
    sources = listening.reactor.connections.sources
    sources.per_second_max = 5
    for _ in range(8):
        listening.connect()
    assert 2 <= listening.counter("connection_rate_refused") <= 3
    refused = listening.counter("connection_rate_refused")
    listening.connect("127.0.0.3")
    assert listening.counter("connection_rate_refused") == refused


def test_ipv4_mapped_into_ipv6_is_the_same_address() -> None:
    listening = Listening(socket.AF_INET6)
    try:
        listening.reactor.connections.sources.half_open_max = 1
        listening.connect("127.0.0.1")
        assert listening.connect("127.0.0.1").recv(1) == b""
        listening.connect("127.0.0.2")
        assert listening.counter("half_open_refused") == 1
    finally:
        for client in listening.clients:
            client.close()
        listening.listener.close()


def test_without_bounds_nothing_is_remembered(listening: Listening) -> None:
    listening.connect()
    assert len(listening.reactor.connections.sources) == 0

"""Listeners: what the broker can be reached by, and the sockets that all workers have of each, made by the supervisor
before the fork.

A listener has a name, a kind, and what its kind needs to open it. Workers know it by its number, its place in the
configuration: each connection has that number, also when it is handed to another worker (`shards.handoff`), and so do
its log lines and counters. A new kind is one function in KINDS.

Of kind tcp each worker has a socket of its own per address, all bound to one port with SO_REUSEPORT: the kernel spreads
connections over them. Since sockets that share a port would also share it with a second broker unnoticed, the port is
first bound once without SO_REUSEPORT. Because the supervisor keeps every socket open, connections that arrive while a
worker is down wait in its backlog for its successor.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

BACKLOG = 4096
_PORT_ATTEMPTS = 20


class CannotListen(Exception):
    """An address cannot be listened on. Its text is one line for the operator."""


@dataclass(frozen=True, slots=True)
class ListenOn:
    """What a listener is to be, as the configuration says it."""

    name: str
    kind: str
    """One of KINDS."""
    hosts: tuple[str, ...]
    """Addresses or names."""
    port: int
    """0: one that is free on all of them."""


class Opened(NamedTuple):
    """What a kind has made of it."""

    addresses: list[str]
    """How clients reach it, for people: `HOST:PORT`."""
    sockets: list[list[socket.socket]]
    """Of each worker: listening, non-blocking."""


@dataclass(slots=True)
class Listener:
    """A worker's part of a listener."""

    name: str
    kind: str
    sockets: list[socket.socket]

    def close(self) -> None:
        """Close its sockets; again is harmless."""
        for each in self.sockets:
            each.close()


class Listeners:
    """All that are listened on, for all workers. Raises CannotListen, and nothing stays open then."""

    def __init__(self, asked: Sequence[ListenOn], workers: int) -> None:
        self.addresses: list[list[str]] = []
        """Of each listener, how clients reach it."""
        self._of_workers: list[list[Listener]] = [[] for _ in range(workers)]
        try:
            for each in asked:
                opened = KINDS[each.kind].open(each, workers)
                self.addresses.append(opened.addresses)
                for own, sockets in zip(self._of_workers, opened.sockets, strict=True):
                    own.append(Listener(each.name, each.kind, sockets))
        except CannotListen as error:
            self.close()
            raise _named(error, each, asked) from None

    def of(self, worker: int) -> list[Listener]:
        """The part of a worker, in the order of the configuration."""
        return self._of_workers[worker]

    def sockets(self) -> int:
        """How many each worker has."""
        return sum(len(listener.sockets) for listener in self._of_workers[0])

    def close(self) -> None:
        """Close them all; again is harmless."""
        for worker in range(len(self._of_workers)):
            self.close_of(worker)

    def close_of(self, worker: int) -> None:
        """Close this worker's part."""
        for listener in self._of_workers[worker]:
            listener.close()


def probe_all(asked: Sequence[ListenOn]) -> None:
    """See whether all of them could be opened now. Raises CannotListen."""
    for each in asked:
        try:
            KINDS[each.kind].probe(each)
        except CannotListen as error:
            raise _named(error, each, asked) from None


def _named(error: CannotListen, which: ListenOn, asked: Sequence[ListenOn]) -> CannotListen:
    return CannotListen(f"listener {which.name}: {error}" if len(asked) > 1 else str(error))


@dataclass(frozen=True, slots=True)
class Address:
    """One address to listen on, resolved."""

    family: socket.AddressFamily
    sockaddr: tuple[Any, ...]
    """As bind() takes it; its port is replaced by the one that was picked."""

    def at(self, port: int) -> tuple[Any, ...]:
        """What bind() takes for this address and a port."""
        return (self.sockaddr[0], port, *self.sockaddr[2:])

    def text(self, port: int) -> str:
        """`HOST:PORT`, an IPv6 host in brackets."""
        return f"[{self.sockaddr[0]}]:{port}" if self.family == socket.AF_INET6 else f"{self.sockaddr[0]}:{port}"


def resolve(hosts: Sequence[str]) -> list[Address]:
    """The addresses of host names and literals, IPv4 and IPv6, each once, in the order given.

    Raises CannotListen for a name that does not resolve.
    """
    addresses: list[Address] = []
    for host in hosts:
        try:
            found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, UnicodeError) as error:
            raise CannotListen(f"cannot listen on {host}: {getattr(error, 'strerror', None) or error}") from None
        named = [Address(family, tuple(sockaddr)) for family, _, _, _, sockaddr in found]
        # A name such as localhost may list an IPv6 address on a machine without IPv6.
        for address in [a for a in named if _bindable(a)] or named:
            if address not in addresses:
                addresses.append(address)
    return addresses


def listen(addresses: Sequence[Address], port: int, workers: int) -> tuple[int, list[list[socket.socket]]]:
    """The port and, per worker, its non-blocking listening sockets in the order of `addresses`.

    Port 0 picks one port that is free on every address. Raises CannotListen.
    """
    attempts = _PORT_ATTEMPTS if port == 0 else 1
    for attempt in range(attempts):
        sockets: list[list[socket.socket]] = [[] for _ in range(workers)]
        address = addresses[0]
        picked = port
        try:
            picked = probe(addresses, port)
            for own in sockets:
                for address in addresses:
                    own.append(_listener(address, picked))
            return picked, sockets
        except OSError as error:
            close(sockets)
            if error.errno != errno.EADDRINUSE or attempt + 1 == attempts:
                raise _explain(error, address, picked) from None
        except CannotListen:
            if attempt + 1 == attempts:
                raise
    raise AssertionError("unreachable: every attempt returns or raises")


def close(sockets: Sequence[Sequence[socket.socket]]) -> None:
    """Close all of them; again is harmless."""
    for own in sockets:
        for listener in own:
            listener.close()


def open_tcp(asked: ListenOn, workers: int) -> Opened:
    """Sockets whose bytes are MQTT packets. Raises CannotListen."""
    addresses = resolve(asked.hosts)
    port, sockets = listen(addresses, asked.port, workers)
    return Opened([address.text(port) for address in addresses], sockets)


def probe_tcp(asked: ListenOn) -> None:
    """Whether it could be opened now. Raises CannotListen."""
    probe(resolve(asked.hosts), asked.port)


class Kind(NamedTuple):
    """What can be done with listeners of a kind. Both raise CannotListen."""

    open: Callable[[ListenOn, int], Opened]
    """For so many workers."""
    probe: Callable[[ListenOn], None]
    """See whether that would be possible, and leave nothing open."""


KINDS: dict[str, Kind] = {"tcp": Kind(open_tcp, probe_tcp)}
"""By the name that the configuration has for it (`broker.config.listeners`)."""


def probe(addresses: Sequence[Address], port: int) -> int:
    """Bind every address once, alone: a port in use is noticed here. The port, picked by the first if 0. Raises
    CannotListen.
    """
    probes = []
    try:
        for address in addresses:
            try:
                bound = _socket(address)
                probes.append(bound)
                bound.bind(address.at(port))
            except OSError as error:
                raise _explain(error, address, port) from None
            port = bound.getsockname()[1]
        return port
    finally:
        for each in probes:
            each.close()


def available(host: str) -> bool:
    """Whether this machine has the address (a name: one of its addresses)."""
    try:
        return any(_bindable(address) for address in resolve([host]))
    except CannotListen:
        return False


def _bindable(address: Address) -> bool:
    try:
        with _socket(address) as probe:
            probe.bind(address.at(0))
    except OSError:
        return False
    return True


def _listener(address: Address, port: int) -> socket.socket:
    listener = _socket(address)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Accepted sockets inherit it: no call per connection.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(address.at(port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _socket(address: Address) -> socket.socket:
    made = socket.socket(address.family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    # Connections of a former broker in TIME_WAIT do not keep the port; a listening socket still does.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if address.family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # :: and 0.0.0.0 are two addresses everywhere
    return made


def _explain(error: OSError, address: Address, port: int) -> CannotListen:
    reasons = {
        errno.EADDRINUSE: "the port is in use",
        errno.EACCES: "no permission (ports below 1024 need root or CAP_NET_BIND_SERVICE)",
        errno.EADDRNOTAVAIL: "this machine has no such address",
    }
    reason = reasons.get(error.errno or 0) or os.strerror(error.errno or 0)
    return CannotListen(f"cannot listen on {address.text(port)}: {reason}")

"""Listeners of the broker, and their sockets for all workers, which the supervisor opens before the fork.

A listener has a name, a kind, and the parameters of its kind. Workers know it by its number, its place in the
configuration: each connection has that number, also when it is handed to another worker (`pyx.io.handing_over`), and so
have its log lines and counters. A new kind is one function in KINDS.

For kind tcp each worker has a socket of its own per address, all bound to one port with SO_REUSEPORT: the kernel
spreads connections over them. Since such sockets would also share the port with a second broker unnoticed, the port is
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
    """An address cannot be listened on. The text is one line for the operator."""


@dataclass(frozen=True, slots=True)
class ListenOn:
    """The parameters of a listener, from the configuration."""

    name: str
    kind: str
    """One of KINDS."""
    hosts: tuple[str, ...]
    """Addresses or names."""
    port: int
    """0: a port that is free on all of them."""


class Opened(NamedTuple):
    """A listener's open sockets."""

    addresses: list[str]
    """Its addresses for display: `HOST:PORT`."""
    sockets: list[list[socket.socket]]
    """Sockets of each worker: listening, non-blocking."""


@dataclass(slots=True)
class Listener:
    """One worker's part of a listener."""

    name: str
    kind: str
    sockets: list[socket.socket]

    def close(self) -> None:
        """Close its sockets; may be repeated."""
        for each in self.sockets:
            each.close()


class Listeners:
    """All listeners, for all workers. Raises CannotListen, and leaves nothing open then."""

    def __init__(self, asked: Sequence[ListenOn], workers: int) -> None:
        self.addresses: list[list[str]] = []
        """Addresses of each listener, for display."""
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
        """Return the part of a worker, in the order of the configuration."""
        return self._of_workers[worker]

    def sockets(self) -> int:
        """Return the number of sockets per worker."""
        return sum(len(listener.sockets) for listener in self._of_workers[0])

    def close(self) -> None:
        """Close them all; may be repeated."""
        for worker in range(len(self._of_workers)):
            self.close_of(worker)

    def close_of(self, worker: int) -> None:
        """Close this worker's part."""
        for listener in self._of_workers[worker]:
            listener.close()


def probe_all(asked: Sequence[ListenOn]) -> None:
    """Check whether all of them could be opened now. Raises CannotListen."""
    for each in asked:
        try:
            KINDS[each.kind].probe(each)
        except CannotListen as error:
            raise _named(error, each, asked) from None


def _named(error: CannotListen, which: ListenOn, asked: Sequence[ListenOn]) -> CannotListen:
    return CannotListen(f"listener {which.name}: {error}" if len(asked) > 1 else str(error))


@dataclass(frozen=True, slots=True)
class Address:
    """One resolved address to listen on."""

    family: socket.AddressFamily
    sockaddr: tuple[Any, ...]
    """The argument of bind(); its port is replaced by the one picked."""

    def at(self, port: int) -> tuple[Any, ...]:
        """Return the argument of bind() for this address and a port."""
        return (self.sockaddr[0], port, *self.sockaddr[2:])

    def text(self, port: int) -> str:
        """Return `HOST:PORT`, an IPv6 host in brackets."""
        return f"[{self.sockaddr[0]}]:{port}" if self.family == socket.AF_INET6 else f"{self.sockaddr[0]}:{port}"


def resolve(hosts: Sequence[str]) -> list[Address]:
    """Return the addresses of host names and literals, IPv4 and IPv6, each once, in the order given.

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
    """Return the port and, per worker, its non-blocking listening sockets in the order of `addresses`.

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
    """Close all of them; may be repeated."""
    for own in sockets:
        for listener in own:
            listener.close()


def open_tcp(asked: ListenOn, workers: int) -> Opened:
    """Open sockets for plain MQTT over TCP. Raises CannotListen."""
    addresses = resolve(asked.hosts)
    port, sockets = listen(addresses, asked.port, workers)
    return Opened([address.text(port) for address in addresses], sockets)


def probe_tcp(asked: ListenOn) -> None:
    """Check whether it could be opened now. Raises CannotListen."""
    probe(resolve(asked.hosts), asked.port)


class ListenerKind(NamedTuple):
    """The operations on listeners of a kind. Both raise CannotListen."""

    open: Callable[[ListenOn, int], Opened]
    """Opens it for a number of workers."""
    probe: Callable[[ListenOn], None]
    """Checks whether that would be possible, and leaves nothing open."""


KINDS: dict[str, ListenerKind] = {"tcp": ListenerKind(open_tcp, probe_tcp)}
"""By name in the configuration (`broker.config.listeners`)."""


def probe(addresses: Sequence[Address], port: int) -> int:
    """Bind every address once, alone, so that a port in use is noticed; return the port, picked by the first if 0.
    Raises CannotListen.
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

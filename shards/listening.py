"""The listening sockets of all workers, made by the supervisor before the fork.

Each worker has a socket of its own per address, all bound to one port with SO_REUSEPORT: the kernel spreads
connections over them. Since sockets that share a port would also share it with a second broker unnoticed, the port is
first bound once without SO_REUSEPORT. Because the supervisor keeps every socket open, connections that arrive while a
worker is down wait in its backlog for its successor.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

BACKLOG = 4096
_PORT_ATTEMPTS = 20


class CannotListen(Exception):
    """An address cannot be listened on. Its text is one line for the operator."""


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


def probe(addresses: Sequence[Address], port: int) -> int:
    """Bind every address once, alone: a port in use is noticed here. The port, picked by the first if 0. Raises
    CannotListen.
    """
    probes = []
    try:
        for address in addresses:
            bound = _socket(address)
            probes.append(bound)
            try:
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

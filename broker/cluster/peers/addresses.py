"""Where the peers of a cluster are: in a list, or behind a name of DNS."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Collection
from typing import Final, Protocol

__all__ = ["DNS_SECONDS", "DnsPeers", "ListedPeers", "PeerAddresses", "Resolve", "resolve"]

DNS_SECONDS: Final = 30.0
"""A name is looked up again so often; sooner when a peer was heard that it does not have."""
_ADDRESSES_MAX: Final = 256

Resolve = Callable[[str, int], Awaitable[Collection[str]]]
"""Returns the addresses ("HOST:PORT", IPv6 in brackets) of a name, with this port. Raises OSError."""


class PeerAddresses(Protocol):
    """The addresses of all peers, this one among them. `seconds`: look again after so long; 0: they do not change."""

    seconds: float

    async def look(self) -> frozenset[str]:
        """Return them. Raises OSError."""


class ListedPeers:
    """A list that does not change."""

    seconds = 0.0

    def __init__(self, addresses: Collection[str]) -> None:
        self._addresses = frozenset(addresses)

    async def look(self) -> frozenset[str]:
        """Implements PeerAddresses."""
        return self._addresses


class DnsPeers:
    """All A and AAAA records of a name, with one port."""

    seconds = DNS_SECONDS

    def __init__(self, name: str, port: int, resolve_name: Resolve | None = None) -> None:
        self._name, self._port = name, port
        self._resolve = resolve if resolve_name is None else resolve_name

    async def look(self) -> frozenset[str]:
        """Implements PeerAddresses."""
        found = sorted(await self._resolve(self._name, self._port))
        if not found:
            raise OSError(f"{self._name} has no address")
        if len(found) > _ADDRESSES_MAX:
            raise OSError(f"{self._name} has {len(found)} addresses; {_ADDRESSES_MAX} are allowed")
        return frozenset(found)


async def resolve(name: str, port: int) -> Collection[str]:
    """Return the addresses of a name, by the resolver of the system. Raises OSError.

    In a thread of its own that nobody waits for at the end: a resolver that does not answer may take half a minute.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def settle(found: list[str], error: OSError | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(found)
        else:
            answer.set_exception(error)

    def look() -> None:
        found: list[str] = []
        failed: OSError | None = None
        try:
            for family, _, _, _, address in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM):
                host = f"[{address[0]}]" if family == socket.AF_INET6 else address[0]
                found.append(f"{host}:{port}")
        except (OSError, UnicodeError) as error:
            failed = OSError(str(error))
        try:
            loop.call_soon_threadsafe(settle, found, failed)
        except RuntimeError:
            return  # the loop has ended meanwhile: nobody asks any more

    threading.Thread(target=look, name="resolver", daemon=True).start()
    return await answer

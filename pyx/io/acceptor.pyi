"""Acceptance of new connections: listening, accepting, refusing."""

from typing import final

from pyx.delivery.router_state import RouterState
from pyx.io.connections import Connections

@final
class Acceptor:
    """The listening sockets of one worker."""

    connections_max: int
    connect_ms_max: int
    def __new__(cls, state: RouterState, connections: Connections) -> Acceptor: ...
    def listen(self, fd: int, listener: int = 0) -> None:
        """Accept connections of a listening, non-blocking socket. The caller keeps it open. `listener`: number of its
        listener, recorded in each of its connections. Raise ValueError if it is not below LISTENERS_MAX.
        """
    def stop(self) -> None:
        """Stop accepting connections."""

"""New connections: listened for, accepted, refused."""

from typing import final

from pyx.delivery.router_state import RouterState
from pyx.io.connections import Connections

@final
class Acceptor:
    """What one worker listens on."""

    connections_max: int
    connect_ms_max: int
    def __new__(cls, state: RouterState, connections: Connections) -> Acceptor: ...
    def listen(self, fd: int, listener: int = 0) -> None:
        """Accept connections of a listening, non-blocking socket. The caller keeps it open. `listener`: the number of
        what is listened on, which each of its connections has from now on; ValueError: there are not so many.
        """
    def stop(self) -> None:
        """Accept nothing more."""

"""The connections of one worker, by descriptor: opening, read interest, ending."""

from typing import Final, final

from pyx.delivery.router_state import RouterState
from pyx.io.poller import Poller
from pyx.io.sources import Sources

OF_BRIDGES: Final[int]

@final
class Connections:
    """The open connections; each is watched by the poller, and has a strong reference here."""

    slice: int
    """The ns that one callback may spend on many connections: nominal work, or time."""
    @property
    def sources(self) -> Sources: ...
    def __new__(cls, state: RouterState, poller: Poller) -> Connections: ...

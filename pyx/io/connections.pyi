"""The connections of one worker, by descriptor: opened, read or not, ended."""

from typing import final

from pyx.delivery.router_state import RouterState
from pyx.io.poller import Poller
from pyx.io.sources import Sources

@final
class Connections:
    """Each has a place in the poller, and a strong reference here."""

    slice: int
    """How much one callback does that has many connections: ns of work, nominal, or of time."""
    @property
    def sources(self) -> Sources: ...
    def __new__(cls, state: RouterState, poller: Poller) -> Connections: ...

"""Base classes: a `Receiver` takes messages of a transport, a `BatchReceiver` batches of links, by calls in C."""

from typing import Any

from typing_extensions import disjoint_base

from pyx.core.rounds import RoundPart

@disjoint_base
class Receiver:
    """Takes the messages of a transport."""

    def trust(self) -> None: ...
    def may_receive(self) -> bool: ...
    def received(self, frames: list[bytes]) -> bool: ...

class BatchReceiver(RoundPart):
    """Takes the batches of all links of a worker."""

    def is_sated(self) -> bool: ...
    def is_full(self) -> bool: ...

@disjoint_base
class EventReceiver(BatchReceiver):
    """Passes batches on as events of a link."""

    def __init__(self, events: Any) -> None: ...

"""What the reactor calls in its rounds, without a call of Python."""

from typing_extensions import disjoint_base

@disjoint_base
class EventHandler:
    """The handler of a descriptor's events."""

    def __call__(self) -> None: ...

@disjoint_base
class RoundPart:
    """Takes part in each round."""

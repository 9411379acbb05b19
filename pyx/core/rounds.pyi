"""What the reactor calls in its rounds, without a call of Python."""

class EventHandler:
    """The handler of a descriptor's events."""

    def __call__(self) -> None: ...

class RoundPart:
    """Takes part in each round."""

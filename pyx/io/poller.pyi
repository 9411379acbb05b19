"""Which descriptors are ready: the face behind which a system's way of asking lies."""

class Poller:
    """What a poller must have."""

    def fileno(self) -> int: ...

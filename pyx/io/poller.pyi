"""Which descriptors are ready: the face behind which a system's way of asking lies."""

from typing_extensions import disjoint_base

@disjoint_base
class Poller:
    """What a poller must have."""

    def fileno(self) -> int: ...

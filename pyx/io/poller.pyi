"""The poller interface: reports which descriptors are ready, however the operating system is asked."""

from typing_extensions import disjoint_base

@disjoint_base
class Poller:
    """The base class of pollers."""

    def fileno(self) -> int: ...

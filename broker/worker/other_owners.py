"""The way to the hosts that may own client ids: what `broker.worker.other_hosts` does for `broker.worker.owning`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from pyx.mesh.link import Link

__all__ = ["AWAY_SECONDS_MAX", "OtherOwners"]

AWAY_SECONDS_MAX: Final = 24 * 3600.0
"""Time after which nobody waits for what a host may have that is away."""


class OtherOwners(Protocol):
    """The way to other hosts (`broker.worker.other_hosts`)."""

    @property
    def number(self) -> int:
        """The number of this host."""

    def number_of(self, node: str) -> int | None:
        """Return the number of a host that is there, or was; None: it is not known."""

    def node_of(self, number: int) -> str:
        """Return the name of a host by its number; "": it is not known."""

    def client_address_of(self, node: str) -> str:
        """Return where clients reach a host; "": it does not say, or is not there."""

    def flush(self, then: Callable[[bool], None]) -> None:
        """Call `then` when everything that was published for this host until now has arrived at this worker; False: not
        what hosts that are away may have.
        """

    def has_away(self) -> bool:
        """Whether a host is away that may have messages for this one."""

    def link_of(self, number: int) -> Link | None:
        """Return the link over which that host is told something; None: it is not linked."""

    def tell_host(self, number: int, kind: bytes, payload: bytes, *, keeps: bool) -> bool:
        """Send a message to a worker of that host. Return False if it is not linked; keeps: then it hears it when it is
        back.
        """

"""The way of replays to the archives of other hosts (`broker.replay.host_archives`), over a worker's rails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.replay.host_messages import ARCHIVE
from pyx.core.peer import host_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from broker.replay.replaying import Replaying
    from broker.worker.other_owners import OtherOwners
    from broker.worker.peering import Peering
    from broker.worker.sibling_messages import SiblingMessages
    from pyx.core.peer import Peer
    from pyx.delivery.router import Router
    from pyx.mesh.link import Link
    from zmq_mesh.rails import Host

__all__ = ["ArchiveWay"]


class ArchiveWay:
    """That of one worker. It takes the messages about archives before the other ones between hosts. hosts: returns
    those that are there now, by number.
    """

    def __init__(
        self,
        replaying: Replaying,
        messages: SiblingMessages,
        peering: Peering,
        router: Router,
        others: OtherOwners,
        hosts: Callable[[], Mapping[int, Host]],
    ) -> None:
        self._others = others
        self._hosts = hosts
        self._numbers = peering.numbers
        self._router = router
        self._archives = replaying.hosts
        self._known: dict[int, str] = {}
        """Names of hosts that are or were there, by number."""
        self._rest = messages.of_hosts
        messages.of_hosts = self._heard
        self.look = self._archives.look
        """To be called when a host is linked, or not any more."""
        self._archives.way = self

    def _heard(self, place: Peer, kind: bytes, payload: bytes) -> None:
        if kind == ARCHIVE:
            self._archives.heard_of_host(host_of(self._numbers[place]), payload)
        else:
            self._rest(place, kind, payload)

    @property
    def number(self) -> int:
        """Implements WayToHosts."""
        return self._others.number

    def known_hosts(self) -> dict[int, int]:
        """Implements WayToHosts."""
        hosts = self._hosts()
        self._known |= {number: host.node for number, host in hosts.items()}
        return {number: hosts[number].workers if number in hosts else 0 for number in self._known}

    def node_of(self, number: int) -> str:
        """Implements WayToHosts."""
        return self._known.get(number) or self._others.node_of(number)

    def link_of(self, number: int) -> Link | None:
        """Implements WayToHosts."""
        return self._others.link_of(number)

    def send(self, number: int, payload: bytes) -> None:
        """Implements WayToHosts."""
        link = self._others.link_of(number)
        if link is not None:
            self._router.peers.tell_unkept(link.peer, ARCHIVE, payload)

"""The archives of the other hosts of a cluster, as one worker knows them, and the way to their workers.

A host that is linked is asked which archive it has, again and again until it answers; one that does not is not
reachable for replays. What is said of an archive names it, so that nothing is taken of one that has begun anew
meanwhile. Without a cluster there are none.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from broker.replay.host_messages import ARCHIVE, NO_ARCHIVE, HostMessage, is_here_of, read_is_here
from pyx.core import counters as count
from pyx.core.peer import OWN_HOST, Peer, host_of, peer_of, sibling, worker_of
from pyx.protocol.reasons import MqttError

if TYPE_CHECKING:
    from broker.context.context import Context
    from pyx.mesh.link import Link

__all__ = ["BYTES_ON_THE_WAY_MAX", "HostArchive", "HostArchives", "WayToHosts"]

BYTES_ON_THE_WAY_MAX: Final = 1 << 20
"""Bytes that may wait on a link to another host when a page is read for it. The rest is for what is published."""
_SAY_AGAIN_MS: Final = 60_000
_FORMAT: Final = b"1"


class WayToHosts(Protocol):
    """The links to other hosts (`broker.worker.other_hosts`)."""

    @property
    def number(self) -> int:
        """The number of this host; 0: it is not known yet."""

    def known_hosts(self) -> dict[int, int]:
        """Return the workers of the hosts of the cluster, by their numbers: those that are there, or were; 0: it is not
        there.
        """

    def node_of(self, number: int) -> str:
        """Return the name of a host by its number; "": it is not known."""

    def link_of(self, number: int) -> Link | None:
        """Return the link over which that host is told something; None: it is not linked."""

    def send(self, number: int, payload: bytes) -> None:
        """Send a message of kind `ARCHIVE` over that link, if there is one; it may be lost."""


class HostArchive(NamedTuple):
    """The archive of a host that can be read."""

    tag: bytes
    """`broker.replay.offsets.tag_of`."""
    host: int
    workers: int

    @property
    def peers(self) -> list[Peer]:
        """The workers that have it."""
        return [peer_of(self.host, worker) for worker in range(self.workers)]


class HostArchives:
    """Those that one worker knows. tag: of the own archive; empty: there is none."""

    def __init__(self, context: Context, tag: bytes) -> None:
        self._context = context
        self._tag = tag
        self.way: WayToHosts | None = None
        """Set once, in a cluster."""
        self.when_changed: list[Callable[[], None]] = []
        """Called when an archive can be read, or cannot be read any more."""
        self.heard_kinds: dict[bytes, Callable[[HostMessage], None]] = {}
        """Handle those messages that are not handled here."""
        self.by_tag: dict[bytes, HostArchive] = {}
        """The archives that can be read."""
        self._by_host: dict[int, HostArchive | None] = {}
        """By host that has answered: its archive; None: it has none."""
        self._linked: set[int] = set()
        self._silent_until: dict[str, int] = {}
        """By log event: monotonic ms until which it is not logged again."""

    # ------------------------------------------------------------ hosts

    @property
    def is_used(self) -> bool:
        """Whether there is a cluster."""
        return self.way is not None or self._context.settings.cluster.is_on

    def name_of(self, host: int) -> str:
        """Return the name of a host, or its number."""
        return (self.way.node_of(host) if self.way is not None else "") or f"number {host}"

    @property
    def own_peers(self) -> list[Peer]:
        """The workers of this host."""
        return [sibling(worker) for worker in range(self._context.workers)]

    def own_number(self) -> int:
        """Return the number of this host in the cluster; 0: not known."""
        return self.way.number if self.way is not None else 0

    def of_host(self, host: int) -> HostArchive | None:
        """Return the archive of a host that can be read; None: it cannot, or there is none."""
        return self._by_host.get(host)

    def state_of(self, host: int) -> str:
        """Return why an archive of a host cannot be read, as the end of a sentence."""
        if self.way is None:
            return "and this host is in no cluster" if not self.is_used else "which cannot be reached yet"
        if host in self._by_host:
            return "which has another archive now"
        if host in self._linked:
            return "which does not answer: it may be of an earlier release"
        return "which cannot be reached"

    def unknown(self) -> list[int]:
        """Return the hosts whose archives are not known now: they are away, or have not answered."""
        if self.way is None:
            return []
        own = self.way.number
        return sorted(host for host in self.way.known_hosts() if host != own and host not in self._by_host)

    def look(self) -> None:
        """Find out which hosts are linked, and ask those that have not said which archive they have."""
        if self.way is None or not self.way.number:
            return
        hosts = self.way.known_hosts()
        hosts.pop(self.way.number, None)
        linked = {host for host, workers in hosts.items() if workers and self.way.link_of(host) is not None}
        lost = self._linked - linked
        self._linked = linked
        has_lost = False
        for host in lost:
            archive = self._by_host.pop(host, None)
            if archive is not None:
                has_lost = True
                self.by_tag.pop(archive.tag, None)
        for host in linked - self._by_host.keys():
            self.tell(peer_of(host, self._context.index % hosts[host]), b"i", b"")
        if has_lost:
            self._changed()

    def _changed(self) -> None:
        for call in self.when_changed:
            call()

    def _is_asked(self, message: HostMessage) -> None:
        tag = self._tag[1:] or NO_ARCHIVE
        self.tell(message.sender, b"I", is_here_of(self._context.workers), tag)

    def _is_here(self, message: HostMessage) -> None:
        host, workers = host_of(message.sender), read_is_here(message.content)
        if host not in self._linked:
            return
        tag = _FORMAT + message.tag
        if message.tag == NO_ARCHIVE:
            archive = None
        elif tag == self._tag or (tag in self.by_tag and self.by_tag[tag].host != host):
            archive = None  # a copied data directory
            if self._may_say("archive_copied"):
                self._context.log.error("archive_copied", host=self.name_of(host))
        else:
            archive = HostArchive(tag, host, workers)
        former = self._by_host.get(host)
        self._by_host[host] = archive
        if former == archive:
            return
        if former is not None:
            self.by_tag.pop(former.tag, None)
        if archive is not None:
            self.by_tag[tag] = archive
        self._changed()

    # ------------------------------------------------------------ messages

    def is_ready(self, peer: Peer) -> bool:
        """Whether that worker of another host can be asked now."""
        return self._by_host.get(host_of(peer)) is not None

    def is_linked(self, host: int) -> bool:
        """Whether a host can be told something."""
        return self.way is not None and self.way.link_of(host) is not None

    def has_room(self, host: int) -> bool:
        """Whether the link to a host has room for a page."""
        link = self.way.link_of(host) if self.way is not None else None
        return link is not None and not link.full and link.outbox_bytes <= BYTES_ON_THE_WAY_MAX

    def tell(self, peer: Peer, kind: bytes, content: bytes, tag: bytes = NO_ARCHIVE) -> None:
        """Send a message to a worker of another host; it may be lost. tag: eight digits of the archive that it is
        about.
        """
        if self.way is None or self.way.link_of(host_of(peer)) is None:
            return
        state = self._context.router.state
        own = peer_of(self.way.number, self._context.index)
        self.way.send(host_of(peer), HostMessage(kind, own, peer, tag, state.wall_ms, content).encode())

    def ask(self, peer: Peer, kind: bytes, content: bytes) -> None:
        """Send a worker of another host a message about its archive."""
        archive = self._by_host.get(host_of(peer))
        if archive is not None:
            self.tell(peer, kind, content, archive.tag[1:])

    def answer(self, peer: Peer, kind: bytes, content: bytes) -> None:
        """Send a worker of another host a message about the own archive."""
        self.tell(peer, kind, content, self._tag[1:])

    def heard_of_host(self, host: int, payload: bytes) -> None:
        """Take a message that has come over a link with this host."""
        self._guarded(host, partial(self._take, host), payload)

    def heard(self, peer: Peer, payload: bytes) -> None:
        """Take a message that a sibling passes on."""
        self._guarded(OWN_HOST, partial(self._take, OWN_HOST), payload)

    def _take(self, host: int, payload: bytes) -> None:
        message = HostMessage.decode(payload)
        context = self._context
        if host != OWN_HOST and host_of(message.sender) != host:
            raise ValueError(f"host {host} has sent a message about archives in the name of another one")
        if self.way is None or host_of(message.receiver) != self.way.number:
            raise ValueError("a message about archives is for another host")
        worker = worker_of(message.receiver)
        if worker >= context.workers or (host == OWN_HOST and worker != context.index):
            raise ValueError("a message about archives is for another worker")
        if worker != context.index:
            context.router.peers.tell_unkept(sibling(worker), ARCHIVE, payload)
        elif message.kind == b"i":
            self._is_asked(message)
        elif message.kind == b"I":
            self._is_here(message)
        else:
            self._about_an_archive(message)

    def _about_an_archive(self, message: HostMessage) -> None:
        if message.kind in b"rco":
            is_current = message.tag == self._tag[1:]
        else:
            archive = self._by_host.get(host_of(message.sender))
            is_current = archive is not None and archive.tag[1:] == message.tag
        handle = self.heard_kinds.get(message.kind)
        if is_current and handle is not None:
            handle(message)

    def _guarded(self, host: int, call: Callable[[bytes], None], payload: bytes) -> None:
        # what cannot be read concerns the host that has sent it: it asks, or is asked, again
        try:
            call(payload)
        except (ValueError, struct.error, MqttError) as error:
            self.refused(host, str(error))

    def refused(self, host: int, reason: str) -> None:
        """Count and log something that a host has said of an archive and that is not taken."""
        self._context.counters.add(count.ARCHIVE_MESSAGES_REFUSED)
        if self._may_say("archive_message_refused"):
            self._context.log.warning(
                "archive_message_refused", host=self.name_of(host) if host else None, reason=reason
            )

    def questions_refused(self, host: int) -> None:
        """Count and log a question of a host that is beyond `replays_for_hosts_max`."""
        self._context.counters.add(count.REPLAY_QUESTIONS_REFUSED)
        if self._may_say("replay_for_host_refused"):
            self._context.log.warning("replay_for_host_refused", host=self.name_of(host))

    def _may_say(self, event: str) -> bool:
        now = self._context.router.state.now_ms
        if now < self._silent_until.get(event, 0):
            return False
        self._silent_until[event] = now + _SAY_AGAIN_MS
        return True

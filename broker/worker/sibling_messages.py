"""Messages between the brokers of sibling workers (`Peers.tell`), dispatched to the part that handles them.

b"?" b"!"                retained messages               broker.clients.retaining
b"e"                     a session to end for another    broker.clients.capacity
b"h" b"m"                publishers wait, memory         here
b"d" b"w"                the disk                        broker.persistence.disk
b"r" b"R" b"b" b"s" b"c" pages of archives               broker.replay.replaying, broker.replay.sources
b"o" b"O"                where replays may begin         broker.replay.sources, broker.replay.opening
b"T" b"g" b"G" b"N" b"S" owners of client ids, and their sessions: broker.worker.owning, passed on from
b"C" b"P" b"X" b"L" b"D" other hosts
b"A"
b"F" b"f"                what other hosts have sent       broker.worker.flushing
b"v"                     archives of other hosts          broker.replay.host_archives
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from broker.context.piecework import AT_ONCE
from broker.replay.host_messages import ARCHIVE
from pyx.core import counters as count
from pyx.core.peer import Peer
from pyx.core.work import STEP, spend

if TYPE_CHECKING:
    from broker.clients.capacity import Capacity
    from broker.clients.retaining import Retaining
    from broker.context.context import Context
    from broker.persistence.disk import Disk
    from broker.replay.opening import Opening
    from broker.replay.replaying import Replaying

__all__ = ["SiblingMessages"]


class SiblingMessages:
    """The messages of one worker to its siblings, and of these to it."""

    def __init__(
        self,
        context: Context,
        retaining: Retaining,
        capacity: Capacity,
        disk: Disk,
        replaying: Replaying,
        opening: Opening,
    ) -> None:
        self._context = context
        self._router = context.router
        self._disk = disk
        self.of_hosts: Callable[[Peer, bytes, bytes], None] = lambda _peer, _kind, _payload: None
        """Handles those of other hosts."""
        self._heard: dict[bytes, Callable[[Peer, bytes], None]] = {
            b"?": retaining.asked,
            b"!": retaining.answered,
            b"e": lambda _peer, _payload: capacity.asked(),
            b"h": self._hold_changed_there,
            b"m": lambda peer, payload: self._router.back_pressure.set_memory_full(peer, payload == b"\1"),
            b"d": disk.state_received,
            b"w": disk.unwritten_received,
            b"R": replaying.answered,
            b"b": replaying.beat_received,
            b"s": replaying.progress_received,
            b"O": opening.started,
            ARCHIVE: replaying.hosts.heard,
        }
        if replaying.sources is not None:
            sources = replaying.sources
            self._heard |= {b"r": sources.asked, b"c": sources.end, b"o": sources.probed}

    def add(self, kind: bytes, heard: Callable[[Peer, bytes], None]) -> None:
        """Let this part handle another kind."""
        self._heard[kind] = heard

    def receive(self, peer: Peer, kind: bytes, payload: bytes) -> None:
        """Handle a message of a sibling. An error concerns some client, and does not end the worker."""
        heard = self._heard.get(kind)
        is_host = peer >= self._context.workers
        if heard is None and not is_host:
            return
        try:
            if is_host:
                self.of_hosts(peer, kind, payload)
            elif heard is not None:
                heard(peer, payload)
        except Exception as error:  # noqa: BLE001  the one door
            self._context.counters.add(count.INTERNAL_ERRORS)
            self._context.defect(None, error)

    def greet(self, peer: Peer) -> None:
        """Tell a sibling that is heard (again) the state that it cannot know."""
        self._context.in_pieces(self._tell_held(peer, self._router.back_pressure.held_filters()))
        if self._router.back_pressure.is_memory_full:
            self._router.peers.tell(peer, b"m", b"\1")
        self._disk.greet(peer)

    def _tell_held(self, peer: Peer, texts: list[bytes]) -> Iterator[None]:
        # changes meanwhile are sent separately
        for number, text in enumerate(texts, 1):
            spend(STEP)
            if self._router.back_pressure.holds_own(text):
                self._router.peers.tell(peer, b"h", b"\1" + text)
            if number % AT_ONCE == 0:
                yield

    def hold_changed(self, text: bytes, held: bool) -> None:
        """Make publishers that match this filter wait for a session here, or no longer: also those at siblings."""
        for peer in self._context.siblings:
            self._router.peers.tell(peer, b"h", (b"\1" if held else b"\0") + text)

    def _hold_changed_there(self, peer: Peer, payload: bytes) -> None:
        self._router.back_pressure.sibling_holds(peer, payload[1:], payload[:1] == b"\1")

    def set_memory_full(self, full: bool) -> None:
        """Set whether the worker is at worker_memory_bytes_max; siblings are told."""
        self._router.back_pressure.set_memory_full(self._context.index, full)
        for peer in self._context.siblings:
            self._router.peers.tell(peer, b"m", b"\1" if full else b"\0")

"""Retained messages of other hosts that this one has not: fetched over each rail once in a worker's life.

What is published while hosts are linked reaches all of them. What was retained before a host joined, or while it was
away and nobody kept it, it asks for: each worker asks the workers of other hosts that send to it, and these send all
retained messages whose topics they own, as if they were published again but for the subscribers. The receiver passes
each to the owner of its topic, and the number of a message decides which of two is newer, so that it does no harm if
several hosts send the same, or if it crosses with one that is published meanwhile.

    b"a"    u32     send me what you have; the number comes back with b"z"
    b"z"    u32     that was all
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyx.core import counters as count
from pyx.core.work import PACKED, spend

if TYPE_CHECKING:
    from broker.context.context import Context
    from pyx.core.peer import Peer

__all__ = ["ALL_SENT", "ASK", "RetainedExchange"]

ASK: Final = b"a"
ALL_SENT: Final = b"z"
_NUMBER: Final = struct.Struct("<I")
_PAGE: Final = 200
_PAGE_BYTES: Final = 128 << 10
_STEPS: Final = 2000
_PAUSE_SECONDS: Final = 0.01
_OUTBOX_SHARE: Final = 8
"""Retained messages fill this fraction (1 / ...) of a link's outbox: what is published meanwhile has the rest."""


class RetainedExchange:
    """Asks for and sends retained messages. Rails are named by their places."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._router = context.router
        self._retained = context.retained
        self._number = 0
        self._asked: dict[Peer, int] = {}
        """The number of the question that a rail has not answered."""
        self._has_all: set[Peer] = set()
        """Rails that have answered once."""
        self._wanted: dict[Peer, int] = {}
        """The number of the question of a rail that has not been answered completely."""
        self._begun = 0
        self._sending: dict[Peer, int] = {}
        """Which of the answers begun is that for a rail: an earlier one ends."""

    def lacks(self, place: Peer) -> bool:
        """Whether a rail may still have something that is missing here."""
        return place not in self._has_all

    def linked(self, place: Peer, *, asks: bool) -> None:
        """Go on with a rail that is there. asks: its host sends to this one over it."""
        if asks and place not in self._has_all:
            self._number += 1
            self._asked[place] = self._number
            self._router.peers.tell(place, ASK, _NUMBER.pack(self._number))
        if place in self._wanted:
            self._begin(place)

    def gone(self, place: Peer) -> None:
        """Stop answering a worker that has ended; its successor asks again."""
        self._asked.pop(place, None)
        self._wanted.pop(place, None)

    def dropped(self, place: Peer) -> None:
        """Forget a rail: another one may get its place."""
        self.gone(place)
        self._has_all.discard(place)

    def heard(self, place: Peer, kind: bytes, payload: bytes) -> None:
        """Take a message of a rail."""
        (number,) = _NUMBER.unpack(payload)
        if kind == ASK:
            self._wanted[place] = number
            if self._context.is_ready(place):
                self._begin(place)
        elif self._asked.get(place) == number:
            del self._asked[place]
            self._has_all.add(place)

    def _begin(self, place: Peer) -> None:
        self._begun += 1
        self._sending[place] = self._begun
        self._context.in_pieces(self._send(place, self._wanted[place], self._begun, None))

    def _send(self, place: Peer, number: int, begun: int, after: bytes | None) -> Iterator[None]:
        """Send pages until the link has enough of them, then go on later."""
        while self._wanted.get(place) == number and self._sending.get(place) == begun:
            if not self._context.is_ready(place):
                return  # `linked` begins again
            link = self._context.links[place]
            if link.full or link.outbox_bytes * _OUTBOX_SHARE > self._context.limits.peer_outbox_bytes_max:
                rest = self._send(place, number, begun, after)
                self._context.call_later(_PAUSE_SECONDS, partial(self._context.in_pieces, rest))
                return
            messages, after = self._page(after)
            self._router.siblings.offer_retained(place, messages)
            self._context.counters.add(count.RETAINED_OFFERED, len(messages))
            if after is None:
                del self._wanted[place], self._sending[place]
                self._router.peers.tell(place, ALL_SENT, _NUMBER.pack(number))
                return
            yield

    def _page(self, after: bytes | None) -> tuple[list[Any], bytes | None]:
        found, at = self._retained.page(b"#", after, _PAGE, _STEPS)
        spend(len(found) * PACKED)
        messages, size = [], 0
        for topic, message in found:
            messages.append(message)
            size += len(topic) + len(message.properties) + len(message.payload)
            if size > _PAGE_BYTES and len(messages) < len(found):
                return messages, topic
        return messages, at

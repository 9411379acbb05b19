"""Batches that wait for this worker's store before they are sent, counted over all of its links.

A will, and a message of a session that is stored, must not be lost with this worker: its batch is stored first, and
sent when it is durable. The clients of this worker have the message before that, and one of them may tell another
client, who subscribes at a sibling. That SUBSCRIBE is answered when every worker has acknowledged the sibling's
interest; if this worker did so before the batch left, the subscriber would get the message neither live, for it was
published before, nor as a retained message, for the owner of its topic does not have it yet. So an acknowledgement of
interest waits for the batches that were held when the interest arrived (`zmq_mesh.incoming`).
"""

from __future__ import annotations

__all__ = ["Held"]


class Held:
    """The held batches of one worker, numbered in the order in which they began to wait."""

    def __init__(self) -> None:
        self.latest = 0
        """Number of the batch that began last."""
        self.awaited = False
        """Whether an acknowledgement of interest may wait for one of them."""
        self._waiting: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self) -> int:
        """Count one more; return its number."""
        self.latest += 1
        self._waiting[self.latest] = None
        return self.latest

    def end(self, number: int) -> None:
        """Note that this one is stored."""
        del self._waiting[number]

    def are_over(self, number: int) -> bool:
        """Whether all batches up to this number are stored."""
        return not self._waiting or next(iter(self._waiting)) > number

"""A network cable with a length: forwards Ethernet frames between two tap interfaces, each after the same time.

    python -m tests.cluster.delay_line DESCRIPTOR DESCRIPTOR MILLISECONDS

Both descriptors are taps (IFF_TAP, IFF_NO_PI). It ends when its standard input does. The kernels of the test machines
lack netem.
"""

from __future__ import annotations

import collections
import os
import select
import sys
import time
from typing import Final

__all__ = ["FRAME_BYTES_MAX", "QUEUE_BYTES_MAX", "run"]

FRAME_BYTES_MAX: Final = 2048
QUEUE_BYTES_MAX: Final = 64 << 20
"""What may be on the way in one direction; what comes beyond it is lost, as in a router."""
_FRAMES = 64


class _Direction:
    def __init__(self, taken: int, given: int, seconds: float) -> None:
        self._taken, self._given, self._seconds = taken, given, seconds
        self._frames: collections.deque[tuple[float, bytes]] = collections.deque()
        self._bytes = 0

    def take(self) -> None:
        """Take what the interface has, a bounded number of frames."""
        for _ in range(_FRAMES):
            try:
                frame = os.read(self._taken, FRAME_BYTES_MAX)
            except BlockingIOError:
                return
            if self._bytes + len(frame) <= QUEUE_BYTES_MAX:
                self._frames.append((time.monotonic() + self._seconds, frame))
                self._bytes += len(frame)

    def give(self) -> float:
        """Give the other interface what is due. Return the seconds until the next frame is, infinity without one."""
        while self._frames:
            due, frame = self._frames[0]
            left = due - time.monotonic()
            if left > 0:
                return left
            try:
                os.write(self._given, frame)
            except BlockingIOError:
                return 0.001
            self._frames.popleft()
            self._bytes -= len(frame)
        return float("inf")


def run(one: int, other: int, seconds: float, until: int) -> None:
    """Forward between two descriptors of taps until a third one is readable."""
    directions = {one: _Direction(one, other, seconds), other: _Direction(other, one, seconds)}
    for tap in directions:
        os.set_blocking(tap, False)
    poll = select.epoll()
    for descriptor in (*directions, until):
        poll.register(descriptor, select.EPOLLIN)
    while True:
        wait = min(direction.give() for direction in directions.values())
        for descriptor, _ in poll.poll(-1 if wait == float("inf") else wait):
            if descriptor == until:
                return
            directions[descriptor].take()


if __name__ == "__main__":
    run(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) / 1000, sys.stdin.fileno())

"""Network between clients and workers, and between workers: delay, loss with a connection, and closing. No sockets.

Channel   one direction between two workers, as ZeroMQ's PUSH to PULL over ipc: whole messages in order, a high-water
          mark, refusal while the other process is down, and loss of messages in transit when the connection breaks.
Line      one TCP connection between a client and the worker that has its descriptor: bytes in order both ways, a
          limit to the unread bytes that the client's side of the kernel accepts.

"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyx.delivery.connection import Connection
    from tests.simulation.clients import Client
    from tests.simulation.clock import Clock
    from tests.simulation.workers import Worker


class Channel:
    """Messages of one worker to another. Batches of different links overtake each other; those of one link do not."""

    def __init__(self, clock: Clock, source: Worker, target: Worker, high_water: int) -> None:
        self._clock = clock
        self.source = source
        self.target = target
        self._high_water = high_water
        self._flying: deque[list[bytes]] = deque()
        self._last_arrival = 0.0
        self._life = 0
        self.waiting = 0
        """Number of messages that the target's process has not read."""
        self.delay = 0.0003
        self.cut = False
        self.connected = True
        self.refused = False

    def send(self, frames: list[Any]) -> bool:
        """Accept one message; return False if the transport cannot now."""
        if (
            self.cut
            or not self.connected
            or not self.target.alive
            or len(self._flying) + self.waiting >= self._high_water
        ):
            self.refused = True
            return False
        clock = self._clock
        self._flying.append([bytes(frame) for frame in frames])
        self._last_arrival = max(self._last_arrival, clock.now + clock.between(0.2, 1.8) * self.delay)
        life = self._life
        clock.at(self._last_arrival, lambda: self._arrive(life))
        return True

    def _arrive(self, life: int) -> None:
        if life == self._life and self._flying:
            frames = self._flying.popleft()
            if self.target.alive:
                self.waiting += 1
                self.target.mesh_input(self.source.index, frames)

    def taken(self) -> None:
        """Handle a message read by the target."""
        self.waiting = max(0, self.waiting - 1)
        self.room()

    def room(self) -> None:
        """Tell the sender that the transport accepts messages again."""
        if self.refused and not self.cut and self.connected:
            self.refused = False
            self.source.writable(self.target.index)

    def lose(self) -> None:
        """Break the connection: messages in transit are lost."""
        self._flying.clear()
        self._life += 1

    def break_off(self, seconds: float) -> None:
        """Have no connection for this long."""
        self.cut = True
        self.lose()
        self._clock.after(seconds, self._heal)

    def _heal(self) -> None:
        self.cut = False
        self.room()

    def target_died(self) -> None:
        """Handle the death of the target's process; the transport finds its successor after its back-off."""
        self.lose()
        self.waiting = 0
        self.connected = False

    def target_started(self) -> None:
        """Handle the start of the successor, which listens now."""
        self._clock.after(self._clock.between(0.05, 0.5), self.reconnect)

    def reconnect(self) -> None:
        """Connect now instead of after the back-off."""
        if self.target.alive:
            self.connected = True
            self.room()


class Line:
    """One connection of a client."""

    def __init__(self, clock: Clock, client: Client, number: int, delay: float, client_buffer: int) -> None:
        self._clock = clock
        self.client = client
        self.number = number
        self.worker: Worker | None = None
        self.conn: Connection | None = None
        self.delay = delay
        self._client_buffer = client_buffer
        self._up_at = self._down_at = 0.0
        self._flying_down = 0
        self._lose_up = self._lose_down = False
        self.up = bytearray()
        """Bytes that arrived at the worker, unread."""
        self.down = bytearray()
        """Bytes that arrived at the client, unread."""
        self.up_ended = False
        self.up_reset = False
        self.down_ended = False
        self.closed_by_client = False
        self.closed_by_worker = False
        self.want_write = False
        self.opened_at = clock.now

    # ------------------------------------------------------------ the client's end

    def send(self, data: bytes) -> None:
        """Send bytes from the client."""
        if not self.closed_by_client:
            self._fly_up(lambda: self._arrive_up(data))

    def close(self, reset: bool = False) -> None:
        """Close from the client; `reset`: its network fails, and bytes in transit may be lost."""
        if self.closed_by_client:
            return
        self.closed_by_client = True
        if reset:
            self._lose_up = self._clock.chance(0.5)
            self._lose_down = True
        self._fly_up(lambda: self._end_up(reset))

    def read(self) -> bytes:
        """Return all bytes that the client can read."""
        data = bytes(self.down)
        self.down.clear()
        if self.want_write and self.worker is not None:
            self.worker.line_writable(self)
        return data

    def _fly_up(self, arrive: Callable[[], None]) -> None:
        clock = self._clock
        self._up_at = max(self._up_at, clock.now + clock.between(0.2, 1.8) * self.delay)
        clock.at(self._up_at, arrive)

    def _arrive_up(self, data: bytes) -> None:
        if not self._lose_up and not self.closed_by_worker:
            self.up += data
            self._wake()

    def _end_up(self, reset: bool) -> None:
        self.up_ended = True
        self.up_reset = reset
        self._wake()

    def _wake(self) -> None:
        if self.worker is not None:
            self.worker.line_readable(self)

    # ------------------------------------------------------------ the worker's end

    @property
    def full(self) -> bool:
        """Whether the kernel accepts no more bytes for this client."""
        return self._flying_down + len(self.down) > self._client_buffer

    def send_down(self, data: bytes) -> None:
        """Send bytes from the worker."""
        self._flying_down += len(data)
        self._fly_down(lambda: self._arrive_down(data))

    def end_down(self, reset: bool = False) -> None:
        """Close from the worker, or because its process died: then bytes in transit may be lost."""
        if not self.closed_by_worker:
            self.closed_by_worker = True
            self.up.clear()
            self.worker = None
            if reset:
                self._lose_down = self._lose_down or self._clock.chance(0.5)
            self._fly_down(self._end_down)

    def _fly_down(self, arrive: Callable[[], None]) -> None:
        clock = self._clock
        self._down_at = max(self._down_at, clock.now + clock.between(0.2, 1.8) * self.delay)
        clock.at(self._down_at, arrive)

    def _arrive_down(self, data: bytes) -> None:
        self._flying_down -= len(data)
        if not self._lose_down and not self.closed_by_client:
            self.down += data
            self.client.line_readable(self)

    def _end_down(self) -> None:
        self.down_ended = True
        self.client.line_readable(self)

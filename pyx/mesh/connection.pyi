"""One ZMTP connection over a connected, non-blocking socket in the worker's own poller."""

from collections.abc import Callable
from typing import Any, final

from pyx.core.rounds import EventHandler
from pyx.mesh.contract import Watcher
from pyx.mesh.receiver import Receiver

@final
class ReceiveBuffer:
    """The memory that the connections of one worker receive into, one after the other."""

@final
class ZmtpConnection(EventHandler):
    """A connection over `fd`, which it owns."""

    def __new__(
        cls,
        fd: int,
        own_type: bytes,
        peer_type: bytes,
        buffer: ReceiveBuffer,
        watcher: Watcher,
        receiver: Receiver | None,
        when_ready: Callable[[], object],
        when_sent: Callable[[], object],
        when_lost: Callable[[str, bool], object],
    ) -> ZmtpConnection: ...
    @property
    def fd(self) -> int: ...
    @property
    def is_ready(self) -> bool: ...
    @property
    def pending(self) -> int: ...
    @property
    def pongs(self) -> int: ...
    def message(self, frames: list[Any]) -> None: ...
    def ping(self, ttl_tenths: int = 0) -> None: ...
    def flush(self) -> None: ...
    def go_on(self) -> None: ...
    def tick(self, now_ms: int) -> None: ...
    def close(self) -> None: ...

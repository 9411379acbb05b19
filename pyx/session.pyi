"""One session: its windows, the QoS 1 and 2 handshakes in both directions, what waits for it."""

from typing import Any, final

from pyx.connection import Connection

@final
class Session:
    """One client's session [MQTT-4.1]."""

    client_id: str
    connection: Connection | None
    inflight_max: int
    version: int
    durable: bool
    details: Any
    def __new__(cls, client_id: str, version: int = 4) -> Session: ...
    def watch(self) -> None: ...
    def ask_again(self) -> None: ...
    def unwatch(self) -> None: ...
    @property
    def subscriptions(self) -> int: ...
    @property
    def unacknowledged(self) -> int: ...
    @property
    def queued(self) -> int: ...
    @property
    def is_behind(self) -> bool: ...
    @property
    def is_watching(self) -> bool: ...

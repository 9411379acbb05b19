from collections.abc import Sequence
from typing import final

from pyx.loadgen.sockets import Sockets

@final
class Crowd(Sockets):
    def __new__(
        cls,
        row: memoryview,
        delivered: memoryview,
        deliveries: memoryview,
        sent: memoryview,
        topics: Sequence[bytes],
        payloads: Sequence[int | bytes],
        *,
        pairs: bool,
        group: bool,
        strict: bool,
        version: int,
        qos: int,
        window: int,
        lag: int,
        copies: int,
    ) -> Crowd: ...
    def add(self, fd: int, hello: bytes, number: int = ..., publisher: int = ..., transport: object = ...) -> None: ...
    def start(self, at_ns: int, rate: float = 0.0, first: float = 0.0, gap_ns: int = 0) -> None: ...
    def stop(self) -> None: ...
    @property
    def unanswered(self) -> int: ...
    def run(self, until_ns: int) -> None: ...
    def ping(self, quiet_ns: int) -> None: ...
    def leave(self) -> None: ...
    def count_tails(self) -> None: ...

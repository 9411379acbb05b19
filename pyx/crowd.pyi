from collections.abc import Sequence
from typing import final

from pyx.ledger import Ledger

@final
class Crowd(Ledger):
    said: list[str]
    def __new__(
        cls,
        row: memoryview,
        delivered: memoryview,
        deliveries: memoryview,
        sent: memoryview,
        topics: Sequence[bytes],
        sizes: Sequence[int],
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
    def add(self, fd: int, hello: bytes, number: int = ..., publisher: int = ...) -> None: ...
    def start(self, at_ns: int, rate: float = 0.0, first: float = 0.0) -> None: ...
    def stop(self) -> None: ...
    @property
    def unanswered(self) -> int: ...
    def run(self, until_ns: int) -> None: ...
    def ping(self) -> None: ...
    def leave(self) -> None: ...
    def count_tails(self) -> None: ...

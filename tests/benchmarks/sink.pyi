from pyx.loadgen.sockets import Sockets

class Sink(Sockets):
    def __new__(
        cls,
        row: memoryview,
        delivered: memoryview,
        deliveries: memoryview,
        sent: memoryview,
        topics: list[bytes],
        payloads: list[int | bytes],
        *,
        pairs: bool,
        group: bool,
        strict: bool,
    ) -> Sink: ...
    def accept(self, fd: int) -> None: ...
    def run(self, until_ns: int) -> None: ...
    @property
    def received(self) -> int: ...

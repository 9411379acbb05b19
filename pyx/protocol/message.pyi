"""A publish held once per worker and shared by reference by every queue, window and outbox that needs it."""

from typing import final

@final
class Message:
    """One publish. ``memoryview(message)`` gives the payload without a copy and keeps the message alive."""

    @property
    def payload(self) -> memoryview: ...
    @property
    def topic(self) -> bytes: ...
    @property
    def properties(self) -> bytes: ...
    @property
    def qos(self) -> int: ...
    @property
    def retain(self) -> bool: ...
    @property
    def number(self) -> int: ...
    @property
    def expires(self) -> int: ...
    @property
    def publisher(self) -> str | None: ...
    @staticmethod
    def create(
        topic: bytes,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: bytes = b"",
        number: int = 0,
        expires: int = 0,
        expiry_offset: int = -1,
        publisher: str | None = None,
    ) -> Message: ...

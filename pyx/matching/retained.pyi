"""Retained messages [MQTT-3.3.1.3]: topic -> (number, message), found by a Topic Filter in pages."""

import builtins
from typing import Any, final

@final
class Retained:
    """The retained messages of the topics this worker owns. Messages are any objects."""

    @property
    def count(self) -> int:
        """Number of topics that have a message."""

    @property
    def spent(self) -> int:
        """Number of steps that all calls of `page` have taken."""

    @property
    def bytes(self) -> int:
        """Size of the structure (entries, topics, table), without the messages."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def set(self, topic: builtins.bytes, number: int, message: Any) -> bool:
        """Store this message for the topic; False: the topic has, or was cleared by, the same or a higher number.

        Raises ValueError for a topic that is not 1 to 65535 bytes long, MemoryError.
        """

    def clear(self, topic: builtins.bytes, number: int) -> bool:
        """Remove the message up to this number; False: the topic has, or was cleared by, the same or a higher one.

        Remembered among the last 4096 clears (and 1 MB of their topics), so that an older message that arrives late
        is not stored.
        """

    def remove(self, topic: builtins.bytes, message: Any) -> bool:
        """Remove the topic's message if it is this one, because it has expired. Unlike a clear it is not remembered."""

    def get(self, topic: builtins.bytes) -> Any:
        """Return the message of a topic, or None."""

    def number(self, topic: builtins.bytes) -> int:
        """Return the number of a topic's message, or of its remembered clear; 0 when there is neither."""

    def match(
        self, filter_: builtins.bytes, after: builtins.bytes | None, limit: int
    ) -> list[tuple[builtins.bytes, Any]]:
        """Return at most `limit` (topic, message) of matching topics behind `after` (None: from the first).

        In the order of the topics' levels. Fewer than `limit` means that there are no more.
        """

    def page(
        self, filter_: builtins.bytes, after: builtins.bytes | None, limit: int, steps: int
    ) -> tuple[list[tuple[builtins.bytes, Any]], builtins.bytes | None]:
        """Do the same in about `steps` steps at most (a topic each): (list, `after` of the next call or None)."""

"""Retained messages [MQTT-3.3.1.3]: topic -> (number, message), found by a Topic Filter in pages."""

import builtins
from typing import Any, final

@final
class Retained:
    """The retained messages of the topics this worker owns. Messages are any objects."""

    @property
    def count(self) -> int:
        """Topics that have a message."""

    @property
    def spent(self) -> int:
        """Steps that `page` has taken, all together."""

    @property
    def bytes(self) -> int:
        """Of the structure (entries, topics, table), without the messages."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def set(self, topic: builtins.bytes, number: int, message: Any) -> bool:
        """Keep this message for the topic. False: there is, or was cleared, one with the same or a higher number.

        Raises ValueError for a topic that is not 1 to 65535 bytes long, MemoryError.
        """

    def clear(self, topic: builtins.bytes, number: int) -> bool:
        """No message from this number on. False: it has, or was cleared by, the same number or a higher one.

        Remembered among the last 4096 clears (and 1 MB of their topics), so that an older message that comes late
        stays away.
        """

    def remove(self, topic: builtins.bytes, message: Any) -> bool:
        """Forget the topic's message if it is this one: it has expired. Other than a clear it is not remembered."""

    def get(self, topic: builtins.bytes) -> Any:
        """The message of a topic, or None."""

    def number(self, topic: builtins.bytes) -> int:
        """The number of a topic's message, or of its remembered clear; 0 when there is neither."""

    def match(
        self, filter_: builtins.bytes, after: builtins.bytes | None, limit: int
    ) -> list[tuple[builtins.bytes, Any]]:
        """At most `limit` (topic, message) of the topics behind `after` (None: from the first) that the filter matches.

        In the order of the topics' levels. Fewer than `limit` means that there are no more.
        """

    def page(
        self, filter_: builtins.bytes, after: builtins.bytes | None, limit: int, steps: int
    ) -> tuple[list[tuple[builtins.bytes, Any]], builtins.bytes | None]:
        """The same in about `steps` steps at most (a topic each): (list, `after` of the next call or None)."""

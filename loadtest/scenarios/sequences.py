"""Detection of a publisher's missing messages, by numbers that it puts into them.

Messages of one publisher on one topic arrive in the order in which they were published [MQTT-4.6.0-6]: skipped numbers
are lost, and a number below a later one is a duplicate.
"""

from __future__ import annotations

import struct
from typing import Final

_HEAD: Final = struct.Struct("<Q")
HEAD_BYTES: Final = _HEAD.size


def head(sequence: int) -> bytes:
    """Return the beginning of a message's content. It rises by one from each message of a topic to the next."""
    return _HEAD.pack(sequence)


def parsed(content: bytes) -> int:
    """Return the sequence number of a content. ValueError: it has none."""
    if len(content) < HEAD_BYTES:
        raise ValueError(f"{len(content)} bytes have no sequence number")
    return int(_HEAD.unpack_from(content)[0])


class Sequences:
    """The sequences that one subscriber has heard, by topic. A topic begins with its first message, and with each 0."""

    def __init__(self) -> None:
        self.next: dict[str, int] = {}
        """Topic -> the expected number."""

    def heard(self, topic: str, content: bytes, is_repeated: bool = False) -> int:
        """Return how many were lost before this one; -1: a duplicate. ValueError: see `parsed`. is_repeated: DUP."""
        sequence = parsed(content)
        expected = self.next.get(topic, sequence) if sequence or is_repeated else 0
        if sequence < expected:
            return -1
        self.next[topic] = sequence + 1
        return sequence - expected

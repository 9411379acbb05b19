"""Which of a publisher's messages did not come, told from numbers that it puts into them.

Messages of one publisher on one topic come in the order in which they were published [MQTT-4.6.0-6]: what is skipped is
lost, and what comes after a later one has come before.
"""

from __future__ import annotations

import struct
from typing import Final

_HEAD: Final = struct.Struct("<Q")
HEAD_BYTES: Final = _HEAD.size


def head(sequence: int) -> bytes:
    """What stands first in the content of a message. It rises by one from each message of a topic to the next."""
    return _HEAD.pack(sequence)


def parsed(content: bytes) -> int:
    """The sequence number again. ValueError: it has none."""
    if len(content) < HEAD_BYTES:
        raise ValueError(f"{len(content)} bytes have no sequence number")
    return int(_HEAD.unpack_from(content)[0])


class Sequences:
    """What one subscriber has heard on each topic. It begins with whatever comes first, and anew with each 0."""

    def __init__(self) -> None:
        self.next: dict[str, int] = {}
        """Topic -> the number that is to come."""

    def heard(self, topic: str, content: bytes, is_repeated: bool = False) -> int:
        """How many were lost before this one; -1: it was there already. ValueError: see `parsed`. is_repeated: DUP."""
        sequence = parsed(content)
        expected = self.next.get(topic, sequence) if sequence or is_repeated else 0
        if sequence < expected:
            return -1
        self.next[topic] = sequence + 1
        return sequence - expected

"""Carries retained messages to their new owners; hand-off logs may have newer ones than the former owner."""

from __future__ import annotations

from collections.abc import Sequence

from broker.repartition.new_store import Moved, NewStore
from broker.repartition.old_store import OldStore, OldStores
from leveldb_store.format import schema
from pyx.core.placement import owner

__all__ = ["OldRetained"]


class OldRetained:
    """The retained messages of all old workers."""

    def __init__(self, old: OldStores, new: Sequence[NewStore], moved: Moved) -> None:
        self._old = old
        self._new = new
        self._moved = moved
        self._handed_on: dict[bytes, schema.StoredMessage] = {}
        """Messages of hand-off logs for their owners; an empty payload: the retained message is deleted."""

    def copy(self, source: OldStore) -> None:
        """Copy those of an old worker, except where a hand-off log has a newer one."""
        for key, value in self._old.scan(source, schema.RETAINED):
            topic = key[1:]
            message, _ = schema.decode_message(value)
            newer = self._handed_on.get(topic)
            if newer is not None and newer.number >= message.number:
                continue
            self._handed_on.pop(topic, None)
            self._new[owner(topic, len(self._new))].put(key, value)
            self._moved.retained += 1

    def finish(self) -> None:
        """Write those of hand-off logs."""
        for topic, message in self._handed_on.items():
            if message.payload:
                target = self._new[owner(topic, len(self._new))]
                target.put(schema.retained_key(topic), schema.encode_message(message))
                self._moved.retained += 1

    def hand_on(self, message: schema.StoredMessage) -> None:
        """Take a message of a hand-off log for the owner of its topic."""
        known = self._handed_on.get(message.topic)
        if known is None or known.number < message.number:
            self._handed_on[message.topic] = message

"""Carries sessions over with all their state: subscriptions, replays, windows, messages of their own, and wills.

Their positions are moved with the log (`broker.repartition.logs`).
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.repartition.new_store import Moved, NewStore
from broker.repartition.old_store import SHARED, OldStore, OldStores
from leveldb_store.format import schema, windows
from leveldb_store.format.replay_schema import split_replay
from leveldb_store.format.subscription_schema import decode_owed, decode_subscription, encode_subscription
from shards.placement import home

__all__ = ["OldSessions"]


class OldSessions:
    """The sessions of all old workers."""

    def __init__(self, old: OldStores, new: Sequence[NewStore], moved: Moved) -> None:
        self._old = old
        self._new = new
        self._moved = moved

    def copy(self, source: OldStore) -> None:
        """Copy the sessions of one old worker."""
        self._sessions(source)
        self._replays(source)
        self._windows(source)
        self._queued(source)
        self._wills(source)
        self._carry_set_aside(source)
        self._messages(source)

    def _sessions(self, source: OldStore) -> None:
        for key, value in self._old.scan(source, schema.SESSION):
            self._new[source.target_of[key[1:].decode()]].put(key, value)
            self._moved.sessions += 1
        for key, value in self._old.scan(source, schema.SUBSCRIPTION):
            client_id, named = schema.split_subscription(key)
            index = self._old.target_of(source, client_id, key, value)
            if index is None:
                continue
            options, identifier, since, formers = decode_subscription(value)
            target = self._new[index]
            if not named.startswith(SHARED):
                place = target.segments[source.index].place
                since, formers = place(since), [(was, place(begin), place(end)) for was, begin, end in formers]
            owed = [topic for _, topic in decode_owed(value)]
            if owed:  # topics have new owners: start again at the first topic not sent, some are sent a second time
                owed = [min(owed, key=lambda topic: topic.split(b"/"))] * len(self._new)
            target.put(key, encode_subscription(options, identifier, since, formers, list(enumerate(owed))))
            self._moved.subscriptions += 1

    def _replays(self, source: OldStore) -> None:
        # positions are message numbers, which do not depend on the number of workers
        for key, value in self._old.scan(source, schema.REPLAY):
            index = self._old.target_of(source, split_replay(key)[0], key, value)
            if index is not None:
                self._new[index].put(key, value)
                self._moved.subscriptions += 1

    def _windows(self, source: OldStore) -> None:
        left = dict(source.target_of)
        for key, value in self._old.scan(source, schema.WINDOW):
            client_id = key[1:].decode()
            left.pop(client_id, None)
            index = self._old.target_of(source, client_id, key, value)
            if index is not None:
                window = windows.decode_window(value, source.pages.get(client_id, ()))
                self._put_window(source, self._new[index], key, window)
        for key, value in self._old.scan(source, schema.WINDOW_PAGE):
            self._old.target_of(source, windows.split_page(key)[0], key, value)
        # a session without a window was sent nothing; what is before its segment was not for it either
        for client_id, index in left.items():
            self._put_window(source, self._new[index], schema.window_key(client_id), windows.NEVER_SENT)

    def _put_window(self, source: OldStore, target: NewStore, key: bytes, window: windows.Window) -> None:
        segment = target.segments[source.index]
        place, end = segment.place, segment.end
        out = [
            (packet_id, flags, state, at if flags & schema.OWN_RECORD else segment.place_of_message(at))
            for packet_id, flags, state, at in window.out
        ]
        holes = [(place(behind), min(place(up_to), end)) for behind, up_to in window.holes]
        holes = [(behind, up_to) for behind, up_to in holes if behind < up_to]
        if end < target.end:
            holes.append((end, target.end))
        absences = [(place(behind), place(up_to)) for behind, up_to in window.absences]
        window = window._replace(out=out, cursor=place(window.cursor), holes=holes, absences=absences)
        target.put(key, windows.encode_window(window))

    def _queued(self, source: OldStore) -> None:
        for key, value in self._old.scan(source, schema.QUEUED):
            index = self._old.target_of(source, schema.split_queued(key)[0], key, value)
            if index is not None:
                self._new[index].put(key, value)
                self._moved.queued += 1
                source.waits_there(index, value)

    def _carry_set_aside(self, source: OldStore) -> None:
        index = source.index % len(self._new)
        for key, value in self._old.scan(source, schema.SET_ASIDE):
            self._new[index].put(key, value)
            self._moved.set_aside += 1
            if key.startswith(schema.SET_ASIDE + schema.QUEUED):
                source.waits_there(index, value)

    def _messages(self, source: OldStore) -> None:
        for key, value in self._old.scan(source, schema.MESSAGE):
            for index in source.waiting.get(schema.key_position(key), ()):
                self._new[index].put(key, value)

    def _wills(self, source: OldStore) -> None:
        for key, value in self._old.scan(source, schema.WILL):
            self._new[home(key[1:].decode(), len(self._new))].put(key, value)
            self._moved.wills += 1

"""Storing the positions of one worker's replays (family O, `leveldb_store.format.replay_schema`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveldb_store.format.replay_schema import encode_replay, replay_key

if TYPE_CHECKING:
    from broker.context.context import Context
    from broker.persistence.state_records import StateRecords
    from broker.replay.reading import Replay

__all__ = ["Noting"]

_LAG_SECONDS: Final = 0.1
_NOTED_AT_ONCE: Final = 256
_NOTED_APART: Final = 10_000_000 << 8
"""A position newer than the stored one by this much (ten seconds) is stored without a delivery."""


class Noting:
    """Stores positions. tag: of this host's archive."""

    def __init__(self, context: Context, state_records: StateRecords, tag: bytes) -> None:
        self._context = context
        self._router = context.router
        self._state_records = state_records
        self._tag = tag
        self._due: set[Replay] = set()
        self._lags = False

    def forget(self, replay: Replay) -> None:
        """Store nothing more of a replay that has ended."""
        self._due.discard(replay)

    def now(self, replay: Replay) -> None:
        """Store the position, with the other records of this tick."""
        session = replay.session
        if replay.is_dirty and not session.queued:
            replay.emptied()
        replay.is_dirty = False
        replay.noted = replay.reached()
        self._due.discard(replay)
        if self._state_records.stores(session):
            key = replay_key(session.client_id, replay.text)
            self._router.journal.put_record(key, encode_replay(replay.record(self._tag)), waited=False)

    def keep(self, replay: Replay) -> None:
        """Store a new replay: the SUBACK waits for its record."""
        session = replay.session
        if self._state_records.stores(session):
            self._router.journal.put_record(
                replay_key(session.client_id, replay.text), encode_replay(replay.record(self._tag))
            )

    def later(self, replay: Replay) -> None:
        """Store the position a little later, when its messages have been sent."""
        if not self._state_records.stores(replay.session):
            return
        self._due.add(replay)
        if not self._lags:
            self._lags = True
            self._context.call_later(_LAG_SECONDS, self._all)

    def _all(self) -> None:
        self._lags = False
        for replay in list(self._due)[:_NOTED_AT_ONCE]:
            self.now(replay)
        if self._due:
            self._lags = True
            self._context.call_later(_LAG_SECONDS, self._all)

    def progress(self, replay: Replay) -> None:
        """Store a position that has advanced without a delivery: a restart must not begin with a much older one."""
        session, merge = replay.session, replay.merge
        if merge.position < replay.noted + _NOTED_APART or session.queued or not session.durable:
            return
        replay.emptied()
        replay.noted = merge.position
        self.later(replay)

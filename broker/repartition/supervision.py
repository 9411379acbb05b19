"""The supervisor's part of a repartition: it finds a data directory made for another number of workers.

The work (`broker.repartition.stores`) runs in a process of its own, because LevelDB starts a thread, which would not
survive the fork of the workers from this process. The operator sees a line that is updated on a terminal, and log lines
otherwise.

A repartition is also refused when the disk would have no room for the reserves of the new stores
(`leveldb_store.engine.disk_reserve`): they would take no message, and a compaction could fill the disk with no way to
recover.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.repartition.progress import StartProgress
from leveldb_store.engine.disk_reserve import DiskReserve
from shards.child_process import ChildFailed, run_in_child

if TYPE_CHECKING:
    from broker.config.leveldb import LevelDB
    from broker.logs import Log
    from shards.data_dir import StoreChange

__all__ = ["Refused", "Repartitioning"]

_STAT_BLOCK_BYTES = 512


class Refused(Exception):
    """The repartition is impossible, and nothing was changed. The text is one line."""


class Repartitioning:
    """Callback of `shards.data_dir.DataDir`."""

    def __init__(self, log: Log, settings: LevelDB, strict: bool = False) -> None:
        self._log = log
        self._settings = settings
        self._is_strict = strict

    def __call__(self, change: StoreChange) -> None:
        """Fill the new stores. Raises Refused."""
        before, after = len(change.old), len(change.new)
        self._log.info("repartition_begins", workers_before=before, workers=after)
        from broker.repartition.old_store import RepartitionError  # needs LevelDB

        try:
            run_in_child(lambda: _work(change, self._settings, self._log, self._is_strict), RepartitionError)
        except ChildFailed as error:
            raise Refused(
                f"the stores of {before} workers cannot be repartitioned for {after}: {error}; they are unchanged: "
                f"start with --workers {before}, or with another --data-dir"
            ) from None
        except KeyboardInterrupt:
            raise Refused(f"interrupted; the stores of {before} workers are unchanged") from None


def _work(change: StoreChange, settings: LevelDB, log: Log, strict: bool) -> None:
    from broker.repartition.stores import repartition  # needs LevelDB

    progress = StartProgress(f"mqttd: stores of {len(change.old)} workers for {len(change.new)}", "repartitioning", log)
    moved = repartition(
        change.old,
        change.new,
        change.old_epoch,
        change.epoch,
        progress,
        lambda line: log.warning("store", message=line),
        strict,
    )
    _check_room(change, settings)
    progress.end()
    log.info(
        "repartitioned",
        workers_before=len(change.old),
        workers=len(change.new),
        sessions=moved.sessions,
        subscriptions=moved.subscriptions,
        retained=moved.retained,
        wills=moved.wills,
        queued=moved.queued,
        blocks=moved.blocks,
        archived=moved.archived,
        handed_on=moved.handed_on,
        events=moved.events,
        set_aside=moved.set_aside,
        bytes=moved.bytes,
        seconds=progress.seconds(),
    )


def _check_room(change: StoreChange, settings: LevelDB) -> None:
    # counts the room after the old stores are removed
    from broker.repartition.old_store import RepartitionError  # needs LevelDB

    room = DiskReserve(change.new[0], *settings.sizes(change.new[0], len(change.new)))
    wanted = len(change.new) * room.wanted()
    given_back = sum(file.stat().st_blocks for path in change.old for file in path.iterdir()) * _STAT_BLOCK_BYTES
    there = room.free() + given_back
    if there < wanted:
        raise RepartitionError(
            f"the disk would have {there >> 20} MB of room left, but the new stores need {wanted >> 20} MB"
        )

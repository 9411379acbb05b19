"""The supervisor's part of an upgrade: it finds a data directory whose stores may be those of an earlier release.

The work (`leveldb_store.upgrade`) runs in a process of its own, because LevelDB starts a thread, which would not
survive the fork of the workers from this process. A directory marked with the present schema version is not examined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.repartition.progress import StartProgress
from shards.child_process import ChildFailed, run_in_child

if TYPE_CHECKING:
    from broker.logs import Log
    from shards.data_dir import StoreChange

__all__ = ["UpgradeRefused", "Upgrading"]


class UpgradeRefused(Exception):
    """The upgrade is impossible, and nothing was changed. The text is one line."""


class Upgrading:
    """Callback of `shards.data_dir.DataDir`."""

    def __init__(self, log: Log, strict: bool = False) -> None:
        self._log = log
        self._is_strict = strict

    def __call__(self, change: StoreChange) -> bool:
        """Fill the new stores, if any of the old ones is older than this release's. Raises UpgradeRefused."""
        from leveldb_store.upgrade import UpgradeError  # needs LevelDB

        try:
            run_in_child(lambda: _work(change, self._log, self._is_strict), UpgradeError)
        except ChildFailed as error:
            raise UpgradeRefused(f"{error}; the stores are unchanged") from None
        except KeyboardInterrupt:
            raise UpgradeRefused("interrupted; the stores are unchanged") from None
        return any(any(path.iterdir()) for path in change.new)


def _work(change: StoreChange, log: Log, strict: bool) -> None:
    from leveldb_store.format import schema
    from leveldb_store.upgrade import upgrade  # needs LevelDB

    progress = StartProgress(f"mqttd: stores for schema {schema.VERSION}", "upgrading", log)
    done = upgrade(change.old, change.new, progress, lambda line: log.warning("store", message=line), strict=strict)
    if done is None:
        return
    progress.end()
    log.info(
        "upgraded",
        versions=", ".join(map(str, done.versions)),
        version=schema.VERSION,
        stores=len(change.old),
        records=done.records,
        set_aside=done.set_aside,
        seconds=progress.seconds(),
    )

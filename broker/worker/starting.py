"""Start of a worker: opens and recovers its store while the supervisor sees that it is busy and not hung.

LevelDB may have to replay or repair its state after a crash, and a recovery reads the state of all sessions: both take
as long as the disk needs. So they run in a thread, while the main thread updates the heartbeat and logs the progress
every second.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

from broker.config.archive import archive_options
from broker.worker.recovery import Progress, Recovered, Recovery
from leveldb_store.memory import MemoryStore
from shards.data_dir import archive_epoch_of, epoch_of, store_path

if TYPE_CHECKING:
    from broker.config.settings import Settings
    from broker.logs import Log
    from broker.persistence.set_aside import SetAside
    from leveldb_store.contract import Store
    from shards.worker_channel import WorkerChannel

__all__ = ["Starting"]

_BEAT_SECONDS = 0.1
_PROGRESS_SECONDS = 1.0

T = TypeVar("T")


class Starting:
    """The start of one worker."""

    def __init__(self, channel: WorkerChannel, log: Log) -> None:
        self._channel = channel
        self._settings: Settings = channel.settings
        self._log = log
        self._said: deque[str] = deque()

    def open_store(self, repair: str | None) -> Store:
        """Open the configured store. `repair`: why it is to be repaired first. Raises StoreError."""
        settings, channel = self._settings, self._channel
        if settings.store == "memory":
            return MemoryStore()
        from leveldb_store.engine.database import DatabaseOptions  # only where they are used: they need LevelDB
        from leveldb_store.store import LevelStore

        path = store_path(settings.data_dir, channel.index)
        values = {**settings.leveldb.model_dump(), **settings.leveldb.sizes(path, settings.workers)._asdict()}
        options = DatabaseOptions(**{**values, "compression": None if values["compression"] == "none" else "snappy"})
        archive = archive_options(
            settings.archive,
            archive_epoch_of(settings.data_dir),
            channel.index,
            channel.workers,
            settings.limits.archive_pending_bytes_max,
        )

        def opened() -> LevelStore:
            return LevelStore(
                path,
                fsync=settings.is_synced,
                options=options,
                archive=archive,
                events_bytes_max=settings.events.bytes_max,
                strict=settings.strict_store,
                repair=repair,
                say=self._said.append,
            )

        try:
            store: Store = self._in_thread(opened, self.log_store)
        finally:
            self.log_store()
        return store

    def recover(self, recovery: Recovery, set_aside: SetAside, store: Store) -> Recovered | None:
        """Restore the worker from its store. Raises StoreError."""
        if not store.keeps:
            return None
        began = said = time.monotonic()
        progress = Progress()

        def say() -> None:
            nonlocal said
            now = time.monotonic()
            if now - said >= _PROGRESS_SECONDS:
                said = now
                self._log.info("recovering", records=progress.records, seconds=round(now - began, 1))

        def recovering() -> Recovered:
            recovery.identify(epoch_of(self._settings.data_dir))
            return recovery.run(progress)

        gc.disable()  # the restored objects stay: the collector need not walk through them, now or later
        try:
            recovered = self._in_thread(recovering, say)
        finally:
            gc.freeze()
            gc.enable()
        self.log_store()
        set_aside.tell()
        messages, size = store.held()
        self._log.info(
            "recovered",
            sessions=recovered.sessions,
            sessions_expired=recovered.expired,
            subscriptions=recovered.subscriptions,
            retained=recovered.retained,
            wills=recovered.wills,
            messages=messages,
            bytes=size,
            seconds=round(time.monotonic() - began, 3),
        )
        return recovered

    def log_store(self) -> None:
        """Log the store's messages, which may come from its thread."""
        while self._said:
            self._log.warning("store", message=self._said.popleft())

    def _in_thread(self, call: Callable[[], T], meanwhile: Callable[[], None]) -> T:
        with ThreadPoolExecutor(1) as thread:
            done: Future[T] = thread.submit(call)
            while not done.done():
                self._channel.heartbeat[0] += 1
                wait([done], timeout=_BEAT_SECONDS)
                meanwhile()
        return done.result()

"""Turns the stores of N workers into those of M: `repartition` reads the old ones and writes new ones beside them.

The worker of a session or a retained message depends on the number of workers (`shards.placement`,
`pyx.core.placement`). So sessions go to their new homes with all their state (`broker.repartition.sessions`), retained
messages to their new owners, wills with their clients, and from each log the blocks that the moved sessions still need
(`broker.repartition.logs`). Hand-off logs are delivered first (`broker.repartition.handoff_logs`). Archives are carried
over unchanged (`broker.repartition.archives`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import plyvel

from broker.persistence.set_aside import UNREADABLE
from broker.repartition.archives import carry_archives
from broker.repartition.events import carry_events
from broker.repartition.handoff_logs import HandoffLogs
from broker.repartition.logs import Logs
from broker.repartition.new_store import Moved, NewStore, empty, opened
from broker.repartition.old_store import OldStore, OldStores, RepartitionError
from broker.repartition.retained import OldRetained
from broker.repartition.sessions import OldSessions
from broker.repartition.survey import Survey
from leveldb_store.contract import StoreError
from leveldb_store.engine.database import error_text
from leveldb_store.format import schema

__all__ = ["Moved", "repartition"]


def repartition(
    old: Sequence[Path],
    new: Sequence[Path],
    old_epoch: str,
    epoch: str,
    progress: Callable[[int], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    strict: bool = False,
) -> Moved:
    """Write the stores `new`, in empty directories, from `old`: a path for each worker. Everything is on the disk when
    this returns. `progress` is called with the number of records handled; `say` with lines about damage. Unless
    `strict`, unreadable records are set aside in a new store, and a damaged old store is repaired.

    Raises RepartitionError.
    """
    repair: dict[Path, str] = {}
    while True:
        work = _Repartition(old_epoch, epoch, progress, say, strict)
        with ExitStack() as stack:
            try:
                for index, path in enumerate(old):
                    work.old.stores.append(OldStore(index, opened(path, say, strict, repair.get(path))))
                    stack.callback(work.old.stores[-1].database.close)
                for index, path in enumerate(new):
                    work.new.append(NewStore(index, path, work.moved))
                    stack.callback(work.new[-1].database.close)
                work.run()
            except StoreError as error:
                raise RepartitionError(str(error)) from None
            except plyvel.CorruptionError as error:
                if strict or repair or not (repair := work.old.damaged()):
                    raise RepartitionError(f"{work.old.where}: {error_text(error)}") from None
            except (plyvel.Error, *UNREADABLE) as error:
                raise RepartitionError(f"{work.old.where}: {error_text(error)}") from None
            except OSError as error:
                raise RepartitionError(f"{error.filename or new[0].parent}: {error.strerror or error}") from None
            else:
                return work.moved
        for path in new:  # start again, with what the repair left
            empty(path)


class _Repartition:
    def __init__(
        self, old_epoch: str, epoch: str, progress: Callable[[int], None], say: Callable[[str], None], strict: bool
    ) -> None:
        self.new: list[NewStore] = []
        self.moved = Moved()
        self.old = OldStores(self.new, self.moved, progress, say, strict)
        self._old_epoch = old_epoch
        self._epoch = epoch
        self._say = say

    def run(self) -> None:
        """Do all steps."""
        old, new, moved = self.old, self.new, self.moved
        survey, logs = Survey(old, self._old_epoch, len(new)), Logs(old, new, moved)
        survey.begin()
        for source in old.stores:
            survey.of(source)
            logs.survey(source)
        logs.lay_out()
        for source in old.stores:
            logs.copy(source)
        retained, sessions = OldRetained(old, new, moved), OldSessions(old, new, moved)
        HandoffLogs(old, new, moved, retained).give_out()
        for source in old.stores:
            sessions.copy(source)
            retained.copy(source)
        retained.finish()
        puts = [target.put for target in new]
        moved.archived = carry_archives([source.database for source in old.stores], puts, old.count, self._say)
        moved.events = carry_events([old.scan(source, schema.EVENT) for source in old.stores], puts)
        for target in new:
            target.finish(len(new), self._epoch)

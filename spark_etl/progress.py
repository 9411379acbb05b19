"""Progress of a job: a line on a terminal that follows Spark's tasks."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["shown"]

_LOOK_SECONDS: Final = 0.5


@contextlib.contextmanager
def shown(spark: SparkSession, what: str, *, always: bool = False) -> Iterator[None]:
    """Show the tasks of the jobs that run meanwhile, on stderr; only on a terminal, unless `always`."""
    if not always and not sys.stderr.isatty():
        yield
        return
    from tqdm import tqdm

    ended = threading.Event()
    with tqdm(desc=what, unit=" tasks", file=sys.stderr, dynamic_ncols=True) as bar:

        def look() -> None:
            known: dict[int, tuple[int, int]] = {}
            while not ended.wait(_LOOK_SECONDS):
                known.update(_stages(spark.sparkContext))
                bar.total = sum(tasks for tasks, _ in known.values()) or None
                bar.n = sum(done for _, done in known.values())
                bar.refresh()

        watcher = threading.Thread(target=look, name="progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()
            bar.n = bar.total or bar.n
            bar.refresh()


def _stages(context: SparkContext) -> dict[int, tuple[int, int]]:
    # running stages: tasks, and how many of them are done
    tracker = context.statusTracker()
    found = {}
    for stage in tracker.getActiveStageIds():
        info = tracker.getStageInfo(stage)
        if info is not None:
            found[stage] = info.numTasks, info.numCompletedTasks
    return found

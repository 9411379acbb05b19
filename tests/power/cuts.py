"""Points where a trace is cut: anywhere, but half of them near syncs and changes of names."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.power.disk import Disk
from tests.power.trace import Record, What

_TURNS = {What.CREATE, What.SYNC_BEGIN, What.SYNC_END, What.RENAME, What.UNLINK, What.MKDIR, What.RMDIR}


class Cut(NamedTuple):
    """A power cut: how many records of the trace had been made, and the directory left by it."""

    number: int
    point: int
    promised: bytes | None
    """The last mark before it."""
    directory: Path


def points(records: Sequence[Record], count: int, rng: random.Random, first: int = 0) -> list[int]:
    """Return this many points in ascending order: how many records were made before the cut. Half are near a turn."""
    turns = [at + offset for at, record in enumerate(records) if record.what in _TURNS for offset in (0, 1)]
    turns = [each for each in turns if each >= first]
    return sorted(rng.choice(turns) if rng.random() < 0.5 else rng.randint(first, len(records)) for _ in range(count))


def cut(disk: Disk, records: Sequence[Record], count: int, seed: int, into: Path, first: int = 0) -> Iterator[Cut]:
    """Yield `count` cuts of a trace that begins with the files of `disk`, none before its record `first`."""
    rng = random.Random(seed)
    promised: bytes | None = None
    played = 0
    for number, point in enumerate(points(records, count, rng, first)):
        disk.play(records[played:point])
        marks = [record.text for record in records[played:point] if record.what is What.MARK]
        promised = marks[-1] if marks else promised
        played = point
        disk.after_power_cut(into / f"cut{number}", rng)
        yield Cut(number, point, promised, into / f"cut{number}")

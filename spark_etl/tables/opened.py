"""An open clone of a store, from which the rows of a table are read."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import plyvel

    from spark_etl.tables.conditions import Conditions
    from spark_etl.tables.frames import Frames
    from spark_etl.tables.snapshots import SnapshotStore

__all__ = ["Reading"]


@dataclass(frozen=True, slots=True)
class Reading:
    """A clone of a store, with the selection of the query."""

    db: plyvel.DB
    store: SnapshotStore
    conditions: Conditions
    frames: Frames

    def get(self, key: bytes) -> bytes | None:
        """Return the record with this key, or None."""
        value: bytes | None = self.db.get(key, verify_checksums=True)
        return value

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the records with these keys."""
        with closing(self.db.iterator(start=start, stop=stop, fill_cache=False, verify_checksums=True)) as found:
            yield from found

"""What peers keep on disk: the keys that are bound to no lease, beside the stores of a host."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import orjson

from broker.cluster.contract import Entry
from broker.cluster.peers.records import Ballot, Position
from shards.whole_file import replace_file

__all__ = ["KeptFile", "KeptFileDamaged"]

_FILE: Final = "peers.json"
_FORMAT: Final = 1


class KeptFileDamaged(ValueError):
    """The file cannot be read, perhaps because a later release has written it."""


class KeptFile:
    """The file in a data directory."""

    def __init__(self, data_dir: Path, cluster: str) -> None:
        self.path = data_dir / _FILE
        self._cluster = cluster

    def read(self) -> tuple[Position, list[Entry]] | None:
        """Return the record that has last changed a key, and the keys; None: there are none, or of another cluster.
        Raises OSError and KeptFileDamaged.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            read = orjson.loads(content)
            if read["format"] != _FORMAT:
                raise ValueError(f"its format is {read['format']!r}, this release reads {_FORMAT}")
            if read["cluster"] != self._cluster:
                return None
            position = Position(Ballot(int(read["term"]), str(read["run"])), int(read["revision"]))
            return position, [_entry(each) for each in read["keys"]]
        except (KeyError, TypeError, ValueError) as error:
            raise KeptFileDamaged(f"{self.path}: damaged: {error}") from None

    def write(self, position: Position, entries: Iterable[Entry]) -> None:
        """Write them, so that after a crash the file has these or the former ones. Raises OSError."""
        keys = [[_text(each.key), _text(each.value), each.created, each.changed] for each in entries]
        content = orjson.dumps(
            {
                "format": _FORMAT,
                "cluster": self._cluster,
                "term": position.ballot.term,
                "run": position.ballot.run,
                "revision": position.revision,
                "keys": keys,
            }
        )
        replace_file(self.path, content + b"\n", self.path.with_suffix(".new"))

    def set_aside(self) -> Path:
        """Rename a file that is damaged, and return where it is. Raises OSError."""
        aside = self.path.with_suffix(".damaged")
        os.replace(self.path, aside)
        return aside


def _text(value: bytes) -> str:
    return value.decode("latin-1")


def _entry(read: Any) -> Entry:
    key, value, created, changed = read
    return Entry(key.encode("latin-1"), value.encode("latin-1"), int(created), int(changed))

"""A broker whose counters a test reads while it runs: the counter rows are in a file that the broker maps.

`python -m tests.counted ARGUMENTS` is `mqttd ARGUMENTS` with the rows in the file that MQTTD_TEST_ROWS names.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from broker import testing
from broker.cli import main as cli
from pyx.core.counters import NAMES, ROW_BYTES
from shards import rows
from tests.broker_process import BrokerProcess

_VARIABLE = "MQTTD_TEST_ROWS"


class CountedBroker(BrokerProcess):
    """A running broker with readable counters. `limits`: values by their names in the configuration."""

    def __init__(
        self,
        workers: int = 1,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        **limits: float,
    ) -> None:
        bounds = {f"MQTTD_LIMITS__{name.upper()}": str(value) for name, value in limits.items()}
        super().__init__(
            workers, ["--log-format", "json", *arguments], {"MQTTD_STORE": "memory", **(environment or {}), **bounds}
        )
        self._rows = Path(self._directory.name, "rows")
        self.environment[_VARIABLE] = str(self._rows)

    def start(self) -> Self:
        """Start: see BrokerProcess."""
        super().start()
        return self

    def _command(self) -> list[str]:
        return ["tests.counted" if part == "broker.testing" else part for part in super()._command()]

    def rows(self) -> list[dict[str, int]]:
        """Return the counters of each worker."""
        words = memoryview(self._rows.read_bytes()).cast("Q")
        stride = ROW_BYTES // 8
        return [dict(zip(NAMES, words[at * stride : (at + 1) * stride], strict=False)) for at in range(self.workers)]

    def counter(self, name: str) -> int:
        """Return one counter, summed over all workers."""
        return sum(row[name] for row in self.rows())


def _rows_in_a_file(workers: int, row_bytes: int) -> list[memoryview]:
    path = os.environ[_VARIABLE]
    Path(path).write_bytes(bytes(workers * row_bytes))
    with open(path, "r+b") as file:
        shared = memoryview(mmap.mmap(file.fileno(), workers * row_bytes))
    return [shared[index * row_bytes : (index + 1) * row_bytes] for index in range(workers)]


if __name__ == "__main__":
    testing._end_with_parent()
    rows.shared_rows = _rows_in_a_file
    raise SystemExit(cli.main())

"""The broker for other projects' tests: which store it has, and how long a start may take."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker import testing
from broker.testing import BrokerFailed, Mqttd

MEMORY = ("--store", "memory")


@pytest.mark.parametrize(
    ("options", "has_memory", "has_directory"),
    [
        ({}, True, True),
        ({"config": {"store": "leveldb"}}, False, True),
        ({"config": {"store": "leveldb", "data_dir": "d"}}, False, False),
        ({"arguments": ["--store", "leveldb"]}, False, True),
        ({"arguments": ["--store=leveldb", "--data-dir=d"]}, False, False),
        ({"arguments": ["--config", "FILE"]}, False, False),
        ({"config": "FILE"}, False, False),
        ({"config": "no such file"}, True, True),
        ({"environment": {"MQTTD_STORE": "leveldb"}}, False, True),
        ({"environment": {"MQTTD_DATA_DIR": "d"}}, True, False),
    ],
)
def test_what_nobody_says_is_a_store_in_memory(
    tmp_path: Path, options: dict[str, Any], has_memory: bool, has_directory: bool
) -> None:
    """The default also has a data directory that is removed with the broker, independent of others beside it."""
    file = tmp_path / "mqttd.toml"
    file.write_text('store = "leveldb"\ndata_dir = "d"\n')
    if "arguments" in options:
        options["arguments"] = [str(file) if each == "FILE" else each for each in options["arguments"]]
    elif options.get("config") == "FILE":
        options["config"] = file
    mqttd = Mqttd(**options)
    try:
        command = mqttd._command()
    finally:
        mqttd.forget()
    assert (MEMORY in itertools.pairwise(command)) == has_memory
    assert ("--data-dir" in command) == has_directory


class Starting(Mqttd):
    """A broker that is ready when its standard input says so; each clock reading calls `looked` and takes 15 s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, looked: Callable[[Starting, int], None]) -> None:
        super().__init__()
        looks = itertools.count()

        def monotonic() -> float:
            number = next(looks)
            looked(self, number)
            return number * 15.0

        monkeypatch.setattr(testing, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep))

    def _command(self) -> list[str]:
        return [sys.executable, "-c", "input(); print('mqttd ready', flush=True); input()"]

    def log_progress(self) -> None:
        with self._log.open("a") as log:
            log.write("recovering\n")

    def let_be_ready(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()


def test_a_start_may_take_as_long_as_it_logs_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """READY_SECONDS_MAX bounds the silence, not the start: repartitioning gigabytes takes minutes."""

    def looked(broker: Starting, number: int) -> None:
        broker.log_progress()
        if number == 10:
            broker.let_be_ready()

    with Starting(monkeypatch, looked) as broker:
        assert broker.alive()
        broker.kill()


def test_a_silent_start_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the broker's processes runs any more."""
    broker = Starting(monkeypatch, lambda _broker, _number: None)
    with pytest.raises(BrokerFailed, match="not ready after 30 s, 30 s after its last log line"):
        broker.start()
    assert not broker.alive()
    broker.forget()


def test_a_start_that_only_logs_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker whose workers die again and again logs that for ever."""
    broker = Starting(monkeypatch, lambda broker, _number: broker.log_progress())
    with pytest.raises(BrokerFailed, match="not ready after 615 s, 0 s after its last log line"):
        broker.start()
    broker.forget()

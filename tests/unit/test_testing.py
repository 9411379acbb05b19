"""The broker for somebody's tests: which store it has."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from broker.testing import Mqttd

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
    """And a data directory that goes with the broker: whatever runs beside it, and wherever."""
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

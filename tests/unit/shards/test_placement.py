"""Homes and owners: the same everywhere and for ever, evenly spread, and moved as little as possible."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyx.core.placement import owner
from shards.placement import home

# The results since the first release. A change here moves every session that is on a disk.
HOMES = {"": [0, 1, 2, 2, 2], "client-1": [0, 0, 3, 3, 3], "sensor/é/☃": [0, 0, 0, 6, 6], "a" * 65535: [0, 1, 1, 1, 1]}
OWNERS = {b"": [0, 0, 0, 5, 5], b"client-1": [0, 1, 2, 5, 5], b"site/7/temperature": [0, 0, 0, 6, 15]}
COUNTS = (1, 2, 4, 8, 16)


def test_homes_and_owners_never_change() -> None:
    assert {key: [home(key, count) for count in COUNTS] for key in HOMES} == HOMES
    assert {key: [owner(key, count) for count in COUNTS] for key in OWNERS} == OWNERS


def test_another_process_with_another_hash_seed_agrees() -> None:
    program = "from shards.placement import home; print([home(f'c{i}', 7) for i in range(100)])"
    said = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert said == {f"{[home(f'c{index}', 7) for index in range(100)]}\n"}


@given(st.text(), st.integers(1, 256))
def test_every_client_id_has_a_home(client_id: str, count: int) -> None:
    assert 0 <= home(client_id, count) < count


@given(st.binary(), st.integers(1, 256))
def test_every_topic_has_an_owner(topic: bytes, count: int) -> None:
    assert 0 <= owner(topic, count) < count


@pytest.mark.parametrize("count", [2, 3, 8, 9, 17, 64])
def test_keys_are_spread_evenly(count: int) -> None:
    """Within five standard deviations of an even spread."""
    keys = 500 * count
    homes = Counter(home(f"client-{index}", count) for index in range(keys))
    assert len(homes) == count
    deviation = (500 * (1 - 1 / count)) ** 0.5
    assert all(abs(found - 500) < 5 * deviation for found in homes.values())


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 16, 31])
def test_one_more_worker_takes_its_share_and_moves_nothing_else(count: int) -> None:
    keys = [f"client-{index}" for index in range(2000)]
    moved = [key for key in keys if home(key, count) != home(key, count + 1)]
    assert all(home(key, count + 1) == count for key in moved)
    assert 0.7 < len(moved) / (len(keys) / (count + 1)) < 1.4


def test_client_ids_and_topics_are_placed_independently() -> None:
    same = sum(home(f"k{index}", 8) == owner(f"k{index}".encode(), 8) for index in range(4000))
    assert 400 < same < 600

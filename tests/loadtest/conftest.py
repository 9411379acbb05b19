"""Fixture for all tests of the load tools: Debian's mosquitto, a third-party broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.loadtest.mosquitto import Mosquitto


@pytest.fixture(scope="session")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path_factory.mktemp("mosquitto")) as broker:
        yield broker

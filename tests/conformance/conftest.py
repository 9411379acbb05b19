"""The versions of MQTT a scenario runs with. ``version`` is what most want; ``any_version`` adds v3.1."""

from __future__ import annotations

import pytest

NAMES = {3: "v3.1", 4: "v3.1.1", 5: "v5"}


@pytest.fixture(params=[4, 5], ids=NAMES.get)
def version(request: pytest.FixtureRequest) -> int:
    """3.1.1 and 5."""
    chosen: int = request.param
    return chosen


@pytest.fixture(params=[3, 4, 5], ids=NAMES.get)
def any_version(request: pytest.FixtureRequest) -> int:
    """3.1, 3.1.1 and 5."""
    chosen: int = request.param
    return chosen

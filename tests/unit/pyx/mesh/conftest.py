"""What the tests of the mesh's sockets share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.pyx.mesh.world import Rounds


@pytest.fixture
def rounds() -> Iterator[Rounds]:
    """Yield a watcher of descriptors; at the end all that it made is closed, and nothing is watched."""
    made = Rounds()
    yield made
    made.close()

"""The shim, compiled once, by a C compiler, which the build of mqttd needs too; and the place for directories after
power cuts.

"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.power.trace import Traced, compile_shim

Trace = Callable[[Path], Traced]


MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 64 << 20


@pytest.fixture
def after_cuts(tmp_path: Path) -> Iterator[Path]:
    """A place for the directories that power cuts leave: in memory if there is room, because a disk would have to sync
    each of them when it is opened, which shows nothing. Directories left by a failed test are moved to `tmp_path`.
    """
    try:
        found = os.statvfs(MEMORY)
        is_roomy = os.access(MEMORY, os.W_OK) and found.f_bavail * found.f_frsize >= MEMORY_BYTES_MIN
    except OSError:
        is_roomy = False
    if not is_roomy:
        yield tmp_path
        return
    with TemporaryDirectory(dir=MEMORY, prefix="mqttd-cuts-") as directory:
        yield Path(directory)
        for left in Path(directory).iterdir():
            shutil.move(left, tmp_path / left.name)


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library for LD_PRELOAD."""
    return compile_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture(scope="session")
def trace(shim: Path, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """``trace(root)``: a directory whose changes are recorded from now on."""
    return lambda root: Traced(shim, root, tmp_path_factory.mktemp("trace") / "trace")

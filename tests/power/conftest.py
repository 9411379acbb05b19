"""The shim, compiled once; what it needs from the machine is what the build of mqttd needs: a C compiler. And where
what a power cut leaves is put.
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
    """For the directories that power cuts leave: in memory if there is room, because a disk would be asked to sync each
    of them when it is opened, which shows nothing. What a test leaves there, because it failed, is in `tmp_path` then.
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

"""A small disk: a tmpfs that a test mounts, fills and enlarges. Mounting takes root: other users' runs skip such tests,
with this reason.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["fill", "grow", "mounted"]

_PIECES = (1 << 20, 4096)


@contextlib.contextmanager
def mounted(path: Path, size: str) -> Iterator[Path]:
    """Mount a disk at `path`; `size` as in mount(8) (`24m`). Skip the test if that fails."""
    path.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True)
    if done.returncode:
        pytest.skip(f"mounting a small disk takes root: {done.stderr.decode().strip()}")
    try:
        yield path
    finally:  # lazily: a failed test may have left a file open
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def grow(disk: Path, size: str) -> None:
    """Change the size of the disk."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Fill the disk to the last byte; return the file that takes the space."""
    others = disk / "others"
    with others.open("ab", buffering=0) as file:
        for size in _PIECES:
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass
    return others

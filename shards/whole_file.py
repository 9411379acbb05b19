"""Files that are there whole, or as they were before, whatever ends meanwhile."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["replace_file"]


def replace_file(file: Path, content: bytes, part: Path) -> None:
    """Put a new file in the place of `file`, on the disk when this returns. part: where it is written first, in the
    same directory; what lies there is overwritten. Raises OSError.
    """
    with part.open("wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    os.replace(part, file)
    directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)

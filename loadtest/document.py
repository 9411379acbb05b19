"""Documents with generated parts: replaces the text between two marks."""

from __future__ import annotations

from pathlib import Path
from typing import Final

END: Final = "<!-- end of what is measured -->"


def with_part(text: str, begin: str, part: str) -> str:
    """Return the document with `part` between the line `begin` and the next END. ValueError: it has no such marks."""
    before, found, rest = text.partition(begin)
    _, end, after = rest.partition(END)
    if not found or not end:
        raise ValueError(f"no lines {begin!r} and {END!r}")
    return f"{before}{begin}\n\n{part}\n\n{end}{after}"


def write(path: Path, part: str, begin: str) -> None:
    """Do the same for a file. ValueError names it."""
    try:
        path.write_text(with_part(path.read_text(), begin, part))
    except ValueError as error:
        raise ValueError(f"{path} has {error}") from None

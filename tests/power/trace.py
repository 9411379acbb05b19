"""Traces of a program's changes to a directory: the compiled shim, its environment, and its records.

    with_shim = Traced(library, root=data_dir, trace=elsewhere / "trace")
    subprocess.run([...], env={**os.environ, **with_shim.environment})
    records = with_shim.records()

A *mark* is a record that the program or the test writes itself: "from here on this is promised".

"""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
COMPILE_SECONDS_MAX = 60.0

_HEAD = struct.Struct("<IIQQQ")


class What(IntEnum):
    """Kinds of records, with the same numbers in shim.c. Names are relative to the root, which is "" itself."""

    CREATE = 1  # inode; text: name
    WRITE = 2  # inode, a: offset; text: the bytes written
    TRUNCATE = 3  # inode, a: length (of a longer one: zeros)
    SYNC_BEGIN = 4  # inode, a: number of the sync; text: name
    SYNC_END = 5  # inode, a: number of the sync. One that failed has no end
    RENAME = 6  # text: old name, NUL, new name
    UNLINK = 7  # text: name
    MKDIR = 8  # inode; text: name
    RMDIR = 9  # text: name
    LINK = 10  # text: name, NUL, new name
    MARK = 11  # text: any text of the test
    UNSEEN = 12  # text: how, NUL, name: a change, or a possible one, that is not recorded


@dataclass(frozen=True, slots=True)
class Record:
    what: What
    inode: int
    a: int
    text: bytes

    @property
    def size(self) -> int:
        """Its length in the trace, in bytes."""
        return _HEAD.size + len(self.text)

    @property
    def name(self) -> str:
        return os.fsdecode(self.text)

    @property
    def names(self) -> tuple[str, str]:
        first, _, second = self.text.partition(b"\0")
        return os.fsdecode(first), os.fsdecode(second)


def compile_shim(into: Path, source: Path = SOURCE) -> Path:
    """Compile the shim, or another library, into a directory; return the path of the library."""
    library = into / f"{source.stem}.so"
    command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        [*command, str(source), "-o", str(library), "-ldl"], check=True, timeout=COMPILE_SECONDS_MAX
    )  # the compiler's output is in the report of the test
    return library


class Traced:
    """A traced directory and its trace. Both paths must be real ones, the trace outside the root."""

    def __init__(self, library: Path, root: Path, trace: Path) -> None:
        self.root = root.resolve()
        self.trace = trace.resolve()
        assert not self.trace.is_relative_to(self.root), "the trace would trace itself"
        self.root.mkdir(parents=True, exist_ok=True)
        self.trace.touch()
        self.environment = {
            "LD_PRELOAD": str(library),
            "POWER_ROOT": str(self.root),
            "POWER_TRACE": str(self.trace),
        }

    def mark(self, text: bytes) -> None:
        """Write a mark after everything recorded so far."""
        mark(self.trace, text)

    def records(self) -> list[Record]:
        """Return all records so far, in the order in which they were written."""
        return list(read(self.trace.read_bytes()))


def mark(trace: Path | str, text: bytes) -> None:
    """Append a mark to a trace; any process may, also the traced one."""
    record = _HEAD.pack(_HEAD.size + len(text), What.MARK, 0, 0, 0) + text
    fd = os.open(trace, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        written = os.write(fd, record)
    finally:
        os.close(fd)
    assert written == len(record), "a mark was cut off"


def read(trace: bytes) -> Iterator[Record]:
    """Yield the records of a trace. A process killed while writing one may leave a part of it, at the end only."""
    at = 0
    while len(trace) - at >= _HEAD.size:
        size, what, inode, a, _ = _HEAD.unpack_from(trace, at)
        if len(trace) - at < size:
            break
        yield Record(What(what), inode, a, trace[at + _HEAD.size : at + size])
        at += size

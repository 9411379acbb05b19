"""Changes files in all the ways that the shim knows: tests/power/test_shim.py runs it under the shim.

    python -m tests.power.program ROOT WAY

One function per test; each works in a directory below the root that has the name of the function.

"""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def contents() -> None:
    """Write in every way."""
    fd = os.open("a", os.O_CREAT | os.O_RDWR)
    os.write(fd, b"one ")
    os.writev(fd, [b"two ", b"", b"three "])
    os.pwrite(fd, b"ONE", 0)
    os.lseek(fd, 4, os.SEEK_SET)
    os.write(fd, b"TWO")
    os.ftruncate(fd, 9)
    os.close(fd)
    fd = os.open("a", os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"end")
    copy = os.dup(fd)
    os.close(fd)
    os.write(copy, b".")
    os.close(copy)
    Path("b").write_bytes(b"long" * 50_000)
    os.truncate("b", 100_000)
    Path("b2").write_bytes(b"before")
    Path("b2").write_bytes(b"after")  # O_TRUNC


def names() -> None:
    """Change names in every way, by paths of every kind."""
    here = os.open(".", os.O_RDONLY)
    Path("a").write_text("a")
    os.rename("a", "b")
    os.mkdir("folder")
    os.rename("b", os.path.abspath("folder/c"))
    os.mkdir("inner", dir_fd=here)
    os.rename("folder", "inner/moved")
    Path("inner/../inner/moved/d").write_text("d")
    os.link("inner/moved/d", "e")
    Path("e").write_text("both")
    os.replace("e", "inner/e", src_dir_fd=here, dst_dir_fd=here)
    Path("gone").write_text("gone")
    os.unlink("gone", dir_fd=here)
    os.mkdir("gone")
    os.rmdir("gone")
    Path("again").write_text("1")
    os.remove("again")
    Path("again").write_text("2")
    os.close(here)


def children() -> None:
    """Write from a child process, a forked one, and by a copy of a file."""
    subprocess.run(["sh", "-c", "echo from sh > sh"], check=True)
    subprocess.run([sys.executable, "-c", "open('python', 'w').write('from python')"], check=True, close_fds=True)
    fd = os.open("shared", os.O_CREAT | os.O_WRONLY)
    if os.fork() == 0:
        os.write(fd, b"child ")
        os._exit(0)
    os.wait()
    os.write(fd, b"parent")
    os.close(fd)
    shutil.copyfile("shared", "copy")  # by sendfile, where possible
    shutil.copytree(".", "../copies")


def syncs() -> None:
    """Sync files and a directory, and write after each sync."""
    fd = os.open("a", os.O_CREAT | os.O_WRONLY)
    os.write(fd, b"synced")
    os.fdatasync(fd)
    os.write(fd, b" and not")
    os.close(fd)
    Path("b").write_text("not synced, but its name is")
    here = os.open(".", os.O_RDONLY)
    os.fsync(here)
    os.close(here)
    Path("c").write_text("nothing of it is")


def mapped() -> None:
    """Write in a way that the shim cannot see."""
    Path("a").write_bytes(bytes(4096))
    with Path("a").open("r+b") as file, mmap.mmap(file.fileno(), 4096) as memory:
        memory[0] = 1


WAYS: dict[str, Callable[[], None]] = {each.__name__: each for each in (contents, names, children, syncs, mapped)}

if __name__ == "__main__":
    _root, _way = sys.argv[1:]
    os.chdir(_root)
    os.mkdir(_way)
    os.chdir(_way)
    WAYS[_way]()

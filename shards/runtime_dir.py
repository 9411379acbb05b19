"""The runtime directory: holds a running broker's unix sockets and stack dumps.

Either named by the operator (`--runtime-dir`, kept, emptied of our files) or a private one with a short random name
(0700, removed at exit). Short, because the path of a unix socket has at most 107 bytes. A broker holds a lock on the
file `mqttd.lock` inside as long as it lives: so two brokers never share a directory, and directories left by a SIGKILL
can be told from those in use.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PATH_BYTES_MAX = 80
"""Longest path: leaves 26 bytes for the names of sockets inside (a unix socket path has at most 107)."""

_LOCK = "mqttd.lock"
_PREFIX = "mqttd-"


class RuntimeDirError(Exception):
    """The directory cannot be used. The text is one line for the operator."""


class RuntimeDir:
    """An open runtime directory; hold it while the broker lives, `close()` it in the supervisor at the end."""

    def __init__(self, path: str | None) -> None:
        """`path` None: a private directory is made. Raises RuntimeDirError."""
        self.private = path is None
        try:
            if path is None:
                base = tempfile.gettempdir()
                base = base if len(os.fsencode(base)) <= PATH_BYTES_MAX - 16 else "/tmp"
                _remove_abandoned(base)
                self.path, self._lock = _private(base)
            else:
                self.path = os.path.abspath(path)
                if len(os.fsencode(self.path)) > PATH_BYTES_MAX:
                    raise RuntimeDirError(
                        f"runtime_dir {self.path}: longer than {PATH_BYTES_MAX} bytes (unix sockets live in it)"
                    )
                os.makedirs(self.path, mode=0o700, exist_ok=True)
                lock = _lock(self.path)
                if lock is None:
                    raise RuntimeDirError(f"runtime_dir {self.path}: in use by another mqttd")
                self._lock = lock
                _empty(self.path)
        except OSError as error:
            raise RuntimeDirError(f"runtime_dir {path or base}: {error.strerror or error}") from None

    def release(self) -> None:
        """In a forked child: forget the lock (the supervisor's copy holds it)."""
        os.close(self._lock)

    def close(self) -> None:
        """Remove the broker's files, and the directory itself if it is private."""
        if self.private:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            _empty(self.path)
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.path, _LOCK))
        os.close(self._lock)


def _lock(path: str) -> int | None:
    """Return the descriptor of the locked file, or None when another process holds it."""
    name = os.path.join(path, _LOCK)
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another process may have removed the file between our open and our lock.
        if os.stat(name).st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _private(base: str) -> tuple[str, int]:
    for _ in range(100):
        path = tempfile.mkdtemp(prefix=_PREFIX, dir=base)
        with contextlib.suppress(FileNotFoundError):  # another broker's clean-up took it for abandoned
            lock = _lock(path)
            if lock is not None:
                return path, lock
    raise RuntimeDirError(f"no private runtime directory could be made in {base}")


def _remove_abandoned(base: str) -> None:
    """Remove private directories, ours by owner and name, that no living broker holds."""
    for path in Path(base).glob(_PREFIX + "*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if status.st_uid != os.geteuid() or not path.is_dir() or path.is_symlink() or not (path / _LOCK).exists():
                continue
            lock = _lock(str(path))
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _empty(path: str) -> None:
    """Remove our files from a directory that the operator named: sockets and stack dumps, nothing else."""
    for entry in Path(path).iterdir():
        if entry.is_socket() or entry.suffix == ".stack":
            entry.unlink(missing_ok=True)

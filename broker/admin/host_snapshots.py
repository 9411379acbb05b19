"""One host's part of snapshots of all hosts: `mqttd snapshot` runs as a process of its own, whose state is asked for.

Files (`leveldb_store.snapshots.cluster_manifest`) are written by that process and in threads: a disk is not waited for.
One snapshot is taken at a time. What it consists of is known until KEPT others were begun, or this process ends;
whoever has asked for it collects that.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import broker
from leveldb_store.snapshots.clone import remove
from leveldb_store.snapshots.cluster_facts import ClusterFacts
from leveldb_store.snapshots.cluster_manifest import NAME, ClusterManifest, directory_of
from leveldb_store.snapshots.snapshot import SnapshotError
from shards.whole_file import replace_file

if TYPE_CHECKING:
    from broker.config.settings import Settings
    from broker.logs import Log

__all__ = ["KEPT", "HostSnapshots"]

KEPT: Final = 8
"""Snapshots that are known after they were taken, until their manifest comes."""
_END_SECONDS_MAX: Final = 5.0
"""Time that the process has to remove its files when it is given up."""
_ERRORS_BYTES_MAX: Final = 4096
"""Of its standard error, the end is kept."""
_ROOT: Final = str(Path(broker.__file__).resolve().parents[1])


@dataclass(slots=True)
class _PartTaken:
    """A snapshot that was begun."""

    id: str
    path: Path
    process: asyncio.subprocess.Process | None = None
    said: str = ""
    """The end of what it has written to standard error."""
    facts: dict[str, Any] | None = None
    reason: str = ""
    """Why it has failed."""
    is_kept: bool = False
    """Whether there is a manifest with it."""
    running: asyncio.Task[None] | None = field(default=None, repr=False)


class HostSnapshots:
    """settings: returns those in force. number: returns the host's number in its cluster."""

    def __init__(self, settings: Callable[[], Settings], number: Callable[[], int], log: Log) -> None:
        self._settings = settings
        self._number = number
        self._log = log
        self._parts: dict[str, _PartTaken] = {}
        """By id, the oldest first."""

    async def begin(self, id_: str) -> dict[str, Any]:
        """Begin a snapshot: {"begun": true}, or {"refused": why}."""
        settings = self._settings()
        if settings.store == "memory":
            return {"refused": "its store is in memory"}
        if settings.cluster.snapshot_dir is None:
            return {"refused": "cluster.snapshot_dir is not configured there"}
        if id_ in self._parts:
            return {"refused": "this snapshot was begun there before"}
        for part in self._parts.values():
            if part.running is not None and not part.running.done():
                return {"refused": f"a snapshot is being taken there: {part.id}"}
        path = Path(settings.cluster.snapshot_dir).absolute() / id_ / directory_of(settings.cluster.node_id)
        part = self._parts[id_] = _PartTaken(id_, path)
        if len(self._parts) > KEPT:
            del self._parts[next(iter(self._parts))]
        part.running = asyncio.create_task(self._take(part, settings))
        part.running.add_done_callback(self._has_ended)
        return {"begun": True}

    async def _take(self, part: _PartTaken, settings: Settings) -> None:
        cluster = settings.cluster
        facts = ClusterFacts(cluster.name, cluster.node_id, self._number(), part.id)
        said = {"name": facts.name, "node": facts.node, "number": facts.number, "id": facts.id, "parent": os.getpid()}
        paths = [_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
        reason = ""
        try:
            part.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "broker", "snapshot", "--data-dir", settings.data_dir),
                *("--out", str(part.path), "--of-cluster", json.dumps(said), "--json"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )
            out, _ = await asyncio.gather(_all_of(part.process.stdout), self._listen(part, part.process.stderr))
            if status := await part.process.wait():
                reason = _last_line(part.said) or f"its process has ended with status {status}"
        except OSError as error:
            reason = f"it cannot be begun: {error.strerror or error}"
        if reason:
            self._log.error("host_snapshot_failed", snapshot=part.id, reason=reason)
            await asyncio.to_thread(_removed, part.path)  # a process that was killed has left something
            part.reason = reason
        else:
            self._log.info("host_snapshot_taken", snapshot=part.id, path=str(part.path))
            part.facts = json.loads(out)

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("host_question_failed", traceback="".join(traceback.format_exception(error)))

    async def _listen(self, part: _PartTaken, errors: asyncio.StreamReader | None) -> None:
        assert errors is not None
        while data := await errors.read(_ERRORS_BYTES_MAX):
            part.said = (part.said + data.decode(errors="replace"))[-_ERRORS_BYTES_MAX:]

    def state(self, id_: str) -> dict[str, Any]:
        """Return how far a snapshot is."""
        part = self._parts.get(id_)
        if part is None:
            return {"state": "failed", "reason": "this snapshot is not known there: its control process was restarted"}
        if part.facts is not None:
            return {"state": "taken", "facts": part.facts}
        if part.reason:
            return {"state": "failed", "reason": part.reason}
        if part.running is not None and part.running.done():
            return {"state": "failed", "reason": "an internal error: the log there has the details"}
        said = _last_line(part.said)
        return {"state": "running", "progress": said.rpartition(": ")[2] if said.startswith("snapshot ") else ""}

    async def end(self, id_: str) -> dict[str, Any]:
        """Give up a snapshot, or remove it again, unless it has a manifest."""
        part = self._parts.get(id_)
        if part is not None and not part.is_kept:
            await self._give_up(part)
            if part.facts is not None:
                part.facts, part.reason = None, "it was given up"
                await asyncio.to_thread(_removed, part.path)
        return {"ended": True}

    async def _give_up(self, part: _PartTaken) -> None:
        if part.process is not None and part.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                part.process.terminate()
        if part.running is None or part.running.done():
            return
        done, _ = await asyncio.wait([part.running], timeout=_END_SECONDS_MAX)
        if not done:
            if part.process is not None and part.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    part.process.kill()
            await asyncio.wait([part.running], timeout=1.0)

    async def keep(self, id_: str, manifest: str) -> dict[str, Any]:
        """Write the manifest of all hosts beside this host's part: {"kept": directory}, or {"refused": why}."""
        part = self._parts.get(id_)
        if part is None or part.facts is None:
            return {"refused": "this snapshot was not taken there"}
        try:
            if ClusterManifest.decode(manifest).id != id_:
                return {"refused": "the manifest is of another snapshot"}
            file = part.path.parent / NAME
            own = file.with_name(f".{NAME}.{os.getpid()}")  # on a shared file system all hosts write the same file
            await asyncio.to_thread(replace_file, file, manifest.encode(), own)
        except SnapshotError as error:
            return {"refused": f"the manifest: {error}"}
        except OSError as error:
            return {"refused": f"{part.path.parent / NAME}: {error.strerror or error}"}
        part.is_kept = True
        return {"kept": str(part.path.parent)}

    async def close(self) -> None:
        """End the process that runs, if there is one; it removes what it has written."""
        for part in self._parts.values():
            await self._give_up(part)


async def _all_of(stream: asyncio.StreamReader | None) -> bytes:
    assert stream is not None
    return await stream.read()


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return lines[-1].removeprefix("mqttd: ") if lines else ""


def _removed(path: Path) -> None:
    """Remove a part, and its directory if no other host has one there, as far as possible."""
    with contextlib.suppress(OSError):
        for each in path.iterdir():
            if each.is_dir():
                remove(each)
            else:
                each.unlink()
    with contextlib.suppress(OSError):
        path.rmdir()
    with contextlib.suppress(OSError):  # not empty: on a shared file system others write there, too
        path.parent.rmdir()

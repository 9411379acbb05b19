"""The possible states of a directory on a disk when the power fails.

`Disk.play(records)` follows a trace; `Disk.after_power_cut(into, rng)` writes one of the directories that may be found
afterwards. It may be called at any number of points of the trace, and any number of times at each.

**Contents.** Bytes written to a file before a sync of it began are there once that sync has ended. Of the rest any
part may be there: none, all, a beginning that ends in the middle of a write, or, since the kernel writes pages back in
any order, some pages of 4 KB and others not. A page has the state after some number of the writes that touched
it, a page that was being written is a mixture of sectors of 512 bytes, and a page that is missing before one that is
there reads as zeros. The length is one that the file had since the sync.

**Names.** A change of a directory (create, rename, unlink, mkdir) is there once a sync of that directory has ended that
began after it. A sync of a *file* also keeps the change that gave the file its name. POSIX does not promise that; ext4,
XFS, btrfs and F2FS do. The rest depends on `order`:

    JOURNAL  changes of names reach the disk in the order in which they were made, as on ext4 and XFS: the part of the
             rest that is there is a beginning of it
    ANY      any of the rest may be there. That is less than LevelDB needs: it removes the old MANIFEST and the old logs
             without a sync of the new CURRENT's directory
    POSIX    the same, and a sync of a file does not keep its name: LevelDB never syncs its directory for a new log

An unseen write or sync would make the results worthless: records of such events are errors, except for the files in
`unseen_names` (LevelDB's LOG), which are left out of the directories that are written.

"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path, PurePosixPath

from tests.power.trace import Record, What

PAGE_BYTES = 4096
SECTOR_BYTES = 512


class Order(Enum):
    """Guarantees for changes of names that no sync has kept."""

    JOURNAL = "journal"
    ANY = "any"
    POSIX = "posix"


class File:
    """A file. `kept` is on the disk. `changes` since then: (offset, bytes), or (length, None) for a truncation."""

    def __init__(self, content: bytes = b"") -> None:
        self.kept = bytearray(content)
        self.changes: list[tuple[int, bytes | None]] = []
        self.settled = 0
        """How many changes are in `kept` already; the first of `changes` has this number."""

    def change(self, at: int, data: bytes | None) -> None:
        self.changes.append((at, data))

    @property
    def changed(self) -> int:
        """The number of the next change."""
        return self.settled + len(self.changes)

    def keep(self, before: int) -> None:
        """Move every change with a number below `before` to the disk."""
        count = max(0, before - self.settled)
        for at, data in self.changes[:count]:
            _apply(self.kept, at, data)
        del self.changes[:count]
        self.settled += count

    def as_seen(self) -> bytes:
        """Return the content that the program reads."""
        content = bytearray(self.kept)
        for at, data in self.changes:
            _apply(content, at, data)
        return bytes(content)

    def after_power_cut(self, rng: random.Random) -> bytes:
        """Return one of the possible contents after a power cut."""
        if not self.changes:
            return bytes(self.kept)
        way = rng.choice(("none", "all", "torn", "torn", "pages", "pages"))
        if way == "none":
            return bytes(self.kept)
        if way == "pages":
            return self._pages(rng)
        content = bytearray(self.kept)
        whole = len(self.changes) if way == "all" else rng.randrange(len(self.changes))
        for at, data in self.changes[:whole]:
            _apply(content, at, data)
        if way == "torn":
            at, data = self.changes[whole]
            if data is not None:
                _apply(content, at, data[: rng.randrange(len(data) + 1)])
        return bytes(content)

    def _pages(self, rng: random.Random) -> bytes:
        """Return a content in which each page may have its state at a different moment."""
        pages: dict[int, list[bytes]] = {}  # pages that changed: all their states since the sync
        lengths = [len(self.kept)]
        for at, data in self.changes:
            end = max(lengths[-1], at) if data is None else at + len(data)
            for page in range(at // PAGE_BYTES, (end + PAGE_BYTES - 1) // PAGE_BYTES):
                begin = page * PAGE_BYTES
                versions = pages.setdefault(
                    page, [bytes(self.kept[begin : begin + PAGE_BYTES]).ljust(PAGE_BYTES, b"\0")]
                )
                here, there = max(at - begin, 0), min(end - begin, PAGE_BYTES)
                middle = bytes(there - here) if data is None else data[begin + here - at : begin + there - at]
                versions.append(versions[-1][:here] + middle + versions[-1][there:])
            lengths.append(at if data is None else max(lengths[-1], end))
        content = bytearray(self.kept).ljust(max(lengths) + PAGE_BYTES, b"\0")
        for page, versions in pages.items():
            content[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = rng.choice(versions)
        if pages and rng.random() < 0.5:
            page = rng.choice(sorted(pages))
            for at in range(0, PAGE_BYTES, SECTOR_BYTES):
                begin = page * PAGE_BYTES + at
                content[begin : begin + SECTOR_BYTES] = rng.choice(pages[page])[at : at + SECTOR_BYTES]
        return bytes(content[: rng.choice(lengths)])


def _apply(content: bytearray, at: int, data: bytes | None) -> None:
    if data is None and at <= len(content):
        del content[at:]
        return
    if len(content) < at:
        content.extend(bytes(at - len(content)))
    if data is not None:
        content[at : at + len(data)] = data


@dataclass(eq=False)
class Directory:
    """A directory. `now`: the entries that the program sees. `kept`: those on the disk."""

    now: dict[str, Node] = field(default_factory=dict)
    kept: dict[str, Node] = field(default_factory=dict)


Node = File | Directory


@dataclass(eq=False)
class Naming:
    """A change of names: all of these entries at once. None: the name is removed."""

    number: int
    entries: list[tuple[Directory, str, Node | None]]

    @property
    def slots(self) -> set[tuple[int, str]]:
        return {(id(directory), name) for directory, name, _ in self.entries}

    def enter(self, entries_of: Callable[[Directory], dict[str, Node]]) -> None:
        for directory, name, node in self.entries:
            entries = entries_of(directory)
            if node is None:
                entries.pop(name, None)
            else:
                entries[name] = node


class Unseen(Exception):
    """The trace reports a change that it does not contain."""


class Disk:
    """The files below the root of a trace: as the program sees them, and the part that a disk must have."""

    def __init__(self, order: Order = Order.JOURNAL, unseen_names: Iterable[str] = ("LOG",)) -> None:
        self.order = order
        self.root = Directory()
        self._unseen_names = set(unseen_names)
        self._unseen: set[str] = set()
        self._inodes: dict[int, Node] = {}
        self._namings: list[Naming] = []  # not kept by any sync
        self._named = 0
        self._syncs: dict[int, tuple[Node, int, int]] = {}  # begun: node, changes and namings before it

    @classmethod
    def of(cls, directory: Path, order: Order = Order.JOURNAL) -> Disk:
        """Return a disk with the present content of a directory: for a trace that begins with it."""
        disk = cls(order)
        for path, folders, files in os.walk(directory):
            node = disk._inodes.setdefault(os.stat(path).st_ino, disk.root)
            assert isinstance(node, Directory)
            found: dict[str, Node] = {name: Directory() for name in folders}
            found |= {name: File(Path(path, name).read_bytes()) for name in files}
            for name, each in found.items():
                disk._inodes[os.stat(Path(path, name)).st_ino] = each
                node.now[name] = node.kept[name] = each
        return disk

    # -- following the trace

    def play(self, records: Iterable[Record]) -> None:
        """Follow these further records."""
        for record in records:
            self._play(record)

    def _play(self, record: Record) -> None:
        match record.what:
            case What.MARK:
                pass
            case What.WRITE:
                self._file(record.inode).change(record.a, record.text)
            case What.TRUNCATE:
                self._file(record.inode).change(record.a, None)
            case What.SYNC_BEGIN if record.name not in self._unseen:
                node = self._inodes[record.inode] if record.text else self.root
                self._syncs[record.a] = node, node.changed if isinstance(node, File) else 0, self._named
            case What.SYNC_END if record.a in self._syncs:
                self._synced(*self._syncs.pop(record.a))
            case What.CREATE | What.MKDIR:
                made: Node = File() if record.what is What.CREATE else Directory()
                self._inodes[record.inode] = made
                self._name((record.name, made))
            case What.UNLINK | What.RMDIR:
                if record.name in self._unseen:
                    self._unseen.discard(record.name)
                else:
                    self._name((record.name, None))
            case What.RENAME:
                old, new = record.names
                if old in self._unseen:
                    self._unseen = self._unseen - {old} | {new}
                else:
                    self._name((old, None), (new, self._find(old)))
            case What.LINK:
                old, new = record.names
                self._name((new, self._find(old)))
            case What.UNSEEN:
                how, name = record.names
                if how != "stdio" or PurePosixPath(name).name not in self._unseen_names:
                    raise Unseen(f"{how} {name}")
                self._unseen.add(name)

    def _file(self, inode: int) -> File:
        node = self._inodes[inode]
        assert isinstance(node, File)
        return node

    def _parent(self, name: str) -> tuple[Directory, str]:
        folder, _, base = name.rpartition("/")
        directory = self._find(folder) if folder else self.root
        assert isinstance(directory, Directory), name
        return directory, base

    def _find(self, name: str) -> Node:
        directory, base = self._parent(name)
        return directory.now[base]

    def _name(self, *entries: tuple[str, Node | None]) -> None:
        naming = Naming(self._named, [(*self._parent(name), node) for name, node in entries])
        naming.enter(lambda directory: directory.now)
        self._namings.append(naming)
        self._named += 1

    def _synced(self, node: Node, changes: int, namings: int) -> None:
        if isinstance(node, Directory):
            self._keep_names(namings, lambda naming: any(each is node for each, _, _ in naming.entries))
            return
        node.keep(changes)
        if self.order is not Order.POSIX:
            self._keep_names(namings, lambda naming: any(each is node for _, _, each in naming.entries))

    def _keep_names(self, before: int, wanted: Callable[[Naming], bool]) -> None:
        """Keep the wanted namings with a number below `before` on the disk, and the others that must then be there."""
        kept: set[Naming] = set()
        slots: set[tuple[int, str]] = set()
        for naming in reversed(self._namings):
            if naming.number >= before:
                continue
            # of one name, an older change may not reach the disk after a newer one
            if wanted(naming) or slots & naming.slots or (kept and self.order is Order.JOURNAL):
                kept.add(naming)
                slots |= naming.slots
        for naming in self._namings:
            if naming in kept:
                naming.enter(lambda directory: directory.kept)
        self._namings = [naming for naming in self._namings if naming not in kept]

    # -- the cut

    def after_power_cut(self, into: Path, rng: random.Random) -> None:
        """Write one of the possible directories after a power cut to a path that does not exist yet."""
        if self.order is Order.JOURNAL:
            whole = len(self._namings)
            namings = self._namings[: rng.choice((0, whole, rng.randrange(whole + 1)))]
        else:
            share = rng.random()
            namings = [each for each in self._namings if rng.random() < share]
        found: dict[Directory, dict[str, Node]] = {}
        for naming in namings:
            naming.enter(lambda directory: found.setdefault(directory, dict(directory.kept)))

        _write(
            self.root,
            into,
            lambda directory: found.get(directory, directory.kept),
            lambda file: file.after_power_cut(rng),
        )

    def as_seen(self, into: Path) -> None:
        """Write the directory as the program left it, for a comparison with the real one."""
        _write(self.root, into, lambda directory: directory.now, File.as_seen)


def _write(
    directory: Directory,
    into: Path,
    entries_of: Callable[[Directory], dict[str, Node]],
    content_of: Callable[[File], bytes],
) -> None:
    into.mkdir(parents=True)
    for name, node in entries_of(directory).items():
        if isinstance(node, File):
            (into / name).write_bytes(content_of(node))
        else:
            _write(node, into / name, entries_of, content_of)

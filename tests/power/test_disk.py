"""States that a power cut may leave, and states that it may not: the model, on traces written by hand."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.power.disk import PAGE_BYTES, Disk, Order, Unseen
from tests.power.trace import Record, What

LOG, OTHER, FOLDER = 11, 12, 13
"""Inodes."""


def create(inode: int, name: str) -> Record:
    return Record(What.CREATE, inode, 0, name.encode())


def write(inode: int, at: int, data: bytes) -> Record:
    return Record(What.WRITE, inode, at, data)


def synced(inode: int, name: str = "some") -> list[Record]:
    return [Record(What.SYNC_BEGIN, inode, 7, name.encode()), Record(What.SYNC_END, inode, 7, b"")]


def rename(old: str, new: str) -> Record:
    return Record(What.RENAME, 0, 0, f"{old}\0{new}".encode())


def unlink(name: str) -> Record:
    return Record(What.UNLINK, 0, 0, name.encode())


def outcomes(
    records: Iterable[Record], tmp_path: Path, order: Order = Order.JOURNAL, draws: int = 400
) -> set[tuple[tuple[str, bytes], ...]]:
    """Return all directories that were drawn: (name, content) of the files in each."""
    disk = Disk(order)
    disk.play(records)
    found = set()
    for seed in range(draws):
        into = tmp_path / f"{order.value}{seed}"
        disk.after_power_cut(into, random.Random(seed))
        found.add(tuple(sorted((path.name, path.read_bytes()) for path in into.rglob("*") if path.is_file())))
    return found


def contents(records: Iterable[Record], tmp_path: Path, name: str = "log") -> set[bytes]:
    """Return the contents that the file may have, where it exists."""
    return {dict(each)[name] for each in outcomes(records, tmp_path) if name in dict(each)}


def test_what_was_synced_is_there(tmp_path: Path) -> None:
    found = contents([create(LOG, "log"), write(LOG, 0, b"safe"), *synced(LOG), write(LOG, 4, b"later")], tmp_path)
    assert all(each.startswith(b"safe") for each in found)
    assert {b"safe", b"safelater"} <= found
    assert any(b"safe" < each < b"safelater" for each in found), "torn"


def test_without_a_sync_nothing_need_be_there(tmp_path: Path) -> None:
    found = outcomes([create(LOG, "log"), write(LOG, 0, b"maybe")], tmp_path)
    assert {(), (("log", b""),), (("log", b"maybe"),)} <= found


def test_a_write_during_a_sync_is_not_safe(tmp_path: Path) -> None:
    """A sync keeps only bytes that were written before it began."""
    begin, end = synced(LOG)
    found = contents([create(LOG, "log"), write(LOG, 0, b"safe"), begin, write(LOG, 4, b"late"), end], tmp_path)
    assert {b"safe", b"safelate"} <= found
    assert all(each.startswith(b"safe") for each in found)


def test_a_sync_that_does_not_end_promises_nothing(tmp_path: Path) -> None:
    assert () in outcomes([create(LOG, "log"), write(LOG, 0, b"maybe"), synced(LOG)[0]], tmp_path)


def test_pages_come_in_any_order(tmp_path: Path) -> None:
    """A later page may be there without an earlier one, which then reads as zeros."""
    pages = [bytes([65 + number]) * PAGE_BYTES for number in range(3)]
    written = [write(LOG, number * PAGE_BYTES, page) for number, page in enumerate(pages)]
    found = contents([create(LOG, "log"), *synced(LOG), *written], tmp_path)
    assert bytes(PAGE_BYTES) + pages[1] + bytes(PAGE_BYTES) in found
    assert any(each.endswith(pages[2]) and pages[0] not in each for each in found)
    sectors = {each[at : at + 512] for each in found for at in range(0, len(each) - 511, 512)}
    assert sectors >= {bytes(512), b"A" * 512, b"B" * 512, b"C" * 512}


def test_an_overwritten_page_is_old_or_new(tmp_path: Path) -> None:
    """An overwritten page consists of whole sectors, each old or new."""
    old, new = b"o" * PAGE_BYTES, b"n" * PAGE_BYTES
    found = contents([create(LOG, "log"), write(LOG, 0, old), *synced(LOG), write(LOG, 0, new)], tmp_path)
    assert {old, new} <= found
    assert all(len(each) == PAGE_BYTES and set(each) <= set(b"on") for each in found)
    assert len(found) > 2


def test_a_truncation_is_a_change_like_others(tmp_path: Path) -> None:
    shorter = Record(What.TRUNCATE, LOG, 2, b"")
    found = contents([create(LOG, "log"), write(LOG, 0, b"safe"), *synced(LOG), shorter], tmp_path)
    assert found == {b"safe", b"sa", b"sa\0\0"}
    found = contents([create(LOG, "log"), write(LOG, 0, b"safe"), shorter, *synced(LOG)], tmp_path / "kept")
    assert found == {b"sa"}


#: CURRENT names the old manifest, a new one is made, and the old one removed, as LevelDB does
SWITCH = [
    create(LOG, "old"), write(LOG, 0, b"old"), *synced(LOG), create(OTHER, "CURRENT"), write(OTHER, 0, b"->old"),
    *synced(OTHER), *synced(1, ""), create(FOLDER, "new"), write(FOLDER, 0, b"new"), *synced(FOLDER),
    create(14, "tmp"), write(14, 0, b"->new"), *synced(14), rename("tmp", "CURRENT"), unlink("old"),
]  # fmt: skip


def current(outcome: tuple[tuple[str, bytes], ...]) -> tuple[bytes, bool]:
    """Return the content of CURRENT, and whether the file that it names exists."""
    files = dict(outcome)
    return files["CURRENT"], files["CURRENT"].decode()[2:] in files


def test_a_rename_is_sure_after_a_sync_of_the_directory(tmp_path: Path) -> None:
    found = {current(each) for each in outcomes(SWITCH, tmp_path)}
    assert found == {(b"->old", True), (b"->new", True)}
    found = {current(each) for each in outcomes([*SWITCH, *synced(1, "")], tmp_path / "synced")}
    assert found == {(b"->new", True)}


def test_without_a_journal_a_removal_may_overtake_a_rename(tmp_path: Path) -> None:
    """CURRENT may then name a file that is gone, a state from which LevelDB does not recover."""
    assert (b"->old", False) in {current(each) for each in outcomes(SWITCH, tmp_path, Order.ANY)}


def test_a_sync_of_a_file_keeps_its_name_but_not_by_posix(tmp_path: Path) -> None:
    records = [create(LOG, "log"), write(LOG, 0, b"safe"), *synced(LOG)]
    assert outcomes(records, tmp_path) == outcomes(records, tmp_path, Order.ANY) == {(("log", b"safe"),)}
    assert () in outcomes(records, tmp_path, Order.POSIX)


@pytest.mark.parametrize("order", list(Order))
def test_of_one_name_the_newer_change_wins(tmp_path: Path, order: Order) -> None:
    """The removal of a file does not remove a new file of the same name."""
    records = [
        create(LOG, "log"), write(LOG, 0, b"1"), *synced(LOG), *synced(1, ""),
        unlink("log"), create(OTHER, "log"), write(OTHER, 0, b"2"), *synced(OTHER), *synced(1, ""),
    ]  # fmt: skip
    assert outcomes(records, tmp_path, order) == {(("log", b"2"),)}


def test_a_reused_inode_is_another_file(tmp_path: Path) -> None:
    records = [create(LOG, "a"), write(LOG, 0, b"1"), *synced(LOG), unlink("a"), create(LOG, "b"), *synced(LOG)]
    assert outcomes(records, tmp_path) == {(("b", b""),)}


def test_a_file_without_its_directory_is_not_there(tmp_path: Path) -> None:
    folder = Record(What.MKDIR, FOLDER, 0, b"folder")
    assert outcomes([folder, create(LOG, "folder/log")], tmp_path) == {(), (("log", b""),)}


def test_stdio_is_for_the_log_of_leveldb_only() -> None:
    Disk().play([Record(What.UNSEEN, 0, 0, b"stdio\0db/LOG"), rename("db/LOG", "db/LOG.old"), unlink("db/LOG.old")])
    with pytest.raises(Unseen):
        Disk().play([Record(What.UNSEEN, 0, 0, b"stdio\0db/CURRENT")])

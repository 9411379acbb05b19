"""Commits of an output are atomic, whichever step the job ends at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_etl.jobs import JobError
from spark_etl.parquet.output import Commit, Output


class Killed(BaseException):
    """Stands for the end of the process at this point."""


def write(output: Output, number: int, rows: range) -> Commit:
    """Stage a file with these numbers in each of two dates, and commit it."""
    before = output.last()
    made = output.staging(number) / "making"
    for date in ("2026-11-21", "2026-11-22"):
        directory = made / f"date={date}" / "tenant=default"
        directory.mkdir(parents=True)
        pq.write_table(pa.table({"number": list(rows)}), directory / "part-0.parquet")
    files = output.stage(number, "messages", made, 0)
    return output.commit(replace(before, number=number, job="test", files=(*before.files, *files)))


def rewrite(output: Output) -> Commit:
    """Rewrite all files into one, and commit it."""
    before = output.last()
    number = before.number + 1
    made = output.staging(number) / "making" / "date=2026-11-22" / "tenant=default"
    made.mkdir(parents=True)
    tables = [pq.read_table(path, partitioning=None) for path in output.paths("messages")]
    pq.write_table(pa.concat_tables(tables), made / "part-0.parquet")
    files = output.stage(number, "messages", made.parents[1], 0)
    return output.commit(replace(before, number=number, job="test", files=tuple(files)))


def by_commit(directory: Path) -> list[int]:
    output = Output(directory)
    return sorted(
        number
        for path in output.paths("messages")
        for number in pq.read_table(path, partitioning=None)["number"].to_pylist()
    )


def by_directory(directory: Path) -> list[int]:
    return sorted(
        number
        for path in directory.glob("messages/*/*/*.parquet")
        for number in pq.read_table(path, partitioning=None)["number"].to_pylist()
    )


def ends_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """End the process at the given change of the disk, counted from now."""
    steps = 0

    def counted(change: Callable[..., object]) -> Callable[..., object]:
        def changed(*arguments: object, **named: object) -> object:
            nonlocal steps
            steps += 1
            if steps >= step:
                raise Killed
            return change(*arguments, **named)

        return changed

    monkeypatch.setattr(os, "link", counted(os.link))
    monkeypatch.setattr(os, "fsync", counted(os.fsync))
    monkeypatch.setattr(shutil, "rmtree", counted(shutil.rmtree))
    for name in ("rename", "unlink", "mkdir", "write_text"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))


def killed_at(directory: Path, step: int, work: Callable[[Output], object]) -> bool:
    """Run `work` until it ends or reaches the step; return whether it was killed there."""
    with pytest.MonkeyPatch.context() as patched, Output(directory) as output:
        ends_at(patched, step)
        try:
            work(output)
        except Killed:
            return True
        return False


def each_step(directory: Path, made: Path, work: Callable[[Output], object]) -> list[Path]:
    """Return copies of an output, one for each step at which the job may end, and one of the finished job."""
    outputs: list[Path] = []
    while True:
        path = directory / str(len(outputs))
        shutil.copytree(made, path)
        outputs.append(path)
        if not killed_at(path, len(outputs), work):
            return outputs


def test_a_commit_is_there_or_not_at_whichever_step_the_job_ends(tmp_path: Path) -> None:
    before, after = sorted([*range(3)] * 2), sorted([*range(3), *range(3, 7)] * 2)

    with Output(tmp_path / "made") as output:
        write(output, 1, range(3))
    outputs = each_step(tmp_path, tmp_path / "made", lambda output: write(output, 2, range(3, 7)))
    assert len(outputs) > 15
    seen = []
    for path in outputs:
        found = by_commit(path)
        assert found in (before, after)
        assert len(set(by_directory(path))) * 2 >= len(by_directory(path)), "a row twice"
        seen.append(found == after)
        with Output(path) as output:
            if not seen[-1]:
                write(output, 2, range(3, 7))
            assert [file.rows for file in output.last().files] == [3, 3, 4, 4]
        assert by_commit(path) == by_directory(path) == after
        assert not (path / "_mqttd" / "staging").exists()
    assert seen == sorted(seen)
    assert seen.count(False) > 5
    assert seen.count(True) > 5


def test_files_that_were_made_one_are_never_beside_it(tmp_path: Path) -> None:
    rows = sorted([*range(3), *range(3, 7)] * 2)

    with Output(tmp_path / "made") as output:
        write(output, 1, range(3))
        write(output, 2, range(3, 7))
    for path in each_step(tmp_path, tmp_path / "made", rewrite):
        assert by_commit(path) == rows
        assert len(by_directory(path)) <= len(rows)
        with Output(path) as output:
            assert len(output.last().files) in (1, 4)
        assert by_commit(path) == by_directory(path) == rows


def test_one_job_at_a_time(tmp_path: Path) -> None:
    with Output(tmp_path / "out"), pytest.raises(JobError, match="out: another job is writing to it"):
        Output(tmp_path / "out").__enter__()


def test_commits_of_others_are_not_written_over(tmp_path: Path) -> None:
    with Output(tmp_path / "out") as output:
        write(output, 1, range(3))
        with pytest.raises(JobError, match="another job has written to it"):
            output.commit(Commit(1))


def test_what_is_no_output_or_damaged_or_newer_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(JobError, match="mine: is not empty, and no output of mqttd"):
        Output(tmp_path / "mine").__enter__()
    with Output(tmp_path / "out") as output:
        write(output, 1, range(3))
    commit = tmp_path / "out" / "_mqttd" / "00000001.json"
    text = commit.read_text()
    commit.write_text(text.replace('"format": 1', '"format": 2'))
    with pytest.raises(JobError, match=r"00000001.json: has format 2, this mqttd reads 1"):
        Output(tmp_path / "out").last()
    commit.write_text(text[:-20])
    with pytest.raises(JobError, match=r"00000001.json: is damaged"):
        Output(tmp_path / "out").last()


def test_commit_files_do_not_become_more_and_more(tmp_path: Path) -> None:
    with Output(tmp_path / "out") as output:
        for number in range(1, 14):
            write(output, number, range(number, number + 1))
        assert len(list((tmp_path / "out" / "_mqttd").glob("*.json"))) == 10
        assert output.last().number == 13
        assert len(output.last().files) == 26

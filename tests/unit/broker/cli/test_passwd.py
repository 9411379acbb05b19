"""`mqttd passwd`: what it writes, what it leaves unchanged, what it refuses."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from broker.auth.password_file import PasswordFile
from broker.cli import main as cli
from tests.broker_process import ROOT
from tests.scram_client import ScramClient
from tests.unit.broker.auth.test_password_file import PBKDF2

FEW = ("--scram-iterations", "4096")
SECONDS_MAX = 60.0

Passwd = Callable[..., int]


@pytest.fixture
def passwd(monkeypatch: pytest.MonkeyPatch) -> Passwd:
    """``passwd(*arguments, stdin=b"...")`` runs it and returns its exit status."""

    def run(*arguments: str | Path, stdin: bytes = b"secret\n") -> int:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin), isatty=lambda: False))
        try:
            return cli.main(["passwd", *(str(each) for each in arguments)])
        except SystemExit as exit:
            return int(exit.code or 0)

    return run


def test_it_writes_a_user_that_can_log_in_both_ways(passwd: Passwd, tmp_path: Path) -> None:
    path = tmp_path / "users"
    assert passwd(path, "alice", stdin="pässword: 1\r\nsecond line\n".encode()) == 0
    assert path.stat().st_mode & 0o7777 == 0o600
    line = path.read_text()
    assert line.startswith("alice:$argon2id$v=19$m=19456,t=2,p=1$")
    assert ":$scram-sha-256$i=100000$" in line
    assert line.count("\n") == 1
    file = PasswordFile.load(str(path))
    assert file.check("alice", "pässword: 1".encode())
    assert not file.check("alice", "pässword: 1\r".encode())
    client = ScramClient("alice", "pässword: 1")
    from broker.auth.chain import Chain
    from broker.auth.scram import Exchange

    server = Exchange(Chain([file]).scram)
    client.check(server.step(client.final(server.step(client.first()))))
    assert os.listdir(tmp_path) == ["users"]


def test_every_other_line_stays_as_it_is(passwd: Passwd, tmp_path: Path) -> None:
    path = tmp_path / "users"
    before, after = f"# our users\n\nbob:{PBKDF2}\r\n".encode(), b"alices:not ours\nnonsense \xff\r x\n carl:"
    path.write_bytes(before + b"alice:old\n" + after)
    path.chmod(0o640)
    assert passwd(*FEW, path, "alice") == 0
    data = path.read_bytes()
    assert data.startswith(before + b"alice:$argon2id$")
    assert data.endswith(b"\n" + after)
    assert path.stat().st_mode & 0o7777 == 0o640
    assert passwd(*FEW, path, "dora") == 0
    assert path.read_bytes().startswith(data + b"\ndora:$argon2id$")
    assert passwd("-D", path, "alice") == 0
    assert path.read_bytes().startswith(before + after + b"\ndora:")
    assert passwd("--delete", path, "dora") == 0
    assert path.read_bytes() == before + after + b"\n"


def test_a_user_that_was_there_twice_is_there_once(passwd: Passwd, tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text(f"a:x\nbob:{PBKDF2}\na:y\n")
    assert passwd(*FEW, path, "a") == 0
    assert [line.partition(":")[0] for line in path.read_text().splitlines()] == ["a", "bob"]


def test_the_file_behind_a_link_is_replaced_and_not_the_link(passwd: Passwd, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    path, link = tmp_path / "real" / "users", tmp_path / "link"
    path.touch()
    link.symlink_to(path)
    assert passwd(*FEW, link, "alice") == 0
    assert link.is_symlink()
    assert path.read_text().startswith("alice:")


def test_no_scram_verifier_if_none_is_wanted(passwd: Passwd, tmp_path: Path) -> None:
    path = tmp_path / "users"
    assert passwd("--scram-iterations", "0", path, "a b\u00a0c", stdin=b"bell \x07\n") == 0
    assert PasswordFile.load(str(path)).check("a b\u00a0c", b"bell \x07")
    assert "scram" not in path.read_text()


@pytest.mark.parametrize(
    ("user", "why"),
    [
        ("", "an empty user name"),
        ("a:b", "a ':' in the user name"),
        ("a\nb", "a control character in the user name"),
        ("a\x7f", "a control character in the user name"),
        ("#a", "a '#' in front of the user name, which makes the line a comment"),
        ("a\udcff", "a user name that is not UTF-8"),
        ("x" * 65536, "a user name of more than 65535 bytes"),
        (
            "\u2168",
            "SCRAM-SHA-256 does not allow it: the user name has characters that SASLprep changes; "
            "--scram-iterations 0 leaves it out",
        ),
    ],
)
def test_names_that_are_refused(
    passwd: Passwd, tmp_path: Path, capsys: pytest.CaptureFixture[str], user: str, why: str
) -> None:
    assert passwd(tmp_path / "users", user) == 2
    assert capsys.readouterr().err == f"mqttd: {why}\n"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("stdin", "why"),
    [
        (b"", "an empty password"),
        (b"\nsecret\n", "an empty password"),
        (b"\xff\n", "the password is not UTF-8"),
        (b"x" * 65536 + b"\n", "a password of more than 65535 bytes"),
        (
            b"bell \x07\n",
            "SCRAM-SHA-256 does not allow it: a character that SASLprep prohibits; --scram-iterations 0 leaves it out",
        ),
    ],
)
def test_passwords_that_are_refused(
    passwd: Passwd, tmp_path: Path, capsys: pytest.CaptureFixture[str], stdin: bytes, why: str
) -> None:
    path = tmp_path / "users"
    path.write_text("bob:x\n")
    assert passwd("--password-stdin", path, "alice", stdin=stdin) == 2
    assert capsys.readouterr().err == f"mqttd: {why}\n"
    assert path.read_text() == "bob:x\n"


def test_what_cannot_be_done_is_said(passwd: Passwd, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "users"
    assert passwd("-D", path, "alice") == 1
    assert capsys.readouterr().err == f"mqttd: {path}: No such file or directory\n"
    path.write_text("bob:x\n")
    assert passwd("-D", path, "alice") == 1
    assert capsys.readouterr().err == f"mqttd: {path}: no user alice\n"
    assert passwd(tmp_path / "none" / "users", "alice") == 1
    assert capsys.readouterr().err == f"mqttd: {tmp_path}/none: No such file or directory\n"
    assert passwd(tmp_path, "alice") == 1
    assert passwd("--scram-iterations", "4095", path, "alice") == 2
    assert passwd(path) == 2
    assert path.read_text() == "bob:x\n"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    passwd: Passwd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "users"
    path.write_text("bob:x\n")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert passwd(*FEW, path, "alice") == 1
    assert capsys.readouterr().err == f"mqttd: {path}: No space left on device\n"
    assert path.read_text() == "bob:x\n"
    assert os.listdir(tmp_path) == ["users"]


def in_terminal(typed: list[str], *arguments: str | Path) -> tuple[int, str]:
    """Return (exit status, output) of a run in a terminal of its own, with one answer per prompt."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "broker", "passwd", *(str(each) for each in arguments)]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, start_new_session=True, close_fds=True
    )
    os.close(theirs)
    shown = b""
    for answer in [*typed, None]:
        while not shown.endswith(b": ") or answer is None:
            try:
                data = os.read(ours, 4096)
            except OSError:  # the other end is closed
                data = b""
            if not data:
                break
            shown += data
        if answer is not None:
            os.write(ours, answer.encode() + b"\n")
            shown += b" "  # this prompt is answered
    os.close(ours)
    return process.wait(SECONDS_MAX), shown.decode()


def test_in_a_terminal_it_asks_twice_and_shows_nothing(tmp_path: Path) -> None:
    path = tmp_path / "users"
    status, shown = in_terminal(["geheim", "geheim"], *FEW, path, "alice")
    assert (status, "Password: " in shown, "Again: " in shown, "geheim" in shown) == (0, True, True, False), shown
    assert PasswordFile.load(str(path)).check("alice", b"geheim")
    status, shown = in_terminal(["one", "two"], *FEW, path, "bob")
    assert status == 2
    assert "mqttd: the passwords differ" in shown
    assert len(PasswordFile.load(str(path))) == 1


def test_two_runs_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "users"
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "broker", "passwd", *FEW, str(path), f"user{i}"], stdin=subprocess.PIPE, cwd=ROOT
        )
        for i in range(4)
    ]
    for run in runs:
        run.communicate(b"secret\n", SECONDS_MAX)
        assert run.returncode == 0
    assert len(PasswordFile.load(str(path))) == 4

"""The password file: valid lines, every mistake with its place, hashes of mosquitto, and what outsiders learn."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.auth import hashes, scram
from broker.auth.chain import Chain
from broker.auth.contract import CredentialsError
from broker.auth.password_file import PasswordFile, parse

# made by mosquitto_passwd 2.0.11, passwords "secret" and "secret2"
PBKDF2 = (
    "$7$101$MiT0TK6+jRXwuoq9$pRDGR+IzbY1byenMmk5cvb+cty/yUrBxXIwtnD9e2nTVul21I74HSfBy7RM6kCySPLkF4DZzwtojDpq3PENeDg=="
)
SHA512 = "$6$DmJvZluLxKRh2ykh$cLu+LVgBc7ch2EVevpyByoOL3PRw13Uhvk3ldumczZxLHgZH0G9o2mtFNJJgG2+s6Zv0rsYRr6xxnUL1dd4gWg=="
# of the test-suite of the reference implementation (phc-winner-argon2, src/test.c), password "password"
REFERENCE = "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc"
ARGON2ID = hashes.make(b"secret3").text
SCRAM = scram.text_of(scram.make("pencil", 4096))


def users(*lines: str) -> PasswordFile:
    return PasswordFile(parse("\n".join(lines).encode(), "users"))


def errors(data: str | bytes) -> list[str]:
    with pytest.raises(CredentialsError) as caught:
        parse(data.encode() if isinstance(data, str) else data, "users")
    return caught.value.lines


@pytest.mark.parametrize(
    ("line", "password"),
    [(PBKDF2, b"secret"), (SHA512, b"secret2"), (ARGON2ID, b"secret3"), (REFERENCE, b"password")],
    ids=["pbkdf2", "sha512", "argon2id", "reference"],  # the same in every process: a hash has a salt
)
def test_a_password_is_right_or_wrong(line: str, password: bytes) -> None:
    file = users(f"alice:{line}")
    assert file.check("alice", password)
    for wrong in (b"", password[:-1], password + b"x", password.upper(), b"\0" + password):
        assert not file.check("alice", wrong)
    assert not file.check("Alice", password)


@pytest.mark.skipif(shutil.which("mosquitto_passwd") is None, reason="mosquitto_passwd is not installed")
@pytest.mark.parametrize("kind", ["sha512", "sha512-pbkdf2"])
def test_what_mosquitto_passwd_writes_is_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "users"
    path.touch()
    subprocess.run(["mosquitto_passwd", "-H", kind, "-b", path, "carl", "pässword:$ x"], check=True, timeout=60)
    file = PasswordFile.load(str(path))
    assert file.check("carl", "pässword:$ x".encode())
    assert not file.check("carl", b"x")


def test_the_fields_come_in_any_order_and_either_is_enough() -> None:
    file = users(
        f"a:{PBKDF2}:{SCRAM}", f"b:{SCRAM}:{PBKDF2}", f"c:{SCRAM}", f"d:{PBKDF2}", "", "# e:x", "ü 1:" + PBKDF2
    )
    assert len(file) == 5
    assert [name for name in ("a", "b", "c", "d", "ü 1") if file.check(name, b"secret")] == ["a", "b", "d", "ü 1"]
    assert [scram.text_of(file.scram(name) or file.nobody(name)) for name in "abc"] == [SCRAM] * 3


def test_lines_may_end_with_cr_and_the_last_without_newline() -> None:
    assert len(parse(f"a:{PBKDF2}\r\nb:{PBKDF2}".encode(), "users")) == 2
    assert parse(b"", "users") == {}


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("alice", "no ':' behind the user name"),
        (f":{PBKDF2}", "an empty user name"),
        (f"a\tb:{PBKDF2}", "a control character in the user name"),
        (f"a\x85b:{PBKDF2}", "a control character in the user name"),
        ("alice:", "no argon2id, $7$ or $6$ hash"),
        ("alice:secret", "no argon2id, $7$ or $6$ hash"),
        (f"alice:{PBKDF2}:", "two hashes for one user"),
        (f"alice:{PBKDF2}:{SHA512}", "two hashes for one user"),
        (f"alice:{SCRAM}:{SCRAM}", "two SCRAM-SHA-256 verifiers for one user"),
        (f"alice:{PBKDF2[:-1]}", "the $7$ (PBKDF2) hash is malformed"),
        (f"alice:{PBKDF2} ", "the $7$ (PBKDF2) hash is malformed"),
        (f"alice:{PBKDF2.replace('$101$', '$0$')}", "the $7$ (PBKDF2) hash is malformed"),
        (f"alice:{PBKDF2.replace('$101$', '$10000001$')}", "$7$ with 10000001 iterations; at most 10000000"),
        (f"alice:{SHA512[:-8]}", "the $6$ (SHA-512) hash is malformed"),
        (f"alice:{ARGON2ID.replace('v=19', 'v=16')}", "the argon2id hash is malformed"),
        (f"alice:{ARGON2ID[:-1]}B", "the argon2id hash is malformed"),  # bits left over
        (f"alice:{ARGON2ID}AA", "the argon2id hash is malformed"),  # 45 characters of base64 are impossible
        (f"alice:{ARGON2ID.replace('argon2id', 'argon2i')}", "no argon2id, $7$ or $6$ hash"),
        (f"alice:{SCRAM[:-1]}", "the SCRAM-SHA-256 verifier is malformed"),
        (f"alice:{SCRAM.replace('4096', '4095')}", "SCRAM-SHA-256 with 4095 iterations; 4096 to 10000000"),
    ],
)
def test_a_malformed_line_is_named_with_its_place_and_without_its_secret(line: str, error: str) -> None:
    assert errors(f"# users\nbob:{SHA512}\n{line}\n") == [f"users:3: {error}"]


def test_an_argon2id_line_that_asks_for_too_much_is_an_error() -> None:
    (line,) = errors("a:" + ARGON2ID.replace("m=19456", "m=1048577"))
    assert line.startswith("users:1: argon2id with m=1048577, t=2, p=1; at most m=1048576")


def test_every_error_is_named_and_no_endless_list() -> None:
    assert errors(f"a:x\nb:{SHA512}\nb:{SHA512}\n".encode() + b"\xff:x\n") == [
        "users:1: no argon2id, $7$ or $6$ hash",
        "users:3: the user has a line already",
        "users:4: not UTF-8",
    ]
    assert errors("x\n" * 1000)[-2:] == ["users:20: no ':' behind the user name", "users: and more"]


@given(st.binary(), st.sampled_from([PBKDF2, SHA512, ARGON2ID, SCRAM]), st.integers(0, 200), st.booleans())
def test_any_bytes_are_users_or_errors(noise: bytes, line: str, at: int, replace: bool) -> None:
    data = f"alice:{line}".encode()
    data = data[:at] + noise + data[at + (len(noise) if replace else 0) :]
    names: list[str] = []
    wrong: list[str] = []
    try:
        names += parse(data, "users")
    except CredentialsError as error:
        wrong += error.lines
    assert not any(":" in name for name in names)
    assert all(re.match(r"users:\d+: |users: and more", each) for each in wrong)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    def why(path: Path) -> str:
        with pytest.raises(CredentialsError) as caught:
            PasswordFile.load(str(path))
        return str(caught.value).removeprefix(f"{path}: ")

    assert why(tmp_path / "none") == "No such file or directory"
    assert why(tmp_path) in ("Is a directory", "not a regular file")
    os.mkfifo(tmp_path / "pipe")
    assert why(tmp_path / "pipe") == "not a regular file"


@pytest.mark.parametrize(("mode", "exposed"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_file_that_everybody_may_read_is_noticed(tmp_path: Path, mode: int, exposed: bool) -> None:
    path = tmp_path / "users"
    path.write_text(f"a:{PBKDF2}\n")
    path.chmod(mode)
    assert PasswordFile.load(str(path)).world_readable is exposed


def test_an_unknown_user_costs_the_hash_of_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    verify = hashes.Hash.verify

    def noted(self: hashes.Hash, password: bytes) -> bool:
        checked.append(self.text)
        return verify(self, password)

    monkeypatch.setattr(hashes.Hash, "verify", noted)
    file = users(f"a:{PBKDF2}", f"b:{SHA512}", f"c:{SCRAM}")
    for name in ("nobody", "c"):
        assert not file.check(name, b"secret")
        assert not file.check(name, b"secret2")
    assert len(checked) == 4
    assert checked[0] == checked[1]  # always the hash of the same user
    assert not users().check("nobody", b"x")
    assert checked[-1].startswith("$argon2id$")


def test_scram_tells_nothing_of_unknown_users() -> None:
    salt_12 = scram.text_of(scram.make("x", 5000, b"123456789012"))
    file = users(f"a:{salt_12}", f"b:{salt_12}", f"c:{SCRAM}", f"d:{PBKDF2}")
    assert file.scram("nobody") is None
    chain = Chain([file])
    for name in ("nobody", "d"):
        first, again = chain.scram(name), chain.scram(name)
        assert (first.iterations, len(first.salt)) == (5000, 12)
        assert first.salt == again.salt
        assert first.stored_key != again.stored_key
    assert chain.scram("nobody").salt != chain.scram("somebody").salt
    assert users(f"e:{salt_12}").nobody("nobody").salt == chain.scram("nobody").salt  # also after a reload

"""Several authentication back-ends: the first that has a user decides, and no client learns which one has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker import auth
from broker.auth.chain import Chain
from broker.auth.contract import Backend, CredentialsError, Verifier
from broker.config.loading import load
from broker.config.settings import ConfigError, Settings
from tests.sansio import Host
from tests.unit.broker.auth.test_password_file import PBKDF2
from tests.unit.broker.clients.test_authenticating import Hashes, offer, refused


class Fixed:
    """A small back-end: plain-text passwords, and a record of its queries."""

    def __init__(self, users: dict[str, bytes], world_readable: bool = False) -> None:
        self.users = users
        self.world_readable = world_readable
        self.asked: list[str] = []

    def __len__(self) -> int:
        return len(self.users)

    def check(self, username: str, password: bytes) -> bool | None:
        self.asked.append(username)
        return None if username not in self.users else self.users[username] == password

    def scram(self, username: str) -> Verifier | None:
        return self.nobody(username) if username in self.users else None

    def nobody(self, username: str) -> Verifier:
        return Verifier(len(self.users), username.encode(), b"", b"")


FIRST = {"alice": b"a1", "both": b"b1"}
SECOND = {"bob": b"b", "both": b"b2", "carol": b"c"}


@pytest.fixture
def links() -> tuple[Fixed, Fixed]:
    return Fixed(FIRST), Fixed(SECOND)


@pytest.mark.parametrize(
    ("user", "password", "right"),
    [
        ("alice", b"a1", True),
        ("alice", b"b", False),
        ("bob", b"b", True),
        ("both", b"b1", True),
        ("both", b"b2", False),  # the first that has the user decides
        ("nobody", b"a1", False),
    ],
)
def test_who_is_let_in(links: tuple[Fixed, Fixed], user: str, password: bytes, right: bool) -> None:
    assert Chain(links).check(user, password) is right


@pytest.mark.parametrize("user", ["alice", "bob", "both", "nobody"])
def test_whoever_is_refused_has_been_looked_for_everywhere(links: tuple[Fixed, Fixed], user: str) -> None:
    assert not Chain(links).check(user, b"wrong")
    assert [each.asked for each in links] == [[user], [user]]


def test_scram_is_of_the_first_that_has_the_user_and_of_nobody_else(links: tuple[Fixed, Fixed]) -> None:
    chain = Chain(links)
    assert [chain.scram(user).iterations for user in ("alice", "bob", "both", "nobody")] == [2, 3, 2, 2]


def test_what_a_chain_says_of_itself(links: tuple[Fixed, Fixed]) -> None:
    assert len(Chain(links)) == 5
    assert not Chain(links).world_readable
    assert Chain([links[0], Fixed({}, world_readable=True)]).world_readable


def test_a_new_back_end_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Users of both back-ends connect through a worker; the second back-end borrows an existing setting."""

    def open_fixed(text: str) -> Backend:
        if text == "wrong":
            raise CredentialsError(["no such users"])
        return Fixed({"dave": text.encode()})

    monkeypatch.setitem(auth.BACKENDS, "data_dir", open_fixed)
    users = tmp_path / "users"
    users.write_text(f"alice:{PBKDF2}\n")
    host = Host(password_file=str(users), data_dir="secret2")
    hashes = Hashes(host)
    for name, password, reason in (("alice", b"secret", 0), ("dave", b"secret2", 0), ("dave", b"secret", 0x86)):
        peer = offer(host, 5, f"c-{name}-{reason}", name, password)
        hashes.compute()
        if reason:
            refused(peer, reason)
        else:
            assert peer.next("CONNACK").reason == 0
            assert peer.session.details.username == name
    users.write_text("alice:nothing\n")
    with pytest.raises(ConfigError) as caught:
        load(None, {}, {"password_file": str(users), "data_dir": "wrong"})
    assert [line.partition(":")[0] for line in caught.value.lines] == ["password_file", "data_dir"]
    assert isinstance(Settings(password_file=None, data_dir="x").credentials, Chain)

"""Users from a password file: a line per user, `NAME:VERIFIER[:VERIFIER]`, as docs/credentials.md describes it.

A verifier is a hashed password (`broker.auth.hashes`) or what SCRAM-SHA-256 needs (`broker.auth.scram`); a user has at
most one of each, in any order. Empty lines and lines that begin with `#` say nothing. The file is read whole; a change
is taken over by reading it anew.

Who does not exist must not be told apart by time or by what SCRAM says: a password for an unknown name is checked
against somebody else's hash and refused whatever comes out, and SCRAM gets a verifier that no password matches, with a
salt that stays the same for that name as long as the broker runs.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections import Counter
from dataclasses import dataclass

from broker.auth import hashes, scram
from broker.auth.contract import CredentialsError, Verifier
from broker.auth.hashes import Hash

__all__ = ["NAME_BYTES_MAX", "PasswordFile", "User", "name_error", "parse"]

NAME_BYTES_MAX = 65_535  # of a User Name in CONNECT
_FILE_BYTES_MAX = 256 << 20
_ERRORS_MAX = 20  # lines named; a file of another kind has one per line

# Made before the workers are forked, so that all of them give the same salts. In nobody's hands.
_FAKE_KEY = secrets.token_bytes(32)


@dataclass(frozen=True, slots=True)
class User:
    """What a line says of its user; at least one is there."""

    hash: Hash | None
    verifier: Verifier | None


class PasswordFile:
    """The users of one reading."""

    def __init__(self, users: dict[str, User], world_readable: bool = False) -> None:
        self._users = users
        self._hashes = [user.hash for user in users.values() if user.hash is not None]
        forms = Counter(
            (user.verifier.iterations, len(user.verifier.salt)) for user in users.values() if user.verifier is not None
        )
        self._fake_form = max(forms, key=lambda form: (forms[form], form)) if forms else None
        self.world_readable = world_readable

    @classmethod
    def load(cls, path: str) -> PasswordFile:
        """Read the file. Raises CredentialsError with every error found."""
        try:
            with open(path, "rb", opener=_without_waiting) as opened:
                status = os.fstat(opened.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise CredentialsError([f"{path}: not a regular file"])
                data = opened.read(_FILE_BYTES_MAX + 1)
        except OSError as error:
            raise CredentialsError([f"{path}: {error.strerror}"]) from None
        if len(data) > _FILE_BYTES_MAX:
            raise CredentialsError([f"{path}: more than {_FILE_BYTES_MAX} bytes"])
        return cls(parse(data, path), bool(status.st_mode & stat.S_IROTH))

    def __len__(self) -> int:
        return len(self._users)

    def check(self, username: str, password: bytes) -> bool | None:
        """Whether this is the user's password; None: there is no such user. Slow, and as slow for names that do not
        exist; from any thread.
        """
        user = self._users.get(username)
        if user is not None and user.hash is not None:
            return user.hash.verify(password)
        self._somebody(username).verify(password)
        return None if user is None else False

    def scram(self, username: str) -> Verifier | None:
        """The user's SCRAM verifier; None: there is no such user."""
        user = self._users.get(username)
        return None if user is None else user.verifier or self.nobody(username)

    def nobody(self, username: str) -> Verifier:
        """A verifier that no password matches, in the form that most users have."""
        iterations, salt_bytes = self._fake_form or (scram.ITERATIONS, scram.SALT_BYTES)
        salt = hashlib.shake_256(_FAKE_KEY + username.encode()).digest(salt_bytes)
        return Verifier(iterations, salt, secrets.token_bytes(32), secrets.token_bytes(32))

    def _somebody(self, username: str) -> Hash:
        # always the same one for a name, else its times would vary as nobody's do
        if not self._hashes:
            return hashes.NOBODY
        number = hashlib.blake2b(username.encode(), key=_FAKE_KEY, digest_size=8).digest()
        return self._hashes[int.from_bytes(number) % len(self._hashes)]


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO without a writer would stop us for ever


def parse(data: bytes, name: str) -> dict[str, User]:
    """The users in the bytes of a file called `name`. Raises CredentialsError."""
    users: dict[str, User] = {}
    errors: list[str] = []
    for number, line in enumerate(data.split(b"\n"), 1):
        line = line.removesuffix(b"\r")
        if not line or line.startswith(b"#"):
            continue
        try:
            username, user = _line(line.decode())
            if username in users:
                raise ValueError("the user has a line already")
            users[username] = user
        except UnicodeDecodeError:
            errors.append(f"{name}:{number}: not UTF-8")
        except ValueError as error:
            errors.append(f"{name}:{number}: {error}")
        if len(errors) == _ERRORS_MAX:
            errors.append(f"{name}: and more")
            break
    if errors:
        raise CredentialsError(errors)
    return users


def _line(line: str) -> tuple[str, User]:
    username, *fields = line.split(":")
    if error := name_error(username):
        raise ValueError(error)
    if not fields:
        raise ValueError("no ':' behind the user name")
    found: Hash | None = None
    verifier: Verifier | None = None
    for field in fields:
        if field.startswith("$scram-sha-256$"):
            if verifier is not None:
                raise ValueError("two SCRAM-SHA-256 verifiers for one user")
            verifier = scram.read(field)
        else:
            if found is not None:
                raise ValueError("two hashes for one user")
            found = hashes.read(field)
    return username, User(found, verifier)


def name_error(username: str) -> str:
    """Why this cannot be the name of a user in the file, or ""."""
    if not username:
        return "an empty user name"
    if any(ord(each) < 0x20 or 0x7F <= ord(each) < 0xA0 for each in username):
        return "a control character in the user name"
    if ":" in username:
        return "a ':' in the user name"
    if username.startswith("#"):
        return "a '#' in front of the user name, which makes the line a comment"
    try:
        size = len(username.encode())
    except UnicodeEncodeError:
        return "a user name that is not UTF-8"
    return f"a user name of more than {NAME_BYTES_MAX} bytes" if size > NAME_BYTES_MAX else ""

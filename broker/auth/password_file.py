"""Users from a password file: a line per user, `NAME:VERIFIER[:VERIFIER]`, as docs/credentials.md describes it.

A verifier is a password hash (`broker.auth.hashes`) or a SCRAM-SHA-256 verifier (`broker.auth.scram`); a user has at
most one of each, in any order. Empty lines and lines that begin with `#` are ignored. The file is read whole; changes
are applied by reading it again.

Unknown names must not be distinguishable by response time or by SCRAM's answers: a password for an unknown name is
checked against another user's hash and always refused, and SCRAM gets a verifier that no password matches, with a salt
that stays the same for that name as long as the broker runs.
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

NAME_BYTES_MAX = 65_535  # the longest User Name of CONNECT
_FILE_BYTES_MAX = 256 << 20
_ERRORS_MAX = 20  # errors listed; a file of another kind has one per line

# Drawn before the workers are forked, so that all of them give the same salts. Never disclosed.
_FAKE_KEY = secrets.token_bytes(32)


@dataclass(frozen=True, slots=True)
class User:
    """The verifiers of one user; at least one is set."""

    hash: Hash | None
    verifier: Verifier | None


class PasswordFile:
    """The users read from a password file."""

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
        """Return whether this is the user's password; None: unknown user. Slow, and equally slow for unknown users;
        callable from any thread.
        """
        user = self._users.get(username)
        if user is not None and user.hash is not None:
            return user.hash.verify(password)
        self._somebody(username).verify(password)
        return None if user is None else False

    def scram(self, username: str) -> Verifier | None:
        """Return the user's SCRAM verifier; None: unknown user."""
        user = self._users.get(username)
        return None if user is None else user.verifier or self.nobody(username)

    def nobody(self, username: str) -> Verifier:
        """Return a verifier that no password matches, in the form that most users have."""
        iterations, salt_bytes = self._fake_form or (scram.ITERATIONS, scram.SALT_BYTES)
        salt = hashlib.shake_256(_FAKE_KEY + username.encode()).digest(salt_bytes)
        return Verifier(iterations, salt, secrets.token_bytes(32), secrets.token_bytes(32))

    def _somebody(self, username: str) -> Hash:
        # always the same user for a name, else response times of unknown names would vary
        if not self._hashes:
            return hashes.NOBODY
        number = hashlib.blake2b(username.encode(), key=_FAKE_KEY, digest_size=8).digest()
        return self._hashes[int.from_bytes(number) % len(self._hashes)]


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO without a writer would block us forever


def parse(data: bytes, name: str) -> dict[str, User]:
    """Parse the bytes of a file called `name` into users. Raises CredentialsError."""
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
    """Return why this cannot be a user name in the file, or ""."""
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

"""The interfaces of back-ends and authentication methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Backend", "CredentialsError", "Method", "MethodError", "Verifier"]


class CredentialsError(Exception):
    """A back-end cannot be used."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines
        """One line per error; for a file: `FILE:LINE: error`."""


class MethodError(Exception):
    """An authentication has failed. The text is for the log: the client only learns that it failed."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """A user's SCRAM verifier: the data that the server keeps instead of the password (RFC 5802, 3)."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


class Backend(Protocol):
    """A source of users: a link of a chain (`broker.auth.chain`). Names are passed as the client sent them."""

    world_readable: bool
    """Whether others on this machine can read its source: worth a warning."""

    def __len__(self) -> int:
        """Return the number of users."""

    def check(self, username: str, password: bytes) -> bool | None:
        """Return whether the password is right; None: the user is unknown here, and the next back-end decides. May be
        slow, and is called in a thread; takes as long for unknown users.
        """

    def scram(self, username: str) -> Verifier | None:
        """Return the user's SCRAM-SHA-256 verifier; None: the user is unknown here."""

    def nobody(self, username: str) -> Verifier:
        """Return a verifier that no password matches and that looks like a real one: always the same for a name."""


class Method(Protocol):
    """The server side of one authentication by an Authentication Method of MQTT 5."""

    username: str
    """The name that the client claims, proven when `done`."""
    done: bool

    def step(self, data: bytes) -> bytes:
        """Take the client's Authentication Data, return the server's. Raises MethodError when it has failed."""

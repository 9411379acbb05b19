"""What back-ends and authentication methods are to the rest of the broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Backend", "CredentialsError", "Method", "MethodError", "Verifier"]


class CredentialsError(Exception):
    """A back-end cannot be used."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines
        """One per error; of a file: `FILE:LINE: what is wrong`."""


class MethodError(Exception):
    """An authentication has failed. The text is for the log: the client is told only that it failed."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """What the server knows of a password for SCRAM (RFC 5802, 3)."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


class Backend(Protocol):
    """Where users come from: a link of a chain (`broker.auth.chain`). All names are as the client sent them."""

    world_readable: bool
    """Whether others on this machine may read what it reads: worth a warning."""

    def __len__(self) -> int:
        """How many users there are."""

    def check(self, username: str, password: bytes) -> bool | None:
        """Whether the password is right; None: the user is not one of its own, and the next back-end decides. May be
        slow, and is called in a thread; as slow for users that are not its own.
        """

    def scram(self, username: str) -> Verifier | None:
        """What SCRAM-SHA-256 needs; None: the user is not one of its own."""

    def nobody(self, username: str) -> Verifier:
        """A verifier that no password matches, and that looks like those of its users: always the same for a name."""


class Method(Protocol):
    """The server's side of one authentication by an Authentication Method of MQTT 5."""

    username: str
    """Who the client says that it is, proven when `done`."""
    done: bool

    def step(self, data: bytes) -> bytes:
        """Authentication Data in, Authentication Data out. Raises MethodError when it has failed."""

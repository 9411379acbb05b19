"""Several back-ends as one: the first that knows a user decides.

Response times must not tell an attacker which back-end knows a user, or whether any does: even after one has refused,
the others are asked, and their answers are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.auth.contract import Backend, Verifier

__all__ = ["Chain"]


class Chain:
    """Back-ends in their order, at least one."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self._backends = list(backends)
        self.world_readable = any(each.world_readable for each in backends)
        """Whether others on this machine can read the credentials of a back-end: worth a warning."""

    def __len__(self) -> int:
        return sum(len(each) for each in self._backends)

    def check(self, username: str, password: bytes) -> bool:
        """Return whether the password is right. May be slow; called in a thread."""
        said: bool | None = None
        for each in self._backends:
            answer = each.check(username, password)
            if said is None:
                said = answer
            if said:
                return True
        return False

    def scram(self, username: str) -> Verifier:
        """Return the user's SCRAM-SHA-256 verifier; for an unknown name, one that no password matches."""
        for each in self._backends:
            if (verifier := each.scram(username)) is not None:
                return verifier
        return self._backends[0].nobody(username)

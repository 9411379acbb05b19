"""Several back-ends as one: the first that has a user decides about it.

Who is wrong must not learn from the time which back-end has a user, or whether any has: also behind one that refuses,
the others are asked, and what they say does not count.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.auth.contract import Backend, Verifier

__all__ = ["Chain"]


class Chain:
    """Back-ends, at least one, in their order."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self._backends = list(backends)
        self.world_readable = any(each.world_readable for each in backends)
        """Whether others on this machine may read what one of them reads: worth a warning."""

    def __len__(self) -> int:
        return sum(len(each) for each in self._backends)

    def check(self, username: str, password: bytes) -> bool:
        """Whether the password is right. May be slow, and is called in a thread."""
        said: bool | None = None
        for each in self._backends:
            answer = each.check(username, password)
            if said is None:
                said = answer
            if said:
                return True
        return False

    def scram(self, username: str) -> Verifier:
        """What SCRAM-SHA-256 needs; for a name that no back-end has, a verifier that no password matches."""
        for each in self._backends:
            if (verifier := each.scram(username)) is not None:
                return verifier
        return self._backends[0].nobody(username)

"""What hosts agree on: keys with revisions, leases and watches, as etcd has them.

`broker.cluster.etcd` implements it with etcd. Tests implement it in memory, and hold both to the same contract
(tests/cluster/test_coordination.py).

A *revision* is a number that rises with every transaction that changes something, over all keys and for ever. A key has
the revision at which it was created and the one at which it was last changed; both are 0 for a key that does not exist.
Nothing reads a revision as a time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

__all__ = [
    "OPERATIONS_MAX",
    "Compacted",
    "Coordination",
    "CoordinationError",
    "Delete",
    "Denied",
    "Entry",
    "KeyChange",
    "KeyChanges",
    "KeyCondition",
    "LeaseEnded",
    "Outcome",
    "Put",
    "Unreachable",
    "View",
]

OPERATIONS_MAX: Final = 128
"""Operations in a transaction, as many as etcd takes with its defaults; conditions are counted apart, as many."""


class CoordinationError(Exception):
    """The coordinator did not do what it was asked."""


class Unreachable(CoordinationError):
    """No endpoint answered in time. A transaction may have been done, or may be done yet, even after a read that does
    not show it: only its conditions keep it from being done too late.
    """


class Denied(CoordinationError):
    """The coordinator refuses us or the request: credentials, rights, a full quota. Trying again does not help."""


class LeaseEnded(CoordinationError):
    """The lease has expired or was revoked, and the keys bound to it are gone."""


class Compacted(CoordinationError):
    """What was asked for is so old that it is not kept any more: read everything anew."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A key with its value. `lease`: the lease that it ends with, 0: none."""

    key: bytes
    value: bytes
    created: int
    changed: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """All keys with a prefix, by key, as they were at a revision."""

    revision: int
    entries: Sequence[Entry]


@dataclass(frozen=True, slots=True)
class KeyCondition:
    """Holds if the key was last changed at this revision. 0: if it does not exist."""

    key: bytes
    changed: int


@dataclass(frozen=True, slots=True)
class Put:
    """Writes a key. `lease`: the lease that it ends with, 0: none."""

    key: bytes
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes a key, if it exists."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a transaction. `found`: the keys of its conditions, if one did not hold, in their order."""

    done: bool
    revision: int
    found: Sequence[Entry | None] = ()


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A key that was written, or (`entry` None) deleted or ended with its lease."""

    key: bytes
    entry: Entry | None


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """Everything that changed up to a revision, in order, since the former one of the same watch. It may be nothing."""

    revision: int
    changes: Sequence[KeyChange]


class Coordination(Protocol):
    """A store of keys that all hosts see alike (linearizable). Every method may raise `Unreachable` and `Denied`."""

    async def read(self, key: bytes) -> Entry | None:
        """Return the key's entry, None if it does not exist."""

    async def read_all(self, prefix: bytes) -> View:
        """Return all keys that begin with a prefix of at least one byte, of one revision, however many they are."""

    async def read_page(self, prefix: bytes, after: bytes, limit: int) -> View:
        """Return the first `limit` keys (1 or more) that begin with a prefix of at least one byte and come behind the
        key `after`, as they are now; b"": the first of all. Fewer than `limit`: there are no more.
        """

    async def transact(self, conditions: Sequence[KeyCondition], operations: Sequence[Put | Delete]) -> Outcome:
        """Do all operations if every condition holds, else none. Never tried again here. Each key may be named by one
        operation at most. Raises ValueError beyond OPERATIONS_MAX of either, LeaseEnded if a lease to bind to is over.
        """

    async def grant(self, seconds: int) -> int:
        """Return a new lease that ends unless it is kept alive for so long."""

    async def keep_alive(self, lease: int) -> int:
        """Renew a lease. Return for how many seconds, from before this call on. Raises LeaseEnded."""

    async def revoke(self, lease: int) -> None:
        """End a lease and delete the keys bound to it. No effect on one that has ended."""

    def watch(self, prefix: bytes, revision: int) -> AsyncIterator[KeyChanges]:
        """Yield what changes after a revision among the keys that begin with a prefix. It outlives the connection, and
        misses nothing. Raises Compacted.
        """

    async def close(self) -> None:
        """Close the connections. Leases go on until they end."""

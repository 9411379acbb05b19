"""Which cluster and host the stores of a snapshot are of, as its `snapshot.json` says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

__all__ = ["ClusterFacts"]


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """A host of a cluster."""

    name: str
    """Of the cluster."""
    node: str
    """Name of the host."""
    number: int = 0
    """Of the host: peers of its stores on other hosts have it (`pyx.core.peer`). 0: not known."""
    id: str = ""
    """Of the snapshot of several hosts that this one is a part of; empty: it is none."""

    @classmethod
    def decode(cls, found: Any) -> Self | None:
        """Return the facts in a JSON object; None: of no cluster. Raises KeyError, TypeError and ValueError."""
        if found is None:
            return None
        return cls(str(found["name"]), str(found["node"]), int(found.get("number", 0)), str(found.get("id", "")))

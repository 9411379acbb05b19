"""Batches between the router and the links to siblings, in both directions."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, final

from pyx.core.peer import Peer
from pyx.delivery.journal import Journal
from pyx.delivery.peers import Peers
from pyx.delivery.router_state import RouterState
from pyx.delivery.siblings import Siblings
from pyx.mesh.links import Links
from pyx.mesh.receiver import BatchReceiver

class _Rare(Protocol):
    """What is decided in Python about a batch."""

    def later(
        self,
        peer: Peer,
        volatile: memoryview | None,
        sequenced: memoryview | None,
        payloads: list[Any],
        sequence: int,
        used: int = 0,
        left: tuple[int, int] = ...,
        refused: list[tuple[int, int]] | None = None,
    ) -> None: ...
    def store_refusals(self, peer: Peer, place: tuple[int, int], refused: list[tuple[int, int]]) -> None: ...
    def drop(self, reason: int, copies: int) -> None: ...

@final
class Batches(BatchReceiver):
    """The batches of one worker."""

    links: Mapping[Peer, Any]
    together: Links | None
    flush: Callable[[], object]
    acknowledges: bool
    interest_came: bool
    waiting_bytes: int
    waiting_bytes_max: int
    @property
    def waiting(self) -> dict[Any, Any]: ...
    @property
    def begun(self) -> dict[Any, Any]: ...
    def __new__(
        cls,
        state: RouterState,
        peers: Peers,
        siblings: Siblings,
        journal: Journal,
        keys: dict[Peer, bytes],
        rare: _Rare,
    ) -> Batches: ...
    def add_rail(self, place: int, key: bytes) -> None: ...
    def drop_rail(self, place: int) -> None: ...
    def release_passed_on(self) -> bool: ...
    def heard(self) -> None: ...
    def tell_full(self) -> None: ...
    def batch(
        self,
        peer: Peer,
        volatile: memoryview | None,
        sequenced: memoryview | None,
        payloads: list[Any],
        sequence: int,
    ) -> None: ...
    def taken(
        self, peer: Peer, sequence: int, refused: list[tuple[int, int]] | None, place: tuple[int, int] | None = None
    ) -> None: ...
    def commit(self) -> bool: ...
    def say(self, commits: list[tuple[Peer, int, Any]]) -> None: ...
    def forward(self) -> None: ...
    def hold(self, peers: int) -> None: ...
    def submit_now(self, peer: Peer) -> None: ...

"""Which peers there are: the listed addresses, who answers there, and who was heard just now."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from broker.cluster.peers.messages import MessageHead

__all__ = ["PeerPresence", "SeenPeer"]


@dataclass(slots=True)
class SeenPeer:
    """Another peer, as it was heard last."""

    run: str
    node: str
    address: str
    votes: bool
    is_fresh: bool
    heard_at: float


class PeerPresence:
    """Used by one peer. silence: seconds after which one that was not heard is away. shared: told of an address at
    which two processes answer in turns. forgotten: told of runs that have ended.
    """

    def __init__(self, silence: float, shared: Callable[[str], None], forgotten: Callable[[str], None]) -> None:
        self.addresses: frozenset[str] = frozenset()
        self.own: set[str] = set()
        self.unlisted = 0
        """Messages of peers at addresses that are not listed."""
        self._silence = silence
        self._shared = shared
        self._forgotten = forgotten
        self._seen: dict[str, SeenPeer] = {}
        self._at: dict[str, str] = {}  # the run at an address
        self._former: dict[str, str] = {}  # and the one before it
        self._said: set[str] = set()

    @property
    def others(self) -> list[str]:
        """The addresses of other peers."""
        return sorted(self.addresses - self.own)

    def listed(self, addresses: Collection[str]) -> None:
        """Take these as the addresses of all peers."""
        self.addresses = frozenset(addresses)
        self.own &= self.addresses
        for address in sorted(self._at.keys() - self.addresses):
            self._forget(self._at.pop(address))

    def hear(self, head: MessageHead, own_run: str, now: float) -> SeenPeer | None:
        """Note who has said something. None: this peer itself, or none that is listed."""
        if head.to in self.addresses:
            self.own.add(head.to)
        if head.run == own_run:
            return None
        if head.address not in self.addresses:
            self.unlisted += bool(head.address)
            return None
        self._is_at(head.run, head.address)
        seen = self._seen.get(head.run)
        if seen is None:
            seen = SeenPeer(head.run, head.node, head.address, head.votes, head.is_fresh, now)
            self._seen[head.run] = seen
        seen.address, seen.votes, seen.is_fresh, seen.heard_at = head.address, head.votes, head.is_fresh, now
        return seen

    def _is_at(self, run: str, address: str) -> None:
        former = self._at.get(address, "")
        if former == run:
            return
        if self._former.get(address) == run and address not in self._said:
            self._said.add(address)
            self._shared(address)
        self._at[address] = run
        if former:
            self._former[address] = former
            self._forget(former)

    def _forget(self, run: str) -> None:
        if run not in self._at.values():
            self._seen.pop(run, None)
            self._forgotten(run)

    def get(self, run: str) -> SeenPeer | None:
        """Return the peer with this run."""
        return self._seen.get(run)

    def there(self, now: float) -> list[SeenPeer]:
        """Return those that were heard just now."""
        return [each for each in self._seen.values() if now - each.heard_at < self._silence]

    def all_are_fresh(self, now: float) -> bool:
        """Whether all listed peers but this one are there, and no host of them relies on a lease."""
        there = {each.run: each for each in self.there(now)}
        others = [there.get(self._at.get(address, "")) for address in self.others]
        return all(each is not None and each.is_fresh for each in others)

    def report(self, own_node: str, now: float) -> list[tuple[str, str, bool]]:
        """Return (address, host, whether it was heard just now) of all listed peers; host "": it was never heard."""
        found = []
        for address in sorted(self.addresses):
            seen = self._seen.get(self._at.get(address, ""))
            if address in self.own:
                found.append((address, own_node, True))
            elif seen is None:
                found.append((address, "", False))
            else:
                found.append((address, seen.node, now - seen.heard_at < self._silence))
        return found

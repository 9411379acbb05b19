"""Groups of peers: over sockets, with short times; and in memory, in a loop whose time passes when nothing happens.

In memory every message is late by a chance that a seed decides, and a test cuts peers off from each other.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import socket
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from broker.cluster.peers.addresses import ListedPeers, PeerAddresses
from broker.cluster.peers.coordination import PeerCoordination
from broker.cluster.peers.kept_file import KeptFile
from broker.cluster.peers.leading import GroupRules, PeerTiming
from broker.cluster.peers.messages import MESSAGE_BYTES_MAX
from broker.cluster.peers.transport import PeerSockets, TransportEvents, keys_of_secret
from tests.sansio import KeptLog

__all__ = ["QUICK", "SECRET", "Network", "free_addresses", "led", "majority", "passing", "socket_group"]

Result = TypeVar("Result")
QUICK = PeerTiming(beat=0.15, silence=0.6, window=0.3, settle=2.0)
SECRET = b"a secret of sixteen bytes"


USUAL = PeerTiming()


def majority(peers: int, timing: PeerTiming = USUAL) -> GroupRules:
    """Return the rules of a list of so many peers."""
    return GroupRules(peers // 2 + 1, False, timing)


def free_addresses(count: int) -> list[str]:
    """Return addresses of loopback that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    finally:
        for each in sockets:
            each.close()


async def led(*peers: PeerCoordination, seconds: float = 60.0) -> None:
    """Wait until these peers follow one leader."""
    for each in peers:
        each.begin()
    async with asyncio.timeout(seconds):
        while len({each.member.leader for each in peers}) > 1 or not peers[0].member.leader:
            await asyncio.sleep(0.02)


@asynccontextmanager
async def socket_group(count: int, timing: PeerTiming = QUICK) -> AsyncIterator[list[PeerCoordination]]:
    """Run peers over loopback that have a leader. With the usual times: tests.benchmarks.peers."""
    addresses = free_addresses(count)
    loop = asyncio.get_running_loop()
    peers = [
        PeerCoordination(
            f"n{at}",
            True,
            majority(count, timing),
            PeerSockets(address, keys_of_secret(SECRET, "test"), MESSAGE_BYTES_MAX),
            ListedPeers(addresses),
            None,
            KeptLog(),
            clock=loop.time,
        )
        for at, address in enumerate(addresses)
    ]
    try:
        await led(*peers)
        yield peers
    finally:
        for each in peers:
            await each.close()


# ------------------------------------------------------------ in memory


class _PassingSelector(selectors.DefaultSelector):
    """Does not wait: the time that it would wait for has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found and timeout is not None:
            self.now += max(timeout, 1e-6)  # a step that is less than the clock shows would never end
        return found


class _PassingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._passing = _PassingSelector()
        super().__init__(self._passing)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._passing.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]  # noqa: ARG002
        """Call it at once: no time passes meanwhile."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 (whoever waits is told)
            future.set_exception(error)
        return future


def passing(test: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run a test in a loop whose time passes only when nothing happens."""
    with asyncio.Runner(loop_factory=_PassingLoop) as runner:
        return runner.run(test())


class _Line:
    """Implements PeerTransport in a Network."""

    def __init__(self, network: Network, address: str) -> None:
        self._network = network
        self._address = address
        self._connected: frozenset[str] = frozenset()

    def listen(self, events: TransportEvents) -> None:
        self._network.listeners[self._address] = events

    def connect(self, addresses: Collection[str]) -> None:
        self._connected = frozenset(addresses)

    def send(self, address: str, packet: bytes) -> None:
        if address in self._connected:
            self._network.carry(self._address, address, packet)

    def close(self) -> None:
        self._network.listeners.pop(self._address, None)


class Network:
    """Peers at addresses "h0:1", "h1:1" and so on. `cut`: pairs of addresses between which nothing goes."""

    def __init__(self, seed: int, rules: GroupRules, size: int, lost: float = 0.0) -> None:
        self.chance = random.Random(seed)
        self.rules = rules
        self.addresses = [f"h{at}:1" for at in range(size)]
        self.listeners: dict[str, TransportEvents] = {}
        self.cuts: set[tuple[str, str]] = set()
        self.lost = lost
        self.carried = 0
        self.peers: dict[int, PeerCoordination] = {}
        self.logs: dict[int, KeptLog] = {}

    def carry(self, sender: str, receiver: str, packet: bytes) -> None:
        """Deliver a packet later, unless it is lost, or cut off by then."""
        self.carried += 1
        if self.chance.random() < self.lost:
            return
        target = self.listeners.get(receiver)

        def arrive() -> None:
            if (sender, receiver) not in self.cuts and self.listeners.get(receiver) is target and target is not None:
                target.arrived(packet)

        asyncio.get_running_loop().call_later(self.chance.uniform(0.0005, 0.02), arrive)

    def cut(self, one: Collection[int], others: Collection[int]) -> None:
        """Let nothing go between two sides any more."""
        for a in one:
            for b in others:
                self.cuts |= {(self.addresses[a], self.addresses[b]), (self.addresses[b], self.addresses[a])}

    def heal(self) -> None:
        """Let everything through."""
        self.cuts.clear()

    def start(
        self, at: int, is_fresh: bool = True, file: KeptFile | None = None, addresses: PeerAddresses | None = None
    ) -> PeerCoordination:
        """Return a peer, which begins."""
        loop = asyncio.get_running_loop()
        self.logs[at] = KeptLog()
        peer = self.peers[at] = PeerCoordination(
            f"n{at}",
            is_fresh,
            self.rules,
            _Line(self, self.addresses[at]),
            ListedPeers(self.addresses) if addresses is None else addresses,
            file,
            self.logs[at],
            clock=loop.time,
            wall=lambda: 1_800_000_000 + loop.time(),
            chance=random.Random(self.chance.random()),
        )
        peer.begin()
        return peer

    async def stop(self, at: int) -> None:
        """End a peer: it forgets everything that is not in its file."""
        await self.peers.pop(at).close()

    async def close(self) -> None:
        """End all."""
        for at in list(self.peers):
            await self.stop(at)

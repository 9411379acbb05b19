"""What agreeing among peers costs: `python -m tests.benchmarks.peers`.

Three peers over loopback, all in one process: so each figure of CPU is that of all three, and of transactions what they
do with one core.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import time

from broker.cluster.contract import OPERATIONS_MAX, CoordinationError, KeyCondition, Put
from broker.cluster.peers.coordination import PeerCoordination
from broker.cluster.peers.leading import PeerTiming
from tests.cluster.peer_groups import led, socket_group

_IDLE_SECONDS = 20.0
_KEYS = 200_000


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _memory() -> int:
    with open("/proc/self/statm") as opened:
        return int(opened.read().split()[1]) * resource.getpagesize()


async def _claims(peer: PeerCoordination, lease: int, begin: int, end: int) -> None:
    for first in range(begin, end, OPERATIONS_MAX):
        keys = [b"/mqttd/mqttd/owners/device-%08d" % at for at in range(first, min(end, first + OPERATIONS_MAX))]
        outcome = await peer.transact([KeyCondition(key, 0) for key in keys], [Put(key, b"n1", lease) for key in keys])
        assert outcome.done


async def _measure() -> None:
    async with socket_group(3, PeerTiming()) as peers:
        await led(*peers)
        leader = next(each for each in peers if each.member.leads)
        follower = next(each for each in peers if not each.member.leads)
        before, began = _cpu(), time.monotonic()
        await asyncio.sleep(_IDLE_SECONDS)
        used = (_cpu() - before) / (time.monotonic() - began)
        print(f"idle: {used / 3:.2%} of a core for each peer")

        lease = await follower.grant(3600)
        for name, peer in ("leader", leader), ("follower", follower):
            began = time.monotonic()
            for at in range(200):
                await peer.transact([], [Put(b"/one/%d" % at, b"", lease)])
            print(f"a transaction after the other at the {name}: {(time.monotonic() - began) / 200 * 1000:.2f} ms each")

        gc.collect()
        memory, began, before = _memory(), time.monotonic(), _cpu()
        quarter = _KEYS // 4
        await asyncio.gather(*(_claims(follower, lease, at * quarter, (at + 1) * quarter) for at in range(4)))
        seconds = time.monotonic() - began
        print(f"claims, {OPERATIONS_MAX} to a transaction, 4 at a time: {_KEYS / seconds:,.0f} in a second")
        gc.collect()
        print(f"memory: {(_memory() - memory) / 3 / _KEYS:.0f} bytes for each client id and peer, with the history")

        began = time.monotonic()
        await leader.revoke(lease)
        print(f"the end of a lease with {_KEYS:,} client ids: {time.monotonic() - began:.2f} s")
        await leader.close()
        began = time.monotonic()
        while True:
            try:
                await follower.transact([], [Put(b"/after", b"")])
                break
            except CoordinationError:
                continue
        print(f"the leader has gone: {time.monotonic() - began:.1f} s until the next answer")


def main() -> None:
    """Measure with the times of a cluster, not those of tests."""
    asyncio.run(_measure())


if __name__ == "__main__":
    main()

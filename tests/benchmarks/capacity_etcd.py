"""What the ownership of client ids costs an etcd: bytes of a session, transactions of a storm, the end of a host.

A real etcd on this machine, and the broker's own requests (`broker.cluster.ownership`), without the broker around them.
Client ids have 23 bytes, the longest that every server must accept [MQTT-3.1.3-5], node ids 7.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import grpc

from broker.cluster.contract import Coordination, CoordinationError, Unreachable
from broker.cluster.etcd import Etcd, EtcdAddress
from broker.cluster.etcd_messages import etcdrpc
from broker.cluster.host_record import HostRecord, HostState
from broker.cluster.membership import LEASE_SECONDS
from broker.cluster.ownership import Owner, Ownership
from tests.cluster.etcd_process import EtcdProcess, etcd_process

__all__ = ["client_ids", "endings", "host_record_bytes", "records", "storms"]

Figures = dict[str, float]

WITH_FSYNC = ("--unsafe-no-fsync=false", "--quota-backend-bytes=8589934592")
"""Of this etcd, in place of what tests use."""
_LEASE_SECONDS = 600
_LOOK_SECONDS = 0.01
_BEFORE_SECONDS = 3.0
"""Time before and after the end of a lease in which others are watched; longer than a call of the broker takes."""
_END_SECONDS_MAX = 300.0
_AT_ONCE = 20_000
"""Claims that wait at the same time while many are written."""


def client_ids(count: int, first: int = 0) -> list[str]:
    """Return client ids of 23 bytes."""
    return [f"sensor-{number:016x}" for number in range(first, first + count)]


def node_of(number: int) -> str:
    """Return the node id of a host."""
    return f"host-{number:02}"


def host_record_bytes() -> int:
    """Return the bytes of a host's record, with its key."""
    record = HostRecord(
        node_of(20), 20, 1 << 32, "0123456789abcdef" * 2, "tcp://10.0.0.120:7400", "a" * 40, 16, HostState.READY,
        "1.0.0", (1, 2), 1_000_000, True, "mqtt-20.example.org:1883",
    )  # fmt: skip
    return len(record.encode()) + len(f"/mqttd/mqttd/hosts/{node_of(20)}")


class Claiming:
    """The ownership of one host, with a connection and a lease of its own. paced: transactions are as far apart as in a
    broker of so many hosts; 0: not at all.
    """

    def __init__(self, server: EtcdProcess, number: int, paced: int) -> None:
        self.node = node_of(number)
        self.etcd = Etcd(EtcdAddress((server.endpoint,)))
        self.lease = 0
        self.times: list[float] = []
        self.unheard = 0
        """Requests that were made again."""
        self.ownership = Ownership(self._counted(), "mqttd", self.node, lambda: self.lease)
        self.ownership.hosts = paced

    def _counted(self) -> Coordination:
        inside, times = self.etcd, self.times

        class Counted:
            """Notes when transactions begin."""

            def __getattr__(self, name: str) -> Any:
                return getattr(inside, name)

            async def transact(self, *words: Any) -> Any:
                times.append(time.monotonic())
                return await inside.transact(*words)

        counted: Any = Counted()
        return counted  # type: ignore[no-any-return]

    async def join(self) -> None:
        """Get a lease."""
        self.lease = await self.etcd.grant(_LEASE_SECONDS)

    async def heard(self, ask: Callable[[], Awaitable[Owner]]) -> Owner:
        """Ask until there is an answer: on a busy machine one may take longer than a call has time for."""
        while True:
            try:
                return await ask()
            except Unreachable:
                self.unheard += 1

    async def claim(self, names: Sequence[str]) -> None:
        """Claim client ids, so many at a time. Raises CoordinationError if another host owns one."""
        for first in range(0, len(names), _AT_ONCE):
            part = names[first : first + _AT_ONCE]
            owners = await asyncio.gather(*(self.heard(partial(self.ownership.claim, each)) for each in part))
            if any(each.node != owners[0].node for each in owners):
                raise CoordinationError("a client id has another owner")

    async def close(self) -> None:
        """Close the connection."""
        await self.ownership.close()
        await self.etcd.close()


def _metrics(server: EtcdProcess) -> Figures:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if line and line[0] != "#" and "{" not in line}


async def _tidy(server: EtcdProcess, revision: int) -> None:
    """Compact up to a revision, and give free pages back: the database is as small as it can be."""
    async with grpc.aio.insecure_channel(server.endpoint) as channel:
        await etcdrpc.KVStub(channel).Compact(etcdrpc.CompactionRequest(revision=revision, physical=True))
        await etcdrpc.MaintenanceStub(channel).Defragment(etcdrpc.DefragmentRequest())


def records(count: int) -> Figures:
    """Write so many owners, and read how large etcd is: its database as written, and tidied; its memory (resident, with
    the pages of the database that it maps, and without). Transactions are not paced: a figure is what etcd could do.
    """

    async def measure(server: EtcdProcess) -> Figures:
        host = Claiming(server, 1, paced=0)
        await host.join()
        await host.claim(client_ids(1))  # it is connected
        before = _metrics(server)
        began = time.monotonic()
        await host.claim(client_ids(count, 1))
        seconds = time.monotonic() - began
        written = _metrics(server)
        transactions = host.ownership.transactions - 1
        await _tidy(server, (await host.etcd.read_all(b"/mqttd/mqttd/hosts/")).revision)
        tidied = _metrics(server)
        await host.close()
        size, memory = "etcd_mvcc_db_total_size_in_bytes", "process_resident_memory_bytes"
        return {
            "sessions": count,
            "database_as_written": (written[size] - before[size]) / count,
            "database_tidied": (tidied[size] - before[size]) / count,
            "memory": (written[memory] - before[memory]) / count,
            "transactions_per_second": transactions / seconds,
            "claims_per_second": count / seconds,
            "key_and_value": len(host.ownership.key_of(client_ids(1)[0])) + len(node_of(1)),
        }

    with etcd_process(WITH_FSYNC) as server:
        return asyncio.run(measure(server))


def storms(clients: int, hosts: int) -> Figures:
    """Let so many clients connect at once, evenly over hosts that do not know them. Then let the same clients connect
    to the next host, which takes them over: a claim that is refused, and a take.
    """

    async def measure(server: EtcdProcess) -> Figures:
        all_hosts = [Claiming(server, number, hosts) for number in range(hosts)]
        for each in all_hosts:
            await each.join()
        names = client_ids(clients)
        began = time.monotonic()
        await asyncio.gather(*(each.claim(names[at::hosts]) for at, each in enumerate(all_hosts)))
        seconds = time.monotonic() - began
        new = sorted(moment for each in all_hosts for moment in each.times)
        for each in all_hosts:
            each.times.clear()

        async def move(host: Claiming, own: Sequence[str]) -> None:
            found = await asyncio.gather(*(host.heard(partial(host.ownership.claim, name)) for name in own))
            taken = await asyncio.gather(
                *(
                    host.heard(partial(host.ownership.take, name, owner.epoch))
                    for name, owner in zip(own, found, strict=True)
                )
            )
            if any(each.node != host.node for each in taken):
                raise CoordinationError("a client id was not taken")

        moves_began = time.monotonic()
        await asyncio.gather(*(move(each, names[(at + 1) % hosts :: hosts]) for at, each in enumerate(all_hosts)))
        move_seconds = time.monotonic() - moves_began
        moved = sorted(moment for each in all_hosts for moment in each.times)
        for each in all_hosts:
            await each.close()
        return {
            "clients": clients,
            "hosts": hosts,
            "new_transactions": len(new),
            "new_seconds": seconds,
            "new_most_in_a_second": most_in_a_second(new),
            "moved_transactions": len(moved),
            "moved_seconds": move_seconds,
            "moved_most_in_a_second": most_in_a_second(moved),
            "unheard": sum(each.unheard for each in all_hosts),
        }

    with etcd_process(WITH_FSYNC) as server:
        return asyncio.run(measure(server))


def most_in_a_second(moments: Sequence[float]) -> int:
    """Return the largest number of these moments, in order, that are within a second."""
    most = first = 0
    for last, moment in enumerate(moments):
        while moments[first] < moment - 1:
            first += 1
        most = max(most, last - first + 1)
    return most


class Stalls:
    """Does something again and again, and notes the longest time from one success to the next, in seconds."""

    def __init__(self, work: Callable[[], Awaitable[Any]], every: float) -> None:
        self.longest = 0.0
        self._every = every
        self._work = work
        self._task = asyncio.create_task(self._go_on())

    async def _go_on(self) -> None:
        done = time.monotonic()
        while True:
            with contextlib.suppress(CoordinationError):  # it has not done it: the time goes on
                await self._work()
                now = time.monotonic()
                self.longest, done = max(self.longest, now - done), now
            await asyncio.sleep(self._every)

    async def end(self) -> float:
        """Return the longest time."""
        longest = self.longest
        self._task.cancel()
        await asyncio.wait([self._task])
        return longest


async def _end(server: EtcdProcess, host: Claiming, leases: Sequence[int], last: str) -> float:
    """End a host's leases, one after the other. Return the seconds until its last client id is free."""
    began = time.monotonic()
    async with grpc.aio.insecure_channel(server.endpoint) as channel:  # without the 2 s of the broker's calls
        for lease in leases:
            with contextlib.suppress(grpc.RpcError):  # etcd gives up after 7 s, and does it all the same
                await etcdrpc.LeaseStub(channel).LeaseRevoke(etcdrpc.LeaseRevokeRequest(ID=lease))
    while True:
        with contextlib.suppress(CoordinationError):
            if not (await host.ownership.look(last)).epoch:
                return time.monotonic() - began
        if time.monotonic() - began > _END_SECONDS_MAX:
            raise TimeoutError(f"{last} is owned yet {_END_SECONDS_MAX:.0f} s after the end of its host's lease")
        await asyncio.sleep(_LOOK_SECONDS)


async def _ending(server: EtcdProcess, count: int, leases: int) -> tuple[float, float, float, float]:
    host, other = Claiming(server, 1, paced=0), Claiming(server, 2, paced=0)
    await other.join()
    names = client_ids(count)
    granted = []
    for at in range(leases):
        await host.join()
        granted.append(host.lease)
        await host.claim(names[at::leases])
    writes = Stalls(lambda: other.etcd.grant(_LEASE_SECONDS), _LOOK_SECONDS)  # goes through etcd's log, as claims do
    renewals = Stalls(lambda: other.etcd.keep_alive(other.lease), _LOOK_SECONDS)
    other.lease = await other.etcd.grant(LEASE_SECONDS)
    owned = await other.ownership.claim("bystander")
    member = Stalls(lambda: other.etcd.keep_alive(other.lease), LEASE_SECONDS / 4)  # as often as a member does
    await asyncio.sleep(_BEFORE_SECONDS)
    seconds = await _end(server, host, granted, names[-1])
    await asyncio.sleep(2 * LEASE_SECONDS)
    has_ended = await other.ownership.look("bystander") != owned
    waited = await writes.end(), await renewals.end()
    await member.end()
    await host.close()
    await other.close()
    return seconds, *waited, float(has_ended)


def endings(counts: Sequence[int], runs: int, leases: int = 1) -> Figures:
    """End the lease of a host that owns so many client ids: etcd deletes them in one piece of work. Figures, for each
    number, medians: how many seconds it takes, for how many seconds other hosts' writes and renewals of leases wait,
    and whether the lease of a host that goes on has ended as well (1). leases: over which the records are spread.
    """
    figures: Figures = {}
    for count in counts:
        found = []
        for _ in range(runs):
            with etcd_process(WITH_FSYNC) as server:
                found.append(asyncio.run(_ending(server, count, leases)))
        names = ("seconds", "writes_wait", "renewals_wait", "others_ended")
        for name, values in zip(names, zip(*found, strict=True), strict=True):
            figures[f"{name}_{count}"] = median(values)
    return figures

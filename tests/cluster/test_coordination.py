"""The contract of coordination, held alike by etcd, by one peer, by three, and by the one in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broker.cluster.contract import (
    OPERATIONS_MAX,
    Compacted,
    Coordination,
    Delete,
    KeyChange,
    KeyChanges,
    KeyCondition,
    LeaseEnded,
    Outcome,
    Put,
)
from tests.cluster.etcd_process import EtcdProcess, etcd_process
from tests.cluster.in_memory import CoordinatorInMemory
from tests.cluster.peer_groups import socket_group

Test = Callable[[Coordination], Awaitable[None]]
Run = Callable[[Test], None]


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdProcess]:
    with etcd_process() as running:
        yield running


@pytest.fixture(params=["memory", "etcd", "one peer", "leader of three", "follower of three"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a test with a coordination, on an event loop."""
    kind: str = request.param
    server = request.getfixturevalue("etcd") if kind == "etcd" else None

    async def with_one(test: Test) -> None:
        async with peer(kind) if "peer" in kind or "three" in kind else connection(server) as one:
            await test(one)

    return lambda test: asyncio.run(with_one(test))


@asynccontextmanager
async def connection(server: EtcdProcess | None) -> AsyncIterator[Coordination]:
    if server is None:
        yield CoordinatorInMemory().connect()
        return
    from broker.cluster.etcd import Etcd, EtcdAddress  # here, so that no process forks after gRPC has begun

    one = Etcd(EtcdAddress((server.endpoint,)))
    try:
        yield one
    finally:
        await one.close()


@asynccontextmanager
async def peer(kind: str) -> AsyncIterator[Coordination]:
    async with socket_group(1 if kind == "one peer" else 3) as peers:
        yield next(each for each in peers if each.member.leads is (kind != "follower of three"))


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> bytes:
    """A prefix that no other test uses."""
    return f"/{request.node.name}/".encode()


async def put(one: Coordination, key: bytes, value: bytes = b"", lease: int = 0) -> int:
    outcome = await one.transact([], [Put(key, value, lease)])
    assert outcome.done
    return outcome.revision


def test_a_key_has_the_revisions_of_its_creation_and_its_last_change(run: Run, prefix: bytes) -> None:
    async def test(one: Coordination) -> None:
        assert await one.read(prefix + b"a") is None
        created = await put(one, prefix + b"a", b"1")
        changed = await put(one, prefix + b"a", b"\0\xff")
        found = await one.read(prefix + b"a")
        assert found is not None
        assert (found.value, found.created, found.changed, found.lease) == (b"\0\xff", created, changed, 0)
        assert changed > created

    run(test)


def test_a_key_that_was_deleted_begins_anew_at_a_higher_revision(run: Run, prefix: bytes) -> None:
    async def test(one: Coordination) -> None:
        before = await put(one, prefix)
        await one.transact([], [Delete(prefix)])
        assert await one.read(prefix) is None
        assert await put(one, prefix) > before + 1
        found = await one.read(prefix)
        assert found is not None
        assert found.created == found.changed > before

    run(test)


def test_a_prefix_ends_where_it_ends(run: Run, prefix: bytes) -> None:
    async def test(one: Coordination) -> None:
        for each in (b"a", b"a\0", b"a\xff\xff", b"b", b"A"):
            await put(one, prefix + each)
        view = await one.read_all(prefix + b"a")
        assert [each.key for each in view.entries] == [prefix + each for each in (b"a", b"a\0", b"a\xff\xff")]
        assert [each.key for each in (await one.read_all(prefix + b"a\xff")).entries] == [prefix + b"a\xff\xff"]
        with pytest.raises(ValueError, match="prefix"):
            await one.read_all(b"")

    run(test)


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 2500])
def test_all_keys_are_read_however_many(run: Run, prefix: bytes, count: int) -> None:
    async def test(one: Coordination) -> None:
        keys = [prefix + b"%05d" % number for number in range(count)]
        for begin in range(0, count, OPERATIONS_MAX):
            await one.transact([], [Put(key, b"x") for key in keys[begin : begin + OPERATIONS_MAX]])
        view = await one.read_all(prefix)
        assert [each.key for each in view.entries] == keys
        assert view.revision >= max((each.changed for each in view.entries), default=0)

    run(test)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 1000])
def test_keys_are_read_page_by_page(run: Run, prefix: bytes, limit: int) -> None:
    """Each page has those of its own time: one that comes meanwhile, behind what was read, is seen."""

    async def test(one: Coordination) -> None:
        keys = [prefix + each for each in (b"a", b"a\0", b"b", b"\xff")]
        for each in (*keys, prefix[:-1] + b"+", prefix[:-1] + b"0"):
            await put(one, each)
        found: list[bytes] = []
        while True:
            page = (await one.read_page(prefix, found[-1] if found else b"", limit)).entries
            assert len(page) <= limit
            found += [each.key for each in page]
            if len(page) < limit:
                break
        assert found == keys
        assert (await one.read_page(prefix, keys[-1], limit)).entries == []
        await put(one, prefix + b"bb")
        assert (await one.read_page(prefix, prefix + b"b", limit)).entries[0].key == prefix + b"bb"
        for wrong in ((b"", 1), (prefix, 0)):
            with pytest.raises(ValueError, match="a page has"):
                await one.read_page(wrong[0], b"", wrong[1])

    run(test)


def test_a_transaction_is_done_as_a_whole_or_not_at_all(run: Run, prefix: bytes) -> None:
    async def test(one: Coordination) -> None:
        a, b = prefix + b"a", prefix + b"b"
        first = await one.transact([KeyCondition(a, 0), KeyCondition(b, 0)], [Put(a, b"1"), Put(b, b"1")])
        assert first.done
        again = await one.transact([KeyCondition(a, first.revision), KeyCondition(b, 0)], [Put(a, b"2"), Delete(b)])
        assert not again.done
        assert [each and each.value for each in again.found] == [b"1", b"1"]
        assert await one.transact([KeyCondition(a, 1)], []) == Outcome(False, again.revision, again.found[:1])
        right = await one.transact([KeyCondition(a, first.revision)], [Put(a, b"3"), Delete(b)])
        assert right.done
        assert await one.read(b) is None
        missing = await one.transact([KeyCondition(b, first.revision)], [Put(a, b"4")])
        assert (missing.done, list(missing.found)) == (False, [None])

    run(test)


def test_the_number_of_operations(run: Run, prefix: bytes) -> None:
    async def test(one: Coordination) -> None:
        keys = [prefix + b"%d" % number for number in range(OPERATIONS_MAX + 1)]
        conditions, puts = [KeyCondition(key, 0) for key in keys], [Put(key, b"") for key in keys]
        for wrong in ((conditions, puts[:1]), (conditions[:1], puts)):
            with pytest.raises(ValueError, match=str(OPERATIONS_MAX)):
                await one.transact(*wrong)
        assert (await one.transact(conditions[:-1], puts[:-1])).done
        refused = await one.transact(conditions[:-1], puts[:-1])
        assert (refused.done, len(refused.found)) == (False, OPERATIONS_MAX)
        assert (await one.transact([], [])).done

    run(test)


def test_a_key_is_named_once(run: Run, prefix: bytes) -> None:
    async def test(one: Coordination) -> None:
        wrong: list[list[Put | Delete]] = [[Put(prefix, b"1"), Put(prefix, b"2")], [Put(prefix, b"1"), Delete(prefix)]]
        for twice in wrong:
            with pytest.raises(ValueError, match="in one operation"):
                await one.transact([], twice)
        assert await one.read(prefix) is None

    run(test)


def test_of_many_who_want_a_key_one_gets_it(run: Run, prefix: bytes) -> None:
    async def test(one: Coordination) -> None:
        tried = [one.transact([KeyCondition(prefix, 0)], [Put(prefix, b"%d" % number)]) for number in range(50)]
        outcomes = await asyncio.gather(*tried)
        (winner,) = (number for number, outcome in enumerate(outcomes) if outcome.done)
        found = await one.read(prefix)
        assert found is not None
        assert found.value == b"%d" % winner

    run(test)


def test_keys_end_with_their_lease(run: Run, prefix: bytes) -> None:
    async def test(one: Coordination) -> None:
        lease, other = await one.grant(60), await one.grant(60)
        await put(one, prefix + b"a", b"", lease)
        await put(one, prefix + b"b", b"", other)
        await put(one, prefix + b"c", b"", lease)
        await put(one, prefix + b"c", b"", 0)  # bound no longer
        assert await one.keep_alive(lease) == 60
        await one.revoke(lease)
        assert [each.key for each in (await one.read_all(prefix)).entries] == [prefix + b"b", prefix + b"c"]
        with pytest.raises(LeaseEnded):
            await one.keep_alive(lease)
        with pytest.raises(LeaseEnded):
            await put(one, prefix + b"d", b"", lease)
        await one.revoke(lease)
        await one.revoke(other)

    run(test)


def test_a_lease_that_is_not_kept_alive_ends(run: Run, prefix: bytes) -> None:
    async def test(one: Coordination) -> None:
        lease = await one.grant(2)
        at = await put(one, prefix, b"", lease)
        if hasattr(one, "is_cut"):  # memory looks at its clock when it is asked
            await asyncio.sleep(2)
            await one.read(prefix)
        async with asyncio.timeout(60):
            changes = await anext(one.watch(prefix, at))
        assert changes.changes == [KeyChange(prefix, None)]
        with pytest.raises(LeaseEnded):
            await one.keep_alive(lease)

    run(test)


async def collect(watch: AsyncIterator[KeyChanges], count: int) -> list[tuple[bytes, bytes | None]]:
    """Return the first changes of a watch; their revisions rise."""
    seen: list[tuple[bytes, bytes | None]] = []
    last = 0
    async with asyncio.timeout(60):
        async for each in watch:
            assert each.revision >= last
            last = each.revision
            seen += ((change.key, change.entry.value if change.entry else None) for change in each.changes)
            if len(seen) >= count:
                return seen
    raise AssertionError("the watch has ended")


def test_a_watch_has_what_came_after_its_revision_in_order(run: Run, prefix: bytes) -> None:
    async def test(one: Coordination) -> None:
        await put(one, prefix + b"0", b"before")
        at = (await one.read_all(prefix)).revision
        await put(one, prefix + b"a", b"1")
        await put(one, prefix[:-1] + b"+", b"of others")
        watching = asyncio.create_task(collect(one.watch(prefix, at), 5))
        await one.transact([], [Put(prefix + b"b", b"2"), Delete(prefix + b"a")])
        await put(one, prefix + b"c", b"3")
        await one.transact([], [Delete(prefix + b"0")])
        seen = await watching
        assert seen[0] == (prefix + b"a", b"1")
        assert sorted(seen[1:3], key=lambda each: each[0]) == [(prefix + b"a", None), (prefix + b"b", b"2")]
        assert seen[3:] == [(prefix + b"c", b"3"), (prefix + b"0", None)]

    run(test)


def test_a_watch_goes_on_at_the_revision_that_it_said_last(run: Run, prefix: bytes) -> None:
    async def test(one: Coordination) -> None:
        at = await put(one, prefix + b"first")
        for number in range(300):
            await put(one, prefix + b"n", b"%d" % number)
        seen: list[bytes] = []
        async with asyncio.timeout(60):
            while len(seen) < 300:  # each time a new watch, which is given up after its first answer
                changes = await anext(one.watch(prefix, at))
                seen += (each.entry.value for each in changes.changes if each.entry)
                at = changes.revision
        assert seen == [b"%d" % number for number in range(300)]

    run(test)


def test_a_watch_from_a_revision_that_is_forgotten(etcd: EtcdProcess) -> None:
    async def compacted(one: Coordination, compact: Callable[[int], Awaitable[Any]]) -> None:
        at = await put(one, b"/compacted", b"1")
        await put(one, b"/compacted", b"2")
        await compact(await put(one, b"/compacted", b"3"))
        with pytest.raises(Compacted):
            async with asyncio.timeout(60):
                await anext(one.watch(b"/compacted", at - 1))

    async def in_memory() -> None:
        shared = CoordinatorInMemory()

        async def compact(_: int) -> None:
            shared.compact()

        await compacted(shared.connect(), compact)

    async def in_etcd() -> None:
        import grpc

        from broker.cluster.etcd_messages import etcdrpc

        async with grpc.aio.insecure_channel(etcd.endpoint) as channel, connection(etcd) as one:
            stub = etcdrpc.KVStub(channel)
            await compacted(one, lambda at: stub.Compact(etcdrpc.CompactionRequest(revision=at)))

    async def in_peers() -> None:
        async with socket_group(1) as (one,):

            async def compact(_: int) -> None:
                one.member.replica.forget_history()

            await compacted(one, compact)

    asyncio.run(in_memory())
    asyncio.run(in_etcd())
    asyncio.run(in_peers())

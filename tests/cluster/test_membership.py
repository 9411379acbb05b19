"""Hosts join, renew their lease, see each other, and leave; with a coordinator in memory, and with etcd."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

import pytest

from broker.cluster.contract import Coordination, Delete, Entry, Put, Unreachable
from broker.cluster.host_record import RECORD_BYTES_MAX, HostRecord, HostState, MalformedHostRecord
from broker.cluster.membership import DRIFT, HostMembership
from tests.cluster.etcd_process import etcd_process
from tests.cluster.in_memory import Connection, CoordinatorInMemory

OWN = HostRecord(
    "n1", 7, 1, "0" * 32, "tcp://127.0.0.1:7000", "a" * 40, 2, HostState.JOINING, "0.1.0", (1, 2), 1000
)  # fmt: skip
KEY = b"/mqttd/test/hosts/n1"


class Recorder:
    """The events of a membership, each a word with what it had."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.hosts: dict[str, HostRecord] = {}

    def hosts_changed(self, hosts: Mapping[str, HostRecord]) -> None:
        self.hosts = dict(hosts)

    def joined(self, incarnation: int, lease: int, kept_lease: bool) -> None:
        self.events.append(("joined", incarnation, lease, kept_lease))

    def lost(self) -> None:
        self.events.append(("lost",))

    def node_id_taken(self, by: HostRecord) -> None:
        self.events.append(("node_id_taken", by.installation))

    def malformed(self, error: MalformedHostRecord) -> None:
        self.events.append(("malformed", str(error)))

    def out_of_reach(self, reason: str) -> None:
        self.events.append(("out_of_reach", reason))

    def reached(self) -> None:
        self.events.append(("reached",))

    @property
    def words(self) -> list[str]:
        return [each[0] for each in self.events]


class Host:
    """A membership that runs."""

    def __init__(self, coordination: Coordination, own: HostRecord, clock: Callable[[], float], lease: int = 1) -> None:
        self.seen = Recorder()
        self.membership = HostMembership(coordination, "test", own, self.seen, lease_seconds=lease, clock=clock)
        self.task = asyncio.create_task(self.membership.run())

    async def until(self, condition: Callable[[], object], what: str) -> None:
        for _ in range(6000):
            if condition():
                return
            if self.task.done():
                self.task.result()
            await asyncio.sleep(0.01)
        raise AssertionError(f"not within a minute: {what}; {self.seen.events}, {self.seen.hosts}")

    async def until_hosts(self, *nodes: str) -> None:
        await self.until(lambda: set(self.seen.hosts) == set(nodes), f"it sees the hosts {nodes}")

    async def until_state(self, node: str, state: HostState) -> None:
        await self.until(lambda: self.seen.hosts[node].state is state, f"{node} is {state.value}")

    async def until_word(self, word: str, count: int = 1) -> None:
        await self.until(lambda: self.seen.words.count(word) >= count, f"{count} times {word}")

    async def stop(self) -> None:
        """End as by SIGKILL: the lease stays."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


class Hosts:
    """Hosts around one coordinator in memory, whose clock moves only when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.coordinator = CoordinatorInMemory(lambda: self.now)
        self.started: list[Host] = []

    def start(self, own: HostRecord = OWN, connection: Connection | None = None) -> Host:
        host = Host(connection or self.coordinator.connect(), own, lambda: self.now)
        self.started.append(host)
        return host

    def wait(self, seconds: float) -> None:
        """Let time pass for the leases and for the hosts."""
        self.now += seconds
        self.coordinator.expire()


@contextlib.asynccontextmanager
async def some_hosts() -> AsyncIterator[Hosts]:
    hosts = Hosts()
    try:
        yield hosts
    finally:
        for each in hosts.started:
            await each.stop()


def run(test: Callable[[Hosts], Coroutine[Any, Any, None]]) -> None:
    async def with_hosts() -> None:
        async with some_hosts() as hosts:
            await test(hosts)

    asyncio.run(with_hosts())


def test_hosts_see_each_other_join_become_ready_drain_and_leave() -> None:
    async def test(hosts: Hosts) -> None:
        one, two = hosts.start(), hosts.start(replace(OWN, node="n2", installation="1" * 32))
        for host in (one, two):
            await host.until_hosts("n1", "n2")
            assert {each.state for each in host.seen.hosts.values()} == {HostState.JOINING}
        for state in (HostState.READY, HostState.DRAINING):
            two.membership.set_state(state)
            await one.until_state("n2", state)
        await two.stop()
        await two.membership.leave()
        await one.until_hosts("n1")
        assert not two.membership.is_proven
        assert one.membership.hosts["n1"].address == OWN.address

    run(test)


def test_the_lease_is_proven_for_less_than_its_time() -> None:
    async def test(hosts: Hosts) -> None:
        connection = hosts.coordinator.connect()
        host = hosts.start(connection=connection)
        await host.until_word("joined")
        connection.is_cut = True
        await host.until_word("out_of_reach")
        proven = [host.membership.is_proven]
        assert host.membership.proven_until <= hosts.now + 1 - DRIFT
        hosts.now += 1 - DRIFT
        proven.append(host.membership.is_proven)
        assert proven == [True, False]
        assert await hosts.coordinator.connect().read(KEY) is not None, "the others may still see it"

    run(test)


def test_a_host_that_was_out_of_reach_for_too_long_joins_again() -> None:
    async def test(hosts: Hosts) -> None:
        connection = hosts.coordinator.connect()
        host, other = hosts.start(connection=connection), hosts.start(replace(OWN, node="n2", installation="1" * 32))
        await host.until_word("joined")
        host.membership.set_state(HostState.READY)
        await other.until(lambda: other.seen.hosts.get("n1", OWN).state is HostState.READY, "n1 is ready")
        first = other.seen.hosts["n1"]
        connection.is_cut = True
        await host.until_word("out_of_reach")
        hosts.coordinator.end_lease(host.seen.events[0][2])
        await other.until(lambda: "n1" not in other.seen.hosts, "n1 is gone")
        connection.is_cut = False
        await host.until_word("joined", 2)
        assert host.seen.words == ["joined", "out_of_reach", "lost", "joined", "reached"]
        again = await hosts.coordinator.connect().read(KEY)
        assert again is not None
        assert HostRecord.decode("n1", again.value).incarnation > first.incarnation

    run(test)


def test_a_restarted_host_keeps_its_lease() -> None:
    async def test(hosts: Hosts) -> None:
        first = hosts.start()
        await first.until_word("joined")
        await first.stop()
        again = hosts.start()
        await again.until_word("joined")
        (_, before, lease, kept), (_, after, lease_now, kept_now) = first.seen.events[0], again.seen.events[0]
        assert (kept, kept_now, lease_now) == (False, True, lease)
        assert after > before
        await again.stop()
        hosts.wait(2)
        late = hosts.start()
        await late.until_word("joined")
        assert late.seen.events[0][1] > after
        assert late.seen.events[0][3] is False

    run(test)


def test_another_host_with_this_node_id() -> None:
    async def test(hosts: Hosts) -> None:
        first = hosts.start()
        await first.until_word("joined")
        second = hosts.start(replace(OWN, installation="f" * 32))
        await second.until_word("node_id_taken")
        assert second.seen.events == [("node_id_taken", OWN.installation)]
        assert not second.membership.is_proven
        await first.stop()
        await first.membership.leave()
        await second.until_word("joined")
        assert first.seen.words == ["joined"]

    run(test)


def test_a_copied_data_directory() -> None:
    """Two hosts that cannot be told apart: the later one is a restart as far as anybody knows, the former yields."""

    async def test(hosts: Hosts) -> None:
        first = hosts.start()
        await first.until_word("joined")
        second = hosts.start()
        await second.until_word("joined")
        await first.until_word("lost")
        assert first.seen.words == ["joined", "node_id_taken", "lost"]
        await second.stop()
        await second.membership.leave()
        await first.until_word("joined", 2)
        assert second.seen.words == ["joined"]

    run(test)


def test_a_record_that_was_deleted_by_hand_is_written_again() -> None:
    async def test(hosts: Hosts) -> None:
        host = hosts.start()
        await host.until_word("joined")
        await hosts.coordinator.connect().transact([], [Delete(KEY)])
        await host.until_word("joined", 2)
        assert host.seen.words == ["joined", "lost", "joined"]

    run(test)


def test_lost_answers() -> None:
    async def test(hosts: Hosts) -> None:
        connection = hosts.coordinator.connect()
        connection.loses_answers = True
        host = hosts.start(connection=connection)
        await host.until_word("out_of_reach")
        connection.loses_answers = False
        await host.until_word("joined")
        connection.loses_answers = True
        host.membership.set_state(HostState.READY)
        await host.until_word("out_of_reach", 2)
        connection.loses_answers = False
        await host.until_word("reached", 2)
        assert host.seen.hosts["n1"].state is HostState.READY
        assert "lost" not in host.seen.words

    run(test)


def test_a_lost_answer_after_a_restart_does_not_keep_a_lease_that_has_ended() -> None:
    async def test(hosts: Hosts) -> None:
        first = hosts.start()
        await first.until_word("joined")
        await first.stop()
        hosts.wait(2)
        connection = hosts.coordinator.connect()
        connection.loses_answers = True
        again = hosts.start(connection=connection)
        await again.until_word("out_of_reach")
        connection.loses_answers = False
        await again.until_word("joined")
        assert [each[3] for each in again.seen.events if each[0] == "joined"] == [False]

    run(test)


def test_a_doubt_outlives_a_read_that_fails() -> None:
    async def test(hosts: Hosts) -> None:
        connection = hosts.coordinator.connect()
        first = hosts.start(connection=connection)
        await first.until_word("joined")
        read, failed = connection.read, asyncio.Event()

        async def fail_once(key: bytes) -> Entry | None:
            if failed.is_set():
                return await read(key)
            failed.set()
            raise Unreachable("once")

        connection.read = fail_once  # type: ignore[method-assign]
        second = hosts.start()
        await second.until_word("joined")
        await first.until_word("lost")
        assert failed.is_set()

    run(test)


def test_leaving_ends_no_lease_that_another_process_has_taken_over() -> None:
    async def test(hosts: Hosts) -> None:
        first = hosts.start()
        await first.until_word("joined")
        await first.stop()
        second = hosts.start()
        await second.until_word("joined")
        await first.membership.leave()
        assert await hosts.coordinator.connect().read(KEY) is not None
        await second.stop()
        await second.membership.leave()
        assert await hosts.coordinator.connect().read(KEY) is None

    run(test)


def test_a_displaced_host_waits_also_while_the_other_one_restarts() -> None:
    async def test(hosts: Hosts) -> None:
        first, second = hosts.start(), None
        await first.until_word("joined")
        second = hosts.start()
        await first.until_word("lost")
        await second.stop()
        third = hosts.start()
        await third.until_word("joined")
        await asyncio.sleep(1)  # the first one tries twice a second
        assert first.seen.words.count("joined") == 1
        assert third.seen.words == ["joined"]

    run(test)


def test_a_record_that_was_deleted_and_the_history_compacted() -> None:
    async def test(hosts: Hosts) -> None:
        connection = hosts.coordinator.connect()
        host = hosts.start(connection=connection)
        await host.until_word("joined")
        connection.is_cut = True
        await hosts.coordinator.connect().transact([], [Delete(KEY)])
        hosts.coordinator.compact()
        connection.is_cut = False
        await hosts.coordinator.connect().transact([], [Put(KEY[:-2] + b"other", OWN.encode())])
        await host.until_word("joined", 2)

    run(test)


@pytest.mark.parametrize(
    "wrong", [{"release": "1.0 beta"}, {"address": "tcp://h:0"}, {"address": "tcp://h:65536"}, {"curve_key": "#" * 40}]
)
def test_a_host_does_not_say_what_others_cannot_read(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="malformed"):
        HostMembership(CoordinatorInMemory().connect(), "test", replace(OWN, **wrong), Recorder())  # type: ignore[arg-type]


def test_the_history_is_compacted_while_nobody_looks() -> None:
    async def test(hosts: Hosts) -> None:
        connection = hosts.coordinator.connect()
        host = hosts.start(connection=connection)
        await host.until_word("joined")
        connection.is_cut = True
        for number in range(3):
            other = replace(OWN, node=f"m{number}")
            await hosts.coordinator.connect().transact([], [Put(KEY[:-2] + other.node.encode(), other.encode())])
        hosts.coordinator.compact()
        connection.is_cut = False
        await hosts.coordinator.connect().transact([], [Delete(KEY[:-2] + b"m0")])
        await host.until_hosts("n1", "m1", "m2")

    run(test)


@pytest.mark.parametrize("address", ["", "a", "a" * 255])
def test_addresses_for_clients(address: str) -> None:
    own = replace(OWN, client_address=address)
    assert HostRecord.decode("n1", own.encode()) == own


def test_a_record_without_an_address_for_clients() -> None:
    """Of a host that does not know of them."""
    assert HostRecord.decode("n1", OWN.encode().replace(b',"client_address":""', b"")) == OWN
    assert HostRecord.decode("n1", OWN.encode().replace(b',"question_versions":[0,0]', b"")) == OWN


BAD = {
    "no JSON": b"\xff",
    "no object": b"[]",
    "nothing": b"",
    "a later format": OWN.encode().replace(b'"format":1', b'"format":2'),
    "no format": OWN.encode().replace(b'"format":1,', b""),
    "no workers": OWN.encode().replace(b'"workers":2', b'"workers":0'),
    "a truth value": OWN.encode().replace(b'"workers":2', b'"workers":true'),
    "an address without a port": OWN.encode().replace(b":7000", b""),
    "an unknown state": OWN.encode().replace(b"joining", b"sleeping"),
    "a short key": OWN.encode().replace(b"a" * 40, b"a" * 39),
    "one version of questions": OWN.encode().replace(b'"question_versions":[0,0]', b'"question_versions":[1]'),
    "a version of questions beyond": OWN.encode().replace(b'"question_versions":[0,0]', b'"question_versions":[1,256]'),
    "an address for clients of two words": OWN.encode().replace(b'"client_address":""', b'"client_address":"a b"'),
    "a long address for clients": OWN.encode().replace(b'"client_address":""', b'"client_address":"%s"' % (b"a" * 256)),
    "one version": OWN.encode().replace(b"[1,2]", b"[1]"),
    "one byte too many": OWN.encode()[:-1] + b" " * (RECORD_BYTES_MAX - len(OWN.encode()) + 1) + b"}",
}


@pytest.mark.parametrize("record", BAD.values(), ids=BAD.keys())
def test_a_record_that_cannot_be_read_hides_its_host_alone(record: bytes) -> None:
    async def test(hosts: Hosts) -> None:
        await hosts.coordinator.connect().transact([], [Put(KEY[:-2] + b"bad", record)])
        host = hosts.start()
        await host.until_word("malformed")
        await host.until_hosts("n1")
        await hosts.coordinator.connect().transact([], [Put(KEY[:-2] + b"bad", OWN.encode())])
        await host.until_hosts("n1", "bad")
        assert host.seen.words.count("malformed") == 1

    run(test)


def test_a_record_over_its_way_and_back() -> None:
    for each in (
        OWN,
        replace(OWN, workers=1 << 16, incarnation=(1 << 63) - 1, connections_max=0, link_versions=(1, 255)),
        replace(OWN, address="tcp://[::1]:65535", state=HostState.DRAINING),
        replace(OWN, question_versions=(1, 255)),
    ):
        assert HostRecord.decode("n1", each.encode()) == each
    longest = OWN.encode()[:-1] + b" " * (RECORD_BYTES_MAX - len(OWN.encode())) + b"}"
    assert HostRecord.decode("n1", longest) == OWN
    assert HostRecord.decode("n1", OWN.encode()[:-1] + b',"later":[1]}') == OWN


@pytest.mark.parametrize("name", ["", "a/b", "-a", "a" * 64, "a b", "ä"])
def test_impossible_names(name: str) -> None:
    coordination = CoordinatorInMemory().connect()
    with pytest.raises(ValueError, match="node id"):
        HostMembership(coordination, "test", replace(OWN, node=name), Recorder())
    with pytest.raises(ValueError, match="cluster"):
        HostMembership(coordination, name, OWN, Recorder())
    with pytest.raises(MalformedHostRecord):
        HostRecord.decode(name, OWN.encode())


def test_with_etcd() -> None:
    async def test(endpoint: str) -> None:
        from broker.cluster.etcd import Etcd, EtcdAddress
        from broker.cluster.membership import boot_time

        connections = [Etcd(EtcdAddress((endpoint,))) for _ in range(2)]
        owns = (OWN, replace(OWN, node="n2", installation="1" * 32))
        hosts = [Host(one, own, boot_time, 5) for one, own in zip(connections, owns, strict=True)]
        one, two = hosts
        try:
            for host in hosts:
                await host.until_hosts("n1", "n2")
            two.membership.set_state(HostState.READY)
            await one.until_state("n2", HostState.READY)
            await two.stop()
            await one.until_hosts("n1")
        finally:
            for host in hosts:
                await host.stop()
            await one.membership.leave()
            for each in connections:
                await each.close()

    with etcd_process() as server:
        asyncio.run(test(server.endpoint))

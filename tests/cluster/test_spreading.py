"""Members of a share group go from host to host until each has as many, and each message comes to one of them."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.etcd_process import etcd_process
from tests.cluster.followers import Follower, Followers
from tests.cluster.hosts import LINK_SECONDS, ClusteredHost, Hosts
from tests.mqttd_command import mqttd
from tests.waiting import let_pass, wait_until

SECONDS = 90.0
SERVER_MOVED = 0x9D
GROUP = "$share/workers/jobs/#"
RULE = '[[shared]]\ngroup = "*"\nstrategy = "{strategy}"\nspread = true\n'


class Growing:
    """A cluster to which hosts are added. workers: of each host."""

    def __init__(self, stack: contextlib.ExitStack, config: Path, workers: int, store: str, **limits: float) -> None:
        self._stack = stack
        self._config = config
        self._workers = workers
        self._store = store
        self._limits = limits
        self.hosts = Hosts()
        self.hosts.etcd = stack.enter_context(etcd_process())

    def add(self, count: int = 1) -> None:
        """Start so many more hosts, and wait until all are linked."""
        for _ in range(count):
            environment = {"MQTTD_CONFIG": str(self._config)}
            host = ClusteredHost(
                f"n{len(self.hosts)}",
                self._workers,
                self.hosts.etcd,
                self._store,
                environment,
                "127.0.0.1",
                **self._limits,
            )
            host.environment["MQTTD_CLUSTER__CLIENT_ADDRESS"] = f"127.0.0.1:{host.port}"
            self.hosts.run(host, self._stack)
        wait_until(lambda: all(host.logged("cluster_ready") for host in self.hosts), LINK_SECONDS, "all are ready")

    def write(self, settings: str) -> None:
        """Add settings of `[cluster]` for hosts that are started after this."""
        self._config.write_text(f"{self._config.read_text()}\n[cluster]\n{settings}\n")

    def end(self) -> None:
        """Stop all hosts; none may have failed within."""
        for host in self.hosts:
            if host.alive():
                assert host.stop() == 0
            host.assert_sound()
            assert not host.logged("internal_error")


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Callable[..., Growing]]:
    """Make clusters: workers of each host, their store, the strategy of share groups."""
    with contextlib.ExitStack() as stack:
        made: list[Growing] = []

        def grow(workers: int, store: str = "memory", strategy: str = "round_robin", **limits: float) -> Growing:
            config = tmp_path / "mqttd.toml"
            config.write_text(RULE.format(strategy=strategy))
            made.append(Growing(stack, config, workers, store, **limits))
            return made[-1]

        yield grow
        for each in made:
            each.end()


def numbers(hosts: Hosts, followers: Followers) -> list[int]:
    """Return how many clients are connected to each host."""
    where = followers.where()
    return [where[host.address] for host in hosts]


def publish_until(host: ClusteredHost, is_over: Callable[[], bool], qos: int = 1) -> int:
    """Publish numbers at a host until something is true, and then ten more. Return how many."""
    publisher = host.client("publisher")
    more = 10
    for number in itertools.count():
        assert publisher.publish("jobs/x", b"%d" % number, qos=qos) == 0
        if is_over():
            more -= 1
        if more == 0:
            publisher.disconnect()
            return number + 1
    raise AssertionError


def assert_each_once(followers: Followers, published: int) -> None:
    """Assert that each message has come to one member, once."""
    wait_until(lambda: len(followers.got()) >= published, SECONDS, "everything has come")
    let_pass(0.5)
    got = followers.got()
    assert sorted(map(int, got)) == list(range(published))
    assert [payload for payload, times in got.items() if times > 1] == []
    assert [payload for each in followers.clients for payload in each.again] == []


def members(host: ClusteredHost, count: int, first: int = 0, **options: Any) -> list[Follower]:
    """Return clients that connect to a host."""
    return [Follower(f"m{first + at}", host.address, [GROUP], **options) for at in range(count)]


@pytest.mark.parametrize(
    ("shards", "store", "strategy", "expiry"),
    [
        (1, "leveldb", "hash_topic", 600),
        (2, "memory", "least_inflight", 0),
        pytest.param(2, "memory", "round_robin", 600, marks=pytest.mark.long),
    ],
)
def test_sixty_members_of_one_host_are_spread_over_three(
    growing: Callable[..., Growing], shards: int, store: str, strategy: str, expiry: int
) -> None:
    """Two hosts join while somebody publishes: each has twenty members then, and each message has come to one of them,
    once. Then one host is stopped, or dies: its members connect elsewhere, and the two have thirty each.
    """
    cluster = growing(shards, store, strategy)
    cluster.add()
    hosts = cluster.hosts
    with Followers(members(hosts[0], 60, expiry=expiry)) as followers:
        wait_until(lambda: numbers(hosts, followers) == [60], SECONDS, "all are connected")
        over = False

        def is_spread() -> bool:
            nonlocal over
            if len(hosts) == 1:
                cluster.add(2)
            over = over or numbers(hosts, followers) == [20, 20, 20]
            return over

        published = publish_until(hosts[0], is_spread)
        assert_each_once(followers, published)
        sent = sum(host.counter("members_sent_away") for host in hosts)
        assert sum(len(each.ends) for each in followers.clients) == sent
        assert 40 <= sent <= 50  # where the third host took long to start ten have moved twice
        assert {end for each in followers.clients for end in each.ends} == {SERVER_MOVED}
        let_pass(8.0)
        assert numbers(hosts, followers) == [20, 20, 20]
        followers.others_are([host.address for host in hosts[:2]])
        if store == "leveldb":
            assert hosts[2].stop() == 0
        else:
            hosts[2].kill()
        wait_until(lambda: sorted(numbers(hosts, followers)) == [0, 30, 30], SECONDS, "they are spread over two")


def test_members_that_do_not_follow(growing: Callable[..., Growing]) -> None:
    """They come back, those of MQTT 3 without having been told where to go: each is sent away once, and not again soon.
    Nothing that is published meanwhile is lost, or comes twice.
    """
    cluster = growing(2)
    cluster.add(2)
    hosts = cluster.hosts
    stay = members(hosts[0], 10, follows=False) + members(hosts[0], 20, 10, version=4, follows=False, expiry=0)
    with Followers([*stay, *members(hosts[0], 10, 30)]) as followers:
        wait_until(lambda: numbers(hosts, followers) == [40, 0], SECONDS, "all are connected")

        def all_were_sent() -> bool:
            return numbers(hosts, followers) == [30, 10] and all(each.ends for each in followers.clients)

        published = publish_until(hosts[1], all_were_sent)
        assert_each_once(followers, published)
        let_pass(10.0)
        assert numbers(hosts, followers) == [30, 10]
        assert hosts[0].counter("members_sent_away") == 40
        for each in followers.clients:
            assert each.ends == [SERVER_MOVED if each.version == 5 else None]


def test_a_host_that_drains_is_none_over_which_members_are_spread(growing: Callable[..., Growing]) -> None:
    """Its members go to the others, who have as many then. When it takes clients again it gets its part."""
    cluster = growing(1, "leveldb")
    cluster.add(3)
    hosts = cluster.hosts
    with Followers(members(hosts[0], 30)) as followers:
        wait_until(lambda: numbers(hosts, followers) == [10, 10, 10], SECONDS, "they are spread")
        publisher = hosts[1].client("publisher")
        assert mqttd("drain", "--runtime-dir", hosts[0].runtime_dir, seconds=SECONDS).status == 0
        wait_until(lambda: numbers(hosts, followers) == [0, 15, 15], SECONDS, "they are spread over the others")
        for number in range(100):
            assert publisher.publish("jobs/x", b"%d" % number, qos=1) == 0
        assert_each_once(followers, 100)
        assert mqttd("drain", "--end", "--runtime-dir", hosts[0].runtime_dir, seconds=SECONDS).status == 0
        wait_until(lambda: numbers(hosts, followers) == [10, 10, 10], SECONDS, "they are spread over all")


def test_a_worker_is_killed_while_members_leave(growing: Callable[..., Growing]) -> None:
    """Those that it was about to send away stay with its successor, and are sent then. Nothing is lost."""
    cluster = growing(2, "leveldb")
    cluster.write("drain_per_second = 4")
    cluster.add(2)
    hosts = cluster.hosts
    with Followers(members(hosts[0], 40)) as followers:
        wait_until(lambda: hosts[0].counter("members_sent_away") >= 4, SECONDS, "members leave")
        killed = False

        def is_spread() -> bool:
            nonlocal killed
            if not killed:
                hosts[0].kill_worker(1)
                killed = True
            return numbers(hosts, followers) == [20, 20]

        published = publish_until(hosts[1], is_spread)

        def has_come() -> set[bytes]:  # some again, or only then: the worker that had sent it first was killed
            return {payload for each in followers.clients for payload in (*each.got, *each.again)}

        wait_until(lambda: len(has_come()) >= published, SECONDS, "everything has come")
        assert sorted(map(int, has_come())) == list(range(published))


@pytest.mark.soak
def test_four_thousand_members_over_six_hosts(growing: Callable[..., Growing]) -> None:
    """Five hosts join one with four thousand members, while somebody publishes."""
    cluster = growing(1)
    cluster.add()
    hosts = cluster.hosts
    with Followers(members(hosts[0], 4000)) as followers:
        wait_until(lambda: numbers(hosts, followers) == [4000], 300.0, "all are connected")
        cluster.add(5)
        began = time.monotonic()

        def is_spread() -> bool:
            counts = numbers(hosts, followers)
            return sum(counts) == 4000 and max(counts) - min(counts) <= 1

        published = publish_until(hosts[0], is_spread)
        moves = sum(len(each.ends) for each in followers.clients)
        print(f"4,000 members over six hosts: {time.monotonic() - began:.1f} s, {moves} moves, {published} messages")
        assert_each_once(followers, published)
        assert moves >= 4000 - 667
        assert {end for each in followers.clients for end in each.ends} == {SERVER_MOVED}

"""$SYS without sockets: the damped averages, and the effect of publishing it on the counters."""

from __future__ import annotations

import math

import pytest

from broker.admin.sys_topics import LoadAverage, is_sys
from pyx.core import counters
from tests.sansio import Host


@pytest.mark.parametrize(
    ("filter", "whether"),
    [("$SYS", True), ("$SYS/#", True), ("$SYS/broker/+/x", True), ("$SYSTEM/#", False), ("#", False), ("+/x", False)],
)
def test_filters_that_only_sys_can_match(filter: str, whether: bool) -> None:
    assert is_sys(filter.encode()) is whether


def test_a_load_is_an_exponentially_damped_average_per_minute() -> None:
    """The load is computed like sys_tree.c of mosquitto: from 0, towards the growth per minute."""
    load = LoadAverage(100)
    assert load.texts() == {"1min": "0.00", "5min": "0.00", "15min": "0.00"}
    load.update(130, 10.0)  # 180 a minute
    assert load.texts() == {
        window: f"{180 * (1 - math.exp(-10 / seconds)):.2f}"
        for window, seconds in (("1min", 60), ("5min", 300), ("15min", 900))
    }
    load.update(130, 10.0)
    assert load.texts()["1min"] == f"{180 * (1 - math.exp(-1 / 6)) * math.exp(-1 / 6):.2f}"
    for n in range(1, 1000):
        load.update(130 + 30 * n, 10.0)
    assert load.texts() == {"1min": "180.00", "5min": "180.00", "15min": "180.00"}


def over_all(host: Host) -> None:
    """Give every node every row, as the worker does."""
    for node in host.nodes:
        node.sys_topics.over([each.counters for each in host.nodes], host.now_ms)


def test_nothing_of_it_counts_as_received_or_retained_or_crosses_the_mesh(workers: int) -> None:
    host = Host(workers, sys_interval_seconds=10)
    over_all(host)
    subscriber = host.connect("s", 5)
    subscriber.subscribe(("$SYS/#", 1), ("#", 1))
    subscriber.packets.clear()
    before = host.counters()
    host.pass_time(30.5)
    uptimes = [packet.payload for packet in subscriber.packets if packet.topic == "$SYS/broker/uptime"]
    assert uptimes == [b"10 seconds", b"20 seconds", b"30 seconds"]
    after = host.counters()
    same = ("publish_received", "publish_unmatched", "retained_messages", "retained_bytes", "mesh_entries_sent",
            "log_messages", "publish_bytes_received")  # fmt: skip
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert after["publish_sent"] - before["publish_sent"] == len(subscriber.packets)
    host.check_books()


def test_only_what_changed_is_published_again() -> None:
    host = Host(sys_interval_seconds=10)
    subscriber = host.connect("s")
    subscriber.subscribe(("$SYS/broker/version", 0), ("$SYS/broker/subscriptions/count", 0))
    host.settle()
    assert sorted((packet.topic, packet.payload) for packet in subscriber.packets) == [
        ("$SYS/broker/subscriptions/count", b"0"),
        ("$SYS/broker/version", b"mqttd version 0.1.0"),
    ]
    subscriber.packets.clear()
    host.pass_time(50)
    assert [(packet.topic, packet.payload) for packet in subscriber.packets] == [
        ("$SYS/broker/subscriptions/count", b"2")
    ]


def test_an_offline_session_is_not_kept_any_of_it() -> None:
    """$SYS is published at QoS 0: a durable subscription to $SYS/# fills no queue."""
    host = Host(sys_interval_seconds=10)
    subscriber = host.connect("s", 5, expiry=1000)
    subscriber.subscribe(("$SYS/#", 2))
    host.lose(subscriber)
    host.pass_time(60)
    assert host.stores[0].held() == (0, 0)
    assert host.counters()["dropped_offline_qos0"] > 0
    host.check_books()


def test_the_maximum_outlives_the_worker_that_saw_it() -> None:
    host = Host(2, sys_interval_seconds=10)
    over_all(host)
    peers = [host.connect(f"c{number}") for number in range(5)]
    host.pass_time(10.2)
    for peer in peers:
        host.lose(peer)
    host.nodes[0].counters.set(counters.CLIENTS_MAXIMUM, 0)
    host.pass_time(10)
    subscriber = host.connect("c0")
    subscriber.subscribe(("$SYS/broker/clients/maximum", 0))
    host.settle()
    assert subscriber.next("PUBLISH").payload == b"5"

"""A sibling's batch of publishes that are much work is taken in pieces (`broker.worker.peering`); between these no
session misses a message, gets one twice, or waits for the whole batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import plyvel
import pytest

from leveldb_store.format import link_schema, schema
from pyx.core import work
from pyx.core.peer import sibling
from tests import wire
from tests.kept_host import lasting, let_go, on_disk
from tests.kept_store import KeptStore
from tests.sansio import Host, Peer
from tests.unit.broker.repartition.test_repartition import client_of, moved, paths
from tests.wire import Packet
from zmq_mesh.contract import LinkLimits

LEVELS = 12
MANY = ["/".join(levels) for levels in itertools.product("a+", repeat=LEVELS)]
"""All match TOPIC: a publish is some 2 ms of work where a session has them."""
TOPIC = "/".join("a" * LEVELS)
OPEN = {"filters_per_second_max": 0, "tick_filters_max": 100_000, "wildcard_arrangements_max": 0}
SILENCE = LinkLimits().link_silence_seconds_max


@pytest.fixture(params=["memory", "kept"])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    stores: Sequence[Any] | None = [KeptStore(), KeptStore()] if request.param == "kept" else None
    made = Host(2, limits=OPEN, stores=stores)
    yield made
    let_go(made)


def at(host: Host, worker: int, name: str, **options: Any) -> Peer:
    return lasting(host, client_of(worker, len(host.nodes), name), 5, **options)


def subscribe(peer: Peer, filters: Sequence[str], qos: int = 2) -> None:
    for first in range(0, len(filters), 4096):
        peer.send(wire.subscribe(5, peer.packet_id(), *((text, qos) for text in filters[first : first + 4096])))
        peer.host.settle()
        assert set(peer.next("SUBACK").codes) == {qos}


def publish(peer: Peer, first: int, count: int, qos: int, topic: str = TOPIC) -> None:
    """Publish all at once: they cross in one batch."""
    peer.send(
        *(
            wire.publish(5, topic, b"%d" % number, qos=qos, packet_id=peer.packet_id() if qos else 0)
            for number in range(first, first + count)
        )
    )


def numbers(packets: Sequence[Packet]) -> list[int]:
    return [int(packet.payload) for packet in packets]


def is_waiting(host: Host, worker: int) -> bool:
    return bool(host.nodes[worker].peering._waiting)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_no_piece_is_more_than_its_bound_and_others_are_served_between_them(host: Host, qos: int) -> None:
    subscriber, other, publisher = at(host, 1, "sub"), at(host, 1, "other"), at(host, 0, "pub")
    subscribe(subscriber, MANY)
    host.pass_time(2)
    work.forget()
    publish(publisher, 0, 100, qos)
    host.turn()
    host.turn()
    pings = 0
    while is_waiting(host, 1):
        other.send(wire.PINGREQ)
        host.turn()
        assert other.packets.popleft().kind == "PINGRESP"
        pings += 1
    assert pings > 3
    assert numbers(subscriber.receive()) == list(range(100))
    assert sum(packet.kind in ("PUBACK", "PUBREC") for packet in publisher.packets) == (100 if qos else 0)
    assert max(work.highest().values()) < work.BOUND
    assert host.nodes[1].peering.batches.waiting_bytes == 0
    host.check_books()


def test_what_comes_behind_it_keeps_its_order(host: Host) -> None:
    """Batches of both kinds, other messages between the workers, and a publish from the other side."""
    subscriber, publisher = at(host, 1, "sub"), at(host, 0, "pub")
    subscribe(subscriber, [*MANY, "small"])
    first = itertools.count(0, 50)
    for qos, topic in ((1, TOPIC), (0, TOPIC), (2, "small"), (0, "small"), (1, TOPIC)):
        publish(publisher, next(first), 50, qos, topic)
        host.turn()
    assert is_waiting(host, 1)
    came = numbers(subscriber.receive())
    assert sorted(came) == list(range(250))
    durable = [number for number in came if number // 50 in (0, 2, 4)]
    assert durable == sorted(durable)
    assert not is_waiting(host, 1)
    host.check_books()


def test_a_message_that_cannot_be_read_ends_its_batch_alone(host: Host) -> None:
    subscriber, publisher = at(host, 1, "sub"), at(host, 0, "pub")
    subscribe(subscriber, MANY)
    publish(publisher, 0, 50, 1)
    host.turn()
    host.turn()
    batch = host.nodes[1].peering._waiting[0][0]
    batch.at = 1 << 30
    publish(publisher, 50, 50, 1)
    came = numbers(subscriber.receive())
    assert came[: batch.position] == list(range(batch.position))
    assert came[batch.position :] == list(range(50, 100))
    assert host.logs[1].named("internal_error") or host.logs[1].named("defect")
    assert not is_waiting(host, 1)


def test_so_much_may_wait_and_no_more(host: Host) -> None:
    subscriber, publisher = at(host, 1, "sub"), at(host, 0, "pub")
    subscribe(subscriber, MANY)
    batches = host.nodes[1].peering.batches
    assert not batches.is_full()
    publish(publisher, 0, 50, 0)
    host.turn()
    host.turn()
    waits = batches.waiting_bytes
    for bound in (waits - 1, waits, waits + 1):
        batches.waiting_bytes_max = bound
        assert batches.is_full() == (waits >= bound)
    host.settle()
    assert not batches.is_full()


# ---------------------------------------------------------------- a crash between the pieces


def handed_off(host: Host, count: int) -> None:
    """An offline session whose worker has taken part of a batch in the other worker's hand-off log."""
    subscriber, much = at(host, 1, "sub"), at(host, 1, "much")
    subscribe(subscriber, [TOPIC])
    host.lose(subscriber)
    subscribe(much, MANY, 0)
    publisher = at(host, 0, "pub")
    host.held |= {(0, 1), (1, 0)}
    publish(publisher, 0, count, 2)
    host.pass_time(2 * SILENCE)
    assert sum(packet.kind == "PUBREC" for packet in publisher.packets) == count
    host.held.clear()
    while not is_waiting(host, 1):
        assert host.turn()
    host.turn()
    assert is_waiting(host, 1)


def test_after_a_crash_nothing_is_taken_twice_and_nothing_is_missing() -> None:
    host = Host(2, limits=OPEN, stores=[KeptStore(), KeptStore()])
    handed_off(host, 100)
    store = host.stores[1]
    store.sync()
    taken = link_schema.decode_peer(store.records[schema.peer_key(sibling(0))]).taken
    assert 0 < taken < host.nodes[1].peering._waiting[0][0].position + 1
    again = host.crash()
    for each in (again, host):
        each.settle()
        assert numbers(at(each, 1, "sub").receive()) == list(range(100))


def test_with_another_number_of_workers_nothing_is_taken_twice_and_nothing_is_missing(tmp_path: Path) -> None:
    host = on_disk(paths(tmp_path, 2), limits=OPEN)
    handed_off(host, 100)
    for store in host.stores:
        store.close()
    with plyvel.DB(str(paths(tmp_path, 2)[1])) as db:
        assert link_schema.decode_peer(db.get(schema.peer_key(sibling(0)))).taken
    moved(tmp_path, 2, 3)
    host = on_disk(paths(tmp_path / "next", 3), start_ms=host.now_ms)
    name = client_of(1, 2, "sub")
    assert numbers(lasting(host, name, 5).receive()) == list(range(100))
    let_go(host)

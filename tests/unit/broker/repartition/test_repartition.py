"""The stores of N workers become those of M, and no client notices."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import plyvel
import pytest

from broker.repartition.old_store import RepartitionError
from broker.repartition.stores import Moved, repartition
from leveldb_store.contract import FallenBehind
from leveldb_store.format import link_schema, schema
from pyx.core.peer import sibling
from pyx.core.placement import owner
from shards.placement import home
from tests import wire
from tests.contract.test_archive import Source, opened, table
from tests.kept_host import lasting, let_go, on_disk
from tests.sansio import Host, Peer
from tests.waiting import wait_until

CHANGES = [(1, 2), (2, 4), (4, 3), (3, 1), (2, 2)]
CLIENTS = [f"client-{number}" for number in range(12)]


def paths(directory: Path, workers: int) -> list[Path]:
    """Return the paths of the stores of this many workers."""
    found = [directory / f"{workers}-workers" / str(worker) for worker in range(workers)]
    for path in found:
        path.mkdir(parents=True, exist_ok=True)
    return found


def moved(directory: Path, before: int, after: int, epoch: str = "before") -> Moved:
    """Whatever is moved, each part of an index counts the messages before it."""
    new = paths(directory / "next", after)
    found = repartition(paths(directory, before), new, epoch, "after")
    for path in new:
        with plyvel.DB(str(path)) as db:
            number = messages = size = 0
            for key, value in db.iterator(prefix=schema.PART):
                part = schema.decode_part(key, value)
                if schema.key_number(key) != number:
                    number, messages, size = schema.key_number(key), 0, 0
                assert (part.messages_before, part.bytes_before) == (messages, size)
                messages += len(part.entries)
                size += sum(each for _, each in part.entries)
    return found


def go_on(directory: Path, host: Host, after: int, seconds: float = 0, epoch: str = "before") -> Host:
    """Return the host with a different number of workers on the repartitioned stores."""
    let_go(host)
    moved(directory, len(host.nodes), after, epoch)
    return on_disk(paths(directory / "next", after), start_ms=host.now_ms + int(seconds * 1000))


def bodies(peer: Peer) -> list[bytes]:
    return [packet.payload for packet in peer.receive()]


def client_of(worker: int, workers: int, name: str = "c") -> str:
    """Return a client id whose home is that worker."""
    return next(each for each in (f"{name}{i}" for i in itertools.count()) if home(each, workers) == worker)


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_backlogs_are_read_to_their_end_once_and_in_order(tmp_path: Path, before: int, after: int) -> None:
    host = on_disk(paths(tmp_path, before))
    publisher = host.connect("publisher", 5)
    expected: dict[str, list[bytes]] = {each: [] for each in CLIENTS}
    count = itertools.count()

    def publish(to: list[str], topic: str, qos: int) -> None:
        body = b"%d, %s at QoS %d" % (next(count), topic[:3].encode(), qos)
        publisher.publish(topic, body, qos=qos)
        publisher.receive()
        for each in to:
            expected[each].append(body)

    for number, client in enumerate(CLIENTS):
        peer = lasting(host, client, (4, 5)[number % 2])
        peer.subscribe((f"own/{client}", 2), ("all/+", 1 + number % 2))
        if number % 3:
            host.lose(peer)
            publish([client], f"own/{client}", 2)
        else:
            publish([client], f"own/{client}", 2)
            assert bodies(peer) == expected[client]
            expected[client].clear()
    online = [peer for peer in host.peers if peer.client_id in CLIENTS and not peer.closed]
    for qos in (1, 2, 2, 1, 2):
        publish(CLIENTS, "all/x", qos)
    for peer in online:
        assert sorted(bodies(peer)) == sorted(expected[peer.client_id])
        expected[peer.client_id].clear()
    host.pass_time(0.2)  # windows of QoS 1 lag
    for peer in online:
        host.lose(peer)
    for qos in (2, 1):
        publish(CLIENTS, "all/y", qos)
    host = go_on(tmp_path, host, after)
    publisher = host.connect("publisher", 5)
    publish(CLIENTS, "all/z", 2)
    for number, client in enumerate(CLIENTS):
        peer = lasting(host, client, (4, 5)[number % 2])
        assert peer.session_present
        got = bodies(peer)
        assert sorted(got) == sorted(expected[client]), client
        for kind in {each.partition(b",")[2] for each in got}:  # QoS 2 waits for the disk, QoS 1 may overtake it
            assert [each for each in got if each.endswith(kind)] == [
                each for each in expected[client] if each.endswith(kind)
            ]
    let_go(host)


@pytest.mark.parametrize(("before", "after"), CHANGES[1:4])
def test_what_is_in_flight_goes_on_under_its_packet_identifiers(tmp_path: Path, before: int, after: int) -> None:
    host = on_disk(paths(tmp_path, before))
    for client in CLIENTS:
        peer = lasting(host, client, 5)
        peer.subscribe(("one", 1), ("two", 2), ("released", 2), ("answered", 2))
    publisher = lasting(host, "publisher", 5)
    for topic, qos in (("one", 1), ("two", 2), ("released", 2), ("answered", 2)):
        publisher.publish(topic, topic.encode(), qos=qos)
        publisher.receive()
    identifiers: dict[str, dict[str, int]] = {}
    for peer in [peer for peer in host.peers if peer.client_id in CLIENTS]:
        sent = [peer.next("PUBLISH") for _ in range(4)]
        identifiers[peer.client_id] = {packet.topic: packet.packet_id for packet in sent}
        peer.ack("PUBREC", identifiers[peer.client_id]["released"])
        peer.next("PUBREL")
        peer.ack("PUBREC", identifiers[peer.client_id]["answered"])
        peer.next("PUBREL")
        peer.ack("PUBCOMP", identifiers[peer.client_id]["answered"])
    unreleased = publisher.publish("two", b"again", qos=2)
    publisher.next("PUBREC")
    host.pass_time(0.2)
    host = go_on(tmp_path, host, after)
    publisher = lasting(host, "publisher", 5)
    publisher.send(wire.publish(5, "two", b"again", qos=2, packet_id=unreleased, dup=True))
    publisher.next("PUBREC")
    for client in CLIENTS:
        peer = lasting(host, client, 5)
        packets = [peer.next("PUBREL"), peer.next("PUBLISH"), peer.next("PUBLISH"), peer.next("PUBLISH")]
        assert [(packet.topic or "released", packet.packet_id, packet.dup) for packet in packets[:3]] == [
            ("released", identifiers[client]["released"], False),
            ("one", identifiers[client]["one"], True),
            ("two", identifiers[client]["two"], True),
        ]
        assert (packets[3].payload, packets[3].dup) == (b"again", True)
        peer.silent()
    let_go(host)


def test_subscriptions_have_what_they_had(tmp_path: Path) -> None:
    """Subscriptions keep their beginning, options and identifier, and get the messages published from now on."""
    host = on_disk(paths(tmp_path, 2))
    away = lasting(host, "away", 5)
    away.subscribe(("t", 1))
    host.lose(away)
    publisher = host.connect("p", 5)
    publisher.publish("t", b"before", qos=1)
    for number in range(6):
        late = lasting(host, f"late{number}", 5)
        late.subscribe(("t", 1 | wire.RETAIN_AS_PUBLISHED), identifier=7 + number)
        host.lose(late)
    publisher.publish("t", b"after", qos=1, retain=True)
    host.settle()
    host = go_on(tmp_path, host, 3)
    for number in range(6):
        (packet,) = lasting(host, f"late{number}", 5).receive()
        assert (packet.payload, packet.retain) == (b"after", True)
        assert packet.properties["subscription_identifier"] == [7 + number]
    assert bodies(lasting(host, "away", 5)) == [b"before", b"after"]
    let_go(host)


@pytest.mark.parametrize(("before", "after"), CHANGES[1:3])
def test_retained_messages_go_to_their_owners(tmp_path: Path, before: int, after: int) -> None:
    host = on_disk(paths(tmp_path, before))
    publisher = host.connect("p", 5)
    topics = [f"r/{number}" for number in range(20)]
    for topic in topics:
        publisher.publish(topic, topic.encode(), qos=1, retain=True)
        publisher.receive()
    publisher.publish("r/3", b"", qos=1, retain=True)
    publisher.receive()
    host = go_on(tmp_path, host, after)
    reader = host.connect("reader", 5)
    reader.subscribe(("r/#", 1))
    assert sorted(bodies(reader)) == sorted(topic.encode() for topic in topics if topic != "r/3")
    let_go(host)
    for worker, path in enumerate(paths(tmp_path / "next", after)):
        with plyvel.DB(str(path)) as db:
            assert all(owner(key[1:], after) == worker for key in db.iterator(prefix=b"R", include_value=False))


def test_wills_go_with_their_clients(tmp_path: Path) -> None:
    host = on_disk(paths(tmp_path, 2))
    watcher = lasting(host, "watcher", 5)
    watcher.subscribe(("will", 1))
    for number in range(6):
        host.connect(f"c{number}", 5, will=wire.Will("will", b"%d" % number, qos=1))
    host = go_on(tmp_path, host, 3)
    assert sorted(bodies(lasting(host, "watcher", 5))) == [b"%d" % number for number in range(6)]
    let_go(host)


def test_shares_stay_with_the_member_that_has_them(tmp_path: Path) -> None:
    host = on_disk(paths(tmp_path, 2))
    members = [lasting(host, f"m{number}", 5) for number in range(4)]
    for member in members:
        member.subscribe(("$share/g/work", 2))
    for member in members:
        host.lose(member)
    publisher = host.connect("p", 5)
    for number in range(20):
        publisher.publish("work", b"%d" % number, qos=2)
        publisher.receive()
    host = go_on(tmp_path, host, 3)
    got = [bodies(lasting(host, f"m{number}", 5)) for number in range(4)]
    assert sorted(itertools.chain(*got), key=int) == [b"%d" % number for number in range(20)]
    assert all(each == sorted(each, key=int) for each in got)
    let_go(host)


# ------------------------------------------------------------------------------------------------- hand-off logs


def handed_off(tmp_path: Path, *filters: tuple[str, int], dead: int = 1) -> tuple[Host, str, Peer]:
    """A worker is gone, a publisher of the other one continues: (host, a client of the dead worker, the publisher)."""
    host = on_disk(paths(tmp_path, 2))
    client = client_of(dead, 2)
    peer = lasting(host, client, 5)
    peer.subscribe(*filters)
    publisher = lasting(host, client_of(1 - dead, 2, "publisher"), 5)
    for number in range(3):
        publisher.publish("t/x", b"%d" % number, qos=2)
        publisher.receive()
    host.lose(peer)
    host.kill(dead)
    return host, client, publisher


@pytest.mark.parametrize("after", [1, 3])
def test_what_a_hand_off_log_has_is_behind_all_else_in_the_session(tmp_path: Path, after: int) -> None:
    host, client, publisher = handed_off(tmp_path, ("t/+", 2), ("t/#", 1))
    for number in range(3, 700):
        publisher.publish("t/x", b"%d" % number, qos=2 if number % 20 == 0 else 1)
        if number % 20 == 0:
            host.pass_time(0.1)
    publisher.publish("t/x", b"not wanted at QoS 0", qos=0)
    publisher.publish("t/large", b"x" * 100_000, qos=2)
    publisher.receive()
    let_go(host)
    assert moved(tmp_path, 2, after).handed_on == 698
    host = on_disk(paths(tmp_path / "next", after), start_ms=host.now_ms)
    host.connect("p", 5).publish("t/x", b"new", qos=1)
    packets = lasting(host, client, 5).receive()
    # QoS 2 that waits for the disk may be overtaken by QoS 1; with DUP: messages in flight
    waits = [packet.payload for packet in packets if packet.qos == 2 and not packet.dup]
    assert waits == [*(b"%d" % number for number in range(20, 700, 20)), b"x" * 100_000]
    expected = [b"%d" % number for number in range(3, 700) if number % 20]
    assert [packet.payload for packet in packets if packet.qos == 1] == [*expected, b"new"]
    let_go(host)


def test_what_was_taken_is_not_handed_on_again(tmp_path: Path) -> None:
    host, _, publisher = handed_off(tmp_path, ("t/+", 2))
    publisher.publish("t/x", b"last", qos=2)
    publisher.receive()
    let_go(host)
    (zero, one) = paths(tmp_path, 2)
    with plyvel.DB(str(zero)) as db:
        sequences = [schema.key_position(key) for key in db.iterator(prefix=b"H\1", include_value=False)]
        stream, _ = link_schema.decode_handoff_head(db.get(schema.handoff_key(sibling(1), 0)))
    with plyvel.DB(str(one)) as db:
        db.put(schema.peer_key(sibling(0)), link_schema.encode_peer(stream, max(sequences)))
    assert moved(tmp_path, 2, 1).handed_on == 0


def test_a_retained_message_in_a_hand_off_log_reaches_its_owner(tmp_path: Path) -> None:
    host, _, publisher = handed_off(tmp_path, ("t/+", 2))
    topics = [topic for topic in (f"r/{number}" for number in range(50)) if owner(topic.encode(), 2) == 1][:6]
    for topic in topics:
        publisher.publish(topic, topic.encode(), qos=2, retain=True)
    publisher.publish(topics[0], b"newer", qos=1, retain=True)
    publisher.publish(topics[1], b"", qos=2, retain=True)
    publisher.receive()
    host = go_on(tmp_path, host, 3)
    reader = host.connect("reader", 5)
    reader.subscribe(("r/#", 1))
    assert sorted(bodies(reader)) == sorted([b"newer", *(topic.encode() for topic in topics[2:])])
    let_go(host)


def test_a_share_in_a_hand_off_log_goes_to_a_member(tmp_path: Path) -> None:
    host, client, publisher = handed_off(tmp_path, ("$share/g/t/+", 2))
    for number in range(5):
        publisher.publish("t/x", b"shared %d" % number, qos=2)
    publisher.receive()
    host = go_on(tmp_path, host, 3)
    got = bodies(lasting(host, client, 5))
    assert [each for each in got if each.startswith(b"shared")] == [b"shared %d" % number for number in range(5)]
    let_go(host)


# ------------------------------------------------------------------------------------------------- bounds, errors


@pytest.mark.parametrize("queue_full", ["drop_oldest", "drop_newest"])
def test_what_another_segment_holds_counts_in_no_queue(tmp_path: Path, queue_full: str) -> None:
    """Two sessions of two workers with full queues of the same messages move to one worker."""
    host = on_disk(paths(tmp_path, 2), limits={"queue_messages_max": 20}, queue_full=queue_full)
    clients = [client_of(worker, 2) for worker in range(2)]
    for client in clients:
        peer = lasting(host, client)
        peer.subscribe(("t", 1))
        host.lose(peer)
    publisher = host.connect("p")
    for number in range(30):
        publisher.publish("t", b"%d" % number, qos=1)
        publisher.receive()
    host.pass_time(2)
    expected = [b"%d" % number for number in (range(10, 30) if queue_full == "drop_oldest" else range(20))]
    let_go(host)
    moved(tmp_path, 2, 1)
    host = on_disk(
        paths(tmp_path / "next", 1), start_ms=host.now_ms, limits={"queue_messages_max": 20}, queue_full=queue_full
    )
    host.pass_time(3)
    assert [bodies(lasting(host, client)) for client in clients] == [expected, expected]
    let_go(host)


@pytest.mark.parametrize("dead", [0, 1])
def test_what_a_hand_off_log_had_counts_in_no_queue_of_others(tmp_path: Path, dead: int) -> None:
    """These messages follow their worker's segment in the new log, and those of the other worker may follow them."""
    host, client, publisher = handed_off(tmp_path, ("t/+", 2), dead=dead)
    other = client_of(1 - dead, 2, "other")
    peer = lasting(host, other, 5)
    peer.subscribe(("t/+", 1))
    host.lose(peer)
    for number in range(3, 40):
        publisher.publish("t/x", b"%d" % number, qos=2)
        publisher.receive()
    let_go(host)
    moved(tmp_path, 2, 1)
    options = {"limits": {"queue_messages_max": 60}, "queue_full": "drop_newest"}
    host = on_disk(paths(tmp_path / "next", 1), start_ms=host.now_ms, **options)
    for number in range(40, 55):
        host.connect(f"p{number}", 5).publish("t/x", b"%d" % number, qos=1)
    host.pass_time(3)
    for each, first in ((other, 3), (client, 0)):
        got = bodies(lasting(host, each, 5))
        assert sorted(got, key=int) == [b"%d" % number for number in range(first, 55)]
    let_go(host)


def test_room_is_given_back_when_all_have_read(tmp_path: Path) -> None:
    host = on_disk(paths(tmp_path, 2))
    for client in CLIENTS:
        peer = lasting(host, client)
        peer.subscribe(("t", 1))
        host.lose(peer)
    publisher = host.connect("p")
    for number in range(50):
        publisher.publish("t", b"%d" % number, qos=1)
        publisher.receive()
    host = go_on(tmp_path, host, 1)
    for client in CLIENTS:
        assert len(bodies(lasting(host, client))) == 50
    host.pass_time(3)
    let_go(host)
    # the writer deletes twice a second of real time: the rest would have been next
    host = on_disk(paths(tmp_path / "next", 1), start_ms=host.now_ms)
    assert host.stores[0].held() == (0, 0)
    let_go(host)


def test_a_damaged_record_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    host = on_disk(paths(tmp_path, 2))
    lasting(host, client_of(1, 2)).subscribe(("t", 1))
    let_go(host)
    with plyvel.DB(str(paths(tmp_path, 2)[1])) as db:
        db.put(b"Vsomebody", b"cut off")
    with pytest.raises(RepartitionError, match=r"2-workers/1, record b'Vsomebody': a window is cut off"):
        repartition(paths(tmp_path, 2), paths(tmp_path / "strict", 1), "before", "after", strict=True)
    for path in paths(tmp_path / "strict", 1):
        shutil.rmtree(path)
    assert moved(tmp_path, 2, 1).set_aside == 1
    with plyvel.DB(str(paths(tmp_path / "next", 1)[0])) as db:
        assert db.get(schema.set_aside_key(b"Vsomebody")) == b"cut off"


def test_what_belongs_to_a_session_that_cannot_be_read_is_kept_with_it(tmp_path: Path) -> None:
    """The record is set aside in the store of its home, also when it was set aside before; another session works."""
    host = on_disk(paths(tmp_path, 2))
    names = [client_of(1, 2), client_of(0, 2)]
    for name in names:
        client = lasting(host, name, 5)
        client.subscribe(("t", 1), ("$share/g/s", 1))
        host.lose(client)
    publisher = host.connect("p")
    publisher.publish("t", b"x", qos=1)
    publisher.publish("s", b"y", qos=1)
    publisher.publish("s", b"z", qos=1)
    let_go(host)
    lost = names[0]
    with plyvel.DB(str(paths(tmp_path, 2)[1])) as db:
        db.put(schema.session_key(lost), b"cut off")
        found = {key for key, _ in db if lost.encode() in key[1:] and key[:1] in b"STVQ"}
        db.put(schema.set_aside_key(b"Tearlier"), b"")
    assert {key[:1] for key in found} >= {b"S", b"T", b"V"}
    assert moved(tmp_path, 2, 3).set_aside == len(found) + 1
    aside = set()
    for path in paths(tmp_path / "next", 3):
        with plyvel.DB(str(path)) as db:
            aside |= {key[1:] for key, _ in db.iterator(prefix=schema.SET_ASIDE)}
    assert aside == found | {b"Tearlier"}
    host = on_disk(paths(tmp_path / "next", 3), start_ms=host.now_ms)
    assert b"x" in bodies(lasting(host, names[1], 5))
    let_go(host)


def test_neither_positions_nor_copies_add_up(tmp_path: Path) -> None:
    """The number of workers goes up and down many times while a backlog waits and positions are high."""
    host = on_disk(paths(tmp_path, 2))
    for client in CLIENTS:
        peer = lasting(host, client)
        peer.subscribe(("t", 1))
        host.lose(peer)
    let_go(host)
    for path in paths(tmp_path, 2):
        with plyvel.DB(str(path)) as db:
            db.put(schema.POSITION, schema.U64.pack(2**61))
    host = on_disk(paths(tmp_path, 2), start_ms=host.now_ms)
    publisher = host.connect("publisher")
    expected = [b"%d" % number for number in range(20)]
    for body in expected:
        publisher.publish("t", body, qos=1)
        publisher.receive()
    assert all(store.last_position > 2**61 for store in host.stores)
    directory = tmp_path
    for after in (1, 2) * 4:
        host = go_on(directory, host, after, epoch="before" if directory == tmp_path else "after")
        directory = directory / "next"
        # each of two workers gets back the segment of the one log that belongs to its own sessions
        assert [store.last_position for store in host.stores] == ([40] if after == 1 else [20, 20])
    publisher = host.connect("publisher")
    publisher.publish("t", b"last", qos=1)
    for client in CLIENTS:
        assert bodies(lasting(host, client)) == [*expected, b"last"], client
    let_go(host)


def test_another_workers_store_is_refused(tmp_path: Path) -> None:
    let_go(on_disk(paths(tmp_path, 2)))
    for path in paths(tmp_path, 2):
        with plyvel.DB(str(path)) as db:
            db.put(schema.STORE, b'{"worker": 0, "workers": 2, "epoch": "before"}')
    with pytest.raises(RepartitionError, match="the store of worker 1 says that it is another one"):
        moved(tmp_path, 2, 1)


def test_archives_of_which_one_goes_further_back_lie_in_one_store(tmp_path: Path) -> None:
    """2 workers become 1: a reader learns what is gone of either, and gets all that exists; numbers continue above."""
    old = paths(tmp_path, 2)
    sources = []
    for worker, size in ((0, 1 << 20), (1, 1 << 30)):
        source = Source(opened(old[worker], table(b"a", size=size), worker=worker))
        source.number |= worker
        for _ in range(30):
            for _ in range(40):
                source.archive(b"a", b"." * 1000, f"p{worker}")
            source.commit()
        sources.append(source)
    wait_until(lambda: sources[0].store.archive.held_bytes <= 1 << 20, 30, "retention has removed some")
    for source in sources:
        source.store.close()
    start = sources[0].store.archive.start(b"a")
    assert repartition(old, paths(tmp_path / "next", 1), "before", "after").archived > 30
    store = opened(paths(tmp_path / "next", 1)[0], table(b"a", size=1 << 30))
    assert store.archive.highest == max(source.number for source in sources)
    assert store.archive.start(b"a") == start > 0
    with pytest.raises(FallenBehind):
        store.archive.read([b"a"], 0, 1000)
    found, after, is_end = [], 0, False
    while not is_end:
        page = store.archive.read([b"a"], after, 65536, with_gaps=True)
        found += [message.number for message in page.messages]
        after, is_end = page.up_to, page.is_end
    expected = [row[0] for row in sources[0].rows if row[0] > start] + [row[0] for row in sources[1].rows]
    assert found == sorted(expected)
    store.close()

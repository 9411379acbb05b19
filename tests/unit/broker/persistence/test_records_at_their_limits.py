"""Sessions at their limits in the store: written, read back, verified and carried over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import plyvel
import pytest

from broker.cli import store_command as inspection
from leveldb_store.format import schema
from leveldb_store.format.windows import decode_window
from pyx.protocol.wire import refuse_disallowed
from tests import wire
from tests.kept_host import lasting, let_go, on_disk
from tests.sansio import Host, Peer
from tests.unit.broker.repartition.test_repartition import bodies, moved, paths

PACKET_FILTERS = 5000


def verify(directory: Path, capsys: pytest.CaptureFixture[str], workers: int = 1) -> None:
    """Check that `mqttd store verify` reports nothing."""
    status = inspection.verify([inspection.Place(path) for path in paths(directory, workers)])
    assert status == 0, capsys.readouterr().out


def restarted(directory: Path, host: Host, workers: int = 1) -> Host:
    """Return the host after its next start."""
    let_go(host)
    return on_disk(paths(directory, workers), start_ms=host.now_ms)


@pytest.mark.mqtt("5:3.8.4-3")
def test_more_subscriptions_made_while_behind_than_16_bits_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """66,000 subscriptions of a client that is behind: windows stay small, and another number of workers takes them
    over.
    """
    host = on_disk(paths(tmp_path, 1))
    client = lasting(host, "c", 5, properties={"receive_maximum": 1})
    client.subscribe(("early", 1))
    publisher = host.connect("p")
    for body in (b"0", b"1"):
        publisher.publish("early", body, qos=1)
    assert client.next("PUBLISH").payload == b"0"
    filters = [(f"late/{number}", 1) for number in range(66_000)]
    for at in range(0, len(filters), PACKET_FILTERS):
        client.send(wire.subscribe(5, at // PACKET_FILTERS + 1, *filters[at : at + PACKET_FILTERS]))
        while not client.packets:  # filters_per_second_max
            host.pass_time(1)
        client.next("SUBACK")
    host.lose(client)
    publisher.publish("late/65999", b"2", qos=1)
    host.settle()
    let_go(host)
    with plyvel.DB(str(paths(tmp_path, 1)[0])) as db:
        largest = max(len(value) for key, value in db if key[:1] not in (schema.EVENT, schema.BLOCK, schema.PART))
    assert largest < 1000
    verify(tmp_path, capsys)
    moved(tmp_path, 1, 2)
    verify(tmp_path / "next", capsys, 2)
    host = on_disk(paths(tmp_path / "next", 2), start_ms=host.now_ms)
    client = lasting(host, "c", 5)
    assert bodies(client) == [b"0", b"1", b"2"]
    assert client.session.subscriptions == 66_001


@pytest.mark.mqtt("5:3.8.4-3")
@pytest.mark.parametrize("client_id", ["c", "\u20ac" * 1000, "c" * 0xFFFF], ids=["short", "not ASCII", "longest"])
def test_a_subscription_is_counted_with_the_client_id_of_its_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], client_id: str
) -> None:
    """session_bytes_max limits the disk space of one client's subscriptions, however long its client id is."""
    size, most = len(client_id.encode()), 2_000_000
    host = on_disk(paths(tmp_path, 1), limits={"session_bytes_max": most})
    client = lasting(host, client_id, 5)
    text = "{:05}".ljust(1000, "x")
    codes: list[int] = []
    while len(codes) * (1000 + size) < most:
        codes += client.subscribe(*((text.format(number), 1) for number in range(len(codes), len(codes) + 50)))
        host.pass_time(1)
    fit = (most - size) // (1000 + size)
    assert codes == [1] * fit + [0x97] * (len(codes) - fit)
    host = restarted(tmp_path, host)
    verified = lasting(host, client_id, 5)
    assert verified.session.subscriptions == fit
    assert verified.subscribe((text.format(0), 1), (text.format(fit), 1)) == [1, 1]  # the default allows more
    let_go(host)
    verify(tmp_path, capsys)


@pytest.mark.mqtt("5:3.1.3-12")
def test_usernames_of_every_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """None, empty, and up to the longest of MQTT: sessions survive a restart and another number of workers."""
    host = on_disk(paths(tmp_path, 1))
    usernames = [None, *("u" * length for length in (0, 1, 0xFFFE, 0xFFFF))]
    for number, username in enumerate(usernames):
        lasting(host, f"c{number}", 5, username=username).subscribe(("t", 1))
    host = restarted(tmp_path, host)
    assert [session.details.username for session in host.node.sessions] == usernames
    let_go(host)
    verify(tmp_path, capsys)
    moved(tmp_path, 1, 2)
    verify(tmp_path / "next", capsys, 2)
    host = on_disk(paths(tmp_path / "next", 2), start_ms=host.now_ms)
    found = {session.client_id: session.details.username for node in host.nodes for session in node.sessions}
    assert found == {f"c{number}": username for number, username in enumerate(usernames)}
    let_go(host)


@pytest.mark.mqtt("5:3.3.4-3", "5:3.10.4-3")
@pytest.mark.parametrize("count", [1, 13_106, 13_107, 13_400])
def test_subscription_identifiers_of_a_message_in_flight(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    """About 65,536 matching filters, whose identifiers take 5 bytes each. An UNSUBSCRIBE moves the message to a record
    of its own, which is read after a restart and carried over.
    """
    host = on_disk(paths(tmp_path, 1), limits={"filters_per_second_max": 100_000, "wildcard_arrangements_max": 0})
    client = lasting(host, "c", 5)
    levels = [f"{number:b}".zfill(14).replace("0", "+/").replace("1", "a/") + "#" for number in range(count)]
    for at in range(0, count, PACKET_FILTERS):
        filters = [(text, 1) for text in levels[at : at + PACKET_FILTERS]]
        properties = {"subscription_identifier": 0xFFFFFFF}
        client.send(wire.subscribe(5, at // PACKET_FILTERS + 1, *filters, properties=properties))
        host.settle()
        client.next("SUBACK")
    publisher = host.connect("p" * 0xFFFF, 5)
    publisher.publish("a/" * 14 + "z", b"x", qos=2)
    first = client.next("PUBLISH")
    assert first.properties["subscription_identifier"] == [0xFFFFFFF] * count
    client.send(wire.unsubscribe(5, 9, levels[0]))
    host.settle()
    host.lose(client)
    host = restarted(tmp_path, host)
    let_go(host)
    verify(tmp_path, capsys)
    moved(tmp_path, 1, 2)
    verify(tmp_path / "next", capsys, 2)
    host = on_disk(paths(tmp_path / "next", 2), start_ms=host.now_ms)
    again = lasting(host, "c", 5).next("PUBLISH")
    assert (again.payload, again.packet_id, again.properties) == (b"x", first.packet_id, first.properties)
    let_go(host)


@pytest.fixture
def refusing() -> Iterator[None]:
    """A process that refuses the characters that the standard lets it refuse, once `refuse_disallowed` is set."""
    yield
    refuse_disallowed(False)


@pytest.mark.mqtt("5:1.5.4-1")
@pytest.mark.usefixtures("refusing")
def test_characters_that_are_refused_from_now_on_were_stored_before(tmp_path: Path) -> None:
    """Every record with properties has a control character in a user property: the next start reads it, and forwarded
    messages of a sibling are accepted.
    """
    host = on_disk(paths(tmp_path, 2))
    odd = {"message_expiry_interval": 1000, "user_property": [("a\x01", "b")]}
    names = [f"c{number}" for number in range(4)]
    for name in names:
        client = lasting(host, name, 5, will=wire.Will("will", b"gone", qos=1, properties=odd))
        client.subscribe(("t/#", 1), (f"$share/{name}/s", 1))
        host.lose(client)
    publisher = host.connect("p", 5)
    for number, topic in enumerate(("t/1", "s", "t/2")):
        publisher.publish(topic, b"%d" % number, qos=1, retain=True, properties=odd)
    host = restarted(tmp_path, host, 2)
    refuse_disallowed(True)
    host = restarted(tmp_path, host, 2)
    for name in names:
        assert sorted(bodies(lasting(host, name, 5))) == [b"0", b"1", b"2"]
    let_go(host)


def records(host: Host, family: bytes) -> dict[bytes, bytes]:
    """Return the records of a family once everything is written."""
    host.settle()
    host.stores[0].collect()
    return dict(host.stores[0].scan(family))


def taken(host: Host, peer: Peer) -> list[wire.Packet]:
    """Return the packets that have arrived; none is acknowledged."""
    host.settle()
    packets = list(peer.packets)
    peer.packets.clear()
    return packets


@pytest.mark.mqtt("5:4.3.3-9", "5:4.4.0-1")
@pytest.mark.parametrize("count", [128, 129, 65_535])
def test_packet_identifiers_that_have_arrived(tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int) -> None:
    """QoS 2 without PUBREL, with every possible Packet Identifier: each is stored in a record of some hundred bytes,
    and after a restart, or with a different number of workers, none is taken for a new message.
    """
    limits = {"receive_maximum": 65_535}
    host = on_disk(paths(tmp_path, 1), limits=limits)
    client = lasting(host, "c", 5)
    for first in range(1, count, 4000):
        sent = range(first, min(first + 4000, count))
        client.send(b"".join(wire.publish(5, "t", b"", qos=2, packet_id=each) for each in sent))
        taken(host, client)
    before = {**records(host, schema.WINDOW), **records(host, schema.WINDOW_PAGE)}
    client.send(wire.publish(5, "t", b"", qos=2, packet_id=count))
    after = {**records(host, schema.WINDOW), **records(host, schema.WINDOW_PAGE)}
    written = sum(len(value) for key, value in after.items() if before.get(key) != value)
    assert written < 500
    assert (
        decode_window(after[b"Vc"], [each for each in after.items() if each[0][:1] == b"U"]).arrived
        == list(range(1, count + 1))
        or count <= 128
    )
    host.lose(client)
    for workers, directory in ((1, tmp_path), (2, tmp_path / "next")):
        if workers == 1:
            host = restarted(tmp_path, host)
        else:
            let_go(host)
            verify(tmp_path, capsys)
            moved(tmp_path, 1, 2)
            host = on_disk(paths(directory, 2), start_ms=host.now_ms, limits=limits)
        again = lasting(host, "c", 5)
        duplicates = host.counters()["publish_duplicates"]
        for packet_id in (1, count // 2, count):
            again.send(wire.publish(5, "t", b"", qos=2, packet_id=packet_id, dup=True))
            assert again.next("PUBREC").packet_id == packet_id
        assert host.counters()["publish_duplicates"] == duplicates + 3
        host.lose(again)
    again = lasting(host, "c", 5)
    for first in range(1, count + 1, 4000):
        sent = range(first, min(first + 4000, count + 1))
        again.send(b"".join(wire.ack(5, "PUBREL", each) for each in sent))
        host.settle()
        again.packets.clear()
    assert not any(list(store.scan(schema.WINDOW_PAGE)) for store in host.stores if store.collect())
    host.lose(again)
    let_go(host)


@pytest.mark.mqtt("5:4.4.0-1", "5:4.6.0-6")
@pytest.mark.parametrize("count", [128, 129, 2000])
def test_messages_in_flight(tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int) -> None:
    """As many messages as Packet Identifiers, QoS 1 and 2, some answered by PUBREC: they are sent again under their
    Packet Identifiers, in order, after a restart, with a different number of workers, and with pages that were written
    at different times.
    """
    limits = {"inflight_max": 65_535, "receive_maximum": 65_535}
    host = on_disk(paths(tmp_path, 1), limits=limits)
    properties = {"receive_maximum": 65_535}
    client = lasting(host, "c", 5, properties=properties)
    client.subscribe(("t", 2))
    publisher = host.connect("p", 5)
    for number in range(count):
        publisher.publish("t", b"%d" % number, qos=1 + number % 2)
    got = taken(host, client)
    assert len(got) == count
    received = [packet for packet in got if packet.qos == 2][:20]
    answered = [packet for packet in got if packet.qos == 1][:20]
    for packet in received:
        client.send(wire.ack(5, "PUBREC", packet.packet_id))
    for packet in answered:
        client.send(wire.ack(5, "PUBACK", packet.packet_id))
    host.settle()
    host.pass_time(1)
    assert bool(records(host, schema.WINDOW_PAGE)) == (count > 128)
    expected = sorted((each.packet_id, each.payload) for each in got if each not in received and each not in answered)
    released = [packet.packet_id for packet in received]
    host.lose(client)
    for workers in (1, 2):
        let_go(host)
        if workers == 2:
            verify(tmp_path, capsys)
            moved(tmp_path, 1, 2)
        directory = tmp_path if workers == 1 else tmp_path / "next"
        host = on_disk(paths(directory, workers), start_ms=host.now_ms, limits=limits)
        again = lasting(host, "c", 5, properties=properties)
        packets = taken(host, again)
        assert [each.packet_id for each in packets if each.kind == "PUBREL"] == released
        assert [(each.packet_id, each.payload) for each in packets if each.kind == "PUBLISH"] == expected
        host.lose(again)
    let_go(host)

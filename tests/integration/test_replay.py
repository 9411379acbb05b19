"""Replay of the archive from a real broker: positions, going live, crashes, other numbers of workers, retention.

Payloads are `PUBLISHER NUMBER`; the expected messages follow from the acks that publishers got.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from broker.testing import Mqttd
from tests import wire
from tests.broker_process import KIND
from tests.waiting import let_pass
from tests.wire import Client, Packet

pytestmark = pytest.mark.skipif(KIND == "mosquitto", reason="mosquitto has no archive")

Start = Callable[..., Mqttd]
NEVER = 0xFFFFFFFF
MANY = [1, 4]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(workers)``: a broker on the data directory that archives `a/#`, ended with the test."""
    opened: list[Mqttd] = []

    def run(workers: int = 1, hours: float = 1, bytes_: str = "1GB", **settings: Any) -> Mqttd:
        archive = [{"filter": "a/#", "hours": hours, "bytes": bytes_}]
        config = {"store": "leveldb", "data_dir": tmp_path / "data", "archive": archive, **settings}
        opened.append(Mqttd(workers, config, environment={"MQTTD_LEVELDB__RESERVE_BYTES": "0"}))
        return opened[-1].start()

    yield run
    for each in opened:
        each.kill()
        each.forget()


def publish(broker: Mqttd, client_id: str, numbers: range, topic: str = "a/b", qos: int = 1) -> None:
    """Publish all of them and read their acks."""
    with closing(Client(broker.address, 5)) as client:
        client.connect(client_id)
        for chunk in _chunks(numbers, 50):
            ids = [client.next_packet_id() if qos else 0 for _ in chunk]
            bodies = [b"%s %d" % (client_id.encode(), number) for number in chunk]
            client.send(
                *(
                    wire.publish(5, topic, body, qos=qos, packet_id=packet_id)
                    for body, packet_id in zip(bodies, ids, strict=True)
                )
            )
            for packet_id in ids if qos else ():
                client.await_packet("PUBACK", packet_id)
        client.disconnect()


def _chunks(numbers: range, size: int) -> Iterator[range]:
    for at in range(0, len(numbers), size):
        yield numbers[at : at + size]


def reader(broker: Mqttd, client_id: str = "reader", lasting: bool = False, **properties: Any) -> Client:
    client = Client(broker.address, 5)
    if lasting:
        properties["session_expiry_interval"] = NEVER
    client.connect(client_id, clean=not lasting, properties=properties)
    return client


def ask(client: Client, offset: str, *filters: tuple[str, int]) -> Packet:
    packet_id = client.next_packet_id()
    client.send(wire.subscribe(5, packet_id, *filters, properties={"user_property": [("mqttd-offset", offset)]}))
    return client.await_packet("SUBACK", packet_id)


def take(client: Client, count: int) -> list[Packet]:
    """Return so many messages, acknowledged."""
    got: list[Packet] = []
    while len(got) < count:
        packet = client.read()
        if packet.kind == "PUBREL":
            client.ack("PUBCOMP", packet.packet_id)
            continue
        assert packet.kind == "PUBLISH", packet
        got.append(packet)
        if packet.qos:
            client.ack("PUBACK" if packet.qos == 1 else "PUBREC", packet.packet_id)
    return got


def offset_of(packet: Packet) -> str:
    found: str = dict(packet.properties["user_property"])["mqttd-offset"]
    return found


def numbers_of(packets: list[Packet], client_id: str) -> list[int]:
    """Return the numbers of that publisher's messages, in order of arrival."""
    name = client_id.encode()
    return [int(each.payload.split()[1]) for each in packets if each.payload.split()[0] == name]


def names(many: int, count: int = 4) -> list[str]:
    """Return names of publishers, most likely on different workers."""
    return [f"publisher-{number}" for number in range(max(many, count))]


@pytest.mark.parametrize("many", MANY)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_earliest_merges_all_workers_and_goes_live(start: Start, many: int, qos: int) -> None:
    broker = start(many)
    for name in names(many):
        publish(broker, name, range(50), topic=f"a/{name}", qos=qos if qos < 2 else 1)
    with closing(reader(broker)) as client:
        assert ask(client, "earliest", ("a/+", qos)).codes == (qos,)
        got = take(client, 50 * len(names(many)))
        positions = [offset_of(packet) for packet in got]
        assert positions == sorted(positions)
        for name in names(many):
            publish(broker, name, range(50, 60), qos=min(qos, 1))
        got += take(client, 10 * len(names(many)))
        for name in names(many):
            assert numbers_of(got, name) == list(range(60))
        client.expect_silence()


@pytest.mark.parametrize("many", MANY)
def test_no_gap_while_publishers_go_on(start: Start, many: int) -> None:
    """Readers connect and disconnect while four clients publish; each starts where the previous one stopped."""
    broker = start(many)
    total = 3000
    publishers = [
        threading.Thread(target=publish, args=(broker, name, range(total), f"a/{name}")) for name in names(many)
    ]
    for thread in publishers:
        thread.start()
    got: list[Packet] = []
    seen: set[bytes] = set()
    offset = "earliest"
    turns = 0
    while len(seen) < total * len(publishers):
        with closing(reader(broker, f"reader {turns}")) as client:
            ask(client, offset, ("a/#", 1))
            more = take(client, min(2000, total * len(publishers) - len(seen)))
        got += more
        seen |= {packet.payload for packet in more}
        offset = offset_of(more[-1])
        turns += 1
    for thread in publishers:
        thread.join()
    for name in names(many):
        first = list(dict.fromkeys(numbers_of(got, name)))
        assert first == list(range(total))
    assert turns >= 4


@pytest.mark.parametrize("many", MANY)
def test_latest_time_and_position(start: Start, many: int) -> None:
    broker = start(many)
    publish(broker, "publisher", range(10))
    let_pass(0.1)
    moment = datetime.now(UTC)
    let_pass(0.1)
    publish(broker, "publisher", range(10, 20))
    with closing(reader(broker)) as client:
        ask(client, moment.isoformat(timespec="microseconds").replace("+00:00", "Z"), ("a/b", 1))
        by_time = take(client, 10)
        assert numbers_of(by_time, "publisher") == list(range(10, 20))
        ask(client, offset_of(by_time[4]), ("a/b", 1))
        got = take(client, 5)
        assert numbers_of(got, "publisher") == list(range(15, 20))
        ask(client, (moment + timedelta(days=1)).isoformat(), ("a/b", 1))
        publish(broker, "publisher", range(20, 21))
        assert numbers_of(take(client, 1), "publisher") == [20]
        ask(client, "latest", ("a/b", 1))
        publish(broker, "publisher", range(21, 22))
        assert numbers_of(take(client, 1), "publisher") == [21]
        assert client.unsubscribe("a/b").codes == (0,)
        publish(broker, "publisher", range(22, 23))
        client.expect_silence()


@pytest.mark.parametrize("many", MANY)
def test_a_kill_of_everything_while_one_reads(start: Start, many: int) -> None:
    """A lasting session continues after SIGKILL: nothing is skipped, and only unacknowledged messages are repeated."""
    broker = start(many)
    total = 2000
    for name in names(many):
        publish(broker, name, range(total), topic=f"a/{name}")
    got: list[Packet] = []
    client = reader(broker, lasting=True)
    ask(client, "earliest", ("a/#", 1))
    expected = total * len(names(many))
    for part in (0.2, 0.5, 0.8):
        got += take(client, int(expected * part) - len(got))
        client.close()
        broker.kill()
        broker.start()
        client = reader(broker, lasting=True)
        assert client.connack.session_present
    seen = {packet.payload for packet in got}
    while len(seen) < expected:
        got += take(client, 1)
        seen.add(got[-1].payload)
    client.close()
    for name in names(many):
        assert list(dict.fromkeys(numbers_of(got, name))) == list(range(total))
    assert len(got) - expected < 3 * 2000


def test_another_number_of_workers(start: Start) -> None:
    """A position given to a client, and a lasting session, stay valid over 4 -> 2 -> 3 -> 1 workers."""
    broker = start(4)
    publishers = names(4)
    for name in publishers:
        publish(broker, name, range(100), topic=f"a/{name}")
    lasting = reader(broker, "lasting", lasting=True)
    ask(lasting, "earliest", ("a/#", 1))
    kept = take(lasting, 150)
    with closing(reader(broker)) as client:
        ask(client, "earliest", ("a/#", 1))
        got = take(client, 150)
    lasting.close()
    upto = 100
    for workers in (2, 3, 1):
        broker.stop()
        broker = start(workers)
        for name in publishers:
            publish(broker, name, range(upto, upto + 20), topic=f"a/{name}")
        upto += 20
        with closing(reader(broker)) as client:
            ask(client, offset_of(got[-1]), ("a/#", 1))
            seen = {packet.payload for packet in got}
            want = min(upto * 4, len(seen) + 60)
            while len(seen) < want:
                got += take(client, 1)
                seen.add(got[-1].payload)
        with closing(reader(broker, "lasting", lasting=True)) as lasting:
            assert lasting.connack.session_present
            seen = {packet.payload for packet in kept}
            want = min(upto * 4, len(seen) + 60)
            while len(seen) < want:
                kept += take(lasting, 1)
                seen.add(kept[-1].payload)
    for each, offset in ((got, offset_of(got[-1])), (kept, "")):
        with closing(reader(broker, "reader" if offset else "lasting", lasting=not offset)) as client:
            if offset:
                ask(client, offset, ("a/#", 1))
            seen = {packet.payload for packet in each}
            while len(seen) < upto * 4:
                each += take(client, 1)
                seen.add(each[-1].payload)
        for name in publishers:
            assert list(dict.fromkeys(numbers_of(each, name))) == list(range(upto))


def test_what_is_refused(start: Start) -> None:
    broker = start(2)
    publish(broker, "publisher", range(3))
    with closing(reader(broker)) as client:
        ask(client, "earliest", ("a/b", 0))
        position = offset_of(take(client, 3)[0])
        for offset, text in [
            ("then", "a/b"), (position[:1] + "0" * 8 + position[9:], "a/b"), ("latest", "$share/g/a/b"),
            ("latest", "b"),
        ]:  # fmt: skip
            suback = ask(client, offset, (text, 0))
            assert suback.codes == (0x83,)
            assert "\n" not in suback.properties["reason_string"]
    with closing(reader(broker, "quiet", request_problem_information=0)) as client:
        assert not ask(client, "then", ("a/b", 0)).properties
    with closing(Client(broker.address, 4)) as client:
        client.connect("old")
        assert client.subscribe(("a/b", 0)) == (0,)  # before MQTT 5 there is no way to ask


def test_retention_passes_by(start: Start) -> None:
    """A reader long away continues where the log begins, and is notified; a position before it is refused."""
    broker = start(1, bytes_="2MB")
    publish(broker, "publisher", range(10))
    client = reader(broker, lasting=True)
    ask(client, "earliest", ("a/b", 1))
    first = take(client, 5)
    client.close()
    upto = 10
    body = bytes(2000)
    with closing(reader(broker, "probe")) as probe, closing(Client(broker.address, 5)) as loud:
        loud.connect("loud")
        refused = None
        for _ in range(60):
            for _ in range(100):
                loud.publish("a/c", body, qos=1)
            publish(broker, "publisher", range(upto, upto + 10))
            upto += 10
            suback = ask(probe, offset_of(first[0]), ("a/x", 1))
            if suback.codes == (0x83,):
                refused = suback
                break
        assert refused is not None, "retention removed nothing"
        assert "before the start" in refused.properties["reason_string"]
        begins = dict(refused.properties["user_property"])["mqttd-offset-earliest"]
        assert ask(probe, begins, ("a/x", 1)).codes in ((1,), (0x83,))
    client = reader(broker, lasting=True)
    got = take(client, 1)
    while numbers_of(got, "publisher")[-1] != upto - 1:
        got += take(client, 1)
    client.close()
    lost = [dict(packet.properties["user_property"]).get("mqttd-offset-lost") for packet in got]
    assert sum(each is not None for each in lost) >= 1
    assert "replay_fallen_behind" in broker.logs
    numbers = numbers_of(got, "publisher")
    assert numbers == sorted(numbers)

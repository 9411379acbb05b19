"""Stores and snapshots of this and of earlier releases are read and continued without loss (`tests/golden`)."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker.testing import Mqttd
from leveldb_store.format.schema import VERSION
from leveldb_store.snapshots.snapshot import read_manifest
from shards.data_dir import read_layout
from tests.broker_process import KIND
from tests.golden.whole import ARRIVED, IN_FLIGHT, LARGE, NO_LOCAL, SUMMARISED
from tests.golden.written import CONFIG, LONG, WORKERS, named
from tests.mqttd_command import mqttd
from tests.wire import Client, Packet

pytestmark = pytest.mark.skipif(KIND == "mosquitto", reason="mosquitto has no such stores")

GOLDEN = Path(__file__).parent.parent / "golden"
SCHEMAS = sorted(file.name.partition(".")[0] for file in GOLDEN.glob("*.data.tar.*"))
WHOLE = [schema for schema in SCHEMAS if schema != "schema-1"]
"""The schemas that contain everything that `tests.golden.whole` writes."""
SESSIONS = sorted([
    named("away", 1), named("publisher", 0), "asked", "full", "in-flight", "large-one", "large-two", "late", "of-3-1-1",
    "one-of-group", "options", "pages", "read", "read-in-part", "replays", "will-connected", "will-waits",
    "windows-of-3-1-1", "with-user",
])  # fmt: skip


def unpacked(name: str, directory: Path) -> Path:
    (archive,) = GOLDEN.glob(f"{name}.tar.*")
    with tarfile.open(archive) as tar:
        tar.extractall(directory, filter="data")
    return directory


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.long), WORKERS, pytest.param(3, marks=pytest.mark.long)])
def broker(request: pytest.FixtureRequest, schema: str, tmp_path: Path) -> Iterator[Mqttd]:
    """A broker on the data directory of that schema, with as many workers as wrote it and with others."""
    data = unpacked(f"{schema}.data", tmp_path / "data")
    with Mqttd(request.param, {**CONFIG, "data_dir": str(data)}, arguments=["--log-format", "json"]) as running:
        yield running


def back(broker: Mqttd, name: str, version: int = 5, **properties: Any) -> Client:
    """Return the client, in its session."""
    client = Client(broker.address, version)
    connack = client.connect(name, clean=False, properties={**LONG, **properties} if version == 5 else {})
    assert connack.session_present, name
    return client


def received(client: Client, count: int) -> list[Packet]:
    """Return so many messages, each with its handshake complete, and check that no more arrive."""
    got: list[Packet] = []
    unreleased: set[int] = set()
    while len(got) < count or unreleased:
        packet = client.read()
        if packet.kind == "PUBREL":
            unreleased.remove(packet.packet_id)
            client.ack("PUBCOMP", packet.packet_id)
            continue
        assert packet.kind == "PUBLISH"
        got.append(packet)
        if packet.qos == 1:
            client.ack("PUBACK", packet.packet_id)
        elif packet.qos == 2:
            unreleased.add(packet.packet_id)
            client.ack("PUBREC", packet.packet_id)
    client.expect_silence()
    return got


def payloads(client: Client, count: int) -> list[bytes]:
    """Return the payloads of so many messages."""
    return [packet.payload for packet in received(client, count)]


def asked_retained(client: Client) -> None:
    """Check that all requested retained messages of QoS 1 and 2 arrive once, and of QoS 0 those not yet sent."""
    wanted = {b"k%d" % number for number in range(12) if number % 3} | {b"kx"}
    got: list[Packet] = []
    while sum(each.qos for each in got) < len(wanted):
        got.append(client.expect("PUBLISH", retain=True))
        if got[-1].qos:
            client.ack("PUBACK", got[-1].packet_id)
    client.expect_silence()
    assert {each.payload for each in got if each.qos} == wanted
    assert {each.payload for each in got if not each.qos} <= {b"k0", b"k3", b"k6", b"k9"}


def commands(directory: Path, running: bool) -> None:
    """Check the output of the commands: all sessions by name, and the messages of the archive."""
    if running:
        said = mqttd("sessions", "list", "--json", "--data-dir", directory)
        assert (said.status, sorted(json.loads(line)["client"] for line in said.out.splitlines())) == (0, SESSIONS)
        return
    said = mqttd("store", "stats", "--json", directory)
    assert said.status == 0, said
    stores = json.loads(said.out)
    archived = Counter[str]()
    for store in stores:
        archived.update({each["filter"]: each["messages"] for each in store["archive"]})
    assert archived["archived/#"] == 10
    assert archived["summarised/#"] == SUMMARISED
    assert 0 < archived["removed/#"] < 150
    assert sum(store["families"]["sessions"]["records"] for store in stores) == len(SESSIONS)


def discard(directory: Path) -> None:
    """Check that only the records set aside are wrong, and discard these."""
    said = mqttd("store", "verify", directory)
    strange = [line for line in said.out.splitlines() if "unreadable" not in line and "problems" not in line]
    assert (said.status, strange, said.out.count("is set aside")) == (1, [], 3), said
    assert mqttd("store", "discard", directory).status == 0


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_data_directory_of_an_earlier_release_is_gone_on_with(broker: Mqttd, schema: str, tmp_path: Path) -> None:
    """Every session gets the messages its client had not acknowledged, once, with its options; after a restart none.
    Stores of an older schema are upgraded, once.
    """
    is_old = schema != f"schema-{VERSION}"
    assert broker.logs.count('"event":"upgraded"') == is_old
    assert read_layout(str(tmp_path / "data")).schema == VERSION
    with closing(back(broker, "with-user")) as client:
        got = received(client, 5)
        assert [each.payload for each in got] == [b"q%d" % number for number in range(5)]
        for number, each in enumerate(got):
            assert each.qos == 2
            assert each.properties["user_property"] == [("number", str(number))]
            assert sorted(each.properties["subscription_identifier"]) == [7, 268_435_455]
    with closing(back(broker, "of-3-1-1", 4)) as client:
        assert payloads(client, 5) == [b"q%d" % number for number in range(5)]
    with closing(back(broker, "in-flight")) as client:
        assert client.expect("PUBREL").packet_id == 2
        client.ack("PUBCOMP", 2)
        got = received(client, 6)
        assert [(each.payload, each.qos, each.dup) for each in got] == [
            (b"f2", 1, True), (b"f3", 2, True), (b"f4", 1, True), (b"f5", 2, got[3].dup), (b"f6", 1, False),
            (b"f7", 2, False),
        ]  # fmt: skip
        for packet_id in (70, 65535):  # known: no second copy, and PUBREL ends them
            client.ack("PUBREL", packet_id)
            assert client.expect("PUBCOMP", packet_id=packet_id).reason == 0
        client.ack("PUBREL", 71)
        assert client.expect("PUBCOMP", packet_id=71).reason == 0x92
    with closing(back(broker, "one-of-group")) as client:
        assert Counter(payloads(client, 6)) == Counter(b"s%d" % number for number in range(6))
    with closing(back(broker, "late")) as client:
        assert payloads(client, 4) == [b"e0", b"e1", b"e2", b"l1"]
    with closing(back(broker, "full")) as client:
        assert payloads(client, 3) == [b"h0", b"h1", b"h2"]
    with closing(back(broker, "asked")) as client:
        if schema in WHOLE:
            asked_retained(client)
        else:  # only those its worker had given it: that release forgot what the other worker had still to send
            assert sorted(payloads(client, 5)) == [b"k1", b"k11", b"k5", b"k7", b"kx"]
    with closing(back(broker, named("away", 1))) as client:
        assert sorted(payloads(client, 5)) == [b"L" * 10_000, b"x0", b"x1", b"x2", b"x3"]
    with closing(back(broker, "replays")) as client:
        # messages of QoS 0 were sent, or ended with their connection; a9, the last one archived, is behind the position
        # stored with a8: it is read again
        assert payloads(client, 7) == [*(b"a%d" % number for number in range(10) if number % 3), b"a9"]
    with closing(Client(broker.address, 5)) as client:
        client.connect("looks")
        client.subscribe(("kept/#", 2))
        got = received(client, 13)
        assert {each.topic: each.payload for each in got}["kept/expires"] == b"kx"
        client.subscribe(("wills/#", 2))
        with closing(back(broker, "will-waits")), closing(back(broker, "will-connected")):
            client.expect_silence()
    broker.restart()
    assert broker.logs.count('"event":"upgraded"') == is_old
    for name, version in (("with-user", 5), ("of-3-1-1", 4), ("in-flight", 5), ("one-of-group", 5), ("late", 5)):
        with closing(back(broker, name, version)) as client:
            client.expect_silence()
    assert broker.stop() == 0
    if schema in WHOLE:
        discard(tmp_path / "data")
    assert mqttd("store", "verify", tmp_path / "data").status == 0


@pytest.mark.parametrize("schema", WHOLE)
@pytest.mark.usefixtures("schema")
def test_the_rest_of_a_whole_data_directory(broker: Mqttd, tmp_path: Path) -> None:
    """Options, windows in both directions, large ones, messages that several wait for or some have read; none twice."""
    commands(tmp_path / "data", running=True)
    with closing(back(broker, "options")) as client:
        own, kept = sorted(received(client, 2), key=lambda packet: packet.payload, reverse=True)
        assert (kept.payload, kept.qos, kept.retain) == (b"o0", 2, True)
        assert (own.payload, own.qos, own.retain) == (b"o1", 1, False)
        assert own.properties["content_type"] == "text"
        assert own.properties["correlation_data"] == b"c"
        assert 0 < own.properties["message_expiry_interval"] <= 0xFFFFFFFF
        client.publish("options/own", b"mine", qos=1)
        client.expect_silence()
        assert client.subscribe(("options/own", 1 | NO_LOCAL)) == (1,)
    with closing(back(broker, "windows-of-3-1-1", 4)) as client:
        assert client.expect("PUBREL").packet_id == 2
        client.ack("PUBCOMP", 2)
        assert [(each.payload, each.qos, each.dup) for each in received(client, 2)] == [
            (b"c2", 1, True), (b"c3", 2, True),
        ]  # fmt: skip
        client.ack("PUBREL", 33)
        client.expect("PUBCOMP", packet_id=33)
    with closing(back(broker, "pages", 4)) as client:
        got = received(client, IN_FLIGHT)
        assert [(each.payload, each.packet_id) for each in got] == [(b"p%d" % n, n + 1) for n in range(IN_FLIGHT)]
        assert all(each.dup for each in got)
        for packet_id in range(1000, 1000 + ARRIVED):
            client.ack("PUBREL", packet_id)
            client.expect("PUBCOMP", packet_id=packet_id)
    for name in ("large-one", "large-two"):
        with closing(back(broker, name)) as client:
            assert sorted(payloads(client, 3)) == [LARGE + b"%d" % number for number in range(3)]
    with closing(back(broker, "read")) as client:
        client.expect_silence()
    with closing(back(broker, "read-in-part")) as client:
        assert payloads(client, 4) == [b"r%d" % number for number in range(2, 6)]
    with closing(Client(broker.address, 5)) as client:
        client.connect("looks")
        earliest = {"user_property": [("mqttd-offset", "earliest")]}
        client.subscribe(("summarised/#", 1), properties=earliest)
        assert payloads(client, SUMMARISED) == [b"m%d" % number for number in range(SUMMARISED)]
    broker.restart()
    for name, version in (("options", 5), ("windows-of-3-1-1", 4), ("pages", 4), ("large-one", 5), ("read-in-part", 5)):
        with closing(back(broker, name, version)) as client:
            client.expect_silence()
    assert broker.stop() == 0
    commands(tmp_path / "data", running=False)
    discard(tmp_path / "data")
    assert mqttd("store", "verify", tmp_path / "data").status == 0


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_snapshot_of_an_earlier_release_is_restored(schema: str, tmp_path: Path) -> None:
    snapshot = unpacked(f"{schema}.snapshot", tmp_path / "snapshot")
    said = mqttd("store", "verify", snapshot)
    assert said.out.count(" set aside") == (3 if schema in WHOLE else 0), said
    assert said.status == (schema in WHOLE), said
    assert read_manifest(snapshot).schema == int(schema.partition("-")[2])
    data = tmp_path / "data"
    assert mqttd("restore", "--from", snapshot, "--data-dir", data).status == 0
    with (
        Mqttd(WORKERS, {**CONFIG, "data_dir": str(data)}) as running,
        closing(back(running, named("away", 1))) as client,
    ):
        assert sorted(payloads(client, 5)) == [b"L" * 10_000, b"x0", b"x1", b"x2", b"x3"]

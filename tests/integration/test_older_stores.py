"""Stores and snapshots of earlier releases are read, gone on with, and lose nothing (`tests/golden`)."""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker import cli
from broker.testing import Mqttd
from tests.broker_process import KIND
from tests.golden.written import CONFIG, LONG, WORKERS, named
from tests.wire import Client, Packet

pytestmark = pytest.mark.skipif(KIND == "mosquitto", reason="mosquitto has no such stores")

GOLDEN = Path(__file__).parent.parent / "golden"
SCHEMAS = sorted(file.name.partition(".")[0] for file in GOLDEN.glob("*.data.tar.gz"))


def unpacked(name: str, directory: Path) -> Path:
    with tarfile.open(GOLDEN / name) as tar:
        tar.extractall(directory, filter="data")
    return directory


@pytest.fixture(params=[1, WORKERS, 3])
def broker(request: pytest.FixtureRequest, schema: str, tmp_path: Path) -> Iterator[Mqttd]:
    """On the data directory of that schema, with as many workers as wrote it and with others."""
    data = unpacked(f"{schema}.data.tar.gz", tmp_path / "data")
    with Mqttd(request.param, {**CONFIG, "data_dir": str(data)}, arguments=["--log-format", "json"]) as running:
        yield running


def back(broker: Mqttd, name: str, version: int = 5, **properties: Any) -> Client:
    """The client in its session."""
    client = Client(broker.address, version)
    connack = client.connect(name, clean=False, properties={**LONG, **properties} if version == 5 else {})
    assert connack.session_present, name
    return client


def received(client: Client, count: int) -> list[Packet]:
    """So many messages, each answered to the end, and no more."""
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
    """Theirs."""
    return [packet.payload for packet in received(client, count)]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_data_directory_of_an_earlier_release_is_gone_on_with(broker: Mqttd, tmp_path: Path) -> None:
    """Every session gets what its client had not answered, once, with its options; after a restart nothing."""
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
        # what its worker had given it: that release forgot what the other one had still to send
        assert sorted(payloads(client, 5)) == [b"k1", b"k11", b"k5", b"k7", b"kx"]
    with closing(back(broker, named("away", 1))) as client:
        assert sorted(payloads(client, 5)) == [b"L" * 10_000, b"x0", b"x1", b"x2", b"x3"]
    with closing(back(broker, "replays")) as client:
        # what was published at QoS 0 was sent, or ended with its connection; a9, the last one that is archived, lies
        # behind the position that was stored with a8: it is read again
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
    for name, version in (("with-user", 5), ("of-3-1-1", 4), ("in-flight", 5), ("one-of-group", 5), ("late", 5)):
        with closing(back(broker, name, version)) as client:
            client.expect_silence()
    assert broker.stop() == 0
    assert cli.main(["store", "verify", str(tmp_path / "data")]) == 0


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_snapshot_of_an_earlier_release_is_restored(schema: str, tmp_path: Path) -> None:
    snapshot = unpacked(f"{schema}.snapshot.tar.gz", tmp_path / "snapshot")
    assert cli.main(["store", "verify", str(snapshot)]) == 0
    data = tmp_path / "data"
    assert cli.main(["restore", "--from", str(snapshot), "--data-dir", str(data)]) == 0
    with (
        Mqttd(WORKERS, {**CONFIG, "data_dir": str(data)}) as running,
        closing(back(running, named("away", 1))) as client,
    ):
        assert sorted(payloads(client, 5)) == [b"L" * 10_000, b"x0", b"x1", b"x2", b"x3"]

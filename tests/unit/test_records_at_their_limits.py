"""What sessions have at most, through the store: it is written, read back, verified and carried over."""

from __future__ import annotations

from pathlib import Path

import plyvel
import pytest

from broker import inspection
from leveldb_store import schema
from tests import wire
from tests.kept_host import lasting, let_go, on_disk
from tests.sansio import Host
from tests.unit.test_repartition import bodies, moved, paths

PACKET_FILTERS = 5000


def verify(directory: Path, capsys: pytest.CaptureFixture[str], workers: int = 1) -> None:
    """`mqttd store verify` has nothing to say."""
    status = inspection.verify([inspection.Place(path) for path in paths(directory, workers)])
    assert status == 0, capsys.readouterr().out


def restarted(directory: Path, host: Host, workers: int = 1) -> Host:
    """The host as its next start finds it."""
    let_go(host)
    return on_disk(paths(directory, workers), start_ms=host.now_ms)


@pytest.mark.mqtt("5:3.8.4-3")
def test_more_subscriptions_made_while_behind_than_16_bits_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """66,000 subscriptions of a client that is behind: windows stay small, and another number of workers takes them."""
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
